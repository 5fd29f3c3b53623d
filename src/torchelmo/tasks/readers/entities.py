"""Entities marked by characters in raw text: a JSON list of `text` and `entities` with `span`.

The form of the Japanese Wikipedia set. Text is tokenised here; a word that an entity touches is
part of it. Tags are IOB2.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from torchelmo.errors import InputError
from torchelmo.tasks.decoding import Span, to_tags
from torchelmo.tasks.readers.examples import Tagged
from torchelmo.tasks.readers.source import open_source
from torchelmo.text.words import Token, Tokenizer, get_tokenizer


def read_entities(
    path: str | os.PathLike[str], *, tokenizer: Tokenizer | None = None
) -> Iterator[Tagged]:
    """Read sentences with their entities; `get_tokenizer("fugashi")` gives Japanese words."""
    source, split = open_source(path), tokenizer or get_tokenizer("words")
    try:
        items = json.loads(source.text())
    except json.JSONDecodeError as error:
        raise source.wrong(error.lineno, f"not JSON ({error.msg})") from None
    for n, item in enumerate(items if isinstance(items, list) else [items]):
        try:
            text = item["text"]
            marked = [(e["type"], *e["span"]) for e in item["entities"]]
            right = all(
                label and start < end and text[start:end] == e["name"]
                for (label, start, end), e in zip(marked, item["entities"], strict=True)
            )
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"{source.name}, item {n}: expected text, and entities with name, span and type"
            ) from None
        if not right:
            raise InputError(f"{source.name}, item {n}: an entity does not stand at its span")
        tokens = split(text)
        yield Tagged(tuple(t.text for t in tokens), tuple(_tags(tokens, marked)))


def _tags(tokens: list[Token], marked: list[tuple[str, int, int]]) -> list[str]:
    spans = []
    free = 0  # an entity that begins inside the last one's last word gets the words after it
    for label, start, end in sorted(marked, key=lambda m: m[1]):
        touched = [n for n, t in enumerate(tokens) if t.start < end and start < t.end and n >= free]
        if touched:
            free = touched[-1] + 1
            spans.append(Span(label, touched[0], free))
    return to_tags(spans, len(tokens), "IOB2")
