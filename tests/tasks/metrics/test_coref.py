"""Clusters worked by hand, the reference scorer's published cases, and what it prints for others.

A mention is a letter, a cluster a word: "a bc def".
"""

import pytest

from torchelmo.errors import InputError
from torchelmo.tasks.metrics.coref import b_cubed, ceafe, coref_scores, muc


def shares(ratios):
    return pytest.approx((ratios.recall / 100, ratios.precision / 100))


def test_the_worked_example_of_pradhan_et_al():
    # Key {a b c} {d e f g}, response {a b} {c d} {f g h i}.
    key, response = ["abc", "defg"], ["ab", "cd", "fghi"]
    # Links: of 2 + 3, ab and fg are found; of the response's 1 + 1 + 3, the same two are right.
    assert shares(muc(key, response)) == (2 / 5, 2 / 5)
    recall = (2 * 2 / 3 + 1 * 1 / 3 + 1 * 1 / 4 + 2 * 2 / 4) / 7
    precision = (2 * 2 / 2 + 1 / 2 + 1 / 2 + 2 * 2 / 4) / 8
    assert shares(b_cubed(key, response)) == (recall, precision)
    # abc with ab, defg with fghi: 4/5 + 4/8 = 1.3, of 2 and of 3 clusters.
    assert shares(ceafe(key, response)) == (1.3 / 2, 1.3 / 3)
    scores = coref_scores([key], [response])
    f1 = [0.4, 2 * recall * precision / (recall + precision), 2 * 1.3 / 5]
    assert scores.mean == pytest.approx(100 * sum(f1) / 3)
    assert shares(scores.mentions) == (6 / 7, 6 / 8)


# The reference scorer's own cases: key, response; recall and precision of MUC, B-cubed, CEAF-e.
KEY = "a bc def"
CASES = [
    (KEY, "a bc def", (1, 1), (1, 1), (1, 1)),
    (KEY, "a de", (1 / 3, 1), (7 / 18, 1), (0.6, 0.9)),
    (KEY, "a bcx defy z", (1, 3 / 5), (1, 55 / 108), (0.885714, 0.664286)),
    (KEY, "a bcx dy z", (1 / 3, 1 / 3), (5 / 9, 17 / 42), (2.2 / 3, 2.2 / 4)),
    (KEY, "a bcxB dy z", (1 / 3, 1 / 4), (5 / 9, 5 / 16), (0.688889, 0.516667)),
    (KEY, "a bcx dy Bz", (1 / 3, 1 / 4), (5 / 9, 17 / 48), (2.2 / 3, 2.2 / 4)),
    (KEY, "a bcxb dy z", (1 / 3, 1 / 3), (5 / 9, 17 / 42), (2.2 / 3, 2.2 / 4)),
    (KEY, "a bcx dy bz", (1 / 3, 1 / 3), (5 / 9, 17 / 42), (2.2 / 3, 2.2 / 4)),
    (KEY, "a b c d e f", (0, 0), (3 / 6, 1), None),
    (KEY, "abcdef", (1, 3 / 5), (1, 7 / 18), None),
    (KEY, "a x y c d e z", (0, 0), (13 / 36, 4 / 7), None),
    (KEY, "axycdez", (1 / 3, 1 / 6), (17 / 36, 6 / 49), None),
]


@pytest.mark.parametrize(("key", "response", "links", "mentions", "entities"), CASES)
def test_published_cases(key, response, links, mentions, entities):
    scores = coref_scores([key.split()], [response.split()])
    assert shares(scores.muc) == links
    assert shares(scores.b3) == mentions
    if entities:
        assert (scores.ceafe.recall, scores.ceafe.precision) == pytest.approx(
            [100 * share for share in entities], abs=1e-4
        )


def test_what_the_reference_scorer_prints():
    gold = ["abcd ef ghi jk lmn", "ab cde fg", "qrstuv wx yz abc d"]
    predicted = ["abe cd fghi lk jm n", "bc de fa xg", "qrs tuvw xy zab cd"]
    scores = coref_scores([text.split() for text in gold], [text.split() for text in predicted])
    # It prints (10 / 22) (10 / 21), (19.3333333333333 / 35) (22.8333333333333 / 36) and
    # (7.55714285714286 / 13) (7.55714285714286 / 15).
    assert (scores.muc.found, scores.muc.gold) == (10, 22)
    assert (scores.muc.kept, scores.muc.predicted) == (10, 21)
    assert (scores.b3.found, scores.b3.gold) == (pytest.approx(19.3333333333333), 35)
    assert (scores.b3.kept, scores.b3.predicted) == (pytest.approx(22.8333333333333), 36)
    assert (scores.ceafe.found, scores.ceafe.gold) == (pytest.approx(7.55714285714286), 13)
    assert (scores.ceafe.kept, scores.ceafe.predicted) == (pytest.approx(7.55714285714286), 15)


def test_entities_of_singletons_by_hand():
    # def meets one of its own: 2/4; bc one: 2/3; a its equal: 1; three clusters against six.
    total = 1 + 2 / 3 + 2 / 4
    assert shares(ceafe(["a", "bc", "def"], list("abcdef"))) == (total / 3, total / 6)


def test_documents_are_summed_before_division():
    gold, predicted = [["abc"], ["de", "fghij"]], [["ab"], ["def", "ghij"]]
    scores = coref_scores(gold, predicted)
    assert shares(scores.muc) == ((1 + 1 + 3) / (2 + 1 + 4), (1 + 1 + 3) / (1 + 2 + 3))
    recall = (2 * 2 / 3 + 2 + 1 / 5 + 4 * 4 / 5) / 10
    precision = (2 + 2 * 2 / 3 + 1 / 3 + 4) / 9
    assert shares(scores.b3) == (recall, precision)
    total = 4 / 5 + 4 / 5 + 8 / 9
    assert shares(scores.ceafe) == (total / 3, total / 3)


def test_nothing_predicted_or_nothing_to_find():
    for key, response in (["ab"], []), ([], ["ab"]), ([], []):
        scores = coref_scores([key], [response])
        assert scores.mean == scores.muc.recall == scores.b3.precision == 0


def test_mentions_may_be_spans():
    clusters = [[(0, 1), (3, 5)], [(7, 8), (9, 12)]]
    assert coref_scores([clusters], [clusters[::-1]]).mean == pytest.approx(100)


def test_documents_must_agree():
    with pytest.raises(InputError, match="1 gold but 0 predicted documents"):
        coref_scores([["ab"]], [])
