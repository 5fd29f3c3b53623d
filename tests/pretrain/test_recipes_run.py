"""The files in recipes/: each can be read, the toy one learns, and the page lists every key."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conftest import repository_root
from pretrain.tiny import CPU
from torchelmo.config import CharacterConfig, ElmoConfig
from torchelmo.elmo import Elmo
from torchelmo.errors import InputError
from torchelmo.pretrain.corpus import Corpus
from torchelmo.pretrain.loop import Trainer
from torchelmo.pretrain.prepare import PrepareOptions, prepare
from torchelmo.pretrain.recipe import Recipe, packaged_recipes, read_recipe

ROOT = repository_root()
RECIPES = ROOT / "recipes"
pytestmark = pytest.mark.skipif(not RECIPES.is_dir(), reason="the package alone, without recipes")
PRESETS = {
    "tiny-cpu": None,
    "small": "small",
    "medium": "medium",
    "original": "original",
    "original-fast": "original",
    "en-small": "small",
    "ko-small": "small",
    "en-original": "original",
}
NAMES = tuple(PRESETS)


@pytest.mark.parametrize("name", NAMES)
def test_each_recipe_is_read_and_says_how_it_is_run(name):
    path = RECIPES / f"{name}.toml"
    recipe = read_recipe(path)
    config = recipe.config(CharacterConfig(), 1000)
    if preset := PRESETS[name]:
        assert config == dataclasses.replace(ElmoConfig.preset(preset), vocabulary=1000)
    text = path.read_text(encoding="utf-8")
    header = text[: text.index("[model]")]
    prepared = re.findall(r"torchelmo prepare .+? -o (\S+)", header, re.DOTALL)
    assert prepared[-1] == recipe.data.corpus
    assert re.search(rf"torchelmo pretrain {name} -o runs/\S+", header)


def test_there_are_no_other_recipes():
    assert sorted(path.stem for path in RECIPES.glob("*.toml")) == sorted(NAMES)


def test_a_name_is_one_of_ours_unless_there_is_such_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {name: path.resolve() for name, path in packaged_recipes().items()} == {
        name: RECIPES / f"{name}.toml" for name in NAMES
    }
    for name in ("small", "small.toml", Path("small")):
        assert read_recipe(name) == read_recipe(RECIPES / "small.toml")
    assert read_recipe("small", ["train.batch=3"]).train.batch == 3
    (tmp_path / "small").write_text('[data]\ncorpus = "mine"\n', encoding="utf-8")
    assert read_recipe("small").data.corpus == "mine"
    assert read_recipe("small.toml").data.corpus == "corpus"
    for name, sentence in (
        ("smal", "there is no file and no recipe 'smal', the nearest is 'small'"),
        ("nowhere.toml", "nowhere.toml cannot be read"),
        ("recipes/small", "small cannot be read"),
        ("small.txt", "small.txt cannot be read"),
    ):
        with pytest.raises(InputError, match=sentence):
            read_recipe(name)


def test_the_original_is_the_papers():
    recipe = read_recipe(RECIPES / "original.toml")
    train, data = recipe.train, recipe.data
    assert (train.batch, train.unroll, train.epochs) == (3 * 128, 20, 10)
    assert (train.optimizer, train.learning_rate, train.clip_norm) == ("adagrad", 0.2, 10.0)
    assert (train.softmax, train.negatives, train.dropout) == ("sampled", 8192, 0.1)
    assert (train.schedule, train.loss_scale, train.precision) == ("constant", "unroll", "float32")
    assert (data.independent, data.reset_share) == (True, 0.0)


def test_the_toy_recipe_learns_its_grammar(tmp_path):
    command = [sys.executable, RECIPES / "tiny_text.py", "--paragraphs", "600"]
    text = subprocess.run(command, capture_output=True, check=True).stdout
    (tmp_path / "tiny.txt").write_bytes(text)
    options = PrepareOptions(valid_share=0.02)
    prepare([tmp_path / "tiny.txt"], tmp_path / "corpus", options)
    corpus = Corpus.open(tmp_path / "corpus")
    changes = ["train.steps=120", "train.warmup=20", "watch.validate=40"]
    recipe = read_recipe(RECIPES / "tiny-cpu.toml", changes)
    found = []
    result = Trainer(recipe, corpus, tmp_path / "run", device=CPU)(
        lambda now: found.append(now.validation["perplexity"]) if now.validation else None
    )
    assert result.reason == "finished"
    assert len(found) == 3
    assert corpus.vocabulary_size > found[0] > 2 * found[2]
    assert found[2] < 10
    # A model that has learnt something tells a word from the same word in another place.
    elmo = Elmo.from_pretrained(tmp_path / "run" / "best")
    money, water = elmo.layers([["The", "bank", "opens"], ["on", "the", "bank"]])
    assert not torch.allclose(torch.from_numpy(money[2, 1]), torch.from_numpy(water[2, 2]))


def test_the_page_explains_every_key():
    """The table has a row for each key, in order, with the default that the code has."""
    expected = {}
    for section in dataclasses.fields(Recipe):
        kind = type(getattr(read_recipe(RECIPES / "tiny-cpu.toml"), section.name))
        for field in dataclasses.fields(kind):
            if field.default is not dataclasses.MISSING:
                default = json.dumps(field.default)
            elif field.default_factory is not dataclasses.MISSING:
                default = json.dumps(field.default_factory())
            else:
                default = "required"
            expected[f"{section.name}.{field.name}"] = default.replace("null", "none").strip('"')
    page = (ROOT / "docs" / "pretraining.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| `((?:data|model|train|watch)\.\w+)` \| `?([^|`]*)`? \|", page, re.MULTILINE
    )
    assert dict(rows) == expected
    assert len(rows) == len(expected)
