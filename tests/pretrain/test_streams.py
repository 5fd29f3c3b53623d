"""Batches against layouts worked out by hand, a slow but plain program, and properties."""

from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pretrain.slow_streams import slow_batches
from pretrain.tiny import split
from torchelmo.pretrain import streams
from torchelmo.pretrain.streams import Stream

S, E, UNK = 0, 1, 2
NAMES = ["<S>", "</S>", "<UNK>", *"abcdef"]
A, B, C, D, E2, F = range(3, 9)
THREE = [[A, B, C], [D, E2], [F]]

texts = st.lists(st.integers(0, 6), min_size=1, max_size=7)  # words of each sentence
sizes = st.integers(1, 5)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(streams, "BLOCK", 3)


def take(stream, count):
    return [pairs for _, pairs in islice(stream, count)]


def spelt(array):
    """Word ids as rows of text."""
    return [" ".join(NAMES[i] for i in row) for row in array]


def numbered(lengths):
    """A text whose every word is another, so that sentences can be told apart."""
    ends = np.cumsum([3, *lengths])
    return [list(range(a, b)) for a, b in pairwise(ends)]


def plain(orders, sentences, batch, steps, count, reverse):
    """Batches as bilm-tf's loops make them: batch by batch, row by row, pair by pair."""
    queue = (sentences[i] for order in orders for i in order)
    rows = [[] for _ in range(batch)]
    out = []
    for _ in range(count):
        for row in rows:
            while len(row) < steps:
                words = next(queue)
                whole = [E, *reversed(words), S] if reverse else [S, *words, E]
                row += pairwise(whole)
        out.append([row[:steps] for row in rows])
        rows = [row[steps:] for row in rows]
    return np.array(out)  # (count, batch, steps, 2)


def test_forward_by_hand():
    batches = take(iter(Stream(split(THREE), 2, 3, 9)), 3)
    assert [spelt(b.inputs) for b in batches] == [
        ["<S> a b", "<S> d e"],
        ["c <S> f", "<S> a b"],  # the second epoch begins in the second row
        ["<S> d e", "c <S> f"],
    ]
    assert [spelt(b.targets) for b in batches] == [
        ["a b c", "d e </S>"],
        ["</S> f </S>", "a b c"],
        ["d e </S>", "</S> f </S>"],
    ]
    assert not any(b.resets.any() for b in batches)


def test_reverse_by_hand():
    batches = take(iter(Stream(split(THREE), 2, 3, 9, reverse=True)), 2)
    assert [spelt(b.inputs) for b in batches] == [
        ["</S> c b", "</S> e d"],
        ["a </S> f", "</S> c b"],
    ]
    assert [spelt(b.targets) for b in batches] == [["c b a", "e d <S>"], ["<S> f <S>", "c b a"]]


def test_words_outside_the_vocabulary_are_read_but_not_predicted():
    (pairs,) = take(iter(Stream(split(THREE), 1, 4, B)), 1)
    assert spelt(pairs.inputs) == ["<S> a b c"]
    assert spelt(pairs.targets) == ["a <UNK> <UNK> </S>"]


def test_sentences_without_words():
    (pairs,) = take(iter(Stream(split([[], []]), 1, 3, 9)), 1)
    assert spelt(pairs.inputs) == ["<S> <S> <S>"]
    assert spelt(pairs.targets) == ["</S> </S> </S>"]


@given(texts, sizes, sizes, st.booleans())
@example([2], 5, 1, False)
def test_as_the_plain_program(lengths, batch, steps, reverse):
    sentences = numbered(lengths)
    found = take(iter(Stream(split(sentences), batch, steps, 10**6, reverse=reverse)), 8)
    orders = [range(len(sentences))] * 400
    expected = plain(orders, sentences, batch, steps, 8, reverse)
    np.testing.assert_array_equal(np.stack([b.inputs for b in found]), expected[..., 0])
    np.testing.assert_array_equal(np.stack([b.targets for b in found]), expected[..., 1])


