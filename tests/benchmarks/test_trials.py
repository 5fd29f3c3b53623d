"""Trials on a small scale: what unknown words cost, marked text, a whole list, its result file."""

import json
import lzma
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from torchelmo.pretrain.corpus import Corpus
from torchelmo.pretrain.prepare import PrepareOptions, prepare
from torchelmo.text.words import get_tokenizer

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
LINES = ["Herons wade in the pond.", "The reeds bend; rain falls.", "Nothing moves, nobody waits."]
WIC = "wade\tV\t1-1\tHerons wade slowly\tWe wade through\n"
GIVEN = {
    "alphabet": 100,
    "cut": "cut.txt.xz",
    "valid": {"pond": "pond.valid.txt.xz"},
    "spacing": {"cut": {"pond": 0.5}},
    "texts": {
        "cut": {
            "train": ["pond.marked.txt.xz"],
            "valid": ["valid.marked.txt"],
            "tokenizer": "whitespace",
            "tokenized_by": "kiwi 1",
            "sentences": "lines",
        },
        "joined": {
            "train": ["pond.marked.txt.xz"],
            "valid": ["valid.marked.txt"],
            "joined": True,
            "sentences": "lines",
        },
    },
    "wic": "wic",
    "defaults": {"tokens": 1e6, "characters": "bytes", "max_characters": 50, "vocab": 12},
    "trials": [
        {"name": "one", "text": "cut"},
        {"name": "two", "text": "joined", "set": ["train.dropout=0.0"]},
        {"name": "three", "extra": True, "text": "joined"},
    ],
}


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import trial_measures
    import trial_results
    import trials

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the network is tiny
    yield trial_measures, trials, trial_results
    torch.set_num_threads(threads)
    for name in ("trial_measures", "trial_results", "trial_texts", "trials", "results"):
        sys.modules.pop(name, None)


@pytest.fixture
def data(modules, tmp_path):
    home = tmp_path / "data"
    (home / "wic").mkdir(parents=True)
    tokenizer = get_tokenizer("words")
    marked = "".join(modules[0].mark(line, tokenizer) + "\n" for line in LINES)
    with lzma.open(home / "pond.marked.txt.xz", "wt", encoding="utf-8", newline="\n") as file:
        file.write((marked + "\n") * 40)
    (home / "valid.marked.txt").write_text(marked, encoding="utf-8", newline="\n")
    with lzma.open(home / "pond.valid.txt.xz", "wt", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in LINES)
    with lzma.open(home / "cut.txt.xz", "wt", encoding="utf-8", newline="\n") as file:
        file.writelines([marked, "Herons wade slowly\n", "We wade through\n"])
    for part in ("train", "dev"):
        (home / "wic" / f"{part}.data.txt").write_text(WIC * 2, encoding="utf-8")
        (home / "wic" / f"{part}.gold.txt").write_text("T\nF\n", encoding="utf-8")
    (home / "pond.json").write_text(json.dumps(GIVEN), encoding="utf-8")
    return home


def test_marked_text_is_cut_as_it_was(modules):
    measures, tokenizer = modules[0], get_tokenizer("words")
    marked = [measures.mark(line, tokenizer) for line in LINES]
    assert marked[1] == "The reeds bend\x1f; rain falls\x1f."
    cut = measures.Cut(marked, "words", "1")
    for line in LINES:
        assert cut(line) == tokenizer(line) and cut.words(line) == tokenizer.words(line)


def test_text_cut_elsewhere_is_the_same_corpus(modules, tmp_path):
    import trial_texts

    raw, marked = tmp_path / "raw.txt", tmp_path / "marked.txt"
    lines = [f"{LINES[n % 3]} Rain {n} fell." for n in range(450)]
    raw.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    blocks = [trial_texts.marked("words", block) for block in trial_texts.blocks(raw)]
    marked.write_text("".join(blocks), encoding="utf-8", newline="\n")
    whole = PrepareOptions(valid_share=0.3)
    given = {"tokenizer": "whitespace", "tokenized_by": "words 1", "sentences": "lines"}
    prepare([raw], tmp_path / "one", whole)
    prepare([marked], tmp_path / "two", replace(whole, **given))
    one, two = (Corpus.open(tmp_path / name) for name in ("one", "two"))
    assert len(blocks) == 3 and one.train.n_documents + one.valid.n_documents == 3
    assert one.sha256 == two.sha256 and one.tokenizer == two.tokenizer
    asked = list(trial_texts.asked(raw, None, None))
    assert asked[:3] == [LINES[0], "Rain 0 fell.", LINES[1]] and len(asked) == 900


def test_speller(modules):
    speller = modules[0].Speller(["aa"], alphabet=1)
    # Letters and the end: 2 kinds over (1 of 2); "a" 2 of 3 times, the end once.
    one = [(2 + 2 * 0.5) / 5, (1 + 2 * 0.5) / 5]
    # After a begin "a" was seen once; then after two begins.
    first = (1 + 1 * ((1 + 1 * one[0]) / 2)) / 2
    assert math.isclose(speller("a"), -math.log2(first) - math.log2(_after_a(one[1])))
    # All words together: shares sum to 1 over what may follow.
    assert math.isclose(_after_a(one[1]) + _other(one[0]), 1)


