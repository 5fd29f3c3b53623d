"""Training text as endless rows: no padding, no step without a word to predict.

A sentence w1..wn gives n+1 pairs: read `<S>`, predict w1; ...; read wn, predict `</S>`. From the
right: read `</S>`, predict wn; ...; read w1, predict `<S>`. So the forward LSTM never reads `</S>`
nor the backward one `<S>`. Each row of a batch is a stream of such pairs: whenever a row has used
up a sentence, it takes the next one in the order of the epoch, and after the last sentence of an
epoch comes the first of the next. A batch is the next T pairs of every row, exactly as bilm-tf
lays them out. The two directions read the text in orders of their own, as there, or in one common
order, in which a step has half as many distinct words.

A position is a small dictionary of arrays; a stream put there goes on with the same batches.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from torchelmo.pretrain.corpus import Split

Ints = npt.NDArray[np.int64]
Shuffle = Literal["documents", "sentences", "none"]
BEGIN_ID, END_ID, UNKNOWN_ID = 0, 1, 2  # the first lines of every prepared vocabulary
BLOCK = 32  # batches laid out at a time: large enough for numpy, small in memory
CHUNK = 4096  # sentences looked at ahead


@dataclass(frozen=True)
class Pairs:
    """One batch of one direction, each (B, T); in memory, time comes first, as LSTMs take it."""

    inputs: npt.NDArray[np.int32]  # word ids
    targets: npt.NDArray[np.int32]  # vocabulary ids
    resets: npt.NDArray[np.bool_]  # whether the row's state is zeroed before this input


class State(NamedTuple):
    """Which sentences are taken before a block; nobody changes its arrays."""

    block: int  # number of the block's first batch
    epoch: int
    next: int  # place in the epoch of the sentence to be taken next
    fill: Ints  # (B,) pairs that each row has taken
    open: Ints  # (4, n) sentence, row, start, reset: still read

    def same(self, other: State) -> bool:
        """Whether the same follows."""
        arrays = zip(self[3:], other[3:], strict=True)
        return self[:3] == other[:3] and all(np.array_equal(a, b) for a, b in arrays)


class Parts(NamedTuple):
    """The sentences, or parts of them, that fill a block: row after row, (n,) each."""

    first: Ints  # (B + 1,) which are a row's: from first[row] to first[row + 1]
    offset: Ints  # of the sentence in the text
    words: Ints  # of the sentence
    skipped: Ints  # pairs of it that earlier blocks had
    pairs: Ints  # pairs of it in this block
    reset: npt.NDArray[np.bool_]  # whether a state is zeroed at its start


class Assignment:
    """Which row reads which sentences, block after block: alike for both directions of an order."""

    def __init__(
        self, text: Split, batch: int, steps: int, shuffle: Shuffle, seed: int, reset_share: float
    ) -> None:
        self.text, self.batch, self.steps = text, batch, steps
        self.shuffle, self.seed, self.reset_share = shuffle, seed, reset_share
        self.lengths: Ints = np.diff(text.sentences)
        self._epoch: tuple[int, Ints, npt.NDArray[np.bool_]] | None = None
        self._last: tuple[State, Parts, State] | None = None

    def start(self) -> State:
        """Return the state before the first block."""
        none = np.zeros((4, 0), dtype=np.int64)
        return State(0, 0, 0, np.zeros(self.batch, dtype=np.int64), none)

    def __call__(self, state: State) -> tuple[Parts, State]:
        """Return a block and the state after it; made once if both directions ask in turn."""
        if self._last is None or not self._last[0].same(state):
            self._last = (state, *self._assign(state))
        return self._last[1:]

    def _deal(self, epoch: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Return the order of sentences in an epoch, and where states are zeroed."""
        if self._epoch is not None and self._epoch[0] == epoch:
            return self._epoch[1:]
        self._epoch = None  # before another of its size is made
        count = len(self.lengths)
        rng = np.random.default_rng([self.seed, epoch])
        order: Ints = np.arange(count, dtype=np.int64)
        if self.shuffle == "sentences":
            rng.shuffle(order)
        elif self.shuffle == "documents":
            chosen = rng.permutation(len(self.text.documents) - 1)
            starts = np.asarray(self.text.documents[:-1])[chosen]
            sizes = np.diff(self.text.documents)[chosen]
            order = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes) + np.arange(count)
        self._epoch = (epoch, order, rng.random(count) < self.reset_share)
        return self._epoch[1:]

    def _assign(self, state: State) -> tuple[Parts, State]:
        begin, end = state.block * self.steps, (state.block + BLOCK) * self.steps
        taken, after = self._take(state)
        segments = np.concatenate([state.open, taken], axis=1)
        words = self.lengths[segments[0]]
        stop = segments[2] + words + 1
        after = after._replace(open=segments[:, stop > end])

        # A row takes its sentences in the order in which it reads them. Sorting 16 bits is quick.
        order = np.argsort(segments[1].astype(np.min_scalar_type(self.batch)), kind="stable")
        (sentence, row, start, reset), words, stop = segments[:, order], words[order], stop[order]
        skipped = np.maximum(begin - start, 0)
        parts = Parts(
            first=np.searchsorted(row, np.arange(self.batch + 1)),
            offset=np.asarray(self.text.sentences)[sentence],
            words=words,
            skipped=skipped,
            pairs=np.minimum(stop, end) - start - skipped,
            reset=reset.astype(np.bool_),
        )
        return parts, after

    def _take(self, state: State) -> tuple[Ints, State]:
        """Let rows take sentences until each has pairs for all batches of the block.

        In batch after batch, row after row, each row takes sentences until the batch is full.
        """
        fill = state.fill.copy()
        looked: list[tuple[int, int, Ints, Ints, npt.NDArray[np.bool_]]] = []
        pairs_ahead = chain.from_iterable(self._look_ahead(state, looked))
        takers: list[tuple[Ints, Ints, Ints]] = []  # rows, pairs they had, sentences they took
        for batch in range(state.block, state.block + BLOCK):
            goal = (batch + 1) * self.steps
            rows = np.flatnonzero(fill < goal)
            had = fill[rows]
            counts, beyond = [], []
            for need in (goal - had).tolist():
                left, count = need, 0
                while left > 0:
                    left -= next(pairs_ahead)
                    count += 1
                counts.append(count)
                beyond.append(left)
            fill[rows] = goal - np.array(beyond, dtype=np.int64)
            takers.append((rows, had, np.array(counts, dtype=np.int64)))

        after = State(state.block + BLOCK, state.epoch, state.next, fill, state.open)
        rows, had, taken = (np.concatenate(arrays) for arrays in zip(*takers, strict=True))
        if not looked:
            return np.zeros((4, 0), dtype=np.int64), after
        count = int(taken.sum())
        epoch, place = looked[-1][:2]
        after = after._replace(
            epoch=epoch, next=place + count - sum(len(some[2]) for some in looked[:-1])
        )
        sentences, pairs, resets = (
            np.concatenate([some[k] for some in looked])[:count] for k in (2, 3, 4)
        )
        before = np.cumsum(pairs) - pairs
        start = before + np.repeat(had - before[np.cumsum(taken) - taken], taken)
        return np.stack([sentences, np.repeat(rows, taken), start, resets]), after

    def _look_ahead(
        self, state: State, looked: list[tuple[int, int, Ints, Ints, npt.NDArray[np.bool_]]]
    ) -> Iterator[list[int]]:
        """Yield the pairs of the sentences that come next.

        What is yielded is added to `looked`: epoch, place in it, sentences, pairs and resets.
        """
        epoch, place = state.epoch, state.next
        while True:
            if place == len(self.lengths):
                epoch, place = epoch + 1, 0
            order, resets = self._deal(epoch)
            sentences = order[place : place + CHUNK]
            pairs = self.lengths[sentences] + 1
            looked.append((epoch, place, sentences, pairs, resets[place : place + CHUNK]))
            yield pairs.tolist()
            place += len(sentences)


