"""Homographs: sentences that use a word in one of several senses, each told by the others.

Leave one out: a sentence's word is compared with the centroids of its senses, its own taken
without itself (`centroid`), and with every other sentence of that word (`neighbour`). Beside it
stands each word's commonest sense, counted with all sentences, which flatters the baseline.
Reads a header, then word, sense, split and sentence between tabs, the word in [brackets].
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from torchelmo.analysis import files
from torchelmo.analysis.embedders import Embedder
from torchelmo.analysis.files import Text
from torchelmo.analysis.nearest import DIGITS, cosines, unit
from torchelmo.analysis.places import Marked
from torchelmo.analysis.results import Values, percent
from torchelmo.analysis.wic import PARTS, marked
from torchelmo.errors import InputError

Array = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]


class Example(NamedTuple):
    """A sentence, its place the word, and the word's sense there."""

    word: str
    sense: str
    sentence: Marked


class Homographs:
    """The probe: sentences by word."""

    metric = "accuracy, %, leave one out, by cosine: nearest sense centroid, nearest sentence"

    def __init__(self, examples: Sequence[Example]) -> None:
        """Take the sentences."""
        if not examples:
            raise InputError("there are no sentences with homographs")
        self.examples = examples
        self.rows: dict[str, list[int]] = defaultdict(list)
        for row, example in enumerate(examples):
            self.rows[example.word].append(row)
        # Each word's senses as numbers, 0 the commonest.
        self.senses: dict[str, Numbers] = {}
        for word, rows in self.rows.items():
            ranked = Counter(examples[row].sense for row in rows).most_common()
            number = {sense: n for n, (sense, _) in enumerate(ranked)}
            self.senses[word] = np.array([number[examples[row].sense] for row in rows])

    @classmethod
    def read(cls, path: Path, *, dev: bool = False) -> Homographs:
        """Read the probe's .tsv; with `dev`, without the sentences of the test split."""
        found = files.read(path, ["*.tsv"])
        files.need(found, path, ["*.tsv"], "one file of word, sense, split and sentence")
        return cls([one for one, split in read(found["*.tsv"]) if not (dev and split == "test")])

    def describe(self) -> str:
        """Say what the data is."""
        return f"homographs: {len(self.rows):,} words, {len(self.examples):,} sentences"

    def baselines(self) -> Values:
        """Return what each word's commonest sense gives."""
        share = sum(int((s == 0).sum()) for s in self.senses.values()) / len(self.examples)
        return {"majority": {"centroid": percent(share), "neighbour": percent(share)}}

    def measure(self, embedder: Embedder) -> Values:
        """Return accuracies by layer."""
        vectors = embedder.embed([example.sentence for example in self.examples])
        out = {}
        for name, layer in vectors.each():
            centroid = neighbour = 0
            for word, rows in self.rows.items():
                mine, senses = layer[rows], self.senses[word]
                centroid += int((by_centroid(mine, senses) == senses).sum())
                neighbour += int((by_neighbour(mine, senses) == senses).sum())
            shares = (count / len(self.examples) for count in (centroid, neighbour))
            out[name] = dict(zip(("centroid", "neighbour"), map(percent, shares), strict=True))
        return out


def read(text: Text) -> list[tuple[Example, str]]:
    """Return the examples with their splits."""
    out = []
    for line, (word, sense, split, sentence) in text.columns(4):
        if line == 1:
            continue
        if split not in PARTS:
            raise text.wrong(line, f"the split {split!r}, expected one of {', '.join(PARTS)}")
        out.append((Example(word, sense, marked(text, line, sentence, word)), split))
    return out


def by_centroid(vectors: Array, senses: Numbers) -> Numbers:
    """Return the sense of the nearest centroid for each row (n, D), the row itself left out.

    A sense that has only that row has no centroid then.
    """
    count = int(senses.max()) + 1
    members = np.eye(count, dtype=np.float32)[senses]  # (n, senses)
    sums = members.T @ vectors
    scores = cosines(vectors, sums)
    own = sums[senses] - vectors
    alone = members.sum(axis=0)[senses] == 1
    products = (unit(vectors) * unit(own)).sum(axis=1)
    scores[np.arange(len(senses)), senses] = np.where(alone, -2, np.round(products, DIGITS))
    return np.asarray(scores.argmax(axis=1))


def by_neighbour(vectors: Array, senses: Numbers) -> Numbers:
    """Return the sense of the nearest other row; of equally near ones, the commonest sense."""
    order = np.argsort(senses, kind="stable")
    scores = cosines(vectors, vectors[order])
    scores[order, np.arange(len(order))] = -2  # itself
    return np.asarray(senses[order][scores.argmax(axis=1)])
