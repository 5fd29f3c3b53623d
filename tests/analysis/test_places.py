import pytest

from torchelmo.analysis.places import Marked, cut, in_words
from torchelmo.text.words import get_tokenizer

WORDS = get_tokenizer("words")


def test_given_words_are_kept_as_they_are():
    sentence = in_words(["She", "co-wrote", "``", "it", "''"], [(1, 2), (2, 5)])
    assert sentence.text == "She co-wrote `` it ''"
    tokens, spans = cut(sentence, WORDS, keep_words=True)
    assert tokens == ["She", "co-wrote", "``", "it", "''"]
    assert spans == [(1, 2), (2, 5)]


def test_smaller_tokens_cover_a_word():
    sentence = in_words(["집에", "간다"], [(0, 1), (1, 2)])
    tokens, spans = cut(sentence, get_tokenizer("codepoints"), keep_words=False)
    assert (tokens, spans) == (["집", "에", "간", "다"], [(0, 2), (2, 4)])


def test_morphemes_cover_an_eojeol():
    pytest.importorskip("kiwipiepy")
    sentence = in_words(["학교에", "갔어요", "."], [(0, 1), (1, 2), (2, 3)])
    tokens, spans = cut(sentence, get_tokenizer("kiwi"), keep_words=False)
    assert ["".join(tokens[a:b]) for a, b in spans] == ["학교에", "갔어요", "."]
    assert len(tokens) > 3


def test_a_raw_place_takes_every_token_it_touches():
    sentence = Marked("배가 고프다.", ((0, 1),))
    assert cut(sentence, get_tokenizer("whitespace"), keep_words=True) == (
        ["배가", "고프다."],
        [(0, 1)],
    )
    sentence = Marked("I can't go", ((2, 7),))
    assert cut(sentence, WORDS, keep_words=True) == (["I", "ca", "n't", "go"], [(1, 3)])


def test_a_place_without_tokens_is_a_mistake():
    with pytest.raises(ValueError, match="characters 1 to 2"):
        cut(Marked("a b", ((1, 2),)), WORDS, keep_words=True)
