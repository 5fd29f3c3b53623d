import json

import pytest

from torchelmo.errors import InputError
from torchelmo.tasks.model import TASKS
from torchelmo.tasks.recipe import packaged_recipes, read_recipe, recipe_from_json


def test_every_recipe_of_ours_reads_and_names_its_task():
    ours = packaged_recipes()
    assert {"ner", "pos", "chunk", "sst"} <= set(ours)
    for name in ours:
        if name in TASKS:
            assert read_recipe(name).task == name


def test_the_papers_choices():
    ner, sst = read_recipe("ner"), read_recipe("sst")
    assert (ner.elmo.where, ner.elmo.penalty, ner.network["cells"]) == ("input", 0.1, [200, 100])
    assert (sst.elmo.where, sst.elmo.penalty, sst.train.learning_rate) == ("both", 0.001, 1e-4)


def test_changes_and_the_json_round_trip():
    changes = ["elmo.mix=1", "train.patience=none", "characters=none", "network.crf=false"]
    recipe = read_recipe("ner", changes)
    assert recipe.elmo.kind == 1 and recipe.train.patience is None and recipe.characters is None
    assert recipe.network["crf"] is False
    assert read_recipe("ner", ["elmo.where=none"]).bilm is None
    again = recipe_from_json(json.loads(json.dumps(recipe.to_json())), "again")
    assert again.to_json() == recipe.to_json() and again.train == recipe.train


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("elmo.wher=input", "no key 'wher', the nearest is 'where'"),
        ("elmo.where=inside", "elmo.where is 'inside', expected one of input"),
        ("elmo.mix=mean", "elmo.mix is 'mean', expected learned, average, top or a layer"),
        ("elmo.dropout=1.5", "elmo.dropout is 1.5, expected 0 or more and below 1"),
        ("elmo.keep=disk", "needs elmo.folder"),
        ("train.epochs=0", "train.epochs is 0, expected 1 or more"),
        ("train.decay=0", "train.decay is 0.0, expected more than 0"),
        ("words.dim=0", "words.dim is 0, expected 1 or more"),
        ("trian.epochs=1", "no section 'trian', the nearest is 'train'"),
        ("epochs=1", "expected section.key=value"),
    ],
)
def test_wrong_changes(change, reason):
    with pytest.raises(InputError, match=reason):
        read_recipe("ner", [change])


def test_wrong_files(tmp_path):
    with pytest.raises(InputError, match="no task's recipe 'nerr', the nearest is 'ner'"):
        read_recipe("nerr")
    with pytest.raises(InputError, match="cannot be read"):
        read_recipe(tmp_path / "gone.toml")
    (tmp_path / "bad.toml").write_text("task = ", encoding="utf-8")
    with pytest.raises(InputError, match="is not a TOML file"):
        read_recipe(tmp_path / "bad.toml")
    (tmp_path / "none.toml").write_text("[train]\nepochs = 1\n", encoding="utf-8")
    with pytest.raises(InputError, match="is incomplete"):
        read_recipe(tmp_path / "none.toml")
