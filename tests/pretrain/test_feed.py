"""Batches as they reach the training step: the same words, whoever asks, however many share."""

import threading
from itertools import islice, pairwise

import numpy as np
import pytest
import torch

from pretrain.tiny import CPU, tiny_recipe
from torchelmo.nn.bilm import BiLM
from torchelmo.nn.softmax import Softmax
from torchelmo.pretrain import feed as feeding
from torchelmo.pretrain import objective
from torchelmo.pretrain.feed import Feed, send, spelling_lengths
from torchelmo.pretrain.memory import META
from torchelmo.pretrain.objective import LanguageModel, log_expected
from torchelmo.pretrain.streams import UNKNOWN_ID, Stream
from torchelmo.text.characters import Characters


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "torchelmo-feed"]


def take(feed, count, *start):
    batches = feed(*start)
    try:
        return list(islice(batches, count))
    finally:
        batches.close()


def read_words(step, name):
    """The spelling of each word that a batch reads, (T, B, C)."""
    return step.characters[step.sides[name].index]


def test_batches_are_those_of_the_streams(corpus):
    recipe = tiny_recipe()
    found = take(Feed(corpus, recipe, CPU), 5)
    for number, name in enumerate(("forward", "backward")):
        stream = Stream(
            corpus.train,
            4,
            5,
            corpus.vocabulary_size,
            reverse=name == "backward",
            shuffle="documents",
            seed=2 * recipe.train.seed + number,
            reset_share=0.3,
        )
        for fed, (position, pairs) in zip(found, stream, strict=False):
            spelled = torch.from_numpy(corpus.characters[pairs.inputs.T].astype(np.int64))
            assert torch.equal(read_words(fed.step, name), spelled)
            assert torch.equal(fed.step.sides[name].targets, torch.tensor(pairs.targets.T).long())
            assert torch.equal(fed.step.sides[name].resets, torch.tensor(pairs.resets.T))
            for key, value in position.items():
                np.testing.assert_array_equal(fed.positions[name][key], value)


def test_each_word_once_and_in_groups_by_length(corpus, monkeypatch):
    recipe = tiny_recipe(train={"unroll": 40})
    torch.manual_seed(0)
    config = recipe.config(corpus.config, corpus.vocabulary_size)
    model = LanguageModel(BiLM(config), Softmax(corpus.vocabulary_size, 8))
    padding, run = corpus.config.symbols + 5, []
    model.bilm.token.register_forward_pre_hook(lambda _, given: run.append(given))
    for step in (fed.step for fed in take(Feed(corpus, recipe, CPU), 3)):
        assert len(step.characters.unique(dim=0)) == len(step.characters)
        np.testing.assert_array_equal((step.characters != padding).sum(dim=1), step.spelt)
        assert (np.diff(step.spelt) >= 0).all()
        run.clear()
        monkeypatch.setattr(objective, "SPELLINGS", (3, 5, 7))
        grouped = model.vectors(step)
        limits = ((1, 3), (4, 5), (6, 7), (8, 50))
        for (characters, _, longest), (low, high) in zip(run, limits, strict=True):
            lengths = (characters != padding).sum(dim=1)
            assert low <= lengths.min() and lengths.max() == longest <= high
        monkeypatch.setattr(objective, "SPELLINGS", ())
        torch.testing.assert_close(grouped, model.vectors(step))
        assert len(run) == 5


def test_distinct_words_by_length_then_number(corpus):
    feed = Feed(corpus, tiny_recipe(), CPU)
    lengths = spelling_lengths(corpus.characters, corpus.config.symbols + 5)
    rng = np.random.default_rng(2)
    for size in (1, 7, 60):
        read = rng.integers(corpus.types, size=(2, 3, size)).astype(np.int32)
        words, index = feed._distinct(read)
        assert words.tolist() == sorted(set(read.flat), key=lambda word: (lengths[word], word))
        np.testing.assert_array_equal(words[index], read)


