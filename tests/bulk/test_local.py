import copy
import io
import json
import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bulk.tiny import ENDINGS, LINES, left_behind, read_output, tiny_model, write_lines
from torchelmo.bulk import local, parts
from torchelmo.bulk.local import EmbedOptions, embed_file
from torchelmo.bulk.vectors import embed_batch
from torchelmo.elmo import Elmo
from torchelmo.errors import InputError
from torchelmo.nn.lstm import State
from torchelmo.ops.packed import has_bf16

SENTENCES = [line.split() for line in LINES]


@pytest.fixture
def text(tmp_path):
    return write_lines(tmp_path / "in.txt", LINES)


@pytest.mark.parametrize("layers", ["all", "top", "average", 0, 2])
@pytest.mark.parametrize("ending", ENDINGS)
def test_values(elmo, text, tmp_path, ending, layers):
    output = tmp_path / f"out.{ending}"
    summary = embed_file(elmo, text, output, EmbedOptions(layers=layers, window=20))
    found = read_output(output)
    expected = elmo.layers(SENTENCES)
    assert sorted(found) == list(range(len(LINES)))
    for number, array in enumerate(expected):
        if layers == "average":
            array = array.mean(axis=0)
        elif layers != "all":
            array = array[-1 if layers == "top" else layers]
        np.testing.assert_allclose(found[number].reshape(array.shape), array, atol=1e-6)
    tokens = sum(map(len, SENTENCES))
    assert (summary.lines, summary.tokens, summary.blank, summary.kept) == (8, tokens, 1, 0)
    assert summary.bytes == output.stat().st_size
    assert left_behind(tmp_path, "in.txt") == [output.name]


def test_hdf5_has_the_layout_of_the_originals(elmo, text, tmp_path):
    output = tmp_path / "out.hdf5"
    embed_file(elmo, text, output, EmbedOptions(dtype="float16"))
    with h5py.File(output, "r") as file:
        assert set(file) == {*map(str, range(len(LINES))), "sentence_to_index"}
        assert (file["0"].shape, file["0"].dtype) == ((3, 3, 12), np.float16)
        assert file["2"].shape == (3, 0, 12)
        index = json.loads(file["sentence_to_index"][0])
    assert index["The heron waits"] == "5"  # the later of two
    assert index == {line: str(number) for number, line in enumerate(LINES)}


def test_a_stream_is_read_as_a_file_is(elmo, text, tmp_path):
    embed_file(elmo, text, tmp_path / "a.npz")
    embed_file(elmo, io.BytesIO(text.read_bytes()), tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_read_once(elmo, text, tmp_path):
    import threading

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    feeder = threading.Thread(target=lambda: pipe.write_bytes(text.read_bytes()))
    feeder.start()
    summary = embed_file(elmo, pipe, tmp_path / "a.jsonl")
    feeder.join()
    assert summary.lines == len(LINES)


def test_raw_text_is_tokenized_by_the_model(elmo, tmp_path):
    text = write_lines(tmp_path / "in.txt", ["She doesn't wait.", "  ", "Rain, again!"])
    output = tmp_path / "out.jsonl"
    summary = embed_file(elmo, text, output, EmbedOptions(tokenize=True))
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    words = [["She", "does", "n't", "wait", "."], [], ["Rain", ",", "again", "!"]]
    assert [row["tokens"] for row in rows] == words
    assert (summary.lines, summary.blank) == (3, 1)
    np.testing.assert_allclose(rows[0]["vectors"], elmo.layers(words)[0], atol=1e-6)


WORDS = st.text(st.characters(exclude_categories=["Cs", "Z", "Cc"]), min_size=1, max_size=9)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    sentences=st.lists(st.lists(WORDS, max_size=7), min_size=1, max_size=9),
    window=st.integers(1, 40),
    batch_tokens=st.integers(1, 40) | st.none(),
    ending=st.sampled_from(ENDINGS),
    data=st.data(),
)
def test_windows_batches_order_and_duplicates_change_nothing(
    elmo, tmp_path, sentences, window, batch_tokens, ending, data
):
    sentences = sentences + data.draw(st.lists(st.sampled_from(sentences), max_size=4))
    order = data.draw(st.permutations(range(len(sentences))))
    output = tmp_path / f"out.{ending}"
    lines = "\n".join(" ".join(sentences[i]) for i in order) + "\n"
    options = EmbedOptions(window=window, batch_tokens=batch_tokens)
    embed_file(elmo, io.BytesIO(lines.encode()), output, options, overwrite=True)
    found = read_output(output)
    words = [" ".join(sentences[i]).split() for i in order]
    for number, sentence in enumerate(words):
        (alone,) = elmo.layers([sentence])
        np.testing.assert_allclose(found[number].reshape(alone.shape), alone, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 3])
