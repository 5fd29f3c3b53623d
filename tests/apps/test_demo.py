"""The demonstration, with packaged models and without any."""

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


def test_without_models(package, capsys):
    demo.main()
    shown = capsys.readouterr().out
    assert shown.startswith("en-small is not in this package: this is a random model")
    # Before context a word is the same everywhere.
    assert shown.count("     1.000") == 4
    assert "layer 2" in shown and "Which word fits" not in shown and "배" not in shown
    assert shown.splitlines()[-1].endswith("--model FOLDER")


def test_with_english_alone(package, capsys):
    package("en-small")
    demo.main()
    shown = capsys.readouterr().out
    assert shown.startswith("en-small, 0.0 M parameters, from the package")
    (gap,) = [line for line in shown.splitlines() if "a cup of ___" in line]
    words = gap.split(".")[1].strip().split(", ")
    assert set(words) == set(WORDS[3:])
    assert "a random model" not in shown and "배" not in shown


def test_with_korean(package, capsys):
    package("en-small")
    package("ko-small")
    demo.main()
    shown = capsys.readouterr().out
    assert 'How alike is "배" in' in shown and "동생이 달콤한 배를 깎아 먹었다." in shown


def test_with_korean_alone(package, capsys):
    package("ko-small")
    demo.main()
    shown = capsys.readouterr().out
    assert shown.startswith("en-small is not in this package") and 'How alike is "배" in' in shown


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
