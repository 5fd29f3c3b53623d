"""Answers worked by hand with the official script's rules."""

import pytest

from torchelmo.tasks.metrics.squad import best_f1, exact_match, normalise, squad_scores


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("The  U.S. Army!", "us army"),
        ("An apple a day", "apple day"),
        ("theory of the a-team", "theory of ateam"),
        ("1,000.50 km", "100050 km"),
        ("“quoted”", "“quoted”"),  # only ASCII punctuation goes
        ("the", ""),
        ("Ünter  den\tLinden", "ünter den linden"),
    ],
)
def test_what_is_compared(text, same):
    assert normalise(text) == same


def test_f1_by_hand():
    # Ours: green, tea, house; theirs: green, house, of, tea, tea -> 3 shared, P = 1, R = 3/5.
    assert best_f1("The green tea house", ["green house of tea, tea"]) == pytest.approx(0.75)
    # Twice the same word shares once with one.
    assert best_f1("tea tea", ["tea"]) == pytest.approx(2 / 3)
    assert best_f1("tea", ["milk"]) == 0
    assert best_f1("the", ["a"]) == 0  # both empty
    assert best_f1("tea", ["milk", "hot tea", "a tea"]) == 1  # the best answer counts


def test_exact_match_takes_any_answer():
    assert exact_match("the Harbour.", ["quay", "harbour"])
    assert not exact_match("harbours", ["quay", "harbour"])


def test_means_over_all_questions():
    answers = {"q1": ["in 1912"], "q2": ["a grey heron", "heron"], "q3": ["Ulsan"], "q4": ["two"]}
    scores = squad_scores(answers, {"q1": "1912", "q2": "Heron", "q3": "Busan"})
    assert scores.em == 25
    assert scores.f1 == pytest.approx(100 * (2 / 3 + 1) / 4)
    assert squad_scores({}, {}) == (0, 0)