def test_carried_state(elmo, text, tmp_path, rows):
    output = tmp_path / "out.hdf5"
    embed_file(elmo, text, output, EmbedOptions(state="carry", rows=rows, window=12))
    found, state, expected = read_output(output), State(), []
    for first in range(0, len(SENTENCES), rows):
        expected += elmo.layers(SENTENCES[first : first + rows], state=state)
    for number, array in enumerate(expected):
        np.testing.assert_allclose(found[number], array, atol=1e-6)


@pytest.mark.parametrize("name", ["bilm", "allennlp"])
def test_the_dumps_of_the_original_program(shared, tmp_path, name):
    made = shared / "fixtures" / "tf-generated"
    home = {"bilm": "bilm-tf/tests/fixtures/model", "allennlp": "allennlp/test_fixtures/elmo"}
    folder = shared / "fixtures" / home[name]
    elmo = Elmo.from_pretrained(
        options=folder / "options.json", weights=folder / "lm_weights.hdf5", device="cpu"
    )
    output = tmp_path / "out.hdf5"
    embed_file(elmo, made / "dump_input.txt", output, EmbedOptions(state="carry", window=9))
    with (
        h5py.File(made / f"dump_bilm_embeddings_{name}.hdf5", "r") as theirs,
        h5py.File(output, "r") as ours,
    ):
        assert set(ours) - {"sentence_to_index"} == set(theirs)
        for key in theirs:
            assert ours[key].dtype == theirs[key].dtype
            np.testing.assert_allclose(ours[key], theirs[key], atol=2e-6, rtol=0)


class Stop(BaseException):
    """As ^C or a kill, but from inside."""


def interrupt(monkeypatch, after):
    """Let a run stop after so many finished parts, in the middle of the next."""
    finish, write = parts.PartWriter.finish, parts.PartWriter.write
    done = []

    def counted(self, state=None):
        finish(self, state)
        done.append(self)

    def stopping(self, number, vectors):
        write(self, number, vectors)
        if len(done) == after:
            raise Stop

    monkeypatch.setattr(parts.PartWriter, "finish", counted)
    monkeypatch.setattr(parts.PartWriter, "write", stopping)


