"""A label a text: the biattentive classification network (McCann et al. 2017).

1. the inputs, dropout, a relu layer;
2. a biLSTM; with ELMo at the output, the second mix beside what it gives: H;
3. the text attends to itself: C = softmax(H H') H;
4. a biLSTM over [H; H - C; H * C] gives X;
5. X pooled four ways: largest, smallest, mean, and a mean weighted by a learned attention;
6. layers of relu, as the ELMo paper has, or of maxout, as the network's first authors did; softmax.

McCann et al. write two texts that attend to each other; a single one takes both places. There is no
batch normalisation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from torchelmo.config import Json, from_json
from torchelmo.errors import InputError
from torchelmo.tasks.data import Batch
from torchelmo.tasks.encoders import Inputs, Vocabularies, listed
from torchelmo.tasks.metrics.accuracy import accuracy, matthews
from torchelmo.tasks.model import Parsed, TaskModel
from torchelmo.tasks.modules import (
    BiLstm,
    FeedForward,
    VariationalDropout,
    masked_softmax,
    match,
    precise,
)
from torchelmo.tasks.readers.examples import Labelled, Words
from torchelmo.tasks.readers.lines import read_cola, read_labelled, read_nsmc, read_trec
from torchelmo.tasks.readers.trees import phrases, read_trees
from torchelmo.tasks.recipe import Recipe, check, check_share
from torchelmo.text.words import Tokenizer

LABELS = "labels"
EMPTY: Words = ("…",)  # in the place of a text without words, as some reviews are


@dataclass(frozen=True, kw_only=True)
class LabelReader:
    """The file: its format (by the task if not said) and what is taken of it."""

    format: Literal["sst", "trec", "cola", "nsmc", "labels"] | None = None
    phrases: int | None = 1  # of trees, in training: phrases of so many words or more; none: no
    fine: bool = False  # of trec: the fifty classes

    def __post_init__(self) -> None:
        right = self.phrases is None or self.phrases >= 1
        check("data.reader.phrases", self.phrases, right, "1 or more")


@dataclass(frozen=True, kw_only=True)
class ClassifierOptions:
    """The network."""

    cells: int = 300  # of each direction of both biLSTMs
    before: int = 300  # width of the relu layer before them
    hidden: tuple[int, ...] = (1200, 600)  # widths of the layers behind the pools
    maxout: int = 1  # pieces of those layers; 1: relu
    dropout_input: float = 0.5
    dropout: float = 0.2  # at the second biLSTM, and behind the layers

    def __post_init__(self) -> None:
        for name in ("cells", "before", "maxout"):
            check(f"network.{name}", getattr(self, name), getattr(self, name) >= 1, "1 or more")
        right = all(width >= 1 for width in self.hidden)
        check("network.hidden", list(self.hidden), right, "numbers of 1 or more")
        check_share("network.dropout_input", self.dropout_input)
        check_share("network.dropout", self.dropout)


class Choice(NamedTuple):
    """The likeliest label and how likely each is."""

    label: str
    shares: dict[str, float]


class Classifier(TaskModel[Labelled, Choice]):
    """Labels a text."""

    unit = "line"

    def __init__(self, recipe: Recipe, vocabularies: Vocabularies, inputs: Inputs) -> None:
        super().__init__(recipe, vocabularies, inputs)
        options = from_json(ClassifierOptions, recipe.network, "network")
        self.labels = listed(vocabularies, LABELS)
        self.ids = {label: n for n, label in enumerate(self.labels)}
        self.input_dropout = nn.Dropout(options.dropout_input)
        self.dropout = VariationalDropout(options.dropout)
        self.before = FeedForward(inputs.width, (options.before,))
        self.encoder = BiLstm(options.before, options.cells)
        width = self.encoder.width + inputs.output_width
        self.integrator = BiLstm(3 * width, options.cells)
        self.attention = nn.Linear(self.integrator.width, 1)
        self.behind = FeedForward(
            4 * self.integrator.width,
            options.hidden,
            dropout=options.dropout,
            maxout=options.maxout,
        )
        self.top = nn.Linear(self.behind.width, len(self.labels))

    @classmethod
    def read(
        cls,
        recipe: Recipe,
        path: str | Path,
        *,
        tokenizer: Tokenizer | None = None,
        training: bool = False,
    ) -> list[Labelled]:
        """Read texts and their labels; of trees the phrases too, in training."""
        reader = from_json(LabelReader, recipe.data.reader, "data.reader")
        kind = reader.format or recipe.task
        found: Iterable[Labelled]
        if kind == "sst":
            trees = read_trees(path)
            if training and reader.phrases is not None:
                least = reader.phrases
                return [phrase for tree in trees for phrase in phrases(tree, least=least)]
            found = (Labelled(tree.words(), tree.label) for tree in trees)
        elif kind == "trec":
            found = read_trec(path, fine=reader.fine)
        elif kind == "cola":
            found = read_cola(path, tokenizer=tokenizer)
        elif kind == "nsmc":
            found = read_nsmc(path, tokenizer=tokenizer)
        else:
            found = read_labelled(path, tokenizer=tokenizer)
        return list(found)

    @classmethod
    def texts(cls, example: Labelled) -> tuple[tuple[Words, ...], ...]:
        """The text."""
        return ((example.words or EMPTY,),)

    @classmethod
    def collect(cls, recipe: Recipe, examples: Sequence[Labelled]) -> dict[str, tuple[str, ...]]:
        """List the labels."""
        labels = tuple(sorted({example.label for example in examples}))
        if len(labels) < 2:
            raise InputError(f"the training data has the label {labels[0]!r} alone: expected more")
        return {LABELS: labels}

    @property
    def metric(self) -> str:
        """CoLA is compared by Matthews' correlation, the others by accuracy."""
        return "matthews" if self.recipe.task == "cola" else "accuracy"

    def gold(self, examples: Sequence[Labelled]) -> dict[str, Tensor]:
        """Label numbers (B)."""
        for example in examples:
            if example.label not in self.ids:
                raise InputError(
                    f"the label {example.label!r} is not among those of the training data"
                )
        return {LABELS: torch.tensor([self.ids[example.label] for example in examples])}

    def forward(self, batch: Batch[Labelled]) -> dict[str, Tensor]:
        """Log-probabilities of the labels (B, K)."""
        (texts,) = batch.texts
        mask = texts.mask.unsqueeze(2)  # (B, T, 1)
        values = self.before(self.input_dropout(self.inputs(texts)))
        own = self.inputs.after(self.encoder(values, texts.lengths), texts)  # H (B, T, D)
        shares = masked_softmax(match(own, own), texts.mask.unsqueeze(1))  # (B, T, T)
        context = shares.to(own.dtype) @ own  # C
        joined = torch.cat([own, own - context, own * context], dim=2)
        found = self.integrator(self.dropout(joined), texts.lengths)  # X (B, T, 2 H)
        low, high = torch.finfo(found.dtype).min, torch.finfo(found.dtype).max
        weights = masked_softmax(self.attention(found), mask, dim=1)
        pooled = torch.cat(
            [
                found.masked_fill(~mask, low).amax(dim=1),
                found.masked_fill(~mask, high).amin(dim=1),
                (found * mask).sum(dim=1) / mask.sum(dim=1),
                (found * weights).sum(dim=1),
            ],
            dim=1,
        )  # (B, 8 H)
        logits = precise(self.top, self.behind(pooled))
        return {"shares": logits.log_softmax(dim=1)}

    def loss(self, batch: Batch[Labelled], outputs: Mapping[str, Tensor]) -> Tensor:
        """Minus the log-likelihood."""
        return nn.functional.nll_loss(outputs["shares"], batch.gold[LABELS])

    def decode(self, batch: Batch[Labelled], outputs: Mapping[str, Tensor]) -> list[Choice]:
        """The likeliest labels."""
        shares = outputs["shares"].softmax(dim=1)  # averaged log-probabilities need not add to 1
        best = shares.argmax(dim=1).tolist()
        return [
            Choice(self.labels[n], dict(zip(self.labels, row, strict=True)))
            for n, row in zip(best, shares.tolist(), strict=True)
        ]

    def score(
        self, examples: Sequence[Labelled], predictions: Sequence[Choice]
    ) -> dict[str, float]:
        """Accuracy, and Matthews' correlation where there are two labels."""
        gold = [example.label for example in examples]
        labels = [choice.label for choice in predictions]
        scores = {"accuracy": accuracy(gold, labels)}
        if len(self.labels) == 2:
            scores["matthews"] = matthews(gold, labels)
        return scores

    def example(self, texts: Sequence[Words]) -> Labelled:
        """A text without a label."""
        (words,) = texts
        return Labelled(words, "")

    def show(self, parsed: Parsed[Labelled], prediction: Choice) -> str:
        """The label, how likely it is, and the text."""
        return f"{prediction.label}\t{prediction.shares[prediction.label]:.3f}\t{parsed.text}"

    def describe(self, parsed: Parsed[Labelled], prediction: Choice) -> Json:
        """The label, and how likely each is."""
        return {"text": parsed.text, "label": prediction.label, "shares": prediction.shares}
