"""Semantic roles: who did what to whom, the deep labeller of He et al. (2017).

1. the inputs, and beside them a vector that says whether a word is the predicate asked about;
2. eight LSTM layers of alternating direction with highways and recurrent dropout;
3. with ELMo at the output, the second mix beside the last layer's output;
4. a linear layer and a softmax over BIO tags; the best tags that the scheme allows are predicted.

A file's sentence is one example a predicate. Its text is the same each time, so a biLM's layers are
kept once. A sentence to predict may have several predicates: those marked in it ("The cat [sat]"),
or, without marks, the words that were predicates in at least half their places in training.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from torchelmo.config import Json, from_json
from torchelmo.errors import InputError
from torchelmo.tasks.data import Batch, move
from torchelmo.tasks.decoding import best_path, constraints, to_spans
from torchelmo.tasks.encoders import Inputs, Vocabularies, listed
from torchelmo.tasks.highway_lstm import AlternatingLstm
from torchelmo.tasks.metrics.srl import srl_scores
from torchelmo.tasks.model import Parsed, TaskModel
from torchelmo.tasks.modules import VariationalDropout, precise
from torchelmo.tasks.readers.examples import Frames, Predicate, Words
from torchelmo.tasks.readers.propbank import read_frames
from torchelmo.tasks.recipe import Recipe, check, check_share
from torchelmo.text.words import Token, Tokenizer

Tags = tuple[str, ...]
TAGS, PREDICATES = "tags", "predicates"
SCHEME = "IOB2"
IGNORED = -100  # what the loss leaves out
NOWHERE = -1  # the predicate of a sentence that has none
_MARK = re.compile(r"\[([^\W\d_][^\s\[\]]*)\]")  # [sat], but not [1] or [two words]


@dataclass(frozen=True, kw_only=True)
class RolesOptions:
    """The network."""

    cells: int = 300
    layers: int = 8
    predicate: int = 100  # width of the vector that tells the predicate
    dropout: float = 0.1  # in the recurrence and at the output of each layer, one mask a text
    dropout_input: float = 0.0  # variational, at the lowest layer

    def __post_init__(self) -> None:
        for name in ("cells", "layers", "predicate"):
            check(f"network.{name}", getattr(self, name), getattr(self, name) >= 1, "1 or more")
        check_share("network.dropout", self.dropout)
        check_share("network.dropout_input", self.dropout_input)


class Roles(TaskModel[Frames, tuple[Tags, ...]]):
    """Tags the arguments of each predicate of a sentence."""

    unit = "sentence"

    def __init__(self, recipe: Recipe, vocabularies: Vocabularies, inputs: Inputs) -> None:
        super().__init__(recipe, vocabularies, inputs)
        options = from_json(RolesOptions, recipe.network, "network")
        self.tags = listed(vocabularies, TAGS)
        self.ids = {tag: n for n, tag in enumerate(self.tags)}
        self.known = frozenset(listed(vocabularies, PREDICATES))
        self.limits = constraints(self.tags, SCHEME)
        self.predicate = nn.Embedding(2, options.predicate)
        self.dropout = VariationalDropout(options.dropout_input)
        self.rnn = AlternatingLstm(
            inputs.width + options.predicate, options.cells, options.layers, options.dropout
        )
        self.top = nn.Linear(options.cells + inputs.output_width, len(self.tags))
        nn.init.xavier_uniform_(self.predicate.weight)
        nn.init.orthogonal_(self.top.weight)
        nn.init.zeros_(self.top.bias)

    @classmethod
    def read(
        cls,
        recipe: Recipe,
        path: str | Path,
        *,
        tokenizer: Tokenizer | None = None,
        training: bool = False,
    ) -> list[Frames]:
        """Read CoNLL-2012's columns, one example a predicate; a sentence without gives none."""
        return [
            Frames(frames.words, (predicate,))
            for frames in read_frames(path)
            for predicate in frames.predicates
        ]

    @classmethod
    def texts(cls, example: Frames) -> tuple[tuple[Words, ...], ...]:
        """The sentence, once a predicate, once also if there is none."""
        return ((example.words,) * max(len(example.predicates), 1),)

    @classmethod
    def collect(cls, recipe: Recipe, examples: Sequence[Frames]) -> dict[str, tuple[str, ...]]:
        """List the tags, of a label both that IOB2 has, and the words that are predicates."""
        found: set[str] = set()
        places: dict[Words, set[int]] = {}
        for example in examples:
            known = places.setdefault(example.words, set())
            for predicate in example.predicates:
                known.add(predicate.index)
                found.update(span.label for span in to_spans(predicate.tags))
        words = Counter(word.lower() for text in places for word in text)
        used = Counter(text[n].lower() for text, some in places.items() for n in some)
        often = sorted(word for word, count in used.items() if 2 * count >= words[word])
        return {
            TAGS: ("O", *(f"{letter}-{label}" for label in sorted(found) for letter in "BI")),
            PREDICATES: tuple(word for word in often if word.isprintable() and " " not in word),
        }

    @property
    def metric(self) -> str:
        """F1 of the arguments."""
        return "f1"

    def gold(self, examples: Sequence[Frames]) -> dict[str, Tensor]:
        """Tag numbers, one row a text: (B, T)."""
        rows = []
        for example in examples:
            count = len(example.words)
            for predicate in example.predicates:
                if len(predicate.tags) != count:
                    raise InputError(
                        f"a frame has {len(predicate.tags)} tags and its sentence {count} words: "
                        f"{' '.join(example.words)!r}"
                    )
                for tag in predicate.tags:
                    if tag not in self.ids:
                        raise InputError(f"the tag {tag!r} is not among those of the training data")
                rows.append(torch.tensor([self.ids[tag] for tag in predicate.tags]))
            if not example.predicates:
                rows.append(torch.full((count,), IGNORED))
        return {TAGS: nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED)}

    def forward(self, batch: Batch[Frames]) -> dict[str, Tensor]:
        """Scores of the tags of each text (B, T, K)."""
        (texts,) = batch.texts
        places = move(torch.tensor(_places(batch.examples)), texts.device)  # (B)
        steps = torch.arange(texts.mask.shape[1], device=texts.device)
        flags = self.predicate((steps == places.unsqueeze(1)).long())  # (B, T, predicate)
        values = self.dropout(torch.cat([self.inputs(texts), flags], dim=2))
        hidden = self.inputs.after(self.rnn(values, texts.lengths), texts)
        return {"scores": precise(self.top, hidden)}

    def loss(self, batch: Batch[Frames], outputs: Mapping[str, Tensor]) -> Tensor:
        """Minus the log-likelihood of a word's tag."""
        scores, gold = outputs["scores"], batch.gold[TAGS]
        total = nn.functional.cross_entropy(
            scores.flatten(0, 1), gold.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        return total / (gold != IGNORED).sum().clamp(min=1)

    def decode(self, batch: Batch[Frames], outputs: Mapping[str, Tensor]) -> list[tuple[Tags, ...]]:
        """The best tags that IOB2 allows, for each predicate of each sentence."""
        paths, _ = best_path(
            outputs["scores"].log_softmax(dim=2), batch.texts[0].mask, constraints=self.limits
        )
        rows = [tuple(self.tags[n] for n in path) for path in paths]
        ends = [0, *accumulate(batch.counts[0])]
        return [
            tuple(rows[start:end]) if example.predicates else ()
            for example, (start, end) in zip(batch.examples, pairwise(ends), strict=True)
        ]

    def score(
        self, examples: Sequence[Frames], predictions: Sequence[tuple[Tags, ...]]
    ) -> dict[str, float]:
        """Precision, recall and F1 as CoNLL-2005's script counts, and the share of whole frames."""
        gold = [predicate.tags for example in examples for predicate in example.predicates]
        found = srl_scores(gold, [tags for frames in predictions for tags in frames])
        return {
            "f1": found.overall.f1,
            "precision": found.overall.precision,
            "recall": found.overall.recall,
            "frames": found.accuracy,
        }

    def example(self, texts: Sequence[Words]) -> Frames:
        """A sentence with the predicates that are marked in it, or else those known by form.

        ("The", "cat", "[sat]") -> the words The, cat, sat and the predicate 2.
        """
        (words,) = texts
        marks = [_MARK.fullmatch(word) for word in words]
        return self._frames(
            tuple(mark[1] if mark else word for mark, word in zip(marks, words, strict=True)),
            [n for n, mark in enumerate(marks) if mark],
        )

    def parse(self, text: str) -> Parsed[Frames]:
        """Make an example of a raw sentence: "The cat [sat]." or "The cat sat."."""
        plain, marked = unmark(text)
        tokens = self.tokenizer(plain)
        places = [
            n
            for n, token in enumerate(tokens)
            if any(token.start <= start < token.end for start in marked)
        ]
        return Parsed(self._frames(tuple(t.text for t in tokens), places), plain, (tuple(tokens),))

    def take(self, words: Sequence[str]) -> Parsed[Frames]:
        """Make an example of a sentence whose words are known; a predicate may be in brackets."""
        example = self.example([tuple(words)])
        return Parsed(example, *_joined(example.words))

    def parse_file(self, path: str) -> list[Parsed[Frames]] | None:
        """Read a `*_gold_conll` file's sentences with its predicates; another is raw text."""
        if not path.endswith("conll"):
            return None
        return [Parsed(frames, *_joined(frames.words)) for frames in read_frames(path)]

    def show(self, parsed: Parsed[Frames], prediction: tuple[Tags, ...]) -> str:
        """Mark the arguments in the sentence, a line a predicate; without one it stays as it is.

        "The cat sat on the mat." -> "[ARG0 The cat] [V sat] [ARGM-LOC on the mat]."
        """
        (tokens,) = parsed.tokens
        lines = []
        for tags in prediction:
            out, done = [], 0
            for span in to_spans(tags):
                start, end = tokens[span.start].start, tokens[span.end - 1].end
                out.append(f"{parsed.text[done:start]}[{span.label} {parsed.text[start:end]}]")
                done = end
            lines.append("".join([*out, parsed.text[done:]]))
        return "\n".join(lines) or parsed.text

    def describe(self, parsed: Parsed[Frames], prediction: tuple[Tags, ...]) -> Json:
        """Words, and of each frame its predicate, tags, and arguments with where they stand."""
        (tokens,) = parsed.tokens
        frames = []
        for predicate, tags in zip(parsed.example.predicates, prediction, strict=True):
            arguments = []
            for label, first, last in to_spans(tags):
                start, end = tokens[first].start, tokens[last - 1].end
                text = parsed.text[start:end]
                arguments.append({"label": label, "text": text, "start": start, "end": end})
            frames.append(
                {
                    "predicate": tokens[predicate.index].text,
                    "index": predicate.index,
                    "tags": tags,
                    "arguments": arguments,
                }
            )
        return {"text": parsed.text, "words": [t.text for t in tokens], "frames": frames}

    def _frames(self, words: Words, marked: Sequence[int]) -> Frames:
        places = marked or [n for n, word in enumerate(words) if word.lower() in self.known]
        return Frames(words, tuple(Predicate(n, "", ()) for n in places))


def unmark(text: str) -> tuple[str, list[int]]:
    """Take the brackets off marked words, and say where these begin.

    >>> unmark("The cat [sat] down")
    ('The cat sat down', [8])
    """
    out, starts, done, length = [], [], 0, 0
    for mark in _MARK.finditer(text):
        out += [text[done : mark.start()], mark[1]]
        length += mark.start() - done
        starts.append(length)
        length += len(mark[1])
        done = mark.end()
    return "".join([*out, text[done:]]), starts


def _places(examples: Sequence[Frames]) -> list[int]:
    """Return the predicate's place in each text of a batch."""
    places = []
    for example in examples:
        for predicate in example.predicates:
            if not 0 <= predicate.index < len(example.words):
                raise InputError(
                    f"the predicate {predicate.index} is none of the {len(example.words)} words of "
                    f"{' '.join(example.words)!r}: give one from 0 on"
                )
            places.append(predicate.index)
        if not example.predicates:
            places.append(NOWHERE)
    return places


def _joined(words: Words) -> tuple[str, tuple[tuple[Token, ...], ...]]:
    tokens, start = [], 0
    for word in words:
        tokens.append(Token(word, start, start + len(word)))
        start += len(word) + 1
    return " ".join(words), (tuple(tokens),)
