"""Documents with clusters of mentions, in the columns of CoNLL-2012: OntoNotes, LitBank, OntoGUM.

Each document stands between `#begin document (name); part 000` and `#end document`. The last column
opens and closes mentions by cluster number: `(3`, `3)`, `(3)`, several with or without a bar.
OntoNotes and LitBank have the word in the fourth column, the speaker in the tenth, and a blank line
after a sentence. OntoGUM has three columns (number, word, mentions), names its documents by file
and marks no sentences: they are found by our own splitter.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator
from itertools import accumulate, pairwise

from torchelmo.tasks.readers.examples import Document, Words
from torchelmo.tasks.readers.source import Source, open_source, open_sources, plain
from torchelmo.text.sentences import split_sentences

_BEGIN = re.compile(r"# ?begin document ?(?:\((.*)\); part (\d+))?.*")
_MARK = re.compile(r"\((\d+)\)|\((\d+)|(\d+)\)")
_MARKS = re.compile(r"(?:(?:\(\d+\)|\(\d+|\d+\))\|?)+")
_WORD, _SPEAKER, _FULL, _SHORT = 3, 9, 12, 3
_Rows = list[list[tuple[int, str, str, str]]]  # sentences of line, word, speaker, mentions


def read_documents(
    path: str | os.PathLike[str], *, names: Collection[str] | None = None
) -> Iterator[Document]:
    """Read a file, or the `*gold_conll` and `*.conll` files of a folder, also in an archive.

    With `names`, only those documents (see `read_splits`), and mistakes in the others' mentions
    do not matter. A document whose words are all masked by underscores, as OntoGUM's from Reddit,
    is left out, and so is an empty word.
    """
    for source in open_sources(path, ("gold_conll", ".conll")):
        yield from _documents(source, names)


def read_splits(path: str | os.PathLike[str]) -> dict[str, tuple[str, ...]]:
    """Read GUM's `splits.md`: headings `## train`, and a document's name after each bullet."""
    source = open_source(path)
    parts: dict[str, list[str]] = {}
    for number, line in source.lines():
        if line.startswith("## "):
            parts[line[3:].strip()] = []
        elif line.strip().startswith("* "):
            if not parts:
                raise source.wrong(number, "a document before the first heading (## train)")
            parts[list(parts)[-1]].append(line.strip()[2:].strip())
    return {part: tuple(found) for part, found in parts.items()}


def _documents(source: Source, names: Collection[str] | None) -> Iterator[Document]:
    name: str | None = None
    split, number = True, 1
    rows: _Rows = []
    for number, line in source.lines():
        begin = _BEGIN.fullmatch(line.rstrip())
        if begin:
            if name is not None:
                raise source.wrong(number, "a document begins before the last one has ended")
            name = begin[1] or source.stem
            if begin[2] and int(begin[2]):
                name = f"{name}#{int(begin[2])}"
            rows = [[]]
        elif line.startswith(("#end document", "# end document")):
            if name is None:
                raise source.wrong(number, "a document ends that has not begun")
            sentences = [sentence for sentence in rows if sentence]
            chosen = names is None or name in names
            if chosen and any(
                word.strip("_") for sentence in sentences for _, word, _, _ in sentence
            ):
                yield _document(source, name, sentences, split)
            name = None
        elif not line.strip():
            rows.append([])
        elif name is None:
            raise source.wrong(number, "a line outside any document (#begin document ...)")
        else:
            # LitBank's last column may be empty: spaces part columns where there are no tabs.
            cells = line.split("\t") if "\t" in line else line.split()
            split = len(cells) != _SHORT
            word, speaker, marks = _row(source, number, cells)
            if word:
                rows[-1].append((number, word, speaker, marks))
            elif marks:
                raise source.wrong(number, "a mention of a word that is empty")
    if name is not None:
        raise source.wrong(number, f"the document {name} has no #end document")


def _row(source: Source, number: int, cells: list[str]) -> tuple[str, str, str]:
    if len(cells) == _SHORT:
        word, speaker, marks = cells[1], "", cells[2]
    elif len(cells) >= _FULL:
        word, speaker, marks = cells[_WORD], cells[_SPEAKER], cells[-1]
    else:
        raise source.wrong(number, f"{len(cells)} columns, expected {_SHORT}, or {_FULL} or more")
    marks = "" if marks in {"-", "_"} else marks
    if marks and not _MARKS.fullmatch(marks):
        raise source.wrong(number, f"the mentions {marks!r}, expected some like (3 or (3)|4)")
    return plain(word), "" if speaker in {"-", "_"} else speaker, marks


def _document(source: Source, name: str, rows: _Rows, split: bool) -> Document:
    flat = [row for sentence in rows for row in sentence]
    clusters: dict[str, list[tuple[int, int]]] = defaultdict(list)
    waiting: dict[str, list[tuple[int, int]]] = defaultdict(list)  # cluster: starts and lines
    for n, (number, _, _, marks) in enumerate(flat):
        for single, opened, closed in _MARK.findall(marks):
            if single:
                clusters[single].append((n, n + 1))
            elif opened:
                waiting[opened].append((n, number))
            elif waiting[closed]:
                # The one opened last: mentions of one cluster may be nested, not crossed.
                clusters[closed].append((waiting[closed].pop()[0], n + 1))
            else:
                raise source.wrong(
                    number, f"a mention of cluster {closed} closes, but none is open"
                )
    for cluster, starts in waiting.items():
        if starts:
            raise source.wrong(starts[0][1], f"a mention of cluster {cluster} is not closed")
    words = [tuple(word for _, word, _, _ in sentence) for sentence in rows]
    speakers = [sentence[0][2] for sentence in rows]
    if not split:
        words = [part for sentence in words for part in _split(sentence)]
        speakers = [""] * len(words)
    found = sorted(tuple(sorted(set(cluster))) for cluster in clusters.values())
    return Document(name, tuple(words), tuple(speakers), tuple(found))


def _split(words: Words) -> list[Words]:
    """Cut words into sentences at the places where their text, joined by spaces, is cut."""
    starts = [0, *accumulate(len(word) + 1 for word in words)][:-1]
    cuts = [bisect_right(starts, s.start) - 1 for s in split_sentences(" ".join(words))]
    edges = sorted({0, *cuts, len(words)})
    return [words[a:b] for a, b in pairwise(edges)]
