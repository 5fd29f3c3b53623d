"""A tag a word: named entities, chunks, parts of speech.

1. the inputs;
2. biLSTMs one above the other, each behind variational dropout (entities: 200 cells, then 100);
3. with ELMo at the output, the second mix beside the last biLSTM's output;
4. a linear layer to the tags, and a CRF over them, or a softmax.

Entities and chunks are learned in BIOUL, which the CRF's decoding is held to, and given in IOB2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from torchelmo.config import Json, from_json
from torchelmo.errors import InputError
from torchelmo.tasks.data import Batch
from torchelmo.tasks.decoding import Constraints, Crf, best_path, constraints, convert, to_spans
from torchelmo.tasks.encoders import Inputs, Vocabularies, listed
from torchelmo.tasks.metrics.accuracy import word_accuracy
from torchelmo.tasks.metrics.spans import span_scores
from torchelmo.tasks.model import Parsed, TaskModel
from torchelmo.tasks.modules import BiLstm, VariationalDropout, precise
from torchelmo.tasks.pieces import check_given
from torchelmo.tasks.readers.columns import read_columns, read_kmou
from torchelmo.tasks.readers.conllu import read_conllu
from torchelmo.tasks.readers.entities import read_entities
from torchelmo.tasks.readers.examples import Tagged, Words
from torchelmo.tasks.recipe import Recipe, check, check_share
from torchelmo.text.words import Tokenizer

Tags = tuple[str, ...]
TAGS = "tags"
LEARNED, GIVEN = "BIOUL", "IOB2"
IGNORED = -100  # what a softmax's loss leaves out


@dataclass(frozen=True, kw_only=True)
class TagReader:
    """The file: its format (by the task if not said), and which of its tags are meant."""

    format: Literal["columns", "conllu", "kmou", "entities"] | None = None
    column: int = -1  # of columns
    tags: str = "upos"  # of conllu
    join: bool = False  # of kmou: bare consonants back below their syllables


@dataclass(frozen=True, kw_only=True)
class TaggerOptions:
    """The network."""

    cells: tuple[int, ...] = (200, 100)  # of each direction of each biLSTM, from the lowest
    dropout: float = 0.5  # variational, at the input of each
    dropout_top: float = 0.0  # variational, at the linear layer
    crf: bool = True
    boundaries: bool = True  # whether the CRF weighs the first and the last tag of a sentence

    def __post_init__(self) -> None:
        right = bool(self.cells) and all(cells >= 1 for cells in self.cells)
        check("network.cells", list(self.cells), right, "one number or more, each 1 or more")
        check_share("network.dropout", self.dropout)
        check_share("network.dropout_top", self.dropout_top)


class Tagger(TaskModel[Tagged, Tags]):
    """Tags each word of a sentence."""

    unit = "sentence"

    def __init__(self, recipe: Recipe, vocabularies: Vocabularies, inputs: Inputs) -> None:
        super().__init__(recipe, vocabularies, inputs)
        options = from_json(TaggerOptions, recipe.network, "network")
        self.tags = listed(vocabularies, TAGS)
        self.ids = {tag: n for n, tag in enumerate(self.tags)}
        self._known: dict[Tags, Tensor] = {}
        self.limits: Constraints | None = None
        if has_spans(recipe):
            self.limits = constraints(self.tags, LEARNED)
        width = inputs.width
        stack = []
        for cells in options.cells:
            stack.append(BiLstm(width, cells))
            width = 2 * cells
        self.rnn = nn.ModuleList(stack)
        self.dropout = VariationalDropout(options.dropout)
        self.dropout_top = VariationalDropout(options.dropout_top)
        self.top = nn.Linear(width + inputs.output_width, len(self.tags))
        self.crf = None
        if options.crf:
            self.crf = Crf(len(self.tags), constraints=self.limits, boundaries=options.boundaries)

    @classmethod
    def read(
        cls,
        recipe: Recipe,
        path: str | Path,
        *,
        tokenizer: Tokenizer | None = None,
        training: bool = False,
    ) -> list[Tagged]:
        """Read words and their tags."""
        reader = from_json(TagReader, recipe.data.reader, "data.reader")
        kind = reader.format or ("conllu" if recipe.task == "pos" else "columns")
        found: Iterable[Tagged]
        if kind != "entities":
            check_given(recipe, tokenizer, path)
        if kind == "conllu":
            found = read_conllu(path, tags=reader.tags)
        elif kind == "kmou":
            found = read_kmou(path, join=reader.join)
        elif kind == "entities":
            found = read_entities(path, tokenizer=tokenizer)
        else:
            found = read_columns(path, column=reader.column, chunks=has_spans(recipe))
        return list(found)

    @classmethod
    def texts(cls, example: Tagged) -> tuple[tuple[Words, ...], ...]:
        """The sentence."""
        return ((example.words,),)

    @classmethod
    def collect(cls, recipe: Recipe, examples: Sequence[Tagged]) -> dict[str, tuple[str, ...]]:
        """List the tags; of a label all that BIOUL has, seen in training or not."""
        if not has_spans(recipe):
            return {TAGS: tuple(sorted({tag for example in examples for tag in example.tags}))}
        labels = {span.label for example in examples for span in to_spans(example.tags)}
        return {
            TAGS: ("O", *(f"{letter}-{label}" for label in sorted(labels) for letter in "BILU"))
        }

    @property
    def metric(self) -> str:
        """F1 of spans, or the share of right tags."""
        return "f1" if self.limits is not None else "accuracy"

    def gold(self, examples: Sequence[Tagged]) -> dict[str, Tensor]:
        """Tag numbers (B, T)."""
        rows = [self._numbers(example.tags) for example in examples]
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED)
        return {TAGS: padded}

    def _numbers(self, tags: Tags) -> Tensor:
        """Return a sentence's tag numbers, which every epoch asks for."""
        found = self._known.get(tags)
        if found is None:
            written = convert(tags, LEARNED) if self.limits is not None else tags
            for tag in written:
                if tag not in self.ids:
                    raise InputError(f"the tag {tag!r} is not among those of the training data")
            found = self._known[tags] = torch.tensor([self.ids[tag] for tag in written])
        return found

    def forward(self, batch: Batch[Tagged]) -> dict[str, Tensor]:
        """Scores of the tags (B, T, K), and the CRF's weights."""
        (texts,) = batch.texts
        values = self.inputs(texts)
        for rnn in self.rnn:
            values = rnn(self.dropout(values), texts.lengths)
        values = self.dropout_top(self.inputs.after(values, texts))
        outputs = {"scores": precise(self.top, values)}
        if self.crf is not None:
            outputs["transitions"] = self.crf.transitions
            if self.crf.begin is not None and self.crf.end is not None:
                outputs["begin"], outputs["end"] = self.crf.begin, self.crf.end
        return outputs

    def loss(self, batch: Batch[Tagged], outputs: Mapping[str, Tensor]) -> Tensor:
        """Minus the log-likelihood of a sentence (CRF) or of a word (softmax)."""
        gold, scores = batch.gold[TAGS], outputs["scores"]
        if self.crf is None:
            return nn.functional.cross_entropy(
                scores.flatten(0, 1), gold.flatten(), ignore_index=IGNORED
            )
        return -self.crf.log_likelihood(scores, gold.clamp(min=0), batch.texts[0].mask).mean()

    def decode(self, batch: Batch[Tagged], outputs: Mapping[str, Tensor]) -> list[Tags]:
        """The best tags that the scheme allows."""
        paths, _ = best_path(
            outputs["scores"],
            batch.texts[0].mask,
            transitions=outputs.get("transitions"),
            begin=outputs.get("begin"),
            end=outputs.get("end"),
            constraints=self.limits,
        )
        rows = [tuple(self.tags[n] for n in path) for path in paths]
        return [tuple(convert(row, GIVEN)) for row in rows] if self.limits is not None else rows

    def score(self, examples: Sequence[Tagged], predictions: Sequence[Tags]) -> dict[str, float]:
        """Precision, recall and F1 of spans as conlleval counts, or accuracy."""
        gold = [example.tags for example in examples]
        if self.limits is None:
            return {"accuracy": word_accuracy(gold, predictions)}
        # Tags are compared in one scheme, or the accuracy would count IOB1's I for IOB2's B.
        found = span_scores([convert(tags, GIVEN) for tags in gold], predictions)
        overall = found.overall
        return {
            "f1": overall.f1,
            "precision": overall.precision,
            "recall": overall.recall,
            "accuracy": found.accuracy,
        }

    def example(self, texts: Sequence[Words]) -> Tagged:
        """A sentence without tags."""
        (words,) = texts
        return Tagged(words, ())

    def show(self, parsed: Parsed[Tagged], prediction: Tags) -> str:
        """Mark spans in the sentence, or put its tag behind each word.

        "Ada Lovelace left." -> "[PER Ada Lovelace] left." or "Ada/PROPN Lovelace/PROPN left/VERB"
        """
        (tokens,) = parsed.tokens
        if self.limits is None:
            return " ".join(f"{t.text}/{tag}" for t, tag in zip(tokens, prediction, strict=True))
        out, done = [], 0
        for span in to_spans(prediction):
            start, end = tokens[span.start].start, tokens[span.end - 1].end
            out.append(f"{parsed.text[done:start]}[{span.label} {parsed.text[start:end]}]")
            done = end
        return "".join([*out, parsed.text[done:]])

    def describe(self, parsed: Parsed[Tagged], prediction: Tags) -> Json:
        """Words, tags, and spans with their text and where it stands."""
        (tokens,) = parsed.tokens
        out: Json = {"text": parsed.text, "words": [t.text for t in tokens], "tags": prediction}
        if self.limits is not None:
            spans = []
            for label, first, last in to_spans(prediction):
                start, end = tokens[first].start, tokens[last - 1].end
                text = parsed.text[start:end]
                spans.append({"label": label, "text": text, "start": start, "end": end})
            out["spans"] = spans
        return out


def has_spans(recipe: Recipe) -> bool:
    """Whether a task's tags are spans of words."""
    return recipe.task != "pos"
