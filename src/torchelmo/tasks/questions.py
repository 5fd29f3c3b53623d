"""Answers to questions as spans of a context: BiDAF with self-attention (Clark & Gardner 2018).

1. the inputs, a biGRU shared by question and context; with ELMo at the output, the second mix
   beside what it gives, also shared;
2. attention both ways between context and question, a relu layer;
3. a biGRU and attention of the context to itself, a relu layer, added to what went in;
4. a biGRU gives the start, another over its input and its output the end: a softmax each over the
   context's words.

Dropout has one mask a text at the inputs of 1, 3 and 4 and behind the biGRUs of 1 and 3. A span's
score is the product of both shares; the best span of at most 17 words is the answer.

Departures: where people gave several answers, the loss is of their summed probability (the original
draws one in each pass; SQuAD's training part has one). Constants that a softmax does not see are
left out. The tri-linear scores are computed in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchelmo.config import Json, from_json
from torchelmo.errors import InputError
from torchelmo.tasks.data import Batch, Texts
from torchelmo.tasks.decoding import best_span
from torchelmo.tasks.encoders import Inputs, Vocabularies
from torchelmo.tasks.gru import BiGru
from torchelmo.tasks.metrics.squad import squad_scores
from torchelmo.tasks.model import Parsed, TaskModel
from torchelmo.tasks.modules import VariationalDropout, masked_softmax, precise
from torchelmo.tasks.readers.examples import Question, Words
from torchelmo.tasks.readers.squad import read_squad, tokenise
from torchelmo.tasks.recipe import Recipe, check, check_share
from torchelmo.text.words import Token, Tokenizer

ROOM = 1 << 26  # scores of a context's words with each other, computed at a time in prediction


@dataclass(frozen=True, kw_only=True)
class QuestionReader:
    """What is taken of a file of questions."""

    cut: bool = True  # words at inner hyphens and slashes
    longest: int | None = None  # words of a context in training, further ones are left out

    def __post_init__(self) -> None:
        right = self.longest is None or self.longest >= 1
        check("data.reader.longest", self.longest, right, "1 or more")


@dataclass(frozen=True, kw_only=True)
class QuestionOptions:
    """The network."""

    cells: int = 90  # of each direction of every biGRU
    width: int = 180  # of the relu layers
    dropout: float = 0.2
    span: int = 17  # words of an answer at most

    def __post_init__(self) -> None:
        for name in ("cells", "width", "span"):
            check(f"network.{name}", getattr(self, name), getattr(self, name) >= 1, "1 or more")
        check_share("network.dropout", self.dropout)


class Found(NamedTuple):
    """An answer: as it is written, its words `context[start:end]`, and how likely it is."""

    text: str
    start: int
    end: int
    score: float


class TriLinear(nn.Module):
    """The score of two words: a . x + b . y + (c * x) . y."""

    def __init__(self, width: int) -> None:
        super().__init__()
        bound = (3 / width) ** 0.5
        self.first, self.second, self.both = (
            nn.Parameter(torch.empty(width).uniform_(-bound, bound)) for _ in range(3)
        )

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        """(B, T, D), (B, U, D) -> (B, T, U), in float32."""
        with torch.autocast(one.device.type, enabled=False):
            one, two = one.float(), two.float()
            terms = (one @ self.first).unsqueeze(2) + (two @ self.second).unsqueeze(1)
            return torch.baddbmm(terms, one * self.both, two.transpose(1, 2))


class BiAttention(nn.Module):
    """Attention both ways between a context and a question (Seo et al. 2017).

    Each word of the context gets what it looks for in the question, and the context is weighed as
    a whole by the best match of each of its words: (B, T, D), (B, Q, D) -> (B, T, 4 D).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scores = TriLinear(width)
        self.width = 4 * width

    def forward(
        self, context: Tensor, question: Tensor, context_mask: Tensor, question_mask: Tensor
    ) -> Tensor:
        """Attend; the masks are (B, T) and (B, Q)."""
        scores: Tensor = self.scores(context, question)  # (B, T, Q)
        beside = question_mask.unsqueeze(1)
        asked = masked_softmax(scores, beside).to(question.dtype) @ question  # (B, T, D)
        match = scores.masked_fill(~beside, float("-inf")).amax(dim=2)  # (B, T)
        weights = masked_softmax(match, context_mask).to(context.dtype)
        whole = weights.unsqueeze(1) @ context  # (B, 1, D)
        return torch.cat([context, asked, context * asked, context * whole], dim=2)


