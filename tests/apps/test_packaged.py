"""Models that come with the package: every command takes one by its name, with no network."""

import importlib.util
import json
from dataclasses import replace

import pytest

from formats.tiny import random_model, with_targets
from pretrain.tiny import toy_text
from torchelmo.config import TokenizerConfig
from torchelmo.elmo import Elmo
from torchelmo.errors import InputError, MissingExtra
from torchelmo.formats import load, native
from torchelmo.text.words import get_tokenizer

WORDS = ["<S>", "</S>", "<UNK>", *dict.fromkeys(toy_text(80).split())]
MODEL = replace(with_targets(random_model(), WORDS), attribution="Trained on a pond.\n")


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    """A package whose weights are en-small and ko-small."""
    weights = tmp_path / "package" / "weights"
    korean = replace(MODEL.config, tokenizer=TokenizerConfig(name="kiwi", version="1 x"))
    native.write(MODEL, weights / "en-small", weights="float16", softmax="int8")
    native.write(replace(MODEL, config=korean), weights / "ko-small", softmax="int8")
    monkeypatch.setattr(load.importlib.resources, "files", lambda _: tmp_path / "package")
    monkeypatch.setenv("TORCHELMO_OFFLINE", "1")
    return weights


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text(toy_text(80), encoding="utf-8")


def test_the_default_model(run, packaged, text, tmp_path):
    result = run("embed", "text.txt", "-o", "v.npz", "--json")
    assert result.code == 0, result.err
    assert (tmp_path / "v.npz").exists()


def test_scores(run, packaged, text):
    result = run("perplexity", "en-small", "text.txt", "--json", "--device", "cpu")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert found["unknown"] == 0 and found["vocabulary"] == len(WORDS)


def test_convert(run, packaged, tmp_path):
    assert run("convert", "en-small", "out", "--to", "bilm-tf").code == 0
    assert (tmp_path / "out/ATTRIBUTION.md").read_bytes() == b"Trained on a pond.\n"
    assert run("convert", "out", "back", "--to", "native", "--overwrite").code == 0
    one, two = native.read(packaged / "en-small"), native.read(tmp_path / "back")
    assert all((one.softmax[n] == two.softmax[n]).all() for n in one.softmax)
    assert all((one.tensors[n] == two.tensors[n]).all() for n in one.tensors)


def test_finetune(run, packaged, text, tmp_path):
    options = "--lines", "--batch", "4", "--learning-rate", "0.01", "--device", "cpu", "--json"
    result = run("finetune", "en-small", "text.txt", "-o", "out", *options)
    assert result.code == 0, result.err
    facts = json.loads(result.out)
    assert facts["before"] is not None  # it has its softmax
    assert facts["after"]["perplexity"] < facts["before"]["perplexity"]
    # A licence that asks for attribution asks for it of what is made of the model too.
    assert native.read(tmp_path / "out/run/last").attribution == "Trained on a pond.\n"


def test_a_tokeniser_that_is_not_installed(run, packaged, text, monkeypatch, request):
    get_tokenizer.cache_clear()  # other tests may have made it
    request.addfinalizer(get_tokenizer.cache_clear)
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "kiwipiepy" else real(name)
    )
    elmo = Elmo.from_pretrained("ko-small", device="cpu")
    assert elmo.embed([["눈", "이", "온다"]])[0].shape == (3, 8)  # words as they are
    with pytest.raises(MissingExtra, match=r"kiwipiepy: pip install 'torchelmo\[ko\]'"):
        elmo.embed("눈이 온다")
    line = run("embed", "text.txt", "-o", "v.npz", "--model", "ko-small", "--tokenize").sentence
    assert "needs kiwipiepy: pip install 'torchelmo[ko]'" in line


def test_a_name_that_is_not_there(packaged):
    with pytest.raises(InputError, match=r"no model 'en-large', .* here are en-small, ko-small,"):
        Elmo.from_pretrained("en-large")


def test_without_any(run, text, monkeypatch):
    monkeypatch.setattr(load, "packaged", dict)
    for command in (
        ("perplexity", "en-small", "text.txt"),
        ("embed", "text.txt", "-o", "v.npz", "--model", "en-small"),
        ("convert", "en-small", "out", "--to", "native"),
        ("finetune", "en-small", "text.txt", "-o", "out"),
    ):
        line = run(*command).sentence
        assert "there is no model 'en-small'" in line
        assert "packaged here are none, published are ai2-small" in line
