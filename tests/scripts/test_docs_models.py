"""Tables of the packaged models, from result files as the commands write them."""

import importlib.util
import json
from pathlib import Path

import pytest

from analysis.test_neighbours_table import CAVE, Angles
from torchelmo.analysis import neighbours_table, results, senses
from torchelmo.analysis.forms import Forms

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "docs_models.py"
SCORE = {
    "forward": 50.0,
    "backward": 40.0,
    "perplexity": 44.72,
    "tokens": 1000,
    "unknown": 25,
    "perplexity_per_word": 1234.5,
    "bits_per_character": 1.1666,
}


@pytest.fixture
def page(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("docs_models", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", tmp_path)

    def write(name, values, **facts):
        known = {"model": "en-small, 1024/128", "data": "a pond", "hardware": "a reed"}
        results.write({**known, **facts, "values": values}, tmp_path / f"{name}.json")

    module.write = write
    return module


def lines(text):
    return [line for line in text.splitlines() if line.startswith("|") and "---" not in line]


def test_nothing_is_said_of_what_is_not_there(page):
    assert page.models() == page.finetuning() == page.loading() == page.trials() == ""
    assert page.neighbours() == "No model is packaged yet.\n"


def test_prediction(page):
    warm = {"wiki.valid": {"warm": SCORE, "cold": {**SCORE, "bits_per_character": 1.25}}}
    page.write("models/perplexity-en-small", warm)
    text = page.models()
    assert text.startswith("## Measured\n\n### Prediction\n\n| model, text |")
    assert lines(text)[1:] == [
        "| en-small, wiki.valid | warm | 1.167 | 44.7 (50.0 / 40.0) | 1,234 | 2.5% |",
        "| en-small, wiki.valid | cold | 1.250 | 44.7 (50.0 / 40.0) | 1,234 | 2.5% |",
    ]
    assert text.count("###") == 1


def test_layers_of_two_models_with_the_best_marked(page):
    baselines = {"majority": {"test": 50.0}, "GloVe 6B 50d, word": {"tune": 51.0, "test": 50.5}}
    small = {"0": {"tune": 51.0, "test": 50.0}, "1": {"tune": 55.0, "test": 54.04}}
    page.write("analysis/wic-en-small", {"layers": small, "baselines": baselines})
    large = {**small, "mix": {"tune": 57.0, "test": 56.0, "weights": [0, 1]}}
    page.write("analysis/wic-en-original", {"layers": large, "baselines": baselines})
    head, *found = lines(page.wic())
    assert head == (
        "| a pond | en-small, test | en-small, tune | en-original, test | en-original, tune |"
    )
    assert found == [
        "| layer 0, spelling alone | 50.0 | 51.0 | 50.0 | 51.0 |",
        "| layer 1 | **54.0** | **55.0** | 54.0 | 55.0 |",
        "| best mix |  |  | **56.0** | **57.0** |",
        "| majority | 50.0 |  | 50.0 |  |",
        "| GloVe 6B 50d, word | 50.5 | 51.0 | 50.5 | 51.0 |",
    ]
    assert "| WiC, accuracy | 50.0 | 50.5 | 50.0 | 54.0 |  |  |" in page.worth()


def test_korean_stands_apart(page):
    for model in ("en-small", "ko-small"):
        page.write(f"analysis/pos-{model}", {"layers": {"0": {"test": 90.0}}, "baselines": {}})
    assert [line for line in lines(page.pos()) if "small" in line] == [
        "| a pond | en-small, test |",
        "| a pond | ko-small, test |",
    ]


def test_forms_name_the_nearest_other(page):
    items = Forms.read(Path("en")).items
    cosines = {f"{item.form} {item.kin}": [0.8, 0.1, 0.3, 0.2] for item in items}
    cosines["walked walk"] = [0.2, 0.4, 0.3, 0.1]
    layer = {"kin": 95.0, "cosines": cosines}
    found = {"layers": {"0": layer}, "baselines": {"chance": {"kin": 25.0}}}
    page.write("analysis/forms-en-small", found)
    text = page.forms()
    assert "English: 95 % of the forms are nearer to their kin in layer 0 (chance 25 %)." in text
    assert "| inflected | walked | walk 0.20 | wallet 0.40 | other nearer |" in text
    assert "| inflected | dogs | dog 0.80 | table 0.30 |  |" in text
    assert len(lines(text)) == 21


def test_neighbours_in_both_languages(page):
    cave = senses.parse([senses.HEADER, *map("\t".join, CAVE)])
    found = neighbours_table.figures(neighbours_table.build(Angles(), cave, k=1))
    for language in ("en", "ko"):
        page.write(f"analysis/neighbours-{language}-small", found)
    text = page.neighbours()
    assert text.startswith("## English\n\nen-small, 1024/128; a pond.\n\n| of 1 nearest")
    assert "\n\n## Korean\n\n" in text and text.count("### bat") == 2
    assert json.loads(json.dumps(found)) == found


def test_finetuning_and_loading(page):
    options = {"learning_rate": 3e-4, "dropout": 0.1, "batch": 32, "unroll": 20}
    after = {**SCORE, "perplexity": 20.0, "bits_per_character": 0.9}
    values = {"before": SCORE, "after": after, "tokens": 90_000, "options": options}
    page.write("models/finetuning-sst", values, data="SST")
    (row,) = lines(page.finetuning())[1:]
    assert row == (
        "| SST | 90,000 / 1,000 | 44.7 (50.0 / 40.0) | **20.0** (50.0 / 40.0) | 1.167 → 0.900 | "
        "131.5 → 78.6 |"
    )
    assert "learning rate 0.0003" in page.finetuning()
    page.write("models/load-en-small", {"load": 0.4321, "import": 1.5})
    assert lines(page.loading())[1:] == ["| en-small | 0.43 | 1.50 |"]


def test_trials(page):
    def one(text, characters, bits, unknown, sense, *changes):
        scores = {"bits_per_character_spelt": bits}
        layers = {n: {"dev": 50.0, "centroid": sense} for n in "012"}
        baselines = {"majority": {"centroid": 60.0}}
        probe = {"layers": layers, "baselines": baselines}
        return {
            "text": text,
            "characters": characters,
            "vocabulary": 1000,
            "set": list(changes),
            "tokens": 70_000_000,
            "epochs": 2.5,
            "valid": {"wiki": {"unknown_percent": unknown, "warm": scores, "cold": scores}},
            "probes": {"wic": probe, "homographs": probe},
        }

    values = {
        "a": one("kiwi", "jamo", 3.6, 3.0, 72.0),
        "b": one("words", "jamo", 4.0, 20.0, 68.5),
        "c": one("kiwi", "jamo", 3.0, 3.0, 72.0, "train.dropout=0.0"),
    }
    page.write("models/trials-ko", values)
    text = page.trials()
    assert "they take 10% fewer bits than eojeol, leave 3.0 instead of 20.0 %" in text
    assert "3.5 points more homographs" in text
    wic, best = "50.0 / 50.0 / 50.0", "72.0 / 72.0 / 72.0"
    assert lines(text)[1:] == [
        f"| morphemes (kiwi), jamo | 3.600 / 3.600 | 3.0% | {wic} | {best} |",
        f"| eojeol, jamo | 4.000 / 4.000 | 20.0% | {wic} | 68.5 / 68.5 / 68.5 |",
        f"| morphemes (kiwi), jamo, dropout=0.0 | 3.000 / 3.000 | 3.0% | {wic} | {best} |",
    ]


def test_trials_of_settings(page):
    def one(warm, cold, **changes):
        train = {"batch": 8, "unroll": 20, "learning_rate": 0.003, "dropout": 0.0}
        train["weight_decay"] = 0.0
        wiki, books = (
            {
                start: {"perplexity": p * times, "bits_per_character": p / 100}
                for start, p in (("warm", warm), ("cold", cold))
            }
            for times in (1, 2)
        )
        return {
            "text": "all",
            "vocabulary": 1000,
            "train": {**train, "reset_share": 0.1, **changes},
            "tokens": 60_000_000,
            "epochs": 0.8,
            "valid": {"wiki": wiki, "books": books},
            "probes": {"wic": {"layers": {n: {"dev": 55.0} for n in "012"}}},
        }

    values = {
        "base": one(100.0, 110.0),
        "dropout-.1": one(125.0, 130.0, dropout=0.1),
        "reset-0": one(98.0, 120.0, reset_share=0.0),
        "reset-.3": one(101.0, 110.0, reset_share=0.3),
        "rate-5e-3": one(90.0, 99.0, learning_rate=0.005),
        "rate-1e-2": one(81.0, 90.0, learning_rate=0.01),
        "decay-.01": one(90.0, 99.0, learning_rate=0.005, weight_decay=0.01),
        "512x40-5e-3": one(87.3, 99.9, learning_rate=0.005, batch=4, unroll=40),
        "256x80-5e-3": one(81.0, 99.0, learning_rate=0.005, batch=2, unroll=80),
        "long": {**one(50.0, 55.0, reset_share=0.0), "text": "wiki-1", "tokens": 355_000_000},
    }
    page.write("models/trials-en", values)
    text = page.trials()
    assert text.startswith("## Settings of training, tried on English\n")
    assert "0.005 instead of 0.003 changes the perplexity most: -10.0%" in text
    assert "-10.0%. 0.01 gives -10.0% more." in text
    assert "4 rows of 40 tokens help a warm start (-3.0%) and not a cold one (+0.9%)" in text
    assert "2 rows of 80 help it most (-10.0% and +0.0%)" in text
    assert "A weight decay of 0.01 changes nothing (+0.0%)" in text
    assert "a warm start is a little worse (+2.0%) and a cold one better (-8.3%)" in text
    assert "30% give no more (+1.0% and +0.0%)" in text and "gives -20.0%." in text
    found = lines(text)
    assert len(found) == 11
    assert found[1] == (
        "| rows 8, tokens a row 20, learning rate 0.003, dropout 0, weight decay 0, "
        "reset_share 0.1 | 100.0 / 110.0 | 1.000 / 1.100 | 200.0 / 220.0 | 55.0 / 55.0 / 55.0 |"
    )
    alone = "Wikipedia alone, 355 M tokens, 1,000 targets"
    assert found[-1].startswith(f"| reset_share 0, {alone} | 50.0 / 55.0 |")

    train = {"batch": 8, "unroll": 20, "learning_rate": 0.003, "dropout": 0.1, "weight_decay": 0.0}
    stored = {
        "recipe": {"train": train, "data": {"reset_share": 0.0}},
        "curve": [{"tokens": 355_000_000}],
        "final": {"perplexity": 52.0, "bits_per_character": 0.52},
        "also": {"books.valid": {"perplexity": 80.0}},
    }
    page.write("pretrain/small-h200", stored)
    text = page.trials()
    assert "after 355 M tokens of Wikipedia alone still -3.8%, but +25.0% on books" in text
    assert lines(text)[-1] == f"| dropout 0.1, reset_share 0, {alone} | 52.0 | 0.520 | 80.0 |  |"
