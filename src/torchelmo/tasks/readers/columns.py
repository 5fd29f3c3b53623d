"""Sentences in columns: CoNLL-2003, CoNLL-2000, and KMOU's three parallel files.

Columns are parted by spaces or tabs, the word is the first, a blank line ends a sentence. Tags are
passed on as they stand; CoNLL-2003 comes in IOB1 or IOB2. `-DOCSTART-` lines are left out.

KMOU's words are morphemes in their dictionary form: 지난 is 지나 ㄴ. A model of the text's own
forms has not seen such a ㄴ; with `join` it goes back below the syllable before it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from torchelmo.errors import InputError
from torchelmo.tasks.readers.examples import Tagged
from torchelmo.tasks.readers.source import Source, beside, open_source

# Not str.split: a word may hold a no-break space.
_GAP = re.compile(r"[ \t]+")
_CHUNK_TAG = re.compile(r"O|[BIESUL]-.+")
_FINALS = (
    "ㄱㄲㄳㄴㄵㄶㄷㄹㄺㄻㄼㄽㄾㄿㅀㅁㅂㅄㅅㅆㅇㅈㅊㅋㅌㅍㅎ"  # in the order of Unicode's syllables
)


def read_columns(
    path: str | os.PathLike[str], *, column: int = -1, chunks: bool = True
) -> Iterator[Tagged]:
    """Read words and the tags of one column, the last unless told.

    With `chunks`, a tag must be O or a letter of BIOES or BIOUL, a hyphen and a label.
    """
    source = open_source(path)
    words: list[str] = []
    tags: list[str] = []
    width = 0
    for number, line in source.lines():
        if not line.strip(" \t"):
            if words:
                yield Tagged(tuple(words), tuple(tags))
            words, tags = [], []
            continue
        cells = _GAP.split(line.strip(" \t"))
        if cells[0] == "-DOCSTART-":
            continue
        width = width or len(cells)
        if len(cells) != width or width < 2:
            expected = width if width > 1 else "a word and a tag at least"
            raise source.wrong(number, f"{len(cells)} columns, expected {expected}")
        if not -width <= column < width:
            raise InputError(f"{source.name} has {width} columns: there is no column {column}")
        words.append(cells[0])
        tags.append(_checked(source, number, cells[column]) if chunks else cells[column])
    if words:
        yield Tagged(tuple(words), tuple(tags))


def read_kmou(path: str | os.PathLike[str], *, join: bool = False) -> Iterator[Tagged]:
    """Read `train.words.txt` with the `train.tags.txt` beside it: one sentence a line.

    With `join`, 지나 ㄴ becomes 지난; the entities stay as they are.
    """
    text = open_source(path)
    marks = open_source(beside(path, "words", "tags"))
    for number, line, tag_line in parallel(text, marks):
        words = _GAP.split(line.strip(" \t")) if line.strip(" \t") else []
        tags = tag_line.split()
        if len(words) != len(tags):
            raise marks.wrong(number, f"{len(tags)} tags for {len(words)} words")
        if words:
            tagged = Tagged(tuple(words), tuple(_checked(marks, number, tag) for tag in tags))
            yield join_finals(tagged) if join else tagged


def join_finals(tagged: Tagged) -> Tagged:
    """Put an ending that begins with a bare consonant below the open syllable before it.

    >>> join_finals(Tagged(("지나", "ㄴ", "되", "ㄴ다"), ("B-DAT", "I-DAT", "O", "O")))
    Tagged(words=('지난', '된다'), tags=('B-DAT', 'O'))

    It stays where it is an entity of its own, or begins one.
    """
    words: list[str] = []
    tags: list[str] = []
    for word, tag in zip(tagged.words, tagged.tags, strict=True):
        joined = _joined(words[-1], word) if words else None
        inside = words and tag.startswith("I") and tag[1:] == tags[-1][1:]
        if joined is not None and (tag == "O" or inside):
            words[-1] = joined
        else:
            words.append(word)
            tags.append(tag)
    return Tagged(tuple(words), tuple(tags))


def _joined(before: str, ending: str) -> str | None:
    """("지나", "ㄴ다") -> "지난다"; None where the consonant has no place below a syllable."""
    final = _FINALS.find(ending[0]) + 1
    syllable = ord(before[-1]) - ord("가")
    if not final or not 0 <= syllable <= ord("힣") - ord("가") or syllable % 28:
        return None
    return before[:-1] + chr(ord(before[-1]) + final) + ending[1:]


def parallel(one: Source, two: Source) -> Iterator[tuple[int, str, str]]:
    """Yield the lines of two files that have as many of them, with their number."""
    ahead, behind = one.lines(), two.lines()
    for number, line in ahead:
        other = next(behind, None)
        if other is None:
            raise two.wrong(number, f"the file ends here, but {one.name} goes on")
        yield number, line, other[1]
    rest = next(behind, None)
    if rest is not None:
        raise one.wrong(rest[0], f"the file ends here, but {two.name} goes on")


def _checked(source: Source, number: int, tag: str) -> str:
    if not _CHUNK_TAG.fullmatch(tag):
        raise source.wrong(number, f"the tag {tag!r}, expected O or a tag like B-PER")
    return tag
