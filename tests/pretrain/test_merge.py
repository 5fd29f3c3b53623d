from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchelmo.pretrain import merge, shards
from torchelmo.pretrain.merge import merge_words
from torchelmo.pretrain.shards import Task, make_shard
from torchelmo.pretrain.sources import Chunk
from torchelmo.pretrain.workers import Workers


def shard_of(text, stem, **options):
    return make_shard(
        Task(Chunk("x", 1, text.encode()), 0, 0, str(stem), "whitespace", False, None, **options)
    )


WORD = st.text(st.sampled_from("abé물🙂z"), min_size=1, max_size=3)
TEXTS = st.lists(st.lists(WORD, max_size=30), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.integers(1, 40), st.integers(1, 5), st.integers(1, 9))
def test_words_of_all_runs_sorted_and_counted(tmp_path_factory, texts, part, sample, types):
    folder = tmp_path_factory.mktemp("merge")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SAMPLE", sample)
        patch.setattr(merge, "SAMPLE", sample)
        patch.setattr(shards, "BUFFER", 2)
        made = [
            shard_of("\n".join(words), folder / str(number), max_types=types)
            for number, words in enumerate(texts)
        ]
        runs = [run for shard in made for run in shard.runs]
        found = merge_words(runs, folder, Workers(1), part_entries=part)
    counts = Counter(word for words in texts for word in words)
    everything = b"".join(text for _, text in found.blocks()).decode().split("\n")[:-1]
    assert everything == sorted(counts)
    assert found.counts.tolist() == [counts[word] for word in everything]
    assert [found.place(word) for word in everything] == list(range(len(counts)))
    assert found.place("nowhere") is None
    first = 0
    for words, shard in zip(texts, made, strict=True):
        assert [everything[i] for i in found.tokens(shard, first)] == words
        numbers = np.arange(len(counts), dtype=np.int32) + 100
        assert [everything[i - 100] for i in found.tokens(shard, first, numbers)] == words
        first += len(shard.runs)


def test_no_words_at_all(tmp_path):
    found = merge_words([], tmp_path, Workers(1))
    assert len(found) == 0
    assert found.text(np.zeros(0, dtype=np.int64)) == b""
    assert list(found.blocks()) == []
    assert found.place("a") is None


def test_text_of_some_words(tmp_path):
    shard = shard_of("pear fig date 梨 fig", tmp_path / "0")
    found = merge_words(shard.runs, tmp_path, Workers(1))
    assert found.text(np.array([3, 1, 1, 0])).decode() == "梨\nfig\nfig\ndate\n"


def test_progress_is_told(tmp_path):
    shard = shard_of(" ".join(f"w{n}" for n in range(3000)), tmp_path / "0")
    seen = []
    merge_words(shard.runs, tmp_path, Workers(1), lambda *at: seen.append(at), part_entries=1000)
    assert seen == [(n, len(seen)) for n in range(1, len(seen) + 1)]
    assert len(seen) >= 3
