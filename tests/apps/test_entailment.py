"""Entailment from files to raw text, and several runs as one."""

import json

import pytest

from tasks.test_entailment import pairs

RECIPE = """
task = "nli"

[words]
vectors = "none"
dim = 12

[elmo]
where = "both"
layer_norm = "tf"
dropout = 0.0

[network]
cells = 12
projection = 12
composition = 12
hidden = 12
dropout_rnn = 0.0
dropout_attention = 0.0
dropout = 0.0

[train]
epochs = 40
batch = 5
learning_rate = 0.005
"""


@pytest.fixture
def files(tmp_path):
    rows = [
        {"sentence1": " ".join(p.first), "sentence2": " ".join(p.second), "gold_label": p.label}
        for p in pairs()
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "pairs.jsonl").write_text(text, encoding="utf-8")
    (tmp_path / "nli.toml").write_text(RECIPE, encoding="utf-8")
    return tmp_path


def test_from_training_to_raw_text_and_two_runs_as_one(run, files, model_folder):
    data = "--train", "pairs.jsonl", "--valid", "pairs.jsonl"
    for seed in (1, 2):
        options = "--model", model_folder, "--device", "cpu", "--seed", seed
        made = run("train", "nli", "nli.toml", *data, "-o", f"run-{seed}", *options)
        assert made.code == 0, made.err
    assert "accuracy 100.00" in run("evaluate", "run-1", "pairs.jsonl").out
    both = run("evaluate", "run-1", "run-2", "pairs.jsonl", "--json", "--device", "cpu")
    assert json.loads(both.out) == {"accuracy": 100.0}, both.err

    raw = "Two cooks chop onions\tThe kitchen is empty"
    (files / "in.txt").write_text(f"{raw}\n\n", encoding="utf-8")
    label, share, *texts = run("predict", "run-1", "in.txt").out.rstrip("\n").split("\t")
    assert label == "contradiction" and float(share) > 0.5 and texts == raw.split("\t")
    told = json.loads(run("predict", "run-1", "--text", raw, "--json").out)
    assert told["label"] == label and told["hypothesis"] == "The kitchen is empty"
    one, two, both = (
        json.loads(run("predict", *runs, "in.txt", "--json").out)["shares"]
        for runs in (["run-1"], ["run-2"], ["run-1", "run-2"])
    )
    assert both == pytest.approx({name: (one[name] + two[name]) / 2 for name in one}, abs=1e-6)
    assert run("predict", "run-1", "run-2", "--text", raw).out.startswith("contradiction\t")
    words = run("predict", "run-1", "--text", raw, "--tokenized").sentence
    assert "given as raw text, a tab between them" in words
    assert "is no pair: expected a premise" in run("predict", "run-1", "--text", "one").sentence
    assert "there is no folder gone" in run("evaluate", "run-1", "gone", "pairs.jsonl").sentence
