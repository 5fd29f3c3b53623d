"""Sentence pairs with their relation: SNLI and MultiNLI, SICK, and counterfactual SNLI.

Taken as .jsonl (SNLI's and MultiNLI's own), as a table with a header (.tsv or .txt between tabs,
.csv with commas and quotes) whose columns are found by name, or as three parallel files `s1.dev`,
`s2.dev`, `labels.dev`, given by the first. Tables and jsonl are raw text and are tokenised here;
parallel files are tokenised already. Pairs without an agreed label ("-"), or
with a sentence without words, are left out.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from pathlib import PurePosixPath

from torchelmo.errors import InputError
from torchelmo.tasks.readers.columns import parallel
from torchelmo.tasks.readers.examples import Pair
from torchelmo.tasks.readers.source import Source, beside, open_source
from torchelmo.text.words import Tokenizer, get_tokenizer

LABELS = ("entailment", "neutral", "contradiction")
# First text, second text, label: SNLI and counterfactual SNLI, SICK, MultiNLI as csv.
_HEADERS = (
    ("sentence1", "sentence2", "gold_label"),
    ("sentence_A", "sentence_B", "entailment_judgment"),
    ("sentence_A", "sentence_B", "entailment_label"),
    ("premise", "hypothesis", "label"),
)
_Row = tuple[int, str, str, str]  # the line's number, the two texts, the label


def read_pairs(
    path: str | os.PathLike[str], *, tokenizer: Tokenizer | None = None
) -> Iterator[Pair]:
    """Read the pairs of a file, whichever of the forms above it has."""
    source = open_source(path)
    split = tokenizer or get_tokenizer("words")
    if PurePosixPath(source.name.replace("\\", "/").split(":")[-1]).name.startswith("s1."):
        rows, split = _parallel(source, path), get_tokenizer("whitespace")
    elif source.suffix in {".jsonl", ".json"}:
        rows = _jsonl(source)
    else:
        rows = _table(source)
    for number, first, second, label in rows:
        label = label.strip().lower()
        if label == "-":
            continue
        if label not in LABELS:
            raise source.wrong(number, f"the label {label!r}, expected {', '.join(LABELS)} or -")
        pair = Pair(tuple(split.words(first)), tuple(split.words(second)), label)
        if pair.first and pair.second:
            yield pair


def _parallel(source: Source, path: str | os.PathLike[str]) -> Iterator[_Row]:
    second = open_source(beside(path, "s1.", "s2."))
    labels = open_source(beside(path, "s1.", "labels."))
    texts, answers = parallel(source, second), parallel(source, labels)
    for (number, one, two), (_, _, label) in zip(texts, answers, strict=True):
        yield number, one, two, label


def _jsonl(source: Source) -> Iterator[_Row]:
    names = _HEADERS[0]
    for number, line in source.lines():
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise source.wrong(number, f"not JSON ({error.msg})") from None
        cells = [row.get(name) for name in names] if isinstance(row, dict) else []
        texts = [cell for cell in cells if isinstance(cell, str)]
        if len(texts) != 3:
            raise source.wrong(number, f"expected an object with {', '.join(names)}")
        yield number, texts[0], texts[1], texts[2]


def _table(source: Source) -> Iterator[_Row]:
    rows = _csv(source) if source.suffix == ".csv" else _tsv(source)
    number, header = next(rows, (1, []))
    names = next((names for names in _HEADERS if set(names) <= set(header)), None)
    if names is None:
        known = "; ".join(", ".join(names) for names in _HEADERS)
        raise source.wrong(number, f"the header lacks the columns of a known set ({known})")
    first, second, label = (header.index(name) for name in names)
    for number, cells in rows:
        # SNLI's last columns, the labels of single annotators, may be missing.
        if len(cells) <= max(first, second, label) or len(cells) > len(header):
            raise source.wrong(number, f"{len(cells)} columns, expected {len(header)}")
        yield number, cells[first], cells[second], cells[label]


def _tsv(source: Source) -> Iterator[tuple[int, list[str]]]:
    for number, line in source.lines():
        if line.strip():
            yield number, line.split("\t")


def _csv(source: Source) -> Iterator[tuple[int, list[str]]]:
    rows = csv.reader(io.StringIO(source.text(), newline=""), strict=True)
    try:
        for cells in rows:
            if cells:
                yield rows.line_num, cells
    except csv.Error as error:
        raise InputError(f"{source.name}, line {rows.line_num}: {error}") from None
