"""Part-of-speech tags by a linear classifier on frozen layers, over a Universal Dependencies bank.

Words are the treebank's: in Korean, eojeol. A model whose tokens are morphemes reads the words
joined by spaces, and an eojeol's vector is the mean of its morphemes'. The classifier is softmax
regression on standardised vectors, by AdamW: when the loss on dev does not fall the step is halved,
from the best weights so far, and the sixth time it stops.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from torchelmo.analysis import files
from torchelmo.analysis.embedders import Embedder
from torchelmo.analysis.files import Text
from torchelmo.analysis.places import Marked, in_words
from torchelmo.analysis.results import Values, percent
from torchelmo.errors import InputError

Array = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
PARTS = ("train", "dev", "test")
COLUMNS = {"upos": 3, "xpos": 4}
BATCH, RATE, DECAY, HALVINGS, EPOCHS = 1024, 1e-2, 1e-2, 5, 40


class Sentence(NamedTuple):
    """Words, each a place, and their tags."""

    marked: Marked
    tags: tuple[str, ...]


class Tags:
    """The probe: a treebank's parts."""

    metric = "accuracy, %, linear classifier on frozen vectors"

    def __init__(
        self,
        parts: Mapping[str, Sequence[Sentence]],
        *,
        name: str = "tags",
        seeds: Sequence[int] = (1,),
    ) -> None:
        """Take train, dev and, to be counted, test."""
        self.parts, self.name, self.seeds = parts, name, tuple(seeds)
        self.counted = tuple(part for part in PARTS[1:] if part in parts)
        tags = Counter(tag for sentence in parts["train"] for tag in sentence.tags)
        self.tags = {tag: n for n, (tag, _) in enumerate(tags.most_common())}
        # A tag that train does not have cannot be right.
        self.ids = {
            part: np.array([self.tags.get(t, -1) for s in sentences for t in s.tags])
            for part, sentences in parts.items()
        }
        seen = {word for s in parts["train"] for word in s.marked.words or ()}
        self.unseen = {
            part: np.array([w not in seen for s in parts[part] for w in s.marked.words or ()])
            for part in self.counted
        }

    @classmethod
    def read(
        cls, path: Path, *, dev: bool = False, tags: str = "upos", seeds: Sequence[int] = (1,)
    ) -> Tags:
        """Read a treebank's *train.conllu, *dev.conllu and *test.conllu; with `dev`, not test."""
        if tags not in COLUMNS:
            raise InputError(f"tags {tags!r}, expected one of {', '.join(COLUMNS)}")
        names = PARTS[:2] if dev else PARTS
        patterns = [f"*{part}.conllu" for part in names]
        found = files.read(path, patterns)
        files.need(found, path, patterns, "a Universal Dependencies treebank")
        parts = {
            part: list(read_conllu(found[pattern], tags))
            for part, pattern in zip(names, patterns, strict=True)
        }
        bank = Path(found[patterns[0]].name).name.split("-")[0]
        return cls(parts, name=f"{bank}, {tags.upper()}", seeds=seeds)

    def describe(self) -> str:
        """Say what the data is."""
        sizes = " / ".join(f"{len(self.ids[part]):,}" for part in self.parts)
        return f"{self.name}: {sizes} words of {' / '.join(self.parts)}, {len(self.tags)} tags"

    def baselines(self) -> Values:
        """Return what each word's commonest tag in train gives, the commonest of all if unseen."""
        counts: dict[str, Counter[int]] = defaultdict(Counter)
        for word, tag in self._words("train"):
            counts[word][tag] += 1
        best = {word: count.most_common(1)[0][0] for word, count in counts.items()}
        figures: dict[str, float] = {}
        for part in self.counted:
            right = np.array([best.get(word, 0) == tag for word, tag in self._words(part)])
            figures |= self._figures(part, right)
        return {"commonest tag of the word": figures}

    def measure(self, embedder: Embedder) -> Values:
        """Return accuracies by layer: of the seeds, mean and standard deviation."""
        vectors = {
            part: embedder.embed([s.marked for s in sentences])
            for part, sentences in self.parts.items()
        }
        layers = {part: v.each() for part, v in vectors.items()}
        out = {}
        for name, train in layers["train"]:
            counted = {part: next(layers[part])[1] for part in self.counted}
            runs = []
            for seed in self.seeds:
                right = self._probe(train, counted, seed, embedder.device)
                figures = [self._figures(part, right[part]) for part in self.counted]
                runs.append({key: value for each in figures for key, value in each.items()})
            out[name] = {
                key: round(statistics.fmean(run[key] for run in runs), 2) for key in runs[0]
            }
            if len(runs) > 1:
                last = self.counted[-1]
                out[name][f"{last} sd"] = round(statistics.stdev(run[last] for run in runs), 3)
        return out

    def _probe(
        self, train: Array, counted: dict[str, Array], seed: int, device: torch.device
    ) -> dict[str, Flags]:
        """Train a classifier; return which words of each part it tags right."""
        mean = train.mean(axis=0)
        scale = np.maximum(train.std(axis=0), 1e-4)

        def ready(vectors: Array) -> Tensor:
            return torch.from_numpy((vectors - mean) / scale).to(device)

        inputs = {part: ready(vectors) for part, vectors in counted.items()}
        answers = {part: torch.from_numpy(self.ids[part]).to(device) for part in self.ids}
        weights, bias = fit(
            ready(train), answers["train"], inputs["dev"], answers["dev"], len(self.tags), seed
        )
        return {
            part: (predict(weights, bias, inputs[part]) == answers[part]).cpu().numpy()
            for part in self.counted
        }

    def _figures(self, part: str, right: Flags) -> dict[str, float]:
        unseen = self.unseen[part]
        share = right[unseen].mean() if unseen.any() else 0.0
        return {part: percent(right.mean()), f"{part} unseen": percent(share)}

    def _words(self, part: str) -> Iterator[tuple[str, int]]:
        words = (word for s in self.parts[part] for word in s.marked.words or ())
        return zip(words, self.ids[part].tolist(), strict=True)


