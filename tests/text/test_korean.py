"""Korean: morphemes by hand, and faithful slices where Kiwi's forms differ from the text."""

import threading

import pytest

pytest.importorskip("kiwipiepy")

import kiwipiepy

from torchelmo.text.korean import KiwiTokenizer
from torchelmo.text.words import get_tokenizer


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("학교에 갔어요.", "학교 에 갔 어요 ."),  # 갔 = 가 + 았
        ("그는 밥을 먹었다", "그 는 밥 을 먹 었 다"),
        ("나는 했다", "나 는 했 다"),  # 했 = 하 + 었
        ("아름다운 꽃", "아름다운 꽃"),  # 아름답 + 은 share 운
        ("뭐야?", "뭐 야 ?"),  # the copula 이 has left no trace
        ("난 널 사랑해", "난 널 사랑 해"),  # 나 + ㄴ, 너 + ㄹ
        ("값은 1,234.5원(10%)", "값 은 1,234.5 원 ( 10 % )"),
        ("좋아요👍🏽 e\u0301", "좋 아요 👍🏽 e\u0301"),
        ("", ""),
        (" \n ", ""),
    ],
)
def test_cases(text, tokens):
    found = get_tokenizer("kiwi")(text)
    assert [t.text for t in found] == tokens.split(" ") * bool(tokens)
    assert all(text[t.start : t.end] == t.text for t in found)


def test_each_line_is_analysed_alone():
    words = get_tokenizer("kiwi").words
    lines = ["비가 온다", "", "하늘이 맑다."]
    assert words("\r\n".join(lines)) == [word for line in lines for word in words(line)]


def test_long_and_unbroken_text():
    text = "가" * 5000 + "a" * 20_000
    assert "".join(get_tokenizer("kiwi").words(text)) == text
    text = "나는 간다. " * 1000
    assert get_tokenizer("kiwi").words(text) == ["나", "는", "간다", "."] * 1000


def test_many_threads_load_it_once(monkeypatch):
    made, found = [], []
    kiwi = kiwipiepy.Kiwi
    monkeypatch.setattr(kiwipiepy, "Kiwi", lambda **options: made.append(1) or kiwi(**options))
    tokenize = KiwiTokenizer()

    def run():
        found.append(tokenize.words("학교에 갔어요."))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["학교", "에", "갔", "어요", "."]] * 4
    assert made == [1]


def test_held_out_text(shared):
    tokenize = get_tokenizer("kiwi")
    with (shared / "data/corpus/ko/wiki.valid.txt").open(encoding="utf-8") as file:
        for line, _ in zip(file, range(200), strict=False):
            tokens = tokenize(line)
            assert "".join(t.text for t in tokens) == "".join(line.split())
            assert all(line[t.start : t.end] == t.text for t in tokens)
