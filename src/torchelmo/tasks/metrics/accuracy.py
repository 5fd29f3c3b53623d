"""Shares of right answers, and CoLA's correlation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from torchelmo.errors import InputError

T = TypeVar("T")


def accuracy(gold: Iterable[Hashable], predicted: Iterable[Hashable]) -> float:
    """Return how many of 100 are right: (["a", "b"], ["a", "a"]) -> 50.0; 0 if there are none."""
    pairs = _pairs(gold, predicted)
    return 100 * sum(one == two for one, two in pairs) / len(pairs) if pairs else 0.0


def word_accuracy(
    gold: Iterable[Sequence[Hashable]], predicted: Iterable[Sequence[Hashable]]
) -> float:
    """Return how many words of 100 have the right tag, over all sentences."""
    sentences = _pairs(gold, predicted)
    if any(len(one) != len(two) for one, two in sentences):
        raise InputError("a sentence has more or fewer predicted than gold tags")
    return accuracy(
        [tag for one, _ in sentences for tag in one], [tag for _, two in sentences for tag in two]
    )


def matthews(gold: Iterable[Hashable], predicted: Iterable[Hashable]) -> float:
    """Return Matthews' correlation times 100, for any number of classes; 0 where undefined.

    With s answers, c of them right, class k true t(k) and predicted p(k) times:
    (c s - sum t p) / sqrt((s^2 - sum p^2) (s^2 - sum t^2)).
    """
    pairs = _pairs(gold, predicted)
    count, right = len(pairs), sum(one == two for one, two in pairs)
    true = Counter(one for one, _ in pairs)
    told = Counter(two for _, two in pairs)
    chance = sum(n * told[k] for k, n in true.items())
    spread = (count**2 - sum(n**2 for n in told.values())) * (
        count**2 - sum(n**2 for n in true.values())
    )
    return 100 * (right * count - chance) / math.sqrt(spread) if spread else 0.0


def _pairs(gold: Iterable[T], predicted: Iterable[T]) -> list[tuple[T, T]]:
    theirs, ours = list(gold), list(predicted)
    if len(theirs) != len(ours):
        raise InputError(f"{len(theirs)} gold but {len(ours)} predicted answers")
    return list(zip(theirs, ours, strict=True))
