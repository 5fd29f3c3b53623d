"""Coreference from training to raw text, over files in CoNLL-2012's columns."""

import json

import pytest
import torch

from tasks.told import conll, documents

SETS = (
    "words=none",
    "characters.filters=24",
    "network.cells=24",
    "network.longest=3",
    "network.spans=1.5",
    "network.hidden=[24]",
    "network.features=4",
    "network.dropout_input=0.2",
    "train.epochs=50",
    "train.patience=none",
    "train.learning_rate=0.01",
)


@pytest.fixture
def files(tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # more only cost time on tensors this small
    (tmp_path / "ours.gold_conll").write_text(conll(documents()), encoding="utf-8")
    yield tmp_path
    torch.set_num_threads(before)


def test_clusters_from_training_to_raw_text(run, files, model_folder):
    changes = [part for value in SETS for part in ("--set", value)]
    data = [
        part for name in ("train", "valid", "test") for part in (f"--{name}", "ours.gold_conll")
    ]
    options = "--model", model_folder, "--device", "cpu", "-o", "run"
    result = run("train", "coref", *data, *options, *changes)
    assert result.code == 0, result.err
    metrics = json.loads((files / "run/metrics.json").read_text(encoding="utf-8"))
    losses = [epoch["loss"] for epoch in metrics["epochs"]]
    assert min(losses[-5:]) < 0.3 * losses[0] and metrics["test"]["f1"] > 80

    scores = json.loads(run("evaluate", "run", "ours.gold_conll", "--json", "--device", "cpu").out)
    assert scores == metrics["test"]
    assert list(scores) == ["f1", "muc", "b3", "ceafe", "mentions"]

    shown = run("predict", "run", "ours.gold_conll", "--device", "cpu").out
    assert [line for line in shown.splitlines() if line.startswith("# ")] == [
        f"# {document.name}" for document in documents()
    ]
    assert "[1 " in shown and "\n1: " in shown
    told = run("predict", "run", "ours.gold_conll", "--json", "--device", "cpu").out.splitlines()
    assert [json.loads(line)["name"] for line in told] == [d.name for d in documents()]

    raw = "Mara sees the boat. She paints it.\n"
    (files / "raw.txt").write_text(raw, encoding="utf-8")
    for given in (("raw.txt",), ("--text", raw)):
        told = json.loads(run("predict", "run", *given, "--json", "--device", "cpu").out)
        assert [len(words) for words in told["sentences"]] == [5, 4]
        for mention in (mention for cluster in told["clusters"] for mention in cluster):
            assert raw[mention["start"] : mention["end"]] == mention["text"]

    (files / "bad.gold_conll").write_text(conll(documents()[:1])[:-15], encoding="utf-8")
    assert "has no #end document" in run("predict", "run", "bad.gold_conll").sentence
