"""Every row of the tables in docs/text.md is what the code does."""

import re
from pathlib import Path

import pytest

from torchelmo.text.sentences import split_sentences
from torchelmo.text.words import NAMES, get_tokenizer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "text.md"
PACKAGES = {"kiwi": ("kiwipiepy",), "fugashi": ("fugashi", "unidic_lite")}
ROW = re.compile(r"\| `(.+?)` \| (.+) \|")


def rows():
    """(column title, text, right column) of each row of the tables headed `text`."""
    title = None
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| text | "):
            title = line.split("|")[2].strip(" `")
        elif not line.startswith("|"):
            title = None
        elif title and not line.startswith("|---"):
            match = ROW.fullmatch(line)
            assert match, line
            yield title, match[1], match[2]


ROWS = list(rows())


def test_all_tables_are_found():
    assert {title for title, _, _ in ROWS} == {*NAMES, "sentences"}
    assert len(ROWS) > 40


@pytest.mark.parametrize(("title", "text", "right"), ROWS)
def test_row(title, text, right):
    for package in PACKAGES.get(title, ()):
        pytest.importorskip(package)
    if title == "sentences":
        expected = [part.strip("`") for part in right.split(" ⏎ ")]
        assert [span.text for span in split_sentences(text)] == expected
    else:
        assert get_tokenizer(title).words(text) == right.strip("`").split(" ")


def test_every_tokeniser_has_its_section():
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"\n### {name}\n" in text for name in NAMES)
