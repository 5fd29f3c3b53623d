"""Who gives the vectors of places: a model, layer by layer, or a table of static word vectors.

Vectors are computed once a data set and kept as float16 in memory: 2 bytes x layers x places x D
(SemCor's senses with a model of width 1024: about 1 GB).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from torchelmo.analysis.places import Marked, cut
from torchelmo.elmo import Elmo
from torchelmo.errors import InputError
from torchelmo.tasks.pieces import means
from torchelmo.tasks.vectors import StaticVectors
from torchelmo.text.alignment import WHOLE_WORDS
from torchelmo.text.words import get_tokenizer

Array = npt.NDArray[np.float32]
Half = npt.NDArray[np.float16]
AVERAGE = "average"


@dataclass(frozen=True)
class Vectors:
    """The vectors of N places by layer."""

    names: tuple[str, ...]
    values: Half  # (L, N, D)
    averaged: bool = False  # whether the average of the layers is a layer too

    def each(self) -> Iterator[tuple[str, Array]]:
        """Yield name and vectors (N, D) of every layer, and of the average."""
        for name, layer in zip(self.names, self.values, strict=True):
            yield name, layer.astype(np.float32)
        if self.averaged:
            yield AVERAGE, self.values.mean(axis=0, dtype=np.float32)


class Embedder(Protocol):
    """Gives vectors of places."""

    @property
    def device(self) -> torch.device:
        """Where a probe with much to compute may do so."""

    def embed(self, sentences: Sequence[Marked]) -> Vectors:
        """Return the vectors of all places, in order."""


class ModelEmbedder:
    """A model's layers; each sentence from a zero state."""

    def __init__(self, elmo: Elmo, progress: Callable[[int], object] | None = None) -> None:
        """Take the model, and whom to tell how many tokens are done."""
        self.elmo, self.progress = elmo, progress
        self.keep_words = elmo.config.tokenizer.name in WHOLE_WORDS

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.elmo.device

    def embed(self, sentences: Sequence[Marked]) -> Vectors:
        """Return the vectors of all places, in order."""
        tokenizer = self.elmo.tokenizer
        pieces = [cut(s, tokenizer, keep_words=self.keep_words) for s in sentences]
        first = [0, *accumulate(len(spans) for _, spans in pieces)]
        count, width = self.elmo.config.n_layers, self.elmo.config.width
        values = np.empty((count, first[-1], width), np.float16)
        for numbers, layers in self.elmo.encoder.run([words for words, _ in pieces]):
            begin = 0
            rows: list[int] = []
            places: list[tuple[int, int]] = []
            for number, length in zip(numbers, layers.lengths, strict=True):
                rows += range(first[number], first[number + 1])
                places += [(begin + start, begin + end) for start, end in pieces[number][1]]
                begin += length
            taken = means(layers.flat, places)  # (L+1, places of the batch, D)
            values[:, rows] = taken.half().cpu().numpy()
            if self.progress is not None:
                self.progress(begin)
        if not np.isfinite(values).all():
            raise InputError("the model gives vectors that are not finite: its weights are damaged")
        return Vectors(tuple(map(str, range(count))), values, averaged=count > 1)


class StaticEmbedder:
    """A table's vectors: of the words themselves, and (`around`) the mean over their sentence.

    Words without a vector count for nothing; a place of such words alone gets zeros.
    """

    def __init__(
        self, table: StaticVectors, *, around: bool = True, device: torch.device | None = None
    ) -> None:
        """Take the table."""
        self.table, self.around = table, around
        self._device = device or torch.device("cpu")

    @property
    def device(self) -> torch.device:
        """Where a probe may compute."""
        return self._device

    def embed(self, sentences: Sequence[Marked]) -> Vectors:
        """Return the vectors of all places, in order."""
        tokenizer, table = get_tokenizer("words"), self.table
        count = sum(len(sentence.places) for sentence in sentences)
        names = ("word", "sentence") if self.around else ("word",)
        values, row = np.zeros((len(names), count, table.matrix.shape[1]), np.float16), 0
        for sentence in sentences:
            words, spans = cut(sentence, tokenizer, keep_words=True)
            numbers = [table.find(word) for word in words]
            if self.around:
                values[1, row : row + len(spans)] = self._mean(numbers)
            for start, end in spans:
                values[0, row] = self._mean(numbers[start:end])
                row += 1
        return Vectors(names, values)

    def _mean(self, numbers: Sequence[int | None]) -> Array:
        known = [number for number in numbers if number is not None]
        if not known:
            return np.zeros(self.table.matrix.shape[1], np.float32)
        return np.asarray(self.table.matrix[known].mean(axis=0), np.float32)
