"""`torchelmo pretrain`: a recipe and a prepared corpus to a trained biLM."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from torchelmo.apps.cli import console
from torchelmo.apps.cli.options import Device
from torchelmo.errors import InputError

if TYPE_CHECKING:
    import torch
    from tqdm import tqdm

    from torchelmo.pretrain.corpus import Corpus
    from torchelmo.pretrain.log import Status
    from torchelmo.pretrain.loop import Result, Trainer
    from torchelmo.pretrain.memory import Memory
    from torchelmo.pretrain.processes import Processes
    from torchelmo.pretrain.recipe import Recipe

EXAMPLE = "Example: torchelmo pretrain small -o runs/small"
QUIET = 30.0  # seconds between lines where there is no terminal
RUN_FILES = ("lock", "checkpoints", "log.jsonl", "best", "last", "tensorboard")


def pretrain(
    recipe: Annotated[
        Path, typer.Argument(metavar="RECIPE", help="A TOML file, or one of ours: small.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="The run's folder.")
    ],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change the recipe: train.batch=64; repeatable."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Short for --set train.seed=N.")
    ] = None,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a biLM as RECIPE says; the same command goes on where it was stopped.

    DIR/best and DIR/last are models for every other command. Stop it at any time with ^C or
    SIGTERM. Under `torchrun --no-python`, processes share the batch.
    """
    from torchelmo.pretrain.recipe import read_recipe

    asked = [*(changes or []), *([] if seed is None else [f"train.seed={seed}"])]
    chosen = read_recipe(recipe, asked)
    check_folder(output)
    corpus = open_corpus(chosen.data.corpus, recipe.parent)

    from torchelmo.pretrain.loop import Trainer
    from torchelmo.pretrain.processes import Processes

    place = pick_place(device)
    processes = Processes.join(place)
    with ExitStack() as stack:
        stack.callback(_leave)
        needed = _check_memory(chosen, corpus, place, processes)
        stopped = stack.enter_context(stop_signals())
        trainer = Trainer(chosen, corpus, output, device=place, processes=processes)
        first = trainer.step
        show = stack.enter_context(_reporting(trainer, needed))
        began = time.perf_counter()
        result = trainer(show, stop=lambda: bool(stopped))
        seconds = time.perf_counter() - began
    if not processes.first:
        raise typer.Exit(128 + stopped[0] if result.reason == "stopped" and stopped else 0)
    if as_json:
        print(json.dumps(summary(trainer, result, first, seconds, needed)))
    elif result.reason != "stopped":
        print(describe(trainer, result, first, seconds))
    if result.reason == "stopped":
        message = f"stopped and saved at step {result.step:,}: the same command goes on"
        if stopped and stopped[0] == signal.SIGINT:
            raise console.Interrupted(message)
        raise typer.Exit(console.fail(message, 128 + signal.SIGTERM))


def open_corpus(name: str, beside: Path) -> Corpus:
    """Open the recipe's corpus: from the current folder, or else beside the recipe."""
    from torchelmo.pretrain.corpus import VOCABULARY, Corpus
    from torchelmo.text.vocabulary import SPECIALS

    folder = Path(name)
    if not folder.exists() and (beside / folder).exists():
        folder = beside / folder
    corpus = Corpus.open(folder)
    if tuple(corpus.vocabulary[: len(SPECIALS)]) != tuple(SPECIALS):
        raise InputError(
            f"{folder / VOCABULARY} begins with {', '.join(corpus.vocabulary[: len(SPECIALS)])}, "
            f"expected {', '.join(SPECIALS)}: prepare the corpus again"
        )
    return corpus


def check_folder(run: Path) -> None:
    """Refuse a folder that holds something else than a run."""
    if run.exists() and not run.is_dir():
        raise InputError(f"{run} is a file, expected a folder for the run")
    found = {path.name for path in run.iterdir()} if run.is_dir() else set()
    if found and not found & set(RUN_FILES):
        raise InputError(
            f"{run} holds {min(found)} and no training run: choose a new folder, or that of a run "
            "to go on with"
        )


def pick_place(device: str | None) -> torch.device:
    """Return the device; each process that torchrun starts has a GPU of its own."""
    import torch

    from torchelmo.elmo import pick_device

    place = pick_device(device)
    number = os.environ.get("LOCAL_RANK")
    if place.type == "cuda" and place.index is None and number is not None:
        place = pick_device(f"cuda:{number}")
        torch.cuda.set_device(place)
    return place


