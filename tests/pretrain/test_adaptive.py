"""The adaptive softmax from the recipe to a model that scores words, is continued and converted."""

import dataclasses
import json
import re
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from pretrain.test_memory import LONG, WIDE, allocated
from pretrain.tiny import CPU, tiny_recipe, toy_text, trainer
from torchelmo import Elmo
from torchelmo.config import AdaptiveConfig, CharacterConfig, ElmoConfig
from torchelmo.errors import InputError
from torchelmo.formats import bilm_tf, load, native
from torchelmo.nn.softmax import AdaptiveSoftmax
from torchelmo.perplexity import WordText, text_perplexity
from torchelmo.pretrain.finetune import FinetuneOptions, finetune
from torchelmo.pretrain.memory import estimate, first_step
from torchelmo.pretrain.plan import plan
from torchelmo.pretrain.recipe import (
    DataRecipe,
    ModelRecipe,
    Recipe,
    TrainRecipe,
    default_cutoffs,
    read_recipe,
)

CLUSTERS = {"softmax": "adaptive", "cutoffs": (8, 16), "div_value": 2.0}


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    """A model that has learned the toy language."""
    recipe = tiny_recipe(
        model={"lstm": {"cells": 64, "projection": 24}},
        train={
            **CLUSTERS,
            "steps": 250,
            "dropout": 0.0,
            "optimizer": "adamw",
            "learning_rate": 0.01,
            "clip_norm": 1.0,
            "loss_scale": "one",
        },
        watch={"validate": 250, "checkpoint": 250},
    )
    return trainer(recipe, corpus, tmp_path_factory.mktemp("adaptive") / "run")().folder


def test_it_learns(run):
    # 30 words, of which the language itself leaves about 3 at each place.
    best = native.read(run / "last").config.training["best"]
    assert best["perplexity"] < 6
    assert best["step"] == 250


def test_what_is_written_is_read(run, tmp_path):
    model = native.read(run / "last")
    assert model.config.adaptive == AdaptiveConfig(cutoffs=(8, 16), div_value=2.0)
    assert set(model.softmax) == {
        "head.weight",
        "head.bias",
        *(f"projections.{k}" for k in (0, 1)),
        *(f"tails.{k}.{part}" for k in (0, 1) for part in ("weight", "bias")),
    }
    assert "30 words, adaptive: clusters begin at 8, 16" in native.model_card(model)
    elmo = Elmo.from_pretrained(run / "last")
    assert isinstance(elmo.softmax, AdaptiveSoftmax)
    elmo.save_pretrained(tmp_path / "again")
    again = native.read(tmp_path / "again")
    assert again.config == model.config
    for name, tensor in model.softmax.items():
        assert torch.equal(again.softmax[name], tensor)
    whole = elmo.perplexity("a red cat purrs .").perplexity
    for stored in ("float16", "int8"):
        native.write(model, tmp_path / stored, weights="float16", softmax=stored)
        half = Elmo.from_pretrained(tmp_path / stored).perplexity("a red cat purrs .")
        assert half.perplexity == pytest.approx(whole, rel=0.02)


def test_words_are_scored(run):
    elmo = Elmo.from_pretrained(run / "last")
    words = "the red dog barks .".split()
    (score,) = elmo.score([words])
    substitutes = elmo.substitutes(words, 3, count=27)
    assert len(substitutes) == 27  # all but the specials
    assert substitutes[0].word == "barks"
    (chosen,) = (found for found in substitutes if found.word == "dog")
    inside = elmo.substitutes(words, 2, count=27)
    (right,) = (found for found in inside if found.word == "dog")
    assert right.forward == pytest.approx(score.forward[2], abs=1e-4)
    assert right.backward == pytest.approx(score.backward[3], abs=1e-4)
    assert chosen.score < substitutes[0].score
    text = WordText()
    text.add([words])
    whole = text_perplexity(elmo.encoder, elmo.softmax, elmo.vocabulary, text)
    alone = elmo.perplexity([words])
    assert whole.perplexity == pytest.approx(alone.perplexity, rel=1e-4)
    assert alone.vocabulary == 30


def test_other_programs_get_the_network_alone(run, tmp_path):
    notes = bilm_tf.write(native.read(run / "last"), tmp_path / "out")
    (note,) = (note for note in notes if "softmax" in note)
    assert note.startswith("the adaptive softmax was left out") and "\n" not in note
    assert not (tmp_path / "out" / "softmax.hdf5").exists()
    model = load.load(tmp_path / "out")
    assert model.softmax is None and model.config.adaptive is None
    for name, tensor in native.read(run / "last").tensors.items():
        assert torch.equal(model.tensors[name], tensor)


