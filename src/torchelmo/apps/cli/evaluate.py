"""`torchelmo evaluate`: the figures of a trained task on a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from torchelmo.apps.cli.options import Device
from torchelmo.apps.cli.train import figures

EXAMPLE = "Example: torchelmo evaluate runs/ner eng.testb"


def evaluate(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="A folder that `train` wrote, several are averaged, or a packaged head.",
        ),
    ],
    file: Annotated[str, typer.Argument(metavar="FILE", help="Examples, as `train` reads them.")],
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The biLM, if it has moved.")
    ] = None,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict the examples of FILE and compare."""
    from torchelmo.tasks.ensemble import Ensemble

    scores = Ensemble[object, object].load(runs, bilm=model, device=device).evaluate(file)
    print(json.dumps(scores) if as_json else figures(scores))
