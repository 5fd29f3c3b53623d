"""What a task's network reads of a text: encoders behind one protocol, side by side.

1. `WordVectors`: GloVe or other static vectors, fixed or tuned, or a table that is learned.
2. `WordCharacters`: the task's own character CNN.
3. `Contextual`: a mix of a frozen biLM's layers (ELMo; TagLM is its kind "top").
4. `Cove`: the frozen LSTM of a translator over static vectors (CoVe).

`Inputs` joins them at the input and adds a second, separately weighted mix at the output of the
task's RNN. An encoder turns words into tensors on the host (`prepare`) and those into vectors on
the device (`forward`); what it learns is saved with the task, so is CoVe's LSTM, the biLM is not.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from torchelmo.config import Json
from torchelmo.errors import InputError
from torchelmo.formats import cove
from torchelmo.formats.files import strip_ascii
from torchelmo.nn.output import Layers
from torchelmo.nn.scalar_mix import EPSILON, LayerNorm, ScalarMix
from torchelmo.tasks.data import LayerStore, Texts
from torchelmo.tasks.modules import BiLstm, VariationalDropout
from torchelmo.tasks.packing import pad
from torchelmo.tasks.readers.examples import Words
from torchelmo.tasks.recipe import (
    CharactersRecipe,
    CoveRecipe,
    ElmoRecipe,
    Recipe,
    WordsRecipe,
)
from torchelmo.tasks.vectors import StaticVectors

Vocabularies = Mapping[str, tuple[str, ...]]  # lists of words, characters, labels, by name
WORDS, CHARACTERS = "words", "characters"
SEEN = 1e6  # tokens; later ones then count a little more than earlier ones


class TextEncoder(nn.Module, ABC):
    """From the words of a batch to vectors (B, T, width)."""

    width: int

    @abstractmethod
    def prepare(self, texts: Sequence[Words]) -> dict[str, Tensor]:
        """Return what `forward` needs, made on the host; the keys are the encoder's own."""

    @abstractmethod
    def forward(self, texts: Texts) -> Tensor:
        """Return vectors (B, T, width), of any value at padding."""


class Numbers(dict[str, int]):
    """Numbers of words, each made when the word first comes; lists of words are then quick."""

    def __init__(self, make: Callable[[str], int]) -> None:
        super().__init__()
        self.make = make

    def __missing__(self, word: str) -> int:
        number = self[word] = self.make(word)
        return number

    def fill(self, out: npt.NDArray[np.int64], texts: Sequence[Words]) -> None:
        """Write the numbers of texts into the rows of (B, T)."""
        for row, words in zip(out, texts, strict=True):
            row[: len(words)] = list(map(self.__getitem__, words))


