"""Running a probe on a model and on static vectors, and the result file of it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, SupportsFloat

import torch

if TYPE_CHECKING:
    from torchelmo.analysis.embedders import Embedder

Values = dict[str, Any]  # what JSON holds: numbers by name, or by name and name


class Probe(Protocol):
    """Data with a question to vectors."""

    metric: str

    def describe(self) -> str:
        """Say what the data is."""

    def baselines(self) -> Values:
        """Return what can be had without vectors."""

    def measure(self, embedder: Embedder) -> Values:
        """Return the figures of every layer."""


def run(probe: Probe, model: Embedder, static: dict[str, Embedder] | None = None) -> Values:
    """Measure every layer of a model, beside what needs no model.

    Both parts are figures by name: `{"layers": {"0": {"test": 53.0}}, "baselines": {...}}`.
    """
    layers, baselines = probe.measure(model), probe.baselines()
    for name, embedder in (static or {}).items():
        found = probe.measure(embedder)
        baselines |= {f"{name}, {layer}": figures for layer, figures in found.items()}
    return {"layers": layers, "baselines": baselines}


def record(
    values: Values,
    *,
    name: str,
    command: str,
    hardware: str,
    model: str,
    data: str,
    metric: str,
    seeds: Sequence[int] = (),
) -> Values:
    """Return a result as `results/` holds them."""
    return {
        "name": name,
        "date": date.today().isoformat(),
        "commit": _commit(),
        "command": command,
        "hardware": hardware,
        "torch": torch.__version__,
        "model": model,
        "data": data,
        "metric": metric,
        "seeds": list(seeds),
        "values": values,
    }


def write(result: Values, path: Path) -> None:
    """Write a result file, whole or not at all."""
    write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", path)


def write_text(text: str, path: Path) -> None:
    """Write a file, whole or not at all, with the folders it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_text(text, encoding="utf-8")
    os.replace(scratch, path)


def table(result: Values) -> str:
    """Return a result for people: a row a layer, then the baselines."""
    values = result["values"]
    rows = {f"layer {k}" if k.isdigit() else k: v for k, v in values["layers"].items()}
    rows |= values["baselines"]
    heads = [h for row in rows.values() for h, x in row.items() if isinstance(x, int | float)]
    heads = list(dict.fromkeys(heads))
    cells = [["", *heads]]
    for name, row in rows.items():
        cells.append([name, *(_cell(row[head]) if head in row else "" for head in heads)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in cells
    ]
    return "\n".join([f"{result['model']}; {result['data']}", result["metric"], "", *lines])


def _cell(value: float) -> str:
    return f"{value:.{2 if abs(value) > 1 else 4}f}"  # a cosine has more digits than a per cent


def percent(share: SupportsFloat) -> float:
    """Return a share as per cent, with two digits.

    >>> percent(2 / 3)
    66.67
    """
    return round(100 * float(share), 2)


def _commit() -> str:
    """Return the commit of the sources, if they lie in a repository."""
    command = ["git", "-C", str(Path(__file__).resolve().parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()
