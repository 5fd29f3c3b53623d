"""Where readers get their lines: a file, or a member of an archive, without unpacking it.

    data/eng.train
    ner.tar.xz:ner/conll2003/eng.train        a member
    coref.tar.xz:coref/litbank/coref/conll    a folder in an archive, for readers that take folders
    chunk.tar.xz:chunk/conll2000.zip:train.txt  an archive in an archive

Text is UTF-8; a byte-order mark and CRLF line ends are taken off. `.gz`, `.bz2` and `.xz` files are
unpacked as they are read.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath

from torchelmo.errors import InputError

_UNPACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".bz2": bz2.decompress,
    ".xz": lzma.decompress,
}
_DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    NotImplementedError,  # a zip's method that Python does not have
    RuntimeError,  # a zip with a password
)
_ESCAPES = {
    "-LRB-": "(",
    "-RRB-": ")",
    "-LSB-": "[",
    "-RSB-": "]",
    "-LCB-": "{",
    "-RCB-": "}",
}


class Source:
    """A file's bytes and its name, for errors that say the line."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name, self.data = name, data

    @property
    def stem(self) -> str:
        """The file's own name without its ending."""
        return PurePosixPath(self.name.replace("\\", "/")).stem

    @property
    def suffix(self) -> str:
        """The ending, in small letters, without that of a packed file: "a.jsonl.gz" -> ".jsonl"."""
        path = PurePosixPath(self.name.replace("\\", "/").lower())
        return path.with_suffix("").suffix if path.suffix in _UNPACKERS else path.suffix

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield the lines with their numbers, from 1, without line ends."""
        for number, row in enumerate(io.BytesIO(self.data), 1):
            try:
                line = row.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise self.wrong(number, "not UTF-8") from None
            yield number, line.removesuffix("\n").removesuffix("\r")

    def text(self) -> str:
        """Return the whole text."""
        try:
            return self.data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = self.data.count(b"\n", 0, error.start) + 1
            raise self.wrong(line, "not UTF-8") from None

    def wrong(self, line: int, reason: str) -> InputError:
        """Return the error about a line."""
        return InputError(f"{self.name}, line {line}: {reason}")


def open_source(path: str | os.PathLike[str]) -> Source:
    """Return the file a path names."""
    found = list(open_sources(path))
    if len(found) != 1:
        raise InputError(f"{os.fspath(path)} is a folder of {len(found)} files: name one of them")
    return found[0]


def open_sources(
    path: str | os.PathLike[str], suffixes: tuple[str, ...] = ("",)
) -> Iterator[Source]:
    """Yield the file a path names, or the files below the folder it names, by name.

    Of a folder, those whose names end in one of `suffixes` count.
    """
    outer, inner = _cut(os.fspath(path))
    if not inner and outer.is_dir():
        files = [f for f in sorted(outer.rglob("*")) if f.name.endswith(suffixes) and f.is_file()]
        if not files:
            raise InputError(f"{outer} holds no file that ends in {' or '.join(suffixes)}")
        for file in files:
            yield _unpacked(str(file), _read(file))
    elif inner:
        yield from _members(Source(str(outer), _read(outer)), inner, suffixes)
    else:
        yield _unpacked(str(outer), _read(outer))


def beside(path: str | os.PathLike[str], old: str, new: str) -> str:
    """Return the path of a parallel file: ("a.tar:x/train.words.txt", "words", "tags")."""
    text = os.fspath(path)
    start = max(text.rfind(mark) for mark in "/\\:") + 1
    folder, name = text[:start], text[start:]
    if old not in name:
        raise InputError(f"{text}: expected a name with {old!r}, beside one with {new!r}")
    return folder + name.replace(old, new, 1)


def plain(word: str) -> str:
    r"""Undo a treebank's escapes: "-LRB-" -> "(", "\/" -> "/", OntoNotes' "/." -> "."."""
    if word in _ESCAPES:
        return _ESCAPES[word]
    if len(word) == 2 and word[0] == "/" and word[1] in ".?-":
        return word[1]
    return word.replace("\\/", "/").replace("\\*", "*") if "\\" in word else word


def _cut(path: str) -> tuple[Path, list[str]]:
    """Cut a path at its colons into a file that exists and the names inside it."""
    if Path(path).exists():
        return Path(path), []
    parts = path.split(":")
    for n in range(len(parts) - 1, 0, -1):
        outer = Path(":".join(parts[:n]))
        if outer.is_file() and all(parts[n:]):
            return outer, parts[n:]
    raise InputError(f"there is no file {path}")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None


def _unpacked(name: str, data: bytes) -> Source:
    unpack = _UNPACKERS.get(PurePosixPath(name).suffix.lower())
    if unpack is None or name.lower().endswith((".tar.gz", ".tar.bz2", ".tar.xz")):
        return Source(name, data)
    try:
        return Source(name, unpack(data))
    except (*_DAMAGED, OSError) as error:
        raise InputError(f"{name} is damaged ({error}): fetch it again") from None


def _members(archive: Source, inner: list[str], suffixes: tuple[str, ...]) -> Iterator[Source]:
    """Yield the member, or the members below the folder, in one pass over the archive."""
    wanted = inner[0].strip("/")
    found: dict[str, bytes] = {}
    try:
        for name, load in _entries(archive):
            if name == wanted or (name.startswith(f"{wanted}/") and name.endswith(suffixes)):
                found[name] = load()
    except _DAMAGED as error:
        raise InputError(f"{archive.name} is damaged ({error}): fetch it again") from None
    if not found:
        raise InputError(f"{archive.name} holds no {wanted}")
    for name in sorted(found):
        member = Source(f"{archive.name}:{name}", found[name])
        if inner[1:]:
            yield from _members(member, inner[1:], suffixes)
        else:
            yield _unpacked(member.name, member.data)


def _entries(archive: Source) -> Iterator[tuple[str, Callable[[], bytes]]]:
    stream = io.BytesIO(archive.data)
    if zipfile.is_zipfile(stream):
        with zipfile.ZipFile(stream) as zipped:
            for info in zipped.infolist():
                if not info.is_dir():
                    yield info.filename, partial(zipped.read, info)
        return
    stream.seek(0)
    with tarfile.open(fileobj=stream) as tar:
        for member in tar:
            data = tar.extractfile(member) if member.isfile() else None
            if data is not None:
                yield member.name.removeprefix("./"), data.read