@pytest.fixture
def copy(run, tmp_path):
    """The model's folder, with its config or softmax changed."""

    def change(config=(), tensors=()):
        folder = tmp_path / "changed"
        native.write(native.read(run / "last"), folder)
        path = folder / "config.json"
        data = json.loads(path.read_text("utf-8"))
        path.write_text(json.dumps({**data, **dict(config)}), encoding="utf-8")
        found = {**load_file(folder / "softmax.safetensors"), **dict(tensors)}
        save_file({k: t for k, t in found.items() if t is not None}, folder / "softmax.safetensors")
        return folder

    return change


@pytest.mark.parametrize(
    ("config", "tensors", "sentence"),
    [
        ({"adaptive": None}, {}, "lacks the tensor 'weight'"),
        ({"adaptive": {"cutoffs": [8, 17]}}, {}, "'projections.0' of shape"),
        ({"adaptive": {"cutoffs": [8, 17], "div_value": 2.0}}, {}, "'tails.0.weight' of shape"),
        ({"adaptive": {"cutoffs": [8, 30]}}, {}, "expected numbers below that of the words"),
        ({"adaptive": {"cutoffs": [16, 8]}}, {}, "expected 1 to 16 rising numbers"),
        ({"adaptive": {"cutoffs": ["8"]}}, {}, "adaptive.cutoffs is '8', expected int"),
        ({"adaptive": {}}, {}, "adaptive is incomplete"),
        ({"vocabulary": None}, {}, "expected numbers below that of the words"),
        ({}, {"tails.1.bias": None}, "lacks the tensor 'tails.1.bias' of shape (14,)"),
        ({}, {"tails.1.bias": torch.zeros(15)}, "expects (14,)"),
        ({}, {"weight": torch.zeros(2)}, "has a tensor 'weight' that its config does not know"),
    ],
)
def test_damaged_models(copy, config, tensors, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)) as caught:
        native.read(copy(config, tensors))
    assert "\n" not in str(caught.value)


def test_configs_from_before_have_no_clusters():
    data = ElmoConfig(vocabulary=9).to_json()
    assert data.pop("adaptive") is None
    assert ElmoConfig.from_json(data).adaptive is None


FINETUNE = FinetuneOptions(
    batch=4, unroll=5, learning_rate=0.01, valid_share=0.2, vocab_size=40, sentences_by_line=True
)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "domain.txt"
    path.write_text(toy_text(60, seed=9).replace("kettle ", "samovar "), encoding="utf-8")
    return path


@pytest.mark.parametrize("new_words", [0, 1])
def test_finetune(run, text, tmp_path, new_words):
    options = dataclasses.replace(FINETUNE, new_words=new_words)
    model = native.read(run / "last")
    done = finetune(model, [text], tmp_path / "out", options, device=CPU)
    assert done.added == new_words
    assert done.after["perplexity"] < done.before["perplexity"]
    after = native.read(done.folder)
    assert after.config.adaptive == model.config.adaptive
    assert after.config.vocabulary == 30 + new_words
    elmo = Elmo.from_pretrained(done.folder)
    if new_words:
        found = elmo.substitutes("the red ___ whistles .".split(), 2, count=10)
        assert "samovar" in [word for word, *_ in found]


def test_finetune_without_its_softmax(run, text, tmp_path):
    model = dataclasses.replace(native.read(run / "last"), softmax=None)
    done = finetune(model, [text], tmp_path / "out", FINETUNE, device=CPU)
    assert done.before is None
    assert native.read(done.folder).config.adaptive is None


def test_words_cannot_change_places(run, text, tmp_path):
    model = native.read(run / "last")
    turned = dataclasses.replace(model, vocabulary=[*model.vocabulary[1:], model.vocabulary[0]])
    with pytest.raises(InputError, match="cannot change places"):
        finetune(turned, [text], tmp_path / "out", FINETUNE, device=CPU)


def test_a_model_of_another_kind_is_not_started_from(run, corpus, tmp_path):
    model = native.read(run / "last")
    with pytest.raises(InputError, match=r"the model has clusters from \(8, 16\) on, the recipe"):
        trainer(tiny_recipe(), corpus, tmp_path, start=model)


