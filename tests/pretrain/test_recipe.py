"""Recipes: every key checked, changes on the command line, the network they describe."""

import dataclasses
import json

import pytest

from pretrain.tiny import tiny_recipe
from torchelmo.config import CharacterConfig, ElmoConfig, from_json
from torchelmo.errors import InputError
from torchelmo.pretrain.recipe import DataRecipe, ModelRecipe, Recipe, TrainRecipe, read_recipe

SMALL = """
[model]
preset = "small"
characters = { dim = 8 }

[model.lstm]
cells = 64

[data]
corpus = "corpus"

[train]
epochs = 3
betas = [0.9, 0.95]
"""


@pytest.fixture
def read(tmp_path):
    def read(text=SMALL, *changes):
        path = tmp_path / "recipe.toml"
        path.write_text(text, encoding="utf-8")
        return read_recipe(path, changes)

    return read


def refused(read, *given):
    with pytest.raises(InputError) as caught:
        read(*given)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def test_a_file(read):
    recipe = read()
    assert recipe.model.lstm == {"cells": 64}
    assert recipe.model.characters == {"dim": 8}
    assert recipe.train.epochs == 3.0 and isinstance(recipe.train.epochs, float)
    assert recipe.train.betas == (0.9, 0.95)
    assert recipe.train.batch == TrainRecipe().batch
    assert recipe.data == DataRecipe(corpus="corpus")


def test_json_round_trip():
    for recipe in (tiny_recipe(), Recipe(data=DataRecipe(corpus="c"))):
        assert from_json(Recipe, json.loads(json.dumps(recipe.to_json())), "recipe") == recipe


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[train]\nbacth = 8", "train has no key 'bacth', the nearest is 'batch'"),
        ("[trian]\nbatch = 8", "has no key 'trian', the nearest is 'train'"),
        ("[train]\nbatch = 8.5", "train.batch is 8.5, expected int"),
        ("[train]\nbatch = true", "train.batch is True, expected int"),
        ('[train]\nlearning_rate = "fast"', "train.learning_rate is 'fast', expected float"),
        ('[train]\noptimizer = "adam"', "is 'adam', expected one of adagrad, adamw"),
        ("[train]\nbetas = [0.9]", "train.betas is [0.9], expected a list"),
        ("train = 5", "train must be an object, not int"),
        ("[train]\nepochs = 2\nsteps = 9", "either train.epochs or train.steps"),
        ("[train]\nepochs = 0", "train.epochs is 0.0, expected more than 0"),
        ("[train]\nsteps = -1", "train.steps is -1, expected more than 0"),
        ("[train]\nunroll = 0", "train.unroll is 0, expected 1 or more"),
        ("[train]\ndropout = 1.0", "train.dropout is 1.0, expected 0 or more and below 1"),
        ("[train]\ndropout = nan", "train.dropout is nan, expected 0 or more and below 1"),
        ("[train]\nlearning_rate = 0.0", "train.learning_rate is 0.0, expected more than 0"),
        ("[train]\nclip_norm = -1.0", "train.clip_norm is -1.0, expected more than 0"),
        ("[train]\nclip_norm = inf", "train.clip_norm is inf, expected more than 0"),
        ("[train]\nwarmup = -3", "train.warmup is -3, expected 0 or more"),
        ("[train]\nseed = -3", "train.seed is -3, expected 0 or more"),
        ("[train]\nbetas = [0.9, 1.0]", "train.betas is (0.9, 1.0), expected 0 or more and below"),
        ("[train]\nfinal_share = 2.0", "train.final_share is 2.0, expected 0 to 1"),
        ("[watch]\nlog = 0", "watch.log is 0, expected 1 or more"),
        ("[watch]\nkeep = 0", "watch.keep is 0, expected 1 or more"),
        ("[watch]\npatience = 0", "watch.patience is 0, expected 1 or more"),
        ("[model]\ntie = true", "model.tie is for models that read whole words: model.words"),
        ('[model]\nvectors = "g.txt"', "model.vectors is for models that read whole words"),
        ("[train\n", "recipe.toml is not a TOML file"),
    ],
)
def test_mistakes(read, text, sentence):
    data = "" if text.startswith("[train\n") else '\n[data]\ncorpus = "c"'
    assert sentence in refused(read, text + data)


def test_mistakes_in_the_network(read):
    recipe = read('[model]\nlstm = { cels = 3 }\n[data]\ncorpus = "c"')
    with pytest.raises(InputError, match="lstm has no key 'cels', the nearest is 'cells'"):
        recipe.config(CharacterConfig(), 9)


def test_reset_share_is_a_share(read):
    sentence = refused(read, '[data]\ncorpus = "c"\nreset_share = 1.5')
    assert sentence == "data.reset_share is 1.5, expected 0 to 1"


