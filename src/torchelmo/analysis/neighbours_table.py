"""Nearest neighbours in context: does a word's vector find the sentences that mean the same?

The paper's Table 4 shows, for "play" in two sentences, the nearest contexts that the biLM finds.
Here the same is done for each meaning of each word in `senses`: the meaning's first sentence is the
query (so that none is picked for its looks), and among all other sentences we list

1. the nearest occurrences of the same word, which should be of the same meaning, and
2. the nearest tokens of other words.

Static vectors stand beside it: there a word has one list of neighbours, whatever its sentence.

A score goes with it that the paper has not: of the k nearest occurrences of the same word, the
share with the same meaning, each sentence left out in turn, by layer. Vectors without context are
the same in every sentence, so there all occurrences tie; ties count by their mean, which makes
their score that of chance.

    report = build(elmo, senses.read("en"), static=[StaticVectors.load("glove")])
    page = to_markdown(report)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypedDict

import numpy as np
import numpy.typing as npt

from torchelmo.analysis.nearest import DIGITS, unit
from torchelmo.analysis.results import Values, percent
from torchelmo.analysis.senses import Example
from torchelmo.errors import InputError
from torchelmo.tasks.vectors import StaticVectors
from torchelmo.text.words import Token, get_tokenizer

Array = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
METRIC = "share, %, of the nearest sentences with the same word that have its meaning, by cosine"
STATIC = 8  # static neighbours of a word


class Layered(Protocol):
    """What is asked of a model; `Elmo` offers it."""

    def tokenize(self, text: str) -> list[Token]:
        """Return the words of a sentence with their offsets."""

    def layers(self, sentences: Sequence[Sequence[str]], /) -> list[Array]:
        """Return the layers of each sentence, (L+1, T, D)."""


class StaticLayer:
    """Static vectors as an only layer; a word without one gets zeros."""

    def __init__(self, table: StaticVectors) -> None:
        """Take the table."""
        self.table, self.tokenize = table, get_tokenizer("words")

    def layers(self, sentences: Sequence[Sequence[str]], /) -> list[Array]:
        """Return the words' vectors, (1, T, D) a sentence."""
        out = []
        for words in sentences:
            values = np.zeros((1, len(words), self.table.matrix.shape[1]), np.float32)
            for place, row in enumerate(map(self.table.find, words)):
                if row is not None:
                    values[0, place] = self.table.matrix[row]
            out.append(values)
        return out


class Score(TypedDict):
    """How often a word's neighbours share its meaning, 0 to 1, in each column of vectors."""

    word: str
    senses: int
    sentences: int
    chance: float
    columns: dict[str, float]  # "layer 0", ..., and the names of the static vectors


class Occurrence(TypedDict):
    """The word in another sentence (between ** there), and how near it is."""

    sense: str
    sentence: str
    cosine: float


class Near(TypedDict):
    """Another word, and how near it is."""

    word: str
    cosine: float


class Query(TypedDict):
    """A word in one sentence and what is nearest to it in all others."""

    word: str
    sense: str
    sentence: str
    occurrences: list[Occurrence]
    words: list[Near]


class Report(TypedDict):
    """Scores and neighbours, as they are kept in a result file."""

    k: int
    layer: int  # whose neighbours are shown
    mean: dict[str, float]  # over words: "chance" and each column
    first: float  # share of the queries whose nearest occurrence has the same meaning
    scores: list[Score]
    queries: list[Query]
    static: dict[str, dict[str, list[Near]]]  # by table and word; a word without vector is left out


@dataclass(frozen=True)
class Contexts:
    """Sentences and the vectors of their N tokens, brought to length one."""

    examples: Sequence[Example]
    tokens: list[str]  # N
    sentence: Numbers  # (N,): which sentence a token is in
    target: Numbers  # (S,): where each sentence's marked word is among the N
    vectors: Array  # (L+1, N, D)

    def rows(self, word: str) -> Numbers:
        """Return the numbers of the sentences of a word."""
        return np.array([i for i, one in enumerate(self.examples) if one.word == word])

    def senses(self, word: str) -> npt.NDArray[np.str_]:
        """Return the meaning in each of those sentences."""
        return np.array([one.sense for one in self.examples if one.word == word])

    def cosines(self, layer: int, a: int, others: Numbers) -> Array:
        """Return the cosines of token `a` with other tokens, rounded so that equals are equal."""
        layers = self.vectors[layer]
        return np.asarray(np.round(layers[others] @ layers[a], DIGITS), np.float32)


def embed(model: Layered, examples: Sequence[Example]) -> Contexts:
    """Tokenise and embed the sentences, each on its own, and find the marked words."""
    if not examples:
        raise InputError("there are no sentences: give at least one")
    tokens = [model.tokenize(one.text) for one in examples]
    words = [[token.text for token in sentence] for sentence in tokens]
    pieces = model.layers(words)
    lengths = np.array([len(sentence) for sentence in words])
    places = [locate(sentence, one) for sentence, one in zip(tokens, examples, strict=True)]
    return Contexts(
        examples,
        [word for sentence in words for word in sentence],
        np.repeat(np.arange(len(words)), lengths),
        np.cumsum(lengths) - lengths + np.array(places),
        unit(np.concatenate(pieces, axis=1)),
    )


