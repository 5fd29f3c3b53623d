"""Spelling: the originals' hand-worked cases, the other schemes, and round trips."""

import json
import unicodedata

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference import numpy_elmo
from torchelmo.config import CharacterConfig
from torchelmo.errors import InputError
from torchelmo.text.characters import MAX_WORD, Characters, build_alphabet

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def spell(words, maximum=50):
    config = CharacterConfig(max_characters=maximum, filters=((1, 4),))
    return Characters(config).encode(words)


@pytest.mark.parametrize(
    ("word", "stored"),  # ids as in files; in prediction each is one more
    [
        ("th", [258, 116, 104, 259, 260]),
        ("thhhhh", [258, 116, 104, 104, 259]),
        ("Āt", [258, 196, 128, 116, 259]),
        ("<S>", [258, 256, 259, 260, 260]),
        ("</S>", [258, 257, 259, 260, 260]),
        ("", [258, 259, 260, 260, 260]),
        ("\0", [258, 0, 259, 260, 260]),
    ],
)
def test_bytes_as_the_originals_spell_them(word, stored):
    assert spell([word], 5)[0].tolist() == [i + 1 for i in stored]


def test_a_word_is_cut_by_bytes_inside_a_character():
    row = spell(["가" * 17])[0]  # 51 bytes: the 48 that fit end with the 16th syllable
    assert row.tolist() == [259, *([0xEA + 1, 0xB0 + 1, 0x80 + 1] * 16), 260]
    assert spell(["a" + "가" * 17])[0][-2] == 0xB0 + 1  # now the cut is inside one


def test_escaped_boundaries_are_spelt():
    characters = Characters(CharacterConfig())
    row = characters.encode(["<S>"], escape_boundaries=True)[0]
    assert row[:5].tolist() == [259, ord("<") + 1, ord("S") + 1, ord(">") + 1, 260]
    assert characters.encode(["<UNK>"])[0][1] == ord("<") + 1  # never special


def test_rows_of_the_original_program(shared):
    with h5py.File(shared / "fixtures/tf-generated/inference_bilm.hdf5") as file:
        for name in ("batch0", "batch1", "batch2", "batch3"):
            ids = file[name]["char_ids"][...]
            for row, words in zip(ids, json.loads(file[name].attrs["sentences"]), strict=True):
                rows = spell(["<S>", *words, "</S>"])
                assert (row[: len(rows)] == rows).all()
                assert not row[len(rows) :].any()


@given(st.lists(WORDS, max_size=8), st.integers(3, 60))
def test_many_words_are_spelt_as_the_reference_spells_each(words, maximum):
    rows = spell(words, maximum)
    assert rows.shape == (len(words), maximum)
    for word, row in zip(words, rows, strict=True):
        expected = numpy_elmo.character_row(word, maximum)
        assert row.tolist() == [i + 1 for i in expected]  # 0 is kept for "no token"


@given(WORDS)
def test_bytes_decode_to_the_word_as_far_as_it_was_not_cut(word):
    characters = Characters(CharacterConfig())
    decoded = characters.decode(characters.encode([word])[0])
    kept = word.encode()[:48].decode(errors="ignore")
    assert decoded == (word if word in ("<S>", "</S>") else kept)


@pytest.mark.parametrize("scheme", ["codepoints", "jamo"])
@given(words=st.lists(WORDS, min_size=1, max_size=5))
def test_alphabet_schemes_round_trip(scheme, words):
    alphabet = build_alphabet(words, scheme)
    if not alphabet:
        return
    config = CharacterConfig(scheme=scheme, symbols=len(alphabet), max_characters=200)
    characters = Characters(config, alphabet)
    rows = characters.encode(words, escape_boundaries=True)
    assert rows.max() <= config.rows
    for word, row in zip(words, rows, strict=True):
        composed = characters.decode(row)
        assert unicodedata.normalize("NFD", composed) == unicodedata.normalize("NFD", word)


def test_korean_letters_and_their_order():
    alphabet = build_alphabet(["값", "가"], "jamo")
    assert alphabet == ["ᄀ", "ᅡ", "ᆹ"]  # lead and vowel twice, the tail once
    config = CharacterConfig(scheme="jamo", symbols=3, max_characters=8)
    characters = Characters(config, alphabet)
    begin, end, pad, unknown = 6, 7, 8, 9
    assert characters.encode(["값"])[0].tolist() == [begin, 1, 2, 3, end, pad, pad, pad]
    assert characters.encode(["노"])[0].tolist() == [begin, unknown, unknown, end] + [pad] * 4
    assert characters.decode(characters.encode(["값가"])[0]) == "값가"


def test_a_long_korean_word_survives_code_points_but_not_bytes():
    word = "가나다라마바사아자차카타파하거너더러"  # 18 syllables, 54 bytes
    by_points = Characters(
        CharacterConfig(scheme="codepoints", symbols=18), build_alphabet([word], "codepoints")
    )
    assert by_points.decode(by_points.encode([word])[0]) == word
    by_bytes = Characters(CharacterConfig())
    assert by_bytes.decode(by_bytes.encode([word])[0]) == word[:16]


def test_own_boundary_words():
    characters = Characters(CharacterConfig(), boundaries=("<bos>", "<eos>"))
    rows = characters.encode(["<bos>", "<eos>", "<S>"])
    assert rows[0, 1] == 257 and rows[1, 1] == 258 and rows[2, 1] == ord("<") + 1
    assert characters.decode(rows[0]) == "<bos>"


def test_wrong_alphabets_and_giant_words_are_refused():
    with pytest.raises(InputError, match="2 symbols, the alphabet given has 1"):
        Characters(CharacterConfig(scheme="codepoints", symbols=2), ["a"])
    with pytest.raises(InputError, match="entry 1 is 'ab'"):
        Characters(CharacterConfig(scheme="codepoints", symbols=1), ["ab"])
    with pytest.raises(InputError, match="split the text into words"):
        spell(["x" * (MAX_WORD + 1)])


def test_lone_surrogates_are_ignored_as_the_originals_do():
    assert (spell(["a\ud800b"]) == spell(["ab"])).all()
    points = Characters(CharacterConfig(scheme="codepoints", symbols=2), ["a", "b"])
    assert (points.encode(["a\ud800b"]) == points.encode(["ab"])).all()


def test_lengths_count_what_is_not_padding():
    characters = Characters(CharacterConfig())
    rows = characters.encode(["", "a", "gift", "x" * 90])
    assert characters.lengths(rows).tolist() == [2, 3, 6, 50]
    assert rows.dtype == np.uint16
