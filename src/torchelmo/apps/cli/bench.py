"""`torchelmo bench`: speed on this machine."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchelmo.apps.cli import console
from torchelmo.apps.cli.options import Device, Offline
from torchelmo.errors import InputError

if TYPE_CHECKING:
    import torch

    from torchelmo.apps.bench.run import Plan, Values
    from torchelmo.formats.model import Model

EXAMPLE = "Example: torchelmo bench --model original --only embed,limits -o speed.json"


def bench(
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="small, medium, original (random weights), or a model's name."
        ),
    ] = "small",
    only: Annotated[
        str | None,
        typer.Option(
            metavar="PARTS",
            help="Some of limits,embed,latency,train,scale,peers.",
            show_default=False,
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Measure more, for minutes.")] = False,
    text: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Words to embed, a sentence a line, not made up."),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Length of the made-up text.")
    ] = None,
    batch_tokens: Annotated[
        str | None, typer.Option(metavar="N,N", help="Sizes of batches, in tokens, or auto.")
    ] = None,
    scale: Annotated[
        str | None, typer.Option(metavar="N,N", help="Lengths of ever longer texts: 1e3,1e7.")
    ] = None,
    repeat: Annotated[
        int | None, typer.Option(metavar="N", help="Rounds, of which best and median count.")
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PYTHON", help="allennlp or simple_elmo, and who has it."),
    ] = None,
    device: Device = None,
    threads: Annotated[int | None, typer.Option(metavar="N", help="Of the processor.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="JSON", help="Write a result file.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="SVG", help="Draw a picture.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    offline: Offline = False,
) -> None:
    """Measure embedding and training here, beside the machine's limits and other programs.

    Takes about half a minute on two cores, with text and weights made up at random.
    """
    parts = parse_parts(only)
    batches = None if batch_tokens is None else parse_batches(batch_tokens)
    sizes = None if scale is None else parse_numbers("--scale", scale)
    for name, value in (("--tokens", tokens), ("--repeat", repeat), ("--threads", threads)):
        if value is not None and value < 1:
            raise InputError(f"{name} is {value}, expected 1 or more")
    for path, ending in ((output, ".json"), (plot, ".svg")):
        if path is not None and path.suffix != ending:
            raise InputError(f"{path} does not end in {ending}")
    sentences = None if text is None else read(text)

    import torch

    from torchelmo.apps.bench import machine, peers, report, run
    from torchelmo.elmo import pick_device

    found = pick_device(device)
    plan = run.full(found) if full else run.quick(found)
    plan = dataclasses.replace(
        plan,
        parts=parts or plan.parts,
        batch_tokens=batches or plan.batch_tokens,
        sizes=sizes or plan.sizes,
        tokens=tokens or plan.tokens,
        repeat=repeat or plan.repeat,
        pythons=peers.parse(peer or []),
    )
    if threads is not None:
        torch.set_num_threads(threads)
    loaded = _load(model, offline)
    load, cores = machine.load(), os.cpu_count() or 1
    if load is not None and load > 0.5 * cores and found.type == "cpu":
        console.warn(f"other work is going on here (load {load:.1f} on {cores} cores): it counts")
    values = _measure(loaded, plan, found, sentences)
    facts = values["text"]
    source = "made-up text" if text is None else text.name
    result = report.record(
        values,
        name=f"{output.absolute().parent.name}-{output.stem}" if output else "bench",
        command=_command(),
        model=report.model_name(Path(model).name, loaded.config),
        data=f"{source}: {facts['sentences']:,} sentences, {facts['tokens']:,} tokens, "
        f"{facts['distinct']:,} distinct",
        device=found,
        seed=plan.seed,
    )
    if output is not None:
        report.write(result, output)
    if plot is not None:
        report.draw(result, plot)
    print(json.dumps(result) if as_json else report.table(result))


def parse_parts(given: str | None) -> tuple[str, ...] | None:
    """Return the parts that are asked for, None for all.

    >>> parse_parts("embed, limits")
    ('embed', 'limits')
    """
    from torchelmo.config import nearest

    known = ("limits", "embed", "latency", "train", "scale", "peers")
    if given is None:
        return None
    parts = tuple(part.strip() for part in given.split(","))
    for part in parts:
        if part not in known:
            raise InputError(f"--only has {part!r}{nearest(part, known)}")
    return parts


def parse_batches(given: str) -> tuple[int | None, ...]:
    """Read sizes of batches; "auto" is the embedder's own choice.

    >>> parse_batches("800,auto")
    (800, None)
    """
    parts = [None if part.strip() == "auto" else part for part in given.split(",")]
    return tuple(
        None if part is None else parse_numbers("--batch-tokens", part)[0] for part in parts
    )


def parse_numbers(name: str, given: str) -> tuple[int, ...]:
    """Return numbers that stand with commas between.

    >>> parse_numbers("--scale", "1e3,20000")
    (1000, 20000)
    """
    try:
        numbers = [float(part) for part in given.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(1 <= n <= 1e12 and n == int(n) for n in numbers):
        raise InputError(f"{name} is {given!r}, expected whole numbers from 1 up, such as 1e3,1e4")
    return tuple(int(n) for n in numbers)


def read(path: Path) -> list[list[str]]:
    """Read sentences, a line each, split at white space; blank lines are left out."""
    from torchelmo.bulk.reader import Reader, check_words, decode

    if not path.is_file():
        raise InputError(f"there is no file {path}")
    found = []
    with path.open("rb") as stream:
        reader = Reader(stream, str(path))
        while not reader.ended:
            words = decode(reader.line(), reader.lines, reader.name).split()
            check_words(words, reader.lines, reader.name)
            if words:
                found.append(words)
    if not found:
        raise InputError(f"{path} has only blank lines: expected sentences")
    return found


def _load(name: str, offline: bool) -> Model:
    from torchelmo.apps.bench.embedding import PRESETS, random_model
    from torchelmo.formats import load

    if name in PRESETS and not Path(name).exists():
        return random_model(name)
    console.download(name, offline or None)
    return load.load(name, offline=offline or None)


def _measure(
    model: Model, plan: Plan, device: torch.device, text: list[list[str]] | None
) -> Values:
    """Measure with a bar that names the part at work."""
    from torchelmo.apps.bench.run import measure

    with console.bar("part", "bench", len(plan.parts)) as shown:

        def note(part: str) -> None:
            if shown is not None:
                shown.update(bool(shown.desc != "bench: "))
                shown.set_description(part)

        return measure(model, plan, device, text=text, note=note)


def _command() -> str:
    """Return what was typed, with names of files alone: where they lie is nobody's business."""
    words = [
        "=".join(Path(part).name if "/" in part else part for part in word.split("="))
        for word in sys.argv[1:]
    ]
    return shlex.join(["torchelmo", *words])