def locate(tokens: Sequence[Token], example: Example) -> int:
    """Return which token holds most of the marked word, the first of equals.

    >>> locate([Token("배를", 0, 2), Token("탔다", 3, 5)], Example("배", "ship", "배를 탔다", 0, 1))
    0
    """
    shared = [min(one.end, example.end) - max(one.start, example.start) for one in tokens]
    if max(shared, default=0) <= 0:
        raise InputError(f"no token of {example.text!r} holds {example.surface!r}")
    return shared.index(max(shared))


def expected_share(cosines: Array, same: Flags, k: int) -> float:
    """Return the share of `same` among the k highest cosines, ties at the end taken by their mean.

    >>> expected_share(np.float32([0.9, 0.5, 0.5]), np.array([True, True, False]), 2)
    0.75
    """
    last = np.sort(cosines)[-k]
    above, tied = cosines > last, cosines == last
    hits = same[above].sum() + (k - above.sum()) * same[tied].mean()
    return float(hits / k)


def chance(contexts: Contexts, word: str) -> float:
    """Return the score that neighbours drawn by lot would have."""
    senses = contexts.senses(word)
    same = [(senses == sense).sum() - 1 for sense in senses]
    return float(np.mean(same) / (len(senses) - 1))


def shares(contexts: Contexts, word: str, k: int) -> list[float]:
    """Return a word's score in each layer."""
    rows, senses = contexts.rows(word), contexts.senses(word)
    fewest = min(int((senses == sense).sum()) for sense in senses)
    if not 1 <= k < fewest:
        raise InputError(
            f"k is {k} and a sense of {word!r} has {fewest} sentences: "
            "k must be at least 1 and below that"
        )
    found = np.zeros((len(contexts.vectors), len(rows)))
    for i, target in enumerate(contexts.target[rows]):
        others = np.delete(np.arange(len(rows)), i)
        same = senses[others] == senses[i]
        for layer in range(len(found)):
            near = contexts.cosines(layer, target, contexts.target[rows[others]])
            found[layer, i] = expected_share(near, same, k)
    return [float(mean) for mean in found.mean(axis=1)]


def query(contexts: Contexts, row: int, layer: int, *, occurrences: int, words: int) -> Query:
    """Return what is nearest to the marked word of sentence `row`.

    Among the other words each is named once, at its nearest; punctuation is left out.
    """
    asked = contexts.examples[row]
    target = int(contexts.target[row])
    rows = contexts.rows(asked.word)
    rest = rows[rows != row]
    cosines = contexts.cosines(layer, target, contexts.target[rest])
    best = np.argsort(-cosines, kind="stable")[:occurrences]
    near: list[Occurrence] = [
        {
            "sense": contexts.examples[rest[i]].sense,
            "sentence": contexts.examples[rest[i]].marked(),
            "cosine": round(float(cosines[i]), 3),
        }
        for i in best
    ]
    return {
        "word": asked.word,
        "sense": asked.sense,
        "sentence": asked.marked(),
        "occurrences": near,
        "words": _other_words(contexts, row, layer, words),
    }


def _other_words(contexts: Contexts, row: int, layer: int, count: int) -> list[Near]:
    own = contexts.target[contexts.rows(contexts.examples[row].word)]
    (free,) = (contexts.sentence != row).nonzero()
    free = np.setdiff1d(free, own)
    forms = {contexts.tokens[i].lower() for i in own}
    cosines = contexts.cosines(layer, int(contexts.target[row]), free)
    found: dict[str, float] = {}
    for i in np.argsort(-cosines, kind="stable"):
        if len(found) == count:
            break
        word = contexts.tokens[free[i]].lower()
        if word not in forms and any(map(str.isalnum, word)):
            found.setdefault(word, round(float(cosines[i]), 3))
    return [{"word": word, "cosine": cosine} for word, cosine in found.items()]


def static_words(table: StaticVectors, words: Sequence[str], count: int) -> dict[str, list[Near]]:
    """Return the nearest words of a whole table for each word that it has.

    >>> mine = StaticVectors.of("mine", {"play": [1, 0], "game": [1, 1], "fish": [0, 1]})
    >>> static_words(mine, ["play", "bat"], 1)
    {'play': [{'word': 'game', 'cosine': 0.707}]}
    """
    names, vectors = list(table.rows), unit(np.asarray(table.matrix, np.float32))
    found: dict[str, list[Near]] = {}
    for word in words:
        row = table.find(word)
        if row is None:
            continue
        cosines = vectors @ vectors[row]
        best = [i for i in np.argsort(-cosines, kind="stable")[: count + 1] if i != row]
        found[word] = [
            {"word": names[i], "cosine": round(float(cosines[i]), 3)} for i in best[:count]
        ]
    return found


