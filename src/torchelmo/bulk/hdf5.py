"""hdf5 as bilm-tf's and AllenNLP's dumps have it: a dataset a line, named by its 0-based number.

Beside them `sentence_to_index`, shape (1,), a variable-length UTF-8 string that holds the JSON
{sentence: "line"}.

The file has the format of HDF5 1.8, which keeps the names of a million datasets without growing in
memory (the oldest format takes 70 bytes a dataset, all at the end). The library needs a string
whole in memory and copies it twice; a long index is therefore appended to the closed file in the
form the library would have given it: one collection of the global heap with one object.

The library writes much of a file when nobody can be told that the disk is full. It is therefore
given a file object that remembers the first failure and pretends that all is well from then on.
"""

from __future__ import annotations

import io
import struct
from pathlib import Path

import h5py
import numpy as np
from h5py import h5d, h5p, h5s, h5t

from torchelmo.bulk.vectors import DtypeName, Vectors
from torchelmo.bulk.writers import INDEX, Index, Writer
from torchelmo.errors import InputError

SHORT = 4 << 20  # bytes of an index that the library may write
MAX_TEXT = (1 << 32) - 1  # bytes of one string


class Sink(io.FileIO):
    """A file whose writing never fails; `check` raises what went wrong.

    From the first failure on, what is written stays in memory, so that the library reads it back
    and can close the file in peace: no more than it held unwritten, as `check` ends the work.
    """

    PAGE = 4096

    def __init__(self, path: Path) -> None:
        """Make the file."""
        super().__init__(path, "w+")
        self._error: OSError | None = None
        self._pages: dict[int, bytearray] = {}  # by number, after a failure

    def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]  # what is needed
        """Write all of it, to the disk if that works."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while rest and self._error is None:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self._error = error
        while rest:
            number, offset = divmod(self.tell(), self.PAGE)
            piece = rest[: self.PAGE - offset]
            if number not in self._pages:
                self._pages[number] = self._page(number)
            self._pages[number][offset : offset + len(piece)] = piece
            self.seek(number * self.PAGE + offset + len(piece))
            rest = rest[len(piece) :]
        return size

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # what is needed
        """Read what was written, wherever it is."""
        if not self._pages:
            return super().readinto(buffer)
        start, into = self.tell(), memoryview(buffer).cast("B")
        end = start + len(into)
        for number in range(start // self.PAGE, -(-end // self.PAGE)):
            first = number * self.PAGE
            page = self._pages.get(number) or self._page(number)
            low, high = max(start, first), min(end, first + self.PAGE)
            into[low - start : high - start] = page[low - first : high - first]
        self.seek(end)
        return len(into)

    def truncate(self, size: int | None = None) -> int:
        """Make the file as long as said, unless something went wrong before."""
        try:
            if self._error is None:
                super().truncate(size)
        except OSError as error:
            self._error = error
        return size or 0

    def check(self) -> None:
        """Raise the first failure, if there was one."""
        if self._error is not None:
            raise self._error

    def _page(self, number: int) -> bytearray:
        """Return what the disk has; the position is lost."""
        self.seek(number * self.PAGE)
        page = bytearray(self.PAGE)
        super().readinto(page)
        return page


class Hdf5(Writer):
    """Writes datasets through h5py's low-level calls, twice as fast as its high-level ones."""

    line_bytes = 600

    def __init__(self, path: Path, dtype: DtypeName, *, index: bool) -> None:
        """Open the file."""
        super().__init__(path, dtype, index=index)
        self._sink = Sink(path)
        self._file = h5py.File(self._sink, "w", libver=("v108", "v108"))
        self._type = h5t.py_create(np.dtype(dtype).newbyteorder("<"))
        self._creation = h5p.create(h5p.DATASET_CREATE)
        self._creation.set_obj_track_times(False)
        self._creation.set_layout(h5d.CONTIGUOUS)
        self._index = Index(path.with_name(path.name + ".index.tmp")) if index else None

    def write(self, line: int, words: list[str], vectors: Vectors) -> None:
        """Add a sentence."""
        if self._index is not None:
            self._index.add(line, words)
        space = h5s.create_simple(vectors.shape)
        dataset = h5d.create(self._file.id, b"%d" % line, self._type, space, self._creation)
        if vectors.size:
            dataset.write(h5s.ALL, h5s.ALL, np.ascontiguousarray(vectors))
        self._sink.check()

    def finish(self) -> None:
        """Write the index and what the library still holds."""
        place = None if self._index is None else self._add_index(self._index)
        self._file.close()
        self._sink.check()
        if place is not None and self._index is not None:
            append_string(self._sink, place, self._index)
            self._sink.check()

    def close(self) -> None:
        """Close the file; the library must be done with it before Python ends."""
        try:
            self._file.close()
            self._sink.close()
        finally:
            if self._index is not None:
                self._index.close()

    def _add_index(self, index: Index) -> int | None:
        """Write the index if it is short; else return where it is to be put in."""
        index.finish()
        if index.size > MAX_TEXT:
            raise InputError(f"{INDEX} is too long for an hdf5 file: repeat with --no-index")
        long = index.size > SHORT
        text = "{}" if long else "".join(index.text())
        kind = h5py.string_dtype("utf-8")
        dataset = self._file.create_dataset(INDEX, data=[text], dtype=kind, track_times=False)
        return int(dataset.id.get_offset()) if long else None


