"""The memory that training takes on a GPU, against the estimate that is made before it starts.

    python benchmarks/training_memory.py -o results/pretrain/memory_gpu.json

Each run is one of the recipes for five steps of 20 words a row, with a validation and a checkpoint,
in a process of its own, over made-up text with a vocabulary of 100,000. Needs torch, numpy,
safetensors and regex alone (with PYTHONPATH=src where the package is not installed).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import feed
import results
import torch

from torchelmo.pretrain import memory
from torchelmo.pretrain.corpus import Corpus
from torchelmo.pretrain.loop import Trainer
from torchelmo.pretrain.recipe import read_recipe

RUNS = (("small", 1024), ("original", 256), ("original-fast", 256))  # recipe, rows
STEPS, WORDS = 5, 600_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", action="append", default=[], dest="changes", help="as in pretrain")
    arguments = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        corpus = feed.made_up(Path(folder), words=WORDS)
        for name, rows in RUNS:
            changes = [f"train.batch={rows}", f"train.steps={STEPS}", *arguments.changes]
            asked = json.dumps([name, changes, str(corpus), arguments.device])
            command = [sys.executable, __file__, "--measure", asked]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=os.environ)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
            print(runs[-1], file=sys.stderr)
    cuda = arguments.device.startswith("cuda")
    results.write(
        arguments.output,
        model="the sizes of the recipes",
        data=f"made-up text of {WORDS:,} words",
        metric=f"MB (10^6 bytes): the estimate, and the most that torch's allocator gave out and "
        f"held over {STEPS} steps, a validation and a checkpoint",
        values={"runs": runs},
        hardware=torch.cuda.get_device_name() if cuda else None,
    )


def measure(name: str, changes: list[str], folder: str, device: str) -> dict[str, object]:
    """Train a few steps; return what was estimated and what was taken."""
    recipe = read_recipe(name, [*changes, "train.warmup=0", "watch.validate_tokens=20000"])
    corpus, place = Corpus.open(folder), torch.device(device)
    asked = memory.estimate(
        recipe.config(corpus.config, corpus.vocabulary_size),
        recipe,
        corpus.vocabulary_size,
        step=memory.first_step(corpus, recipe),
        table=corpus.characters.nbytes,
        device=place.type,
    )
    with tempfile.TemporaryDirectory() as run:
        Trainer(recipe, corpus, Path(run) / "run", device=place)()
    found: dict[str, object] = {
        "recipe": " ".join([name, *changes]),
        "precision": recipe.train.precision,
        "distinct_words": asked.words,
        "estimate_mb": round(asked.total / 1e6, 1),
    }
    if place.type == "cuda":
        taken = torch.cuda.max_memory_allocated(place)
        found["allocated_mb"] = round(taken / 1e6, 1)
        found["reserved_mb"] = round(torch.cuda.max_memory_reserved(place) / 1e6, 1)
        found["ratio"] = round(asked.total / taken, 3)
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(*json.loads(sys.argv[2]))))
    else:
        main()