@given(
    texts, sizes, sizes, st.booleans(), st.integers(0, 3), st.sampled_from(["none", "sentences"])
)
def test_each_sentence_once_an_epoch_whole_and_by_one_row(
    lengths, batch, steps, reverse, seed, shuffle
):
    sentences = numbered([n + 1 for n in lengths])
    pairs = sum(len(words) + 1 for words in sentences)
    stream = Stream(
        split(sentences), batch, steps, 10**6, reverse=reverse, shuffle=shuffle, seed=seed
    )
    # Enough for two epochs, whatever other rows have open in the meantime.
    count = -(-2 * pairs // (batch * steps)) + -(-max(lengths) // steps) + 3
    found = take(iter(stream), count)
    inputs = np.concatenate([b.inputs for b in found], axis=1)
    targets = np.concatenate([b.targets for b in found], axis=1)
    first, last = (E, S) if reverse else (S, E)
    assert last not in inputs and first not in targets
    begun = []  # (batch, row, column, words): sorted, the order in which rows took them
    for row in range(batch):
        starts = np.flatnonzero(inputs[row] == first)
        assert starts[0] == 0
        for a, b in zip(starts, [*starts[1:], count * steps], strict=True):
            words = targets[row, a:b].tolist()
            assert inputs[row, a + 1 : b].tolist() == words[:-1]
            begun.append((a // steps, row, a, words))
    begun.sort()
    n = len(sentences)
    for epoch in range(2):
        taken = [words for *_, words in begun[epoch * n : (epoch + 1) * n]]
        whole = [[*(reversed(w) if reverse else w), last] for w in sentences]
        assert sorted(taken) == sorted(whole)
        if shuffle == "none":
            assert taken == whole


def equal(found, expected):
    """Whether two batches and the positions after them are the same, to the type."""
    (position, pairs), (slow_position, slow_pairs) = found, expected
    assert position.keys() == slow_position.keys()
    for key, array in position.items():
        np.testing.assert_array_equal(array, slow_position[key], strict=True)
    for array, slow in zip((pairs.inputs, pairs.targets, pairs.resets), slow_pairs, strict=True):
        assert array.T.flags.c_contiguous  # time first, as it is sent
        np.testing.assert_array_equal(array, slow)


OPTIONS = {
    "shuffle": st.sampled_from(["none", "sentences", "documents"]),
    "seed": st.integers(0, 3),
    "reset_share": st.sampled_from([0.0, 0.4, 1.0]),
}


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=4),
    sizes,
    sizes,
    st.fixed_dictionaries(OPTIONS),
    st.sampled_from([1, 3, 4096]),
)
@example([[0]], 1, 1, {"shuffle": "none", "seed": 0, "reset_share": 1.0}, 1)
@example([[9, 0], [30]], 3, 2, {"shuffle": "documents", "seed": 1, "reset_share": 0.4}, 1)
def test_batches_and_positions_of_the_slow_program(documents, batch, steps, options, chunk):
    lengths = [length for document in documents for length in document]
    text = split(numbered(lengths), [len(document) for document in documents])
    vocabulary, count = 3 + sum(lengths) * 2 // 3, 10
    streams.CHUNK, before = chunk, streams.CHUNK
    try:
        forward = Stream(text, batch, steps, vocabulary, **options)
        backward = forward.other_direction()
        made = list(islice(zip(forward, backward, strict=True), count))
        for reverse, found in enumerate(zip(*made, strict=True)):
            direction = {"block": 3, "reverse": bool(reverse), **options}
            slow = slow_batches(text, batch, steps, vocabulary, **direction)
            expected = list(islice(slow, count))
            for one, other in zip(found, expected, strict=True):
                equal(one, other)
            # From every position on, whether or not the other direction comes along.
            for stop in range(count - 1):
                on = Stream(text, batch, steps, vocabulary, reverse=bool(reverse), **options)
                equal(next(on.seek(expected[stop][0])), expected[stop + 1])
                shared = (forward, backward)[reverse].seek(expected[stop][0])
                for one, other in zip(shared, expected[stop + 1 :], strict=False):
                    equal(one, other)
    finally:
        streams.CHUNK = before


def test_both_directions_take_sentences_once(monkeypatch):
    asked = []
    take_sentences = streams.Assignment._take
    monkeypatch.setattr(
        streams.Assignment,
        "_take",
        lambda self, state: asked.append(state.block) or take_sentences(self, state),
    )
    forward = Stream(split(THREE), 2, 3, 9)
    backward = forward.other_direction()
    for (one, _), (other, _) in islice(zip(forward, backward, strict=True), 7):
        assert not any(np.shares_memory(one[key], other[key]) for key in one)
    assert asked == [0, 3, 6]
    assert backward.reverse and not backward.other_direction().reverse


@given(texts, sizes, sizes, st.integers(0, 10), st.sampled_from(["none", "sentences", "documents"]))
def test_seek_goes_on_with_the_same_batches(lengths, batch, steps, stop, shuffle):
    text = split(numbered(lengths))

    def make():
        return Stream(text, batch, steps, 6, shuffle=shuffle, seed=4, reset_share=0.5)

    whole = list(islice(iter(make()), stop + 6))
    position = whole[stop][0]
    for (_, expected), (_, found) in zip(whole[stop + 1 :], make().seek(position), strict=False):
        for name in ("inputs", "targets", "resets"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    # Nor does reading on change a position that was given out.
    again = next(make().seek(position))[1]
    np.testing.assert_array_equal(again.inputs, whole[stop + 1][1].inputs)


@given(texts, sizes, st.integers(1, 3), st.integers(1, 3))
def test_processes_read_slices_of_the_whole(lengths, steps, share, world):
    text, batch = split(numbered(lengths)), share * world
    options = {"shuffle": "sentences", "seed": 9, "reset_share": 0.4}
    whole = take(iter(Stream(text, batch, steps, 6, **options)), 7)
    for rank in range(world):
        rows = range(rank * share, (rank + 1) * share)
        part = take(iter(Stream(text, batch, steps, 6, rows=rows, **options)), 7)
        for mine, all_rows in zip(part, whole, strict=True):
            for name in ("inputs", "targets", "resets"):
                expected = getattr(all_rows, name)[rows.start : rows.stop]
                np.testing.assert_array_equal(getattr(mine, name), expected)


def order_of(stream, sentences, epochs=1):
    """The sentences that a stream of one row reads, by number."""
    pairs = epochs * sum(len(words) + 1 for words in sentences)
    read = np.concatenate([b.targets[0] for b in take(iter(stream), pairs)])[:pairs]
    first = {words[0]: number for number, words in enumerate(sentences)}
    return [first[word] for word in read if word in first]


def test_shuffle_keeps_documents_together():
    sentences, documents = numbered([2] * 12), [3, 1, 4, 2, 2]
    groups = np.split(np.arange(12), np.cumsum(documents)[:-1])
    stream = Stream(split(sentences, documents), 1, 1, 10**6, shuffle="documents", seed=8)
    order = order_of(stream, sentences, epochs=2)
    for epoch in (order[:12], order[12:]):
        left = epoch
        while left:
            (group,) = (g.tolist() for g in groups if g[0] == left[0])
            assert left[: len(group)] == group
            left = left[len(group) :]
        assert sorted(epoch) == list(range(12))
    assert order[:12] != order[12:] and order[:12] != list(range(12))


def test_orders_depend_on_the_seed_alone():
    sentences = numbered([1] * 20)

    def order(seed, **options):
        stream = Stream(split(sentences), 1, 1, 10**6, shuffle="sentences", seed=seed, **options)
        return order_of(stream, sentences)

    assert order(1) == order(1) == order(1, reverse=True) == order(1, reset_share=0.5)
    assert order(1) != order(2)


@pytest.mark.parametrize(("share", "low", "high"), [(0.0, 0, 0), (1.0, 1, 1), (0.3, 0.25, 0.35)])
def test_share_of_resets(share, low, high):
    stream = Stream(split(numbered([2, 0, 5] * 40)), 3, 4, 10**6, reset_share=share, seed=2)
    found = take(iter(stream), 400)
    starts = np.concatenate([b.inputs == S for b in found])
    resets = np.concatenate([b.resets for b in found])
    assert not (resets & ~starts).any()
    assert low <= resets.sum() / starts.sum() <= high