class WordVectors(TextEncoder):
    """Static vectors: rows of a table for the data's words, a file's vectors for the others."""

    def __init__(
        self,
        recipe: WordsRecipe,
        words: Sequence[str],
        vectors: StaticVectors | None,
        width: int | None = None,
    ) -> None:
        """Take the words that have a row, and the file's vectors, or the width of a saved table."""
        super().__init__()
        self.tuned = recipe.tuned or recipe.vectors is None
        self.outside = None if recipe.closed else vectors
        self.facts = None if vectors is None else vectors_facts(vectors)
        self.rows = {word: row for row, word in enumerate(words, 1)}
        self.width = width or recipe.dim if vectors is None else vectors.matrix.shape[1]
        table = torch.zeros(1 + len(words), self.width)  # row 0: unknown
        if vectors is None:
            nn.init.normal_(table[1:], std=0.1)
        elif words:
            table[1:] = torch.from_numpy(vectors.matrix[[vectors.rows[w] for w in words]])
        self.table = nn.Parameter(table, requires_grad=self.tuned)
        self.dropout = VariationalDropout(recipe.dropout)
        self._numbers = Numbers(self._find)
        self._device_matrix: Tensor | None = None  # the file's vectors on a GPU

    @staticmethod
    def collect(
        recipe: WordsRecipe, texts: Iterable[Words], vectors: StaticVectors | None
    ) -> list[str]:
        """Return the words that get a row, as the vectors' file spells them."""
        if vectors is not None and not (recipe.tuned or recipe.closed):
            return []
        counts = Counter(word for words in texts for word in words)
        kept: dict[str, None] = {}
        for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            if count < recipe.min_count:
                break
            spelt = word if vectors is None else _spelt(vectors, word)
            if spelt is not None and _writable(spelt):
                kept[spelt] = None
        if vectors is not None and recipe.closed:
            first = list(vectors.rows)[: recipe.common]
            kept.update(dict.fromkeys(word for word in first if _writable(word)))
        return list(kept)

    def prepare(self, texts: Sequence[Words]) -> dict[str, Tensor]:
        """Rows of the table (B, T); -1 - row of the file for words that are there alone."""
        ids = np.zeros((len(texts), max(map(len, texts))), np.int64)
        self._numbers.fill(ids, texts)
        out = {"words.rows": torch.from_numpy(np.maximum(ids, 0))}
        if (ids < 0).any():
            out["words.others"] = torch.from_numpy(np.maximum(-ids, 0))  # 0: none, else row + 1
        return out

    def forward(self, texts: Texts) -> Tensor:
        """Look up."""
        vectors = self.table[texts.fields["words.rows"]]  # (B, T, D)
        others = texts.fields.get("words.others")
        if others is not None:
            found = self._from_file((others - 1).clamp(min=0)).to(vectors)
            vectors = torch.where(others.unsqueeze(2) > 0, found, vectors)
        dropped: Tensor = self.dropout(vectors)
        return dropped

    def _find(self, word: str) -> int:
        """Return a word's row in the table, 0 if none, or -1 - its row in the file."""
        if self.outside is None:
            return self.rows.get(word) or self.rows.get(word.lower(), 0)
        row = self.rows.get(_spelt(self.outside, word) or "", 0)
        other = None if row else self.outside.find(word)
        return row if other is None else -1 - other

    def _from_file(self, rows: Tensor) -> Tensor:
        """Return vectors of the file; a GPU has all of them, a host reads those it needs."""
        assert self.outside is not None
        if rows.device.type == "cpu":
            return torch.from_numpy(np.asarray(self.outside.matrix[rows.numpy()]))
        if self._device_matrix is None or self._device_matrix.device != rows.device:
            self._device_matrix = torch.from_numpy(np.array(self.outside.matrix)).to(rows.device)
        return self._device_matrix[rows]


class WordCharacters(TextEncoder):
    """A CNN over a word's characters: each filter's largest value, then relu."""

    def __init__(self, recipe: CharactersRecipe, characters: Sequence[str]) -> None:
        super().__init__()
        self.ids = {character: n for n, character in enumerate(characters, 2)}  # 0 none, 1 unknown
        self.least, self.most = recipe.width, max(recipe.max_characters, recipe.width)
        self.width = recipe.filters
        self.table = nn.Embedding(2 + len(characters), recipe.dim, padding_idx=0)
        self.filters = nn.Conv1d(recipe.dim, recipe.filters, recipe.width, padding=recipe.width - 1)
        self.dropout = VariationalDropout(recipe.dropout)
        self._numbers = Numbers(self._spell)
        self._spelt = np.zeros((1024, self.most), np.int64)  # rows of words met so far

    @staticmethod
    def collect(texts: Iterable[Words]) -> list[str]:
        """Return the characters of the data, the most frequent first."""
        words = Counter(word for text in texts for word in text)
        counts: Counter[str] = Counter()
        for word, count in words.items():
            for character in word:
                counts[character] += count
        order = sorted(counts, key=lambda character: (-counts[character], character))
        return [character for character in order if _writable(character)]

    def prepare(self, texts: Sequence[Words]) -> dict[str, Tensor]:
        """Spell the batch's distinct words, (U, C), and say which stands where, (B, T)."""
        index = np.full((len(texts), max(map(len, texts))), self._numbers[texts[0][0]], np.int64)
        self._numbers.fill(index, texts)
        distinct, places = np.unique(index, return_inverse=True)
        spelt = self._spelt[distinct]
        longest = int((spelt != 0).sum(axis=1).max())
        return {
            "characters.spelt": torch.from_numpy(spelt[:, : max(longest, self.least)]),
            "characters.index": torch.from_numpy(places.reshape(index.shape)),
        }

    def forward(self, texts: Texts) -> Tensor:
        """Run the filters once a distinct word."""
        spelt = texts.fields["characters.spelt"]
        windows = self.filters(self.table(spelt).transpose(1, 2))  # (U, filters, C + width - 1)
        # Windows behind the word would give the bias, in batches with longer words alone.
        touched = (spelt != 0).sum(dim=1, keepdim=True) + self.least - 1
        beyond = torch.arange(windows.shape[2], device=spelt.device) >= touched
        windows = windows.masked_fill(beyond.unsqueeze(1), float("-inf"))
        found = windows.amax(dim=2).relu()  # (U, filters)
        dropped: Tensor = self.dropout(found[texts.fields["characters.index"]])
        return dropped

    def _spell(self, word: str) -> int:
        """Write a word's characters into the next row, and return its number."""
        number = len(self._numbers)
        if number == len(self._spelt):
            self._spelt = np.concatenate([self._spelt, np.zeros_like(self._spelt)])
        ids = [self.ids.get(character, 1) for character in word[: self.most]]
        self._spelt[number, : len(ids)] = ids
        return number


