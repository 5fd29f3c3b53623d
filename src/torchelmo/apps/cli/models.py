"""`torchelmo models`: which models there are, and which heads over them."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from torchelmo.errors import InputError

EXAMPLE = "Example: torchelmo models ai2-small"


@dataclass
class Entry:
    """A model: where it is or can be had, and what is known of it."""

    name: str
    where: str  # "packaged", "cached" or "published"
    size: int | None = None  # bytes
    licence: str = "not stated"
    about: str = ""
    path: str | None = None  # on this machine
    sources: list[str] = dataclasses.field(default_factory=list)
    aliases: list[str] = dataclasses.field(default_factory=list)
    attribution: str | None = None  # whose text it was trained on
    task: str | None = None  # of a head, which `predict` takes


def models(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show all about one model.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the packaged models and heads, models on this machine and the published ones."""
    entries = find()
    if name is not None:
        entry = choose(entries, name)
        print(json.dumps(dataclasses.asdict(entry)) if as_json else details(entry))
    elif as_json:
        print(json.dumps([dataclasses.asdict(entry) for entry in entries]))
    else:
        print("\n".join([table(entries), *attributions(entries)]))


def find() -> list[Entry]:
    """Return every model that is known, each once."""
    from torchelmo.formats import files, hub, load
    from torchelmo.tasks import heads

    entries = {
        name: Entry(name, "packaged", _size(path), *_card(path), path=str(path))
        for name, path in load.packaged().items()
    }
    for name, path in heads.packaged_heads().items():
        task = str(files.read_json(path / "config.json").get("task"))
        entries[name] = Entry(
            name, "packaged", _size(path), *_card(path), path=str(path), task=task
        )
    for entry in entries.values():
        entry.attribution = _attribution(Path(entry.path or ""))
    for known in hub.PUBLISHED.values():
        sources = [*(f"{repo} (hub)" for repo, _ in known.mirrors), known.options, known.weights]
        if known.softmax:
            sources.append(known.softmax)
        entries[known.name] = Entry(
            known.name,
            "published",
            known.size,
            known.licence,
            known.summary,
            sources=sources,
            aliases=list(known.aliases),
        )
    mirrors = {repo: m.name for m in hub.PUBLISHED.values() for repo, _ in m.mirrors}
    for found in hub.cached():
        name = mirrors.get(found.name, found.name)
        licence, about = _card(found.path)
        entry = entries.setdefault(name, Entry(name, "cached", found.size, licence, about))
        if entry.where != "packaged":
            entry.where, entry.path, entry.size = "cached", str(found.path), found.size
            entry.attribution = _attribution(found.path)
    return list(entries.values())


def choose(entries: list[Entry], name: str) -> Entry:
    """Return the model of a name, in capitals or not."""
    from torchelmo.config import nearest

    for entry in entries:
        if name.lower() in (entry.name.lower(), *(alias.lower() for alias in entry.aliases)):
            return entry
    names = [entry.name for entry in entries]
    raise InputError(f"there is no model {name!r}{nearest(name, names)}")


def table(entries: list[Entry]) -> str:
    """Return one line a model.

    >>> print(table([Entry("tiny", "packaged", 2_500_000, "CC0", "for tests")]))
    name  where     size    licence  about
    tiny  packaged  2.5 MB  CC0      for tests
    """
    rows = [["name", "where", "size", "licence", "about"]]
    for entry in entries:
        licence = entry.licence.partition(" (")[0]
        rows.append([entry.name, entry.where, _megabytes(entry.size), licence, entry.about])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def attributions(entries: list[Entry]) -> list[str]:
    """Return a line for each model on this machine that says whose text it was trained on.

    >>> attributions([Entry("tiny", "packaged", attribution="Trained on ponds.")])
    ['', 'tiny: Trained on ponds. (all of it: torchelmo models tiny)']
    """
    lines = []
    for entry in entries:
        paragraphs = re.split(r"\n\s*\n", (entry.attribution or "").strip())
        first = next((p for p in paragraphs if p and not p.startswith("#")), "")
        if first:
            text = " ".join(first.split())
            lines.append(f"{entry.name}: {text} (all of it: torchelmo models {entry.name})")
    return ["", *lines] if lines else []


def details(entry: Entry) -> str:
    """Return all that is known of a model, with its card and attribution."""
    facts = {
        "where": entry.where,
        "folder": entry.path,
        "size": _megabytes(entry.size),
        "licence": entry.licence,
        "about": entry.about,
        "task": entry.task,
        "from": "\n         ".join(entry.sources),
        "also": ", ".join(entry.aliases),
    }
    lines = [entry.name, *(f"{key:8} {value}" for key, value in facts.items() if value)]
    card = Path(entry.path, "README.md") if entry.path else None
    if card is not None and card.is_file():
        text = card.read_text(encoding="utf-8", errors="replace")
        lines += ["", re.sub(r"\A---\n.*?\n---\n+", "", text, flags=re.DOTALL).rstrip()]
    if entry.attribution:
        lines += ["", entry.attribution.strip()]
    return "\n".join(lines)


def _card(folder: Path) -> tuple[str, str]:
    """Return the licence and the title that a model's card gives."""
    path = folder / "README.md"
    if not path.is_file():
        return "not stated", ""
    text = path.read_text(encoding="utf-8", errors="replace")
    licence = re.search(r"^license: *(.+)$", text, re.MULTILINE)
    title = re.search(r"^# +(.+)$", text, re.MULTILINE)
    return (licence[1].strip() if licence else "not stated"), (title[1].strip() if title else "")


def _attribution(folder: Path) -> str | None:
    path = folder / "ATTRIBUTION.md"
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:.1f} MB"