def test_sent_as_one():
    arrays = [
        np.arange(6, dtype=np.int64).reshape(2, 3).T,
        np.array([True, False, True]),
        np.array([0.5, -2.0], dtype=np.float32),
        np.zeros((0, 4), dtype=np.int32),
        np.array([[65535]], dtype=np.uint16),
        np.array([7], dtype=np.int32),
    ]
    kinds = [torch.int64, torch.bool, torch.float32, torch.int64, torch.int64, torch.int64]
    for array, tensor, kind in zip(arrays, send(arrays, CPU), kinds, strict=True):
        assert tensor.dtype is kind and tensor.is_contiguous()
        assert tensor.tolist() == array.tolist() and tensor.shape == array.shape
        assert tensor.storage_offset() * tensor.element_size() % 128 == 0
    for array, tensor, kind in zip(arrays, send(arrays, META), kinds, strict=True):
        assert tensor.is_meta and tensor.dtype is kind and tensor.shape == array.shape


def test_spelt_from_the_table_on_the_device(corpus, monkeypatch):
    expected = take(Feed(corpus, tiny_recipe(), CPU), 2)
    feed = Feed(corpus, tiny_recipe(), CPU)
    feed._table = torch.from_numpy(corpus.characters.astype(np.int16))
    for one, other in zip(expected, take(feed, 2), strict=True):
        same(one, other)
    for large in (1, 1 << 40):  # a step without memory, from a table that is there and one not
        monkeypatch.setattr(feeding, "ON_DEVICE", large)
        for one, other in zip(expected, take(Feed(corpus, tiny_recipe(), META), 2), strict=True):
            assert other.step.characters.is_meta
            assert other.step.characters.shape == one.step.characters.shape
            assert other.step.characters.dtype == torch.int64


def test_spelling_lengths(corpus):
    words = ["a", "", "kettle", "x" * 70]
    table = Characters(corpus.config).encode(words).astype(np.uint16)
    assert spelling_lengths(table, 261).tolist() == [3, 2, 8, 50]
    assert spelling_lengths(table[:0], 261).tolist() == []


def test_whole_words(corpus):
    fed = take(Feed(corpus, tiny_recipe(model={"words": True}), CPU), 1)[0].step
    stream = Stream(corpus.train, 4, 5, 30, shuffle="documents", seed=6, reset_share=0.3)
    inputs = next(iter(stream))[1].inputs.T
    known = np.where(inputs < 30, inputs, UNKNOWN_ID)
    assert fed.characters is None and len(fed.spelt) == 0
    assert torch.equal(fed.words[fed.sides["forward"].index], torch.tensor(known).long())


def same(one, other):
    """Whether two batches hold the same."""
    for name, side in one.step.sides.items():
        twin = other.step.sides[name]
        assert torch.equal(read_words(one.step, name), read_words(other.step, name))
        assert torch.equal(side.targets, twin.targets)
        assert torch.equal(side.resets, twin.resets)
        assert torch.equal(side.negatives.ids, twin.negatives.ids)
        assert torch.equal(side.negatives.log_expected, twin.negatives.log_expected)
        assert side.negatives.tries == twin.negatives.tries


@pytest.mark.parametrize("independent", [True, False])
def test_the_seed_decides_and_a_run_goes_on_with_the_same(corpus, independent):
    recipe = tiny_recipe(data={"independent": independent})
    whole = take(Feed(corpus, recipe, CPU), 40)
    for one, other in zip(whole, take(Feed(corpus, recipe, CPU), 40), strict=True):
        same(one, other)
    for stop in (1, 20, 31, 32, 33):
        rest = take(Feed(corpus, recipe, CPU), 4, stop, whole[stop - 1].positions)
        for one, other in zip(whole[stop:], rest, strict=False):
            same(one, other)
    other = take(Feed(corpus, tiny_recipe(train={"seed": 4}), CPU), 1)[0]
    with pytest.raises(AssertionError):
        same(whole[0], other)