class Cove(TextEncoder):
    """The top layer of a translator's LSTM, frozen, over the vectors as they are in their file."""

    def __init__(
        self,
        recipe: CoveRecipe,
        vectors: StaticVectors | None,
        weights: Mapping[str, Tensor] | None,
    ) -> None:
        """Take the vectors, and the LSTM's weights or, to be loaded with the task, none."""
        super().__init__()
        if vectors is None or vectors.matrix.shape[1] != cove.INPUT:
            given = "none" if vectors is None else f"{vectors.name} with {vectors.matrix.shape[1]}"
            raise InputError(
                f"CoVe reads word vectors of {cove.INPUT} dimensions (GloVe 840B) and was given "
                f"{given}: name their file as words.vectors or cove.vectors"
            )
        self.vectors, self.facts = vectors, vectors_facts(vectors)
        self.rnn = BiLstm(cove.INPUT, cove.CELLS, cove.LAYERS)
        if weights is not None:
            self.rnn.lstm.load_state_dict(dict(weights))
        self.rnn.requires_grad_(False)
        self.width = self.rnn.width
        self.dropout = VariationalDropout(recipe.dropout)

    def prepare(self, texts: Sequence[Words]) -> dict[str, Tensor]:
        """The words' vectors (B, T, 300), zero for a word that has none."""
        values = np.zeros((len(texts), max(map(len, texts)), cove.INPUT), np.float32)
        for b, words in enumerate(texts):
            rows = [self.vectors.find(word) for word in words]
            known = [(t, row) for t, row in enumerate(rows) if row is not None]
            if known:
                places, found = zip(*known, strict=True)
                values[b, list(places)] = self.vectors.matrix[list(found)]
        return {"cove.vectors": torch.from_numpy(values)}

    def forward(self, texts: Texts) -> Tensor:
        """Run the LSTM."""
        with torch.no_grad():
            found = self.rnn(texts.fields["cove.vectors"], texts.lengths)
        dropped: Tensor = self.dropout(found)
        return dropped


class LayerStatistics(nn.Module):
    """Layer normalisation with the batch's mean and variance in training, as the originals have it.

    The originals take those of the batch in prediction as well, where a text's vectors then depend
    on the texts beside it. Here they are those of all that was seen in training.
    """

    seen: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, layers: int, kind: LayerNorm) -> None:
        super().__init__()
        self.kind: LayerNorm = kind
        self.register_buffer("seen", torch.zeros(1))  # tokens
        self.register_buffer("mean", torch.zeros(layers, 1, 1))
        self.register_buffer("variance", torch.zeros(layers, 1, 1))

    def forward(self, layers: Layers) -> Layers:
        """Normalise each layer."""
        if self.training:
            counted = layers.flat
            if self.kind == "tf" and layers.boundaries:
                counted = counted[:, layers.inner()]
            variance, mean = torch.var_mean(counted, dim=(1, 2), correction=0, keepdim=True)
            self._remember(mean, variance, counted.shape[1])
        else:
            mean, variance = self.mean, self.variance
        flat = (layers.flat - mean) * torch.rsqrt(variance + EPSILON[self.kind])
        return replace(layers, flat=flat)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Join a batch's statistics to those before; float32 counts well up to SEEN."""
        before = self.seen.clamp(max=SEEN)
        share = count / (before + count)
        joined = self.mean + share * (mean - self.mean)
        spread = (1 - share) * (self.variance + (self.mean - joined).square())
        self.variance.copy_(spread + share * (variance + (mean - joined).square()))
        self.mean.copy_(joined)
        self.seen.copy_(before + count)


