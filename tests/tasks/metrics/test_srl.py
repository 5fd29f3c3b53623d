"""Arguments by hand, and as srl-eval printed for the same frames."""

import pytest

from torchelmo.errors import InputError
from torchelmo.tasks.metrics.spans import Counts
from torchelmo.tasks.metrics.srl import arguments, srl_scores


def rows(text):
    return [line.split() for line in text.strip().splitlines()]


GOLD = rows("""
    B-A1 I-A1 B-V B-C-A1 O B-AM-TMP
    B-A0 B-R-A0 B-V B-A1 I-A1 B-C-V
    O B-V B-A1 B-C-A1 O B-C-A1
    B-A0 O B-V O B-A2 O
    B-A0 B-V B-A1 I-A1 O O
""")
PREDICTED = rows("""
    B-A1 I-A1 B-V O O B-AM-TMP
    B-A0 B-A0 B-V B-A1 I-A1 O
    O B-V B-A1 B-C-A1 O B-C-A1
    B-C-A0 O B-V B-A2 O B-C-A2
    B-A0 B-V B-A1 I-A1 O O
""")
# srl-eval prints for these: 7 correct, 3 in excess, 3 missed, 70.00 70.00 70.00, 40 % perfect.


def test_counts_are_those_of_the_script():
    scores = srl_scores(GOLD, PREDICTED)
    assert scores.overall == Counts(7, 10, 10)
    assert scores.labels == {
        "A0": Counts(3, 4, 3),
        "A1": Counts(3, 4, 4),
        "A2": Counts(0, 1, 1),
        "AM-TMP": Counts(1, 1, 1),
        "R-A0": Counts(0, 0, 1),
    }
    assert scores.accuracy == 40


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("B-A1 B-V B-C-A1 I-C-A1", [("A1", ((0, 1), (2, 4)))]),
        # A continuation of nothing is an argument; what follows it continues it.
        ("B-C-A1 O B-C-A1", [("A1", ((0, 1), (2, 3)))]),
        # Of two, the latest is continued.
        ("B-A1 O B-A1 O B-C-A1", [("A1", ((0, 1),)), ("A1", ((2, 3), (4, 5)))]),
        ("B-V O B-C-V", []),
        ("B-R-A1 B-V B-C-R-A1", [("R-A1", ((0, 1), (2, 3)))]),
        ("O O", []),
    ],
)
def test_pieces_are_joined(tags, expected):
    assert arguments(tags.split()) == expected


def test_half_an_argument_is_wrong_on_both_sides():
    scores = srl_scores([["B-A1", "B-V", "B-C-A1"]], [["B-A1", "B-V", "O"]])
    assert scores.overall == Counts(0, 1, 1)


def test_lengths_must_agree():
    with pytest.raises(InputError, match="1 gold and 2 predicted frames"):
        srl_scores([["O"]], [["O"], ["O"]])
