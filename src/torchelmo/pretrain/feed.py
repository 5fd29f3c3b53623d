"""Batches made ahead of the training step, in a thread of their own.

For each step: the pairs of both directions, their distinct words ordered by spelling length (so
that the character CNN runs once per word, over few more positions than it has), and the negatives
of the sampled softmax. They go to the device in one copy. What is drawn at random is drawn from the
seed and the step's number alone, so a run that goes on draws the same.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchelmo.nn.bilm import Direction
from torchelmo.pretrain.corpus import Corpus
from torchelmo.pretrain.objective import Negatives, Side, Step, draw_negatives, log_expected
from torchelmo.pretrain.recipe import Recipe
from torchelmo.pretrain.streams import UNKNOWN_ID, Ints, Pairs, Stream

AHEAD = 8  # batches waiting: they last while the streams lay out a block
ON_DEVICE = 2 << 30  # bytes of character table that are kept on the device
ALIGNED = 128  # tensors that share memory begin at multiples of so many bytes
KINDS = {  # as they are sent, by numpy's letter
    "i": (np.int32, torch.int32),
    "u": (np.int32, torch.int32),
    "f": (np.float32, torch.float32),
    "b": (np.bool_, torch.bool),
}

Positions = dict[Direction, dict[str, Ints]]


class Fed(NamedTuple):
    """A batch, and where the streams are after it."""

    step: Step
    positions: Positions


@dataclass
class Feed:
    """Makes the batches of a run, for one of `world` processes."""

    corpus: Corpus
    recipe: Recipe
    device: torch.device
    directions: tuple[Direction, ...] = ("forward", "backward")
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        train, data = self.recipe.train, self.recipe.data
        share = train.batch // self.world
        self._streams: dict[Direction, Stream] = {}
        for number, name in enumerate(self.directions):
            if number and not data.independent:
                self._streams[name] = self._streams[self.directions[0]].other_direction()
                continue
            self._streams[name] = Stream(
                self.corpus.train,
                train.batch,
                train.unroll,
                self.corpus.vocabulary_size,
                reverse=name == "backward",
                shuffle=data.shuffle,
                seed=2 * train.seed + number,
                reset_share=data.reset_share,
                rows=range(self.rank * share, (self.rank + 1) * share),
            )
        table = self.corpus.characters
        self._lengths = spelling_lengths(table, self.corpus.config.symbols + 5)
        # Words by spelling length, and by number among those of one length.
        self._sorted = np.argsort(self._lengths.astype(np.uint16), kind="stable").astype(np.int32)
        self._rank = np.empty_like(self._sorted)
        self._rank[self._sorted] = np.arange(len(self._sorted), dtype=np.int32)
        self._place = np.zeros_like(self._sorted)  # scratch, a number for every word
        self._table: Tensor | None = None
        if self.device.type != "cpu" and table.nbytes <= ON_DEVICE:
            self._table = torch.from_numpy(np.asarray(table).astype(np.int16)).to(self.device)

    def __call__(
        self, step: int = 0, positions: Positions | None = None
    ) -> Generator[Fed, None, None]:
        """Yield batches from a step and positions on, made ahead by a thread."""
        waiting: queue.Queue[Fed | BaseException] = queue.Queue(AHEAD)
        stop = threading.Event()

        def put(item: Fed | BaseException) -> None:
            while not stop.is_set():  # a reader that has gone makes no room
                try:
                    waiting.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue

        def work() -> None:
            try:
                for fed in self._make(step, positions):
                    put(fed)
                    if stop.is_set():
                        return
            except BaseException as error:  # handed to the reader
                put(error)

        thread = threading.Thread(target=work, daemon=True, name="torchelmo-feed")
        thread.start()
        try:
            while True:
                item = waiting.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            stop.set()
            thread.join()

    def _make(self, step: int, positions: Positions | None) -> Iterator[Fed]:
        streams = {
            name: iter(stream) if positions is None else stream.seek(positions[name])
            for name, stream in self._streams.items()
        }
        while True:
            drawn = {name: next(stream) for name, stream in streams.items()}
            pairs = {name: batch for name, (_, batch) in drawn.items()}
            yield Fed(self._step(step, pairs), {name: place for name, (place, _) in drawn.items()})
            step += 1

    def _step(self, number: int, pairs: dict[Direction, Pairs]) -> Step:
        read = np.stack([batch.inputs.T for batch in pairs.values()])  # (directions, T, B)
        words, index = self._distinct(read)
        whole_words, resets = self.recipe.model.words, self.recipe.data.reset_share > 0
        parts: list[npt.NDArray[np.generic]] = [words]
        if whole_words:
            parts = [np.where(words < self.corpus.vocabulary_size, words, UNKNOWN_ID)]
        elif self._table is None:
            parts = [self.corpus.characters[words]]
        tries: list[int] = []
        for position, batch in enumerate(pairs.values()):
            parts += [index[position], batch.targets.T]
            if resets:
                parts.append(batch.resets.T)
            drawn = self._negatives(number, position)
            if drawn is not None:
                parts += drawn[:2]
                tries.append(drawn[2])
        sent = iter(send(parts, self.device))
        table = next(sent)
        sides: dict[Direction, Side] = {}
        for position, name in enumerate(pairs):
            side = next(sent), next(sent), next(sent) if resets else None
            negatives = Negatives(next(sent), next(sent), tries[position]) if tries else None
            sides[name] = Side(*side, negatives)
        if whole_words:
            return Step(None, np.zeros(0, dtype=np.int64), table, sides)
        if self._table is not None:  # stored as int16 for want of indexing by uint16
            table = self._table[table].long() & 0xFFFF
        return Step(table, self._lengths[words], None, sides)

    def _distinct(
        self, read: npt.NDArray[np.int32]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return the words that are read, each once and by length, and which of them each one is.

        Without sorting more than the distinct ones: each running word writes its number down in a
        table by word; those that find their own number there are the distinct ones.
        """
        running = read.reshape(-1).astype(np.intp)
        numbers = np.arange(len(running), dtype=np.int32)
        self._place[running] = numbers
        ranks = self._rank[running[np.flatnonzero(self._place[running] == numbers)]]
        ranks.sort()
        words = self._sorted[ranks]
        self._place[words] = numbers[: len(words)]
        return words, self._place[running].reshape(read.shape)

    def _negatives(
        self, number: int, direction: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], int] | None:
        train, vocabulary = self.recipe.train, self.corpus.vocabulary_size
        # All words drawn would be the full softmax by a long way: the last are slow to be found.
        if train.softmax != "sampled" or train.negatives >= vocabulary:
            return None
        rng = np.random.default_rng([train.seed, 1, number, direction, self.rank])
        drawn, tries = draw_negatives(vocabulary, train.negatives, rng)
        return drawn, log_expected(torch.from_numpy(drawn), vocabulary, tries).numpy(), tries


