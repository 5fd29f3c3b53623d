"""The demonstration, with the packaged models and with tiny ones in their place."""

import importlib.util
from dataclasses import replace

import pytest

from formats.tiny import random_model, with_targets
from torchelmo.apps import demo
from torchelmo.config import TokenizerConfig
from torchelmo.formats import load, native
from torchelmo.text.words import get_tokenizer

WORDS = ["<S>", "</S>", "<UNK>", "tea", "coffee", "water", "milk", "Paris"]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A function that puts a model with a tokeniser into the package."""
    monkeypatch.setattr(load.importlib.resources, "files", lambda _: tmp_path)

    def add(name, tokenizer="words"):
        model = with_targets(random_model(), WORDS)
        config = replace(model.config, tokenizer=TokenizerConfig(name=tokenizer, version="1"))
        native.write(replace(model, config=config), tmp_path / "weights" / name, softmax="int8")

    return add


def numbers(line):
    """Return the cosines that a line begins with."""
    return [float(field) for field in line.split()[:3]]


@pytest.mark.skipif(not importlib.util.find_spec("kiwipiepy"), reason="needs the extra ko")
def test_what_the_packaged_models_know(capsys):
    demo.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("en-small, 13.6 M parameters, from the package")
    asked = [n for n, line in enumerate(lines) if line.startswith("How alike is")]
    assert [lines[n].split('"')[1] for n in asked] == ["gift", "bank", "배"]
    for n in asked:
        other, same = numbers(lines[n + 2]), numbers(lines[n + 3])
        assert other[0] == same[0] == 1.0  # before context a word is the same everywhere
        assert same[1] > other[1] and same[2] > other[2]
    near = next(n for n, line in enumerate(lines) if line.startswith("Who is nearest"))
    assert lines[near + 1].split(None, 1)[1].startswith("gift; gifts")
    assert all("[gift]" in line for line in lines[near + 2 : near + 4])
    (gap,) = [line for line in lines if "a cup of ___" in line]
    assert {"tea", "coffee"} <= set(gap.split(".")[1].strip().split(", "))


def test_a_gap_takes_words_of_the_softmax(package, capsys):
    package("en-small")
    package("ko-small")
    demo.main()
    shown = capsys.readouterr().out
    assert shown.startswith("en-small, 0.0 M parameters, from the package")
    (gap,) = [line for line in shown.splitlines() if "a cup of ___" in line]
    assert set(gap.split(".")[1].strip().split(", ")) == set(WORDS[3:])


def test_korean_without_its_extra(package, capsys, monkeypatch, request):
    get_tokenizer.cache_clear()
    request.addfinalizer(get_tokenizer.cache_clear)
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "kiwipiepy" else real(name)
    )
    package("en-small")
    package("ko-small", "kiwi")
    demo.main()
    shown = capsys.readouterr().out
    assert "pip install 'torchelmo[ko]'" in shown and shown.splitlines()[-1].startswith("Your own")


def test_the_question_is_not_its_own_answer():
    corpus = [one.text for one in demo.senses.read("en")]
    assert all(any(known in text for text in corpus) for known in demo.KNOWN)
