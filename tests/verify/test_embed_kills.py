"""`embed` killed at ten random moments and repeated gives the file of an undisturbed run."""

import random
import sys

import pytest

from bulk.tiny import generate, killed_at, left_behind, tiny_model
from torchelmo.formats import native

pytestmark = [
    pytest.mark.verify,
    pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there"),
]


@pytest.mark.parametrize(
    ("ending", "state"),
    [("hdf5", "reset"), ("npz", "carry"), ("parquet", "reset"), ("jsonl", "carry")],
)
def test_ten_kills(tmp_path, ending, state):
    native.write(tiny_model(), tmp_path / "model")
    text = generate(tmp_path / "in.txt", 3_000, words=2_000)
    arguments = "--model", tmp_path / "model", "--window", "128", "--state", state, "--overwrite"
    whole, output = tmp_path / f"whole.{ending}", tmp_path / f"out.{ending}"
    assert killed_at([], whole, "embed", text, "-o", whole, *arguments) == [0]
    make = random.Random(f"{ending} {state}")
    moments = [*sorted(make.sample(range(1, 130), 8)), "join", "join"]
    codes = killed_at(moments, output, "embed", text, "-o", output, *arguments)
    assert codes[:8] == [-9] * 8
    assert codes[-1] == 0
    assert output.read_bytes() == whole.read_bytes()
    assert left_behind(tmp_path, "in.txt", "model") == sorted([output.name, whole.name])
