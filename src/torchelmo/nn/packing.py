"""Where the tokens of ragged sentences are when both directions read them, and in the output.

All of it is small arrays of integers, for which numpy is quicker than torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


class Batch:
    """Sentences in packed order: step after step, longest first, each as long as it is.

    Args:
        lengths: words of each sentence.
        whole: each direction reads both boundaries, not just the one it begins with.
        boundaries: both boundaries are in the output.
        shape: (T, B) in place of the packed order: B full rows of T steps, the sentences in order,
            whatever is beyond their ends read too and of no consequence.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        whole: bool,
        boundaries: bool,
        shape: tuple[int, int] | None = None,
    ) -> None:
        words = np.array(lengths, dtype=np.int64)
        steps = words + (2 if whole else 1)
        self.order: Integers = np.argsort(-steps, kind="stable")
        if shape is None:
            active = np.arange(steps.max(initial=0))[:, None] < steps[self.order]  # (T, B)
            self.sizes: list[int] = active.sum(axis=1).tolist()
            self._time, place = active.nonzero()  # (N,), step after step
            self.sentence: Integers = self.order[place]  # (N,)
        else:
            self.sizes = [shape[1]] * shape[0]
            self._time = np.repeat(np.arange(shape[0]), shape[1])
            rows = np.minimum(np.arange(shape[1]), max(len(words) - 1, 0))
            self.sentence = np.tile(rows, shape[0])
        self._shape = shape
        self._last = words + 1  # position of </S>
        self._begin = 0 if boundaries else 1  # the first position that is in the output
        kept = words + 2 if boundaries else words
        self.lengths: tuple[int, ...] = tuple(kept.tolist())
        self.rows = int(kept.sum())
        self._start = np.cumsum(kept) - kept  # of each sentence in the output
        self._kept = kept

    def positions(self, direction: int) -> tuple[Integers, Integers]:
        """Return the position that each packed row has, and each output's packed row, (N,) (M,)."""
        last = self._last[self.sentence]
        time = self._time if direction == 0 else last - self._time
        where = np.empty(self.rows, dtype=np.int64)
        if self._shape is not None:
            sentence, position = self._outputs()
            step = position if direction == 0 else self._last[sentence] - position
            return np.clip(time, 0, last), step * self._shape[1] + sentence
        offset = time - self._begin
        inside = (offset >= 0) & (offset < self._kept[self.sentence])
        where[(self._start[self.sentence] + offset)[inside]] = inside.nonzero()[0]
        return time, where

    def places(self, table: Integers, direction: int) -> tuple[Integers, Integers]:
        """Return the vector's number of each packed row, and each output's packed row."""
        positions, where = self.positions(direction)
        read: Integers = table[self.sentence, positions]
        return read, where

    def tokens(self, table: Integers) -> Integers:
        """Return the vector's number of each output row, (M,), given those of a padded batch."""
        found: Integers = table[self._outputs()]
        return found

    def _outputs(self) -> tuple[Integers, Integers]:
        """Return the sentence and the position of each output row."""
        sentence = np.repeat(np.arange(len(self._kept)), self._kept)
        return sentence, np.arange(self.rows) - self._start[sentence] + self._begin
