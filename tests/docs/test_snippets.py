"""The Python in README.md and docs/ is code that runs.

Every ```python block must compile. A block whose first line is an import stands by itself and is
run, unless `<!-- no-run -->` stands on the line before it, in a folder that holds a tiny model as
`options.json` + `weights.hdf5` and, with its vocabulary and softmax, as the folder `my-elmo`.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```python[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    page: Path
    line: int  # of the first line of code, counted from 1
    code: str
    runs: bool


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        before, code = text[: match.start()], match[1]
        told_not_to = before.rstrip().endswith("<!-- no-run -->")
        runs = code.startswith(("import ", "from ")) and not told_not_to
        found.append(Block(page, before.count("\n") + 2, code, runs))
    return found


def pages() -> list[Path]:
    readme = ROOT / "README.md"
    return [readme] * readme.exists() + sorted((ROOT / "docs").glob("**/*.md"))


ALL = [
    pytest.param(block, id=f"{block.page.relative_to(ROOT).as_posix()}:{block.line}")
    for page in pages()
    for block in blocks(page)
]


@pytest.mark.parametrize("block", ALL)
def test_block(block, fixtures, tmp_path, monkeypatch):
    # Blank lines in front give tracebacks the page's own line numbers.
    code = compile("\n" * (block.line - 1) + block.code, str(block.page), "exec")
    if block.runs:
        shutil.copytree(fixtures / "plain", tmp_path / "my-elmo")
        for name in ("options.json", "weights.hdf5"):
            shutil.copy(fixtures / "plain" / name, tmp_path)
        monkeypatch.chdir(tmp_path)
        exec(code, {"__name__": "__main__"})


def test_blocks_are_found_and_chosen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "Words\n\n```python\nimport os\n```\n\n<!-- no-run -->\n```python\nimport nowhere\n```\n\n"
        "```bash\nls\n```\n\n```python\nelmo.embed([])\n```\n",
        encoding="utf-8",
    )
    assert [(b.line, b.code, b.runs) for b in blocks(page)] == [
        (4, "import os\n", True),
        (9, "import nowhere\n", False),
        (17, "elmo.embed([])\n", False),
    ]


def test_tables_are_those_of_the_result_files():
    command = [sys.executable, ROOT / "scripts" / "docs.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
