import json

import pytest

from torchelmo.errors import InputError
from torchelmo.tasks.readers.examples import Answer
from torchelmo.tasks.readers.squad import read_squad

CONTEXT = "The 12-page letter, from Oslo, reached her in  1931."


def squad(answers, **extra):
    qas = [{"id": "q1", "question": "When did it arrive?", "answers": answers, **extra}]
    return {"version": "1.1", "data": [{"paragraphs": [{"context": CONTEXT, "qas": qas}]}]}


def write(tmp_path, data):
    path = tmp_path / "dev.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


def answer(text):
    return {"text": text, "answer_start": CONTEXT.index(text)}


def test_question_words_and_places(tmp_path):
    path = write(tmp_path, squad([answer("in  1931"), answer("12"), answer("slo, r")]))
    (question,) = read_squad(path)
    assert (question.id, question.question) == ("q1", ("When", "did", "it", "arrive", "?"))
    assert question.words[:5] == ("The", "12", "-", "page", "letter")
    assert all(
        CONTEXT[a:b] == word for (a, b), word in zip(question.offsets, question.words, strict=True)
    )
    when, pages, torn = question.answers
    assert when == Answer("in  1931", CONTEXT.index("in  "))
    assert question.text(*question.word_span(when)) == "in  1931"
    assert question.word_span(pages) == (1, 2)
    # An answer that begins and ends inside words gets them whole.
    assert question.text(*question.word_span(torn)) == "Oslo, reached"
    assert question.text(3, 3) == ""


def test_words_left_whole(tmp_path):
    (question,) = read_squad(write(tmp_path, squad([answer("12")])), cut=False)
    assert question.words[:3] == ("The", "12-page", "letter")
    assert question.text(*question.word_span(question.answers[0])) == "12-page"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ('{"data": [\n oops', "line 2: not JSON"),
        ({"dat": []}, "data: expected an object with 'data'"),
        ({"data": [{"paragraphs": {}}]}, "data: 'paragraphs' is not a list"),
        (squad([{"text": "Oslo", "answer_start": 3}]), r"data\[0\].paragraphs\[0\].qas\[0\]: the "),
        (squad([{"text": "Oslo"}]), r"data\[0\].*: expected an object with 'answer_start'"),
        (squad([{"text": "Oslo", "answer_start": "3"}]), "data.*: 'answer_start' is not a place"),
        (squad([], is_impossible=True), "data.*: a question without an answer"),
    ],
)
def test_wrong_places_are_named(tmp_path, data, reason):
    with pytest.raises(InputError, match=rf"dev\.json, {reason}"):
        list(read_squad(write(tmp_path, data)))
