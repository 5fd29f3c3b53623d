"""train, evaluate and predict over files written here."""

import io
import json
import sys
from types import SimpleNamespace

import pytest

from tasks.small import labelled, parts_of_speech, recipe, tagged, write_columns, write_labels
from torchelmo.apps.cli.train import figures, mixes

RECIPE = """
task = "ner"

[characters]
dim = 8
filters = 24

[elmo]
dropout = 0.0

[network]
cells = [24]
dropout = 0.0

[train]
epochs = 20
batch = 5
learning_rate = 0.04
"""
LABELS = """
task = "labels"

[words]
vectors = "none"
dim = 8

[network]
cells = 8
before = 8
hidden = [8]

[train]
epochs = 2
"""


@pytest.fixture
def files(tmp_path):
    write_columns(tmp_path / "train.txt", tagged())
    write_labels(tmp_path / "labels.tsv", labelled())
    (tmp_path / "ner.toml").write_text(RECIPE, encoding="utf-8")
    (tmp_path / "labels.toml").write_text(LABELS, encoding="utf-8")
    return tmp_path


def test_entities_from_training_to_raw_text(run, files, model_folder):
    data = "--train", "train.txt", "--valid", "train.txt", "--test", "train.txt"
    options = "--model", model_folder, "--device", "cpu"
    result = run("train", "ner", "ner.toml", *data, "-o", "run", *options)
    assert result.code == 0, result.err
    assert "run: ner, epoch" in result.out and "test   f1 100.00" in result.out
    assert "mix    input: s " in result.out
    assert "epoch 1: loss" in result.err and "gamma" in result.err
    metrics = json.loads((files / "run/metrics.json").read_text(encoding="utf-8"))
    assert metrics["test"]["f1"] == metrics["best"]["valid"]["f1"] == 100

    scores = run("evaluate", "run", "train.txt", "--json", "--device", "cpu")
    assert json.loads(scores.out)["f1"] == 100
    assert run("evaluate", "run", "train.txt").out.startswith("f1 100.00, precision")

    raw = "Greta Holm paints boats in Oslo. Ivo sings."
    text = run("predict", "run", "--text", raw, "--device", "cpu").out.splitlines()
    assert len(text) == 2 and "[PER Greta Holm]" in text[0]
    (files / "in.txt").write_text("New Harbour sleeps , Ivo does not\n\n", encoding="utf-8")
    told = run("predict", "run", "in.txt", "--tokenized", "--json", "--device", "cpu").out
    spans = [(span["label"], span["text"]) for span in json.loads(told)["spans"]]
    assert spans == [("LOC", "New Harbour"), ("PER", "Ivo")]


def test_labels_from_standard_input(run, files, monkeypatch):
    made = run("train", "labels", "labels.toml", "--train", "labels.tsv", "-o", "run", "--json")
    assert json.loads(made.out)["best"]["epoch"] == 2, made.err
    stream = SimpleNamespace(buffer=io.BytesIO(b"the songs are lovely\n\nso long\n"))
    monkeypatch.setattr(sys, "stdin", stream)
    lines = run("predict", "run", "-").out.splitlines()
    assert [line.split("\t")[2] for line in lines] == ["the songs are lovely", "so long"]
    assert json.loads(run("predict", "run", "--text", "lovely", "--json").out)["label"] in (
        "good",
        "bad",
        "so",
    )


def test_a_recipe_of_ours_changed(run, files):
    write = [
        "".join(f"{n}\t{w}\t_\t{t}\t_\t_\t0\t_\t_\t_\n" for n, (w, t) in enumerate(pairs, 1)) + "\n"
        for pairs in (zip(e.words, e.tags, strict=True) for e in parts_of_speech())
    ]
    (files / "ud.conllu").write_text("".join(write), encoding="utf-8")
    sets = "words=none", "elmo=none", "network.cells=[8]", "train.epochs=1"
    changes = [part for value in sets for part in ("--set", value)]
    result = run("train", "pos", "--train", "ud.conllu", "-o", "run", "--seed", "3", *changes)
    assert result.code == 0, result.err
    metrics = json.loads((files / "run/metrics.json").read_text(encoding="utf-8"))
    assert metrics["seed"] == 3 and metrics["task"] == "pos"
    assert run("predict", "run", "--text", "Rain fell").out.count("/") == 2


def test_refusals(run, files):
    def line(*arguments):
        return run(*arguments).sentence

    assert "there is no task 'nerr', the nearest is 'ner'" in line("train", "nerr", "-o", "x")
    assert "give --train FILE" in line("train", "ner", "-o", "x")
    assert "there is no recipe of ours for 'labels'" in line("train", "labels", "-o", "x")
    base = "train", "ner", "ner.toml", "-o", "x", "--set", "elmo=none"
    assert "gone.txt" in line(*base, "--train", "gone.txt")
    assert "the nearest is 'epochs'" in line(*base, "--set", "train.epoch=1")
    (files / "bad.txt").write_text("Oslo B-LOC\nsleeps\n", encoding="utf-8")
    assert "bad.txt, line 2" in line(*base, "--train", "bad.txt")
    gone = "train", "ner", "ner.toml", "--train", "train.txt", "-o", "x", "--model", "nothing-here"
    assert "there is no model 'nothing-here'" in line(*gone)
    assert not (files / "x").exists()
    assert "there is no folder runs" in line("evaluate", "runs", "train.txt")
    assert "give either a FILE" in line("predict", "runs")
    assert "there is no text to predict" in line("predict", "runs", "--text", " ")
    assert "is a folder" in line("predict", "runs", files)
    assert "there is no file gone" in line("predict", "runs", "gone")


def test_words_for_people():
    assert figures({"f1": 91.234, "recall": 90}) == "f1 91.23, recall 90.00"
    epoch = {"mixes": {"input": {"s": [0.25, 0.75], "gamma": 1.5}}}
    assert mixes(epoch) == ["input: s 0.250 0.750, gamma 1.500"]
    assert recipe("ner").task == "ner"
