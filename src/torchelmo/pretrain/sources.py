r"""Where raw text comes from: files, folders and streams, unpacked, in chunks of whole lines.

Nothing is read as a whole: a chunk has some MB, and how the text is cut into chunks must not
matter to whoever reads them. Bytes are handed on as they are; lines end with `\n`.
"""

from __future__ import annotations

import bz2
import gzip
import importlib
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

from torchelmo.errors import InputError, MissingExtra

MAX_LINE = 16 << 20  # bytes; a longer line is no paragraph, and memory must stay bounded
BOM = b"\xef\xbb\xbf"
RECORDS = (".jsonl", ".ndjson")

Input = str | Path | BinaryIO
Form = Literal["auto", "text", "jsonl"]


class Readable(Protocol):
    """What chunks are read from."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes, none only at the end."""


@dataclass(frozen=True)
class Source:
    """A file or a stream of text."""

    name: str  # what errors and reports call it
    records: bool  # a JSON object a line
    path: Path | None = None
    stream: BinaryIO | None = field(default=None, compare=False)
    size: int | None = None  # bytes on disk; None for a stream


@dataclass(frozen=True)
class Chunk:
    """Some whole lines of a source."""

    source: str
    line: int  # number of the first line, from 1
    data: bytes


def find_sources(
    inputs: Sequence[Input], *, form: Form = "auto", leave_out: Path | None = None
) -> list[Source]:
    """Return the files that inputs name: folders are searched, hidden files left alone.

    Files of a folder come in the order of their paths. `leave_out` is a folder of ours that may
    lie inside one that is searched.
    """
    if not inputs:
        raise InputError("no input files were given: give files, folders, or - for standard input")
    found: list[Source] = []
    for given in inputs:
        if not isinstance(given, str | Path):
            name = getattr(given, "name", None)
            name = "standard input" if name in ("<stdin>", 0) else str(name or "the stream")
            found.append(Source(name, form == "jsonl", stream=given))
            continue
        path = Path(given)
        if path.is_dir():
            inside = list(_walk(path, leave_out))
            if not inside:
                raise InputError(f"the folder {path} has no files in it (hidden ones do not count)")
            found += [_file(part, form) for part in inside]
        elif not path.exists():
            raise InputError(f"there is no file or folder {path}")
        else:
            found.append(_file(path, form))
    return found


def _walk(folder: Path, leave_out: Path | None) -> Iterator[Path]:
    skipped = None if leave_out is None else os.path.realpath(leave_out)
    paths = []
    for where, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and os.path.realpath(os.path.join(where, name)) != skipped
        ]
        paths += [Path(where, name) for name in names if not name.startswith(".")]
    yield from sorted((path for path in paths if path.is_file()), key=lambda path: path.parts)


def _file(path: Path, form: Form) -> Source:
    plain = path.with_suffix("") if path.suffix.lower() in _UNPACKERS else path
    records = form == "jsonl" or (form == "auto" and plain.suffix.lower() in RECORDS)
    try:
        size = path.stat().st_size
        path.open("rb").close()
    except OSError as error:
        raise _unreadable(str(path), error) from None
    return Source(str(path), records, path=path, size=size)


def read_chunks(source: Source, size: int) -> Iterator[tuple[Chunk, int]]:
    """Yield chunks of about `size` bytes, each with the bytes of the source read so far."""
    with _opened(source) as (stream, position):
        for chunk in _cut(stream, source.name, size):
            yield chunk, position()


def too_long(line: int, name: str) -> InputError:
    """Return what is said of a line over the limit."""
    return InputError(
        f"line {line} of {name} is longer than {MAX_LINE >> 20} MB: break the text into lines, "
        "such as paragraphs"
    )


