"""How fast a biLM is trained: whole steps of the training loop, on made-up text."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from torchelmo.apps.bench import arithmetic, machine
from torchelmo.apps.bench.machine import Times
from torchelmo.apps.bench.text import Text
from torchelmo.config import ElmoConfig
from torchelmo.pretrain.corpus import Corpus
from torchelmo.pretrain.log import Status
from torchelmo.pretrain.loop import Trainer
from torchelmo.pretrain.prepare import PrepareOptions, prepare
from torchelmo.pretrain.recipe import DataRecipe, ModelRecipe, Recipe, TrainRecipe, WatchRecipe

Precision = Literal["float32", "bf16"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """How much is trained: blocks of steps, of which the first is not counted."""

    batch: int = 128
    unroll: int = 20
    negatives: int = 8192
    steps: int = 1  # a block
    blocks: int = 4
    tokens: int = 200_000  # of the text

    @property
    def tokens_per_step(self) -> int:
        """Tokens that each direction predicts in a step."""
        return self.batch * self.unroll


def write_text(folder: Path, tokens: int, seed: int = 0) -> Path:
    """Write a made-up text; return its file."""
    source = folder / "text.txt"
    with source.open("w", encoding="utf-8") as file:
        file.writelines(" ".join(words) + "\n" for words in Text(seed).sentences(tokens))
    return source


def _prepare(source: Path) -> Path:
    options = PrepareOptions(tokenizer="whitespace", sentences="lines", valid_share=0.0)
    corpus = source.with_name("corpus")
    prepare([source], corpus, options, workers=1)
    return corpus


def preparing(sizes: Sequence[int], seed: int = 0) -> Iterator[dict[str, float]]:
    """Yield what a token of ever larger corpora costs to prepare, on one core, and the memory."""
    device = torch.device("cpu")
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="torchelmo-") as scratch:
            source = write_text(Path(scratch), size, seed)
            machine.reset_peak(device)
            seconds = machine.clock(partial(_prepare, source), device)
        yield {
            "tokens": size,
            "microseconds_per_token": 1e6 * seconds / size,
            **machine.peak(device),
        }


def training(
    config: ElmoConfig, run: Run, device: torch.device, precision: Precision = "float32"
) -> dict[str, object]:
    """Return tokens a second of a model of this size, from random weights.

    A token is counted once, though both directions predict it.
    """
    with tempfile.TemporaryDirectory(prefix="torchelmo-") as scratch:
        folder = Path(scratch)
        corpus = Corpus.open(_prepare(write_text(folder, run.tokens)))
        # Distinct negatives are drawn: of a small vocabulary there are only so many.
        negatives = min(run.negatives, max(corpus.vocabulary_size // 3, 1))
        train = TrainRecipe(
            batch=run.batch,
            unroll=run.unroll,
            steps=run.steps * (run.blocks + 1),
            negatives=negatives,
            precision=precision,
        )
        recipe = Recipe(
            data=DataRecipe(corpus="corpus"),
            model=model_recipe(config),
            train=train,
            watch=WatchRecipe(log=run.steps, keep=1),
        )
        speeds: list[float] = []

        def note(status: Status) -> None:
            if status.validation is None:
                speeds.append(status.tokens_per_second)

        machine.reset_peak(device)
        Trainer(recipe, corpus, folder / "run", device=device)(note)
        held = machine.peak(device)
    times = Times([1 / speed for speed in speeds[1:]])
    work = arithmetic.per_trained_token(config, negatives)
    return {
        "precision": precision,
        "batch": run.batch,
        "unroll": run.unroll,
        "negatives": negatives,
        "steps": run.steps * run.blocks,
        "tokens_per_second": 1 / times.best,
        "median": 1 / times.median,
        "gflops": work / times.best / 1e9,
        **held,
    }


def model_recipe(config: ElmoConfig) -> ModelRecipe:
    """Return a network of a config's size; its alphabet is that of the text."""
    lstm = dataclasses.asdict(config.lstm)
    if config.characters is None:
        return ModelRecipe(preset=None, lstm=lstm, words=True)
    known = dataclasses.asdict(config.characters)
    characters = {key: known[key] for key in ("dim", "filters", "activation", "highways")}
    return ModelRecipe(preset=None, lstm=lstm, characters=characters)
