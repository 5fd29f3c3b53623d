from pathlib import Path

import numpy as np
import pytest

from torchelmo.errors import InputError
from torchelmo.pretrain import shards
from torchelmo.pretrain.shards import Task, make_shard
from torchelmo.pretrain.sources import Chunk


def read(stem, kind, dtype="<i4"):
    return np.fromfile(f"{stem}.{kind}", dtype=dtype).tolist()


def test_files_by_hand(tmp_path):
    text = b"\nb a. A b!\n \na\nb b\n\n"
    stem = str(tmp_path / "s")
    shard = make_shard(Task(Chunk("x", 1, text), 3, 17, stem, "words", True, None))
    assert (shard.text, shard.read, shard.lines, shard.tokens) == (3, 17, 3, 9)
    assert (shard.starts, shard.starts_new, shard.ends_blank) == (2, True, True)
    (run,) = shard.runs
    assert Path(f"{run.stem}.words").read_bytes() == b"!\n.\nA\na\nb\n"
    assert read(run.stem, "counts", "<i8") == [1, 1, 1, 2, 4]
    assert (run.tokens, run.types, run.samples, run.offsets) == (9, 5, [b"!"], [0, 10])
    assert read(stem, "tokens") == [4, 3, 1, 2, 4, 0, 3, 4, 4]
    assert read(stem, "sentences") == [3, 3, 1, 2]
    assert read(stem, "lines") == [2, 4, 9, 1, 1, 1, 1, 1, 1, 2, 3, 0]


def test_runs_hold_few_distinct_words(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "BUFFER", 4)
    text = "\n".join(f"{n} {n + 1}" for n in range(20)).encode()
    shard = make_shard(
        Task(Chunk("x", 1, text), 0, 0, str(tmp_path / "s"), "whitespace", False, None, 5)
    )
    assert len(shard.runs) > 2
    assert all(run.types <= 5 + 4 for run in shard.runs)
    assert sum(run.tokens for run in shard.runs) == shard.tokens == 40


def test_a_word_with_white_space_is_refused(tmp_path, monkeypatch):
    class Odd:
        def words(self, text):
            return ["two words"]

    monkeypatch.setattr(shards, "get_tokenizer", lambda name: Odd())
    with pytest.raises(InputError, match="'odd' gave the word 'two words' for x"):
        make_shard(Task(Chunk("x", 1, b"a\n"), 0, 0, str(tmp_path / "s"), "odd", False, None))
