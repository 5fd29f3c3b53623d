"""Coreference: MUC, B-cubed, CEAF with phi 4, and their mean, as the CoNLL reference scorer.

Definitions by Pradhan et al. (2014), for predicted mentions: nothing is added to either side or
taken away. A mention that stands in several clusters counts in the first. Sums run over all
documents before anything is divided. Singletons count where they are given; OntoNotes has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from torchelmo.errors import InputError
from torchelmo.tasks.metrics.assignment import assign

Cluster = Iterable[Hashable]
_Clusters = list[list[Hashable]]


@dataclass(frozen=True, slots=True)
class Ratios:
    """What was found, of the gold and of the predicted: recall and precision before division."""

    found: float
    gold: float
    kept: float
    predicted: float

    @property
    def recall(self) -> float:
        """In percent; 0 if there is nothing to find."""
        return 100 * self.found / self.gold if self.gold else 0.0

    @property
    def precision(self) -> float:
        """In percent; 0 if nothing was predicted."""
        return 100 * self.kept / self.predicted if self.predicted else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of the two."""
        total = self.recall + self.precision
        return 2 * self.recall * self.precision / total if total else 0.0

    def __add__(self, other: Ratios) -> Ratios:
        return Ratios(
            self.found + other.found,
            self.gold + other.gold,
            self.kept + other.kept,
            self.predicted + other.predicted,
        )


_NONE = Ratios(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class CorefScores:
    """The three measures, and mention detection beside them."""

    muc: Ratios
    b3: Ratios
    ceafe: Ratios
    mentions: Ratios

    @property
    def mean(self) -> float:
        """The mean of the three F1, the figure that papers report."""
        return (self.muc.f1 + self.b3.f1 + self.ceafe.f1) / 3


def coref_scores(
    gold: Sequence[Iterable[Cluster]], predicted: Sequence[Iterable[Cluster]]
) -> CorefScores:
    """Compare the clusters of each document; a mention is anything hashable, as (start, end)."""
    if len(gold) != len(predicted):
        raise InputError(f"{len(gold)} gold but {len(predicted)} predicted documents")
    totals = CorefScores(_NONE, _NONE, _NONE, _NONE)
    for theirs, ours in zip(gold, predicted, strict=True):
        key, response = _clean(theirs), _clean(ours)
        totals = CorefScores(
            totals.muc + muc(key, response),
            totals.b3 + b_cubed(key, response),
            totals.ceafe + ceafe(key, response),
            totals.mentions + _mentions(key, response),
        )
    return totals


def muc(key: Sequence[Sequence[Hashable]], response: Sequence[Sequence[Hashable]]) -> Ratios:
    """Count links: a cluster of n mentions has n - 1, less one for each further part it falls in.

    Vilain et al. (1995).
    """
    found, gold = _links(key, response)
    kept, predicted = _links(response, key)
    return Ratios(found, gold, kept, predicted)


def b_cubed(key: Sequence[Sequence[Hashable]], response: Sequence[Sequence[Hashable]]) -> Ratios:
    """Sum over mentions the share of its cluster that shares its cluster on the other side.

    Bagga & Baldwin (1998).
    """
    found, gold = _shares(key, response)
    kept, predicted = _shares(response, key)
    return Ratios(found, gold, kept, predicted)


def ceafe(key: Sequence[Sequence[Hashable]], response: Sequence[Sequence[Hashable]]) -> Ratios:
    """Assign clusters one to one so that the sum of 2 |K and R| / (|K| + |R|) is greatest.

    Luo (2005), phi 4.
    """
    place = _places(response)
    similar = np.zeros((len(key), len(response)))
    for k, cluster in enumerate(key):
        for r, shared in Counter(place[m] for m in cluster if m in place).items():
            similar[k, r] = 2 * shared / (len(cluster) + len(response[r]))
    best = assign(similar)
    return Ratios(best, len(key), best, len(response))


def _clean(clusters: Iterable[Cluster]) -> _Clusters:
    """Return the clusters with each mention once; one left empty is dropped."""
    seen: set[Hashable] = set()
    cleaned = []
    for cluster in clusters:
        fresh = list(dict.fromkeys(mention for mention in cluster if mention not in seen))
        seen.update(fresh)
        if fresh:
            cleaned.append(fresh)
    return cleaned


def _places(clusters: Sequence[Sequence[Hashable]]) -> dict[Hashable, int]:
    return {mention: n for n, cluster in enumerate(clusters) for mention in cluster}


def _links(
    clusters: Sequence[Sequence[Hashable]], others: Sequence[Sequence[Hashable]]
) -> tuple[int, int]:
    place = _places(others)
    found = total = 0
    for cluster in clusters:
        inside = [place[mention] for mention in cluster if mention in place]
        parts = len(set(inside)) + len(cluster) - len(inside)  # a missing mention is its own part
        found += len(cluster) - parts
        total += len(cluster) - 1
    return found, total


def _shares(
    clusters: Sequence[Sequence[Hashable]], others: Sequence[Sequence[Hashable]]
) -> tuple[float, int]:
    place = _places(others)
    found, total = 0.0, 0
    for cluster in clusters:
        shared = Counter(place[mention] for mention in cluster if mention in place)
        found += sum(n * n for n in shared.values()) / len(cluster)
        total += len(cluster)
    return found, total


def _mentions(key: _Clusters, response: _Clusters) -> Ratios:
    theirs, ours = _places(key).keys(), _places(response).keys()
    both = len(theirs & ours)
    return Ratios(both, len(theirs), both, len(ours))