def _cut(stream: Readable, name: str, size: int) -> Iterator[Chunk]:
    line, rest, waiting = 1, [b""], 0  # rest: the start of a line that is not whole yet
    block = stream.read(size)
    while 0 < len(block) < len(BOM) and (more := stream.read(size)):
        block += more
    ended = not block
    block = block.removeprefix(BOM)
    while not ended:
        end = block.rfind(b"\n") + 1
        if end:
            data = b"".join([*rest, block[:end]])
            yield Chunk(name, line, data)
            line += data.count(b"\n")
            rest, waiting = [], 0
        rest.append(block[end:])
        waiting += len(block) - end
        if waiting > MAX_LINE:
            raise too_long(line, name)
        block = stream.read(size)
        ended = not block
    if waiting:
        yield Chunk(name, line, b"".join(rest))


@contextmanager
def _opened(source: Source) -> Iterator[tuple[Readable, Callable[[], int]]]:
    """Give what the source holds, unpacked, and how many of its bytes were read."""
    if source.path is None:
        assert source.stream is not None
        counted = _Counted(source.stream, source.name)
        yield counted, lambda: counted.count
        return
    ending = source.path.suffix.lower()
    try:
        raw = source.path.open("rb")
    except OSError as error:
        raise _unreadable(source.name, error) from None
    with raw:
        kind, unpack = _UNPACKERS.get(ending, ("", lambda file: file))
        yield _Checked(unpack(raw), source.name, kind), raw.tell


class _Counted:
    """A stream of which no position can be asked."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self.stream, self.name, self.count = stream, name, 0

    def read(self, size: int, /) -> bytes:
        try:
            data = self.stream.read(size)
        except OSError as error:
            raise _unreadable(self.name, error) from None
        self.count += len(data)
        return data


class _Checked:
    """A file whose damage is said in one sentence."""

    def __init__(self, stream: Readable, name: str, kind: str) -> None:
        self.stream, self.name, self.kind = stream, name, kind

    def read(self, size: int, /) -> bytes:
        try:
            return self.stream.read(size)
        except OSError as error:
            if error.errno is None:  # what the unpackers of gzip and bzip2 say of bad data
                raise self._damaged(error) from None
            raise _unreadable(self.name, error) from None
        except (EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> InputError:
        return InputError(f"{self.name} is not a whole {self.kind} file: {error}")


class _Zstd:
    """A .zst file by the package zstandard, whose own reader takes a file that was cut as whole."""

    # One byte of a .zst file can stand for 32 KB, so that a read gives at most 128 MB.
    STEP = 4096

    def __init__(self, file: BinaryIO) -> None:
        try:
            self._module = importlib.import_module("zstandard")
        except ImportError:
            raise MissingExtra("reading .zst files", package="zstandard", extra="train") from None
        self._file = file
        self._frame = self._module.ZstdDecompressor().decompressobj()
        self._inside = True  # a file has at least one frame
        self._ready = bytearray()

    def read(self, size: int, /) -> bytes:
        while len(self._ready) < size:
            packed = self._file.read(self.STEP)
            if not packed:
                if self._inside:
                    raise EOFError("it ends in the middle")
                break
            try:
                while packed:
                    if not self._inside:
                        self._frame = self._module.ZstdDecompressor().decompressobj()
                        self._inside = True
                    self._ready += self._frame.decompress(packed)
                    packed = self._frame.unused_data if self._frame.eof else b""
                    self._inside = not self._frame.eof
            except self._module.ZstdError as error:
                raise EOFError(str(error)) from None
        data = bytes(self._ready[:size])
        del self._ready[:size]
        return data


def _gzip(file: BinaryIO) -> Readable:
    return gzip.GzipFile(fileobj=file, mode="rb")


def _unreadable(name: str, error: OSError) -> InputError:
    return InputError(f"{name} cannot be read: {error.strerror or error}")


_UNPACKERS: dict[str, tuple[str, Callable[[BinaryIO], Readable]]] = {
    ".gz": ("gzip", _gzip),
    ".xz": ("xz", lzma.LZMAFile),
    ".bz2": ("bzip2", bz2.BZ2File),
    ".zst": ("zstd", _Zstd),
}
