"""One trainer for every task.

    model = fit("ner", "eng.train", "eng.testa", output="runs/ner")
    model.predict(["Ada Lovelace was born in London ."])

Each epoch goes once over the examples in batches of about one length, then scores the validation
examples; the best epoch's weights are kept, in memory and in the output folder. The same recipe and
seed give the same weights on a CPU. Predictions are always computed in float32.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from torchelmo.config import Json
from torchelmo.elmo import Elmo, pick_device
from torchelmo.errors import InputError
from torchelmo.formats import files
from torchelmo.tasks import encoders
from torchelmo.tasks.data import LayerStore, group
from torchelmo.tasks.model import (
    METRICS,
    AnyTask,
    make,
    open_store,
    task_class,
    tokenizer_name,
)
from torchelmo.tasks.readers.examples import Words
from torchelmo.tasks.recipe import Recipe, TrainRecipe, read_recipe
from torchelmo.tasks.vectors import StaticVectors
from torchelmo.text.words import get_tokenizer

T = TypeVar("T")
LOSS_EVERY = 20  # steps between readings of the loss, each of which waits for a GPU


@dataclass(frozen=True)
class Status:
    """How a run stands, for whoever shows it."""

    phase: str  # "layers" while the biLM runs over the texts, "train"
    done: int
    total: int
    epoch: int = 0
    loss: float | None = None
    result: Json | None = None  # of an epoch that has just ended


Report = Callable[[Status], None]


def fit(
    recipe: Recipe | str | Path,
    train: str | Path | Sequence[object] | None = None,
    valid: str | Path | Sequence[object] | None = None,
    *,
    changes: Sequence[str] = (),
    output: str | Path | None = None,
    overwrite: bool = False,
    bilm: str | Path | Elmo | None = None,
    store: LayerStore | None = None,
    vectors: StaticVectors | None = None,
    device: str | torch.device | None = None,
    progress: bool = False,
    report: Report | None = None,
    stop: Callable[[], bool] | None = None,
) -> AnyTask:
    """Train a task and return its best epoch, ready to predict.

    Args:
        recipe: a recipe, its file, or the name of one of ours; `changes` are `train.batch=32`.
        train: a file or its examples; by default the recipe's file, as is `valid`. Without
            validation examples, `data.hold_out` cuts some off, or the last epoch is kept.
        output: the folder that always holds the best epoch so far; with `overwrite` it may exist.
        bilm: another biLM than the recipe names; or a `store` with layers, shared by several runs.
        vectors: static vectors that are loaded already.
        device: None takes cuda, mps or cpu, the first that is there.
        progress: show a bar; or `report` is told how it goes.
        stop: asked after each step; True ends the run, with the best epoch so far.
    """
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe, changes)
    elif changes:
        raise InputError("changes are for a recipe's file or name: this one is read already")
    if output is not None:
        _check_output(Path(output), overwrite)
    place = pick_device(device)
    if bilm is not None and not isinstance(bilm, Elmo) and recipe.elmo is not None:
        elmo = dataclasses.replace(recipe.elmo, model=str(bilm))
        recipe = dataclasses.replace(recipe, elmo=elmo)
    if recipe.bilm is None:
        store = None
    elif store is None:
        store = open_store(recipe, bilm, place)
    task = task_class(recipe.task)
    tokenizer = get_tokenizer(tokenizer_name(recipe, store))

    def examples(given: str | Path | Sequence[object] | None, training: bool) -> list[object]:
        if isinstance(given, str | Path):
            return task.read(recipe, given, tokenizer=tokenizer, training=training)
        return list(given or ())

    training = examples(recipe.data.train if train is None else train, True)
    validation = examples(recipe.data.valid if valid is None else valid, False)
    if not training:
        raise InputError("there are no training examples: give a file, or examples")
    if not validation and recipe.data.hold_out:
        training, validation = hold_out(training, recipe.data.hold_out)
    with ExitStack() as stack:
        if progress and report is None:
            report = stack.enter_context(bars())
        texts = list(dict.fromkeys(_texts(task, training)))
        everything = list(dict.fromkeys([*texts, *_texts(task, validation)]))
        if store is not None:
            _compute_layers(store, everything, report)
        if vectors is None:
            vectors = encoders.load_vectors(recipe)
        vocabularies = {
            **encoders.collect(recipe, texts, vectors),
            **task.collect(recipe, training),
        }
        stack.enter_context(_seeded(recipe.train.seed, place))
        model = make(recipe, vocabularies, vectors, store).to(place)
        Trainer(model, training, validation, output, report, stop).run()
    return model


class Trainer:
    """A run over a network that is made already; `fit` makes one of a recipe and files."""

    def __init__(
        self,
        model: AnyTask,
        training: Sequence[object],
        validation: Sequence[object],
        output: str | Path | None = None,
        report: Report | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        self.model, self.training, self.validation = model, training, validation
        self.output = None if output is None else Path(output)
        self.report, self.stop = report, stop or (lambda: False)
        self.train: TrainRecipe = model.recipe.train
        self.optimizer = make_optimizer(model, self.train)
        self.ema = None if self.train.ema is None else Ema(model, self.train.ema)
        self.order = torch.Generator().manual_seed(self.train.seed)
        self.sizes = [model.size(example) for example in training]
        self.halvings = 0
        self.step = 0
        self.epochs: list[Json] = []
        self.best: Json | None = None
        self.weights: dict[str, Tensor] = {}

    def run(self) -> None:
        """Train until the recipe's end; the model then has its best weights."""
        model, train = self.model, self.train
        began = time.perf_counter()
        waited, since_halving = 0, 0
        for number in range(1, train.epochs + 1):
            loss, stopped = self._epoch(number)
            if stopped and self.best is not None:
                break
            with self._averaged():
                result = self._result(number, loss, time.perf_counter() - began)
                self.epochs.append(result)
                better = self.best is None or self._figure(result) > self._figure(self.best)
                if better or not self.validation:
                    self.best = result
                    self.weights = {n: t.detach().clone() for n, t in model.state_dict().items()}
                    waited = since_halving = 0
                else:
                    waited, since_halving = waited + 1, since_halving + 1
                model.metrics = self._metrics(time.perf_counter() - began)
                if self.best is result and self.output is not None:
                    model.save(self.output, overwrite=True)
            if self.report is not None:
                self.report(Status("train", 0, 0, number, loss, result))
            if stopped or (train.patience is not None and waited >= train.patience):
                break
            if train.halve_after is not None and since_halving > train.halve_after:
                self.halvings, since_halving = self.halvings + 1, 0
        model.load_state_dict(self.weights)
        model.eval()
        model.metrics = self._metrics(time.perf_counter() - began)
        if self.output is not None:
            write_metrics(self.output, model.metrics)

    def _epoch(self, number: int) -> tuple[float | None, bool]:
        """Go once over the examples; return the mean loss, and whether to stop here."""
        model, train = self.model, self.train
        model.train()
        batches = group(self.sizes, train.batch, train.batch_tokens, self.order)
        total = torch.zeros((), device=model.device)
        shown: float | None = None
        self.optimizer.zero_grad(set_to_none=True)
        for done, numbers in enumerate(batches, 1):
            update = done % train.accumulate == 0 or done == len(batches)
            loss = self._step(numbers, update)
            total += loss * len(numbers)
            if self.report is not None:
                if done % LOSS_EVERY == 1 or done == len(batches):
                    shown = loss.item()
                self.report(Status("train", done, len(batches), number, shown))
            if self.stop():
                return None, True
        mean = total.item() / len(self.training)
        if not math.isfinite(mean):
            raise InputError(
                f"the loss is {mean} in epoch {number}: lower train.learning_rate "
                f"({train.learning_rate}) or train.clip_norm"
            )
        return mean, False

    def _step(self, numbers: Sequence[int], update: bool = True) -> Tensor:
        """Learn from a batch of examples, by number; return its loss, which is not waited for."""
        model, train = self.model, self.train
        gpu = model.device.type == "cuda"
        batch = model.batch([self.training[n] for n in numbers])
        low = gpu and train.precision == "bf16"
        with _rounded(gpu and train.precision == "tf32"):
            with torch.autocast(model.device.type, torch.bfloat16, enabled=low):
                loss = model.loss(batch, model(batch)).float()
            penalty = model.inputs.regularizer()
            whole = loss if penalty is None else loss + penalty
            (whole / train.accumulate).backward()
        if update:
            self._update()
        return loss.detach()

    def _update(self) -> None:
        train = self.train
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        if train.clip_value is not None:
            nn.utils.clip_grad_value_(parameters, train.clip_value)
        if train.clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, train.clip_norm)
        for part in self.optimizer.param_groups:
            part["lr"] = self.learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        if self.ema is not None:
            self.ema.update()

    @property
    def learning_rate(self) -> float:
        """Now: halved, and decayed by steps."""
        decay = self.train.decay ** (self.step // self.train.decay_steps)
        return self.train.learning_rate * 0.5**self.halvings * decay

    def _result(self, number: int, loss: float | None, seconds: float) -> Json:
        result: Json = {"epoch": number, "loss": loss, "learning_rate": self.learning_rate}
        if self.validation:
            result["valid"] = self.model.evaluate(self.validation, batch=2 * self.train.batch)
        if self.model.inputs.mixes():
            result["mixes"] = self.model.mixes()
        return {**result, "seconds": round(seconds, 2)}

    def _figure(self, result: Mapping[str, Json]) -> float:
        valid = result.get("valid")
        return float(valid[self.model.metric]) if valid is not None else -math.inf

    def _metrics(self, seconds: float) -> Json:
        model, device = self.model, self.model.device
        return {
            "task": model.recipe.task,
            "metric": model.metric,
            "best": self.best,
            "seconds": round(seconds, 2),
            "parameters": model.parameter_count(),
            "examples": {"train": len(self.training), "valid": len(self.validation)},
            "seed": self.train.seed,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "torch": torch.__version__,
            "epochs": self.epochs,
        }

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """Put the moving average in the weights' place for a while."""
        if self.ema is None:
            yield
            return
        self.ema.swap()
        try:
            yield
        finally:
            self.ema.swap()


class Ema:
    """The exponential moving average of a network's weights.

    Early on it follows quickly: the decay is at most (1 + steps) / (10 + steps).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.steps = decay, 0
        self.now: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        self.average = [p.detach().clone() for p in self.now]

    @torch.no_grad()
    def update(self) -> None:
        """Take a step of the optimizer into the average."""
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        torch._foreach_lerp_(self.average, self.now, 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the weights and their average."""
        for average, now in zip(self.average, self.now, strict=True):
            kept = now.detach().clone()
            now.copy_(average)
            average.copy_(kept)


def make_optimizer(model: AnyTask, train: TrainRecipe) -> torch.optim.Optimizer:
    """Make the optimizer that a recipe names; weight decay is for matrices alone."""
    mixes = {id(p) for mix in model.inputs.mixes().values() for p in mix.parameters()}
    learned = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in learned if p.dim() > 1 and id(p) not in mixes]
    inside = {id(p) for p in matrices}
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": train.weight_decay},
        {"params": [p for p in learned if id(p) not in inside]},
    ]
    rate = train.learning_rate
    if train.optimizer == "adam":
        fused = model.device.type == "cuda"  # one kernel for many small weights
        return torch.optim.Adam(groups, lr=rate, betas=train.betas, fused=fused)
    if train.optimizer == "adadelta":
        return torch.optim.Adadelta(groups, lr=rate, rho=train.rho)
    if train.optimizer == "adagrad":
        return torch.optim.Adagrad(groups, lr=rate)
    return torch.optim.SGD(groups, lr=rate)


