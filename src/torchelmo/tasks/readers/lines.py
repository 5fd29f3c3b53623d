"""One labelled text a line: TREC, CoLA, NSMC, and plain `label<TAB>text`.

TREC's files are Latin-1 at their source and are taken in either encoding; TREC is tokenised
already, the rest is raw and is tokenised here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from torchelmo.tasks.readers.examples import Labelled
from torchelmo.tasks.readers.source import Source, open_source
from torchelmo.text.words import Tokenizer, get_tokenizer


def read_trec(path: str | os.PathLike[str], *, fine: bool = False) -> Iterator[Labelled]:
    """Read `LOC:city What county is ...`: the class LOC or, with `fine`, LOC:city."""
    source = open_source(path)
    try:
        source.text()
    except ValueError:
        source = Source(source.name, source.data.decode("latin-1").encode())
    for number, line in source.lines():
        if not line.strip():
            continue
        label, *words = line.split()
        if label.count(":") != 1 or not words:
            raise source.wrong(number, "expected a label like LOC:city and a question")
        yield Labelled(tuple(words), label if fine else label.split(":")[0])


def read_cola(
    path: str | os.PathLike[str], *, tokenizer: Tokenizer | None = None
) -> Iterator[Labelled]:
    """Read source, 0 or 1 (acceptable), the author's mark, sentence, between tabs."""
    source, split = open_source(path), tokenizer or get_tokenizer("words")
    for number, line in source.lines():
        if line.strip():
            cells = _cells(source, number, line, 4)
            yield _labelled(source, number, cells[3], cells[1], split, {"0", "1"})


def read_nsmc(
    path: str | os.PathLike[str], *, tokenizer: Tokenizer | None = None
) -> Iterator[Labelled]:
    """Read id, review, 0 or 1 (positive), between tabs, below a header; empty reviews too.

    A Korean model's own tokeniser (`get_tokenizer("kiwi")`) should be given for morphemes.
    """
    source, split = open_source(path), tokenizer or get_tokenizer("words")
    for number, line in source.lines():
        if line.strip() and (number > 1 or line != "id\tdocument\tlabel"):
            cells = _cells(source, number, line, 3)
            yield _labelled(source, number, cells[1], cells[2], split, {"0", "1"})


def read_labelled(
    path: str | os.PathLike[str], *, tokenizer: Tokenizer | None = None
) -> Iterator[Labelled]:
    """Read a label and a text between tabs."""
    source, split = open_source(path), tokenizer or get_tokenizer("words")
    for number, line in source.lines():
        if line.strip():
            label, text = _cells(source, number, line, 2)
            yield _labelled(source, number, text, label.strip(), split, set())


def _cells(source: Source, number: int, line: str, count: int) -> list[str]:
    cells = line.split("\t")
    if len(cells) != count:
        raise source.wrong(number, f"{len(cells)} columns, expected {count} between tabs")
    return cells


def _labelled(
    source: Source, number: int, text: str, label: str, split: Tokenizer, labels: set[str]
) -> Labelled:
    if labels and label not in labels:
        raise source.wrong(number, f"the label {label!r}, expected {' or '.join(sorted(labels))}")
    if not label:
        raise source.wrong(number, "the label is empty")
    return Labelled(tuple(split.words(text)), label)
