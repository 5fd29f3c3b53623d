"""Which mentions of a document mean the same: Lee et al. (2017), end to end over spans.

1. the inputs, and a biLSTM over each sentence on its own;
2. every span of up to ten words in a sentence: the biLSTM at its first and last word, its words'
   vectors weighed by attention (the head), and its width;
3. a score a span; of 0.4 spans a word the best are kept, none of which cross;
4. for each kept span a score with each of the 250 before it, from both, their product, whether the
   speaker is the same, the genre, and how many kept spans lie between; 0 for no antecedent;
5. learned by the probability of all right antecedents together, decoded by the best of each.

Departures: the biLSTM has dropout at its output and none inside. The genre of a text that has none
known is the mean of those learned. The first layer over a pair is computed in parts, so that no
pair's whole vector is ever made; documents are gone through one at a time behind the biLSTM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from torchelmo.config import Json, from_json, nearest
from torchelmo.errors import InputError
from torchelmo.tasks import mentions
from torchelmo.tasks.data import Batch
from torchelmo.tasks.encoders import Inputs, TextEncoder, Vocabularies, listed
from torchelmo.tasks.mentions import Clusters
from torchelmo.tasks.metrics.coref import coref_scores
from torchelmo.tasks.model import Parsed, TaskModel
from torchelmo.tasks.modules import BiLstm, VariationalDropout
from torchelmo.tasks.packing import flatten
from torchelmo.tasks.readers.coref import read_documents, read_splits
from torchelmo.tasks.readers.examples import Document, Words
from torchelmo.tasks.recipe import Recipe, check, check_share
from torchelmo.tasks.span_network import SpanNetwork
from torchelmo.text.sentences import split_sentences
from torchelmo.text.words import Token, Tokenizer

GENRES = "genres"
NO_GENRE = "-"
PART = "#"  # parts a folder of documents from the name of a part of it


@dataclass(frozen=True, kw_only=True)
class CorefReader:
    """The files: CoNLL-2012 columns, one or a folder."""

    splits: str | None = None  # GUM's splits.md; files are then named FOLDER#train, FOLDER#dev ...
    singletons: bool = False  # whether gold clusters of one mention count; OntoNotes has none


@dataclass(frozen=True, kw_only=True)
class CorefOptions:
    """The network."""

    cells: int = 200  # of each direction
    layers: int = 1
    longest: int = 10  # words of a span
    spans: float = 0.4  # kept spans a word
    antecedents: int = 250  # kept spans before one that are looked at
    hidden: tuple[int, ...] = (150, 150)  # of both scores' feed-forward networks
    features: int = 20  # width of each feature's vector
    sentences: int = 50  # of a document in training, from a place chosen at random
    mention_loss: float = 0.0  # weight of telling mentions from other spans; the paper has none
    dropout_input: float = 0.5  # over all inputs
    dropout: float = 0.2  # at the biLSTM's output, in feed-forward networks, of features
    elmo_in_heads: bool = False  # whether a span's head reads ELMo or the other inputs alone

    def __post_init__(self) -> None:
        for name in ("cells", "layers", "longest", "antecedents", "features", "sentences"):
            value = getattr(self, name)
            check(f"network.{name}", value, value >= 1, "1 or more")
        right = bool(self.hidden) and all(width >= 1 for width in self.hidden)
        check("network.hidden", list(self.hidden), right, "one number or more, each 1 or more")
        check("network.spans", self.spans, self.spans > 0, "more than 0")
        check("network.mention_loss", self.mention_loss, self.mention_loss >= 0, "0 or more")
        check_share("network.dropout_input", self.dropout_input)
        check_share("network.dropout", self.dropout)


class Coreference(TaskModel[Document, Clusters]):
    """Finds a document's mentions and joins those that mean the same."""

    unit = "document"

    def __init__(self, recipe: Recipe, vocabularies: Vocabularies, inputs: Inputs) -> None:
        super().__init__(recipe, vocabularies, inputs)
        self.options = options = from_json(CorefOptions, recipe.network, "network")
        self.reader = from_json(CorefReader, recipe.data.reader, "data.reader")
        self.genres = {genre: n for n, genre in enumerate(listed(vocabularies, GENRES))}
        between = options.dropout if options.layers > 1 else 0.0
        self.rnn = BiLstm(inputs.width, options.cells, options.layers, between)
        # ELMo stands last among the inputs; where it stands alone the heads read it too.
        elmo = 0
        if "elmo" in inputs.encoders and not options.elmo_in_heads:
            elmo = cast(TextEncoder, inputs.encoders["elmo"]).width
        self.head_width = inputs.width - elmo or inputs.width
        self.network = SpanNetwork(
            self.rnn.width + inputs.output_width,
            self.head_width,
            len(self.genres),
            longest=options.longest,
            share=options.spans,
            antecedents=options.antecedents,
            hidden=options.hidden,
            features=options.features,
            dropout=options.dropout,
        )
        self.dropout_input = nn.Dropout(options.dropout_input)
        self.dropout_rnn = VariationalDropout(options.dropout)

    @classmethod
    def read(
        cls,
        recipe: Recipe,
        path: str | Path,
        *,
        tokenizer: Tokenizer | None = None,
        training: bool = False,
    ) -> list[Document]:
        """Read documents; with `data.reader.splits`, those of a part: FOLDER#train."""
        reader = from_json(CorefReader, recipe.data.reader, "data.reader")
        if reader.splits is None:
            return list(read_documents(path))
        parts = read_splits(reader.splits)
        folder, _, part = str(path).rpartition(PART)
        if not folder or part not in parts:
            raise InputError(
                f"{path} does not say which part of {reader.splits} is meant: write "
                f"{folder or path}{PART}{next(iter(parts), 'train')}{nearest(part, parts)}"
            )
        return list(read_documents(folder, names=set(parts[part])))

    @classmethod
    def texts(cls, example: Document) -> tuple[tuple[Words, ...], ...]:
        """The sentences."""
        if not example.sentences or not all(example.sentences):
            what = "a sentence without words" if example.sentences else "no sentences"
            raise InputError(f"the document {example.name!r} has {what}: leave it out")
        if len(example.speakers) != len(example.sentences):
            raise InputError(
                f"the document {example.name!r} has {len(example.speakers)} speakers for "
                f"{len(example.sentences)} sentences: give one a sentence, or ''"
            )
        return (example.sentences,)

    @classmethod
    def collect(cls, recipe: Recipe, examples: Sequence[Document]) -> dict[str, tuple[str, ...]]:
        """List the genres."""
        return {GENRES: tuple(sorted({example.genre or NO_GENRE for example in examples}))}

    @property
    def metric(self) -> str:
        """The mean F1 of MUC, B-cubed and CEAF."""
        return "f1"

    def size(self, example: Document) -> int:
        """Words of the document."""
        return sum(map(len, example.sentences))

    def batch(self, examples: Sequence[Document], *, gold: bool = True) -> Batch[Document]:
        """Make a batch; in training long documents are cut at random."""
        if self.training and gold:
            examples = [self._shorten(example) for example in examples]
        return super().batch(examples, gold=gold)

    def gold(self, examples: Sequence[Document]) -> dict[str, Tensor]:
        """The cluster of each span (N), from 1; 0 for spans in none.

        Gold mentions that are longer than any span, or run over a sentence's end, are left out.
        """
        parts = []
        for example in examples:
            words, numbers = self.size(example), []
            for number, cluster in enumerate(example.clusters, 1):
                for start, end in cluster:
                    if not 0 <= start < end <= words:
                        raise InputError(
                            f"the document {example.name!r} has a mention {(start, end)}, expected "
                            f"start < end within its {words} words"
                        )
                    numbers.append((start, end, number))
            # The other way round: of a mention in two clusters the first is written last.
            starts, ends, clusters = np.array(numbers, np.int64).reshape(-1, 3)[::-1].T
            lengths = [len(sentence) for sentence in example.sentences]
            places = mentions.positions(lengths, self.options.longest, starts, ends)
            found = np.zeros(len(self._candidates(example)[0]), np.int64)
            found[places[places >= 0]] = clusters[places >= 0]
            parts.append(torch.from_numpy(found))
        return {"clusters": torch.cat(parts)}

    def spans(self, example: Document) -> list[tuple[int, int]]:
        """Return a document's spans in the order of the outputs."""
        starts, ends = self._candidates(example)
        return list(zip(starts.tolist(), ends.tolist(), strict=True))

    def _candidates(self, example: Document) -> tuple[mentions.Ints, mentions.Ints]:
        lengths = [len(words) for words in example.sentences]
        return mentions.candidates(lengths, self.options.longest)

    def forward(self, batch: Batch[Document]) -> dict[str, Tensor]:
        """Scores of all spans (N), the numbers of those kept (M), of their antecedents (M, 1+K).

        The documents' spans stand one after the other. Column 0 is for no antecedent, column c for
        the kept span c places before; -inf where there is none in the document.
        """
        (texts,) = batch.texts
        inputs = self.dropout_input(self.inputs(texts))  # (S, T, D)
        hidden = self.dropout_rnn(self.rnn(inputs, texts.lengths))
        hidden = flatten(self.inputs.after(hidden, texts), texts.lengths).float()  # (W, H)
        heads = flatten(inputs[..., : self.head_width], texts.lengths).float()
        sizes = [self.size(example) for example in batch.examples]
        scores, kept, antecedents, before = [], [], [], 0
        for example, own, head in zip(
            batch.examples, hidden.split(sizes), heads.split(sizes), strict=True
        ):
            names = list(dict.fromkeys(example.speakers))
            score, chosen, linked = self.network(
                own,
                head,
                [len(words) for words in example.sentences],
                [names.index(name) for name in example.speakers],
                self.genres.get(example.genre or NO_GENRE),
            )
            scores.append(score)
            kept.append(chosen + before)
            antecedents.append(linked)
            before += len(score)
        widest = max(linked.shape[1] for linked in antecedents)
        padded = [
            nn.functional.pad(linked, (0, widest - linked.shape[1]), value=float("-inf"))
            for linked in antecedents
        ]
        return {
            "mentions": torch.cat(scores),
            "kept": torch.cat(kept),
            "antecedents": torch.cat(padded),
        }

    def loss(self, batch: Batch[Document], outputs: Mapping[str, Tensor]) -> Tensor:
        """Minus the log-likelihood of a document's right antecedents, and of its mentions."""
        clusters, scores = batch.gold["clusters"], outputs["mentions"]
        linked = mentions.marginal_loss(outputs["antecedents"], clusters[outputs["kept"]])
        # With a weight of 0 it is there for documents of one kept span, whose loss is a constant.
        told = nn.functional.binary_cross_entropy_with_logits(
            scores, (clusters > 0).to(scores), reduction="sum"
        )
        return (linked + self.options.mention_loss * told) / len(batch.examples)

    def decode(self, batch: Batch[Document], outputs: Mapping[str, Tensor]) -> list[Clusters]:
        """Join each kept span with its best antecedent."""
        spans = [np.stack(self._candidates(example)) for example in batch.examples]
        owners = np.repeat(np.arange(len(spans)), [part.shape[1] for part in spans])
        kept = outputs["kept"].cpu().numpy()
        places = list(map(tuple, np.concatenate(spans, axis=1).T[kept].tolist()))
        found: list[list[tuple[tuple[int, int], ...]]] = [[] for _ in batch.examples]
        for group in mentions.link(outputs["antecedents"].argmax(dim=1).tolist()):
            document = owners[kept[group[0]]]
            found[document].append(tuple(places[mention] for mention in group))
        return [tuple(clusters) for clusters in found]

    def average(self, outputs: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Average the probabilities of antecedents, over the spans that most networks kept.

        Two spans that cross are not both kept by a network, nor by more than half of them. Where a
        network did not keep a span it says that there is no antecedent.
        """
        if len({one["mentions"].shape for one in outputs}) != 1:
            raise InputError(
                "the networks read spans of different lengths: they do not go together"
            )
        scores = torch.stack([one["mentions"] for one in outputs]).mean(dim=0)
        votes = torch.zeros_like(scores)
        for one in outputs:
            votes[one["kept"]] += 1
        kept = (2 * votes > len(outputs)).nonzero().squeeze(1)
        number = torch.full_like(votes, -1, dtype=torch.long)
        number[kept] = torch.arange(len(kept), device=kept.device)
        links = []
        for one in outputs:
            shares = one["antecedents"].softmax(dim=1)
            rows, columns = (one["antecedents"][:, 1:] > float("-inf")).nonzero(as_tuple=True)
            later, earlier = number[one["kept"][rows]], number[one["kept"][rows - columns - 1]]
            both = (later >= 0) & (earlier >= 0)
            links.append((later[both], earlier[both], shares[rows, columns + 1][both]))
        widest = max(
            int((later - earlier).amax()) if len(later) else 0 for later, earlier, _ in links
        )
        joined = scores.new_zeros(len(kept), 1 + widest)
        for later, earlier, share in links:
            joined[later, later - earlier] += share / len(outputs)
        joined[:, 0] = 1 - joined[:, 1:].sum(dim=1)
        return {"mentions": scores, "kept": kept, "antecedents": joined.clamp(min=0).log()}

    def score(
        self, examples: Sequence[Document], predictions: Sequence[Clusters]
    ) -> dict[str, float]:
        """F1 of MUC, B-cubed, CEAF and of mentions, and the mean of the first three."""
        if not self.reader.singletons:
            examples = [example.without_singletons() for example in examples]
        found = coref_scores([example.clusters for example in examples], predictions)
        return {
            "f1": found.mean,
            "muc": found.muc.f1,
            "b3": found.b3.f1,
            "ceafe": found.ceafe.f1,
            "mentions": found.mentions.f1,
        }

    def example(self, texts: Sequence[Words]) -> Document:
        """A document of sentences, without clusters."""
        return Document("", tuple(texts), ("",) * len(texts), ())

    def parse(self, text: str) -> Parsed[Document]:
        """Split raw text into sentences and words."""
        sentences = []
        for sentence in split_sentences(text):
            tokens = [
                Token(word, sentence.start + start, sentence.start + end)
                for word, start, end in self.tokenizer(sentence.text)
            ]
            if tokens:
                sentences.append(tuple(tokens))
        words = [tuple(token.text for token in tokens) for tokens in sentences]
        return Parsed(self.example(words), text, tuple(sentences))

    def parse_file(self, path: str) -> list[Parsed[Document]] | None:
        """Read documents in CoNLL-2012's columns, which begin with `#begin document`."""
        with open(path, "rb") as stream:
            begin = stream.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()
        if not begin.startswith((b"#begin document", b"# begin document")):
            return None
        return [self.present(document) for document in read_documents(path)]

    def take(self, words: Sequence[str]) -> Parsed[Document]:
        """Make a document of one sentence whose words are known."""
        return self.present(self.example([tuple(words)]))

    def present(self, document: Document) -> Parsed[Document]:
        """Write a document out, a sentence a line, so that it can be shown."""
        sentences, lines, place = [], [], 0
        for words in document.sentences:
            tokens = []
            for word in words:
                tokens.append(Token(word, place, place + len(word)))
                place += len(word) + 1
            sentences.append(tuple(tokens))
            lines.append(" ".join(words))
        return Parsed(document, "\n".join(lines), tuple(sentences))

    def show(self, parsed: Parsed[Document], prediction: Clusters) -> str:
        """Number the clusters' mentions in the text, and list them below it; its name comes first.

        "Mara came. She sat." -> "[1 Mara] came. [1 She] sat.", "1: Mara | She"
        """
        text, places = parsed.text, _places(parsed, prediction)
        found = [(start, end, n) for n, spans in enumerate(places, 1) for start, end in spans]
        # At one place: what closes before what opens, inner before outer, outer before inner.
        marks = [(end, 0, -start, "]") for start, end, _ in found]
        marks += [(start, 1, -end, f"[{n} ") for start, end, n in found]
        out, done = [], 0
        for place, _, _, mark in sorted(marks):
            out += [text[done:place], mark]
            done = place
        lists = [
            f"{n}: " + " | ".join(" ".join(text[start:end].split()) for start, end in spans)
            for n, spans in enumerate(places, 1)
        ]
        name = [f"# {parsed.example.name}"] if parsed.example.name else []
        marked = "".join([*out, text[done:]]).strip()
        return "\n".join([*name, marked, "", *(lists or ["no clusters"])])

    def describe(self, parsed: Parsed[Document], prediction: Clusters) -> Json:
        """Sentences, and clusters of mentions with their text, words and characters."""
        return {
            "name": parsed.example.name,
            "text": parsed.text,
            "sentences": [list(words) for words in parsed.example.sentences],
            "clusters": [
                [
                    {
                        "text": parsed.text[start:end],
                        "start": start,
                        "end": end,
                        "words": list(span),
                    }
                    for (start, end), span in zip(places, spans, strict=True)
                ]
                for places, spans in zip(_places(parsed, prediction), prediction, strict=True)
            ],
        }

    def _shorten(self, document: Document) -> Document:
        spare = len(document.sentences) - self.options.sentences
        if spare <= 0:
            return document
        first = int(torch.randint(spare + 1, ()))
        return mentions.cut(document, first, self.options.sentences)


def _places(parsed: Parsed[Document], clusters: Clusters) -> list[list[tuple[int, int]]]:
    """Return where mentions stand in the text, in characters."""
    tokens = [token for sentence in parsed.tokens for token in sentence]
    return [[(tokens[s].start, tokens[e - 1].end) for s, e in cluster] for cluster in clusters]