def append_string(file: io.FileIO, place: int, text: Index) -> None:
    """Make the string element that lies at `place` of a finished file point to a long text.

    The element is a length, a collection's address and an object's number. The collection goes to
    the end of the file: "GCOL", its size, then the object's number, reference count and size, and
    the text. The superblock says where the file ends, under a checksum.
    """
    file.seek(0)
    superblock = file.read(48)
    version, offset_size, length_size = struct.unpack_from("<BBB", superblock, 8)
    base, _, end = struct.unpack_from("<QQQ", superblock, 12)
    (checksum,) = struct.unpack_from("<I", superblock, 44)
    usual = version == 2 and offset_size == length_size == 8 and base == 0
    if not usual or checksum != lookup3(superblock[:44]):
        raise OSError(f"the hdf5 superblock is of an unknown kind (version {version})")
    start = file.seek(end + -end % 8)
    padding = -text.size % 8
    size = 32 + text.size + padding
    file.write(struct.pack("<4sB3xQ", b"GCOL", 1, size))
    file.write(struct.pack("<HHIQ", 1, 0, 0, text.size))
    for piece in text.text():
        file.write(piece.encode())
    file.write(bytes(padding))
    file.seek(place)
    file.write(struct.pack("<IQI", text.size, start, 1))
    changed = superblock[:28] + struct.pack("<Q", start + size) + superblock[36:44]
    file.seek(0)
    file.write(changed + struct.pack("<I", lookup3(changed)))


def lookup3(data: bytes) -> int:
    """Return Bob Jenkins' lookup3 hash, by which HDF5 guards its own records.

    >>> hex(lookup3(b"Four score and seven years ago"))
    '0x17770551'
    """
    mask = 0xFFFFFFFF

    def rotate(value: int, by: int) -> int:
        return (value << by | value >> (32 - by)) & mask

    a = b = c = (0xDEADBEEF + len(data)) & mask
    blocks = range(0, len(data), 12)
    for start in blocks:
        x, y, z = struct.unpack("<III", data[start : start + 12].ljust(12, b"\0"))
        a, b, c = (a + x) & mask, (b + y) & mask, (c + z) & mask
        if start + 12 >= len(data):
            break
        for turn in (4, 6, 8, 16, 19, 4):
            a = (a - c) & mask ^ rotate(c, turn)
            c = (c + b) & mask
            a, b, c = b, c, a
    if not data:
        return c
    for turn in (14, 11, 25, 16, 4, 14, 24):
        c = ((c ^ b) - rotate(b, turn)) & mask
        a, b, c = b, c, a
    return b
