import pytest

from torchelmo.errors import InputError
from torchelmo.tasks.metrics.accuracy import accuracy, matthews, word_accuracy


def test_shares_by_hand():
    assert accuracy(["a", "b", "c", "a"], ["a", "b", "a", "b"]) == 50
    assert accuracy([], []) == 0
    assert word_accuracy([["D", "N"], ["V"], []], [["D", "V"], ["V"], []]) == pytest.approx(200 / 3)


def test_matthews_of_two_classes_is_the_four_cell_formula():
    # 4 true positives, 2 false positives, 1 false negative, 3 true negatives.
    gold = [1] * 4 + [0] * 2 + [1] + [0] * 3
    told = [1] * 4 + [1] * 2 + [0] + [0] * 3
    expected = (4 * 3 - 2 * 1) / ((4 + 2) * (4 + 1) * (3 + 2) * (3 + 1)) ** 0.5
    assert matthews(gold, told) == pytest.approx(100 * expected)


def test_matthews_at_its_ends():
    assert matthews([0, 1, 1], [0, 1, 1]) == pytest.approx(100)
    assert matthews([0, 1, 0, 1], [1, 0, 1, 0]) == pytest.approx(-100)
    assert matthews([0, 1], [1, 1]) == 0  # undefined: one class only was predicted


def test_lengths_must_agree():
    with pytest.raises(InputError, match="2 gold but 1 predicted answers"):
        accuracy([1, 2], [1])
    with pytest.raises(InputError, match="more or fewer"):
        word_accuracy([["D"]], [["D", "N"]])
