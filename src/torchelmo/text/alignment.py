"""Words that data gives, beside the tokens that a model cuts the same text into.

A treebank's words are kept as they are by models whose tokens are words. Those of other models are
smaller by design (morphemes, characters): the words joined by spaces are cut again, and a word is
the tokens that overlap it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from torchelmo.text.words import Token

WHOLE_WORDS = ("words", "whitespace")  # tokenisers whose tokens are words as treebanks have them


def spread(words: Sequence[str]) -> list[Token]:
    """Lay words out with a space between them.

    >>> spread(["a", "gift"])
    [Token(text='a', start=0, end=1), Token(text='gift', start=2, end=6)]
    """
    tokens, start = [], 0
    for word in words:
        tokens.append(Token(word, start, start + len(word)))
        start += len(word) + 1
    return tokens


def overlapping(
    tokens: Sequence[Token], places: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the tokens of each place (start, end in characters) as (first, after the last).

    >>> overlapping(spread(["a", "big", "gift"]), [(2, 10), (0, 1)])
    [(1, 3), (0, 1)]
    """
    starts, ends = [t.start for t in tokens], [t.end for t in tokens]
    spans = []
    for start, end in places:
        # Tokens come in order without overlap, so those of a span stand side by side.
        span = bisect_right(ends, start), bisect_left(starts, end)
        if span[0] >= span[1]:
            raise ValueError(f"characters {start} to {end} are no part of any token")
        spans.append(span)
    return spans