def test_no_corpus(read, tmp_path):
    assert "data" in refused(read, "[train]\nbatch = 3")
    with pytest.raises(InputError, match=r"none.toml cannot be read: No such file"):
        read_recipe(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b'[data]\ncorpus = "\xe9"')
    with pytest.raises(InputError, match="is not a TOML file"):
        read_recipe(tmp_path / "latin.toml")


def test_epochs_or_steps(read):
    corpus = '[data]\ncorpus = "c"\n[train]\n'
    neither, steps, epochs = (read(corpus + key) for key in ("", "steps = 7", "epochs = 2"))
    assert (neither.train.epochs, neither.train.steps) == (10.0, None)
    assert (steps.train.epochs, steps.train.steps) == (None, 7)
    assert (epochs.train.epochs, epochs.train.steps) == (2.0, None)


def test_changes(read):
    recipe = read(
        SMALL,
        "train.batch=64",
        "train.learning_rate = 1e-3",
        "train.optimizer=adamw",  # a bare word is a string
        'data.corpus="my corpus"',
        "model.lstm.cells=32",
        "model.characters.filters=[[1, 4], [2, 8]]",
        "watch.tensorboard=true",
        "train.steps=40",
    )
    assert (recipe.train.batch, recipe.train.learning_rate) == (64, 1e-3)
    assert recipe.train.optimizer == "adamw"
    assert recipe.data.corpus == "my corpus"
    assert recipe.model.lstm == {"cells": 32}
    assert recipe.model.characters == {"dim": 8, "filters": [[1, 4], [2, 8]]}
    assert recipe.watch.tensorboard is True
    assert (recipe.train.epochs, recipe.train.steps) == (None, 40)  # instead of the file's epochs
    again = read('[data]\ncorpus = "c"\n[train]\nsteps = 5', "train.epochs=0.5")
    assert (again.train.epochs, again.train.steps) == (0.5, None)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("batch=3", "expected section.key=value, such as train.batch=64"),
        ("train.batch", "expected section.key=value, such as train.batch=64"),
        ("trian.batch=3", "there is no section 'trian', the nearest is 'train'"),
        ("train.bacth=3", "train has no key 'bacth', the nearest is 'batch'"),
        ("train.batch=many", "train.batch is 'many', expected int"),
        ("data.corpus.name=3", "corpus is 'corpus' in the recipe, not a table"),
    ],
)
def test_wrong_changes(read, change, sentence):
    assert sentence in refused(read, SMALL, change)


@pytest.mark.parametrize("preset", ["small", "medium", "original"])
def test_networks_of_the_published_sizes(preset):
    recipe = Recipe(model=ModelRecipe(preset=preset), data=DataRecipe(corpus="c"))
    found = recipe.config(CharacterConfig(), 1000)
    assert found == dataclasses.replace(ElmoConfig.preset(preset), vocabulary=1000)


def test_the_network_spells_as_the_corpus():
    recipe = tiny_recipe()
    spelling = CharacterConfig(scheme="codepoints", symbols=900, max_characters=12)
    found = recipe.config(spelling, 77)
    assert found.characters.scheme == "codepoints"
    assert (found.characters.symbols, found.characters.max_characters) == (900, 12)
    assert found.characters.filters == ((1, 4), (2, 4), (3, 8))
    assert (found.lstm.cells, found.lstm.projection, found.vocabulary) == (16, 8, 77)
    assert found.token_projection  # 16 filters for a width of 8
    wide = tiny_recipe(model={"lstm": {"cells": 16, "projection": 16}})
    assert not wide.config(spelling, 77).token_projection
    mine = tiny_recipe(model={"characters": {"max_characters": 9}})
    with pytest.raises(InputError, match=r"model.characters.max_characters is the corpus's"):
        mine.config(spelling, 77)
    short = CharacterConfig(max_characters=3, filters=((1, 2),))
    with pytest.raises(InputError, match=r"filters \(width\) is 4, expected 1 to 3"):
        Recipe(data=DataRecipe(corpus="c")).config(short, 77)


def test_whole_words():
    recipe = tiny_recipe(model={"words": True, "tie": True})
    found = recipe.config(CharacterConfig(), 77)
    assert found.characters is None
    assert (found.words.words, found.words.dim) == (77, 8)
    assert not found.token_projection


def test_defaults_are_those_of_the_published_run():
    train = TrainRecipe()
    assert (train.batch, train.unroll, train.epochs, train.negatives) == (128, 20, 10.0, 8192)
    assert (train.optimizer, train.learning_rate, train.clip_norm) == ("adagrad", 0.2, 10.0)
    assert (train.dropout, train.loss_scale) == (0.1, "unroll")