@pytest.mark.parametrize("state", ["reset", "carry"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_run_that_was_stopped_goes_on(text, tmp_path, monkeypatch, ending, state):
    rows = 2 if state == "carry" else 1
    options = EmbedOptions(window=14, state=state, rows=rows)
    whole = tmp_path / f"whole.{ending}"
    embed_file(Elmo(tiny_model()), text, whole, options)
    output = tmp_path / f"out.{ending}"
    for after in (1, 1):  # twice, one part further each time
        with monkeypatch.context() as patch:
            interrupt(patch, after)
            with pytest.raises(Stop):
                embed_file(Elmo(tiny_model()), text, output, options)
        assert not output.exists()
        assert not list((tmp_path / f"out.{ending}.partial").glob("*.tmp"))
    summary = embed_file(Elmo(tiny_model()), text, output, options)
    assert 2 <= summary.kept < summary.lines == len(LINES)
    assert output.read_bytes() == whole.read_bytes()
    assert left_behind(tmp_path, "in.txt") == sorted([whole.name, output.name])


@pytest.fixture
def unfinished(elmo, text, tmp_path, monkeypatch):
    """OUT of a run that was stopped after two parts."""
    output = tmp_path / "out.npz"
    with monkeypatch.context() as patch:
        interrupt(patch, 2)
        with pytest.raises(Stop):
            embed_file(elmo, text, output, EmbedOptions(window=14))
    return output


def test_stopped_and_nothing_finished_leaves_nothing(elmo, text, tmp_path, monkeypatch):
    interrupt(monkeypatch, 0)
    with pytest.raises(Stop):
        embed_file(elmo, text, tmp_path / "out.npz")
    assert left_behind(tmp_path, "in.txt") == []


def test_other_options_are_refused(elmo, text, unfinished):
    for options, word in (
        (EmbedOptions(window=14, layers="top"), "layers all"),
        (EmbedOptions(window=14, dtype="float16"), "dtype float32"),
        (EmbedOptions(window=15), "window 14"),
        (EmbedOptions(window=14, state="carry"), "state reset"),
        (EmbedOptions(window=14, tokenize=True), "tokenizer None"),
    ):
        with pytest.raises(InputError, match=f"unfinished run with {word}.*--overwrite"):
            embed_file(elmo, text, unfinished, options)
    if has_bf16():
        quick = copy.deepcopy(elmo)
        quick.bilm.precision = "bf16"
        with pytest.raises(InputError, match=r"unfinished run with precision float32.*--overwrite"):
            embed_file(quick, text, unfinished, EmbedOptions(window=14))
    with pytest.raises(InputError, match="unfinished run with another model"):
        embed_file(Elmo(tiny_model(seed=3)), text, unfinished, EmbedOptions(window=14))
    assert embed_file(elmo, text, unfinished, EmbedOptions(window=14)).kept > 0


def test_the_index_is_a_matter_of_joining(elmo, text, unfinished):
    assert embed_file(elmo, text, unfinished, EmbedOptions(window=14, index=False)).kept > 0
    with np.load(unfinished) as file:
        assert "sentence_to_index" not in file


@pytest.mark.parametrize(
    "lines",
    [["Another heron waits", *LINES[1:]], LINES[:2], [*LINES[:1]]],
    ids=["changed", "shorter", "first"],
)
def test_other_input_is_refused(elmo, text, unfinished, lines):
    write_lines(text, lines)
    with pytest.raises(InputError, match=r"over other text \(lines .* differ\).*--overwrite"):
        embed_file(elmo, text, unfinished, EmbedOptions(window=14))
    summary = embed_file(elmo, text, unfinished, EmbedOptions(window=14), overwrite=True)
    assert (summary.lines, summary.kept) == (len(lines), 0)


def test_input_that_changed_after_the_finished_lines_is_taken(elmo, text, unfinished):
    write_lines(text, [*LINES[:-1], "another end"])
    assert embed_file(elmo, text, unfinished, EmbedOptions(window=14)).kept > 0
    (expected,) = elmo.layers([["another", "end"]])
    np.testing.assert_allclose(read_output(unfinished)[len(LINES) - 1], expected, atol=1e-6)


def test_input_that_grew_after_the_end_is_refused(elmo, text, tmp_path, monkeypatch):
    output = tmp_path / "out.npz"
    with monkeypatch.context() as patch:
        patch.setattr(local._Run, "_join", lambda *_: (_ for _ in ()).throw(Stop))
        with pytest.raises(Stop):
            embed_file(elmo, text, output)
    write_lines(text, [*LINES, "one more"])
    with pytest.raises(InputError, match="over other text"):
        embed_file(elmo, text, output)


def test_a_stream_that_differs_is_refused_even_to_overwrite(elmo, unfinished):
    other = io.BytesIO(b"something else\n" * 20)
    with pytest.raises(InputError, match="over other text"):
        embed_file(elmo, other, unfinished, EmbedOptions(window=14), overwrite=True)


def test_killed_between_renaming_and_cleaning_up(elmo, text, tmp_path, monkeypatch):
    output = tmp_path / "out.npz"
    with monkeypatch.context() as patch:
        patch.setattr(local, "sync_folder", lambda _: (_ for _ in ()).throw(Stop))
        with pytest.raises(Stop):
            embed_file(elmo, text, output)
    before = output.read_bytes()
    assert (tmp_path / "out.npz.partial" / "done.json").exists()
    saved = tmp_path / "saved"
    shutil.copytree(tmp_path / "out.npz.partial", saved)

    # The same command only cleans up.
    with monkeypatch.context() as patch:
        patch.setattr(local._Run, "__call__", None)
        summary = embed_file(elmo, text, output)
    assert (summary.lines, summary.kept) == (len(LINES), len(LINES))
    assert output.read_bytes() == before
    assert left_behind(tmp_path, "in.txt", "saved") == ["out.npz"]

    # Another is told that the output exists.
    shutil.copytree(saved, tmp_path / "out.npz.partial")
    with pytest.raises(InputError, match=r"out\.npz exists"):
        embed_file(elmo, text, output, EmbedOptions(layers="top"))
    write_lines(text, ["other"])
    with pytest.raises(InputError, match=r"out\.npz exists"):
        embed_file(elmo, text, output)
    with pytest.raises(InputError, match=r"out\.npz exists"):
        embed_file(elmo, io.BytesIO(b"other\n"), output)
    assert embed_file(elmo, text, output, overwrite=True).lines == 1


def test_an_output_that_exists(elmo, text, tmp_path):
    output = tmp_path / "out.npz"
    output.write_bytes(b"precious")
    with pytest.raises(InputError, match=r"out\.npz exists: .*--overwrite"):
        embed_file(elmo, text, output)
    assert output.read_bytes() == b"precious"
    assert left_behind(tmp_path, "in.txt") == ["out.npz"]


def test_the_old_output_stays_until_the_new_is_ready(elmo, text, tmp_path, monkeypatch):
    output = tmp_path / "out.npz"
    output.write_bytes(b"precious")
    with monkeypatch.context() as patch:
        interrupt(patch, 1)
        with pytest.raises(Stop):
            embed_file(elmo, text, output, EmbedOptions(window=14), overwrite=True)
    assert output.read_bytes() == b"precious"
    summary = embed_file(elmo, text, output, EmbedOptions(window=14), overwrite=True)
    assert summary.kept > 0
    assert sorted(read_output(output)) == list(range(len(LINES)))


def test_paths_that_cannot_be_used(elmo, text, tmp_path):
    (tmp_path / "folder.npz").mkdir()
    for source, output, word in (
        (tmp_path / "none.txt", "a.npz", "there is no file"),
        (tmp_path, "a.npz", "is a folder, expected a text file"),
        (text, "folder.npz", "is a folder, expected the name of a file"),
        (text, "nowhere/a.npz", "there is no folder"),
        (text, "in.txt/a.npz", "there is no folder"),
        (text, "a.txt", "has to end in one of"),
    ):
        with pytest.raises(InputError, match=word):
            embed_file(elmo, source, tmp_path / output)
    source = shutil.copy(text, tmp_path / "in.jsonl")
    with pytest.raises(InputError, match="is the input"):
        embed_file(elmo, Path(source), Path(source), overwrite=True)
    assert left_behind(tmp_path, "in.txt", "in.jsonl", "folder.npz") == []


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"window": 0}, {"batch_tokens": -5}, {"rows": 2}])
def test_options_out_of_range(wrong):
    with pytest.raises(InputError):
        EmbedOptions(**wrong)


