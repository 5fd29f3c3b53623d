"""A run becomes a packaged model: small files, a card of what is known, an attribution."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from formats.tiny import WORDS, random_model, with_targets
from torchelmo.config import TokenizerConfig
from torchelmo.elmo import Elmo
from torchelmo.errors import InputError
from torchelmo.formats import load, native

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "package_model.py"

TRAINING = {
    "steps": 50,
    "tokens": 40_000,
    "recipe": {
        "data": {"corpus": "/home/heron/corpus", "reset_share": 0.1},
        "train": {
            "batch": 8,
            "unroll": 20,
            "optimizer": "adamw",
            "learning_rate": 0.003,
            "schedule": "cosine",
            "dropout": 0.1,
            "precision": "bf16",
            "softmax": "sampled",
            "negatives": 64,
        },
    },
    "corpus": {"train": {"tokens": 10_000, "sentences": 500}, "coverage": 97.25},
    "best": {"perplexity": 12.345},
    "versions": {"torchelmo": "0.1.0", "torch": "2.13.0"},
}
RUN = {
    "name": "pretrain-heron",
    "hardware": "a pond",
    "data": "reeds",
    "values": {
        "recipe": {"batch": 3},
        "curve": [{"tokens": n * 10**6, "forward": 90 - n, "backward": 91 - n} for n in range(30)],
        "tokens_per_second": {"median": 10, "fastest": 12},
        "final": {"bits_per_character": 1.23456},
    },
}
CARD = """
title = "A small model of herons"
language = "en"
about = "It waits."
good = ["Waiting."]
bad = ["Flying far."]

