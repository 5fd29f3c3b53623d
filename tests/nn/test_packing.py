"""Packed rows: what is read at each step, and where each output comes from."""

import numpy as np
import pytest

from torchelmo.nn.packing import Batch

LENGTHS = [2, 0, 3]
WORDS = np.array([0, 2, 3, 1, 0, 1, 0, 4, 5, 6, 1])  # <S> is 0, </S> is 1


def read(batch, direction):
    """Each step's words, by sentence."""
    words, _ = batch.places(direction)
    steps = np.split(words, np.cumsum(batch.sizes)[:-1])
    return [step.tolist() for step in steps]


def test_packed_order_by_hand():
    batch = Batch(WORDS, LENGTHS, whole=False, boundaries=False)
    assert batch.sizes == [3, 2, 2, 1] and batch.order.tolist() == [2, 0, 1]
    assert read(batch, 0) == [[0, 0, 0], [4, 2], [5, 3], [6]]
    assert read(batch, 1) == [[1, 1, 1], [6, 3], [5, 2], [4]]
    assert batch.tokens().tolist() == [2, 3, 4, 5, 6]
    assert batch.lengths == (2, 0, 3)


@pytest.mark.parametrize(("whole", "boundaries"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("direction", [0, 1])
def test_outputs_come_from_where_their_word_was_read(whole, boundaries, direction):
    batch = Batch(WORDS, LENGTHS, whole=whole, boundaries=boundaries)
    words, where = batch.places(direction)
    expected = [0, 2, 3, 1, 0, 1, 0, 4, 5, 6, 1] if boundaries else [2, 3, 4, 5, 6]
    assert words[where].tolist() == expected == batch.tokens().tolist()
    assert batch.rows == len(expected)
