"""Questions from training to raw text, over a file in SQuAD's form."""

import json

import pytest

from tasks.asked import ASKED, HARBOUR, LAKE, squad

SETS = (
    "words.vectors=none",
    "words.dim=50",
    "characters=none",
    "elmo.dropout=0",
    "network.cells=32",
    "network.width=64",
    "network.dropout=0",
    "train.epochs=32",
    "train.batch=5",
    "train.optimizer=adam",
    "train.learning_rate=0.006",
    "train.ema=none",
)


@pytest.fixture
def trained(run, tmp_path, model_folder):
    (tmp_path / "ours.json").write_text(json.dumps(squad()), encoding="utf-8")
    changes = [part for value in SETS for part in ("--set", value)]
    data = "--train", "ours.json", "--valid", "ours.json", "--test", "ours.json"
    options = "--model", model_folder, "--device", "cpu", "-o", "run"
    result = run("train", "qa", *data, *options, *changes)
    assert result.code == 0, result.err
    assert "test   f1 100.00, em 100.00" in result.out
    return tmp_path


def test_questions_from_training_to_raw_text(run, trained):
    scores = run("evaluate", "run", "ours.json", "--json", "--device", "cpu")
    assert json.loads(scores.out) == {"f1": 100.0, "em": 100.0}
    lines = run("predict", "run", "ours.json", "--device", "cpu").out.splitlines()
    assert [line.split("\t")[0] for line in lines] == [answer for _, _, answer in ASKED]
    told = run("predict", "run", "ours.json", "--json", "--device", "cpu").out.splitlines()
    assert {json.loads(line)["id"]: json.loads(line)["answer"] for line in told} == {
        f"q{n}": answer for n, (_, _, answer) in enumerate(ASKED)
    }
    raw = f"Who built the ferry?\t{HARBOUR}\n\nWhat do skaters drink?\t{LAKE}\n"
    (trained / "raw.txt").write_text(raw, encoding="utf-8")
    lines = run("predict", "run", "raw.txt", "--device", "cpu").out.splitlines()
    answers = [line.split("\t") for line in lines]
    assert [answer[0] for answer in answers] == ["Greta Holm", "hot apple juice"]
    assert answers[0][2] == "Who built the ferry?" and 0 < float(answers[0][1]) <= 1

    def line(*arguments):
        return run(*arguments, "--device", "cpu").sentence

    assert "'Who?' is no question" in line("predict", "run", "--text", "Who?")
    assert "a TAB between" in line("predict", "run", "--tokenized", "--text", "Who ?")
    bad = squad()
    bad["data"][0]["paragraphs"][1]["qas"][0]["answers"][0]["answer_start"] = 3
    (trained / "bad.json").write_text(json.dumps(bad), encoding="utf-8")
    where = "data[0].paragraphs[1].qas[0]: the answer 'late November' does not stand"
    assert where in line("evaluate", "run", "bad.json")
