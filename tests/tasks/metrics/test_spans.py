"""Spans counted by hand, and as conlleval printed for the same tags."""

import pytest

from torchelmo.errors import InputError
from torchelmo.tasks.metrics.spans import Counts, span_scores


def rows(text):
    return [line.split() for line in text.strip().splitlines()]


# conlleval prints for these: 9 phrases, found 11, correct 5, accuracy 68.42, precision 45.45,
# recall 55.56, FB1 50.00; LOC 44.44 of 5 found, ORG 57.14 of 4, PER 50.00 of 2.
GOLD = rows("""
    I-ORG O I-PER I-PER B-PER O
    I-LOC I-LOC O I-ORG I-LOC
    O O I-LOC
    I-ORG I-ORG O O I-LOC
""")
PREDICTED = rows("""
    I-ORG O I-PER I-PER I-LOC O
    I-LOC B-LOC O I-ORG I-LOC
    O I-PER I-LOC
    I-ORG O I-ORG O O
""")


def test_counts_are_those_of_the_script():
    scores = span_scores(GOLD, PREDICTED)
    assert scores.overall == Counts(right=5, predicted=11, gold=9)
    assert scores.labels == {
        "LOC": Counts(2, 5, 4),
        "ORG": Counts(2, 4, 3),
        "PER": Counts(1, 2, 2),
    }
    overall = scores.overall
    figures = (scores.accuracy, overall.precision, overall.recall, overall.f1)
    assert [round(figure, 2) for figure in figures] == [68.42, 45.45, 55.56, 50.0]
    assert [round(scores.labels[k].f1, 2) for k in ("LOC", "ORG", "PER")] == [44.44, 57.14, 50.0]


def test_figures_by_hand():
    counts = Counts(right=3, predicted=4, gold=6)
    assert (counts.precision, counts.recall, counts.f1) == (75, 50, pytest.approx(60))
    assert (Counts().precision, Counts().recall, Counts().f1) == (0, 0, 0)


def test_schemes_may_differ():
    scores = span_scores([["I-X", "B-X", "O"]], [["U-X", "U-X", "O"]])
    assert scores.overall == Counts(2, 2, 2)
    assert scores.accuracy == pytest.approx(100 / 3)


def test_a_span_must_have_both_ends_and_the_label():
    gold = [["B-X", "I-X", "O", "B-Y"]]
    assert span_scores(gold, [["B-X", "O", "O", "B-X"]]).overall == Counts(0, 2, 2)


def test_lengths_that_differ_are_refused():
    with pytest.raises(InputError, match="1 gold and 1 predicted sentences"):
        span_scores([["O"]], [["O", "O"]])
    with pytest.raises(InputError, match="1 gold and 0 predicted sentences"):
        span_scores([["O"]], [])