def send(arrays: Sequence[npt.NDArray[np.generic]], device: torch.device) -> list[Tensor]:
    """Return arrays of ids, float32 or bool as tensors on a device, ids as int64.

    All go there in one copy, ids as int32: of many small ones, each would take its time.
    """
    kinds = [KINDS[array.dtype.kind] for array in arrays]
    ids_first = sorted(range(len(arrays)), key=lambda number: kinds[number][0] is not np.int32)
    places, size, ids = [0] * len(arrays), 0, 0  # in numbers of four bytes
    for number in ids_first:
        kind, places[number] = kinds[number][0], size
        size += -(-arrays[number].size * np.dtype(kind).itemsize // ALIGNED) * (ALIGNED // 4)
        ids = size if kind is np.int32 else ids
    pinned = device.type == "cuda"
    host = torch.empty(size, dtype=torch.int32, pin_memory=pinned)
    room = host.numpy()
    for place, array, (kind, _) in zip(places, arrays, kinds, strict=True):
        room[place:].view(kind)[: array.size].reshape(array.shape)[...] = array
    there = host.to(device, non_blocking=pinned)
    wide = there[:ids].long()
    out = []
    for place, array, (_, dtype) in zip(places, arrays, kinds, strict=True):
        source = wide[place:] if dtype is torch.int32 else there[place:].view(dtype)
        out.append(source[: array.size].view(array.shape))
    return out


def spelling_lengths(table: npt.NDArray[np.uint16], padding: int) -> Ints:
    """Return how many ids of each row are not padding, read in blocks."""
    parts = [
        (np.asarray(table[start : start + 65_536]) != padding).sum(axis=1)
        for start in range(0, len(table), 65_536)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
