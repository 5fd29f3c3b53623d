"""Tables of the tasks for scripts/docs.py, from what `torchelmo experiment` left in results/tasks,
and of the packaged heads, from what scripts/package_head.py left in results/heads.

A result that is not there leaves no trace.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

from docs_models import rows, section

RESULTS = Path(__file__).resolve().parents[1] / "results" / "tasks"
HEADS = RESULTS.with_name("heads")
NAMES = {  # in the order of the paper's table
    "qa": "question answering",
    "nli": "entailment",
    "srl": "semantic roles",
    "coref": "coreference",
    "ner": "named entities",
    "sst": "sentiment",
    "nsmc": "sentiment, Korean",
    "kaist": "tags, Korean",
    "kmou": "named entities, Korean",
}
ARMS = ("baseline", "elmo")


def results() -> dict[str, dict]:
    """Return the comparisons by name, the paper's tasks first."""
    found = {path.stem: json.loads(path.read_text("utf-8")) for path in RESULTS.glob("*.json")}
    compared = {name: one for name, one in found.items() if all(arm in one for arm in ARMS)}
    order = list(NAMES)
    place = {name: order.index(name) if name in order else len(order) for name in compared}
    return {name: compared[name] for name in sorted(compared, key=lambda n: (place[n], n))}


def figure(arm: dict) -> str:
    """{"mean": 90.1, "sd": 0.2} -> "90.10 ± 0.20"; one seed has no deviation."""
    return f"{arm['mean']:.2f}" + ("" if arm["sd"] is None else f" ± {arm['sd']:.2f}")


def papers(paper: dict) -> list[str]:
    """Return the paper's two figures and how much of the error was cut."""
    if not all(arm in paper for arm in ARMS):
        return ["", ""]
    before, after = (paper[arm] for arm in ARMS)
    cut = 100 * (after - before) / (100 - before)
    return [f"{before:g} → {after:g}", f"{cut:.1f} %"]


def comparison(found: dict[str, dict]) -> list[str]:
    """Without and with ELMo, beside the paper."""
    head = ["task, data", "figure", "baseline", "+ ELMo", "gain", "error cut", "seeds"]
    lines: list[list[str]] = [[*head, "paper", "its error cut"]]
    for name, one in found.items():
        gain = one["elmo"]["mean"] - one["baseline"]["mean"]
        counts = sorted({len(one[arm]["scores"]) for arm in ARMS})
        cut = one["error_cut"]
        lines.append(
            [
                f"{NAMES.get(name, name)}: {one['data']}",
                one["metric"],
                *(figure(one[arm]) for arm in ARMS),
                f"{gain:+.2f}",
                "" if cut is None else f"{cut:.1f} %",
                " / ".join(map(str, counts)),
                *papers(one["paper"]),
            ]
        )
    return rows(*lines)


def brief() -> str:
    """The paper's tasks, a line each."""
    lines = [["", "without ELMo", "with en-small", "error cut", "in the paper"]]
    for name, one in results().items():
        if all(arm in one["paper"] for arm in ARMS):
            task = f"{NAMES.get(name, name)} ({one['metric']})"
            cut = "" if one["error_cut"] is None else f"{one['error_cut']:.1f} %"
            lines.append([task, *(figure(one[arm]) for arm in ARMS), cut, papers(one["paper"])[1]])
    return "\n".join(rows(*lines)) + "\n" if len(lines) > 1 else ""


def mixes(found: dict[str, dict]) -> list[str]:
    """What the tasks took of each layer, means over seeds."""
    lines: list[list[str]] = [["task", "place", "s, from the token layer up", "gamma"]]
    for name, one in found.items():
        runs = one["values"]["runs"].get("elmo", [])
        for place in runs[0]["mixes"] if runs else ():
            own = [run["mixes"][place] for run in runs]
            shares = [fmean(column) for column in zip(*(mix["s"] for mix in own), strict=True)]
            gamma = fmean(mix["gamma"] for mix in own)
            cells = " ".join(f"{share:.2f}" for share in shares)
            lines.append([NAMES.get(name, name), place, cells, f"{gamma:.2f}"])
    return rows(*lines)


def budgets(found: dict[str, dict]) -> list[str]:
    """How large the sets are and how long it took."""
    head = ["task", "examples: train / valid / test", "epochs at most", "best epochs"]
    lines: list[list[str]] = [[*head, "minutes a run, baseline / ELMo", "machine"]]
    for name, one in found.items():
        values = one["values"]
        runs = [values["runs"][arm] for arm in ARMS]
        best = sorted(run["best_epoch"] for arm in runs for run in arm)
        sizes = (values["examples"].get(part, 0) for part in ("train", "valid", "test"))
        minutes = (f"{fmean(run['seconds'] for run in arm) / 60:.1f}" for arm in runs)
        lines.append(
            [
                NAMES.get(name, name),
                " / ".join(f"{size:,}" for size in sizes),
                str(values["epochs"]),
                f"{best[0]} to {best[-1]}",
                " / ".join(minutes),
                one["hardware"],
            ]
        )
    return rows(*lines)


def heads() -> str:
    """The packaged heads: what each does, over which biLM, how well."""
    lines: list[list[str]] = [["head", "task", "over", "size", "test data", "figures"]]
    for path in sorted(HEADS.glob("*.json")):
        one = json.loads(path.read_text("utf-8"))
        name, _, model = one["model"].partition(" over ")
        figures = ", ".join(f"{label} {value:.2f}" for label, value in one["values"].items())
        size = f"{one['megabytes']:.1f} MB"
        lines.append([f"`{name}`", f"`{one['task']}`", model, size, one["data"], figures])
    return "\n".join([*rows(*lines), ""]) if lines[1:] else ""


def tasks() -> str:
    """All of it."""
    found = results()
    if not found:
        return ""
    models = ", ".join(dict.fromkeys(one["model"] for one in found.values()))
    parts = (
        section(
            "Without and with ELMo",
            f"Means over seeds ± sample deviation, on the test part; the biLM is {models}.",
            comparison(found),
        ),
        section("What the mixes learned", mixes(found)),
        section("Sizes and budgets", budgets(found)),
    )
    return "\n".join(part for part in parts if part)
