"""The files of sentences are well formed, and the reader refuses what is not."""

from collections import Counter

import pytest

from torchelmo.analysis import senses
from torchelmo.errors import InputError
from torchelmo.text.words import get_tokenizer

# Every form that is marked in an English sentence, apart from the words themselves.
FORMS = {
    "bank": "banks",
    "bark": "barks barked",
    "bat": "bats",
    "chip": "chips",
    "crane": "cranes",
    "current": "currents",
    "fair": "fairer fairs",
    "gift": "gifts",
    "kind": "kinds kinder",
    "letter": "letters",
    "light": "lights lighter",
    "match": "matches matched",
    "mean": "means meant meanest",
    "mine": "mines",
    "pitch": "pitches",
    "play": "plays played playing",
    "present": "presents presented",
    "right": "rights",
    "seal": "seals sealed sealing",
    "spring": "springs",
}


@pytest.fixture(scope="module", params=senses.LANGUAGES)
def examples(request):
    return senses.read(request.param)


def test_twenty_words_with_two_to_four_senses_of_six_to_eight_sentences(examples):
    counts = Counter((one.word, one.sense) for one in examples)
    per_word = Counter(word for word, _ in counts)
    assert len(per_word) == 20
    assert set(per_word.values()) <= {2, 3, 4}
    assert set(counts.values()) <= {6, 7, 8}
    assert len(examples) >= 340


def test_no_sentence_comes_twice(examples):
    assert len({one.text.casefold() for one in examples}) == len(examples)


def test_sentences_are_clean(examples):
    for one in examples:
        assert one.text == " ".join(one.text.split()) and one.text[-1] in '.?!"', one.text
        assert one.text[one.start : one.end] == one.surface and "*" not in one.text


def test_senses_of_a_word_stand_together(examples):
    runs = [(one.word, one.sense) for one in examples]
    changes = [b for a, b in zip([None, *runs], runs, strict=False) if a != b]
    assert len(changes) == len(set(changes))


def test_the_words_that_must_be_there():
    assert {"play", "gift", "bank"} <= {one.word for one in senses.read("en")}
    assert {"배", "눈", "사과"} <= {one.word for one in senses.read("ko")}


def test_english_marks_are_listed_forms_and_alone_in_their_sentence():
    used = {word: {word} for word in FORMS}
    for one in senses.read("en"):
        forms = {one.word, *FORMS[one.word].split()}
        words = get_tokenizer("words")(one.text)
        assert one.surface.lower() in forms, one
        assert [(t.start, t.end) for t in words if t.text.lower() in forms] == [
            (one.start, one.end)
        ], one.text
        used[one.word].add(one.surface.lower())
    assert used == {word: {word, *forms.split()} for word, forms in FORMS.items()}


def test_korean_marks_are_the_noun_at_the_beginning_of_an_eojeol():
    for one in senses.read("ko"):
        assert one.surface == one.word
        assert one.text.count(one.word) == 1, one.text
        assert one.start == 0 or one.text[one.start - 1] == " "


def test_korean_marks_are_morphemes():
    pytest.importorskip("kiwipiepy")
    tokenizer = get_tokenizer("kiwi")
    for one in senses.read("ko"):
        assert (one.word, one.start, one.end) in tokenizer(one.text), one.text


def test_parse():
    (one,) = senses.parse([senses.HEADER, "배\tship\t큰 *배*를 탔다."])
    assert one == senses.Example("배", "ship", "큰 배를 탔다.", 2, 3)
    assert one.surface == "배"
    assert one.marked() == "큰 **배**를 탔다."


@pytest.mark.parametrize(
    "line",
    [
        "bank\tmoney\tno mark here.",
        "bank\tmoney\ttwo *bank* in one *bank*.",
        "bank\tmoney\tan open *bank.",
        "bank\t\tthe *bank* is shut.",
        "bank\tthe *bank* is shut.",
        "",
    ],
)
def test_a_bad_line_is_named(line):
    with pytest.raises(InputError, match="line 2 is"):
        senses.parse([senses.HEADER, line])


def test_a_bad_header_and_an_unknown_language_are_named():
    with pytest.raises(InputError, match="expected the header"):
        senses.parse(["bank\tmoney\tthe *bank* is shut."])
    with pytest.raises(InputError, match="en and ko"):
        senses.read("xx")
