"""The files a run can end in, by their ending: .hdf5 (.h5), .npz, .parquet, .jsonl.

A writer is given sentence after sentence and keeps none, so that a million of them take no more
memory than ten. The same sentences give the same bytes: no file holds a time.
"""

from __future__ import annotations

import importlib.util
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import numpy as np

from torchelmo.bulk.vectors import DtypeName, Vectors
from torchelmo.errors import InputError, MissingExtra

INDEX = "sentence_to_index"
ENDINGS = (".hdf5", ".h5", ".npz", ".parquet", ".jsonl")


class Writer(ABC):
    """One output file; use it as a context, and call `finish` when all sentences are written."""

    line_bytes = 0  # what a sentence takes beside its vectors and words, about
    growth = 1.0  # how much larger vectors are than in memory

    def __init__(self, path: Path, dtype: DtypeName, *, index: bool) -> None:
        """Take where to write, the dtype, and whether to write `sentence_to_index`."""
        self.path, self.dtype, self.index = path, dtype, index

    @abstractmethod
    def write(self, line: int, words: list[str], vectors: Vectors) -> None:
        """Add a sentence."""

    @abstractmethod
    def finish(self) -> None:
        """Write what comes at the end."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the file, finished or not."""

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except (OSError, RuntimeError):
            if kind is None:  # after an error the file is thrown away, and closing it may fail too
                raise


class Index:
    """`sentence_to_index`, the JSON object {sentence: "line"}, gathered on disk.

    A sentence that comes twice stands there twice; readers of JSON take the later.
    """

    def __init__(self, path: Path) -> None:
        """Take a path for the scratch file."""
        self.path = path
        self.size = self.characters = 1  # of the whole JSON text, in bytes and code points
        self._file = path.open("wb")
        self._file.write(b"{")

    def add(self, line: int, words: list[str]) -> None:
        """Add a sentence, its words joined by one space."""
        mark = ", " if self.size > 1 else ""
        self._put(f'{mark}{json.dumps(" ".join(words), ensure_ascii=False)}: "{line}"')

    def finish(self) -> None:
        """End the object; from here on `text` can be read."""
        self._put("}")
        self._file.close()

    def text(self, size: int = 1 << 20) -> Iterator[str]:
        """Yield the JSON text in pieces."""
        with self.path.open(encoding="utf-8", newline="") as file:
            while piece := file.read(size):
                yield piece

    def close(self) -> None:
        """Delete the scratch file."""
        try:
            self._file.close()
        finally:
            self.path.unlink(missing_ok=True)

    def _put(self, text: str) -> None:
        data = text.encode()
        self._file.write(data)
        self.size += len(data)
        self.characters += len(text)


class JsonLines(Writer):
    """One object a line: {"line": 0, "tokens": ["He"], "vectors": [[0.25, ...]]}.

    Numbers have as many digits as give the same float32 (nine) or float16 (five) back.
    """

    line_bytes = 40
    growth = 3.5

    def __init__(self, path: Path, dtype: DtypeName, *, index: bool) -> None:
        """Open the file; words stand beside their vectors, so there is no index."""
        super().__init__(path, dtype, index=index)
        self._digits = "%.9g" if dtype == "float32" else "%.5g"
        self._file = path.open("wb")

    def write(self, line: int, words: list[str], vectors: Vectors) -> None:
        """Add a sentence."""
        tokens = json.dumps(words, ensure_ascii=False)
        head = f'{{"line": {line}, "tokens": {tokens}, "vectors": '
        self._file.write(head.encode())
        if vectors.ndim == 2:
            self._matrix(vectors)
        else:
            for number, layer in enumerate(vectors):
                self._file.write(b", " if number else b"[")
                self._matrix(layer)
            self._file.write(b"]")
        self._file.write(b"}\n")

    def finish(self) -> None:
        """Nothing comes at the end."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _matrix(self, rows: Vectors) -> None:
        form = "[" + ", ".join([self._digits] * rows.shape[1]) + "]"
        self._file.write(b"[")
        for number, row in enumerate(rows):
            self._file.write(b", " if number else b"")
            self._file.write((form % tuple(row.tolist())).encode())
        self._file.write(b"]")


class Parquet(Writer):
    """Columns line, tokens, shape, vectors; vectors are flattened, `shape` says how they stood."""

    line_bytes = 60

    ROW_GROUP = 32 << 20  # bytes of vectors that are held before they are written

    def __init__(self, path: Path, dtype: DtypeName, *, index: bool) -> None:
        """Open the file; words stand beside their vectors, so there is no index."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        super().__init__(path, dtype, index=index)
        self._pa = pa
        number = pa.float32() if dtype == "float32" else pa.float16()
        self._schema = pa.schema(
            [
                ("line", pa.int64()),
                ("tokens", pa.list_(pa.string())),
                ("shape", pa.list_(pa.int32())),
                ("vectors", pa.list_(number)),
            ]
        )
        self._file = pq.ParquetWriter(
            path, self._schema, compression="none", use_dictionary=["tokens.list.element"]
        )
        self._rows: list[tuple[int, list[str], Vectors]] = []
        self._held = 0

    def write(self, line: int, words: list[str], vectors: Vectors) -> None:
        """Add a sentence."""
        self._rows.append((line, words, vectors))
        self._held += vectors.nbytes
        if self._held >= self.ROW_GROUP or len(self._rows) >= 1 << 16:
            self._flush()

    def finish(self) -> None:
        """Write the rows that are still held."""
        self._flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _flush(self) -> None:
        if not self._rows:
            return
        pa = self._pa
        lines, tokens, vectors = zip(*self._rows, strict=True)
        flat = np.concatenate([v.reshape(-1) for v in vectors])
        ends = np.cumsum([0, *(v.size for v in vectors)])
        offsets = pa.array(ends, type=pa.int32())
        columns = [
            pa.array(lines, type=pa.int64()),
            pa.array(tokens, type=self._schema.field("tokens").type),
            pa.array([v.shape for v in vectors], type=self._schema.field("shape").type),
            pa.ListArray.from_arrays(offsets, pa.array(flat)),
        ]
        table = pa.Table.from_arrays(columns, schema=self._schema)
        self._file.write_table(table, row_group_size=len(self._rows))
        self._rows, self._held = [], 0


def writer_class(output: Path) -> type[Writer]:
    """Return the class that writes files of this ending."""
    ending = output.suffix.lower()
    if ending in (".hdf5", ".h5"):
        from torchelmo.bulk.hdf5 import Hdf5

        return Hdf5
    if ending == ".npz":
        from torchelmo.bulk.npz import Npz

        return Npz
    if ending == ".jsonl":
        return JsonLines
    if ending == ".parquet":
        if importlib.util.find_spec("pyarrow") is None:
            raise MissingExtra("Writing .parquet", package="pyarrow", extra="parquet")
        return Parquet
    raise InputError(f"{output} has to end in one of {', '.join(ENDINGS)}, which says its format")
