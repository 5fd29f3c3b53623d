"""A chunk of raw text to a shard: words numbered within the shard, sentences and lines counted.

A worker knows nothing of the rest of the text. It writes, in a folder for the time being,

    N.tokens      int32: numbers of words, each a place in the sorted list of its run
    N.sentences   int32: words of each sentence
    N.lines       int32 (lines, 4): sentences, white-space words, characters, 1 if a document may
                  start here: after a blank line, or with a record; blank lines are left out
    N-K.words     the distinct words of run K, sorted, one a line
    N-K.counts    int64: how often each comes
    N-K.map       int32, to be filled: the place of each among the words of all shards

A run is as many tokens of a shard as have not too many distinct words, so that memory stays
bounded whatever the text: most shards have one.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from torchelmo.config import nearest
from torchelmo.errors import InputError
from torchelmo.pretrain.sources import MAX_LINE, Chunk, too_long
from torchelmo.text.batching import WordTable
from torchelmo.text.characters import MAX_WORD
from torchelmo.text.sentences import split_sentences
from torchelmo.text.words import get_tokenizer

MAX_TYPES = 400_000  # distinct words of a run: about 60 MB
SAMPLE = 256  # every 256th word of a run is known to the parent, to cut runs in parts
BUFFER = 1 << 17  # words that are numbered at once

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Task:
    """What a worker is asked: a chunk, and how to read it."""

    chunk: Chunk
    text: int  # number of the source
    read: int  # bytes of all sources up to the end of the chunk
    stem: str  # of the files to be written
    tokenizer: str
    split: bool  # lines are paragraphs to be split into sentences
    field: str | None  # the key of the text, if lines are records
    max_types: int = MAX_TYPES


@dataclass(frozen=True)
class Run:
    """Words of a shard that are numbered together."""

    stem: str
    tokens: int
    types: int
    samples: list[bytes]  # every 256th word
    offsets: list[int]  # where each of them starts in the file of words, and the file's size


@dataclass(frozen=True)
class Shard:
    """What became of a chunk."""

    text: int
    read: int
    stem: str
    lines: int  # not counting blank ones
    starts: int  # lines at which a document may start
    starts_new: bool  # the first line is one of them
    ends_blank: bool  # the last line was blank
    tokens: int
    runs: list[Run]


def make_shard(task: Task) -> Shard:
    """Tokenise a chunk and write its shard."""
    builder = _Builder(task)
    for number, text, starts in _lines(task):
        builder.add(number, text, starts)
    return builder.finish(ends_blank=builder.blank)


class _Builder:
    """Collects the words, sentences and lines of a shard."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.words = get_tokenizer(task.tokenizer).words
        self.blank = False  # whether the line before was blank
        self._lines, self._lengths = array("i"), array("i")  # small, however short lines are
        self._buffer: list[str] = []
        self._table = WordTable()
        self._ids: list[Ints] = []  # of the run
        self._tokens: list[Ints] = []  # of finished runs
        self._runs: list[Run] = []

    def add(self, number: int, text: str, starts: bool) -> None:
        """Take a line; `starts` says that a record starts with it."""
        if not text or text.isspace():
            self.blank = True
            return
        sentences = 0
        for part in [s.text for s in split_sentences(text)] if self.task.split else [text]:
            words = self.words(part)
            if words:
                self._lengths.append(len(words))
                self._buffer += words
                sentences += 1
                if len(part) > MAX_WORD:
                    self._check_length(words, number)
        starts = starts or (self.blank and self.task.field is None)
        self._lines.extend((sentences, len(text.split()), len(text), starts))
        self.blank = False
        if len(self._buffer) >= BUFFER:
            self._number()
            if len(self._table) > self.task.max_types:
                self._end_run()

    def finish(self, *, ends_blank: bool) -> Shard:
        """Write the files."""
        self._number()
        if self._ids:
            self._end_run()
        stem = self.task.stem
        lines = np.array(self._lines, dtype="<i4").reshape(-1, 4)
        tokens = np.concatenate(self._tokens) if self._tokens else np.zeros(0, dtype="<i4")
        write(f"{stem}.tokens", tokens.astype("<i4", copy=False))
        write(f"{stem}.sentences", np.array(self._lengths, dtype="<i4"))
        write(f"{stem}.lines", lines)
        return Shard(
            self.task.text,
            self.task.read,
            stem,
            len(lines),
            int(lines[:, 3].sum()),
            bool(len(lines) and lines[0, 3]),
            ends_blank,
            len(tokens),
            self._runs,
        )

    def _check_length(self, words: list[str], number: int) -> None:
        for word in words:
            if len(word) > MAX_WORD:
                raise InputError(
                    f"line {number} of {self.task.chunk.source} has a word of {len(word):,} "
                    f"characters, which starts with {word[:20]!r}: the limit is {MAX_WORD:,}"
                )

    def _number(self) -> None:
        if self._buffer:
            ids = map(self._table.__getitem__, self._buffer)
            self._ids.append(np.fromiter(ids, dtype=np.int32, count=len(self._buffer)))
            self._buffer = []

    def _end_run(self) -> None:
        words = sorted(self._table)  # by code point, which is also the order of UTF-8 bytes
        if " ".join(words).split() != words:
            bad = next(word for word in words if word.split() != [word])
            raise InputError(
                f"the tokeniser {self.task.tokenizer!r} gave the word {bad!r} for "
                f"{self.task.chunk.source}, expected words without white space"
            )
        places = np.empty(len(words), dtype=np.int32)
        ids = map(self._table.__getitem__, words)
        places[np.fromiter(ids, dtype=np.int32, count=len(words))] = np.arange(len(words))
        tokens = places[np.concatenate(self._ids)]
        text = ("\n".join(words) + "\n").encode("utf-8")
        breaks = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == ord("\n"))
        offsets = np.concatenate([[0], breaks[:-1] + 1])[::SAMPLE].tolist()

        stem = f"{self.task.stem}-{len(self._runs)}"
        write(f"{stem}.words", text)
        write(f"{stem}.counts", np.bincount(tokens, minlength=len(words)).astype("<i8"))
        with open(f"{stem}.map", "wb") as file:
            file.truncate(4 * len(words))
        samples = [word.encode("utf-8") for word in words[::SAMPLE]]
        self._runs.append(Run(stem, len(tokens), len(words), samples, [*offsets, len(text)]))
        self._tokens.append(tokens)
        self._table, self._ids = WordTable(), []


