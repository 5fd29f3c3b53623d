"""Sentences: hand-worked cases for every rule, and what holds for any text."""

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from torchelmo.text.sentences import Span, split_sentences

ALPHABET = "abAB1 .,!?…\"'”’()[]\n\r\t\u3000\u2028。！「」とはи다가म।؟"
SNIPPETS = "Mr. |U.S. |e.g. |No. 5|. The |.[1] |2016. 5. 3. |... |J. K. |Inc. ".split("|")
TEXTS = st.lists(
    st.one_of(st.text(ALPHABET, max_size=8), st.sampled_from(SNIPPETS), st.text(max_size=3)),
    max_size=8,
).map("".join)


def split(text):
    return [span.text for span in split_sentences(text)]


# Sentences are separated by | here; where the text has a space there, so has the case.
@pytest.mark.parametrize(
    "marked",
    [
        "One. |Two! |Three? |Four",
        "He paid $3.50 for it. |Then 10.5% more.",
        # abbreviations, titles, initials
        "Mr. Lee met Dr. Oh and Prof. Kim. |They left.",
        "J. K. Ashby wrote it. |Nobody read it.",
        "He takes vitamin C. |The rest is food.",
        "She lives in the U.S. |The rest is in Rome.",
        "The U.S. Army and the U.S. citizens left.",
        "It works, e.g. Monday or i.e. Tuesday.",
        "It closed at 5 p.m. |He came at 6 p.m. Friday.",
        "Acme Inc. sold it. |Bolt Ltd. |It did.",
        "See Fig. 3 and No. 5 on p. 7. |No. |I will not.",
        "On Jan. 5 it rained. |We met in Jan. |Nobody came.",
        "She has a Ph.D. |He has none.",
        "So do I. |Rome fell.",
        # what follows
        '"Why?" she asked. |"Because!" he cried.',
        'He said "Stop." |Then he ran.',
        "It fell (in part.) |Then it rose.",
        "He ran.[1][2] |She stayed.",
        "Oh! how nice. |Yodel! is a firm.",
        "Wait... what? |Wait... |What?! |Well… |yes".replace("|yes", "yes"),
        "He left (why?) and (!) came back.",
        "(He left. |She stayed.)",
        "It was . . . odd.",
        "no capitals here. |so what? |fine.",
        "He rose. |— She fell. |“He” won.",
        "¿Qué tal? |¡Bien! |Así es.",
        # lists and dates
        "1. The first item. |2. The second.",
        "2016. 5. 3. 선고한 판결이다. |끝.",
        "Write to www.example.com or a.b@c.de. |Done.",
        # other scripts
        "저는 학교에 갔다. |좋았다.|재밌다! |끝",
        "원주율은 3.14이다. |그렇다.",
        "雨が降る。|傘がない！|困った。",
        "「行くよ。」と言った。|「はい。」|彼は笑った。",
        "他说：“你好。”|然后走了。|好……吧？|好！",
        "वह गया। |मैं रुका। |क्यों? |पता नहीं॥",
        "كيف حالك؟ |أنا بخير.",
        "Он ушёл. |Она осталась. |А. С. Белов молчал.",
        "１．５倍だ．|次だ．",
    ],
)
def test_cases(marked):
    assert split(marked.replace("|", "")) == [s.strip() for s in marked.split("|")]


def test_a_line_break_always_ends_a_sentence():
    assert split("One\ntwo\r\nthree. Four\u2028\n\n  five  \n") == [
        "One",
        "two",
        "three.",
        "Four",
        "five",
    ]
    assert split("") == split(" \n\t\n") == []


def test_offsets_are_worked_out_by_hand():
    assert split_sentences(" Hi!  You. \n x") == [
        Span("Hi!", 1, 4),
        Span("You.", 6, 10),
        Span("x", 13, 14),
    ]


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
@example(text="\ud800. A\x00")
def test_sentences_tile_the_text(text):
    spans = split_sentences(text)
    assert all(text[s.start : s.end] == s.text for s in spans)
    assert all(a.end <= b.start for a, b in itertools.pairwise(spans))
    assert "".join("".join(s.text.split()) for s in spans) == "".join(text.split())
    assert all(s.text and s.text == s.text.strip() for s in spans)
    assert not any(len(s.text.splitlines()) > 1 for s in spans)


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(TEXTS, max_size=4))
def test_lines_are_independent(texts):
    assert split("\n".join(texts)) == [s for text in texts for s in split(text)]


@pytest.mark.parametrize(
    "unit", ["a.", "A. ", "1. ", ". ", ".'", ". \t", "Mr. ", "。", "[1]", ".", "(", " "]
)
def test_a_megabyte_on_one_line(unit):
    text = unit * (1_000_000 // len(unit))
    joined = "".join("".join(split(text)).split())
    assert joined == "".join(text.split())
