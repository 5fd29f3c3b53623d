"""Precision, recall and F1 of semantic roles, as CoNLL-2005's srl-eval counts arguments.

An argument is a label and one or more pieces. A piece C-X continues the argument X that began last;
without one it is an argument X itself. The argument is right if label and all pieces are. R-X is a
label like any other. The verb (V, with its continuations) is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchelmo.errors import InputError
from torchelmo.tasks.decoding import to_spans
from torchelmo.tasks.metrics.spans import SpanScores, tally

Pieces = tuple[tuple[int, int], ...]


def srl_scores(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> SpanScores:
    """Compare BIO tags, one sequence a predicate; the accuracy is the share of perfect frames."""
    theirs, ours = list(gold), list(predicted)
    if [len(tags) for tags in theirs] != [len(tags) for tags in ours]:
        raise InputError(
            f"{len(theirs)} gold and {len(ours)} predicted frames do not have the same lengths"
        )
    pairs = [(arguments(one), arguments(two)) for one, two in zip(theirs, ours, strict=True)]
    perfect = sum(set(one) == set(two) for one, two in pairs)
    return tally(pairs, 100 * perfect / len(pairs) if pairs else 0.0)


def arguments(tags: Sequence[str]) -> list[tuple[str, Pieces]]:
    """Return a frame's arguments without the verb.

    >>> arguments(["B-ARG1", "B-V", "B-C-ARG1", "I-C-ARG1"])
    [('ARG1', ((0, 1), (2, 4)))]
    """
    found: list[tuple[str, list[tuple[int, int]]]] = []
    latest: dict[str, list[tuple[int, int]]] = {}
    for label, start, end in to_spans(tags):
        name = label.removeprefix("C-")
        if name != label and name in latest:
            latest[name].append((start, end))
        else:
            latest[name] = [(start, end)]
            found.append((name, latest[name]))
    return [(label, tuple(pieces)) for label, pieces in found if label != "V"]
