"""`torchelmo train`: a downstream task, with and without ELMo."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchelmo.apps.cli import console
from torchelmo.apps.cli.options import Device
from torchelmo.apps.cli.pretrain import stop_signals
from torchelmo.errors import InputError

if TYPE_CHECKING:
    from torchelmo.config import Json
    from torchelmo.tasks.recipe import Recipe
    from torchelmo.tasks.trainer import Report, Status

EXAMPLE = "Example: torchelmo train ner --train eng.train --valid eng.testa -o runs/ner"


def train(
    task: Annotated[str, typer.Argument(metavar="TASK", help="ner, pos, chunk, sst, trec, ...")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="The trained task's folder.")
    ],
    recipe: Annotated[
        Path | None,
        typer.Argument(metavar="RECIPE", help="A TOML file, or one of ours. [default: TASK's]"),
    ] = None,
    train_file: Annotated[
        str | None, typer.Option("--train", metavar="FILE", help="Examples to learn from.")
    ] = None,
    valid_file: Annotated[
        str | None, typer.Option("--valid", metavar="FILE", help="Examples to choose by.")
    ] = None,
    test_file: Annotated[
        str | None, typer.Option("--test", metavar="FILE", help="Examples to score at the end.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Another biLM: --set elmo.model=NAME.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change the recipe: elmo.where=none; repeatable."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Short for --set train.seed=N.")
    ] = None,
    with_bilm: Annotated[
        bool, typer.Option("--with-bilm", help="Put the biLM into DIR: it then needs no other.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace DIR.")] = False,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train TASK and keep its best epoch in DIR, with metrics.json.

    ^C ends the training with the best epoch so far.
    """
    from torchelmo.tasks.model import task_class
    from torchelmo.tasks.recipe import packaged_recipes, read_recipe

    task_class(task)  # an unknown one is refused first
    if recipe is None and task not in packaged_recipes():
        raise InputError(f"there is no recipe of ours for {task!r}: give a RECIPE")
    asked = list(changes or [])
    asked += [] if seed is None else [f"train.seed={seed}"]
    asked += [] if model is None else [f"elmo.model={json.dumps(model)}"]
    chosen = read_recipe(recipe or task, asked)
    data = dataclasses.replace(
        chosen.data,
        train=train_file or chosen.data.train,
        valid=valid_file or chosen.data.valid,
        test=test_file or chosen.data.test,
    )
    chosen = dataclasses.replace(chosen, task=task, data=data)
    if chosen.data.train is None:
        raise InputError("there is nothing to learn from: give --train FILE, or data.train")
    metrics = run(chosen, output, device, overwrite=overwrite, with_bilm=with_bilm)
    print(json.dumps({"output": str(output), **metrics}) if as_json else summary(output, metrics))


def run(
    recipe: Recipe, output: Path, device: str | None, *, overwrite: bool, with_bilm: bool
) -> Json:
    """Train, score the test part, and return what metrics.json has."""
    from torchelmo.tasks.trainer import fit, write_metrics

    with stop_signals() as stopped, _reporting() as report:
        model = fit(
            recipe,
            output=output,
            overwrite=overwrite,
            device=device,
            report=report,
            stop=lambda: bool(stopped),
        )
    if with_bilm:
        model.save(output, bilm=True, overwrite=True)
    if stopped:
        message = f"stopped: {output} holds the best epoch so far"
        if stopped[0] == signal.SIGINT:
            raise console.Interrupted(message)
        raise typer.Exit(console.fail(message, 128 + signal.SIGTERM))
    if recipe.data.test is not None:
        model.metrics = {**model.metrics, "test": model.evaluate(recipe.data.test)}
        write_metrics(output, model.metrics)
    return model.metrics


def summary(output: Path, metrics: Json) -> str:
    """Return the result in a few lines."""
    best = metrics["best"]
    lines = [f"{output}: {metrics['task']}, epoch {best['epoch']} of {len(metrics['epochs'])}"]
    lines += [
        f"{part:6} {figures(scores)}"
        for part, scores in (("valid", best.get("valid")), ("test", metrics.get("test")))
        if scores is not None
    ]
    return "\n".join(lines + [f"mix    {line}" for line in mixes(best)])


def figures(scores: dict[str, float]) -> str:
    """{"f1": 91.234, "recall": 90} -> "f1 91.23, recall 90.00"."""
    return ", ".join(f"{name} {value:.2f}" for name, value in scores.items())


def mixes(epoch: Json) -> list[str]:
    """Return each mix in words: "input: s 0.31 0.45 0.24, gamma 1.020"."""
    return [
        f"{place}: s {' '.join(f'{share:.3f}' for share in mix['s'])}, gamma {mix['gamma']:.3f}"
        for place, mix in epoch.get("mixes", {}).items()
    ]


@contextmanager
def _reporting() -> Iterator[Report]:
    """Give the function that is told how it goes: bars on a terminal, a line an epoch."""
    from torchelmo.tasks.trainer import bars

    best: list[float] = []

    def tell(now: Status) -> None:
        if now.result is None:
            return
        scores = now.result.get("valid") or {}
        parts = [] if now.result["loss"] is None else [f"loss {now.result['loss']:.4f}"]
        if scores:
            first = next(iter(scores.values()))
            star = "" if best and first <= max(best) else " *"
            best.append(first)
            parts.append(figures(scores) + star)
        parts += mixes(now.result)
        line = f"epoch {now.epoch}: {'; '.join(parts)}; {now.result['seconds']:,.0f} s"
        print(line, file=sys.stderr, flush=True)

    if not sys.stderr.isatty():
        yield tell
        return
    with bars() as show:

        def both(now: Status) -> None:
            show(now)
            tell(now)

        yield both
