"""Shards cut in training and validation text, and the files these become."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from torchelmo.config import UNKNOWN
from torchelmo.pretrain.corpus import DOCUMENTS, KINDS, SENTENCES, TOKENS, VALID
from torchelmo.pretrain.documents import Longs, Mask
from torchelmo.pretrain.shards import Shard
from torchelmo.text.vocabulary import SPECIALS

UNKNOWN_ID = SPECIALS.index(UNKNOWN)


@dataclass(frozen=True)
class SplitReport:
    """Counts of the training or the validation text."""

    tokens: int = 0
    sentences: int = 0
    documents: int = 0
    words: int = 0  # what white space separates in the raw text
    characters: int = 0  # of its lines that are not blank, line breaks not counted
    unknown: int = 0  # tokens outside the vocabulary

    @property
    def unknown_percent(self) -> float:
        """The share of tokens that are predicted as `<UNK>`."""
        return round(100 * self.unknown / self.tokens, 4) if self.tokens else 0.0


class Cut:
    """What of a shard belongs to one of the two texts."""

    def __init__(self, shard: Shard, lines: Longs, starts: Mask, wanted: Mask) -> None:
        """Take the shard's lines (n, 4), which of them start documents, and which are wanted."""
        lengths = np.fromfile(f"{shard.stem}.sentences", dtype="<i4").astype(np.int64)
        sentences = np.repeat(wanted, lines[:, 0])
        self.lines: Longs = lines[wanted]
        self.starts: Mask = starts[wanted]
        self.lengths: Longs = lengths[sentences]
        self.tokens: Mask = np.repeat(sentences, lengths)  # which tokens of the shard


class Piece(NamedTuple):
    """A shard, and which of its lines are for validation."""

    shard: Shard
    run: int  # number of its first run among all runs
    lines: Longs  # (n, 4)
    starts: Mask
    valid: Mask

    def cut(self, split: str) -> Cut | None:
        """Return what belongs to a split, None if nothing does."""
        wanted = self.valid if split == VALID else ~self.valid
        return Cut(self.shard, self.lines, self.starts, wanted) if wanted.any() else None


class HashedFile:
    """A file that knows its SHA-256 when it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO = path.open("wb")
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Add bytes."""
        self._file.write(data)
        self._hash.update(data)

    def hexdigest(self) -> str:
        """Return the hash of what was written."""
        return self._hash.hexdigest()

    def __enter__(self) -> HashedFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


class SplitWriter:
    """Writes tokens, sentences and documents of a text, shard after shard."""

    def __init__(self, out: Path, split: str) -> None:
        self._files = {kind: HashedFile(out / f"{split}.{kind}") for kind in KINDS}
        self._tokens = self._sentences = self._documents = 0
        self._words = self._characters = self._unknown = 0

    def add(self, cut: Cut, ids: npt.NDArray[np.int32], vocabulary: int) -> None:
        """Write a shard's part; `ids` are those of all its tokens."""
        mine = ids[cut.tokens]
        first = np.cumsum(cut.lines[:, 0]) - cut.lines[:, 0]  # each line's first sentence
        self._write(TOKENS, mine)
        self._write(SENTENCES, self._tokens + np.cumsum(cut.lengths) - cut.lengths)
        self._write(DOCUMENTS, self._sentences + first[cut.starts])
        self._tokens += len(mine)
        self._sentences += len(cut.lengths)
        self._documents += int(cut.starts.sum())
        self._words += int(cut.lines[:, 1].sum())
        self._characters += int(cut.lines[:, 2].sum())
        self._unknown += int(((mine >= vocabulary) | (mine == UNKNOWN_ID)).sum())

    def finish(self) -> SplitReport:
        """Write where it all ends, and return the counts."""
        self._write(SENTENCES, np.array([self._tokens]))
        self._write(DOCUMENTS, np.array([self._sentences]))
        return SplitReport(
            tokens=self._tokens,
            sentences=self._sentences,
            documents=self._documents,
            words=self._words,
            characters=self._characters,
            unknown=self._unknown,
        )

    def hashes(self) -> dict[str, str]:
        """Return the SHA-256 of each file."""
        return {file.path.name: file.hexdigest() for file in self._files.values()}

    def __enter__(self) -> SplitWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files.values():
            file.__exit__(kind, error, trace)

    def _write(self, kind: str, data: npt.NDArray[np.generic]) -> None:
        self._files[kind].write(data.astype(KINDS[kind]).tobytes())
