"""The script that makes an English model anew: its commands are commands, in their order."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from torchelmo.apps.cli import app

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "reproduce.sh"
# Writes down what it is called with, and makes the folder that it is asked for.
RECORD = """#!/bin/sh
for word in "$@"; do printf '%s\\t' "$word"; done >> "$CALLS"
echo >> "$CALLS"
while [ $# -gt 1 ]; do [ "$1" = -o ] && case $2 in *.json) ;; *) mkdir -p "$2" ;; esac; shift; done
exit 0
"""

pytestmark = pytest.mark.skipif(
    sys.platform == "win32" or not shutil.which("bash"), reason="needs bash"
)


@pytest.fixture
def run(tmp_path):
    """A function that runs the script with stand-ins, and returns their calls."""
    for name in ("torchelmo", "python"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(RECORD)
        program.chmod(0o755)
    calls = tmp_path / "calls"
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"

    def call(*words):
        calls.write_text("")
        done = subprocess.run(
            ["bash", SCRIPT, *words],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "CALLS": str(calls)},
            capture_output=True,
            text=True,
        )
        lines = calls.read_text().splitlines()
        return done, [line.rstrip("\t").split("\t") for line in lines]

    return call


def test_every_step(run):
    done, calls = run("en-original", "texts", "tasks", "out", "--set", "train.steps=2")
    assert done.returncode == 0, done.stderr
    measured = calls.pop(3)
    assert measured[0].endswith("model_perplexity.py") and measured[1] == "out/run/last"
    assert [words[0] for words in calls] == ["prepare", "prepare", "pretrain", *["analyse"] * 3]
    known = typer.main.get_command(app).commands
    for words in calls:
        with known[words[0]].make_context(words[0], words[1:]):
            pass
    assert calls[1][calls[1].index("--vocabulary") + 1] == "out/wiki-corpus/vocab.txt"
    assert {"data.corpus=out/en-corpus", "train.steps=2"} <= set(calls[2])
    assert [words[1] for words in calls[3:]] == ["wic", "wsd", "pos"]


def test_corpora_are_made_once(run):
    run("en-small", "texts", "tasks", "out")
    _, calls = run("en-small", "texts", "tasks", "out")
    assert calls[0][:2] == ["pretrain", "en-small"]


def test_without_its_folders_it_says_how_it_is_called(run):
    done, calls = run("en-small")
    assert done.returncode == 2 and "TEXTS TASKS OUT" in done.stderr and not calls