def _lines(task: Task) -> Iterator[tuple[int, str, bool]]:
    """Yield the number of a line, its text without the line break, and if a record starts."""
    chunk = task.chunk
    _check_zeros(chunk)
    lines = chunk.data.split(b"\n")
    if not lines[-1]:
        lines.pop()  # what follows the last line break is no line
    for number, raw in enumerate(lines, start=chunk.line):
        if len(raw) > MAX_LINE:
            raise too_long(number, chunk.source)
        try:
            text = raw.decode("utf-8").removesuffix("\r")
        except UnicodeDecodeError as error:
            kind = "looks like UTF-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "is not UTF-8"
            raise InputError(
                f"line {number} of {chunk.source} {kind} (byte {error.start + 1} of the line is "
                f"0x{raw[error.start]:02x}): save the text as UTF-8"
            ) from None
        if task.field is None:
            yield number, text, False
        elif text and not text.isspace():
            starts = True
            for part in _record(text, task.field, f"line {number} of {chunk.source}").split("\n"):
                part = part.removesuffix("\r")
                yield number, part, starts
                starts = starts and (not part or part.isspace())


def _check_zeros(chunk: Chunk) -> None:
    at = chunk.data.find(b"\0")
    if at >= 0:
        raise InputError(
            f"line {chunk.line + chunk.data.count(10, 0, at)} of {chunk.source} has a NUL byte: "
            "expected text in UTF-8"
        )


def _record(text: str, field: str, where: str) -> str:
    """Return the text of one JSON object."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON: {error}") from None
    if not isinstance(record, dict):
        raise InputError(f"{where} holds {type(record).__name__}, expected a JSON object")
    if field not in record:
        near = nearest(field, record)
        raise InputError(f"{where} has no field {field!r}{near}: say which with --field")
    value = record[field]
    if not isinstance(value, str):
        raise InputError(
            f"{where} has {type(value).__name__} in the field {field!r}, expected text: say which "
            "field has the text with --field"
        )
    if "\0" in value:
        raise InputError(f"{where} has a NUL in its text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        found = error.object[error.start : error.end]
        raise InputError(f"{where} has {found!r}, half of a character, in its text") from None
    return value


def write(path: str | Path, data: npt.NDArray[np.generic] | bytes) -> None:
    """Write a whole file; unlike numpy's own writer this says why it cannot."""
    with open(path, "wb") as file:
        file.write(data if isinstance(data, bytes) else data.tobytes())
