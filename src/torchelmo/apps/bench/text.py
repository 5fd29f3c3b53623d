"""Made-up text whose words are repeated as in English, without end and without memory.

The cost of a text is that of its tokens and of its distinct words. Among the first n tokens here
about 2 n^0.79 are distinct, as in English Wikipedia; a word that was there before is the r-th one
with a probability that falls as 1/r. The same seed gives the same text on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

HEAPS, GROWTH = 2.0, 0.79  # distinct words among n running ones: HEAPS * n ** GROWTH
MEAN, LONGEST = 16, 120  # words of a sentence
SYLLABLES = "ba ce di fo gu ha je ki lo mu na pe ri so tu va we xi yo zu da ge hi ko".split()
ENDINGS = ("", "n", "s", "ing", "ed", "er", "tion", "ness")


class Text:
    """A text that goes on and on; `types` counts its distinct words so far."""

    def __init__(self, seed: int = 0) -> None:
        """Start at the text's first word."""
        self._rng = np.random.default_rng(seed)
        self.tokens = self.types = 0

    def sentences(self, tokens: int) -> Iterator[list[str]]:
        """Yield the next sentences, so many words in all."""
        end = self.tokens + tokens
        while self.tokens < end:
            first, second = self._rng.random(2)
            length = int(-MEAN / 2 * np.log((1 - first) * (1 - second))) + 1
            yield self.sentence(min(length, LONGEST, end - self.tokens))

    def sentence(self, length: int) -> list[str]:
        """Return the next sentence, of so many words."""
        places = self.tokens + np.arange(1, length + 1)
        fresh = self._rng.random(length) < HEAPS * GROWTH * places ** (GROWTH - 1)
        fresh[0] |= self.types == 0
        known = self.types + np.cumsum(fresh)
        old = (known ** self._rng.random(length)).astype(np.int64)  # rank r as often as 1/r
        self.tokens, self.types = self.tokens + length, int(known[-1])
        return [word(rank) for rank in np.where(fresh, known, old).tolist()]


@lru_cache(maxsize=1 << 16)
def word(rank: int) -> str:
    """Return the word of a rank from 1 up: the frequent ones are short.

    >>> word(1), word(2), word(5000), word(200_000)
    ('ban', 'bas', 'bacece', 'bayolowe')
    """
    stem, ending = divmod(rank, len(ENDINGS))
    parts = [ENDINGS[ending]]
    stem += 1
    while stem:
        stem, digit = divmod(stem - 1, len(SYLLABLES))
        parts.append(SYLLABLES[digit])
    return "".join(reversed(parts))
