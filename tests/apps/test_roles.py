"""Semantic roles from a file in CoNLL-2012's columns to raw text, by the commands."""

import json

import pytest
import torch

from tasks.test_roles import sentences, write_frames

RECIPE = """
task = "srl"

[words]
vectors = "none"
dim = 12

[elmo]
dropout = 0.0

[network]
cells = 24
layers = 4
predicate = 8
dropout = 0.0

[train]
epochs = 40
batch = 5
learning_rate = 0.02
"""


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Two that wait for each other are slower over such small numbers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def files(tmp_path):
    write_frames(tmp_path / "ours.v4_gold_conll", sentences())
    (tmp_path / "srl.toml").write_text(RECIPE, encoding="utf-8")
    return tmp_path


def test_roles_from_training_to_raw_text(run, files, model_folder):
    data = "--train", "ours.v4_gold_conll", "--valid", "ours.v4_gold_conll"
    options = "--model", model_folder, "--device", "cpu"
    result = run("train", "srl", "srl.toml", *data, "-o", "run", *options)
    assert result.code == 0, result.err
    assert "valid  f1 100.00" in result.out and "frames 100.00" in result.out
    scores = run("evaluate", "run", "ours.v4_gold_conll", "--json", "--device", "cpu")
    assert json.loads(scores.out)["f1"] == 100

    raw = "The cat sat on the mat . Tom [wants] to sell the kite"
    lines = run("predict", "run", "--text", raw, "--device", "cpu").out.splitlines()
    assert lines == [
        "[ARG0 The cat] [V sat] [ARGM-LOC on the mat] .",
        "[ARG0 Tom] [V wants] [ARG1 to sell the kite]",
    ]
    (files / "in.txt").write_text("Nobody [slept]\nThe mat\n", encoding="utf-8")
    told = run("predict", "run", "in.txt", "--tokenized", "--json", "--device", "cpu").out
    slept, nothing = map(json.loads, told.splitlines())
    assert slept["frames"][0]["predicate"] == "slept" and slept["words"] == ["Nobody", "slept"]
    assert nothing == {"text": "The mat", "words": ["The", "mat"], "frames": []}

    # The predicates of a file in columns are those that it names.
    lines = run("predict", "run", "ours.v4_gold_conll", "--device", "cpu").out.splitlines()
    assert len(lines) == 10 and lines[3] == "[ARG0 Tom] wants to [V sell] [ARG1 the kite]"

    (files / "bad.v4_gold_conll").write_text("a b\n", encoding="utf-8")
    refused = run("evaluate", "run", "bad.v4_gold_conll", "--device", "cpu").sentence
    assert "bad.v4_gold_conll, line 1: 2 columns" in refused
