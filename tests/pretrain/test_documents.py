import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchelmo.pretrain.documents import Share


@given(st.integers(0, 3000), st.floats(0, 0.999), st.integers(0, 2**63 - 1))
def test_about_the_share_and_never_all(documents, share, seed):
    chosen = int(Share(share, seed, documents)(np.arange(documents)).sum())
    assert chosen == 0 or chosen < documents
    expected = share * documents
    assert abs(chosen - expected) <= 6 * np.sqrt(expected) + 2
    if share > 0 and documents >= 10:
        assert chosen >= 1
    if share == 0:
        assert chosen == 0


def test_numbers_decide_and_nothing_else():
    few, many = Share(0.25, 7, 2000), Share(0.25, 7, 10_000)
    assert few.limit == many.limit
    assert np.array_equal(few(np.arange(2000)), many(np.arange(10_000))[:2000])
    assert not np.array_equal(few(np.arange(2000)), Share(0.25, 8, 2000)(np.arange(2000)))


@pytest.mark.parametrize(("documents", "share", "least"), [(1, 0.9, 0), (2, 0.3, 1), (9, 0.01, 0)])
def test_few_documents(documents, share, least):
    for seed in range(20):
        chosen = int(Share(share, seed, documents)(np.arange(documents)).sum())
        assert least <= chosen <= max(documents - 1, 0)


def test_hashes_do_not_meet():
    share = Share(0.5, 3, 10)
    assert len(np.unique(share._hash(np.arange(100_000)))) == 100_000