def build(
    model: Layered,
    examples: Sequence[Example],
    *,
    k: int = 5,
    layer: int | None = None,
    occurrences: int = 2,
    words: int = 5,
    static: Sequence[StaticVectors] = (),
) -> Report:
    """Score every layer and list the neighbours in one.

    Args:
        model: an `Elmo`, or anything with its `tokenize` and `layers`.
        examples: sentences with marked words, as `senses.read` gives them.
        k: how many nearest occurrences the score looks at.
        layer: whose neighbours to list; None takes the layer with the highest score.
        occurrences: how many sentences to list for each meaning.
        words: how many other words to list for each meaning.
        static: vectors without context, to score and to list beside the layers.
    """
    contexts = embed(model, examples)
    count = len(contexts.vectors)
    if layer is not None and not 0 <= layer < count:
        raise InputError(f"layer {layer} was asked for: this model has layers 0 to {count - 1}")
    if occurrences < 1 or words < 0:
        raise InputError(
            f"{occurrences} occurrences and {words} words were asked for: "
            "give at least 1 occurrence and 0 words"
        )
    names = list(dict.fromkeys(one.word for one in examples))
    by_word = [shares(contexts, word, k) for word in names]
    columns = {f"layer {j}": [one[j] for one in by_word] for j in range(count)}
    for table in static:
        flat = embed(StaticLayer(table), examples)
        columns[table.name] = [shares(flat, word, k)[0] for word in names]
    scores: list[Score] = []
    for n, word in enumerate(names):
        own = contexts.senses(word)
        scores.append(
            {
                "word": word,
                "senses": len(set(own)),
                "sentences": len(own),
                "chance": chance(contexts, word),
                "columns": {name: column[n] for name, column in columns.items()},
            }
        )
    mean = {name: float(np.mean(column)) for name, column in columns.items()}
    if layer is None:
        layer = max(range(count), key=lambda j: mean[f"layer {j}"])
    first = {(one.word, one.sense): row for row, one in reversed(list(enumerate(examples)))}
    queries = [
        query(contexts, row, layer, occurrences=occurrences, words=words)
        for row in sorted(first.values())
    ]
    hits = [one["occurrences"][0]["sense"] == one["sense"] for one in queries]
    return {
        "k": k,
        "layer": layer,
        "mean": {"chance": float(np.mean([one["chance"] for one in scores])), **mean},
        "first": float(np.mean(hits)),
        "scores": scores,
        "queries": queries,
        "static": {table.name: static_words(table, names, STATIC) for table in static},
    }


def figures(report: Report) -> Values:
    """Return what a result file holds: the scores as every probe gives them, then all the rest."""
    means = {name: {"same": percent(share)} for name, share in report["mean"].items()}
    layers = {name.split()[-1]: means.pop(name) for name in list(means) if _is_layer(name)}
    return {"layers": layers, "baselines": means, "neighbours": report}


def _is_layer(name: str) -> bool:
    return name.startswith("layer ") and name[6:].isdigit()


def to_markdown(report: Report) -> str:
    """Return the scores as a table, then a section for each word with its neighbours."""
    names = list(report["scores"][0]["columns"])
    lines = [
        f"| of {report['k']} nearest, same meaning | senses | sentences | chance | "
        + " | ".join(names)
        + " |",
        "|---" * (4 + len(names)) + "|",
    ]
    for one in report["scores"]:
        cells = [one["chance"], *(one["columns"][name] for name in names)]
        lines.append(_row(one["word"], one["senses"], one["sentences"], *map(_percent, cells)))
    means = [_percent(report["mean"][name]) for name in ("chance", *names)]
    lines.append(_row("**mean of words**", "", "", *means))
    lines += [
        "",
        f"Neighbours in layer {report['layer']}. In {report['first']:.0%} of the queries the "
        "nearest sentence has the same meaning; where one has another, that is said.",
    ]
    word = None
    for asked in report["queries"]:
        if asked["word"] != word:
            word = asked["word"]
            lines += ["", f"### {word}", ""]
            for name, found in report["static"].items():
                if word in found:
                    others = ", ".join(_cell(one["word"]) for one in found[word])
                    lines += [f"{name}, whatever the sentence: {others}", ""]
            lines += [
                "| in a sentence | nearest sentences | nearest other words |",
                "|---|---|---|",
            ]
        near = "<br>".join(
            f"{one['cosine']:.2f} {_cell(one['sentence'])}"
            + ("" if one["sense"] == asked["sense"] else f" (*another sense: {one['sense']}*)")
            for one in asked["occurrences"]
        )
        others = ", ".join(_cell(one["word"]) for one in asked["words"])
        lines.append(f"| *{asked['sense']}*<br>{_cell(asked['sentence'])} | {near} | {others} |")
    return "\n".join(lines) + "\n"


def _row(*cells: str | int) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
