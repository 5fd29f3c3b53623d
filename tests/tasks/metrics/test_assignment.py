from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchelmo.tasks.metrics.assignment import assign


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 1000), st.booleans())
@settings(max_examples=80)
def test_equals_enumeration(rows, columns, seed, sparse):
    rng = np.random.default_rng(seed)
    weights = rng.random((rows, columns))
    if sparse:  # ties and zeros, as clusters give
        weights = np.round(weights * 2) / 2 * (rng.random((rows, columns)) < 0.4)
    wide = weights if rows <= columns else weights.T
    best = max(
        sum(wide[row, column] for row, column in enumerate(order))
        for order in permutations(range(wide.shape[1]), wide.shape[0])
    )
    assert assign(weights) == pytest.approx(best)


def test_greedy_would_be_wrong():
    assert assign(np.array([[3.0, 2.0], [3.0, 0.0]])) == 5


def test_nothing_to_assign():
    assert assign(np.zeros((0, 3))) == assign(np.zeros((3, 0))) == 0