class Stream:
    """One direction's endless batches.

    Args:
        text: what to read.
        batch: rows of the global batch.
        steps: T, pairs a row and batch.
        vocabulary: V; a target with a higher number becomes `<UNK>`.
        reverse: read from right to left.
        shuffle: what is put in a new order each epoch.
        seed: decides the orders and resets; directions with the same seed read the same order.
        reset_share: how likely a row's state is zeroed at a sentence's start.
        rows: which rows of the batch to lay out, all if None.
    """

    def __init__(
        self,
        text: Split,
        batch: int,
        steps: int,
        vocabulary: int,
        *,
        reverse: bool = False,
        shuffle: Shuffle = "none",
        seed: int = 0,
        reset_share: float = 0.0,
        rows: range | None = None,
    ) -> None:
        self.steps, self.vocabulary, self.reverse = steps, vocabulary, reverse
        self.rows = range(batch) if rows is None else rows
        self._tokens = np.asarray(text.tokens) if len(text.tokens) else np.zeros(1, dtype=np.int32)
        self._assignment = Assignment(text, batch, steps, shuffle, seed, reset_share)
        self._state = self._assignment.start()

    def other_direction(self) -> Stream:
        """Return the stream that reads the same rows from their other end; they share work."""
        other = copy.copy(self)
        other.reverse = not self.reverse
        return other

    def __iter__(self) -> Iterator[tuple[dict[str, Ints], Pairs]]:
        """Yield batches, each with the position after it."""
        yield from self.batches(0)

    def batches(self, skip: int) -> Iterator[tuple[dict[str, Ints], Pairs]]:
        """Yield batches after the first `skip` of the current block."""
        while True:
            position = {  # copies: files refuse arrays that two directions share
                "block": np.array(self._state[:3]),
                "fill": self._state.fill.copy(),
                "open": self._state.open.copy(),
            }
            parts, self._state = self._assignment(self._state)
            inputs, targets, resets = self._lay_out(parts)
            for number in range(skip, BLOCK):
                part = slice(number * self.steps, (number + 1) * self.steps)
                after = {**position, "skip": np.array([number + 1])}
                yield after, Pairs(inputs[part].T, targets[part].T, resets[part].T)
            skip = 0

    def seek(self, position: dict[str, Ints]) -> Iterator[tuple[dict[str, Ints], Pairs]]:
        """Go to a position and yield the batches from there."""
        block, epoch, place = (int(x) for x in position["block"])
        fill, still_open = position["fill"].copy(), position["open"].copy()
        self._state = State(block, epoch, place, fill, still_open)
        skip = int(position["skip"][0])
        if skip == BLOCK:
            _, self._state = self._assignment(self._state)
            skip = 0
        return self.batches(skip)

    def _lay_out(
        self, parts: Parts
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Return inputs, targets and resets of a block, each (BLOCK * T, rows)."""
        mine = slice(parts.first[self.rows.start], parts.first[self.rows.stop])
        words, skipped, pairs = parts.words[mine], parts.skipped[mine], parts.pairs[mine]
        # Rows are filled without a gap, so the parts one after another are all the rows.
        stop = np.cumsum(pairs)
        start = stop - pairs
        begun, ended = skipped == 0, skipped + pairs > words
        if self.reverse:
            first, last, way = END_ID, BEGIN_ID, -1
            origin = parts.offset[mine] + words - skipped
        else:
            first, last, way = BEGIN_ID, END_ID, 1
            origin = parts.offset[mine] + skipped - 1
        read = np.arange(len(self.rows) * BLOCK * self.steps)
        read *= way
        read += np.repeat(origin - way * start, pairs)  # where in the text each input is
        # Boundaries are not in the text: beside their sentence, maybe outside of all.
        inputs = self._tokens.take(read, mode="clip")
        inputs[start[begun]] = first
        read += way
        targets = self._tokens.take(read, mode="clip")
        targets[stop[ended] - 1] = last
        targets[targets >= self.vocabulary] = UNKNOWN_ID
        resets = np.zeros(len(read), dtype=np.bool_)
        resets[start[begun & parts.reset[mine]]] = True
        shape = (len(self.rows), BLOCK * self.steps)
        return (
            np.ascontiguousarray(inputs.reshape(shape).T),
            np.ascontiguousarray(targets.reshape(shape).T),
            np.ascontiguousarray(resets.reshape(shape).T),
        )
