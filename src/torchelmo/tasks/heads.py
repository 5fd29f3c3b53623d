"""Heads: trained tasks that come with the package, over its models, by name.

    torchelmo predict en-pos --text "The heron waits."
    load_task("en-pos").predict(["The heron waits."])

A head is a trained task's folder of at most 5 MB with a card and an attribution; its biLM is the
packaged model that it names. `scripts/package_head.py` makes one of a run.
"""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from torchelmo.config import nearest
from torchelmo.errors import InputError


def packaged_heads() -> dict[str, Path]:
    """Return the heads that came with torchelmo, by name."""
    home = importlib.resources.files("torchelmo") / "heads"
    if not isinstance(home, Path) or not home.is_dir():
        return {}
    return {path.parent.name: path.parent for path in sorted(home.glob("*/config.json"))}


def find(name: str | Path) -> Path:
    """Return the folder of a trained task: the path itself, or that of a packaged head.

    A head goes by its name, "en-pos", or by its task, "pos", while there is one head of it.
    """
    path = Path(name)
    if path.is_dir():
        return path
    ours = packaged_heads()
    found = [head for head in ours if str(name) in (head, head.partition("-")[2])]
    if len(found) == 1:
        return ours[found[0]]
    heads = f", or a packaged head{nearest(str(name), ours)}" if ours else ""
    raise InputError(f"there is no folder {path}: expected one that `torchelmo train` wrote{heads}")
