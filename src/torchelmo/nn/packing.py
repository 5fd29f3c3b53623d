"""Where the words of ragged sentences are when both directions read them, and in the output.

All of it is arrays of integers, which the host makes while a GPU is busy with the batch before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
BEGIN, END = 0, 1  # the vectors of <S> and </S>, where words are numbered from 2


def with_boundaries(words: Integers, lengths: Sequence[int]) -> Integers:
    """Return the vectors of sentences with their boundaries, given word numbers from 0.

    >>> with_boundaries(np.array([0, 1, 0]), [2, 0, 1]).tolist()
    [0, 2, 3, 1, 0, 1, 0, 2, 1]
    """
    stop = np.cumsum(np.array(lengths, dtype=np.int64) + 2)
    out = np.empty(len(words) + 2 * len(lengths), dtype=np.int64)
    inside = np.ones(len(out), dtype=bool)
    for ends, mark in ((stop - np.array(lengths, dtype=np.int64) - 2, BEGIN), (stop - 1, END)):
        inside[ends] = False
        out[ends] = mark
    out[inside] = words + 2
    return out


class Batch:
    """Sentences in packed order: step after step, longest first, each as long as it is.

    Args:
        words: the vectors that stand in the sentences, `<S>`, the words, `</S>`, one sentence after
            the other.
        lengths: words of each sentence.
        whole: each direction reads both boundaries, not just the one it begins with.
        boundaries: both boundaries are in the output.
    """

    def __init__(
        self,
        words: Integers,
        lengths: Sequence[int],
        *,
        whole: bool,
        boundaries: bool,
    ) -> None:
        counts = np.array(lengths, dtype=np.int64)
        self._words, self._counts = words, counts
        self._first = np.cumsum(counts + 2) - counts - 2  # of each sentence in `words`
        steps = counts + (2 if whole else 1)
        self.order: Integers = np.argsort(-steps, kind="stable")
        # At step t those take part that have more than t.
        sizes = len(steps) - np.searchsorted(
            steps[self.order[::-1]], np.arange(steps.max(initial=0)), side="right"
        )
        self.sizes: list[int] = sizes.tolist()
        self._start = np.cumsum(sizes) - sizes  # of each step
        self._time = np.repeat(np.arange(len(sizes)), sizes)  # (M,) of each packed row
        self._sentence = self.order[np.arange(len(self._time)) - self._start[self._time]]
        self._rank = np.argsort(self.order)
        kept = counts + 2 if boundaries else counts
        self.lengths: tuple[int, ...] = tuple(kept.tolist())
        self.rows = int(kept.sum())
        self._out = np.repeat(np.arange(len(kept)), kept)  # the sentence of each output
        first = (np.cumsum(kept) - kept)[self._out]
        self._position = np.arange(self.rows) - first + (0 if boundaries else 1)

    def places(self, direction: int) -> tuple[Integers, Integers]:
        """Return the vector that each packed row reads, and each output's packed row."""
        last, step = self._counts + 1, self._position
        time = self._time
        if direction:
            time, step = last[self._sentence] - time, last[self._out] - step
        where: Integers = self._start[step] + self._rank[self._out]
        read: Integers = self._words[self._first[self._sentence] + time]
        return read, where

    def tokens(self) -> Integers:
        """Return the vector of each output, which is the token layer's."""
        found: Integers = self._words[self._first[self._out] + self._position]
        return found
