from itertools import combinations, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.told import documents
from torchelmo.tasks.mentions import (
    buckets,
    candidates,
    cut,
    gold_columns,
    link,
    marginal_loss,
    pairs,
    positions,
    prune,
)

INF = float("inf")


def spans(lengths, longest):
    return list(zip(*(side.tolist() for side in candidates(lengths, longest)), strict=True))


def crossing(one, two):
    return one[0] < two[0] < one[1] < two[1] or two[0] < one[0] < two[1] < one[1]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(1, 7))
@settings(max_examples=40, deadline=None)
def test_spans_are_all_within_a_sentence(lengths, longest):
    expected, before = [], 0
    for length in lengths:
        inside = range(before, before + length + 1)
        expected += [(s, e) for s, e in combinations(inside, 2) if e - s <= longest]
        before += length
    assert spans(lengths, longest) == sorted(expected)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(1, 7))
@settings(max_examples=40, deadline=None)
def test_numbers_of_spans_are_found(lengths, longest):
    known = {span: n for n, span in enumerate(spans(lengths, longest))}
    asked = [(s, e) for s, e in combinations(range(sum(lengths) + 1), 2)]
    found = positions(lengths, longest, *np.array(asked).T)
    assert found.tolist() == [known.get(span, -1) for span in asked]


@given(st.integers(0, 10_000), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_the_best_that_do_not_cross_are_kept(seed, most):
    random = np.random.default_rng(seed)
    starts, ends = candidates([5, 1, 4], 5)
    scores = random.integers(0, 6, len(starts)).astype(np.float32)  # with ties
    kept = prune(starts, ends, scores, most)
    everything = spans([5, 1, 4], 5)
    expected = []
    for number in sorted(range(len(everything)), key=lambda n: (-scores[n], n)):
        if len(expected) < most and not any(
            crossing(everything[number], everything[other]) for other in expected
        ):
            expected.append(number)
    assert kept == sorted(expected)


def test_nested_spans_and_spans_side_by_side_do_not_cross():
    starts, ends = np.array([0, 1, 1, 2, 3]), np.array([3, 2, 3, 4, 4])
    assert prune(starts, ends, np.array([5, 4, 3, 2, 1], np.float32), 9) == [0, 1, 2, 4]
    assert prune(starts, ends, np.array([1, 1, 1, 9, 1], np.float32), 9) == [1, 3, 4]


@pytest.mark.parametrize(("count", "most"), [(1, 3), (2, 3), (5, 2), (5, 9), (4, 1)])
def test_pairs_are_of_a_mention_and_the_nearest_before_it(count, most):
    rows, columns = pairs(count, most)
    expected = [(m, c) for m in range(count) for c in range(1, most + 1) if m - c >= 0]
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == expected


def test_distances_are_grouped():
    far = np.array([1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 32, 63, 64, 999])
    assert buckets(far).tolist() == [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8]


def random_rows(seed, count, most):
    scores = torch.full((count, 1 + min(most, count - 1)), -INF, dtype=torch.float64)
    rows, columns = pairs(count, most)
    torch.manual_seed(seed)
    scores[rows, columns] = 2 * torch.randn(len(rows), dtype=torch.float64)
    scores[:, 0] = 0
    return scores


@pytest.mark.parametrize("seed", range(4))
def test_the_loss_is_the_probability_of_all_right_choices(seed):
    """Every way to choose an antecedent for each mention, one after the other."""
    clusters = [1, 0, 1, 2, 1]
    scores = random_rows(seed, 5, 3)

    def right(mention, column):
        before = range(max(mention - 3, 0), mention)
        same = [n for n in before if clusters[n] == clusters[mention] > 0]
        return mention - column in same if same else column == 0

    choices = [[c for c in range(4) if scores[m, c] > -INF] for m in range(5)]
    whole = good = 0.0
    for columns in product(*choices):
        weight = sum(scores[m, c] for m, c in enumerate(columns)).exp()
        whole += weight
        good += weight if all(right(m, c) for m, c in enumerate(columns)) else 0
    loss = marginal_loss(scores, torch.tensor(clusters))
    torch.testing.assert_close(loss, -(good / whole).log())


def test_gradients_are_finite_with_missing_antecedents():
    scores = random_rows(0, 4, 4).requires_grad_()
    marginal_loss(scores, torch.tensor([3, 3, 0, 3])).backward()
    assert scores.grad.isfinite().all() and scores.grad[0].eq(0).all()


def test_right_columns_by_hand():
    scores = random_rows(0, 4, 2)
    right = gold_columns(scores, torch.tensor([7, 7, 0, 7]))
    assert right.int().tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]]


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_links_give_the_connected_parts(data):
    columns = [data.draw(st.integers(0, m)) for m in range(data.draw(st.integers(1, 8)))]
    groups = [{m} for m in range(len(columns))]
    for mention, column in enumerate(columns):
        one = next(g for g in groups if mention in g)
        two = next(g for g in groups if mention - column in g)
        if one is not two:
            groups.remove(one)
            two |= one
    expected = sorted(sorted(group) for group in groups if len(group) > 1)
    assert sorted(link(columns)) == expected


def test_sentences_are_cut_out_with_their_mentions():
    dog = documents()[2]
    part = cut(dog, 1, 2)
    assert part.sentences == dog.sentences[1:3] and len(part.speakers) == 2
    words = part.words()
    kept = {tuple(words[s:e] for s, e in cluster) for cluster in part.clusters}
    assert kept == {(("it",),), (("Mara",), ("She",))}
    assert cut(dog, 0, 4) == dog and cut(dog, 3, 1).clusters == ()