@pytest.mark.parametrize("vocabulary", [3, 4, 7, 30, 1000, 100_000, 249_999, 250_000, 1 << 20])
def test_default_cutoffs_fit(vocabulary):
    recipe = Recipe(data=DataRecipe(corpus="c"), train=TrainRecipe(softmax="adaptive"))
    config = recipe.config(CharacterConfig(), vocabulary)
    assert config.adaptive.cutoffs == default_cutoffs(vocabulary)
    assert config.adaptive.div_value == 4.0


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        ("cutoffs = [5, 5]", "train.cutoffs is [5, 5], expected 1 to 16 rising numbers of words"),
        ("cutoffs = []", "train.cutoffs is [], expected 1 to 16 rising numbers of words"),
        ("cutoffs = [0, 5]", "train.cutoffs is [0, 5], expected 1 to 16 rising numbers of words"),
        ("cutoffs = 5", "train.cutoffs is 5, expected a list"),
        ("cutoffs = [2.5]", "train.cutoffs is 2.5, expected int"),
        ("div_value = 0.0", "train.div_value is 0.0, expected 1 to 1000"),
        ("cutoffs = [5, 30]", "train.cutoffs is [5, 30], the vocabulary has 30 words: expected"),
        ("[model]\nwords = true\ntie = true", "model.tie shares the word table with a softmax"),
    ],
)
def test_wrong_recipes(train, sentence, tmp_path):
    path = tmp_path / "recipe.toml"
    text = f'[data]\ncorpus = "c"\n[train]\nsoftmax = "adaptive"\n{train}\n'
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(sentence)) as caught:
        read_recipe(path).config(CharacterConfig(), 30)
    assert "\n" not in str(caught.value)


def test_cutoffs_are_for_the_adaptive_softmax():
    with pytest.raises(InputError, match=r'train.cutoffs is for train.softmax = "adaptive"'):
        TrainRecipe(softmax="full", cutoffs=(5,))


@pytest.mark.skipif(sys.platform == "win32", reason="no fork there")
@pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed")
def test_two_processes_are_as_one(corpus, tmp_path):
    """Also where a cluster has no target in one of them."""
    from pretrain import children

    recipe = tiny_recipe(
        train={**CLUSTERS, "cutoffs": (8, 16, 28), "dropout": 0.0, "steps": 8},
        watch={"log": 1, "validate": 8, "checkpoint": 8},
    )
    alone = children.finished(recipe, corpus, tmp_path / "one")
    found = children.together(recipe, corpus, tmp_path / "two", 2)
    for (_, loss, _), (_, expected, _) in zip(found["losses"], alone["losses"], strict=True):
        assert loss == pytest.approx(expected, rel=1e-5)
    assert found["sum"] == pytest.approx(alone["sum"], rel=1e-5)


def test_parameters_are_counted(corpus):
    recipe = tiny_recipe(train=CLUSTERS)
    config = recipe.config(corpus.config, 30)
    full = plan(tiny_recipe(), corpus, dataclasses.replace(config, adaptive=None)).parameters
    # The head: 8 words and 2 clusters; clusters of 8 and 14 words, 4 and 2 wide.
    adaptive = 10 * 9 + 4 * 8 + 8 * 5 + 2 * 8 + 14 * 3
    assert plan(recipe, corpus, config).parameters == full - 30 * 9 + adaptive


def test_memory(corpus, tmp_path):
    recipe = tiny_recipe(model=WIDE, train={**LONG, **CLUSTERS})
    config = recipe.config(corpus.config, corpus.vocabulary_size)
    found = estimate(config, recipe, corpus.vocabulary_size, step=first_step(corpus, recipe))
    real = allocated(recipe, corpus, tmp_path)
    assert found.activations + found.gradients == pytest.approx(real, rel=0.05)


def test_a_large_vocabulary_takes_less_than_the_full_softmax():
    def needed(kind):
        train = TrainRecipe(batch=64, softmax=kind)
        recipe = Recipe(data=DataRecipe(corpus="c"), train=train, model=ModelRecipe())
        config = recipe.config(CharacterConfig(), 800_000)
        return estimate(config, recipe, 800_000, words=1000)

    full, adaptive = needed("full"), needed("adaptive")
    assert adaptive.parameters < full.parameters / 4
    assert adaptive.total < full.total / 2
