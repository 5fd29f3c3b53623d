"""The Stanford Sentiment Treebank: one labelled binary tree a line.

(3 (2 It) (4 (2 works) (2 .)))
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from torchelmo.errors import InputError
from torchelmo.tasks.readers.examples import Labelled, Tree
from torchelmo.tasks.readers.source import open_source, plain

# Only spaces part words: one of them, "8\u00a01/2", holds a no-break space.
_PART = re.compile(r"\(([^ \t()]+)|\)|([^ \t()]+)|\(")


def read_trees(path: str | os.PathLike[str]) -> Iterator[Tree]:
    """Read a file of trees; escaped brackets (-LRB-) become brackets."""
    source = open_source(path)
    for number, line in source.lines():
        if line.strip():
            try:
                yield parse(line)
            except InputError as error:
                raise source.wrong(number, str(error)) from None


def parse(line: str) -> Tree:
    """Read one tree: "(3 (2 fine) (2 film))"."""
    open_nodes: list[tuple[str, list[Tree], list[str]]] = []
    root: Tree | None = None
    for part in _PART.finditer(line):
        if root is not None:
            raise InputError(f"text after the tree's end: {line[part.start() :].strip()[:20]!r}")
        label, word = part.groups()
        if label:
            open_nodes.append((label, [], []))
        elif part[0] == "(":
            raise InputError(f"a bracket without a label at character {part.start() + 1}")
        elif not open_nodes:
            raise InputError(f"{part[0]!r} outside any bracket")
        elif word:
            open_nodes[-1][2].append(plain(word))
        else:
            name, children, words = open_nodes.pop()
            if len(words) != (not children):
                raise InputError(
                    f"a phrase with {len(words)} words and {len(children)} phrases in it, expected "
                    "one word or phrases only"
                )
            node = Tree(name, tuple(children), "".join(words))
            if open_nodes:
                open_nodes[-1][1].append(node)
            else:
                root = node
    if root is None:
        raise InputError(f"{len(open_nodes)} brackets are not closed")
    return root


def phrases(tree: Tree, *, least: int = 1) -> Iterator[Labelled]:
    """Yield the sentence and, after it, each phrase of at least so many words, with its label."""
    yield Labelled(tree.words(), tree.label)
    for node in tree.nodes():
        words = node.words()
        if node is not tree and len(words) >= least:
            yield Labelled(words, node.label)