def fit(
    inputs: Tensor, answers: Tensor, dev: Tensor, dev_answers: Tensor, count: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Train softmax regression on (N, D); return the weights (tags, D) and bias best on dev."""
    generator = torch.Generator().manual_seed(seed)
    weights = inputs.new_zeros(count, inputs.shape[1]).requires_grad_()
    bias = inputs.new_zeros(count).requires_grad_()
    size = min(BATCH, max(len(inputs) // 100, 32))  # a small treebank still takes many steps
    halvings, best = 0, float("inf")
    optimizer = torch.optim.AdamW([weights, bias], lr=RATE, weight_decay=DECAY)
    kept = weights.detach().clone(), bias.detach().clone()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(inputs), generator=generator).split(size):
            rows = rows.to(inputs.device)
            loss = cross_entropy(torch.addmm(bias, inputs[rows], weights.T), answers[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            # A tag that train does not have costs the same whatever is predicted.
            scores = torch.addmm(bias, dev, weights.T)
            lost = float(cross_entropy(scores, dev_answers, ignore_index=-1))
            if lost < best:
                best, kept = lost, (weights.detach().clone(), bias.detach().clone())
                continue
            if halvings == HALVINGS:
                break
            weights.copy_(kept[0])
            bias.copy_(kept[1])
        halvings += 1
        for group in optimizer.param_groups:
            group["lr"] = RATE / 2**halvings
    return kept


def predict(weights: Tensor, bias: Tensor, inputs: Tensor) -> Tensor:
    """Return the best tag of each row."""
    return torch.addmm(bias, inputs, weights.T).argmax(dim=1)


def read_conllu(text: Text, tags: str) -> Iterator[Sentence]:
    """Read a treebank: ten columns a word; words inside a range count, the range does not."""
    words: list[str] = []
    found: list[str] = []
    for line, row in text.lines():
        if not row.strip():
            if words:
                yield _sentence(words, found)
            words, found = [], []
            continue
        if row.startswith("#"):
            continue
        cells = row.split("\t")
        if len(cells) != 10:
            raise text.wrong(line, f"{len(cells)} columns, expected 10 between tabs")
        if not cells[0].isdigit():
            if cells[0].replace("-", "").replace(".", "").isdigit():
                continue  # a range of words, or an empty node
            raise text.wrong(line, f"the word number {cells[0]!r}")
        if not cells[1].strip():
            raise text.wrong(line, "a word without letters")
        # A form may hold spaces ("1 000"); a token may not.
        words.append("".join(cells[1].split()))
        found.append(cells[COLUMNS[tags]])
    if words:
        yield _sentence(words, found)


def _sentence(words: Sequence[str], tags: Sequence[str]) -> Sentence:
    places = [(n, n + 1) for n in range(len(words))]
    return Sentence(in_words(words, places), tuple(tags))