def _after_a(end):
    """The end after a begin and "a": never seen there, after "a" once of twice."""
    return (0 + 1 * ((1 + 2 * end) / 4)) / 2


def _other(letter):
    return (1 + 1 * ((1 + 2 * letter) / 4)) / 2


def test_chosen(modules):
    trials = modules[1]
    assert [t["name"] for t in trials.chosen(GIVEN, "", toy=False)] == ["one", "two"]
    assert [t["name"] for t in trials.chosen(GIVEN, "three,one", toy=False)] == ["three", "one"]
    with pytest.raises(SystemExit, match="no trial four"):
        trials.chosen(GIVEN, "four", toy=False)


@pytest.mark.parametrize("name", ["en", "ko"])
def test_our_lists(modules, name):
    given = json.loads((BENCHMARKS / "trials" / f"{name}.json").read_text(encoding="utf-8"))
    trials = modules[1].chosen(given, "", toy=False)
    assert {trial["text"] for trial in trials} <= set(given["texts"])
    assert len({trial["name"] for trial in given["trials"]}) == len(given["trials"])
    files = [*given["valid"].values(), *(f for t in given["texts"].values() for f in t["train"])]
    assert all("/" not in file for file in files)


def test_two_trials_and_their_result(modules, data, tmp_path, monkeypatch):
    _, trials, trial_results = modules
    bench = trials.Bench(GIVEN, (data,), tmp_path / "work", "small", "cpu", toy=True)
    asked = trials.chosen(GIVEN, "", toy=True)
    trials.prepare_all(bench, asked)
    rows = [trials.run_trial(bench, trial) for trial in asked]
    assert not any("failed" in row for row in rows), rows
    out = tmp_path / "rows.jsonl"
    out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    one, two = rows
    assert (one["name"], two["name"]) == ("one", "two") and one["steps"] == 20
    assert one["corpus"]["tokenizer"]["name"] == "kiwi"
    # Both cut alike, so that the same words are unknown, and count the characters of the raw text.
    found, other = one["text"]["pond"], two["text"]["pond"]
    characters = sum(map(len, LINES))
    assert found["characters"] == other["characters"] == characters
    assert found["unknown_percent"] == other["unknown_percent"] > 0
    assert found["spacing"] == 0.5 and other["spacing"] == 0
    for kind in ("warm", "cold"):
        bits = found[kind]["bits_per_character"]
        predicted = math.log2(found[kind]["perplexity"]) * found["tokens"] / characters
        assert math.isclose(bits, predicted, rel_tol=1e-6)
        total = found[kind]["bits_per_character_spelt"]
        assert math.isclose(total, bits + found["spelling"] + 0.5)
    assert set(one["probes"]["wic"]["layers"]) == {"0", "1", "2", "average", "mix"}
    assert trials.summary(one).startswith("one: 0 M tokens") and "wic 0:" in trials.summary(one)

    target = tmp_path / "models" / "trials-pond.json"
    given = [out, "--data", "a pond", "--commit", "abc", "-o", target]
    monkeypatch.setattr(sys, "argv", ["benchmarks/trial_results.py", *map(str, given)])
    trial_results.main()
    result = json.loads(target.read_text(encoding="utf-8"))
    assert result["name"] == "models-trials-pond" and result["seeds"] == [0]
    assert result["hardware"] == "cpu" and result["commit"] == "abc"
    kept = result["values"]["two"]
    assert kept["set"] == ["train.dropout=0.0"] and kept["vocabulary"] == 12
    assert kept["train"]["dropout"] == 0 and kept["train"]["batch"] > 0
    assert "homographs" not in result["metric"] and "; WiC by layer" in result["metric"]
    assert kept["valid"]["pond"]["warm"]["perplexity"] == pytest.approx(
        other["warm"]["perplexity"], abs=1e-4
    )


CHILD = """
import sys
from dataclasses import replace
from pathlib import Path
if "--row" in sys.argv and "two" not in sys.argv:
    Path(sys.argv[-1]).write_text('{"name": "one", "failed": "it rained"}')
"""


def test_a_bad_trial_spoils_nothing(modules, data, tmp_path, capsys):
    trials = modules[1]
    bench = trials.Bench(GIVEN, (data,), tmp_path / "work", "small", "cpu", toy=True)
    out, asked = tmp_path / "rows.jsonl", trials.chosen(GIVEN, "", toy=True)
    assert trials.run_all(bench, asked, out, [sys.executable, "-c", CHILD], 2, 60) == 2
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert {row["name"]: row["failed"] for row in rows} == {"one": "it rained", "two": "exit 0"}
    assert "one: it rained" in capsys.readouterr().out


def test_a_corpus_that_cannot_be_made_is_told(modules, tmp_path):
    trials = modules[1]
    bench = trials.Bench(GIVEN, (tmp_path,), tmp_path / "work", "small", "cpu", toy=True)
    asked = trials.chosen(GIVEN, "", toy=True)
    trials.prepare_all(bench, asked)
    with pytest.raises(RuntimeError, match=r"no folder of --data has pond\.marked\.txt\.xz"):
        trials.run_trial(bench, asked[0])
