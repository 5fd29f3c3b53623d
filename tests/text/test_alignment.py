import pytest

from torchelmo.text.alignment import overlapping, spread
from torchelmo.text.words import Token, get_tokenizer


def test_words_are_laid_out_with_a_space_between():
    tokens = spread(["A", "heron", "'s", "bill"])
    text = " ".join(t.text for t in tokens)
    assert all(text[t.start : t.end] == t.text for t in tokens)
    assert tokens[2] == Token("'s", 8, 10) and spread([]) == []


def test_tokens_that_overlap_a_place():
    tokens = get_tokenizer("codepoints")("집에 간다")
    assert overlapping(tokens, [(0, 2), (3, 5), (1, 4), (4, 5)]) == [(0, 2), (2, 4), (1, 3), (3, 4)]


def test_a_place_of_white_space_has_none():
    with pytest.raises(ValueError, match="characters 1 to 2 are no part of any token"):
        overlapping(spread(["a", "b"]), [(1, 2)])
