"""Japanese: words by hand, and slices of the text whatever stands in it."""

import lzma
import threading

import pytest

pytest.importorskip("fugashi")
pytest.importorskip("unidic_lite")

from torchelmo.text.japanese import FugashiTokenizer
from torchelmo.text.words import get_tokenizer


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("学校に行きました。", "学校 に 行き まし た 。"),
        ("猫が好きです", "猫 が 好き です"),
        ("Tシャツを\u3000２枚", "T シャツ を ２ 枚"),
        ("ABC def", "ABC def"),
        ("a\x00b", "a \x00 b"),
        ("か\u3099 👨‍👩‍👧", "か\u3099 👨‍👩‍👧"),
        ("", ""),
        ("\u3000\n", ""),
    ],
)
def test_cases(text, tokens):
    found = get_tokenizer("fugashi")(text)
    assert [t.text for t in found] == tokens.split(" ") * bool(tokens)
    assert all(text[t.start : t.end] == t.text for t in found)


def test_each_line_is_analysed_alone():
    words = get_tokenizer("fugashi").words
    lines = ["雨が降る", "", "空は青い。"]
    assert words("\n".join(lines)) == [word for line in lines for word in words(line)]


def test_long_and_unbroken_text():
    text = "ア" * 5000 + "a" * 20_000
    assert "".join(get_tokenizer("fugashi").words(text)) == text
    text = "猫が好きです。" * 1000
    assert get_tokenizer("fugashi").words(text) == ["猫", "が", "好き", "です", "。"] * 1000


def test_many_threads_share_it():
    tokenize = FugashiTokenizer()
    found = {}
    texts = [f"{i}匹の猫が好きです。" * 50 for i in range(4)]

    def run(i):
        found[i] = [tokenize.words(texts[i]) for _ in range(20)]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, text in enumerate(texts):
        assert found[i] == [get_tokenizer("fugashi").words(text)] * 20


def test_literature(shared):
    tokenize = get_tokenizer("fugashi")
    with lzma.open(shared / "data/corpus/ja/aozora.txt.xz", "rt", encoding="utf-8") as file:
        for line, _ in zip(file, range(500), strict=False):
            tokens = tokenize(line)
            assert "".join(t.text for t in tokens) == "".join(line.split())
            assert all(line[t.start : t.end] == t.text for t in tokens)
