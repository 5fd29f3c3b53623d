"""Text of tasks from their archives, what is held out, and a whole run on a small scale."""

import json
import sys
import tarfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from formats.tiny import random_model, with_targets
from torchelmo.formats import native
from torchelmo.text.words import get_tokenizer

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
CONLL = """-DOCSTART- -X- O O

Herons NNS I-NP O
wade VBP I-VP O

Rain NN I-NP O

-DOCSTART- -X- O O

Lyon NNP I-NP I-LOC
"""
TREES = "(3 (2 A) (3 (2 -LRB-) (2 read\\/write)))\n" * 30
SHIFTS = {
    "new_wiki": [["Herons wade.", "Reeds\n bend."], ["Rain falls."]],
    "reddit": [["My bike  broke.", "My boat sank."]],
    "amazon_reviews": [["A good lamp."]],
}


@pytest.fixture
def finetuning(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import finetuning

    yield finetuning
    for name in ("finetuning", "results"):
        sys.modules.pop(name, None)


@pytest.fixture
def tasks(tmp_path):
    squad = {
        f"qa/{name}_v1.0.json": json.dumps(
            {
                "data": [
                    {"paragraphs": [{"context": c, "qas": [{"question": f"{c}?"}]} for c in entry]}
                    for entry in entries
                ]
            }
        )
        for name, entries in SHIFTS.items()
    }
    archives = {
        "ner": {"ner/conll2003/eng.train": CONLL, "ner/conll2003/eng.testa": CONLL},
        "sst": {"sst/train.txt": TREES, "sst/dev.txt": TREES[: len(TREES) // 30]},
        "nli": {
            "nli/snli/s1.dev": "A dog runs . \nA man sits . \n",
            "nli/snli/s2.dev": "A dog moves . \nNobody sits . \n",
            "nli/cad_snli/train.tsv": "sentence1\tsentence2\tgold\nA dog runs.\tIt isn't red.\tx\n",
        },
        "qa": squad,
    }
    for name, files in archives.items():
        with tarfile.open(tmp_path / f"{name}.tar.xz", "w:xz") as archive:
            for path, text in files.items():
                info = tarfile.TarInfo(path)
                info.size = len(text.encode())
                archive.addfile(info, BytesIO(text.encode()))
    return tmp_path


def test_texts(finetuning, tasks):
    tokenizer = get_tokenizer("words")
    found = {name: read(tasks, tokenizer) for name, read in finetuning.TASKS.items()}
    assert found["conll2003"].train == [["Herons wade", "Rain"], ["Lyon"]]
    assert found["sst"].train == [["A ( read/write"]] * 30 and len(found["sst"].valid) == 1
    pairs = found["snli"].train + found["snli"].valid
    # The dog's premise is there once, and links both pairs.
    assert sorted(pairs) == [
        ["A dog runs .", "A dog moves .", "It is n't red ."],
        ["A man sits .", "Nobody sits ."],
    ]
    for name, line in (("contexts", "Reeds bend."), ("questions", "Reeds bend.?")):
        one = found[f"squadshifts-{name}"]
        assert one.raw and len(one.train) == 4 and len(one.valid) == 1
        # Paragraphs of an article stay together, posts stand alone.
        assert sorted(map(len, one.train + one.valid)) == [1, 1, 1, 1, 2]
        assert [line] in [document[1:] for document in one.train + one.valid]
    held = [found[f"squadshifts-{name}"].valid[0][0] for name in ("contexts", "questions")]
    assert held[1] == f"{held[0]}?"


def test_the_draw_is_fixed_and_parts_everything(finetuning):
    groups = [[str(n)] for n in range(50)]
    train, valid = finetuning.parted(groups)
    assert len(valid) == 5 and sorted(train + valid) == sorted(groups)
    assert finetuning.parted(groups) == (train, valid)
    taken, total = finetuning.cut([["a b"]] * 10, 5, lambda line: len(line.split()))
    assert (len(taken), total) == (3, 6)


def test_a_run(finetuning, tasks, tmp_path, monkeypatch):
    words = ["<S>", "</S>", "<UNK>", "A", "(", "read/write"]
    native.write(replace(with_targets(random_model(), words)), tmp_path / "heron")
    out = tmp_path / "results" / "models"
    given = [tmp_path / "heron", "--tasks", tasks, "--only", "sst", "-o", out]
    given += ["--learning-rate", "0.02"]
    monkeypatch.setattr(sys, "argv", ["benchmarks/finetuning.py", *map(str, given)])
    finetuning.main()
    found = json.loads((out / "finetuning-sst.json").read_text(encoding="utf-8"))
    values = found["values"]
    assert found["name"] == "models-finetuning-sst" and found["data"] == "SST, train to dev"
    assert found["model"].startswith("heron, ")
    assert values["before"]["tokens"] == 4 and values["before"]["unknown"] == 0
    assert values["before"]["characters"] == len("A ( read/write")
    assert values["tokens"] == 90 and values["share"] == 1
    assert values["options"]["sentences_by_line"] and values["options"]["learning_rate"] == 0.02
    assert values["after"]["perplexity"] < values["before"]["perplexity"]
