"""`torchelmo predict`: a trained task on raw text, for people or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchelmo.apps.cli.options import Device
from torchelmo.errors import InputError

if TYPE_CHECKING:
    from torchelmo.tasks.ensemble import Ensemble
    from torchelmo.tasks.model import Parsed

EXAMPLE = 'Example: torchelmo predict en-pos --text "The heron waits."'
WINDOW = 256  # sentences whose predictions are printed together


def predict(
    given: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN... [FILE]",
            help="Folders that `train` wrote, several are averaged, or a packaged head (see "
            "`models`); last, if there is no --text, raw text, UTF-8; - reads standard input.",
        ),
    ],
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Text to predict, instead of a file.")
    ] = None,
    tokenized: Annotated[
        bool, typer.Option("--tokenized", help="A line is a text, its words parted by spaces.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The biLM, if it has moved.")
    ] = None,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")] = False,
) -> None:
    """Print what RUN predicts for raw text.

    Entities are marked in the text, tags stand behind words, labels before lines. Taggers read
    sentences, which are found in the text; classifiers read lines; questions are lines with a TAB
    before the context, or a file in SQuAD's form (*.json), and answers come with their score;
    entailment reads lines with a TAB between premise and hypothesis.
    """
    from torchelmo.tasks.ensemble import Ensemble

    runs, file = (given, None) if text is not None else (given[:-1], given[-1])
    if not runs:
        raise InputError("give either a FILE (- for standard input) or --text TEXT")
    source = text if text is not None else _read(str(file))
    if not source.strip():
        raise InputError("there is no text to predict: it has blank lines alone")
    task = Ensemble[object, object].load(runs, bilm=model, device=device)
    ready = None if file is None or file == "-" else task.parse_file(file)
    parsed = _parse(task, source, tokenized) if ready is None else iter(ready)
    while window := list(islice(parsed, WINDOW)):
        _print(task, window, as_json)


def _parse(
    task: Ensemble[object, object], source: str, tokenized: bool
) -> Iterator[Parsed[object]]:
    for unit in _units(source, "line" if tokenized else task.unit):
        yield task.take(unit.split()) if tokenized else task.parse(unit)


def _print(task: Ensemble[object, object], window: list[Parsed[object]], as_json: bool) -> None:
    found = task.predict([one.example for one in window])
    for one, prediction in zip(window, found, strict=True):
        if as_json:
            print(json.dumps(task.describe(one, prediction), ensure_ascii=False))
        else:
            print(task.show(one, prediction))
    sys.stdout.flush()


def _units(text: str, unit: str) -> Iterator[str]:
    """Cut a text into what a task reads at a time."""
    from torchelmo.text.sentences import split_sentences

    if unit == "document":
        yield text
    elif unit == "sentence":
        yield from (span.text for span in split_sentences(text))
    else:
        yield from (line.strip() for line in text.split("\n") if line.strip())


def _read(file: str) -> str:
    from torchelmo.formats import files

    if file == "-":
        return files.decode(sys.stdin.buffer.read(), "standard input")
    if Path(file).is_dir():
        raise InputError(f"{file} is a folder, expected a text file")
    return files.decode(files.read_bytes(Path(file), files.LIST_BYTES), file)
