"""What the readers yield: one frozen class a kind of example, words as strings.

Spans are half-open, `words[start:end]`, everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tagged:
    """A sentence with one tag a word, as the file has it (IOB1, IOB2, BIOES, UPOS...)."""

    words: Words
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Labelled:
    """A text and its class."""

    words: Words
    label: str


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts and their relation: entailment, neutral or contradiction."""

    first: Words
    second: Words
    label: str


@dataclass(frozen=True, slots=True)
class Tree:
    """A labelled phrase: a leaf holds a word, any other node holds children.

    >>> leaf = Tree("2", word="film")
    >>> Tree("3", (Tree("4", word="fine"), leaf)).words()
    ('fine', 'film')
    """

    label: str
    children: tuple[Tree, ...] = ()
    word: str = ""

    def words(self) -> Words:
        """Return the leaves' words from left to right."""
        return tuple(node.word for node in self.nodes() if not node.children)

    def nodes(self) -> Iterator[Tree]:
        """Yield this node and all below it, parents first, left to right."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer and where it stands: `context[start:end] == text`, in characters."""

    text: str
    start: int

    @property
    def end(self) -> int:
        """Where it ends, in characters."""
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a context, with the answers people gave.

    `context[start:end]` is `words[i]` for the i-th (start, end) of `offsets`.
    """

    id: str
    question: Words
    context: str
    words: Words
    offsets: tuple[tuple[int, int], ...]
    answers: tuple[Answer, ...]

    def word_span(self, answer: Answer) -> tuple[int, int]:
        """Return the words (start, end) that an answer touches; (0, 0) if it touches none."""
        touched = [
            n
            for n, (start, end) in enumerate(self.offsets)
            if start < answer.end and answer.start < end
        ]
        return (touched[0], touched[-1] + 1) if touched else (0, 0)

    def text(self, start: int, end: int) -> str:
        """Return the context between two words as it is written, spaces included."""
        return (
            self.context[self.offsets[start][0] : self.offsets[end - 1][1]] if start < end else ""
        )


@dataclass(frozen=True, slots=True)
class Predicate:
    """A predicate's place in its sentence, its lemma, and a BIO tag (B-ARG0, B-V...) a word."""

    index: int
    lemma: str
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Frames:
    """A sentence with the frames of its predicates, possibly none."""

    words: Words
    predicates: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A text with its clusters of mentions.

    A mention is (start, end) over the document's words, all sentences joined. One speaker a
    sentence, "" where the file says nothing.
    """

    name: str
    sentences: tuple[Words, ...]
    speakers: tuple[str, ...]
    clusters: tuple[tuple[tuple[int, int], ...], ...]

    def words(self) -> Words:
        """Return the words of all sentences."""
        return tuple(word for sentence in self.sentences for word in sentence)

    @property
    def genre(self) -> str:
        """The folder of an OntoNotes name ("nw/wsj/..." -> "nw"), GUM's second part, or ""."""
        if "/" in self.name:
            return self.name.split("/")[0]
        parts = self.name.split("_")
        return parts[1] if parts[0] in {"GUM", "GENTLE"} and len(parts) > 1 else ""

    def without_singletons(self) -> Document:
        """Return the document with the clusters of two or more mentions only (OntoNotes' way)."""
        kept = tuple(cluster for cluster in self.clusters if len(cluster) > 1)
        return Document(self.name, self.sentences, self.speakers, kept)
