"""Word in context: do two sentences use a word in the same sense? A threshold on the cosine.

The threshold is tuned on train + dev and used on test. Each layer, their average, and the mix of
layers (weights on a grid) that does best on train + dev. Reads WiC (English, words and their
numbers) and KoBEST WiC (raw sentences with the target in [brackets]).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from torchelmo.analysis import files
from torchelmo.analysis.embedders import AVERAGE, Embedder, Vectors
from torchelmo.analysis.files import Text
from torchelmo.analysis.places import Marked, in_words
from torchelmo.analysis.results import Values, percent

Array = npt.NDArray[np.float32]
PARTS = ("train", "dev", "test")
LABELS = {"T": True, "F": False, "TRUE": True, "FALSE": False}
KOBEST_COLUMNS = 9
BRACKETS = re.compile(r"\[([^\[\]]+)\]")
MOST_MIXES = 500


class Pair(NamedTuple):
    """Two sentences that hold a word, and whether its sense is the same."""

    first: Marked
    second: Marked
    same: bool


class Wic:
    """The probe: pairs to tune a threshold on, and pairs to count."""

    metric = "accuracy, %, with a threshold on the cosine tuned on the other parts"

    def __init__(self, name: str, tune: Sequence[Pair], count: Sequence[Pair], part: str) -> None:
        """Take the pairs, and what the part that is counted is called."""
        self.name, self.tune, self.count, self.part = name, tune, count, part

    @classmethod
    def read(cls, path: Path, *, dev: bool = False) -> Wic:
        """Read WiC or KoBEST WiC; with `dev`, tune on train and count dev, and leave test alone."""
        parts = PARTS[:2] if dev else PARTS
        english = [f"{part}.{kind}.txt" for part in parts for kind in ("data", "gold")]
        korean = [f"{part}.tsv" for part in parts]
        found = files.read(path, [*english, *korean])
        if korean[0] in found:
            files.need(found, path, korean, "KoBEST WiC's train.tsv, dev.tsv and test.tsv")
            pairs = [list(read_kobest(found[name])) for name in korean]
        else:
            files.need(found, path, english, "WiC's *.data.txt and *.gold.txt, or KoBEST's *.tsv")
            both = zip(english[::2], english[1::2], strict=True)
            pairs = [list(read_wic(found[data], found[gold])) for data, gold in both]
        name = "KoBEST WiC" if korean[0] in found else "WiC"
        return cls(name, [p for part in pairs[:-1] for p in part], pairs[-1], parts[-1])

    def describe(self) -> str:
        """Say what the data is."""
        tuned = "train" if self.part == "dev" else "train + dev"
        return (
            f"{self.name}: {len(self.tune):,} pairs of {tuned}, {len(self.count):,} of {self.part}"
        )

    def baselines(self) -> Values:
        """Return what the commoner answer gives."""
        answer = 2 * sum(pair.same for pair in self.tune) >= len(self.tune)
        right = np.mean([pair.same == answer for pair in self.count])
        return {"majority": {self.part: percent(right)}}

    def measure(self, embedder: Embedder) -> Values:
        """Return accuracies by layer; the part that is counted is used once for each."""
        sides = [side for pair in (*self.tune, *self.count) for side in (pair.first, pair.second)]
        vectors = embedder.embed(sides)
        products, cut = _products(vectors), len(self.tune)
        labels = np.array([pair.same for pair in (*self.tune, *self.count)])

        def judge(weights: Array) -> Values:
            scores = mixed_cosines(products, weights)
            threshold, tuned = best_threshold(scores[:cut], labels[:cut])
            right = np.mean((scores[cut:] > threshold) == labels[cut:])
            return {"tune": percent(tuned), self.part: percent(right), "threshold": threshold}

        size = len(vectors.names)
        out = {
            name: judge(np.eye(size, dtype=np.float32)[n]) for n, name in enumerate(vectors.names)
        }
        if vectors.averaged:
            out[AVERAGE] = judge(np.full(size, 1 / size, np.float32))

            def tuned(weights: Array) -> float:
                return best_threshold(mixed_cosines(products[:cut], weights), labels[:cut])[1]

            best = max(simplex(size), key=tuned)  # the first of equals
            out["mix"] = {**judge(best), "weights": [round(float(w), 4) for w in best]}
        return out


def read_wic(data: Text, gold: Text) -> Iterator[Pair]:
    """Read WiC: target, part of speech, i-j, sentence, sentence; T or F in the other file."""
    answers = list(gold.lines())
    rows = list(data.columns(5))
    if len(rows) != len(answers):
        raise gold.wrong(len(answers), f"the last answer, but {data.name} has {len(rows)} pairs")
    for (line, (_, _, numbers, *sentences)), (_, answer) in zip(rows, answers, strict=True):
        sides = []
        try:
            places = [int(number) for number in numbers.split("-")]
        except ValueError:
            places = []
        if len(places) != 2:
            raise data.wrong(line, f"{numbers!r}, expected two words' numbers such as 2-1")
        for place, sentence in zip(places, sentences, strict=True):
            words = sentence.split()
            if not 0 <= place < len(words):
                raise data.wrong(line, f"word {place} of a sentence of {len(words)} words")
            sides.append(in_words(words, [(place, place + 1)]))
        yield Pair(sides[0], sides[1], _label(gold, line, answer))


def read_kobest(text: Text) -> Iterator[Pair]:
    """Read KoBEST WiC: a header, then nine columns; the target in brackets, True or TRUE."""
    for line, cells in text.columns(KOBEST_COLUMNS):
        if line > 1:
            first, second = (marked(text, line, cells[n], cells[1]) for n in (2, 5))
            yield Pair(first, second, _label(text, line, cells[8]))


def marked(text: Text, line: int, sentence: str, target: str) -> Marked:
    """Take the brackets off a sentence; the first bracketed word is the place.

    A sentence without brackets (there is one) has its target where that word first stands.
    """
    spans = list(BRACKETS.finditer(sentence))
    raw = sentence.replace("[", "").replace("]", "")
    if spans:
        before = sentence[: spans[0].start()]
        start, word = len(before) - before.count("[") - before.count("]"), spans[0][1]
    else:
        start, word = raw.find(target), target
    if start < 0 or not word.strip():
        raise text.wrong(line, f"{target!r} is not in the sentence, in brackets or without")
    return Marked(raw, ((start, start + len(word)),))


def _label(text: Text, line: int, answer: str) -> bool:
    label = LABELS.get(answer.strip().upper())
    if label is None:
        raise text.wrong(line, f"the answer {answer!r}, expected one of T, F, True, False")
    return label


def _products(vectors: Vectors) -> Array:
    """Return inner products of the layers of each pair's sides: (pairs, 3, L, L).

    With them the cosine of any mix costs no vectors: first with second, first and second with
    themselves.
    """
    values = vectors.values.astype(np.float32)  # (L, 2 x pairs, D)
    first, second = values[:, ::2], values[:, 1::2]
    kinds = [(first, second), (first, first), (second, second)]
    return np.stack([np.einsum("and,bnd->nab", a, b, optimize=True) for a, b in kinds], axis=1)


def mixed_cosines(products: Array, weights: Array) -> Array:
    """Return the cosine of each pair for a mix of the layers."""
    across, first, second = np.einsum("a,nkab,b->kn", weights, products, weights, optimize=True)
    return np.asarray(across / np.sqrt(np.maximum(first * second, 1e-24)), np.float32)


def best_threshold(scores: Array, labels: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Return the threshold above which pairs count as the same, and its accuracy.

    It lies halfway between two scores; of equally good ones it is the lowest.

    >>> best_threshold(np.array([0.1, 0.9, 0.5]), np.array([False, True, True]))
    (0.3, 1.0)
    """
    order = np.argsort(scores, kind="stable")
    ranked, right = scores[order].astype(np.float64), labels[order]
    # Below the threshold lie the first k pairs, for k from 0 to n: right if different.
    below = np.concatenate([[0], np.cumsum(~right)])
    above = right.sum() - np.concatenate([[0], np.cumsum(right)])
    total = (below + above).astype(np.float64)
    total[1:-1][ranked[1:] == ranked[:-1]] = -1  # equals cannot be parted
    k = int(np.argmax(total))
    edges = np.concatenate([[ranked[0] - 1], ranked, [ranked[-1] + 1]])
    return round(float(edges[k] + edges[k + 1]) / 2, 7), float(total[k] / len(scores))


def simplex(size: int) -> list[Array]:
    """Return weights of `size` layers that sum to 1, on a grid of tenths, or coarser.

    >>> len(simplex(3))
    66
    """
    for steps in (10, 8, 5, 4, 3, 2, 1):
        grid = list(_shares(size, steps))
        if len(grid) <= MOST_MIXES:
            break
    return [np.divide(shares, steps, dtype=np.float32) for shares in grid]


def _shares(size: int, steps: int) -> Iterator[tuple[int, ...]]:
    if size == 1:
        yield (steps,)
        return
    for own in range(steps + 1):
        for rest in _shares(size - 1, steps - own):
            yield (own, *rest)
