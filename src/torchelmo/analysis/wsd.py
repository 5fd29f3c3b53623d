"""Word senses by the nearest centroid, in Raganato's framework (XML and keys, WordNet 3.0 senses).

1. For each sense in SemCor, the mean vector of the words tagged with it.
2. A test word gets the sense, among those seen with its lemma and part of speech, whose centroid
   has the highest cosine; a lemma that SemCor never tags gets its first sense in WordNet.
3. F1 as the official scorer counts it, over ALL, over each of its five sets, and over ALL without
   SemEval-2007: that set is kept for development, and published figures (first sense 65.9) are
   often those of the other four, where the first sense gives 65.2 over all five.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

import numpy as np
import numpy.typing as npt

from torchelmo.analysis import files
from torchelmo.analysis.embedders import Embedder
from torchelmo.analysis.files import Text
from torchelmo.analysis.nearest import cosines
from torchelmo.analysis.places import Marked, in_words
from torchelmo.analysis.results import Values, percent
from torchelmo.errors import InputError

Array = npt.NDArray[np.float32]
Lemma = tuple[str, str]  # lemma and part of speech
FILES = ("semcor.data.xml", "semcor.gold.key.txt", "ALL.data.xml", "ALL.gold.key.txt")
SENSES = "index.sense"
DEV = "semeval2007"
FOUR = "ALL without semeval2007"
POS = {"1": "NOUN", "2": "VERB", "3": "ADJ", "4": "ADV", "5": "ADJ"}
PLAIN = {"``": '"', "''": '"', "-LRB-": "(", "-RRB-": ")"}  # as raw text writes them
STOPS = tuple(".!?;:\"')")


class Instance(NamedTuple):
    """A word to give a sense to."""

    id: str
    lemma: Lemma
    senses: tuple[str, ...]  # those that are right


class Tagged(NamedTuple):
    """A sentence, its places being the instances."""

    sentence: Marked
    instances: tuple[Instance, ...]


class Wsd:
    """The probe: sentences to take centroids from, sentences to count, WordNet's order."""

    metric = "F1, %, nearest sense centroid by cosine, first sense for unseen lemmas"

    def __init__(
        self, train: Sequence[Tagged], count: Sequence[Tagged], order: Mapping[Lemma, Sequence[str]]
    ) -> None:
        """Take tagged sentences, and the senses of each lemma, first sense first."""
        self.order = order
        self.count = [one for sentence in count for one in sentence.instances]
        self.sentences = [sentence.sentence for sentence in count]
        for one in self.count:
            if one.lemma not in order:
                raise InputError(f"{one.id}: {SENSES} has no {one.lemma[1]} {one.lemma[0]!r}")
        # The other lemmas' vectors would answer nothing.
        wanted = {one.lemma for one in self.count}
        self.train, self.examples = [], []
        for sentence, instances in train:
            chosen = [n for n, one in enumerate(instances) if one.lemma in wanted]
            if chosen:
                places = tuple(sentence.places[n] for n in chosen)
                self.examples.append(sentence._replace(places=places))
                self.train += [instances[n] for n in chosen]

    @classmethod
    def read(cls, path: Path, *, dev: bool = False) -> Wsd:
        """Read SemCor, ALL and index.sense; with `dev`, only ALL's part SemEval-2007 is counted.

        SemCor as some distribute it has no punctuation: a sentence without an end gets a full
        stop, for the models have seen sentences end.
        """
        found = files.read(path, [*FILES, SENSES])
        files.need(
            found, path, [*FILES, SENSES], "SemCor, Raganato's ALL and WordNet's index.sense"
        )
        train = read_tagged(found[FILES[0]], found[FILES[1]])
        count = read_tagged(found[FILES[2]], found[FILES[3]])
        if dev:
            count = [one for one in count if one.instances and _set(one.instances[0].id) == DEV]
        return cls(list(map(_ended, train)), list(map(_ended, count)), read_order(found[SENSES]))

    def describe(self) -> str:
        """Say what the data is."""
        sets = sorted({_set(one.id) for one in self.count})
        return f"SemCor to {len(self.count):,} words of {', '.join(sets)}, full stops added"

    def baselines(self) -> Values:
        """Return what the first sense gives."""
        return {"first sense": self.score([self.order[one.lemma][0] for one in self.count])}

    def score(self, answers: Sequence[str | None]) -> Values:
        """Return F1 of answers by set."""
        parts: dict[str, list[int]] = defaultdict(list)
        for number, one in enumerate(self.count):
            parts[_set(one.id)].append(number)
        order = sorted(parts)
        if len(order) > 1:
            parts["ALL"] = list(range(len(self.count)))
            order.insert(0, "ALL")
            if DEV in parts:
                parts[FOUR] = [
                    n for name, rows in parts.items() if name not in ("ALL", DEV) for n in rows
                ]
                order.insert(1, FOUR)
        return {
            name: percent(
                f1([self.count[n] for n in parts[name]], [answers[n] for n in parts[name]])
            )
            for name in order
        }

    def measure(self, embedder: Embedder) -> Values:
        """Return F1 by layer and set."""
        known, counted = embedder.embed(self.examples), embedder.embed(self.sentences)
        return {
            name: self.score(self.answers(examples, queries))
            for (name, examples), (_, queries) in zip(known.each(), counted.each(), strict=True)
        }

    def answers(self, examples: Array, queries: Array) -> list[str]:
        """Return a sense for each row of `queries`, given the vectors of SemCor's instances."""
        rows: dict[Lemma, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for number, one in enumerate(self.train):
            for sense in one.senses:
                rows[one.lemma][sense].append(number)
        asked: dict[Lemma, list[int]] = defaultdict(list)
        for number, one in enumerate(self.count):
            asked[one.lemma].append(number)
        out = [""] * len(self.count)
        for lemma, numbers in asked.items():
            seen = rows.get(lemma, {})
            senses = [sense for sense in self.order[lemma] if sense in seen]  # the first wins ties
            senses = senses or [self.order[lemma][0]]
            best = [0] * len(numbers)
            if len(senses) > 1:
                centroids = np.stack([examples[seen[sense]].mean(axis=0) for sense in senses])
                best = cosines(queries[numbers], centroids).argmax(axis=1).tolist()
            for number, place in zip(numbers, best, strict=True):
                out[number] = senses[place]
        return out


def f1(instances: Sequence[Instance], answers: Sequence[str | None]) -> float:
    """Return F1: an answer is right if it is one of the gold senses; None is no answer."""
    right = sum(a in one.senses for one, a in zip(instances, answers, strict=True) if a is not None)
    given = sum(answer is not None for answer in answers)
    # 2PR / (P + R) with P = right / given and R = right / all.
    return 2 * right / (given + len(instances)) if instances else 0.0


def read_order(text: Text) -> dict[Lemma, list[str]]:
    """Read index.sense: sense key, offset, number of the sense, count; senses by their number."""
    found: dict[Lemma, list[tuple[int, str]]] = defaultdict(list)
    for line, row in text.lines():
        cells = row.split()
        lemma, _, rest = cells[0].partition("%") if cells else ("", "", "")
        if len(cells) != 4 or rest[:1] not in POS or not cells[2].isdigit():
            raise text.wrong(line, "expected a sense key, an offset, a number and a count")
        found[lemma, POS[rest[0]]].append((int(cells[2]), cells[0]))
    return {lemma: [sense for _, sense in sorted(senses)] for lemma, senses in found.items()}


def read_keys(text: Text) -> dict[str, tuple[str, ...]]:
    """Read gold keys: an instance and its senses a line."""
    out = {}
    for line, row in text.lines():
        cells = row.split()
        if len(cells) < 2:
            raise text.wrong(line, "expected an instance and its senses")
        out[cells[0]] = tuple(cells[1:])
    return out


def read_tagged(data: Text, gold: Text) -> list[Tagged]:
    """Read sentences and the keys of their instances."""
    return _Reader(data, read_keys(gold), gold.name).read()


class _Reader:
    """Reads <sentence>s of <wf> and <instance>, a multiword one being several words."""

    def __init__(self, data: Text, keys: Mapping[str, tuple[str, ...]], gold: str) -> None:
        self.data, self.keys, self.gold = data, keys, gold
        self.out: list[Tagged] = []
        self.words: list[str] = []
        self.places: list[tuple[int, int]] = []
        self.instances: list[Instance] = []
        self.attributes: dict[str, str] = {}
        self.pieces: list[str] = []

    def read(self) -> list[Tagged]:
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self.pieces.append
        try:
            self.parser.Parse(self.data.data, True)
        except expat.ExpatError as error:
            reason = expat.ErrorString(error.code)
            raise self.data.wrong(error.lineno, f"no well-formed XML ({reason})") from None
        return self.out

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self.attributes = attributes
        self.pieces.clear()
        if name == "sentence":
            self.words, self.places, self.instances = [], [], []

    def _end(self, name: str) -> None:
        if name == "sentence":
            if self.words:
                marked = in_words(self.words, self.places)
                self.out.append(Tagged(marked, tuple(self.instances)))
            return
        if name not in ("wf", "instance"):
            return
        words = [PLAIN.get(word, word) for word in "".join(self.pieces).split()]
        if name == "instance":
            self.places.append((len(self.words), len(self.words) + len(words)))
            self.instances.append(self._instance(bool(words)))
        self.words += words

    def _instance(self, filled: bool) -> Instance:
        line, given = self.parser.CurrentLineNumber, self.attributes
        missing = [key for key in ("id", "lemma", "pos") if not given.get(key)]
        if missing or not filled:
            what = f"{missing[0]}" if missing else "word"
            raise self.data.wrong(line, f"an instance without {what}")
        senses = self.keys.get(given["id"])
        if senses is None:
            raise self.data.wrong(line, f"{given['id']} has no key in {self.gold}")
        return Instance(given["id"], (given["lemma"], given["pos"]), senses)


def _ended(one: Tagged) -> Tagged:
    """Give a sentence a full stop if it ends without any."""
    sentence = one.sentence
    if sentence.words is None or sentence.words[-1].endswith(STOPS):
        return one
    ended = Marked(f"{sentence.text} .", sentence.places, (*sentence.words, "."))
    return one._replace(sentence=ended)


def _set(name: str) -> str:
    """Return which of the five sets an instance of ALL is from.

    >>> _set("senseval2.d000.s000.t000")
    'senseval2'
    """
    return name.split(".")[0]
