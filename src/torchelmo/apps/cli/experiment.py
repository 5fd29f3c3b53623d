"""`torchelmo experiment`: a table of task runs, stopped and gone on with at will."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchelmo.apps.cli import console
from torchelmo.apps.cli.options import Device
from torchelmo.apps.cli.pretrain import stop_signals

if TYPE_CHECKING:
    from torchelmo.tasks.experiment import Places, Standing, Table
    from torchelmo.tasks.processes import Event

EXAMPLE = "Example: torchelmo experiment table1 --data data/tasks/en --jobs 3"


def experiment(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="A TOML file, or one of ours: table1.")
    ],
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="What the table's paths lie below.")
    ] = Path(),
    results: Annotated[
        Path, typer.Option(metavar="DIR", help="Results of runs, and comparisons of them.")
    ] = Path("results/tasks"),
    work: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Checkpoints, logs, models. [default: runs/TABLE]"),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="These alone: ner, ner/elmo, ner/elmo/1; repeatable."),
    ] = None,
    jobs: Annotated[int, typer.Option(metavar="N", min=1, help="Runs at once.")] = 1,
    share_layers: Annotated[
        bool,
        typer.Option("--share-layers", help="Compute the biLM's layers once, as float16 on disk."),
    ] = False,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change every recipe; repeatable."),
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="Show what is done, running, left.")] = False,
    only_collect: Annotated[
        bool, typer.Option("--collect", help="Compare what is done, run nothing.")
    ] = False,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run what of TABLE is not in results yet, then compare.

    Stop it at any time, also by a kill: the same command goes on. A run that fails is named in the
    end and tried again by the next call.
    """
    from torchelmo.tasks.experiment import Places, check, read_table, standing

    found = read_table(table)
    places = Places(data, work or Path("runs") / found.path.stem, results)
    runs = found.runs(only or [], changes or [])
    if show:
        _list([standing(run, places) for run in runs], as_json)
        return
    if only_collect:
        _collect(found, places, changes or [], as_json)
        return
    check(runs)

    from torchelmo.tasks.processes import Settings, run_all

    now = [standing(run, places) for run in runs]
    elsewhere = [one.run.name for one in now if one.state == "running"]
    left = [one.run for one in now if one.state not in ("done", "running")]
    _say(f"{len(runs)} runs, {len(left)} to do{_also(now)}")
    settings = Settings(places, device, jobs, share_layers)
    finished: list[str] = []

    def tell(event: Event) -> None:
        if event.what == "done":
            finished.append(event.run.name)
            _say(f"{event.run.name}: {standing(event.run, places).words}")
        else:
            _say(f"{event.run.name} {event.what}{event.words and ': ' + event.words}")

    with stop_signals() as stopped:
        failures = run_all(left, settings, tell, stop=lambda: bool(stopped))
    if elsewhere:
        console.warn(f"another command is at {', '.join(elsewhere)}")
    _collect(found, places, changes or [], as_json)
    if stopped:
        message = f"stopped with {len(left) - len(finished)} runs left: the same command goes on"
        if stopped[0] == signal.SIGINT:
            raise console.Interrupted(message)
        raise typer.Exit(console.fail(message, 128 + signal.SIGTERM))
    if failures:
        why = by_reason(failures)
        raise typer.Exit(console.fail(f"{len(failures)} of {len(left)} runs failed: {why}", 1))


def by_reason(failures: Mapping[str, str]) -> str:
    """Say what failed and why, each reason once.

    >>> by_reason({"a": "no file", "b": "no file", "c": "no file", "d": "no model"})
    'a and 2 more (no file); d (no model)'
    """
    reasons: dict[str, list[str]] = {}
    for name, words in failures.items():
        reasons.setdefault(words, []).append(name)
    return "; ".join(
        f"{first}{f' and {len(others)} more' if others else ''} ({words})"
        for words, (first, *others) in reasons.items()
    )


def _collect(table: Table, places: Places, changes: Sequence[str], as_json: bool) -> None:
    """Write the comparisons and show them."""
    from torchelmo.formats import files
    from torchelmo.tasks.comparison import BASELINE, ELMO, collect

    written = collect(table, places, changes)
    compared = {name: files.read_json(path) for name, path in written.items()}
    if as_json:
        print(json.dumps({str(written[name]): one for name, one in compared.items()}))
        return
    if not compared:
        _say("nothing to compare yet: a task needs a finished run in each of its arms")
    for name, one in compared.items():
        arms = [one[arm] for arm in (BASELINE, ELMO) if arm in one]
        words = " -> ".join(
            f"{arm['mean']:.2f}" + (f" ± {arm['sd']:.2f}" if arm["sd"] is not None else "")
            for arm in arms
        )
        cut = one.get("error_cut")
        gone = "" if cut is None else f", error cut by {cut:.1f} %"
        print(f"{written[name]}: {one['metric']} {words}{gone}")


def _list(standings: Sequence[Standing], as_json: bool) -> None:
    if as_json:
        rows = [{"run": s.run.name, "state": s.state, "words": s.words} for s in standings]
        print(json.dumps(rows))
        return
    width = max(len(one.run.name) for one in standings)
    for one in standings:
        print(f"{one.run.name:{width}}  {one.state:7}  {one.words}".rstrip())
    counts = Counter(one.state for one in standings)
    print(", ".join(f"{count} {state}" for state, count in counts.items()))


def _also(standings: Sequence[Standing]) -> str:
    counts = Counter(one.state for one in standings)
    words = [f"{counts[s]} {s}" for s in ("done", "running", "stopped", "changed") if counts[s]]
    return f" ({', '.join(words)})" if words else ""


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
