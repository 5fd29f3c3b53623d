"""Tables of the tasks, from result files as `experiment` writes them."""

import importlib.util
import json
from pathlib import Path

import pytest

from torchelmo.tasks.comparison import compare
from torchelmo.tasks.experiment import Group

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    spec = importlib.util.spec_from_file_location("docs_tasks", SCRIPTS / "docs_tasks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    return module


def run(condition, seed, score):
    mixes = {"input": {"s": [0.2, 0.5, 0.3], "gamma": 1.0 + seed}} if condition == "elmo" else {}
    return {
        "name": "x", "seed": seed, "date": "2020-02-02", "commit": "abc", "torch": "2",
        "hardware": "a reed", "metric": "f1", "test": {"f1": score}, "valid": {"f1": 1.0},
        "best_epoch": 3 + seed, "epochs": 9, "seconds": 90.0, "parameters": 4, "mixes": mixes,
        "examples": {"train": 1200, "valid": 20, "test": 30}, "layers": "float32",
        "bilm": ["en-small", "77"] if condition == "elmo" else None,
        "recipe": {"train": {"epochs": 9, "patience": 5}},
    }  # fmt: skip


def write(folder, name, seeds, paper):
    group = Group(train=("a",), test=("b",), seeds=seeds, about="a pond", paper=paper)
    scores = {"baseline": 80.0, "elmo": 86.0}
    found = {c: [run(c, seed, x + seed) for seed in seeds] for c, x in scores.items()}
    text = json.dumps(compare(name, group, found, "table1"))
    (folder / f"{name}.json").write_text(text, encoding="utf-8")


def test_nothing_is_said_of_what_is_not_there(page):
    assert page.tasks() == "" and page.brief() == ""


def test_the_tables(page, tmp_path):
    write(tmp_path, "chunk", (1,), {})
    write(tmp_path, "ner", (0, 1, 2), {"baseline": 90.15, "elmo": 92.22})
    write(tmp_path, "nli", (0, 1), {"baseline": 88.0, "elmo": 88.7})
    lines = page.tasks().splitlines()
    assert lines[0] == "### Without and with ELMo"
    table = [line for line in lines if line.startswith("|") and "---" not in line]
    assert table[1:4] == [
        "| entailment: a pond | f1 | 80.50 ± 0.71 | 86.50 ± 0.71 | +6.00 | 30.8 % | 2 | 88 → 88.7 "
        "| 5.8 % |",
        "| named entities: a pond | f1 | 81.00 ± 1.00 | 87.00 ± 1.00 | +6.00 | 31.6 % | 3 "
        "| 90.15 → 92.22 | 21.0 % |",
        "| chunk: a pond | f1 | 81.00 | 87.00 | +6.00 | 31.6 % | 1 |  |  |",
    ]
    assert "| named entities | input | 0.20 0.50 0.30 | 2.00 |" in table
    assert "| named entities | 1,200 / 20 / 30 | 9 | 3 to 5 | 1.5 / 1.5 | a reed |" in table
    assert page.brief().splitlines()[2:] == [  # those of the paper alone
        "| entailment (f1) | 80.50 ± 0.71 | 86.50 ± 0.71 | 30.8 % | 5.8 % |",
        "| named entities (f1) | 81.00 ± 1.00 | 87.00 ± 1.00 | 31.6 % | 21.0 % |",
    ]


def test_results_of_other_kinds_are_passed_over(page, tmp_path):
    (tmp_path / "other.json").write_text('{"name": "other"}', encoding="utf-8")
    assert page.tasks() == ""


def test_heads(page, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "HEADS", tmp_path / "heads")
    assert page.heads() == ""
    (tmp_path / "heads").mkdir()
    one = {"model": "en-ner over en-small", "task": "ner", "megabytes": 1.25, "data": "a pond"}
    text = json.dumps({**one, "values": {"f1": 91.234, "recall": 90}})
    (tmp_path / "heads/en-ner.json").write_text(text, encoding="utf-8")
    assert page.heads().splitlines() == [
        "| head | task | over | size | test data | figures |",
        "|---|---|---|---|---|---|",
        "| `en-ner` | `ner` | en-small | 1.2 MB | a pond | f1 91.23, recall 90.00 |",
    ]