class Contextual(TextEncoder):
    """A mix of the biLM's layers, which the batch carries; s and gamma learn, the biLM does not."""

    def __init__(self, recipe: ElmoRecipe, layers: int, width: int) -> None:
        super().__init__()
        self.width, self.penalty = width, recipe.penalty
        self.mix = ScalarMix(layers, kind=recipe.kind, dropout=recipe.dropout)
        self.norm = None
        if recipe.layer_norm is not None:
            self.norm = LayerStatistics(layers, recipe.layer_norm)

    def prepare(self, texts: Sequence[Words]) -> dict[str, Tensor]:
        """Nothing: the layers come from the store."""
        return {}

    def forward(self, texts: Texts) -> Tensor:
        """Mix the batch's layers."""
        layers = texts.layers
        if layers is None:
            raise InputError("this network mixes a biLM's layers and the batch has none")
        with torch.autocast(layers.flat.device.type, enabled=False):
            if self.norm is not None:
                layers = cast(Layers, self.norm(layers))
            mixed: Tensor = self.mix(layers)  # (N, D)
        if layers.boundaries:
            mixed, layers = mixed[layers.inner()], layers.strip()
        return pad(mixed, layers.lengths)

    def regularizer(self) -> Tensor:
        """Return lambda * |w|^2."""
        return self.penalty * self.mix.penalty()


class Inputs(nn.Module):
    """All that is read of a text, joined at the input and at the output of the task's RNN."""

    def __init__(
        self,
        encoders: Mapping[str, TextEncoder],
        output: Contextual | None = None,
        store: LayerStore | None = None,
    ) -> None:
        super().__init__()
        if not encoders:
            raise InputError(
                "the network reads nothing: give the recipe a section words, characters, cove or "
                "elmo"
            )
        self.encoders = nn.ModuleDict(dict(encoders))
        self.output = output
        self.width = sum(encoder.width for encoder in encoders.values())
        self.output_width = 0 if output is None else output.width  # what `after` adds
        self.store = store

    def prepare(self, texts: Sequence[Words]) -> Texts:
        """Make a batch of texts on the host; their layers are put where the store keeps them."""
        fields: dict[str, Tensor] = {}
        for encoder in self._each():
            fields.update(encoder.prepare(texts))
        layers = None if self.store is None else self.store.layers(texts)
        return Texts(tuple(texts), fields, layers)

    def forward(self, texts: Texts) -> Tensor:
        """Return the joined vectors (B, T, width), zero at padding."""
        joined = torch.cat([encoder(texts) for encoder in self._each()], dim=2)
        return joined * texts.mask.unsqueeze(2)

    def after(self, hidden: Tensor, texts: Texts) -> Tensor:
        """Add the second mix to the output of a task's RNN: (B, T, H) -> (B, T, H+output_width)."""
        if self.output is None:
            return hidden
        mixed = self.output(texts)
        return torch.cat([hidden, mixed.to(hidden.dtype)], dim=2)

    def mixes(self) -> dict[str, ScalarMix]:
        """Return the mixes by place: "input", "output"."""
        return {place: contextual.mix for place, contextual in self._contextual()}

    def static_facts(self) -> Json | None:
        """Return what tells the static vectors from others, or the width of their table."""
        facts: Json | None = None
        for encoder in self._each():
            if isinstance(encoder, WordVectors):
                facts = encoder.facts or {"width": encoder.width}
            elif isinstance(encoder, Cove):  # the same file; a table beside it may have none
                facts = encoder.facts
        return facts

    def regularizer(self) -> Tensor | None:
        """Return lambda * |w|^2 over all mixes, never over gamma; None where there are none."""
        penalties = [contextual.regularizer() for _, contextual in self._contextual()]
        return torch.stack(penalties).sum() if penalties else None

    def _each(self) -> Iterator[TextEncoder]:
        for encoder in self.encoders.values():
            yield cast(TextEncoder, encoder)

    def _contextual(self) -> Iterator[tuple[str, Contextual]]:
        for encoder in self._each():
            if isinstance(encoder, Contextual):
                yield "input", encoder
        if self.output is not None:
            yield "output", self.output


