"""Universal Dependencies treebanks (.conllu): ten columns a word, parted by tabs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from torchelmo.errors import InputError
from torchelmo.tasks.readers.examples import Tagged
from torchelmo.tasks.readers.source import open_source

_COLUMNS = {"upos": 3, "xpos": 4}
_NOT_A_WORD = re.compile(r"\d+[-.]\d+")  # the surface form of several words, or an empty node


def read_conllu(path: str | os.PathLike[str], *, tags: str = "upos") -> Iterator[Tagged]:
    """Read the syntactic words and their tags; a form's inner spaces are taken out."""
    if tags not in _COLUMNS:
        raise InputError(f"tags {tags!r}, expected one of {', '.join(_COLUMNS)}")
    source = open_source(path)
    words: list[str] = []
    found: list[str] = []
    for number, line in source.lines():
        if not line.strip():
            if words:
                yield Tagged(tuple(words), tuple(found))
            words, found = [], []
            continue
        if line.startswith("#"):
            continue
        cells = line.split("\t")
        if len(cells) != 10:
            raise source.wrong(number, f"{len(cells)} columns, expected 10 between tabs")
        if _NOT_A_WORD.fullmatch(cells[0]):
            continue
        if cells[0] != str(len(words) + 1):
            raise source.wrong(number, f"word number {cells[0]!r}, expected {len(words) + 1}")
        word = "".join(cells[1].split())
        if not word:
            raise source.wrong(number, "the form is empty")
        words.append(word)
        found.append(cells[_COLUMNS[tags]])
    if words:
        yield Tagged(tuple(words), tuple(found))
