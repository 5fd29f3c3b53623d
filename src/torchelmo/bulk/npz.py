"""numpy's .npz, written as a stream: a zip archive of .npy members "0", "1", ..., uncompressed.

`zipfile` keeps an object for each member until the end, some 600 bytes each. Here the archive's
directory is gathered in a scratch file. Beyond 65,535 members or 4 GB it has zip64 records.
"""

from __future__ import annotations

import functools
import io
import shutil
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from torchelmo.bulk.vectors import DtypeName, Vectors
from torchelmo.bulk.writers import INDEX, Index, Writer
from torchelmo.errors import InputError

MAX16, MAX32 = 0xFFFF, 0xFFFFFFFF
DATE = (
    0x0021  # 1 January 1980, the first day a zip archive knows: output does not depend on the day
)
MAX_TEXT = (1 << 31) // 4 - 1  # code points of a numpy string


class StreamingZip:
    """Writes members one after another; holds none of them in memory."""

    def __init__(self, path: Path) -> None:
        """Open the archive, and a scratch file beside it for the directory."""
        self._scratch = path.with_name(path.name + ".directory.tmp")
        self._file = path.open("wb")
        self._directory = self._scratch.open("w+b")
        self._count = 0
        self._end = 0  # where the next member begins

    def add(self, name: str, pieces: Iterable[bytes | memoryview], size: int, crc: int) -> None:
        """Add a member, whose size and CRC-32 are known."""
        encoded = name.encode("ascii")
        long = size >= MAX32
        extra = struct.pack("<HHQQ", 1, 16, size, size) if long else b""
        shown = MAX32 if long else size
        version = 45 if long else 20
        fixed = struct.pack("<HHHHIII", 0, 0, 0, DATE, crc, shown, shown)
        self._file.write(b"PK\x03\x04" + struct.pack("<H", version) + fixed)
        self._file.write(struct.pack("<HH", len(encoded), len(extra)) + encoded + extra)
        for piece in pieces:
            self._file.write(piece)

        far = self._end >= MAX32
        wide = ([size, size] if long else []) + ([self._end] if far else [])
        more = struct.pack(f"<HH{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
        entry = struct.pack("<HH", 45 if wide else 20, 45 if wide else 20) + fixed
        entry += struct.pack("<HHHHHI", len(encoded), len(more), 0, 0, 0, 0)
        entry += struct.pack("<I", MAX32 if far else self._end)
        self._directory.write(b"PK\x01\x02" + entry + encoded + more)
        self._count += 1
        self._end += 30 + len(encoded) + len(extra) + size

    def finish(self) -> None:
        """Write the directory."""
        start, size, count = self._end, self._directory.tell(), self._count
        self._directory.seek(0)
        shutil.copyfileobj(self._directory, self._file)
        if count > MAX16 or start >= MAX32 or size >= MAX32:
            record = struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, count, count, size, start)
            locator = struct.pack("<IQI", 0, start + size, 1)
            self._file.write(b"PK\x06\x06" + record + b"PK\x06\x07" + locator)
        few = min(count, MAX16)
        ends = struct.pack("<HHHHIIH", 0, 0, few, few, min(size, MAX32), min(start, MAX32), 0)
        self._file.write(b"PK\x05\x06" + ends)

    def close(self) -> None:
        """Close both files and delete the scratch file."""
        try:
            self._directory.close()
        finally:
            self._scratch.unlink(missing_ok=True)
            self._file.close()


class Npz(Writer):
    """One array a line, named by its 0-based number, and the index as an array of one string."""

    line_bytes = 260

    def __init__(self, path: Path, dtype: DtypeName, *, index: bool) -> None:
        """Open the archive."""
        super().__init__(path, dtype, index=index)
        self._zip = StreamingZip(path)
        self._index = Index(path.with_name(path.name + ".index.tmp")) if index else None

    def write(self, line: int, words: list[str], vectors: Vectors) -> None:
        """Add a sentence."""
        if self._index is not None:
            self._index.add(line, words)
        head = _npy_header(vectors.dtype.str, vectors.shape)
        data = memoryview(vectors.tobytes())
        crc = zlib.crc32(data, zlib.crc32(head))
        self._zip.add(f"{line}.npy", [head, data], len(head) + len(data), crc)

    def finish(self) -> None:
        """Write the index and the archive's directory."""
        if self._index is not None:
            self._index.finish()
            length = self._index.characters
            if length > MAX_TEXT:
                raise InputError(f"{INDEX} is too long for an .npz file: repeat with --no-index")
            head = _npy_header(f"<U{length}", (1,))
            crc = zlib.crc32(head)
            for piece in self._index.text():
                crc = zlib.crc32(piece.encode("utf-32-le"), crc)
            texts = (piece.encode("utf-32-le") for piece in self._index.text())
            pieces = (part for parts in ([head], texts) for part in parts)
            self._zip.add(f"{INDEX}.npy", pieces, len(head) + 4 * length, crc)
        self._zip.finish()

    def close(self) -> None:
        """Close the archive."""
        try:
            self._zip.close()
        finally:
            if self._index is not None:
                self._index.close()


@functools.lru_cache(maxsize=1024)
def _npy_header(kind: str, shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    facts = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, facts)
    return buffer.getvalue()
