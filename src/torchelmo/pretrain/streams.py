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

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from torchelmo.pretrain.corpus import Split

Ints = npt.NDArray[np.int64]
Shuffle = Literal["documents", "sentences", "none"]
BEGIN_ID, END_ID, UNKNOWN_ID = 0, 1, 2  # the first lines of every prepared vocabulary
BLOCK = 32  # batches laid out at a time: large enough for numpy, small in memory


@dataclass(frozen=True)
class Pairs:
    """One batch of one direction, each (B, T)."""

    inputs: npt.NDArray[np.int32]  # word ids
    targets: npt.NDArray[np.int32]  # vocabulary ids
    resets: npt.NDArray[np.bool_]  # whether the row's state is zeroed before this input


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
        self.text, self.batch, self.steps, self.vocabulary = text, batch, steps, vocabulary
        self.reverse, self.shuffle, self.seed = reverse, shuffle, seed
        self.reset_share = reset_share
        self.rows = range(batch) if rows is None else rows
        self.lengths: Ints = np.diff(text.sentences)
        # The state at the start of a block, from which it is laid out again when a run goes on.
        self._block = 0  # number of the first batch of the next block
        self._epoch, self._next = 0, 0  # the next sentence to be taken: its place in the epoch
        self._fill: Ints = np.zeros(batch, dtype=np.int64)  # pairs that each row has taken
        self._open = np.zeros((4, 0), dtype=np.int64)  # sentence, row, start, reset: still read
        self._order, self._resets = self._deal(0)

    def _deal(self, epoch: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Return the order of sentences in an epoch, and where states are zeroed."""
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
        return order, rng.random(count) < self.reset_share

    def __iter__(self) -> Iterator[tuple[dict[str, Ints], Pairs]]:
        """Yield batches, each with the position after it."""
        yield from self.batches(0)

    def batches(self, skip: int) -> Iterator[tuple[dict[str, Ints], Pairs]]:
        """Yield batches after the first `skip` of the current block."""
        while True:
            position = self._position()
            block = self._lay_out()
            for number in range(skip, BLOCK):
                part = slice(number * self.steps, (number + 1) * self.steps)
                after = {**position, "skip": np.array([number + 1])}
                yield (
                    after,
                    Pairs(block.inputs[:, part], block.targets[:, part], block.resets[:, part]),
                )
            skip = 0

    def _position(self) -> dict[str, Ints]:
        return {
            "block": np.array([self._block, self._epoch, self._next]),
            "fill": self._fill.copy(),
            "open": self._open.copy(),
        }

    def seek(self, position: dict[str, Ints]) -> Iterator[tuple[dict[str, Ints], Pairs]]:
        """Go to a position and yield the batches from there."""
        self._block, self._epoch, self._next = (int(x) for x in position["block"])
        self._fill, self._open = position["fill"].copy(), position["open"].copy()
        self._order, self._resets = self._deal(self._epoch)
        skip = int(position["skip"][0])
        if skip == BLOCK:
            self._lay_out()
            skip = 0
        return self.batches(skip)

    def _take(self, end: int) -> npt.NDArray[np.int64]:
        """Let rows take sentences until each has pairs for all batches before `end`.

        In batch after batch, row after row, each row takes sentences until the batch is full: the
        next to take is the row with the lowest (batch it is short in, row).
        """
        steps, fill = self.steps, self._fill.tolist()
        heap = [(fill[row] // steps, row) for row in range(self.batch)]
        heapq.heapify(heap)
        taken: list[tuple[int, int, int, bool]] = []
        ahead: Iterator[tuple[int, int, bool]] = iter(())
        while heap[0][0] < end:
            coming = next(ahead, None)
            if coming is None:
                ahead = self._ahead()
                continue
            sentence, pairs, reset = coming
            row = heap[0][1]
            taken.append((sentence, row, fill[row], reset))
            fill[row] += pairs
            heapq.heapreplace(heap, (fill[row] // steps, row))
            self._next += 1
        self._fill = np.array(fill, dtype=np.int64)
        return np.array(taken, dtype=np.int64).reshape(-1, 4).T

    def _ahead(self) -> Iterator[tuple[int, int, bool]]:
        """Return some of the sentences that come next, with their pairs and resets."""
        if self._next == len(self._order):
            self._epoch, self._next = self._epoch + 1, 0
            self._order, self._resets = self._deal(self._epoch)
        part = slice(self._next, self._next + 4096)
        sentences = self._order[part]
        pairs = self.lengths[sentences] + 1
        return zip(sentences.tolist(), pairs.tolist(), self._resets[part].tolist(), strict=True)

    def _lay_out(self) -> Pairs:
        """Return the next block, (rows, BLOCK * T)."""
        first, width = self._block * self.steps, BLOCK * self.steps
        self._block += BLOCK
        segments = np.concatenate([self._open, self._take(self._block)], axis=1)
        lengths = self.lengths[segments[0]]
        self._open = segments[:, segments[2] + lengths + 1 > first + width]

        mine = (segments[1] >= self.rows.start) & (segments[1] < self.rows.stop)
        sentence, row, start, reset = segments[:, mine]
        length = lengths[mine]
        pairs = length + 1
        which = np.repeat(np.arange(len(pairs)), pairs)  # the segment of each pair
        k = np.arange(len(which)) - np.repeat(np.cumsum(pairs) - pairs, pairs)  # pair in it
        column = start[which] + k - first
        inside = (column >= 0) & (column < width)
        which, k, column = which[inside], k[inside], column[inside]

        tokens, offset, n = self.text.tokens, self.text.sentences[sentence], length
        left, right = (END_ID, BEGIN_ID) if self.reverse else (BEGIN_ID, END_ID)
        if self.reverse:
            read, predicted = (offset + n)[which] - k, (offset + n)[which] - 1 - k
        else:
            read, predicted = offset[which] + k - 1, offset[which] + k
        at_start, at_end = k == 0, k == n[which]
        limit = max(len(tokens) - 1, 0)
        words = tokens if len(tokens) else np.zeros(1, dtype=np.int32)
        seen = np.where(at_start, left, words[np.clip(read, 0, limit)])
        goal = np.where(at_end, right, words[np.clip(predicted, 0, limit)])
        goal = np.where(goal < self.vocabulary, goal, UNKNOWN_ID)

        shape = (len(self.rows), width)
        place = (row[which] - self.rows.start) * width + column
        out = Pairs(
            np.zeros(shape, dtype=np.int32),
            np.zeros(shape, dtype=np.int32),
            np.zeros(shape, dtype=np.bool_),
        )
        out.inputs.reshape(-1)[place] = seen
        out.targets.reshape(-1)[place] = goal
        out.resets.reshape(-1)[place] = at_start & reset[which].astype(bool)
        return out
