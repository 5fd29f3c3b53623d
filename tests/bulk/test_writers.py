import builtins
import importlib.util
import json

import numpy as np
import pytest

from bulk.tiny import ENDINGS, read_output, read_words
from torchelmo.bulk import writers
from torchelmo.bulk.writers import Index, Parquet, writer_class
from torchelmo.errors import InputError, MissingExtra

WORDS = [["He", "has"], [], ['"', "\\", "/", "물", "🙂"], ["He", "has"]]


def arrays(dtype, layers):
    random = np.random.default_rng(3)
    shape = (3, -1, 8) if layers else (-1, 8)
    return [
        (random.standard_normal(len(words) * (24 if layers else 8)) * 10.0**n)
        .astype(dtype)
        .reshape(shape if words else (*shape[:-2], 0, 8))
        for n, words in enumerate(WORDS)
    ]


def write(path, vectors, *, dtype="float32", index=True):
    with writer_class(path)(path, dtype, index=index) as writer:
        for line, (words, piece) in enumerate(zip(WORDS, vectors, strict=True)):
            writer.write(line, words, piece)
        writer.finish()
    return path


@pytest.mark.parametrize("layers", [True, False], ids=["all", "one"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_every_format_gives_back_what_was_written(tmp_path, ending, dtype, layers):
    vectors = arrays(dtype, layers)
    path = write(tmp_path / f"out.{ending}", vectors, dtype=dtype)
    found = read_output(path)
    assert sorted(found) == [0, 1, 2, 3]
    for number, piece in enumerate(vectors):
        if ending == "jsonl":  # JSON has no shape for no tokens, and no dtype
            assert found[number].size == piece.size
            np.testing.assert_array_equal(
                found[number].astype(dtype).reshape(piece.shape), piece, strict=True
            )
        else:
            np.testing.assert_array_equal(found[number], piece, strict=True)
    if ending in ("parquet", "jsonl"):
        assert read_words(path) == dict(enumerate(WORDS))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_same_sentences_give_the_same_bytes(tmp_path, ending, monkeypatch):
    vectors = arrays("float32", True)
    first = write(tmp_path / f"a.{ending}", vectors).read_bytes()
    monkeypatch.setattr("time.time", lambda: 2e9)
    assert write(tmp_path / f"b.{ending}", vectors).read_bytes() == first


def test_jsonl_is_plain_json(tmp_path):
    path = write(tmp_path / "out.jsonl", arrays("float32", True))
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert rows[1] == {"line": 1, "tokens": [], "vectors": [[], [], []]}
    assert np.shape(rows[0]["vectors"]) == (3, 2, 8)
    assert "물" in path.read_text(encoding="utf-8")


def test_parquet_row_groups_are_bounded(tmp_path, monkeypatch):
    import pyarrow.parquet as pq

    monkeypatch.setattr(Parquet, "ROW_GROUP", 100)
    path = write(tmp_path / "out.parquet", arrays("float32", True))
    file = pq.ParquetFile(path)
    assert file.num_row_groups == 3  # lines 0, then 1 and 2, then 3
    assert file.read()["line"].to_pylist() == [0, 1, 2, 3]
    assert file.schema_arrow.names == ["line", "tokens", "shape", "vectors"]


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'torchelmo\[parquet\]'"):
        writer_class(tmp_path / "x.parquet")


@pytest.mark.parametrize("name", ["out", "out.txt", "out.hdf5.gz"])
def test_other_endings_are_refused(tmp_path, name):
    with pytest.raises(InputError, match=r"has to end in one of \.hdf5, \.h5, \.npz"):
        writer_class(tmp_path / name)


def test_index_is_json_in_which_the_later_sentence_counts(tmp_path):
    index = Index(tmp_path / "scratch")
    for line, words in enumerate(WORDS):
        index.add(line, words)
    index.finish()
    text = "".join(index.text(3))
    assert json.loads(text) == {"He has": "3", "": "1", '" \\ / 물 🙂': "2"}
    assert (len(text), len(text.encode())) == (index.characters, index.size)
    index.close()
    assert not list(tmp_path.iterdir())


def test_an_error_while_writing_closes_the_file(tmp_path, monkeypatch):
    real = builtins.open

    class Full:
        def __init__(self, path):
            self.file = real(path, "wb")

        def write(self, data):
            raise OSError(28, "No space left on device")

        def close(self):
            self.file.close()

    writer = writers.JsonLines(tmp_path / "x.jsonl", "float32", index=False)
    writer._file.close()
    writer._file = Full(tmp_path / "x.jsonl")
    with pytest.raises(OSError, match="No space"), writer:
        writer.write(0, ["a"], np.zeros((1, 2), dtype=np.float32))
    assert writer._file.file.closed
