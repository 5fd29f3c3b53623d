"""The distinct words of all shards, sorted and counted, without ever holding them as objects.

Each run of a shard is a sorted list of words on disk. The lists are cut at common words into parts
of some hundred thousand entries; the words of a part lie between two words, so parts are merged
each on its own, by many processes, and one after another they are the sorted list of all words.
A word's place in it is what the runs' numbers are mapped to. Sorted means by code point.

In memory there remain 16 bytes a distinct word, and its text is mapped from disk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from torchelmo.pretrain.shards import SAMPLE, Run, Shard, write
from torchelmo.pretrain.workers import Workers

PART = 1 << 18  # entries of all runs that are merged at once: about 50 MB
BLOCK = 1 << 16  # words whose text is looked at together

Longs = npt.NDArray[np.int64]


class Slice(NamedTuple):
    """Some words of a run's file: all of a part are among them."""

    stem: str
    first: int  # number of the first word
    start: int  # bytes
    end: int


@dataclass(frozen=True)
class Part:
    """Words from `low` to before `high`, of all runs."""

    stem: str  # of the files to be written
    low: bytes
    high: bytes | None
    slices: list[Slice]


class Words:
    """All distinct words in sorted order: `counts` of each, and their text."""

    def __init__(
        self,
        path: Path,
        counts: Longs,
        bases: npt.NDArray[np.int32],
        starts: Longs,
    ) -> None:
        """Take the file of words and, of each part, its first place and its cuts of the runs."""
        self.counts = counts
        self._bases, self._starts = bases, starts  # (parts,), (parts + 1, runs)
        size = path.stat().st_size
        self._text = np.memmap(path, dtype=np.uint8, mode="r") if size else np.zeros(0, np.uint8)
        self._offsets: Longs = np.zeros(len(counts) + 1, dtype=np.int64)
        done = 0
        for at in range(0, size, 1 << 24):
            breaks = np.flatnonzero(self._text[at : at + (1 << 24)] == ord("\n"))
            self._offsets[done + 1 : done + 1 + len(breaks)] = breaks + (at + 1)
            done += len(breaks)

    def __len__(self) -> int:
        return len(self.counts)

    def text(self, places: Longs) -> bytes:
        """Return the words at some places, one a line."""
        starts = self._offsets[places]
        sizes = self._offsets[places + 1] - starts
        ends = np.cumsum(sizes)
        where = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - sizes), sizes)
        return bytes(self._text[where])

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield all words, many at a time, each time with the place of the first."""
        for first in range(0, len(self), BLOCK):
            last = min(first + BLOCK, len(self))
            yield first, bytes(self._text[self._offsets[first] : self._offsets[last]])

    def place(self, word: str) -> int | None:
        """Return where a word is."""
        sought = word.encode("utf-8")
        at = bisect_left(range(len(self)), sought, key=self._word)
        return at if at < len(self) and self._word(at) == sought else None

    def tokens(
        self, shard: Shard, first: int, ids: npt.NDArray[np.int32] | None = None
    ) -> npt.NDArray[np.int32]:
        """Return the places of a shard's tokens, or the ids at those places.

        `first` is the number of the shard's first run among all runs.
        """
        tokens = np.fromfile(f"{shard.stem}.tokens", dtype="<i4")
        end = 0
        for number, run in enumerate(shard.runs, start=first):
            places = np.fromfile(f"{run.stem}.map", dtype="<i4")
            places += np.repeat(self._bases, np.diff(self._starts[:, number]))
            start, end = end, end + run.tokens
            # through the run's few words first: the table of all of them is out of any cache
            tokens[start:end] = (places if ids is None else ids[places])[tokens[start:end]]
        return tokens

    def _word(self, place: int) -> bytes:
        return bytes(self._text[self._offsets[place] : self._offsets[place + 1] - 1])


def merge_words(
    runs: Sequence[Run],
    folder: Path,
    workers: Workers,
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    part_entries: int = PART,
) -> Words:
    """Merge the runs' words in `folder`, telling `progress` how many parts are done."""
    parts = list(_parts(runs, folder, part_entries))
    counts, starts = [np.zeros(0, dtype=np.int64)], []
    path = folder / "all.words"
    with path.open("wb") as out:
        for part, cuts in zip(parts, workers.map(merge_part, parts), strict=True):
            words = Path(f"{part.stem}.words")
            out.write(words.read_bytes())
            counts.append(np.fromfile(f"{part.stem}.counts", dtype="<i8"))
            words.unlink()
            starts.append(cuts)
            progress(len(starts), len(parts))
    starts.append([run.types for run in runs])
    sizes = np.array([len(part) for part in counts], dtype=np.int64)
    bases = np.cumsum(sizes)[:-1].astype(np.int32)
    return Words(path, np.concatenate(counts), bases, np.array(starts, dtype=np.int64))


def _parts(runs: Sequence[Run], folder: Path, entries: int) -> Iterator[Part]:
    # Up to 2 * SAMPLE words of each run are read in vain, so many runs want larger parts.
    step = max(entries, 2 * SAMPLE * len(runs)) // SAMPLE or 1
    samples = sorted(word for run in runs for word in run.samples)
    cuts = sorted(set(samples[step::step]))
    bounds: list[bytes] = [b"", *cuts]
    for number, low in enumerate(bounds):
        high = bounds[number + 1] if number + 1 < len(bounds) else None
        slices = []
        for run in runs:
            first = max(bisect_left(run.samples, low) - 1, 0)
            last = len(run.samples) if high is None else bisect_left(run.samples, high)
            start, end = run.offsets[first], run.offsets[max(first, last)]
            slices.append(Slice(run.stem, first * SAMPLE, start, end))
        yield Part(str(folder / f"part-{number:06d}"), low, high, slices)


def merge_part(part: Part) -> list[int]:
    """Merge a part; return where in each run it starts.

    1. Read the runs' words between the two bounds, and add up their counts.
    2. Sort the distinct words: a word's place in this list is its number in the part.
    3. Write those numbers into the runs' maps, and words and counts into files of the part.
    """
    total: dict[bytes, int] = {}
    found: list[tuple[str, int, list[bytes]]] = []
    for stem, first, start, end in part.slices:
        with open(f"{stem}.words", "rb") as file:
            file.seek(start)
            words = file.read(end - start).split(b"\n")[:-1]
        low = bisect_left(words, part.low)
        high = len(words) if part.high is None else bisect_left(words, part.high)
        words = words[low:high]
        counts = np.fromfile(
            f"{stem}.counts", dtype="<i8", count=len(words), offset=8 * (first + low)
        )
        for word, count in zip(words, counts.tolist(), strict=True):
            total[word] = total.get(word, 0) + count
        found.append((stem, first + low, words))

    ordered = sorted(total)
    numbers = {word: number for number, word in enumerate(ordered)}
    for stem, first, words in found:
        if words:
            mapped = np.fromiter(map(numbers.__getitem__, words), dtype="<i4", count=len(words))
            with open(f"{stem}.map", "r+b") as file:
                file.seek(4 * first)
                file.write(mapped.tobytes())
    write(f"{part.stem}.words", b"".join(word + b"\n" for word in ordered))
    sums = np.fromiter(map(total.__getitem__, ordered), dtype="<i8", count=len(ordered))
    write(f"{part.stem}.counts", sums)
    return [first for _, first, _ in found]
