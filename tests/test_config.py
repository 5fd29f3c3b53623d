"""Configs: published sizes, JSON round trips, and sentences for wrong input."""

import json

import pytest
import torch

from torchelmo.config import CharacterConfig, ElmoConfig, LstmConfig, WordConfig, from_json
from torchelmo.errors import InputError
from torchelmo.nn.bilm import BiLM


@pytest.mark.parametrize(
    ("name", "parameters", "width"),
    [("small", 13_593_296, 256), ("medium", 28_027_728, 512), ("original", 93_600_848, 1024)],
)
def test_presets_have_the_published_number_of_parameters(name, parameters, width):
    config = ElmoConfig.preset(name)
    with torch.device("meta"):
        bilm = BiLM(config)
    assert sum(p.numel() for p in bilm.parameters()) == parameters
    assert config.width == width and config.n_layers == 3


def test_json_round_trip():
    config = ElmoConfig(
        characters=CharacterConfig(scheme="jamo", symbols=70, filters=((2, 3), (4, 5))),
        words=WordConfig(words=9, dim=4),
        lstm=LstmConfig(cells=6, projection=6, project=False, cell_clip=None),
        vocabulary=12,
        boundaries=("<bos>", "<eos>"),
        training={"tokens": 5},
    )
    assert ElmoConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"lstmm": {}}, "config has no key 'lstmm', the nearest is 'lstm'"),
        ({"lstm": {"cels": 3}}, "config.lstm has no key 'cels', the nearest is 'cells'"),
        ({"lstm": {"cells": "3"}}, "config.lstm.cells is '3', expected int"),
        ({"lstm": {"cells": True}}, "config.lstm.cells is True, expected int"),
        ({"lstm": {"layers": 0}}, "lstm.layers is 0, expected 1 to 64"),
        ({"lstm": {"cell_clip": -1}}, "lstm.cell_clip must be a positive number or null, not -1.0"),
        ({"lstm": []}, "config.lstm must be an object, not list"),
        ({"characters": {"activation": "gelu"}}, "expected one of relu, tanh"),
        ({"characters": {"filters": [[1, 2, 3]]}}, r"config.characters.filters is \[1, 2, 3\]"),
        ({"characters": {"filters": [[80, 2]]}}, r"\(width\) is 80, expected 1 to 50"),
        ({"characters": {"symbols": 3}}, "the bytes scheme has 256 symbols, not 3"),
        ({"characters": None}, "needs characters or words at its input"),
        ({"token_projection": False}, "token vectors of width 2048 need token_projection"),
        ({"lstm": {"project": False}}, "lstm.projection is 512, lstm.cells 4096"),
        ({"format_version": "2.0"}, "format version 2.0, this torchelmo reads up to 1.1: upgrade"),
        ({"words": {"dim": 3}}, "config.words is incomplete"),
    ],
)
def test_wrong_configs_get_one_sentence(change, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        ElmoConfig.from_json(change)
    assert "\n" not in str(caught.value)


def test_unknown_presets_and_objects():
    with pytest.raises(InputError, match="no preset 'smal', the nearest is 'small'"):
        ElmoConfig.preset("smal")
    with pytest.raises(InputError, match="x must be an object, not list"):
        from_json(LstmConfig, [], "x")
