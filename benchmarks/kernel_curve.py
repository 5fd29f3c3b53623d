"""The loss over training steps with the kernels, and with the reference differentiated by autograd.

The text is made up: half of its words follow from the word before, the others come by frequency. So
there is something that only the LSTMs can learn, in either direction.
"""

from __future__ import annotations

import hashlib
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from torchelmo.apps.bench.text import word
from torchelmo.pretrain.corpus import Corpus
from torchelmo.pretrain.log import Status
from torchelmo.pretrain.loop import Trainer
from torchelmo.pretrain.prepare import PrepareOptions, prepare
from torchelmo.pretrain.recipe import read_recipe


class Size(NamedTuple):
    """How much is trained."""

    steps: int = 2000
    every: int = 50  # steps of a point of the curve
    batch: int = 256
    unroll: int = 10
    negatives: int = 2048
    words: int = 1_000_000  # of the text
    types: int = 20_000
    changes: tuple[str, ...] = ()

    def recipe(self, seed: int) -> list[str]:
        """Return what is different from the recipe for the small model."""
        return [
            f"train.steps={self.steps}",
            f"train.batch={self.batch}",
            f"train.unroll={self.unroll}",
            f"train.negatives={self.negatives}",
            f"train.warmup={self.steps // 10}",
            f"train.seed={seed}",
            "train.dropout=0.0",
            f"watch.log={self.every}",
            f"watch.validate={self.steps}",
            f"watch.checkpoint={self.steps}",
            *self.changes,
        ]


QUICK = Size(
    steps=20,
    every=5,
    batch=8,
    unroll=4,
    negatives=16,
    words=4000,
    types=200,
    changes=(
        "model.characters.dim=4",
        "model.characters.filters=[[1, 4], [2, 8]]",
        "model.lstm.cells=16",
        "model.lstm.projection=8",
    ),
)


def write_corpus(folder: Path, size: Size) -> Path:
    """Make up a text and prepare it."""
    rng = np.random.default_rng(1)
    names = np.array([word(rank) for rank in range(1, size.types + 1)], dtype=object)
    length = 20
    rows = size.words // length
    ranks = np.exp(rng.random((rows, length)) * np.log(size.types)).astype(np.int64) % size.types
    follows = rng.random((rows, length)) < 0.5
    for t in range(1, length):
        next_word = (ranks[:, t - 1] * 7 + 3) % size.types
        ranks[:, t] = np.where(follows[:, t], next_word, ranks[:, t])
    ends = rng.integers(3, length + 1, rows)
    with (folder / "text.txt").open("w", encoding="utf-8") as file:
        file.writelines(
            " ".join(row[:end]) + "\n" for row, end in zip(names[ranks], ends, strict=True)
        )
    options = PrepareOptions(tokenizer="whitespace", sentences="lines", valid_share=0.0)
    prepare([folder / "text.txt"], folder / "corpus", options, workers=1)
    return folder / "corpus"


def train(corpus: str, device: str, quick: bool, seed: int, recorded: bool) -> dict[str, Any]:
    """Train with the backend that the environment names; return the curve and a sum of weights."""
    size = QUICK if quick else Size()
    recipe = read_recipe("small", size.recipe(seed))
    losses: list[float] = []

    def note(status: Status) -> None:
        if status.validation is None:
            losses.append(status.loss)

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            recipe, Corpus.open(corpus), Path(folder) / "run", device=torch.device(device)
        )
        if not recorded:
            trainer.model.softmax.capturable = False  # so that each step runs in the ordinary way
        trainer(note)
        total = hashlib.sha256()
        for name, tensor in sorted(trainer.model.state_dict().items()):
            total.update(name.encode())
            total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return {"losses": losses, "sha256": total.hexdigest(), "recorded": recorded}


def compare(runs: dict[str, dict[str, Any]], quick: bool) -> dict[str, Any]:
    """Return the curves, how far they are apart, and how far runs of two seeds are."""
    size = QUICK if quick else Size()
    kernels, again = runs["kernels"], runs["again"]
    curves = {name: run["losses"] for name, run in runs.items() if name != "again"}
    last = curves["kernels"][-max(500 // size.every, 2) :]
    return {
        "steps": size.steps,
        "every": size.every,
        "curves": {name: [round(x, 5) for x in losses] for name, losses in curves.items()},
        "identical": kernels["sha256"] == again["sha256"] and kernels["losses"] == again["losses"],
        "sha256": kernels["sha256"],
        "reference_recorded": runs["reference"]["recorded"],
        "from_reference": apart(curves["kernels"], curves["reference"]),
        "between_seeds": apart(curves["kernels"], curves["another seed"]),
        "deviation_of_last": statistics.stdev(last),
    }


def apart(one: Sequence[float], other: Sequence[float]) -> dict[str, float]:
    """Return mean and largest difference of two curves.

    >>> apart([2.0, 1.0], [2.5, 1.0])
    {'mean': 0.25, 'largest': 0.5}
    """
    differences = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return {"mean": statistics.fmean(differences), "largest": max(differences)}