def collect(
    recipe: Recipe, texts: Iterable[Words], vectors: StaticVectors | None
) -> dict[str, tuple[str, ...]]:
    """Return the vocabularies that the recipe's encoders need, from the training texts."""
    texts = list(texts)
    out: dict[str, tuple[str, ...]] = {}
    if recipe.words is not None:
        own = None if recipe.words.vectors is None else vectors
        out[WORDS] = tuple(WordVectors.collect(recipe.words, texts, own))
    if recipe.characters is not None:
        out[CHARACTERS] = tuple(WordCharacters.collect(texts))
    return out


def make_inputs(
    recipe: Recipe,
    vocabularies: Vocabularies,
    vectors: StaticVectors | None,
    store: LayerStore | None,
    word_width: int | None = None,
    saved: bool = False,
) -> Inputs:
    """Make the encoders that a recipe asks for.

    `word_width` is that of a saved table; weights that are `saved` with the task are not read.
    """
    encoders: dict[str, TextEncoder] = {}
    if recipe.words is not None:
        own, width = (None, None) if recipe.words.vectors is None else (vectors, word_width)
        encoders[WORDS] = WordVectors(recipe.words, listed(vocabularies, WORDS), own, width)
    if recipe.characters is not None:
        encoders[CHARACTERS] = WordCharacters(recipe.characters, listed(vocabularies, CHARACTERS))
    if recipe.cove is not None:
        weights = None if saved else cove.read(recipe.cove.weights)
        encoders["cove"] = Cove(recipe.cove, vectors, weights)
    output = None
    if recipe.bilm is not None:
        if store is None:
            raise InputError("the recipe asks for ELMo: give the biLM")
        layers, width = store.elmo.config.n_layers, store.elmo.config.width
        if recipe.bilm.where in ("input", "both"):
            encoders["elmo"] = Contextual(recipe.bilm, layers, width)
        if recipe.bilm.where in ("output", "both"):
            output = Contextual(recipe.bilm, layers, width)
    return Inputs(encoders, output, store if recipe.bilm is not None else None)


def listed(vocabularies: Vocabularies, name: str) -> tuple[str, ...]:
    """Return one of the vocabularies."""
    if name not in vocabularies:
        raise InputError(f"there is no list {name!r} among {', '.join(vocabularies) or 'none'}")
    return vocabularies[name]


def load_vectors(recipe: Recipe) -> StaticVectors | None:
    """Read the static vectors that a recipe names."""
    return None if recipe.vectors is None else StaticVectors.load(recipe.vectors)


def vectors_facts(vectors: StaticVectors) -> Json:
    """Return what tells static vectors from others: how many, how wide, a sum over some rows."""
    some = np.ascontiguousarray(vectors.matrix[:: max(len(vectors.matrix) // 1000, 1)])
    return {
        "words": len(vectors.rows),
        "width": int(vectors.matrix.shape[1]),
        "check": zlib.crc32(some.astype("<f4").tobytes()),
    }


def _spelt(vectors: StaticVectors, word: str) -> str | None:
    return next((form for form in (word, word.lower()) if form in vectors.rows), None)


def _writable(word: str) -> bool:
    """Whether a line of a text file can hold a word."""
    if not word or strip_ascii(word) != word or "\n" in word or "\r" in word:
        return False
    return not any("\ud800" <= character <= "\udfff" for character in word)
