"""A trained task becomes a head: float16, a card, an attribution, by the name of its biLM."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bulk.tiny import tiny_model
from tasks.small import recipe, static, tagged, write_columns
from torchelmo.errors import InputError
from torchelmo.formats import load, native
from torchelmo.tasks.model import load_task
from torchelmo.tasks.trainer import fit

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
CARD = """
title = "Names in letters of herons"
language = "en"
about = "It marks names."
example = "Ivo sings."
data = "letters"
good = ["Names it knows."]
bad = ["Other names."]

[[sources]]
name = "Letters"
by = "Greta Holm"
url = "https://letters.example/"
licence = "CC BY 4.0"
size = "10 lines"
changes = "Stamps were taken off."
"""
ELMO = {"model": "heron-small", "where": "input"}


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    spec = importlib.util.spec_from_file_location("package_head", SCRIPTS / "package_head.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "package_head", module)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("package_model", None)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A package with a biLM, a card and the file that runs learn from."""
    native.write(tiny_model(), tmp_path / "weights/heron-small")
    monkeypatch.setattr(load, "packaged", lambda: {"heron-small": tmp_path / "weights/heron-small"})
    write_columns(tmp_path / "letters.txt", tagged())
    (tmp_path / "card.toml").write_text(CARD, encoding="utf-8")
    return tmp_path


def trained(home, **sections):
    data = {"train": str(home / "letters.txt"), "valid": f"{home / 'letters.txt'}"}
    spec = recipe("ner", **{"elmo": ELMO, "data": data, **sections})
    return fit(spec, output=home / "run", device="cpu", vectors=static())


def package(script, home, **options):
    out = home / "heads" / "en-names"
    return out, script.package(home / "run", out, home / "card.toml", **options)


def test_what_is_written(script, home):
    model = trained(home)
    out, size = package(
        script, home, test=str(home / "letters.txt"), result=home / "results/en-names.json"
    )
    assert size == sum(path.stat().st_size for path in out.iterdir()) < 100_000
    assert {path.name for path in out.iterdir()} == {
        "ATTRIBUTION.md",
        "README.md",
        "characters.txt",
        "config.json",
        "metrics.json",
        "model.safetensors",
        "tags.txt",
    }
    assert {t.dtype for t in load_file(out / "model.safetensors").values()} == {torch.float16}
    config = (out / "config.json").read_text(encoding="utf-8")
    assert str(home) not in config and json.loads(config)["bilm"]["name"] == "heron-small"
    assert json.loads(config)["recipe"]["data"]["train"] == "letters.txt"
    head = load_task(out, device="cpu")
    assert head.predict(tagged()) == model.predict(tagged())
    assert head.metrics["best"]["valid"]["f1"] == 100 and "epochs" not in head.metrics
    found = json.loads((home / "results/en-names.json").read_text(encoding="utf-8"))
    assert found["values"]["f1"] == 100 and found["model"] == "en-names over heron-small"
    assert {"name", "date", "commit", "command", "hardware", "torch", "data"} <= set(found)


def test_the_card_and_the_attribution(script, home):
    trained(home)
    out, _ = package(script, home, test=str(home / "letters.txt"))
    text = (out / "README.md").read_text(encoding="utf-8")
    for line in (
        "license: cc-by-sa-4.0",
        "# Names in letters of herons",
        'torchelmo predict en-names --text "Ivo sings."',
        "| biLM | heron-small |",
        "| [Letters](https://letters.example/) | Greta Holm | CC BY 4.0 | 10 lines |",
        "| examples | train 10, valid 10 |",
        "| f1 | 100.00 |",
        "On letters, the test part, by these files.",
        "- Other names.",
    ):
        assert line in text.splitlines(), line
    said = (out / "ATTRIBUTION.md").read_text(encoding="utf-8")
    assert "licensed CC BY-SA 4.0; trained on Letters." in said
    assert "- Letters, by Greta Holm (https://letters.example/): CC BY 4.0. Stamps" in said


def test_what_a_head_cannot_be(script, home, monkeypatch):
    light = {"train": {"epochs": 1}}
    trained(home, **light)
    with pytest.raises(InputError, match="give --test"):
        package(script, home, result=home / "x.json")
    with monkeypatch.context() as patched:
        patched.setattr(script, "LIMIT", 20_000)
        with pytest.raises(InputError, match=r"would take 0.0 MB, .* \(model.safetensors has"):
            package(script, home)
    assert not (home / "heads/en-names").exists()
    package(script, home)
    with pytest.raises(InputError, match="exists and is not empty"):
        package(script, home)
    package(script, home, overwrite=True)
    native.write(tiny_model(seed=1), home / "weights/heron-small", overwrite=True)
    with pytest.raises(InputError, match="a biLM with other weights"):
        package(script, home, overwrite=True)
    (home / "card.toml").write_text(CARD.partition("[[sources]]")[0], encoding="utf-8")
    with pytest.raises(InputError, match="sources"):
        package(script, home, overwrite=True)


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"words": {"vectors": "ours", "closed": True}}, "reads the word vectors 'ours'"),
        ({"elmo": {**ELMO, "where": "none"}}, "uses no biLM"),
    ],
)
def test_runs_that_need_more_than_the_package(script, home, sections, reason):
    trained(home, train={"epochs": 1}, **sections)
    with pytest.raises(InputError, match=reason):
        package(script, home)


def test_a_biLM_that_is_not_packaged(script, home):
    folder = home / "weights/heron-small"
    trained(home, train={"epochs": 1}, elmo={**ELMO, "model": str(folder)})
    with pytest.raises(InputError, match=r"expected a packaged model by its name \(heron-small\)"):
        package(script, home)


def test_the_command_says_what_is_wrong(tmp_path):
    call = [sys.executable, SCRIPTS / "package_head.py", tmp_path / "gone", "-o", tmp_path / "out"]
    card = SCRIPTS / "cards/heads/en-pos.toml"
    done = subprocess.run([*call, "--card", card], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "package_head: there is no folder" in done.stderr


@pytest.mark.parametrize("name", ["en-pos", "en-srl", "ko-nsmc"])
def test_our_cards(script, name):
    card = script.from_json(
        script.HeadCard, script.toml.read(SCRIPTS / f"cards/heads/{name}.toml"), name
    )
    free = {"CC BY-SA 4.0", "CC0 1.0"}
    assert card.sources and {source.licence for source in card.sources} <= free
