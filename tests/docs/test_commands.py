"""The commands in README.md and docs/ are commands: every option and argument is known."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from torchelmo.apps.cli import app

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        for block in FENCE.findall(page.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                # Without the options of a synopsis, as in [--seed N].
                words = shlex.split(re.sub(r" \[-[^]]*\]", "", line), comments=True)
                if words[:1] == ["torchelmo"] and len(words) > 1:
                    name = f"{page.relative_to(ROOT).as_posix()}: {' '.join(words[1:])}"
                    yield pytest.param(words[1:], id=name)


@pytest.mark.parametrize("words", list(commands()))
def test_command(words):
    known = typer.main.get_command(app).commands
    assert words[0] in known
    cut = next((n for n, word in enumerate(words) if word in ("|", ">", "&&", "&")), len(words))
    with known[words[0]].make_context(words[0], words[1:cut]):
        pass
