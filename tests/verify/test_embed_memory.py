"""`embed` takes no more memory for a million lines than for ten thousand.

Writes results/embed/memory.json.
"""

import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bulk.tiny import generate, measured, tiny_model
from torchelmo.formats import native

ROOT = Path(__file__).resolve().parents[2]
ASKED = ("--layers", "top", "--dtype", "float16")
LINES = (10_000, 1_000_000)
LIMIT = 100.0  # MB

pytestmark = [
    pytest.mark.verify,
    pytest.mark.skipif(sys.platform == "win32", reason="no wait4 there"),
]


def commit():
    line = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def test_memory_is_bounded(tmp_path):
    native.write(tiny_model(cells=32, projection=16), tmp_path / "model")
    values = []
    for lines in LINES:
        text = generate(tmp_path / f"{lines}.txt", lines)
        output = tmp_path / f"{lines}.hdf5"
        summary, peak = measured("embed", text, "-o", output, "--model", tmp_path / "model", *ASKED)
        assert summary["lines"] == lines
        output.unlink()
        values.append(
            {
                "lines": lines,
                "tokens": summary["tokens"],
                "peak_mb": round(peak, 1),
                "seconds": summary["seconds"],
                "output_mb": round(summary["bytes"] / 1e6, 1),
            }
        )
    growth = values[1]["peak_mb"] - values[0]["peak_mb"]
    result = {
        "name": "embed-memory",
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": commit(),
        "command": "torchelmo embed FILE -o OUT.hdf5 " + " ".join(ASKED),
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, "
        "one thread",
        "torch": torch.__version__,
        "model": "random weights, 2 layers of 32 cells, projection 16 (vectors of 32 numbers)",
        "data": "made-up lines of 3 to 5 tokens, 20,000 distinct words",
        "metric": "peak resident memory of the process, MB (10^6 bytes)",
        "seeds": [1],
        "values": {"runs": values, "growth_mb": round(growth, 1), "limit_mb": LIMIT},
    }
    path = ROOT / "results" / "embed" / "memory.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    assert growth < LIMIT