def hold_out(examples: Sequence[T], share: float) -> tuple[list[T], list[T]]:
    """Part examples into those to learn from and a share to choose by, always the same way."""
    count = min(max(round(len(examples) * share), 1), len(examples) - 1)
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0)).tolist()
    kept = set(order[:count])
    return (
        [example for n, example in enumerate(examples) if n not in kept],
        [example for n, example in enumerate(examples) if n in kept],
    )


def write_metrics(folder: Path, metrics: Json) -> None:
    """Write metrics.json anew."""
    partial = folder / f".{METRICS}.partial"
    files.write_json(partial, metrics)
    os.replace(partial, folder / METRICS)


def _texts(task: type[AnyTask], examples: Sequence[object]) -> Iterator[Words]:
    for number, example in enumerate(examples, 1):
        for role in task.texts(example):
            for words in role:
                if not words:
                    raise InputError(f"example {number} has a text without words: leave it out")
                yield words


def _compute_layers(store: LayerStore, texts: Sequence[Words], report: Report | None) -> None:
    done = 0

    def tell(count: int) -> None:
        nonlocal done
        done += count
        if report is not None:
            report(Status("layers", done, len(texts)))

    if not store.add(texts, tell) and store.keep != "none":
        warnings.warn(
            f"the biLM's layers of {len(texts):,} texts need more than elmo.keep_gb: they are "
            "computed in every pass",
            stacklevel=3,
        )


