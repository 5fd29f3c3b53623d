"""What the commands share: lines on standard error, progress bars, finding the model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from torchelmo.errors import InputError

if TYPE_CHECKING:
    from tqdm import tqdm

DEFAULT_MODEL = "en-small"


class Interrupted(Exception):
    """The user pressed ^C; the message says what is kept."""


def fail(message: str, code: int = 2) -> int:
    """Print one line that says what is wrong; return the exit code."""
    print(f"torchelmo: {one_line(message)}", file=sys.stderr)
    return code


def warn(message: str) -> None:
    """Print one line about something that is odd but no error."""
    print(f"torchelmo: warning: {one_line(message)}", file=sys.stderr)


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show a Python warning as one line, without the code it came from."""
    warn(str(message))


def one_line(text: str) -> str:
    """Return a text without line breaks."""
    return " ".join(text.split())


@contextmanager
def bar(unit: str, description: str, total: int | None = None) -> Iterator[tqdm[None] | None]:
    """Give a progress bar, or None if standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    with tqdm(
        total=total, desc=description, unit=unit, unit_scale=True, leave=False, file=sys.stderr
    ) as shown:
        yield shown


def model_name(name: str | None) -> str:
    """Return the model that is asked for; without one the default, if it is there."""
    from torchelmo.formats import hub, load

    if name is not None:
        return name
    if DEFAULT_MODEL in load.packaged():
        return DEFAULT_MODEL
    names = ", ".join([*load.packaged(), *hub.published_names()])
    raise InputError(
        f"no model was given and {DEFAULT_MODEL}, the default, is not part of this installation: "
        f"give --model a folder or a name ({names}), or give --options and --weights"
    )


def download(name: str, offline: bool | None) -> None:
    """Download a published model with a progress bar, if there is a terminal to show it."""
    from torchelmo.formats import hub

    if Path(name).exists() or not hub.is_published(name):
        return
    with bar("B", name) as shown:
        if shown is None:
            return

        def report(done: int, total: int | None) -> None:
            shown.total = total
            shown.update(done - shown.n)

        hub.fetch(name, offline=offline, progress=report)
