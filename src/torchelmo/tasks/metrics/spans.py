"""Precision, recall and F1 over spans, as CoNLL's conlleval counts them.

A predicted span is right if a gold span has the same words and the same label. Counts are summed
over all sentences before anything is divided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from torchelmo.errors import InputError
from torchelmo.tasks.decoding import to_spans


@dataclass(frozen=True, slots=True)
class Counts:
    """How many spans were predicted right, predicted, and gold.

    >>> Counts(1, 2, 4).f1
    33.333333333333336
    """

    right: int = 0
    predicted: int = 0
    gold: int = 0

    @property
    def precision(self) -> float:
        """Right of the predicted, in percent; 0 if nothing was predicted."""
        return 100 * self.right / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Right of the gold, in percent; 0 if there is nothing to find."""
        return 100 * self.right / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of the two."""
        total = self.predicted + self.gold
        return 200 * self.right / total if total else 0.0


@dataclass(frozen=True, slots=True)
class SpanScores:
    """Counts of all spans and of each label, and the share of words with the right tag."""

    overall: Counts
    labels: dict[str, Counts]
    accuracy: float


def span_scores(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> SpanScores:
    """Compare sentences' tags; the two sides may be written in different schemes.

    The accuracy compares tags as they are written.
    """
    pairs, right, words = [], 0, 0
    for theirs, ours in _matched(gold, predicted):
        pairs.append((to_spans(theirs), to_spans(ours)))
        right += sum(one == two for one, two in zip(theirs, ours, strict=True))
        words += len(theirs)
    labelled = (
        ([(s.label, s) for s in theirs], [(s.label, s) for s in ours]) for theirs, ours in pairs
    )
    return tally(labelled, 100 * right / words if words else 0.0)


def tally(
    pairs: Iterable[tuple[Sequence[tuple[str, Hashable]], Sequence[tuple[str, Hashable]]]],
    accuracy: float,
) -> SpanScores:
    """Count the (label, thing) of each gold list that are in the predicted list beside it."""
    right: Counter[str] = Counter()
    guessed: Counter[str] = Counter()
    wanted: Counter[str] = Counter()
    for gold, predicted in pairs:
        wanted.update(label for label, _ in gold)
        guessed.update(label for label, _ in predicted)
        right.update(label for label, _ in set(gold) & set(predicted))
    labels = {
        label: Counts(right[label], guessed[label], wanted[label])
        for label in sorted(wanted.keys() | guessed.keys())
    }
    overall = Counts(right.total(), guessed.total(), wanted.total())
    return SpanScores(overall, labels, accuracy)


def _matched(
    gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]
) -> list[tuple[Sequence[str], Sequence[str]]]:
    theirs, ours = list(gold), list(predicted)
    if [len(tags) for tags in theirs] != [len(tags) for tags in ours]:
        raise InputError(
            f"{len(theirs)} gold and {len(ours)} predicted sentences do not have the same lengths"
        )
    return list(zip(theirs, ours, strict=True))