def _check_output(output: Path, overwrite: bool) -> None:
    """Refuse a folder before the work, not after it."""
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file, expected the name of a folder")
    if output.is_dir() and any(output.iterdir()) and not overwrite:
        raise InputError(f"{output} exists and is not empty: choose another folder, or overwrite")


@contextmanager
def _rounded(tf32: bool) -> Iterator[None]:
    """Let a GPU round what it multiplies to TF32, 11 binary digits, as tensor cores do quickly."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Draw from a seed, and leave the caller's random numbers as they were."""
    cuda = [device.index or 0] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        yield


@contextmanager
def bars() -> Iterator[Report]:
    """Show a bar for the layers, and one an epoch."""
    bar: tqdm[None] | None = None

    def report(now: Status) -> None:
        nonlocal bar
        if now.result is not None:
            return
        name = "biLM layers" if now.phase == "layers" else f"epoch {now.epoch}"
        if bar is None or bar.desc.removesuffix(": ") != name:
            if bar is not None:
                bar.close()
            bar = tqdm(total=now.total, desc=name)
        if now.loss is not None:
            bar.set_postfix_str(f"loss {now.loss:.4f}", refresh=False)
        bar.update(now.done - bar.n)

    try:
        yield report
    finally:
        if bar is not None:
            bar.close()