class SelfAttention(nn.Module):
    """Attention of a text to its other words, or to none: (B, T, D) -> (B, T, D).

    exp(none) is in the sum that divides the shares, so that they may add to less than 1; a text of
    one word gets zeros.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scores = TriLinear(width)
        self.none = nn.Parameter(torch.tensor([-1.0]))

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """Attend; the mask is (B, T). Without training some rows at a time, as memory allows."""
        batch, length, _ = values.shape
        rows = length if torch.is_grad_enabled() else max(ROOM // (batch * length), 1)
        places = torch.arange(length, device=values.device)
        parts = []
        for first in range(0, length, rows):
            own = places[first : first + rows].unsqueeze(1) == places  # (rows, T)
            scores = self.scores(values[:, first : first + rows], values)
            scores = scores.masked_fill(own | ~mask.unsqueeze(1), float("-inf"))
            none = self.none.float().expand(*scores.shape[:2], 1)
            shares = torch.cat([scores, none], dim=2).softmax(dim=2)[:, :, :length]
            parts.append(shares.to(values.dtype) @ values)
        return torch.cat(parts, dim=1)


class Questions(TaskModel[Question, Found]):
    """Finds the answer to a question in a context."""

    unit = "line"
    metric = "f1"
    log_shares = frozenset({"start", "end"})

    def __init__(self, recipe: Recipe, vocabularies: Vocabularies, inputs: Inputs) -> None:
        super().__init__(recipe, vocabularies, inputs)
        options = from_json(QuestionOptions, recipe.network, "network")
        self.cut = from_json(QuestionReader, recipe.data.reader, "data.reader").cut
        self.span = options.span
        cells, width = options.cells, options.width
        self.dropout = VariationalDropout(options.dropout)
        self.encoder = BiGru(inputs.width, cells)
        self.attention = BiAttention(self.encoder.width + inputs.output_width)
        self.joined = nn.Linear(self.attention.width, width)
        self.reader = BiGru(width, cells)
        self.own_attention = SelfAttention(self.reader.width)
        self.matched = nn.Linear(3 * self.reader.width, width)
        self.start_reader = BiGru(width, cells)
        self.end_reader = BiGru(width + self.start_reader.width, cells)
        self.start = nn.Linear(self.start_reader.width, 1)
        self.end = nn.Linear(self.end_reader.width, 1)
        for layer in (self.joined, self.matched, self.start, self.end):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    @classmethod
    def read(
        cls,
        recipe: Recipe,
        path: str | Path,
        *,
        tokenizer: Tokenizer | None = None,
        training: bool = False,
    ) -> list[Question]:
        """Read SQuAD's form; in training only questions with an answer, contexts cut if told."""
        options = from_json(QuestionReader, recipe.data.reader, "data.reader")
        found = list(read_squad(path, tokenizer=tokenizer, cut=options.cut))
        if not training:
            return found
        if options.longest is not None:
            found = [shorten(example, options.longest) for example in found]
        return [example for example in found if spans(example)]

    @classmethod
    def texts(cls, example: Question) -> tuple[tuple[Words, ...], ...]:
        """The question and the context."""
        return ((example.question,), (example.words,))

    @classmethod
    def collect(cls, recipe: Recipe, examples: Sequence[Question]) -> dict[str, tuple[str, ...]]:
        """No labels."""
        return {}

    def gold(self, examples: Sequence[Question]) -> dict[str, Tensor]:
        """First and last words of the distinct answers (B, A); where there is one (B, A)."""
        answers = [spans(example) for example in examples]
        for example, found in zip(examples, answers, strict=True):
            if not found:
                raise InputError(
                    f"the question {example.id!r} ({' '.join(example.question)[:60]}) has no "
                    "answer among its context's words: leave it out of the training data"
                )
        most = max(map(len, answers))
        padded = torch.tensor([[*found, *found[:1] * (most - len(found))] for found in answers])
        counts = torch.tensor([len(found) for found in answers])
        return {
            "start": padded[:, :, 0],
            "end": padded[:, :, 1] - 1,
            "real": torch.arange(most) < counts.unsqueeze(1),
        }

    def forward(self, batch: Batch[Question]) -> dict[str, Tensor]:
        """Log-probabilities of each word of the context to begin and to end the answer, (B, T)."""
        question, context = batch.texts
        lengths = context.lengths
        values = self.attention(
            self._encode(context), self._encode(question), context.mask, question.mask
        )
        values = self.joined(values).relu()  # (B, T, width)
        own = self.dropout(self.reader(self.dropout(values), lengths))
        seen = self.own_attention(own, context.mask)
        values = values + self.matched(torch.cat([seen, own, seen * own], dim=2)).relu()
        values = self.dropout(values)
        first = self.start_reader(values, lengths)
        second = self.end_reader(torch.cat([values, first.to(values.dtype)], dim=2), lengths)
        out = {"start": precise(self.start, first), "end": precise(self.end, second)}
        return {
            name: logits.squeeze(2).masked_fill(~context.mask, float("-inf")).log_softmax(dim=1)
            for name, logits in out.items()
        }

    def loss(self, batch: Batch[Question], outputs: Mapping[str, Tensor]) -> Tensor:
        """Minus the log of the answers' summed probability."""
        gold = batch.gold
        scores = outputs["start"].gather(1, gold["start"]) + outputs["end"].gather(1, gold["end"])
        return -scores.masked_fill(~gold["real"], float("-inf")).logsumexp(dim=1).mean()

    def decode(self, batch: Batch[Question], outputs: Mapping[str, Tensor]) -> list[Found]:
        """The likeliest spans."""
        start, end, score = best_span(
            outputs["start"], outputs["end"], batch.texts[1].mask, limit=self.span
        )
        rows = zip(batch.examples, start.tolist(), end.tolist(), score.exp().tolist(), strict=True)
        return [Found(example.text(a, b), a, b, value) for example, a, b, value in rows]

    def score(self, examples: Sequence[Question], predictions: Sequence[Found]) -> dict[str, float]:
        """F1 and exact match, as SQuAD's script has them."""
        # By number: files of one's own may use an id twice.
        answers = {str(n): [a.text for a in e.answers] for n, e in enumerate(examples)}
        found = {str(n): prediction.text for n, prediction in enumerate(predictions)}
        scores = squad_scores(answers, found)
        return {"f1": scores.f1, "em": scores.em}

    def example(self, texts: Sequence[Words]) -> Question:
        """The words of a question and of a context, which are joined by spaces."""
        if len(texts) != 2:
            raise InputError(
                f"{len(texts)} text was given, expected a question and its context: give a string "
                "with a TAB between them"
            )
        question, words = texts
        offsets = tuple((token.start, token.end) for token in side_by_side(words))
        return Question("", question, " ".join(words), words, offsets, ())

    def parse(self, text: str) -> Parsed[Question]:
        """Make an example of a line: question TAB context."""
        question, tab, context = text.partition("\t")
        if not tab or not question.strip() or not context.strip():
            raise InputError(
                f"{text[:60]!r} is no question: expected a line with the question, a TAB and the "
                "context"
            )
        asked = tokenise(question, self.tokenizer, cut=self.cut)
        tokens = tokenise(context, self.tokenizer, cut=self.cut)
        example = Question(
            id="",
            question=tuple(token.text for token in asked),
            context=context,
            words=tuple(token.text for token in tokens),
            offsets=tuple((token.start, token.end) for token in tokens),
            answers=(),
        )
        return Parsed(example, text, (tuple(asked), tuple(tokens)))

    def take(self, words: Sequence[str]) -> Parsed[Question]:
        """Refuse: in a line of words nothing parts the question from the context."""
        raise InputError("a question and its context are given as raw text, a TAB between them")

    def parse_file(self, path: str) -> list[Parsed[Question]] | None:
        """Make examples of a file in SQuAD's form, *.json; others are read by lines."""
        if not path.endswith(".json"):
            return None
        out = []
        for example in self.read(self.recipe, path, tokenizer=self.tokenizer):
            text = f"{' '.join(example.question)}\t{example.context}"
            places = zip(example.words, example.offsets, strict=True)
            tokens = tuple(Token(word, start, end) for word, (start, end) in places)
            out.append(Parsed(example, text, (side_by_side(example.question), tokens)))
        return out

    def show(self, parsed: Parsed[Question], prediction: Found) -> str:
        """The answer, how likely it is, and the question."""
        answer, question = " ".join(prediction.text.split()), parsed.text.partition("\t")[0]
        return f"{answer}\t{prediction.score:.3f}\t{question.strip()}"

    def describe(self, parsed: Parsed[Question], prediction: Found) -> Json:
        """The answer, where it stands in the context (characters), and how likely it is."""
        example = parsed.example
        start, end = example.offsets[prediction.start][0], example.offsets[prediction.end - 1][1]
        return {
            **({"id": example.id} if example.id else {}),
            "question": parsed.text.partition("\t")[0],
            "answer": prediction.text,
            "start": start,
            "end": end,
            "score": prediction.score,
        }

    def _encode(self, texts: Texts) -> Tensor:
        """(B, T, 2 H), and the second mix beside it."""
        values = self.encoder(self.dropout(self.inputs(texts)), texts.lengths)
        return self.inputs.after(self.dropout(values), texts)


def spans(example: Question) -> list[tuple[int, int]]:
    """Return the distinct word spans of the answers, `words[start:end]`."""
    found = dict.fromkeys(example.word_span(answer) for answer in example.answers)
    return [(start, end) for start, end in found if start < end]


def side_by_side(words: Words) -> tuple[Token, ...]:
    """Return words as tokens of the text in which single spaces join them."""
    ends = list(accumulate(len(word) + 1 for word in words))
    return tuple(
        Token(word, end - 1 - len(word), end - 1) for word, end in zip(words, ends, strict=True)
    )


def shorten(example: Question, longest: int) -> Question:
    """Leave out the words of a context behind the first `longest`, and answers that reach there."""
    if len(example.words) <= longest:
        return example
    offsets = example.offsets[:longest]
    context = example.context[: offsets[-1][1]]
    answers = tuple(answer for answer in example.answers if answer.end <= len(context))
    words = example.words[:longest]
    return replace(example, context=context, words=words, offsets=offsets, answers=answers)
