"""The vocabulary: bilm-tf's own cases, files as they are found, and counts to words."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchelmo.errors import InputError
from torchelmo.text.vocabulary import Vocabulary

WORDS = st.text(st.characters(exclude_categories=["Cs", "Z", "Cc"]), min_size=1, max_size=4)


@pytest.fixture
def small():
    return Vocabulary.from_lines(["<S>\n", "</S>\n", "<UNK>\n", "the\n", "."])


def test_encode_adds_boundaries_and_maps_the_unknown(small):
    ids = small.encode("the unknown .")
    assert ids.dtype == np.int32
    assert ids.tolist() == [0, 3, 2, 4, 1]
    assert small.encode(["the", "unknown", "."]).tolist() == [0, 3, 2, 4, 1]
    assert small.encode("").tolist() == [0, 1]


def test_encode_reverse_swaps_the_boundaries_of_a_reversed_sentence(small):
    assert small.encode(". unknown the", reverse=True).tolist() == [1, 4, 2, 3, 0]


def test_lookups(small):
    assert len(small) == 5
    assert small.words == ("<S>", "</S>", "<UNK>", "the", ".")
    assert (small.begin, small.end, small.unknown) == (0, 1, 2)
    assert (small.id("the"), small.id("cat")) == (3, 2)
    assert small.word(4) == "."
    assert "the" in small and "cat" not in small and 3 not in small
    assert small.ids(iter(["cat", ".", "<S>"])).tolist() == [2, 4, 0]
    assert small.ids([]).tolist() == []
    assert small.decode(np.array([0, 3, 2, 1])) == "<S> the <UNK> </S>"
    for wrong in (5, -1):
        with pytest.raises(InputError, match=rf"no word has the id {wrong}: .* 0 to 4"):
            small.word(wrong)


def test_lines_are_stripped_and_the_sentinel_is_skipped():
    v = Vocabulary.from_lines(
        [" <UNK>\t\r\n", "!!!MAXTERMID\n", "\u3000a\u00a0\n", "\n", "New York\n", "b"]
    )
    assert v.words == ("<UNK>", "a", "", "New York", "b")
    assert v.id("b") == 4
    assert v.id("") == 2
    assert "!!!MAXTERMID" not in v


def test_of_equal_words_the_last_line_is_looked_up_and_ids_stay_line_numbers():
    v = Vocabulary.from_lines(["<UNK>", "a", "b", "a ", "c"])
    assert len(v) == 5
    assert v.words == ("<UNK>", "a", "b", "a", "c")
    assert v.ids(["a", "b", "c"]).tolist() == [3, 2, 4]
    assert v.word(1) == v.word(3) == "a"


def test_missing_specials_are_named():
    with pytest.raises(InputError, match=r"^the vocabulary has no <UNK>: it needs <S>, </S> and"):
        Vocabulary(["<S>", "</S>", "a"]).require_specials()
    with pytest.raises(InputError, match="no <S> and no </S> and no <UNK>"):
        Vocabulary([]).require_specials()
    Vocabulary(["a", "<UNK>", "</S>", "b", "<S>"]).require_specials()


def test_without_specials_only_what_needs_them_fails():
    v = Vocabulary(["a", "b"])
    assert v.ids(["b", "a"]).tolist() == [1, 0]
    for lookup in (v.id, lambda word: v.ids([word])):
        with pytest.raises(InputError, match=r"'cat' is not in the vocabulary, which has no <UNK>"):
            lookup("cat")
    for name, word in (("begin", "<S>"), ("end", "</S>"), ("unknown", "<UNK>")):
        with pytest.raises(InputError, match=f"the vocabulary has no {word}: add it"):
            getattr(v, name)
    with pytest.raises(InputError, match="no <S>"):
        v.encode("a b")


def test_build_sorts_by_count_then_word():
    counts = Counter("b b a a d d d c <UNK> <S> !!!MAXTERMID".split())
    assert Vocabulary.build(counts).words == ("<S>", "</S>", "<UNK>", "d", "a", "b", "c")
    assert Vocabulary.build(counts, min_count=2).words[3:] == ("d", "a", "b")
    assert Vocabulary.build(counts, max_size=5).words[3:] == ("d", "a")
    assert Vocabulary.build(counts, max_size=3).words == ("<S>", "</S>", "<UNK>")
    assert Vocabulary.build({}).words == ("<S>", "</S>", "<UNK>")


def test_build_refuses_what_no_file_could_hold():
    for word in ("", " a", "a\n", "a\rb"):
        with pytest.raises(InputError, match="cannot stand on a line of its own"):
            Vocabulary.build({word: 1})
    with pytest.raises(InputError, match="at most 2 words was asked for"):
        Vocabulary.build({"a": 1}, max_size=2)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(WORDS, st.integers(1, 5), max_size=30))
def test_round_trips(counts):
    v = Vocabulary.build(counts)
    again = Vocabulary.from_lines("".join(v.lines()).splitlines())
    assert again == v and hash(again) == hash(v)
    assert v.decode(v.ids(v.words)) == " ".join(v.words)
    assert v.ids(v.words).tolist() == list(range(len(v)))
    assert all(counts[a] >= counts[b] for a, b in zip(v.words[3:], v.words[4:], strict=False))


def test_the_specials_of_a_bilm_tf_file_may_stand_in_any_order(shared):
    path = shared / "fixtures/bilm-tf/tests/fixtures/data/vocab_test.txt"
    v = Vocabulary.from_lines(path.read_text(encoding="utf-8").splitlines(keepends=True))
    v.require_specials()
    assert len(v) == 100
    assert (v.end, v.begin, v.unknown) == (0, 1, 2)
    # the originals' token batches are these ids plus one
    assert (v.encode(["The", "first", "."]) + 1).tolist() == [2, 18, 75, 6, 1]
    assert (v.encode(["It", "said"]) + 1).tolist() == [2, 67, 21, 1]


@pytest.mark.parametrize(
    ("file", "size"),
    [
        ("bilm-tf/tests/fixtures/model/vocab_test.txt", 448),
        ("bilm-tf/tests/fixtures/train/vocab.txt", 32),
        ("allennlp/test_fixtures/elmo/vocab_test.txt", 458),
    ],
)
def test_the_originals_files(shared, file, size):
    lines = (shared / "fixtures" / file).read_text(encoding="utf-8").splitlines()
    v = Vocabulary.from_lines(lines)
    assert len(v) == size
    assert list(v.words) == [line.strip() for line in lines]
    assert "".join(v.lines()).splitlines() == list(v.words)
