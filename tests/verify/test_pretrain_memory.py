"""The memory that training takes is the memory that was estimated, within 20 %.

Writes results/pretrain/memory.json.
"""

import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
RUNS = (
    "model.preset=small train.batch=16",
    "model.preset=small train.batch=64",
    "model.preset=small train.batch=128",
    "model.preset=small train.batch=256",
    "model.preset=small train.batch=64 train.accumulate=2",
    "model.preset=small train.batch=64 train.optimizer=adamw train.softmax=full",
    "model.preset=small train.batch=64 model.words=true",
    "model.preset=medium train.batch=64",
    "model.preset=original train.batch=32",
    "model.preset=small train.batch=96 train.unroll=10 train.dropout=0",
    "model.preset=small train.batch=64 train.precision=bf16",
    "model.preset=small train.batch=256 train.precision=bf16",
)
VOCABULARY, STEPS = 20_000, 4

pytestmark = [
    pytest.mark.verify,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]


def resident():
    """Bytes of this process in memory that no file backs."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")


def measure(corpus, changes):
    """Train a few steps; print what was estimated, and what was taken beyond torch itself."""
    from pretrain.tiny import CPU, tiny_recipe, toy_corpus, trainer
    from torchelmo.pretrain import memory
    from torchelmo.pretrain.corpus import Corpus
    from torchelmo.pretrain.loop import Trainer
    from torchelmo.pretrain.recipe import read_recipe

    folder = Path(tempfile.mkdtemp(dir=Path(corpus).parent))
    (folder / "recipe.toml").write_text("[data]\ncorpus = 'corpus'\n", encoding="utf-8")
    recipe = read_recipe(
        folder / "recipe.toml", [*changes, f"train.steps={STEPS}", "watch.validate_tokens=500"]
    )
    text = Corpus.open(corpus)
    config = recipe.config(text.config, text.vocabulary_size)
    step = memory.first_step(text, recipe)
    asked = memory.estimate(config, recipe, text.vocabulary_size, step=step)
    del step
    trainer(tiny_recipe(train={"steps": 2}), toy_corpus(folder / "toy"), folder / "warm")()
    before = peak = resident()

    def watch():
        nonlocal peak
        while True:
            peak = max(peak, resident())
            time.sleep(0.002)

    threading.Thread(target=watch, daemon=True).start()
    Trainer(recipe, text, folder / "run", device=CPU)()
    print(json.dumps({"estimate": asked.total, "peak": peak - before, "words": asked.words}))


def test_training_takes_what_was_estimated(tmp_path):
    from pretrain.generated import zipf_text
    from torchelmo.pretrain.prepare import PrepareOptions, prepare

    text = zipf_text(tmp_path / "text.txt", 4 << 20, types=60_000)
    prepare([text], tmp_path / "corpus", PrepareOptions(vocab_size=VOCABULARY))
    values = []
    for run in RUNS:
        command = [sys.executable, __file__, tmp_path / "corpus", *run.split()]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        found = json.loads(done.stdout)
        values.append(
            {
                "recipe": run,
                "distinct_words": found["words"],
                "estimate_mb": round(found["estimate"] / 1e6, 1),
                "peak_mb": round(found["peak"] / 1e6, 1),
                "ratio": round(found["estimate"] / found["peak"], 3),
            }
        )
        print(values[-1])
    line = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    result = {
        "name": "pretrain-memory",
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": commit.stdout.strip() or None,
        "command": "pytest -m verify tests/verify/test_pretrain_memory.py",
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, "
        "one thread",
        "torch": torch.__version__,
        "model": "the presets named in each recipe",
        "data": f"made-up text, a vocabulary of {VOCABULARY:,}",
        "metric": "MB (10^6 bytes): the estimate, and the peak of resident memory over "
        f"{STEPS} steps, a validation and a checkpoint, beyond that of a run of a tiny model",
        "seeds": [0],
        "values": {"runs": values, "limit": 0.2},
    }
    path = ROOT / "results" / "pretrain" / "memory.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    assert all(0.8 <= value["ratio"] <= 1.2 for value in values), values


if __name__ == "__main__":
    measure(sys.argv[1], sys.argv[2:])
