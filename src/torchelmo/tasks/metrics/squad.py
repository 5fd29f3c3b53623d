"""Exact match and F1 of SQuAD v1.1, as its official script computes them.

Both compare normalised text: small letters, without ASCII punctuation, without the articles a, an,
the, single spaces. Each answer counts against the best of the people's answers; a question without
a prediction counts as 0.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


class SquadScores(NamedTuple):
    """Means over the questions, in percent."""

    em: float
    f1: float


def squad_scores(
    answers: Mapping[str, Sequence[str]], predictions: Mapping[str, str]
) -> SquadScores:
    """Return the means over all questions of `answers`, by their ids."""
    if not answers:
        return SquadScores(0.0, 0.0)
    em = f1 = 0.0
    for key, texts in answers.items():
        if key in predictions:
            em += exact_match(predictions[key], texts)
            f1 += best_f1(predictions[key], texts)
    return SquadScores(100 * em / len(answers), 100 * f1 / len(answers))


def normalise(text: str) -> str:
    """Return the text as it is compared: "The  U.S." -> "us"."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> bool:
    """Say whether the prediction is one of the answers."""
    return normalise(prediction) in {normalise(answer) for answer in answers}


def best_f1(prediction: str, answers: Sequence[str]) -> float:
    """Return the best overlap in words with one of the answers, 0 to 1."""
    return max((_f1(prediction, answer) for answer in answers), default=0.0)


def _f1(prediction: str, answer: str) -> float:
    ours, theirs = normalise(prediction).split(), normalise(answer).split()
    shared = (Counter(ours) & Counter(theirs)).total()
    # Two empty texts share nothing: 0, as in the script.
    return 2 * shared / (len(ours) + len(theirs)) if shared else 0.0
