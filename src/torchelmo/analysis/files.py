"""Data files read in place: from a folder, or from a .tar.xz (any tar) without unpacking it."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from torchelmo.errors import InputError


def read(path: Path, patterns: Sequence[str]) -> dict[str, Text]:
    """Return the files whose names fit the patterns, by pattern, in one pass over the archive.

    A pattern that fits no file is left out; one that fits two is refused. A single file may stand
    for the folder it would lie in.
    """
    if not path.exists():
        raise InputError(f"there is no file or folder {path}")
    found: dict[str, Text] = {}

    def keep(name: str, load: Callable[[], bytes]) -> None:
        for pattern in patterns:
            if fnmatchcase(PurePosixPath(name).name, pattern):
                if pattern in found:
                    raise InputError(
                        f"{path} holds both {found[pattern].name} and {name}: give the folder or "
                        "archive of one data set"
                    )
                found[pattern] = Text(name, load())

    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.is_file():
                keep(file.relative_to(path).as_posix(), file.read_bytes)
        return found
    if not tarfile.is_tarfile(path):
        keep(path.name, path.read_bytes)
        return found
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.isfile() else None
                if stream is not None:
                    keep(member.name, stream.read)
    except (tarfile.ReadError, lzma.LZMAError, zlib.error, EOFError, OSError) as error:
        raise InputError(f"{path} is damaged ({error}): fetch it again") from None
    return found


def need(files: dict[str, Text], path: Path, patterns: Sequence[str], what: str) -> None:
    """Refuse data in which a file is missing."""
    for pattern in patterns:
        if pattern not in files:
            raise InputError(f"{path} holds no {pattern}: expected {what}")


class Text:
    """A file of text with its name, for errors that say the line."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name, self.data = name, data

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield the lines with their numbers, from 1, without line ends."""
        rows = self.data.split(b"\n")
        if rows and not rows[-1]:
            rows.pop()
        for number, row in enumerate(rows, 1):
            try:
                line = row.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise self.wrong(number, "not UTF-8") from None
            yield number, line.removesuffix("\r")

    def columns(self, count: int) -> Iterator[tuple[int, list[str]]]:
        """Yield the lines cut at tabs into that many columns."""
        for number, line in self.lines():
            cells = line.split("\t")
            if len(cells) != count:
                raise self.wrong(number, f"{len(cells)} columns, expected {count} between tabs")
            yield number, cells

    def wrong(self, line: int, reason: str) -> InputError:
        """Return the error about a line."""
        return InputError(f"{self.name}, line {line}: {reason}")
