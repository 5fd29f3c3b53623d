"""The input of a run: lines of UTF-8, read one at a time, cut into windows of whole lines.

A window is what is computed and kept at a time. Where it ends depends on the lines since the
window before it and on nothing else, so that a repeated run cuts the same windows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from torchelmo.errors import InputError
from torchelmo.text.characters import MAX_WORD

MAX_LINE = 64 << 20  # bytes; a longer line is no sentence, and memory must stay bounded
WINDOW_BYTES = 16 << 20  # text of a window, if it has few but very long words
BOM = b"\xef\xbb\xbf"

Split = Callable[[str], list[str]]


@dataclass(frozen=True)
class Window:
    """Some lines in a row, as words, and what identifies the bytes they came from."""

    first: int  # 0-based number of the first line
    sentences: list[list[str]]
    size: int  # bytes of input
    sha256: str
    last: bool  # whether the input ends here

    @property
    def tokens(self) -> int:
        """Words of all sentences."""
        return sum(map(len, self.sentences))

    @property
    def blank(self) -> int:
        """Sentences without words."""
        return sum(not sentence for sentence in self.sentences)


class Reader:
    """Lines of a binary stream; `lines` and `size` count what was given out."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        """Take an open stream, and what to call it in errors."""
        self.stream, self.name = stream, name
        self.lines, self.size = 0, 0
        self.digest = hashlib.sha256()  # of all that was given out
        self._next: bytes | None = None
        self._read()
        if self._next is not None and self._next.startswith(BOM):
            self._next = self._next[len(BOM) :] or None
        if self._next is None:
            raise InputError(f"{name} is empty: expected one sentence a line")

    @property
    def ended(self) -> bool:
        """Whether there is no further line."""
        return self._next is None

    def line(self) -> bytes:
        """Return the next line with its line break."""
        line = self._next
        if line is None:
            raise EOFError
        self.lines += 1
        self.size += len(line)
        self.digest.update(line)
        self._read()
        return line

    def window(self, budget: int, split: Split, *, multiple: int = 1) -> Window:
        """Return the lines up to `budget` tokens, two a line added, or up to the end.

        The number of lines is a multiple of `multiple`, except at the end.
        """
        first, size, cost = self.lines, self.size, 0
        sentences: list[list[str]] = []
        digest = hashlib.sha256()
        while not self.ended:
            full = cost >= budget or self.size - size >= WINDOW_BYTES
            if full and len(sentences) % multiple == 0:
                break
            line = self.line()
            digest.update(line)
            words = split(decode(line, self.lines, self.name))
            check_words(words, self.lines, self.name)
            sentences.append(words)
            cost += len(words) + 2
        return Window(first, sentences, self.size - size, digest.hexdigest(), self.ended)

    def skip(self, lines: int) -> str:
        """Pass over lines; return the SHA-256 of those that there were."""
        digest = hashlib.sha256()
        for _ in range(lines):
            if self.ended:
                break
            digest.update(self.line())
        return digest.hexdigest()

    def _read(self) -> None:
        line = self.stream.readline(MAX_LINE + 1)
        if len(line) > MAX_LINE:
            raise InputError(
                f"line {self.lines + 1} of {self.name} is longer than {MAX_LINE >> 20} MB: "
                "expected one sentence a line"
            )
        self._next = line or None


def decode(line: bytes, number: int, name: str) -> str:
    """Return the text of a line, numbered from 1."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        kind = "looks like UTF-16" if line[:2] in (b"\xff\xfe", b"\xfe\xff") else "is not UTF-8"
        raise InputError(
            f"line {number} of {name} {kind} (byte {error.start + 1} of the line is "
            f"0x{line[error.start]:02x}): save the text as UTF-8"
        ) from None
    if "\0" in text:
        raise InputError(
            f"line {number} of {name} has a NUL byte: expected text in UTF-8, one sentence a line"
        )
    return text


def check_words(words: list[str], number: int, name: str) -> None:
    """Refuse a word that is no word."""
    for word in words:
        if len(word) > MAX_WORD:
            raise InputError(
                f"line {number} of {name} has a token of {len(word):,} characters, which starts "
                f"with {word[:20]!r}: the limit is {MAX_WORD:,}, split the text into words first"
            )


@dataclass(frozen=True)
class Scan:
    """What a first look at a file found; `tokens` counts what white space separates."""

    lines: int
    tokens: int
    size: int  # bytes


def scan(path: Path, *, check_tokens: bool) -> Scan:
    """Read a file once, so that text that cannot be used is found before hours of work."""
    with path.open("rb") as stream:
        reader = Reader(stream, str(path))
        tokens = 0
        while not reader.ended:
            line = reader.line()
            words = decode(line, reader.lines, reader.name).split()
            if check_tokens and len(line) > MAX_WORD:
                check_words(words, reader.lines, reader.name)
            tokens += len(words)
        return Scan(reader.lines, tokens, reader.size)
