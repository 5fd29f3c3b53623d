"""Semantic roles in CoNLL-2012's columns: OntoNotes `_gold_conll`, and PropBank releases like EWT.

Document, part, word number, word, part of speech, tree, lemma, frame, then either (PropBank) the
arguments, one column a predicate, or (OntoNotes, between `#begin document` lines) sense, speaker,
entities, the arguments, and coreference. An argument column opens and closes spans: `(ARG0*`, `*`,
`*)`. The predicate of a column is where its V stands, or, without one, the frame of that rank.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from torchelmo.errors import InputError
from torchelmo.tasks.decoding import Span, to_tags
from torchelmo.tasks.readers.examples import Frames, Predicate
from torchelmo.tasks.readers.source import Source, open_sources, plain

_WORD, _LEMMA, _FRAME = 3, 6, 7
_PROPBANK, _ONTONOTES = (8, 0), (11, 1)  # columns before and after the arguments
_CELL = re.compile(r"((?:\([^()*\s]+)*)\*(\)*)")
_Row = tuple[int, list[str]]


def read_frames(path: str | os.PathLike[str]) -> Iterator[Frames]:
    """Read the sentences of a file, or of a folder's `*gold_conll` files, with their frames."""
    for source in open_sources(path, ("gold_conll",)):
        rows: list[_Row] = []
        layout = _PROPBANK
        for number, line in source.lines():
            if line.startswith("#begin document"):
                layout = _ONTONOTES
            if line.strip() and not line.startswith("#"):
                rows.append((number, line.split()))
            elif rows:
                yield _frames(source, rows, layout)
                rows = []
        if rows:
            yield _frames(source, rows, layout)


def spans(cells: list[str]) -> list[Span]:
    """Read one argument column: ["(ARG0*)", "(V*)", "(ARG1*", "*)"] -> three spans.

    The error carries the place of the cell that is wrong as its second argument.
    """
    found: list[Span] = []
    open_label, start = "", 0
    for n, cell in enumerate(cells):
        match = _CELL.fullmatch(cell)
        if match is None:
            raise InputError(f"the argument {cell!r}, expected one like (ARG0*, * or *)", n)
        labels, closed = match[1].split("(")[1:], len(match[2])
        if len(labels) + bool(open_label) > 1:
            raise InputError(f"the argument {cell!r} opens inside another", n)
        if labels:
            open_label, start = labels[0], n
        if closed > bool(open_label):
            raise InputError(f"the argument {cell!r} closes what is not open", n)
        if closed:
            found.append(Span(open_label, start, n + 1))
            open_label = ""
    if open_label:
        raise InputError(f"the argument {open_label} is not closed", start)
    return found


def _frames(source: Source, rows: list[_Row], layout: tuple[int, int]) -> Frames:
    before, after = layout
    width = len(rows[0][1])
    for number, cells in rows:
        if len(cells) != width or width < before + after:
            expected = width if width >= before + after else f"at least {before + after}"
            raise source.wrong(number, f"{len(cells)} columns, expected {expected}")
    framed = [n for n, (_, cells) in enumerate(rows) if cells[_FRAME] != "-"]
    predicates = []
    for rank, column in enumerate(range(before, width - after)):
        try:
            arguments = spans([cells[column] for _, cells in rows])
        except InputError as error:
            reason, place = error.args
            raise source.wrong(rows[place][0], reason) from None
        verbs = [span.start for span in arguments if span.label == "V"]
        if not verbs and rank >= len(framed):
            raise source.wrong(rows[0][0], f"argument column {rank + 1} belongs to no predicate")
        index = verbs[0] if verbs else framed[rank]
        tags = to_tags(arguments, len(rows), "IOB2")
        predicates.append(Predicate(index, rows[index][1][_LEMMA], tuple(tags)))
    return Frames(tuple(plain(cells[_WORD]) for _, cells in rows), tuple(predicates))
