"""Which lines of a text are a document, and which documents are for validation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from torchelmo.pretrain.shards import Shard
from torchelmo.pretrain.sources import Source

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Text:
    """The shards of one source, and where its documents start.

    Blank lines separate documents if any stands between two lines; else every `block_lines` lines
    are one. A record of a .jsonl file is a document.
    """

    def __init__(self, split: str, source: Source, block_lines: int) -> None:
        self.split, self.source, self.block_lines = split, source, block_lines
        self.shards: list[Shard] = []
        self.lines = 0
        self._starts = 0
        self._blank = False  # whether the text so far ends with a blank line

    def add(self, shard: Shard) -> None:
        """Take the next shard."""
        self.shards.append(shard)
        if shard.lines:
            first = not self.lines or self._blank
            self._starts += shard.starts + (first and not shard.starts_new)
            self._blank = False
        self._blank |= shard.ends_blank
        self.lines += shard.lines

    @property
    def in_blocks(self) -> bool:
        """Whether nothing in the text separates documents."""
        return not self.source.records and self._starts <= 1

    @property
    def documents(self) -> int:
        """How many there are."""
        return -(-self.lines // self.block_lines) if self.in_blocks else self._starts

    def starts(self) -> Iterator[tuple[Shard, Longs, Mask]]:
        """Yield each shard with its lines, (n, 4), and which of them start a document."""
        line, blank = 0, False
        for shard in self.shards:
            lines = np.fromfile(f"{shard.stem}.lines", dtype="<i4").reshape(-1, 4).astype(np.int64)
            if self.in_blocks:
                starts = np.arange(line, line + len(lines)) % self.block_lines == 0
            else:
                starts = lines[:, 3] != 0
                if len(lines) and (line == 0 or (blank and not self.source.records)):
                    starts[0] = True
            blank = shard.ends_blank or (blank and not len(lines))
            line += len(lines)
            yield shard, lines, starts


class Share:
    """Which documents are for validation: those whose hash is below a limit.

    About the share that is asked for; one at least if there are ten documents, and never all.

    >>> Share(0.5, seed=1, documents=6)(np.arange(6)).tolist()
    [False, False, False, True, True, True]
    """

    def __init__(self, share: float, seed: int, documents: int) -> None:
        self.seed = np.uint64((seed * 0xD1342543DE82EF95) % 2**64)
        limit = int(share * 2.0**64)
        chosen, lowest, highest = 0, 2**64 - 1, 0
        for first in range(0, documents if share else 0, 1 << 20):
            found = self._hash(np.arange(first, min(documents, first + (1 << 20))))
            chosen += int((found < np.uint64(limit)).sum())
            lowest, highest = min(lowest, int(found.min())), max(highest, int(found.max()))
        if not chosen:
            enough = share and documents > 1 and (documents >= 10 or documents * share >= 0.5)
            limit = lowest + 1 if enough else 0
        elif chosen == documents:
            limit = highest if documents > 1 else 0
        self.limit = np.uint64(limit)

    def __call__(self, documents: Longs) -> Mask:
        """Return which of some document numbers are for validation."""
        return self._hash(documents) < self.limit

    def _hash(self, documents: Longs) -> npt.NDArray[np.uint64]:
        """Mix seed and number as splitmix64 does; different numbers never meet."""
        x = (documents.astype(np.uint64) + self.seed) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