[[sources]]
name = "Reeds"
by = "the wind"
url = "https://pond.example/"
licence = "CC BY-SA 3.0"
size = "3 words"
changes = "Leaves were removed."
"""
FIGURE = """
[[figures]]
label = "bits per character"
result = "heron"
value = "values.final.bits_per_character"
digits = 3
"""


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("package_model", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["package_model"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["package_model"]


@pytest.fixture
def home(tmp_path):
    """A run, a card and a result file."""
    model = with_targets(random_model())
    model = replace(model, config=replace(model.config, training=TRAINING))
    native.write(model, tmp_path / "run/best")
    (tmp_path / "card.toml").write_text(CARD + FIGURE, encoding="utf-8")
    (tmp_path / "heron.json").write_text(json.dumps(RUN), encoding="utf-8")
    return tmp_path


def package(script, home, **options):
    out = home / "weights" / "heron-small"
    return out, script.package(
        home / "run", out, home / "card.toml", [home / "heron.json"], **options
    )


def test_what_is_written(script, home):
    out, size = package(script, home)
    assert size == sum(path.stat().st_size for path in out.iterdir())
    assert {p.name for p in out.iterdir()} == {
        "ATTRIBUTION.md",
        "README.md",
        "config.json",
        "model.safetensors",
        "softmax.safetensors",
        "vocab.txt",
    }
    kinds = {t.dtype for t in load_file(out / "model.safetensors").values()}
    assert kinds == {torch.float16}
    assert load_file(out / "softmax.safetensors")["weight"].dtype == torch.int8
    assert "/home/heron" not in (out / "config.json").read_text(encoding="utf-8")
    model = native.read(out)
    assert model.vocabulary == WORDS
    assert model.config.training["recipe"]["data"]["corpus"] == "corpus"
    assert Elmo(model).perplexity([["a", "…"]]).tokens == 3


def test_the_card(script, home):
    out, _ = package(script, home)
    text = (out / "README.md").read_text(encoding="utf-8")
    for line in (
        "license: cc-by-sa-4.0",
        "# A small model of herons",
        'elmo = Elmo.from_pretrained("heron-small")',
        "| [Reeds](https://pond.example/) | the wind | CC BY-SA 3.0 | 3 words |",
        "| text | 10,000 tokens in 500 sentences, vocabulary 8 (97.2 % of the running text) |",
        "| tokens read in each direction | 40,000 (3.8 epochs), 50 steps |",
        "| loss | sampled softmax, 64 negatives |",
        "| sentences begun from a zero state | 10% |",
        "| hardware | a pond |",
        "| time | 1.1 hours of training steps |",  # 40,000 tokens, 10 a second
        "| speed | 10 tokens a second, median |",
        "| validation perplexity in training | 12.35 (before rounding) |",
        "| bits per character | 1.235 | reeds |",
        "- Waiting.",
        "- Flying far.",
    ):
        assert line in text.splitlines(), line
    points = [line for line in text.splitlines() if " M | " in line]
    assert len(points) == script.POINTS
    assert points[0] == "| 0.0 M | 90.00 | 91.00 |" and points[-1] == "| 29.0 M | 61.00 | 62.00 |"
    assert "| rounding | biLM 0.0" in text
    assert "stored as | biLM float16" in text
    assert "pip install" not in text


def test_the_attribution(script, home):
    out, _ = package(script, home)
    text = (out / "ATTRIBUTION.md").read_text(encoding="utf-8")
    assert "licensed CC BY-SA 4.0; trained on Reeds." in text.split("\n\n")[1]
    assert "- Reeds, by the wind (https://pond.example/): CC BY-SA 3.0. Leaves were" in text
    assert "https://creativecommons.org/licenses/by-sa/4.0/" in text
    # It stays with what is made of the model.
    Elmo.from_pretrained(out).save_pretrained(home / "again")
    assert (home / "again/ATTRIBUTION.md").read_text(encoding="utf-8") == text


def test_packaging_again_changes_nothing_but_the_card(script, home):
    out, _ = package(script, home)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(InputError, match="exists and is not empty"):
        package(script, home)
    (home / "card.toml").write_text(CARD, encoding="utf-8")
    package(script, home, overwrite=True)
    after = {path.name: path.read_bytes() for path in out.iterdir()}
    assert {name for name in after if after[name] != before.get(name)} == {"README.md"}
    # without chosen figures, all numbers
    assert b"| pretrain-heron: final bits_per_character | 1.235 | reeds |" in after["README.md"]
    assert b"recipe batch" not in after["README.md"]


def test_a_model_that_comes_rounded(script, home):
    first, _ = package(script, home)
    again = home / "weights" / "again"
    options = home / "card.toml", [home / "heron.json"]
    script.package(first, again, *options)
    assert "| rounding |" not in (again / "README.md").read_text(encoding="utf-8")
    script.package(first, again, *options, rounded="biLM 1%", overwrite=True)
    text = (again / "README.md").read_text(encoding="utf-8")
    assert "| rounding | biLM 1% of a value (root mean square); figures are those of the" in text
    for name in ("model.safetensors", "softmax.safetensors", "vocab.txt"):
        assert (again / name).read_bytes() == (first / name).read_bytes()


def test_an_extra_is_named(script, home):
    model = native.read(home / "run/best")
    config = replace(model.config, tokenizer=TokenizerConfig(name="kiwi", version="1 x"))
    native.write(replace(model, config=config), home / "run/best", overwrite=True)
    out, _ = package(script, home)
    text = (out / "README.md").read_text(encoding="utf-8")
    assert "`pip install 'torchelmo[ko]'`" in text


def test_a_model_that_is_too_large(script, home, monkeypatch):
    monkeypatch.setattr(script, "LIMIT", 1000)
    with pytest.raises(InputError, match=r"would take .* MB, expected at most .*model\.safeten"):
        package(script, home)
    assert not (home / "weights/heron-small").exists()


@pytest.mark.parametrize(
    ("card", "sentence"),
    [
        (CARD.replace("good", "goood"), "has no key 'goood', the nearest is 'good'"),
        (CARD.partition("[[")[0], "is incomplete: .*sources"),
        (CARD.partition("[[")[0] + "sources = []", "names no sources"),
        ("title = ", "is not TOML"),
        (CARD + FIGURE.replace('"heron"', '"egret"'), r"'egret' was not given \(--results has her"),
        (CARD + FIGURE.replace("final", "first"), "has no number 'values.first.bits_per_char"),
    ],
)
def test_cards_that_are_wrong(script, home, card, sentence):
    (home / "card.toml").write_text(card, encoding="utf-8")
    with pytest.raises(InputError, match=sentence):
        package(script, home)
    assert not (home / "weights/heron-small").exists()


def test_models_that_cannot_be_packaged(script, home):
    native.write(random_model(), home / "bare")
    for run, sentence in (("bare", "has no softmax"), ("nothing", "neither a model folder nor")):
        with pytest.raises(InputError, match=sentence):
            script.package(home / run, home / "out", home / "card.toml", [])


def test_the_command(home):
    command = [sys.executable, SCRIPT, "run/best", "-o", "out", "--card", "card.toml"]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("package_model: ") and "was not given" in done.stderr
    command += ["--results", "heron.json"]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["output"] == "out", done.stderr


def test_the_cards_of_the_repository(script):
    for path in sorted((ROOT / "scripts/cards").glob("*.toml")):
        card = script.read_card(path)
        assert card.good and card.bad and all(source.licence for source in card.sources)


@pytest.mark.parametrize("name", sorted(load.packaged()))
def test_packaged_models(script, name):
    folder = load.packaged()[name]
    assert sum(path.stat().st_size for path in folder.iterdir()) <= script.LIMIT
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "license: cc-by-sa-4.0" in card and "None were given." not in card
    text = (folder / "ATTRIBUTION.md").read_text(encoding="utf-8")
    assert text == script.attribution(name, script.read_card(ROOT / f"scripts/cards/{name}.toml"))
