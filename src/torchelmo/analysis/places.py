"""Sentences with the places in them that a probe asks about, and which tokens those are.

A place is a span of characters. Sentences come raw or already cut into words. Raw ones are cut by
the model's own tokeniser. Given words are kept, since they are what such data means by a word,
unless the model's tokens are smaller by design (morphemes, characters): then the words joined by
spaces are cut again. The vector of a place is the mean over the tokens that overlap it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torchelmo.text.alignment import overlapping, spread
from torchelmo.text.words import Tokenizer


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
    tokens = spread(words)
    spans = tuple((tokens[first].start, tokens[last - 1].end) for first, last in places)
    return Marked(" ".join(words), spans, tuple(words))


def cut(
    sentence: Marked, tokenizer: Tokenizer, *, keep_words: bool
) -> tuple[list[str], list[tuple[int, int]]]:
    """Return a sentence's tokens, and each place as numbers of tokens, (first, after the last)."""
    if keep_words and sentence.words is not None:
        tokens = spread(sentence.words)
    else:
        tokens = tokenizer(sentence.text)
    return [t.text for t in tokens], overlapping(tokens, sentence.places)
