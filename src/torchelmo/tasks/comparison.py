"""Finished runs of a table side by side: means, deviations, how much of the error ELMo takes away.

{"task": "ner", "baseline": {"scores": [89.9, 90.3], "mean": 90.1, "sd": 0.283},
 "elmo": {"scores": [91.6, 91.8], "mean": 91.7, "sd": 0.141}, "error_cut": 16.16, "paper": {}}
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from torchelmo.config import Json
from torchelmo.errors import InputError
from torchelmo.tasks.experiment import Group, Places, Table, standing
from torchelmo.tasks.processes import write_whole

BASELINE, ELMO = "baseline", "elmo"
DIGITS = 4


def collect(table: Table, places: Places, changes: Sequence[str] = ()) -> dict[str, Path]:
    """Write NAME.json of each task of which some runs are done; return those files by name.

    Only runs whose recipe is the table's, with `changes`, count. Before both arms have a run there
    is no comparison.
    """
    written = {}
    for name, group in table.groups.items():
        found: dict[str, list[Json]] = {}
        for run in table.runs([name], changes):
            now = standing(run, places)
            if now.result is not None:
                found.setdefault(run.condition, []).append(now.result)
        wanted = set(group.conditions or table.conditions)
        if {BASELINE, ELMO} & wanted <= set(found) and found:
            path = places.results / f"{name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, compare(name, group, found, table.path.stem))
            written[name] = path
    return written


def compare(name: str, group: Group, found: dict[str, list[Json]], table: str) -> Json:
    """Return a task's runs, by condition, as a result file has them."""
    runs = [one for results in found.values() for one in results]
    metric = group.metric or runs[0]["metric"]
    arms = {condition: arm(_scores(results, metric)) for condition, results in found.items()}
    out: Json = {
        "name": f"tasks-{name}",
        "date": max(one["date"] for one in runs),
        "commit": _each(runs, "commit"),
        "command": f"torchelmo experiment {table} --only {name}",
        "hardware": _each(runs, "hardware"),
        "torch": _each(runs, "torch"),
        "model": ", ".join(sorted({str(one["bilm"][0]) for one in runs if one["bilm"]})),
        "data": group.about,
        "metric": metric,
        "seeds": sorted({one["seed"] for one in runs}),
        "task": group.task or name,
        **arms,
    }
    if BASELINE in arms and ELMO in arms:
        out["error_cut"] = error_cut(arms[BASELINE]["mean"], arms[ELMO]["mean"])
    out["paper"] = group.paper
    out["values"] = {
        "examples": runs[0]["examples"],
        "epochs": runs[0]["recipe"]["train"]["epochs"],
        "patience": runs[0]["recipe"]["train"]["patience"],
        "planned_seeds": list(group.seeds),
        "runs": {
            condition: [
                {
                    key: one[key]
                    for key in (
                        "seed", "test", "valid", "best_epoch", "epochs", "seconds", "parameters",
                        "mixes", "layers",
                    )
                }
                for one in results
            ]
            for condition, results in found.items()
        },
    }  # fmt: skip
    return out


def arm(scores: Sequence[float]) -> Json:
    """Return scores with their mean and sample deviation, which one score does not have.

    >>> arm([90.0, 92.0])
    {'scores': [90.0, 92.0], 'mean': 91.0, 'sd': 1.4142}
    """
    return {
        "scores": [round(score, DIGITS) for score in scores],
        "mean": round(statistics.fmean(scores), DIGITS),
        "sd": round(statistics.stdev(scores), DIGITS) if len(scores) > 1 else None,
    }


def error_cut(baseline: float, elmo: float) -> float | None:
    """Return how much of the baseline's error is gone, in percent.

    >>> error_cut(90.0, 92.0)
    20.0
    """
    return None if baseline >= 100 else round(100 * (elmo - baseline) / (100 - baseline), 2)


def _scores(results: Sequence[Json], metric: str) -> list[float]:
    for one in results:
        value = one["test"].get(metric)
        if not isinstance(value, int | float) or not math.isfinite(value):
            names = ", ".join(one["test"])
            raise InputError(f"{one['name']} has no figure {metric!r}, it has {names}")
    return [float(one["test"][metric]) for one in results]


def _each(runs: Sequence[Json], key: str) -> str:
    return ", ".join(dict.fromkeys(str(one[key]) for one in runs))
