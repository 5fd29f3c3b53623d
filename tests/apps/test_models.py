import json

import pytest

from bulk.tiny import tiny_model
from torchelmo.apps.cli.models import Entry, details, table
from torchelmo.formats import hub, load, native
from torchelmo.tasks import heads

CARD = """---
license: cc-by-sa-4.0
tags:
- elmo
---

# A small model of herons

Trained on a pond.
"""


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    folder = tmp_path / "heron-small"
    native.write(tiny_model(), folder, card=CARD)
    monkeypatch.setattr(load, "packaged", lambda: {"heron-small": folder})
    monkeypatch.setattr(heads, "packaged_heads", dict)
    return folder


def test_table(run, packaged):
    lines = run("models").out.splitlines()
    assert lines[0].split() == ["name", "where", "size", "licence", "about"]
    assert lines[1].split()[:2] == ["heron-small", "packaged"]
    assert "cc-by-sa-4.0" in lines[1]
    assert lines[1].endswith("A small model of herons")
    assert [line.split()[0] for line in lines[2:]] == list(hub.PUBLISHED)
    assert all("published" in line for line in lines[2:])


def test_json(run, packaged):
    entries = json.loads(run("models", "--json").out)
    ours = entries[0]
    assert ours["path"] == str(packaged)
    assert ours["size"] == sum(p.stat().st_size for p in packaged.iterdir())
    assert {entry["name"] for entry in entries} == {"heron-small", *hub.PUBLISHED}
    small = json.loads(run("models", "ai2-small", "--json").out)
    assert small["sources"][-1].endswith("weights.hdf5")
    assert small in entries


def test_one_model(run, packaged):
    shown = run("models", "heron-small").out
    assert "licence  cc-by-sa-4.0" in shown
    assert "Trained on a pond." in shown
    assert "---" not in shown
    shown = run("models", "ELMO-SMALL").out
    assert shown.startswith("ai2-small\nwhere    published\n")
    assert "elmo_2x1024_128_2048cnn_1xhighway_weights.hdf5" in shown


def test_a_model_that_was_downloaded(run, packaged, tmp_path):
    own = tmp_path / "cache" / "published" / "ai2-medium"
    own.mkdir(parents=True)
    for name in ("options.json", "weights.hdf5"):
        (own / name).write_bytes(b"x" * 1_500_000)
    mirror = tmp_path / "hub" / "models--somebody--elmo-heron" / "snapshots" / "1"
    native.write(tiny_model(), mirror, card=CARD)
    entries = {e["name"]: e for e in json.loads(run("models", "--json").out)}
    medium = entries["ai2-medium"]
    assert (medium["where"], medium["path"], medium["size"]) == ("cached", str(own), 3_000_000)
    assert entries["ai2-small"]["where"] == "published"
    heron = entries["somebody/elmo-heron"]
    assert (heron["where"], heron["licence"]) == ("cached", "cc-by-sa-4.0")


def test_a_name_that_does_not_exist(run):
    sentence = run("models", "ai2-larg").sentence
    assert "there is no model 'ai2-larg', the nearest is 'ai2-" in sentence


def test_unknown_facts_are_left_out():
    shown = details(Entry("x", "published"))
    assert shown.splitlines() == ["x", "where    published", "licence  not stated"]
    assert table([Entry("x", "published")]).splitlines()[1].split() == [
        "x",
        "published",
        "not",
        "stated",
    ]


ATTRIBUTION = "# Whose text\n\nWeights CC BY-SA 4.0, trained on\na pond.\n\n- reeds, by the wind\n"


def test_attribution(run, packaged):
    assert json.loads(run("models", "heron-small", "--json").out)["attribution"] is None
    assert ": Weights" not in run("models").out
    (packaged / "ATTRIBUTION.md").write_text(ATTRIBUTION, encoding="utf-8")
    last = run("models").out.splitlines()[-2:]
    assert last == [
        "",
        "heron-small: Weights CC BY-SA 4.0, trained on a pond. "
        "(all of it: torchelmo models heron-small)",
    ]
    shown = run("models", "heron-small").out
    assert shown.index("Trained on a pond.") < shown.index("- reeds, by the wind")
    assert json.loads(run("models", "heron-small", "--json").out)["attribution"] == ATTRIBUTION


def test_heads_are_listed(run, packaged, tmp_path, monkeypatch):
    folder = tmp_path / "heads/en-names"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"task": "ner"}', encoding="utf-8")
    (folder / "README.md").write_text(CARD.replace("model", "head"), encoding="utf-8")
    (folder / "ATTRIBUTION.md").write_text("# A\n\nTrained on letters.\n", encoding="utf-8")
    monkeypatch.setattr("torchelmo.tasks.heads.packaged_heads", lambda: {"en-names": folder})
    lines = run("models").out.splitlines()
    assert lines[2].split()[:2] == ["en-names", "packaged"]
    assert lines[2].endswith("A small head of herons")
    assert any(line.startswith("en-names: Trained on letters.") for line in lines)
    entry = json.loads(run("models", "en-names", "--json").out)
    assert (entry["task"], entry["path"]) == ("ner", str(folder))
    assert "task     ner" in run("models", "en-names").out
