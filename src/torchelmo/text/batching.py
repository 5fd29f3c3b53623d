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
    groups: list[list[int]] = []
    room = 0
    numbers = range(len(lengths))
    for number in numbers if in_order else sorted(numbers, key=lambda i: (-lengths[i], i)):
        cost = lengths[number] + 2
        if not groups or cost > room:
            groups.append([])
            room = budget
        groups[-1].append(number)
        room -= cost
    return groups