def test_negatives(corpus):
    recipe = tiny_recipe(train={"negatives": 9})
    first, second = take(Feed(corpus, recipe, CPU), 2)
    drawn = [side.negatives for fed in (first, second) for side in fed.step.sides.values()]
    for negatives in drawn:
        assert len(negatives.ids.unique()) == 9
        expected = log_expected(negatives.ids, corpus.vocabulary_size, negatives.tries)
        assert torch.equal(negatives.log_expected, expected)
    assert len({tuple(negatives.ids.tolist()) for negatives in drawn}) == 4
    for changes in ({"softmax": "full"}, {"negatives": corpus.vocabulary_size}):
        fed = take(Feed(corpus, tiny_recipe(train=changes), CPU), 1)[0]
        assert all(side.negatives is None for side in fed.step.sides.values())


def test_directions_in_one_order_or_their_own(corpus):
    def sentences(independent, name, end):
        """Whole sentences that the first row predicts, without the boundary that ends them."""
        recipe = tiny_recipe(data={"independent": independent}, train={"unroll": 100})
        words = take(Feed(corpus, recipe, CPU), 1)[0].step.sides[name].targets[:, 0].tolist()
        ends = [-1, *(place for place, word in enumerate(words) if word == end)]
        return [words[a + 1 : b] for a, b in pairwise(ends)]

    for independent in (False, True):
        forward = sentences(independent, "forward", 1)
        backward = [words[::-1] for words in sentences(independent, "backward", 0)]
        assert len(forward) > 5
        assert (forward == backward) is not independent


@pytest.mark.parametrize("independent", [True, False])
def test_ranks_together_read_the_batch_of_one(corpus, independent):
    recipe = tiny_recipe(data={"independent": independent})
    whole = take(Feed(corpus, recipe, CPU), 5)
    parts = [take(Feed(corpus, recipe, CPU, rank=rank, world=2), 5) for rank in (0, 1)]
    for one, first, second in zip(whole, *parts, strict=True):
        for name, side in one.step.sides.items():
            twins = [part.step.sides[name] for part in (first, second)]
            words = [read_words(part.step, name) for part in (first, second)]
            assert torch.equal(torch.cat(words, dim=1), read_words(one.step, name))
            assert torch.equal(torch.cat([t.targets for t in twins], dim=1), side.targets)
            assert torch.equal(torch.cat([t.resets for t in twins], dim=1), side.resets)
            # Each process draws its own negatives, as each GPU does in bilm-tf.
            assert not torch.equal(twins[0].negatives.ids, twins[1].negatives.ids)


def test_no_resets_no_tensor(corpus):
    fed = take(Feed(corpus, tiny_recipe(data={"reset_share": 0.0}), CPU), 1)[0]
    assert all(side.resets is None for side in fed.step.sides.values())


def test_the_thread_ends_with_its_reader(corpus):
    before = threads()
    batches = Feed(corpus, tiny_recipe(), CPU)()
    assert threads() == before  # nothing is made before somebody asks
    next(batches)
    assert len(threads()) == len(before) + 1
    batches.close()
    assert threads() == before


def failing(after):
    """A way to make batches that breaks."""
    made = Feed._make

    def make(self, step, positions):
        yield from islice(made(self, step, positions), after)
        raise OSError("the disk went away")

    return make


@pytest.mark.parametrize("after", [0, 2])
def test_an_error_in_the_thread_reaches_the_reader(corpus, monkeypatch, after):
    monkeypatch.setattr(Feed, "_make", failing(after))
    batches = Feed(corpus, tiny_recipe(), CPU)()
    for _ in range(after):
        next(batches)
    with pytest.raises(OSError, match="the disk went away"):
        next(batches)
    assert threads() == []


def test_an_error_that_nobody_waits_for_does_not_hold_the_thread(corpus, monkeypatch):
    monkeypatch.setattr(Feed, "_make", failing(feeding.AHEAD + 1))
    batches = Feed(corpus, tiny_recipe(), CPU)()
    next(batches)  # the queue is full when the error comes
    closing = threading.Thread(target=batches.close, daemon=True)
    closing.start()
    closing.join(timeout=30)
    assert not closing.is_alive() and threads() == []
