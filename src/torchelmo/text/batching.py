"""From sentences to batches: words numbered once, sentences grouped under a token budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt


class WordTable(dict[str, int]):
    """Numbers distinct words in order of first sight, so that later work costs per distinct word.

    >>> table = WordTable()
    >>> table.ids(["a", "rose", "is", "a", "rose"]).tolist(), list(table)
    ([0, 1, 2, 0, 1], ['a', 'rose', 'is'])
    """

    def __missing__(self, word: str) -> int:
        number = len(self)
        self[word] = number
        return number

    def ids(self, words: Iterable[str]) -> npt.NDArray[np.int64]:
        """Return each word's number, giving new words the next ones."""
        return np.fromiter(map(self.__getitem__, words), dtype=np.int64)


def by_tokens(lengths: Sequence[int], budget: int, *, in_order: bool = False) -> list[list[int]]:
    """Group sentence numbers, longest first, so that each group has at most `budget` tokens.

    Two boundary tokens a sentence are counted. A longer sentence makes a group of its own.

    >>> by_tokens([3, 9, 2, 3], 12)
    [[1], [0, 3], [2]]
    """
    costs = np.array(lengths, dtype=np.int64) + 2
    order = np.arange(len(costs)) if in_order else np.argsort(-costs, kind="stable")
    total = np.cumsum(costs[order])  # up to each sentence and with it
    groups: list[list[int]] = []
    start = 0
    while start < len(order):
        spent = total[start - 1] if start else 0
        end = max(int(np.searchsorted(total, spent + budget, side="right")), start + 1)
        groups.append(order[start:end].tolist())
        start = end
    return groups
