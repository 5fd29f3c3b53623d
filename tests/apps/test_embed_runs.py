"""`embed` as a process of its own: its memory, and what a kill leaves."""

import random
import sys

import pytest

from bulk.tiny import generate, killed_at, left_behind, measured, tiny_model
from torchelmo.formats import native

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="neither wait4 nor SIGKILL there")


# HDF5 holds up to 32 MB of its own records.
@pytest.mark.parametrize(("ending", "growth"), [("hdf5", 45), ("npz", 15)])
def test_memory_does_not_grow_with_the_input(tmp_path, ending, growth):
    native.write(tiny_model(cells=16, projection=128), tmp_path / "model")
    peaks = []
    for lines in (1_000, 20_000):
        text = generate(tmp_path / f"{lines}.txt", lines, words=2_000)
        summary, peak = measured(
            "embed", text, "-o", tmp_path / f"{lines}.{ending}", "--model", tmp_path / "model",
            "--layers", "top", "--window", "4096",
        )  # fmt: skip
        assert summary["lines"] == lines
        peaks.append(peak)
    assert summary["bytes"] > 80e6  # more than memory may grow
    assert peaks[1] - peaks[0] < growth


@pytest.mark.parametrize(("ending", "state"), [("hdf5", "reset"), ("npz", "carry")])
def test_killed_and_repeated_gives_the_same_file(tmp_path, model_folder, ending, state):
    text = generate(tmp_path / "in.txt", 600, words=300)
    arguments = "--model", model_folder, "--window", "64", "--state", state, "--overwrite"
    whole, output = tmp_path / f"whole.{ending}", tmp_path / f"out.{ending}"
    assert killed_at([], whole, "embed", text, "-o", whole, *arguments) == [0]
    moments = [random.Random(ending).randint(1, 20), random.Random(state).randint(21, 50), "join"]
    codes = killed_at(moments, output, "embed", text, "-o", output, *arguments)
    assert codes[:2] == [-9, -9]
    assert codes[-1] == 0
    assert output.read_bytes() == whole.read_bytes()
    assert left_behind(tmp_path, "in.txt") == sorted([output.name, whole.name])
