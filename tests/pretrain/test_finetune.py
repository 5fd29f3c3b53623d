"""Continuing a model: with and without its softmax, with new words, in other schemes."""

import dataclasses

import numpy as np
import pytest
import torch

from pretrain.tiny import CPU, tiny_recipe, toy_corpus, toy_text
from torchelmo.config import CharacterConfig, ElmoConfig, LstmConfig, WordConfig
from torchelmo.elmo import Elmo
from torchelmo.errors import InputError
from torchelmo.formats import load
from torchelmo.formats.model import Model
from torchelmo.nn.bilm import BiLM
from torchelmo.nn.softmax import Softmax
from torchelmo.pretrain.finetune import FinetuneOptions, finetune
from torchelmo.pretrain.loop import Trainer

OPTIONS = FinetuneOptions(
    epochs=1.0,
    batch=4,
    unroll=5,
    learning_rate=0.01,
    valid_share=0.2,
    vocab_size=40,
    sentences_by_line=True,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model trained for a moment on the toy language."""
    home = tmp_path_factory.mktemp("start")
    recipe = tiny_recipe(train={"steps": 5})
    Trainer(recipe, toy_corpus(home / "toy", 30), home / "run", device=CPU)()
    return load.load(home / "run" / "last")


@pytest.fixture
def text(tmp_path):
    """The same language, with a word that the first text did not have."""
    path = tmp_path / "domain.txt"
    lines = toy_text(60, seed=9).replace("kettle ", "samovar ")
    path.write_text(lines, encoding="utf-8")
    return path


def test_perplexity_falls_and_the_model_loads(trained, text, tmp_path):
    phases = []
    done = finetune(
        trained, [text], tmp_path / "out", OPTIONS, device=CPU, report=lambda p, _: phases.append(p)
    )
    assert done.after["perplexity"] < done.before["perplexity"]
    assert set(phases) == {"all"} and done.added == 0
    elmo = Elmo.from_pretrained(done.folder)
    assert elmo.vocabulary.words == tuple(trained.vocabulary)
    assert len(elmo.substitutes("the ___ barks", count=3)) == 3
    again = finetune(trained, [text], tmp_path / "out", OPTIONS, device=CPU)
    assert again.after == done.after  # nothing was left to do


def test_new_words_get_rows_of_their_own(trained, text, tmp_path):
    options = dataclasses.replace(OPTIONS, new_words=1)
    done = finetune(trained, [text], tmp_path / "out", options, device=CPU)
    elmo = Elmo.from_pretrained(done.folder)
    assert done.added == 1 and "samovar" in elmo.vocabulary
    assert elmo.vocabulary.words[:-1] == tuple(trained.vocabulary)
    assert elmo.softmax.weight.shape[0] == len(trained.vocabulary) + 1


def test_a_model_without_softmax_gets_one_first(trained, text, tmp_path):
    bare = dataclasses.replace(
        trained,
        softmax=None,
        vocabulary=None,
        config=dataclasses.replace(trained.config, vocabulary=None),
    )
    seen = {}
    done = finetune(
        bare,
        [text],
        tmp_path / "out",
        OPTIONS,
        device=CPU,
        report=lambda phase, status: seen.setdefault(phase, status.step),
    )
    assert done.before is None and list(seen) == ["softmax", "all"]
    frozen = load.load(tmp_path / "out" / "softmax" / "last")
    for name, tensor in frozen.tensors.items():
        assert torch.equal(tensor, trained.tensors[name]), name
    assert any(
        not torch.equal(t, trained.tensors[name])
        for name, t in load.load(done.folder).tensors.items()
    )
    assert done.after["perplexity"] < 40


def test_a_stop_is_gone_on_with(trained, text, tmp_path):
    calls = [0]

    def stop():
        calls[0] += 1
        return calls[0] == 3

    assert finetune(trained, [text], tmp_path / "a", OPTIONS, device=CPU, stop=stop) is None
    one = finetune(trained, [text], tmp_path / "a", OPTIONS, device=CPU)
    two = finetune(trained, [text], tmp_path / "b", OPTIONS, device=CPU)
    assert one.after == two.after


def small(words=None, characters=None, alphabet=()):
    lstm = LstmConfig(cells=8, projection=4)
    config = ElmoConfig(
        characters=characters,
        words=None if words is None else WordConfig(words=len(words), dim=4),
        lstm=lstm,
        token_projection=characters is not None,
    )
    torch.manual_seed(0)
    softmax = None if words is None else Softmax(len(words), 4).state_dict()
    return Model(
        config,
        BiLM(config).state_dict(),
        vocabulary=words,
        words=words,
        alphabet=alphabet,
        softmax=softmax,
    )


def test_words_at_the_input(text, tmp_path):
    # In an order of its own: tables are put into that of the prepared vocabulary.
    words = ["the", "</S>", "<S>", "<UNK>", "cat", "purrs", "."]
    model = small(words)
    table = model.tensors["token.words"].clone()
    options = dataclasses.replace(OPTIONS, learning_rate=1e-9, new_words=5)
    done = finetune(model, [text], tmp_path / "out", options, device=CPU)
    after = load.load(done.folder)
    assert set(after.words) == set(words) and done.added == 0
    for row, word in enumerate(after.words):
        old = table[words.index(word)]
        np.testing.assert_allclose(after.tensors["token.words"][row], old, atol=1e-5)


def test_the_alphabet_stays_the_models(text, tmp_path):
    alphabet = list("tehacprsu.")
    characters = CharacterConfig(
        scheme="codepoints", symbols=10, max_characters=12, dim=3, filters=((1, 4), (2, 4))
    )
    done = finetune(
        small(None, characters, alphabet), [text], tmp_path / "out", OPTIONS, device=CPU
    )
    assert list(load.load(done.folder).alphabet) == alphabet


def test_refusals(trained, text, tmp_path, fixtures):
    both = load.load(fixtures / "many_langs")
    with pytest.raises(InputError, match="both words and characters"):
        finetune(both, [text], tmp_path / "out", OPTIONS, device=CPU)
    short = tmp_path / "short.txt"
    short.write_text("a cat purrs .\n", encoding="utf-8")
    with (
        pytest.warns(UserWarning, match="nothing is set aside"),
        pytest.raises(InputError, match="nothing was set aside to measure on"),
    ):
        finetune(trained, [short], tmp_path / "out", OPTIONS, device=CPU)
