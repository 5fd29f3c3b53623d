"""What was measured, for people: a result file, a table, a picture."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from xml.sax.saxutils import escape

import torch

from torchelmo.apps.bench import machine
from torchelmo.apps.bench.run import Values
from torchelmo.config import ElmoConfig

BAR, LABEL, WIDTH, TOP, COLOUR, OTHER = 20, 260, 720, 40, "#3f7cae", "#b9c4cc"


def record(
    values: Values,
    *,
    name: str,
    command: str,
    model: str,
    data: str,
    device: torch.device,
    seed: int,
) -> Values:
    """Return a result as `results/` holds them."""
    return {
        "name": name,
        "date": date.today().isoformat(),
        "commit": _commit(),
        "command": command,
        "hardware": machine.describe(device),
        "torch": torch.__version__,
        "model": model,
        "data": data,
        "metric": "tokens a second (best and median), ms a sentence, MB, GFLOP/s, GB/s",
        "seeds": [seed],
        "values": rounded(values),
    }


def model_name(name: str, config: ElmoConfig) -> str:
    """Return what a model is, with its size.

    >>> model_name("small", ElmoConfig.preset("small"))
    'small, 1024/128'
    """
    return f"{name}, {config.lstm.cells}/{config.lstm.projection}"


def rounded(value: object) -> object:
    """Return the same with six digits a number, which is more than such measurements have.

    >>> rounded({"a": [1234567.8, 1 / 3, 7]})
    {'a': [1234570.0, 0.333333, 7]}
    """
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.6g}")
    return value


def write(result: Values, path: Path) -> None:
    """Write a result file, whole or not at all."""
    _write(path, json.dumps(result, indent=1) + "\n")


def draw(result: Values, path: Path) -> None:
    """Write the picture of a result."""
    _write(path, chart(result))


def table(result: Values) -> str:
    """Return the result for people, a block a part."""
    values = result["values"]
    blocks = [
        f"{result['model']} on {result['hardware']}, torch {result['torch']}\n{result['data']}"
    ]
    if "limits" in values:
        limits = values["limits"]
        units = {"copy": "GB/s copied", "to_host": "GB/s to the host"}
        rows = [[name, _number(x), units.get(name, "GFLOP/s")] for name, x in limits.items()]
        blocks.append(_block("limits of the machine", rows))
    if "embed" in values:
        rows = [["words", "batch tokens", "to", "precision", "tokens/s", "median", "of limit"]]
        for row in values["embed"]:
            batch = "chosen" if row["batch_tokens"] is None else f"{row['batch_tokens']:,}"
            speeds = [_number(row["tokens_per_second"]), _number(row["median"])]
            rows.append([row["words"], batch, row["to"], row["precision"], *speeds, _share(row)])
        near = {row["precision"]: row["cosine"] for row in values["embed"] if "cosine" in row}
        title = "".join(f", {kind} at a cosine of {x:.5f} or more" for kind, x in near.items())
        blocks.append(_block(f"embedding{title}", rows))
    if "memory" in values:
        rows = [[_place(name), f"{_number(x)} MB"] for name, x in values["memory"].items()]
        blocks.append(_block("peak memory, embedding", rows))
    if "latency" in values:
        rows = [["words", "median ms", "p90 ms"]]
        for words, row in values["latency"].items():
            rows.append([words, _number(row["median_ms"]), _number(row["p90_ms"])])
        blocks.append(_block("one sentence at a time", rows))
    if "train" in values:
        rows = [["precision", "batch", "negatives", "tokens/s", "median", "of limit", "peak MB"]]
        for row in values["train"]:
            size = [f"{row['batch']} x {row['unroll']}", f"{row['negatives']:,}"]
            speeds = [_number(row["tokens_per_second"]), _number(row["median"])]
            rows.append([row["precision"], *size, *speeds, _share(row), _held(row)])
        blocks.append(_block("training, whole steps", rows))
    if "scale" in values:
        scale = values["scale"]
        rows = [["tokens", "distinct", "us a token", "peak MB", "us to prepare", "peak MB"]]
        for row, made in zip(scale["embed"], scale["prepare"], strict=True):
            counts = [f"{row['tokens']:,}", f"{row['distinct']:,}"]
            costs = [[_number(x["microseconds_per_token"]), _held(x)] for x in (row, made)]
            rows.append([*counts, *costs[0], *costs[1]])
        blocks.append(_block("ever longer text", rows))
        rows = [["words", "us a token", "seen"]]
        for row in scale["sentence"]:
            cells = [_number(row[key]) for key in ("microseconds_per_token", "seen")]
            rows.append([f"{row['words']:,}", *cells])
        blocks.append(_block("ever longer sentences", rows))
    if "peers" in values:
        blocks.append(_block("beside other programs, by turns", list(_peer_rows(values["peers"]))))
    return "\n\n".join(blocks)


def _peer_rows(rows: Sequence[Values]) -> Iterator[list[str]]:
    yield ["program", "tokens/s", "median", "ms a sentence", "peak MB", "torchelmo is", "differs"]
    for row in rows:
        speeds = [_number(row["tokens_per_second"]), _number(row["median"])]
        single = _number(row["latency"]["median_ms"])
        if "times" not in row:
            yield [f"{row['name']}, cold", *speeds, single, _held(row), "", ""]
            speeds = [_number(row["seen"][key]) for key in ("tokens_per_second", "median")]
            single = _number(row["latency_seen"]["median_ms"])
            yield [f"{row['name']}, seen", *speeds, single, "", "", ""]
            continue
        times = row["times"]
        said = ", ".join(f"{times[key]:.2f}x {key}" for key in ("cold", "seen", "latency"))
        yield [
            f"{row['name']}, {row['batch']}",
            *speeds,
            single,
            _held(row),
            said,
            f"{row['difference']:.1e}",
        ]


def chart(result: Values) -> str:
    """Return a picture: tokens a second as bars, and what a token costs in ever longer text."""
    values = result["values"]
    bars = list(_bars(values))
    scale = values.get("scale", {}).get("embed", [])
    below = TOP + BAR * len(bars) + 30
    height = below + (150 if scale else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#24303c">',
        f"<title>Speed of {escape(result['model'])} on {escape(result['hardware'])}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="20">Tokens a second: {escape(result["model"])}, '
        f"{escape(result['hardware'])}</text>",
    ]
    most = max((speed for _, speed, _ in bars), default=1.0)
    for place, (label, speed, colour) in enumerate(bars):
        y = TOP + BAR * place
        width = max((WIDTH - LABEL - 90) * speed / most, 1)
        parts.append(
            f'<text x="{LABEL - 8}" y="{y + 12}" text-anchor="end">{escape(label)}</text>'
            f'<rect x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR - 5}" fill="{colour}"/>'
            f'<text x="{LABEL + width + 6:.1f}" y="{y + 12}">{_number(speed)}</text>'
        )
    if scale:
        parts += _curve(scale, below)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bars(values: Values) -> Iterator[tuple[str, float, str]]:
    for row in values.get("embed", ()):
        batch = "" if row["batch_tokens"] is None else f", batch of {row['batch_tokens']:,}"
        to = "" if row["to"] == "host" else f" to {row['to']}"
        kind = "" if row["precision"] == "float32" else f" {row['precision']}"
        yield f"embed{kind}{to}, {row['words']}{batch}", row["tokens_per_second"], COLOUR
    for row in values.get("train", ()):
        yield f"train, {row['precision']}", row["tokens_per_second"], COLOUR
    for row in values.get("peers", ()):
        if "times" in row:
            yield f"{row['name']}, embed, {row['batch']} at a time", row["tokens_per_second"], OTHER


def _curve(scale: Sequence[Values], top: int) -> Iterator[str]:
    """Draw microseconds a token against the length of the text, from zero up."""
    left, right, high = LABEL, WIDTH - 90, 90
    logs = [math.log10(row["tokens"]) for row in scale]
    span = (logs[-1] - logs[0]) or 1.0
    most = max(row["microseconds_per_token"] for row in scale)
    yield f'<text x="12" y="{top}">Microseconds a token, by tokens of text</text>'
    base = top + 20 + high
    yield f'<path d="M{left} {base}H{right}" stroke="#e3e7ea"/>'
    points = []
    for log, row in zip(logs, scale, strict=True):
        x = left + (log - logs[0]) / span * (right - left)
        y = base - row["microseconds_per_token"] / most * high
        points.append(f"{x:.1f},{y:.1f}")
        yield (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLOUR}"/>'
            f'<text x="{x:.1f}" y="{y - 8:.1f}" text-anchor="middle">'
            f"{_number(row['microseconds_per_token'])}</text>"
            f'<text x="{x:.1f}" y="{base + 18}" text-anchor="middle">{row["tokens"]:,}</text>'
        )
    yield f'<polyline points="{" ".join(points)}" fill="none" stroke="{COLOUR}" stroke-width="2"/>'


def _block(title: str, rows: Sequence[Sequence[str]]) -> str:
    """Return rows as columns, words to the left and numbers to the right.

    >>> print(_block("speed", [["a", "5.0"], ["bcd", "12.5"]]))
    speed
      a     5.0
      bcd  12.5
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = rows[-1]
    lines = [
        "  ".join(
            cell.rjust(width) if end[:1].isdigit() and not end[-1:].isalpha() else cell.ljust(width)
            for cell, width, end in zip(row, widths, last, strict=True)
        )
        for row in rows
    ]
    return "\n".join([title, *(f"  {line}".rstrip() for line in lines)])


def _number(value: float) -> str:
    """Return a number as people read it.

    >>> _number(12345.6), _number(12.345), _number(0.123)
    ('12,346', '12.3', '0.12')
    """
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _share(row: Values) -> str:
    return f"{row['share']:.0%}" if "share" in row else "?"


def _held(row: Values) -> str:
    """Return the memory of the device, or else that of the process."""
    found = row.get("device_mb", row.get("process_mb"))
    return "?" if found is None else _number(found)


def _place(name: str) -> str:
    return {"process_mb": "this process", "device_mb": "the device"}[name]


def _commit() -> str:
    """Return the commit of the sources, if they lie in a repository."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return done.stdout.strip()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_text(text, encoding="utf-8")
    os.replace(scratch, path)
