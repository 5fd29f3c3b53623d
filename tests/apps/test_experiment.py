"""The experiment command: processes, kills, failures, what is skipped and what is shown."""

import json
import os
import subprocess
import sys
import time

import pytest

from tasks.tables import TABLE, lasting, write_table
from torchelmo.apps.cli.experiment import by_reason
from torchelmo.tasks.experiment import Places, read_table
from torchelmo.tasks.processes import Settings, execute

ARGUMENTS = "experiment", "table.toml", "--data", "data", "--device", "cpu"
COMMAND = [sys.executable, "-c", "from torchelmo.apps.cli import main; main()", *ARGUMENTS]


@pytest.fixture
def home(tmp_path):
    write_table(tmp_path)
    return tmp_path


def states(run, *options):
    rows = json.loads(run(*ARGUMENTS, "--list", "--json", *options).out)
    return {row["run"]: row["state"] for row in rows}


def begin(home, *options):
    """Start the command in another process, and wait until a run's first epoch is over."""
    process = subprocess.Popen(
        [*COMMAND, *options], cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    status = home / "runs/table/names/elmo-1/status.json"
    deadline = time.monotonic() + 120
    while not status.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    return process


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_killed_in_the_middle_and_gone_on_with(run, home):
    sets = "--set", "train.epochs=12", "--set", "train.patience=none"
    options = *sets, "--only", "names/elmo/1"
    process = begin(home, *options)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 60
    while "running" in (found := states(run, *options)).values() and time.monotonic() < deadline:
        time.sleep(0.05)  # a killed command's runs notice it and end
    assert found == {"names/elmo/1": "stopped"}
    done = run(*ARGUMENTS, *options)
    assert done.code == 0, done.err
    assert states(run, *options) == {"names/elmo/1": "done"}
    log = (home / "runs/table/names/elmo-1/log.txt").read_text(encoding="utf-8")
    epochs = [json.loads(line)["epoch"] for line in log.splitlines() if line.startswith("{")]
    assert epochs == list(range(1, 13)), "no epoch was trained twice"
    again = run(*ARGUMENTS, *options)
    assert "1 runs, 0 to do (1 done)" in again.err and "begins" not in again.err

    (one,) = read_table(home / "table.toml").runs(["names/elmo/1"], sets[1::2])
    other = Places(home / "data", home / "work", home / "other")
    expected = execute(one, Settings(other, "cpu"))
    result = home / "results/tasks/runs/names/elmo-1.json"
    found = json.loads(result.read_text(encoding="utf-8"))
    assert lasting(found) == lasting(json.loads(json.dumps(expected)))
    weights = (
        f / "names/elmo-1/model/model.safetensors" for f in (home / "runs/table", other.work)
    )
    assert len({file.read_bytes() for file in weights}) == 1


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_terminated(run, home):
    process = begin(home, "--set", "train.epochs=1000", "--only", "names/elmo", "--jobs", "2")
    process.terminate()
    _, err = process.communicate()
    assert process.returncode == 143
    last = err.splitlines()[-1]
    assert last == "torchelmo: stopped with 2 runs left: the same command goes on"
    found = states(run, "--only", "names/elmo", "--set", "train.epochs=1000")
    assert found["names/elmo/1"] == "stopped" and found["names/elmo/2"] in ("stopped", "left")


def test_a_broken_run_is_named_and_loses_no_other(run, home):
    (home / "table.toml").write_text(
        TABLE.replace("elmo = []", 'elmo = ["elmo.model=gone"]').replace("[1, 2]", "[1]"),
        encoding="utf-8",
    )
    made = run(*ARGUMENTS, "--jobs", "2")
    assert made.code == 1
    last = made.err.splitlines()[-1]
    assert last.startswith("torchelmo: 1 of 2 runs failed: names/elmo/1 (there is no model 'gone'")
    assert states(run) == {"names/baseline/1": "done", "names/elmo/1": "failed"}
    shown = run(*ARGUMENTS, "--list").out
    assert "names/baseline/1  done     f1 " in shown and shown.endswith("1 done, 1 failed\n")
    assert not (home / "results/tasks/names.json").exists()

    write = TABLE.replace("[1, 2]", "[1]")
    (home / "table.toml").write_text(write, encoding="utf-8")
    mended = run(*ARGUMENTS)
    assert mended.code == 0 and "2 runs, 1 to do (1 done)" in mended.err
    assert mended.out.startswith("results/tasks/names.json: f1 ")
    names = json.loads((home / "results/tasks/names.json").read_text(encoding="utf-8"))
    assert len(names["baseline"]["scores"]) == len(names["elmo"]["scores"]) == 1
    assert json.loads(run(*ARGUMENTS, "--collect", "--json").out) == {
        str(home.joinpath("results/tasks/names.json").relative_to(home)): names
    }


def test_refusals(run, home):
    def line(*arguments):
        return run(*arguments).sentence

    (home / "table.toml").write_text(TABLE.replace('"ner"', '"nerr"'), encoding="utf-8")
    assert "names/baseline/1: there is no task 'nerr'" in line(*ARGUMENTS)
    assert set(states(run).values()) == {"wrong"}
    assert "there is no file and no table 'tabel'" in line("experiment", "tabel")
    assert "has no runs 'nouns'" in line(*ARGUMENTS, "--only", "nouns")
    assert not (home / "runs").exists() and not (home / "results").exists()


def test_a_reason_is_told_once():
    failures = {"a/elmo/1": "no file", "b/elmo/1": "no model", "a/elmo/2": "no file"}
    told = by_reason({**failures, "a/elmo/3": "no file"})
    assert told == "a/elmo/1 and 2 more (no file); b/elmo/1 (no model)"