def test_bad_text_is_found_before_any_work(elmo, tmp_path, monkeypatch):
    monkeypatch.setattr(elmo.bilm, "quick", None)
    text = tmp_path / "in.txt"
    text.write_bytes(b"fine words\n" * 1000 + b"bad \xff\n")
    with pytest.raises(InputError, match=r"line 1001 of .*in\.txt is not UTF-8"):
        embed_file(elmo, text, tmp_path / "out.npz", EmbedOptions(window=20))
    assert left_behind(tmp_path, "in.txt") == []


def test_bad_text_in_a_stream_keeps_what_is_finished(elmo, tmp_path):
    good = b"fine words\n" * 10
    output = tmp_path / "out.npz"
    with pytest.raises(InputError, match="line 11 of the input has a NUL byte"):
        embed_file(elmo, io.BytesIO(good + b"b\0d\n"), output, EmbedOptions(window=12))
    assert not output.exists()
    summary = embed_file(elmo, io.BytesIO(good + b"good\n"), output, EmbedOptions(window=12))
    assert (summary.lines, summary.kept) == (11, 9)


def test_too_little_space_is_found_before_any_work(elmo, text, tmp_path, monkeypatch):
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 0, 1000))
    with pytest.raises(InputError, match=r"out\.npz with its parts needs .* make room"):
        embed_file(elmo, text, tmp_path / "out.npz")
    assert left_behind(tmp_path, "in.txt") == []


def test_a_disk_that_fills_up_keeps_finished_parts(elmo, text, tmp_path, monkeypatch):
    output = tmp_path / "out.npz"
    finish, count = parts.PartWriter.finish, []

    def full(self, state=None):
        count.append(self)
        if len(count) == 3:
            raise OSError(28, os.strerror(28), str(self.temporary))
        finish(self, state)

    with monkeypatch.context() as patch:
        patch.setattr(parts.PartWriter, "finish", full)
        with pytest.raises(InputError, match=r"No space left.*kept in .*out\.npz\.partial"):
            embed_file(elmo, text, output, EmbedOptions(window=14))
    assert left_behind(tmp_path, "in.txt") == ["out.npz.partial"]
    assert embed_file(elmo, text, output, EmbedOptions(window=14)).kept > 0


def test_a_sentence_too_long_for_memory(elmo, text, tmp_path, monkeypatch):
    def quick(vectors, words, lengths, *_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(elmo.bilm, "quick", quick)
    with pytest.raises(InputError, match="memory ran out; line 7 has 14 tokens: split"):
        embed_file(elmo, text, tmp_path / "out.npz")
    assert left_behind(tmp_path, "in.txt") == []


def test_progress_reaches_the_end(elmo, text, tmp_path, monkeypatch):
    ticks = iter(range(1, 10**6))
    monkeypatch.setattr(local.time, "monotonic", lambda: float(next(ticks)))
    seen = []
    embed_file(elmo, text, tmp_path / "o.npz", EmbedOptions(window=14), progress=seen.append)
    size, tokens = text.stat().st_size, sum(map(len, SENTENCES))
    for phase in ("embed", "join"):
        steps = [p for p in seen if p.phase == phase]
        assert len(steps) == len(LINES)
        assert [p.done for p in steps] == sorted(p.done for p in steps)
        assert (steps[-1].done, steps[-1].tokens, steps[-1].total) == (size, tokens, size)


def test_the_batch_function_agrees(elmo, text, tmp_path):
    embed_file(elmo, text, tmp_path / "o.npz", EmbedOptions(layers="top"))
    found = read_output(tmp_path / "o.npz")
    for number, vectors in enumerate(embed_batch(elmo, SENTENCES, "top")):
        np.testing.assert_allclose(found[number], vectors, atol=1e-6)
