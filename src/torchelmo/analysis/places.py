"""Sentences with the places in them that a probe asks about, and which tokens those are.

A place is a span of characters. Sentences come raw or already cut into words. Raw ones are cut by
the model's own tokeniser. Given words are kept, since they are what such data means by a word,
unless the model's tokens are smaller by design (morphemes, characters): then the words joined by
spaces are cut again. The vector of a place is the mean over the tokens that overlap it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from torchelmo.text.words import Token, Tokenizer

WHOLE_WORDS = ("words", "whitespace")  # tokenisers whose tokens are words as treebanks have them


class Marked(NamedTuple):
    """A sentence and places in it as (start, end) in characters; `words` if it came in words."""

    text: str
    places: tuple[tuple[int, int], ...]
    words: tuple[str, ...] | None = None


def in_words(words: Sequence[str], places: Sequence[tuple[int, int]]) -> Marked:
    """Mark words, given by their numbers.

    >>> in_words(["a", "big", "gift"], [(1, 3)])
    Marked(text='a big gift', places=((2, 10),), words=('a', 'big', 'gift'))
    """
    tokens = _spread(words)
    spans = tuple((tokens[first].start, tokens[last - 1].end) for first, last in places)
    return Marked(" ".join(words), spans, tuple(words))


def cut(
    sentence: Marked, tokenizer: Tokenizer, *, keep_words: bool
) -> tuple[list[str], list[tuple[int, int]]]:
    """Return a sentence's tokens, and each place as numbers of tokens, (first, after the last)."""
    if keep_words and sentence.words is not None:
        tokens = _spread(sentence.words)
    else:
        tokens = tokenizer(sentence.text)
    starts, ends = [t.start for t in tokens], [t.end for t in tokens]
    spans = []
    for start, end in sentence.places:
        # Tokens come in order without overlap, so those of a span stand side by side.
        span = bisect_right(ends, start), bisect_left(starts, end)
        if span[0] >= span[1]:
            raise ValueError(f"characters {start} to {end} are no part of any token")
        spans.append(span)
    return [t.text for t in tokens], spans


def _spread(words: Sequence[str]) -> list[Token]:
    """Lay words out with a space between them."""
    tokens, start = [], 0
    for word in words:
        tokens.append(Token(word, start, start + len(word)))
        start += len(word) + 1
    return tokens