def _check_memory(
    recipe: Recipe, corpus: Corpus, device: torch.device, processes: Processes
) -> Memory:
    """Return what a process will need; refuse what does not fit."""
    from torchelmo.pretrain import memory
    from torchelmo.pretrain.plan import plan

    config = recipe.config(corpus.config, corpus.vocabulary_size)
    plan(recipe, corpus, config)  # a corpus that is too small is refused first
    rank, world = processes.rank, processes.world
    needed = memory.estimate(
        config,
        recipe,
        corpus.vocabulary_size,
        step=memory.first_step(corpus, recipe, rank=rank, world=world),
        table=corpus.characters.nbytes,
        device=device.type,
        world=world,
    )
    # Processes on CPUs share one machine.
    sharing = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if device.type == "cpu" else 1
    memory.check_fits(needed, device, sharing)
    return needed


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collect SIGTERM and SIGINT, so that a step can end; a second ^C ends at once."""
    seen: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        if seen and number == signal.SIGINT:
            raise KeyboardInterrupt
        seen.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave() -> None:
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


class _Reporter:
    """Shows how a run stands: a bar on a terminal, else a line now and then."""

    def __init__(self, trainer: Trainer, bar: tqdm[None] | None) -> None:
        self.trainer, self.bar = trainer, bar
        self.told = 0.0
        self.perplexity = (trainer.best or {}).get("perplexity")
        if bar is not None:
            bar.n = bar.initial = trainer.step

    def __call__(self, now: Status) -> None:
        if now.validation is not None:
            self.perplexity = now.validation["perplexity"]
            if self.bar is None:
                self.say(f"step {now.step:,}: validation perplexity {self.perplexity:,.2f}")
            return
        plan = now.plan
        epoch = now.step / plan.steps * plan.epochs
        speed = f"{now.tokens_per_second:,.0f} tokens/s"
        facts = [f"epoch {epoch:.2f}", f"loss {now.loss:.3f}", speed]
        if self.perplexity is not None and self.bar is not None:
            facts.append(f"valid {self.perplexity:,.1f}")
        if self.bar is not None:
            self.bar.set_postfix_str(", ".join(facts), refresh=False)
            self.bar.update(now.step - self.bar.n)
        elif time.monotonic() - self.told >= QUIET or now.step == plan.steps:
            self.told = time.monotonic()
            left = timedelta(seconds=round(now.seconds_left))
            self.say(f"step {now.step:,} of {plan.steps:,}: {', '.join(facts)}, {left} left")

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


@contextmanager
def _reporting(trainer: Trainer, needed: Memory) -> Iterator[Callable[[Status], None]]:
    """Say what will be done; give the function that is told how it goes."""
    with ExitStack() as stack:
        board = None
        if trainer.recipe.watch.tensorboard and trainer.processes.first:
            from torchelmo.pretrain.board import Board

            board = Board(trainer.run_folder, trainer.step)
            stack.callback(board.close)
        if trainer.processes.first:
            for message in trainer.passed_over:
                console.warn(message)
            print(announcement(trainer, needed), file=sys.stderr, flush=True)
        bar = None
        if trainer.processes.first:
            bar = stack.enter_context(console.bar(" steps", "pretrain", trainer.plan.steps))
        reporter = _Reporter(trainer, bar)

        def report(now: Status) -> None:
            reporter(now)
            if board is not None:
                board(now)

        yield report


def announcement(trainer: Trainer, needed: Memory) -> str:
    """Return what a run will do, in a few lines."""
    from torchelmo.pretrain.memory import gigabytes

    plan, train, corpus = trainer.plan, trainer.recipe.train, trainer.corpus
    world, where = trainer.processes.world, str(trainer.device)
    many = f" x accumulate {train.accumulate}" if train.accumulate > 1 else ""
    lines = [
        f"corpus   {corpus.train.n_tokens:,} tokens in {corpus.train.n_sentences:,} sentences, "
        f"vocabulary {corpus.vocabulary_size:,}, validation {corpus.valid.n_tokens:,} tokens",
        f"model    {plan.parameters / 1e6:,.1f} M parameters",
        f"run      {plan.steps:,} steps ({plan.epochs:,.2f} epochs) of {plan.tokens_per_step:,} "
        f"tokens (batch {train.batch} x unroll {train.unroll}{many})",
        f"device   {where}{f', {world} processes' if world > 1 else ''}, about "
        f"{gigabytes(needed.total)} of memory{' each' if world > 1 else ''}",
    ]
    found = trainer.notes.get("vectors_found")
    if found is not None:
        share = found / corpus.vocabulary_size
        lines.insert(
            2, f"vectors  of {found:,} words ({share:.1%}) in {trainer.recipe.model.vectors}"
        )
    if trainer.step:
        lines.append(f"going on from step {trainer.step:,}")
    return "\n".join(lines)


def summary(
    trainer: Trainer, result: Result, first: int, seconds: float, needed: Memory
) -> dict[str, object]:
    """Return the result as JSON has it."""
    plan, done = trainer.plan, result.step - first
    return {
        "output": str(result.folder),
        "reason": result.reason,
        "step": result.step,
        "steps": plan.steps,
        "from_step": first,
        "epochs": round(result.step / plan.steps * plan.epochs, 4),
        "tokens": result.step * plan.tokens_per_step,
        "parameters": plan.parameters,
        "best": result.best,
        "seconds": round(seconds, 1),
        "tokens_per_second": round(done * plan.tokens_per_step / max(seconds, 1e-9)),
        "memory_estimate": needed.total,
        "memory_peak": _peak(trainer.device),
        "passed_over": trainer.passed_over,
        "vectors_found": trainer.notes.get("vectors_found"),
    }


def _peak(device: torch.device) -> int | None:
    """Return the bytes that tensors took at most, where the device counts them."""
    import torch

    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def describe(trainer: Trainer, result: Result, first: int, seconds: float) -> str:
    """Return the result in a line or two."""
    done = result.step - first
    speed = done * trainer.plan.tokens_per_step / max(seconds, 1e-9)
    how = {"finished": "finished", "converged": "no longer better, ended"}[result.reason]
    lines = [
        f"{result.folder}: {how} at step {result.step:,}"
        + (f", {done:,} of them in {seconds:,.0f} s ({speed:,.0f} tokens/s)" if done else "")
    ]
    if result.best is not None:
        best = result.best
        lines.append(
            f"{result.folder / 'best'}: validation perplexity {best['perplexity']:,.2f} "
            f"at step {best['step']:,}"
        )
    return "\n".join(lines)
