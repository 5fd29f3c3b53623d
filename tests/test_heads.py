"""The heads in the package as they are: their files, and predictions for raw text.

Every test skips while its head is not there.
"""

import functools
import importlib.util
import json
import sys

import pytest
import torch
from safetensors.torch import load_file

from torchelmo.apps.cli import main
from torchelmo.formats import load
from torchelmo.tasks.heads import packaged_heads
from torchelmo.tasks.model import load_task

LIMIT = 5_000_000  # bytes a head
ALL = 4_000_000  # bytes of all heads: beside two models of 45 MB
TASKS = {"en-pos": "pos", "en-srl": "srl", "ko-nsmc": "nsmc"}
FREE = ("CC BY-SA 4.0", "CC0 1.0")


@functools.cache
def head(name):
    return load_task(name, device="cpu")


@pytest.fixture(params=list(TASKS))
def name(request):
    return needed(request.param)


def needed(name):
    if name not in packaged_heads():
        pytest.skip(f"{name} is not in this package")
    if name.startswith("ko") and importlib.util.find_spec("kiwipiepy") is None:
        pytest.skip(f"{name} needs kiwipiepy for raw text")
    return name


def shown(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["torchelmo", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    out = capsys.readouterr()
    assert not stop.value.code, out.err
    return out.out


def test_files(name):
    folder = packaged_heads()[name]
    assert sum(path.stat().st_size for path in folder.iterdir()) <= LIMIT
    assert {t.dtype for t in load_file(folder / "model.safetensors").values()} == {torch.float16}
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["task"] == TASKS[name] and config["bilm"]["name"] in load.packaged()
    assert config["recipe"]["words"] is None or config["recipe"]["words"]["vectors"] is None
    for file in ("config.json", "metrics.json", "README.md", "ATTRIBUTION.md"):
        text = (folder / file).read_text(encoding="utf-8")
        assert '"/' not in text and "C:\\" not in text
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlicense: cc-by-sa-4.0\n") and "None were given" not in card
    attribution = (folder / "ATTRIBUTION.md").read_text(encoding="utf-8")
    assert any(f": {licence}." in attribution for licence in FREE)


def test_all_heads_together_are_small():
    files = [path for folder in packaged_heads().values() for path in folder.iterdir()]
    assert sum(path.stat().st_size for path in files) <= ALL


def test_models_shows_it(name, monkeypatch, capsys):
    entries = json.loads(shown(monkeypatch, capsys, "models", "--json"))
    (entry,) = [one for one in entries if one["name"] == name]
    assert (entry["where"], entry["task"]) == ("packaged", TASKS[name])
    assert f"Attribution of {name}" in shown(monkeypatch, capsys, "models", name)


def test_parts_of_speech(monkeypatch, capsys):
    needed("en-pos")
    text = "The old man bought three red apples in London and ate them slowly."
    line = shown(monkeypatch, capsys, "predict", "en-pos", "--device", "cpu", "--text", text)
    words = dict(cell.rsplit("/", 1) for cell in line.split())
    expected = {
        "The": "DET", "old": "ADJ", "man": "NOUN", "bought": "VERB", "three": "NUM",
        "red": "ADJ", "apples": "NOUN", "in": "ADP", "London": "PROPN", "and": "CCONJ",
        "ate": "VERB", "them": "PRON", "slowly": "ADV", ".": "PUNCT",
    }  # fmt: skip
    assert sum(words[word] == tag for word, tag in expected.items()) >= len(expected) - 1, line
    light, lights = head("en-pos").predict(["Please light the lamp .", "The light is bright ."])
    assert (light[1], lights[1]) == ("VERB", "NOUN")


def test_roles(monkeypatch, capsys):
    needed("en-srl")
    text = "The teacher [gave] the children a book."
    line = shown(monkeypatch, capsys, "predict", "en-srl", "--device", "cpu", "--text", text)
    assert "[ARG0 The teacher] [V gave]" in line
    many = shown(monkeypatch, capsys, "predict", "srl", "--text", "She said that he left early.")
    assert "[V said]" in many and "[V left]" in many


def test_film_reviews(monkeypatch, capsys):
    needed("ko-nsmc")
    good = ["정말 재미있고 감동적인 영화였다", "배우들 연기가 최고예요 꼭 보세요"]
    bad = ["시간 낭비였다 정말 재미없다", "지루하고 유치해서 중간에 나왔음"]
    labels = [choice.label for choice in head("ko-nsmc").predict([*good, *bad])]
    assert labels == ["1", "1", "0", "0"]
    line = shown(monkeypatch, capsys, "predict", "ko-nsmc", "--text", good[0])
    assert line.startswith(("1\t0.", "1\t1."))
