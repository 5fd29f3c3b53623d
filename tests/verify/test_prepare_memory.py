"""`prepare` of two gigabytes of text with millions of distinct words stays under 1.5 GB of memory.

Writes results/pretrain/prepare_memory.json.
"""

import datetime
import json
import os
import platform
import subprocess
from pathlib import Path

import pytest
import torch

from bulk.tiny import command
from pretrain.generated import measurable, peak_memory, zipf_text
from torchelmo.pretrain.corpus import Corpus

ROOT = Path(__file__).resolve().parents[2]
SIZE, TYPES, WORKERS = 2_000_000_000, 6_000_000, 2
LIMIT = 1.5e9

pytestmark = [
    pytest.mark.verify,
    pytest.mark.skipif(not measurable, reason="memory is read from /proc"),
]


def commit():
    line = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def test_two_gigabytes(tmp_path):
    text = zipf_text(tmp_path / "text.txt", SIZE, types=TYPES)
    line, env = command("prepare", text, "-o", tmp_path / "corpus", "--workers", WORKERS, "--json")
    out, peak = peak_memory(line, env=env)
    made = json.loads(out)
    corpus = Corpus.open(tmp_path / "corpus")
    assert (
        corpus.train.n_tokens + corpus.valid.n_tokens
        == made["train"]["words"] + (made["valid"]["words"])
    )
    assert corpus.types > 4_000_000
    result = {
        "name": "pretrain-prepare_memory",
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": commit(),
        "command": f"torchelmo prepare text.txt -o corpus --workers {WORKERS}",
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "torch": torch.__version__,
        "model": "none: tokeniser words, characters as bytes",
        "data": f"{text.stat().st_size:,} bytes of made-up text, frequencies 1 / rank, "
        f"{corpus.types:,} distinct words",
        "metric": "peak resident memory of all processes together, MB (10^6 bytes)",
        "seeds": [1],
        "values": {
            "peak_mb": round(peak / 1e6, 1),
            "limit_mb": LIMIT / 1e6,
            "tokens": made["train"]["tokens"] + made["valid"]["tokens"],
            "types": corpus.types,
            "seconds": made["seconds"],
            "tokens_per_second": made["tokens_per_second"],
        },
    }
    path = ROOT / "results" / "pretrain" / "prepare_memory.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    assert peak < LIMIT
