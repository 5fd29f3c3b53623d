"""Whether one text follows from another: ESIM (Chen et al. 2017) as the ELMo paper has it.

For the premise a and the hypothesis b, with one set of weights for both:

1. the inputs, and a biLSTM over them; with ELMo at the output, the second mix beside what it gives;
2. soft alignment: e = a b', a' = softmax(e) b, b' = softmax(e') a;
3. enhancement: [a; a'; a - a'; a * a'], a relu layer (the projection);
4. a second biLSTM, the composition;
5. its mean and its largest values over each text, the four joined;
6. a relu layer and a softmax layer.

Variational dropout is at the input of both biLSTMs, dropout at the input of the last two layers
and, with ELMo, behind the alignment. Chen et al. have tanh in step 6, and a network over parse
trees beside this one, which is not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from torchelmo.config import Json, from_json
from torchelmo.errors import InputError
from torchelmo.tasks.classifier import LABELS, Choice
from torchelmo.tasks.data import Batch, Texts
from torchelmo.tasks.encoders import Inputs, Vocabularies, listed
from torchelmo.tasks.metrics.accuracy import accuracy
from torchelmo.tasks.model import Parsed, TaskModel
from torchelmo.tasks.modules import (
    BiLstm,
    FeedForward,
    VariationalDropout,
    masked_softmax,
    match,
    precise,
)
from torchelmo.tasks.readers.examples import Pair, Words
from torchelmo.tasks.readers.pairs import read_pairs
from torchelmo.tasks.recipe import Recipe, check, check_share
from torchelmo.text.words import Token, Tokenizer

SHOWN = 40  # characters of a wrong line in an error


@dataclass(frozen=True, kw_only=True)
class PairReader:
    """The file, whose form is found by its name and header."""

    also: tuple[str, ...] = ()  # further files, in training


@dataclass(frozen=True, kw_only=True)
class EntailmentOptions:
    """The network."""

    cells: int = 300  # of each direction of the first biLSTM
    projection: int = 300  # width of the layer before the second
    composition: int = 300  # cells of each direction of the second
    hidden: int = 300  # width of the layer before the last
    dropout_rnn: float = 0.5  # variational, at the input of both biLSTMs
    dropout_attention: float = 0.5  # behind the alignment; the paper has it with ELMo alone
    dropout: float = 0.5  # at the input of the last two layers

    def __post_init__(self) -> None:
        for name in ("cells", "projection", "composition", "hidden"):
            check(f"network.{name}", getattr(self, name), getattr(self, name) >= 1, "1 or more")
        for name in ("dropout_rnn", "dropout_attention", "dropout"):
            check_share(f"network.{name}", getattr(self, name))


class Entailment(TaskModel[Pair, Choice]):
    """Says how two texts stand to each other."""

    unit = "line"
    log_shares = frozenset({"shares"})

    def __init__(self, recipe: Recipe, vocabularies: Vocabularies, inputs: Inputs) -> None:
        super().__init__(recipe, vocabularies, inputs)
        options = from_json(EntailmentOptions, recipe.network, "network")
        self.labels = listed(vocabularies, LABELS)
        self.ids = {label: n for n, label in enumerate(self.labels)}
        self.rnn_dropout = VariationalDropout(options.dropout_rnn)
        self.attention_dropout = nn.Dropout(options.dropout_attention)
        self.dropout = nn.Dropout(options.dropout)
        self.encoder = BiLstm(inputs.width, options.cells)
        width = self.encoder.width + inputs.output_width
        self.projection = FeedForward(4 * width, (options.projection,))
        self.composition = BiLstm(options.projection, options.composition)
        self.hidden = FeedForward(
            4 * self.composition.width, (options.hidden,), dropout=options.dropout
        )
        self.top = nn.Linear(options.hidden, len(self.labels))

    @classmethod
    def read(
        cls,
        recipe: Recipe,
        path: str | Path,
        *,
        tokenizer: Tokenizer | None = None,
        training: bool = False,
    ) -> list[Pair]:
        """Read pairs and their labels."""
        reader = from_json(PairReader, recipe.data.reader, "data.reader")
        paths = (path, *reader.also) if training else (path,)
        return [pair for name in paths for pair in read_pairs(name, tokenizer=tokenizer)]

    @classmethod
    def texts(cls, example: Pair) -> tuple[tuple[Words, ...], ...]:
        """The two texts."""
        return ((example.first,), (example.second,))

    @classmethod
    def collect(cls, recipe: Recipe, examples: Sequence[Pair]) -> dict[str, tuple[str, ...]]:
        """List the labels."""
        labels = tuple(sorted({example.label for example in examples}))
        if len(labels) < 2:
            raise InputError(f"the training data has the label {labels[0]!r} alone: expected more")
        return {LABELS: labels}

    @property
    def metric(self) -> str:
        """The share of right labels."""
        return "accuracy"

    def gold(self, examples: Sequence[Pair]) -> dict[str, Tensor]:
        """Label numbers (B)."""
        for example in examples:
            if example.label not in self.ids:
                raise InputError(
                    f"the label {example.label!r} is not among those of the training data"
                )
        return {LABELS: torch.tensor([self.ids[example.label] for example in examples])}

    def forward(self, batch: Batch[Pair]) -> dict[str, Tensor]:
        """Log-probabilities of the labels (B, K)."""
        one, two = batch.texts
        inputs = [self.rnn_dropout(self.inputs(texts)) for texts in batch.texts]
        hidden = together(self.encoder, inputs, batch.texts)
        first, second = map(self.inputs.after, hidden, batch.texts)  # (B, S, D), (B, T, D)
        to_first, to_second = align(first, second, one.mask, two.mask)
        inputs = [self._project(first, to_first), self._project(second, to_second)]
        first, second = together(self.composition, inputs, batch.texts)
        pooled = torch.cat([pool(first, one.mask), pool(second, two.mask)], dim=1)  # (B, 8 H)
        logits = precise(self.top, self.hidden(self.dropout(pooled)))
        return {"shares": logits.log_softmax(dim=1)}

    def _project(self, own: Tensor, aligned: Tensor) -> Tensor:
        """Steps 3 and 4 of one of the texts: (B, T, D) -> (B, T, projection)."""
        enhanced = self.attention_dropout(enhance(own, aligned))
        projected: Tensor = self.rnn_dropout(self.projection(enhanced))
        return projected

    def loss(self, batch: Batch[Pair], outputs: Mapping[str, Tensor]) -> Tensor:
        """Minus the log-likelihood."""
        return nn.functional.nll_loss(outputs["shares"], batch.gold[LABELS])

    def decode(self, batch: Batch[Pair], outputs: Mapping[str, Tensor]) -> list[Choice]:
        """The likeliest labels."""
        shares = outputs["shares"].exp()
        best = shares.argmax(dim=1).tolist()
        return [
            Choice(self.labels[n], dict(zip(self.labels, row, strict=True)))
            for n, row in zip(best, shares.tolist(), strict=True)
        ]

    def score(self, examples: Sequence[Pair], predictions: Sequence[Choice]) -> dict[str, float]:
        """Accuracy."""
        gold = [example.label for example in examples]
        return {"accuracy": accuracy(gold, [choice.label for choice in predictions])}

    def example(self, texts: Sequence[Words]) -> Pair:
        """A pair without a label: of two lists of words, or of one list of two raw texts.

        predict([("It rains.", "It is wet.")]) comes here with the second.
        """
        if len(texts) == 1 and len(texts[0]) == 2:
            first, second = (tuple(self.tokenizer.words(text)) for text in texts[0])
        elif len(texts) == 2:
            first, second = texts
        else:
            raise InputError("a pair is two texts: give `premise TAB hypothesis`, or two strings")
        return Pair(first, second, "")

    def parse(self, text: str) -> Parsed[Pair]:
        """Make a pair of a line `premise TAB hypothesis`."""
        parts = text.split("\t")
        if len(parts) != 2 or not all(part.strip() for part in parts):
            shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
            raise InputError(
                f"the line {shown!r} is no pair: expected a premise, one tab, and a hypothesis"
            )
        behind = len(parts[0]) + 1
        first = tuple(self.tokenizer(parts[0]))
        second = tuple(
            Token(t.text, t.start + behind, t.end + behind) for t in self.tokenizer(parts[1])
        )
        example = self.example([tuple(t.text for t in tokens) for tokens in (first, second)])
        return Parsed(example, text, (first, second))

    def take(self, words: Sequence[str]) -> Parsed[Pair]:
        """Refuse: in a line of words nothing parts the premise from the hypothesis."""
        raise InputError("a premise and a hypothesis are given as raw text, a tab between them")

    def show(self, parsed: Parsed[Pair], prediction: Choice) -> str:
        """The label, how likely it is, and the pair."""
        return f"{prediction.label}\t{prediction.shares[prediction.label]:.3f}\t{parsed.text}"

    def describe(self, parsed: Parsed[Pair], prediction: Choice) -> Json:
        """The label, and how likely each is."""
        premise, hypothesis = parsed.text.split("\t")
        return {
            "premise": premise,
            "hypothesis": hypothesis,
            "label": prediction.label,
            "shares": prediction.shares,
        }


def together(rnn: BiLstm, values: Sequence[Tensor], texts: Sequence[Texts]) -> list[Tensor]:
    """Run one biLSTM over the texts of all roles at once, which takes the time of one of them."""
    width = max(part.shape[1] for part in values)
    rows = [nn.functional.pad(part, (0, 0, 0, width - part.shape[1])) for part in values]
    out: Tensor = rnn(torch.cat(rows), [length for some in texts for length in some.lengths])
    parts = out.split([len(part) for part in values])
    return [own[:, : part.shape[1]] for own, part in zip(parts, values, strict=True)]


def align(
    first: Tensor, second: Tensor, first_mask: Tensor, second_mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Return for each word of a text what it is likest in the other, weighted by softmax.

    (B, S, D), (B, T, D), masks (B, S), (B, T) -> (B, S, D), (B, T, D)
    """
    scores = match(first, second)  # (B, S, T)
    to_first = masked_softmax(scores, second_mask.unsqueeze(1))
    to_second = masked_softmax(scores.transpose(1, 2), first_mask.unsqueeze(1))
    return to_first.to(second.dtype) @ second, to_second.to(first.dtype) @ first


def enhance(own: Tensor, aligned: Tensor) -> Tensor:
    """Put difference and product beside both: (B, T, D), (B, T, D) -> (B, T, 4 D)."""
    return torch.cat([own, aligned, own - aligned, own * aligned], dim=2)


def pool(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean and the largest over the words of each text: (B, T, D) -> (B, 2 D)."""
    there = mask.unsqueeze(2)
    mean = (values * there).sum(dim=1) / there.sum(dim=1)
    largest = values.masked_fill(~there, torch.finfo(values.dtype).min).amax(dim=1)
    return torch.cat([mean, largest], dim=1)
