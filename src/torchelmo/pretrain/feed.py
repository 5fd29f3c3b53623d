"""Batches made ahead of the training step, in a thread of their own.

For each step: the pairs of both directions, their distinct words ordered by spelling length (so
that the character CNN runs once per word, over few more positions than it has), and the negatives
of the sampled softmax. What is drawn at random is drawn from the seed and the step's number alone,
so a run that goes on draws the same.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
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

AHEAD = 4  # batches waiting
ON_DEVICE = 2 << 30  # bytes of character table that are kept on the device

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
        self._streams = {
            name: Stream(
                self.corpus.train,
                train.batch,
                train.unroll,
                self.corpus.vocabulary_size,
                reverse=name == "backward",
                shuffle=data.shuffle,
                seed=2 * train.seed + (number if data.independent else 0),
                reset_share=data.reset_share,
                rows=range(self.rank * share, (self.rank + 1) * share),
            )
            for number, name in enumerate(self.directions)
        }
        table = self.corpus.characters
        self._lengths = spelling_lengths(table, self.corpus.config.symbols + 5)
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
        words, index = np.unique(read, return_inverse=True)
        order = np.argsort(self._lengths[words], kind="stable")
        words = words[order]
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        index = place[index].reshape(read.shape)
        sides: dict[Direction, Side] = {}
        for position, (name, batch) in enumerate(pairs.items()):
            resets = self._send(batch.resets.T.copy()) if self.recipe.data.reset_share else None
            targets = self._send(batch.targets.T.astype(np.int64))
            negatives = self._negatives(number, position)
            sides[name] = Side(self._send(index[position]), targets, resets, negatives)
        vocabulary = self.corpus.vocabulary_size
        if self.recipe.model.words:
            known = np.where(words < vocabulary, words, UNKNOWN_ID)
            none = np.zeros(0, dtype=np.int64)
            return Step(None, none, self._send(known.astype(np.int64)), sides)
        return Step(self._spell(words), self._lengths[words], None, sides)

    def _spell(self, words: npt.NDArray[np.int32]) -> Tensor:
        if self._table is not None:
            rows = self._table[self._send(words.astype(np.int64))]
            return rows.long() & 0xFFFF  # stored as int16 for want of indexing by uint16
        return self._send(self.corpus.characters[words].astype(np.int64))

    def _negatives(self, number: int, direction: int) -> Negatives | None:
        train, vocabulary = self.recipe.train, self.corpus.vocabulary_size
        # All words drawn would be the full softmax by a long way: the last are slow to be found.
        if train.softmax != "sampled" or train.negatives >= vocabulary:
            return None
        rng = np.random.default_rng([train.seed, 1, number, direction, self.rank])
        drawn, tries = draw_negatives(vocabulary, train.negatives, rng)
        ids = torch.from_numpy(drawn)
        expected = log_expected(ids, vocabulary, tries)
        return Negatives(self._send(ids), self._send(expected), tries)

    def _send(self, array: npt.NDArray[np.generic] | Tensor) -> Tensor:
        tensor = (
            array if isinstance(array, Tensor) else torch.from_numpy(np.ascontiguousarray(array))
        )
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device)


def spelling_lengths(table: npt.NDArray[np.uint16], padding: int) -> Ints:
    """Return how many ids of each row are not padding, read in blocks."""
    parts = [
        (np.asarray(table[start : start + 65_536]) != padding).sum(axis=1)
        for start in range(0, len(table), 65_536)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
