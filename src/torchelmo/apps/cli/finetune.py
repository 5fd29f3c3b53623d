"""`torchelmo finetune`: continue a biLM on text of a domain."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchelmo.apps.cli import console
from torchelmo.apps.cli.options import Device
from torchelmo.apps.cli.pretrain import pick_place, stop_signals
from torchelmo.errors import InputError

if TYPE_CHECKING:
    from torchelmo.pretrain.log import Status

EXAMPLE = "Example: torchelmo finetune my-elmo reviews.txt -o reviews-elmo"
PHASES = {"softmax": "new softmax", "all": "all layers"}


def finetune(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name, folder, file or hub id.")],
    texts: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Raw text, UTF-8.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="A new folder.")],
    valid: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Text to measure on; repeatable. [default: a share]"),
    ] = None,
    epochs: Annotated[float, typer.Option(metavar="N", help="Over the text.")] = 1.0,
    learning_rate: Annotated[float, typer.Option(metavar="RATE", help="Of AdamW.")] = 3e-4,
    batch: Annotated[int, typer.Option(metavar="N", help="Rows of text read side by side.")] = 32,
    new_words: Annotated[
        int, typer.Option(metavar="N", help="Words to add to the vocabulary, at most.")
    ] = 0,
    vocab_size: Annotated[
        int, typer.Option(metavar="N", help="Of a model that comes without a vocabulary.")
    ] = 100_000,
    lines: Annotated[
        bool, typer.Option("--lines", help="A line is a sentence, its words parted by spaces.")
    ] = False,
    vocabulary: Annotated[
        Path | None, typer.Option(metavar="TXT", help="The model's, if it lies elsewhere.")
    ] = None,
    softmax: Annotated[
        Path | None, typer.Option(metavar="HDF5", help="The model's, if it lies elsewhere.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of all that is drawn.")] = 0,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Continue MODEL on the text of a domain; the same command goes on where it was stopped.

    The model is DIR/run/last. Without its softmax a new one is trained first, the rest frozen.
    """
    from torchelmo.formats import load
    from torchelmo.pretrain.finetune import FinetuneOptions
    from torchelmo.pretrain.finetune import finetune as run

    for path in [*texts, *(valid or [])]:
        if not path.is_file():
            raise InputError(f"there is no file {path}")
    options = FinetuneOptions(
        epochs=epochs,
        learning_rate=learning_rate,
        batch=batch,
        new_words=new_words,
        vocab_size=vocab_size,
        sentences_by_line=lines,
        seed=seed,
    )
    place = pick_place(device)
    source = load.load(model, vocabulary=vocabulary, softmax=softmax)
    with stop_signals() as stopped:
        result = run(
            source,
            texts,
            output,
            options,
            valid=valid or (),
            device=place,
            report=_report,
            stop=lambda: bool(stopped),
        )
    if result is None:
        message = "stopped and saved: the same command goes on"
        if stopped and stopped[0] == signal.SIGINT:
            raise console.Interrupted(message)
        raise typer.Exit(console.fail(message, 128 + signal.SIGTERM))
    if as_json:
        facts = {
            "output": str(result.folder),
            "before": result.before,
            "after": result.after,
            "added": result.added,
            "steps": result.result.step,
        }
        print(json.dumps(facts))
        return
    before = "not measured, it had no softmax"
    if result.before is not None:
        before = f"{result.before['perplexity']:,.2f}"
    print(f"{result.folder}: perplexity before {before}, after {result.after['perplexity']:,.2f}")


def _report(phase: str, now: Status) -> None:
    if now.validation is not None:
        text = f"validation perplexity {now.validation['perplexity']:,.2f}"
    else:
        text = f"loss {now.loss:.3f}, {now.tokens_per_second:,.0f} tok/s"
    line = f"{PHASES[phase]}, step {now.step:,} of {now.plan.steps:,}: {text}"
    print(line, file=sys.stderr, flush=True)
