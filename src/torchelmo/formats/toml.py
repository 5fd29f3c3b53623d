"""TOML files that people write, and changes to them by `section.key=value`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from torchelmo.config import Json, nearest
from torchelmo.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read(path: Path) -> Json:
    """Return what a file holds."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path} is not a TOML file: {error}") from None


def put(data: Json, change: str, sections: Sequence[str]) -> tuple[str, str]:
    """Make a change, `section.key=value` with a value as in TOML; return section and key.

    >>> data = {"train": {"batch": 128}}
    >>> put(data, "train.batch=64", ["train"]), put(data, "train.name=slow", ["train"]), data
    (('train', 'batch'), ('train', 'name'), {'train': {'batch': 64, 'name': 'slow'}})
    """
    key, sign, text = change.partition("=")
    section, dot, name = key.strip().partition(".")
    if not sign or not dot:
        raise InputError(f"--set {change!r}: expected section.key=value, such as train.batch=64")
    if section not in sections:
        raise InputError(
            f"--set {change!r}: there is no section {section!r}{nearest(section, sections)}"
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word is a string
    *inner, last = name.split(".")
    place = data
    for step in (section, *inner):
        place = place.setdefault(step, {})
        if not isinstance(place, dict):
            raise InputError(f"--set {change!r}: {step} is {place!r} in the recipe, not a table")
    place[last] = value
    return section, ".".join((*inner, last))
