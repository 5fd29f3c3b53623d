"""Elmo: a pretrained biLM in a user's hands.

    elmo = Elmo.from_pretrained("folder-or-name")
    vectors = elmo.embed(["My watch was a birthday gift", "He has a gift for music"])

As a part of a larger network the biLM is frozen unless `requires_grad=True`, and each mix learns
its layer weights and gamma.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from torchelmo import scoring
from torchelmo.encoder import Batch, Encoder
from torchelmo.errors import InputError
from torchelmo.formats import load, native
from torchelmo.formats.model import Model
from torchelmo.formats.tensors import Stored
from torchelmo.neighbours import Neighbour, nearest_tokens, nearest_words
from torchelmo.nn.host import apart, arrays
from torchelmo.nn.lstm import State
from torchelmo.nn.output import Layers
from torchelmo.nn.scalar_mix import LayerNorm, ScalarMix
from torchelmo.ops import threads
from torchelmo.ops.packed import Precision, check_precision
from torchelmo.scoring import Perplexity, SentenceScore, Substitute
from torchelmo.text.characters import Characters
from torchelmo.text.vocabulary import Vocabulary
from torchelmo.text.words import Token, Tokenizer, get_tokenizer

Array = npt.NDArray[np.float32]
Piece = TypeVar("Piece")
Sentences = str | Sequence[str] | Sequence[Sequence[str]]
MixKind = Literal["learned", "average", "top"] | int


@dataclass(frozen=True)
class ElmoOutput:
    """One pass: each mix as padded (B, T, D), the mask (B, T), and the layers themselves."""

    mixes: list[Tensor]
    mask: Tensor
    layers: Layers


class Elmo(nn.Module):
    """A biLM with its spelling, vocabulary and layer mixes. Make one with `from_pretrained`."""

    def __init__(
        self,
        model: Model,
        *,
        mixes: int | Sequence[ScalarMix] = 1,
        kind: MixKind = "learned",
        dropout: float = 0.0,
        layer_norm: LayerNorm | None = None,
        requires_grad: bool = False,
        escape_boundaries: bool = False,
        precision: Precision = "float32",
    ) -> None:
        """Build the network around a model read from files.

        Args:
            model: what `formats` read.
            mixes: how many mixes of the layers each pass gives, or the mixes themselves.
            kind: "learned", "average", "top" or a layer's number, for mixes made here.
            dropout: on each mix, while training.
            layer_norm: None, "tf" or "allennlp" (see `ScalarMix`).
            requires_grad: train the biLM too; otherwise it is frozen.
            escape_boundaries: spell the words `<S>` and `</S>` rather than take them as boundaries.
            precision: of matrix products where no gradients are wanted: "float32", or "bf16" and
                (on a CPU) "int8", which take less time and round more. Results are float32.
        """
        super().__init__()
        config = model.config
        characters = None
        if config.characters is not None:
            characters = Characters(config.characters, model.alphabet, config.boundaries)
        words = None if model.words is None else Vocabulary(model.words)
        self.config = config
        self.bilm = model.build()
        self.encoder = Encoder(self.bilm, characters, words, escape_boundaries=escape_boundaries)
        self.vocabulary = None if model.vocabulary is None else Vocabulary(model.vocabulary)
        self.softmax = model.build_softmax()
        if self.softmax is not None:
            self.softmax.requires_grad_(False)
        self.bilm.requires_grad_(requires_grad)
        self.requires_grad = requires_grad
        self.bilm.precision = precision
        self.alphabet, self.input_words = tuple(model.alphabet), model.words
        self.attribution = model.attribution
        if isinstance(mixes, int):
            learned = dict(model.mixes)
            made = [
                ScalarMix(config.n_layers, kind=kind, dropout=dropout, layer_norm=layer_norm)
                for _ in range(mixes)
            ]
            for number, mix in enumerate(made):
                _restore(mix, learned, number)
            mixes = made
        self.mixes = nn.ModuleList(mixes)
        self._tokenizer: Tokenizer | None = None

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path | None = None,
        *,
        options: str | Path | None = None,
        weights: str | Path | None = None,
        vocabulary: str | Path | None = None,
        softmax: str | Path | None = None,
        mixes: int | Sequence[ScalarMix] = 1,
        kind: MixKind = "learned",
        dropout: float = 0.0,
        layer_norm: LayerNorm | None = None,
        requires_grad: bool = False,
        escape_boundaries: bool = False,
        precision: Precision = "float32",
        device: str | torch.device | None = None,
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        offline: bool | None = None,
    ) -> Elmo:
        """Load a model and put it on a device (None: cuda, mps or cpu, the first that is there).

        `name` is a packaged or published model's name, a folder or archive of any known format, or
        a hub id; or give the `options` and `weights` files of the original programs. See `__init__`
        for the mixes and the precision.
        """
        chosen = pick_device(device)
        check_precision(precision, chosen)
        model = load.load(
            name,
            options=options,
            weights=weights,
            vocabulary=vocabulary,
            softmax=softmax,
            revision=revision,
            cache_dir=cache_dir,
            offline=offline,
        )
        elmo = cls(
            model,
            mixes=mixes,
            kind=kind,
            dropout=dropout,
            layer_norm=layer_norm,
            requires_grad=requires_grad,
            escape_boundaries=escape_boundaries,
            precision=precision,
        )
        return elmo.to(chosen)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.encoder.device

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokeniser of raw sentences, by the model's config."""
        if self._tokenizer is None:
            self._tokenizer = get_tokenizer(self.config.tokenizer.name)
        return self._tokenizer

    def tokenize(self, text: str) -> list[Token]:
        """Return the words of a raw sentence with their offsets into it."""
        return self.tokenizer(text)

    def words(self, sentences: Sentences) -> list[list[str]]:
        """Return lists of words: a string is one raw sentence, a list of words stays as it is."""
        if isinstance(sentences, str):
            return [self.tokenizer.words(sentences)]
        out: list[list[str]] = []
        for number, sentence in enumerate(sentences):
            words = self.tokenizer.words(sentence) if isinstance(sentence, str) else list(sentence)
            if set(map(type, words)) - {str}:
                for word in words:
                    if not isinstance(word, str):
                        raise InputError(
                            f"sentence {number} holds {word!r}: give a text, or a list of words"
                        )
            out.append(words)
        return out

    def batch(self, sentences: Sentences) -> Batch:
        """Prepare sentences for `forward`."""
        return self.encoder.batch(self.words(sentences))

    def forward(self, batch: Batch, *, state: State | None = None) -> ElmoOutput:
        """Run the biLM and mix its layers; gradients reach the biLM only with `requires_grad`."""
        batch = batch.to(next(self.bilm.parameters()).device)
        wide = any(cast(ScalarMix, mix).layer_norm == "allennlp" for mix in self.mixes)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.requires_grad):
            vectors = self.bilm.token(batch.characters, batch.words)
            layers: Layers = self.bilm(
                vectors, batch.index, batch.lengths, state=state, boundaries=wide
            )
        inner = layers.strip()
        mixes = []
        for mix in self.mixes:
            mixed = mix(layers)
            mixes.append(inner.pad(mixed[layers.inner()] if wide else mixed))
        return ElmoOutput(mixes, inner.mask, inner)

    def regularizer(self, strength: float) -> Tensor:
        """Return strength * sum of w^2 over the raw weights of all mixes, never over gamma."""
        return strength * torch.stack([cast(ScalarMix, m).penalty() for m in self.mixes]).sum()

    @overload
    def layers(
        self,
        sentences: Sentences,
        *,
        state: State | None = None,
        batch_tokens: int | None = None,
        as_tensors: Literal[False] = False,
    ) -> list[Array]: ...
    @overload
    def layers(
        self,
        sentences: Sentences,
        *,
        state: State | None = None,
        batch_tokens: int | None = None,
        as_tensors: Literal[True],
    ) -> list[Tensor]: ...
    def layers(
        self,
        sentences: Sentences,
        *,
        state: State | None = None,
        batch_tokens: int | None = None,
        as_tensors: bool = False,
    ) -> list[Array] | list[Tensor]:
        """Return every layer of every sentence, one (L+1, T, D) a sentence, in order.

        Without `state` a sentence's vectors depend on that sentence alone. With it, sentence r
        continues where the state's row r stopped, as in the original programs.
        """
        words = self.words(sentences)
        batches = self.encoder.run(words, state=state, batch_tokens=batch_tokens)
        with threads.serial():
            if as_tensors:
                return _in_order(len(words), ((n, apart(layers)) for n, layers in batches))
            return _in_order(len(words), arrays(batches))

    @overload
    def embed(
        self,
        sentences: Sentences,
        *,
        mix: int = 0,
        state: State | None = None,
        batch_tokens: int | None = None,
        as_tensors: Literal[False] = False,
    ) -> list[Array]: ...
    @overload
    def embed(
        self,
        sentences: Sentences,
        *,
        mix: int = 0,
        state: State | None = None,
        batch_tokens: int | None = None,
        as_tensors: Literal[True],
    ) -> list[Tensor]: ...
    @torch.no_grad()
    def embed(
        self,
        sentences: Sentences,
        *,
        mix: int = 0,
        state: State | None = None,
        batch_tokens: int | None = None,
        as_tensors: bool = False,
    ) -> list[Array] | list[Tensor]:
        """Return the current mix, one (T, D) a sentence, in order: no dropout, no gradients.

        A mix with layer normalisation takes its statistics over the batch, so there the batch
        matters.
        """
        mixer = cast(ScalarMix, self.mixes[mix])
        wide = mixer.layer_norm == "allennlp"
        words = self.words(sentences)
        run = self.encoder.run(words, state=state, batch_tokens=batch_tokens, boundaries=wide)
        batches = (
            (numbers, Layers(mixer.mix(layers).unsqueeze(0), layers.lengths, wide).strip())
            for numbers, layers in run
        )
        with threads.serial():
            if as_tensors:
                pieces = _in_order(len(words), ((n, apart(layers)) for n, layers in batches))
                return [piece[0] for piece in pieces]
            return [piece[0] for piece in _in_order(len(words), arrays(batches))]

    def encode(
        self,
        sentences: Sentences,
        batch_size: int = 32,
        *,
        show_progress_bar: bool | None = None,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | torch.device | None = None,
        normalize_embeddings: bool = False,
    ) -> Array | Tensor:
        """Return sentence vectors, the mean of each sentence's word vectors: (n, D), or (D,) for a
        string.

        Takes sentence-transformers' arguments; a sentence without words gets zeros.
        """
        if device is not None:
            self.to(device)
        words = self.words(sentences)
        rows = []
        starts = range(0, len(words), batch_size)
        if show_progress_bar:
            from tqdm.auto import tqdm

            starts = cast(range, tqdm(starts, desc="Batches"))
        for start in starts:
            pieces = self.embed(words[start : start + batch_size], as_tensors=True)
            rows += [p.mean(dim=0) if len(p) else p.new_zeros(p.shape[-1]) for p in pieces]
        out = torch.stack(rows) if rows else torch.empty(0, self.config.width)
        if normalize_embeddings:
            out = torch.nn.functional.normalize(out, dim=1)
        if isinstance(sentences, str):
            out = out[0]
        return _numpy(out) if convert_to_numpy and not convert_to_tensor else out

    def neighbours(
        self,
        word: str,
        context: str | Sequence[str] | None = None,
        corpus: Sentences = (),
        *,
        count: int = 10,
        layer: int | None = None,
    ) -> list[Neighbour]:
        """Return who is near a word.

        Alone, the word is compared with the vocabulary before any context (the token layer). In a
        `context` sentence that holds it, its vector there is compared with every token of the
        `corpus` sentences: the current mix, or one `layer`.
        """
        if context is None:
            if self.vocabulary is None:
                raise InputError("this model has no vocabulary: give a context and a corpus")
            # Only the words; the two boundary rows in front are no neighbours.
            query = self.encoder.vectors([word])[2]
            table = self.encoder.vectors(list(dict.fromkeys(self.vocabulary.words)))[2:]
            known = list(dict.fromkeys(self.vocabulary.words))
            return nearest_words(query, table, known, count, without=word)
        (words,) = self.words([context])
        if word not in words:
            raise InputError(f"{word!r} is not a word of the context {' '.join(words)!r}")
        others = self.words(corpus)
        (own,), vectors = self._vectors([words], layer), self._vectors(others, layer)
        return nearest_tokens(own[words.index(word)], vectors, others, count)

    def score(self, sentences: Sentences) -> list[SentenceScore]:
        """Return the log probabilities of each sentence's words, from the left and from the right.

        Needs the model's softmax and vocabulary; so do `perplexity` and `substitutes`.
        """
        words = self.words(sentences)
        return scoring.log_probabilities(self.encoder, self.softmax, self.vocabulary, words)

    def perplexity(self, sentences: Sentences) -> Perplexity:
        """Return how well both language models predict the sentences, each from a zero state.

        Text whose sentences follow each other is scored by `torchelmo.perplexity`.
        """
        words = self.words(sentences)
        given = [sentences] if isinstance(sentences, str) else sentences
        raw = (s if isinstance(s, str) else " ".join(s) for s in given)
        return scoring.perplexity(self.encoder, self.softmax, self.vocabulary, words, raw=raw)

    def substitutes(
        self, sentence: str | Sequence[str], position: int | None = None, *, count: int = 10
    ) -> list[Substitute]:
        """Return the words that fit best in a gap, best first.

        The gap is `___` in the sentence ("He has a ___ for music"), or the word at `position`.
        """
        if position is None:
            left, right = scoring.around_gap(sentence)
            before, after = self.words([left, right])
            words, position = [*before, scoring.GAP, *after], len(before)
        else:
            (words,) = self.words([sentence])
        return scoring.substitutes(
            self.encoder, self.softmax, self.vocabulary, words, position, count
        )

    def _vectors(self, words: list[list[str]], layer: int | None) -> list[Tensor]:
        if layer is None:
            return self.embed(words, as_tensors=True)
        if not -self.config.n_layers <= layer < self.config.n_layers:
            raise InputError(
                f"layer {layer} of a model with layers 0 to {self.config.n_layers - 1}"
            )
        return [piece[layer] for piece in self.layers(words, as_tensors=True)]

    def to_model(self) -> Model:
        """Return config and tensors as `formats` writes them."""
        mixes = {
            f"{number}.{name}": tensor.detach().cpu()
            for number, mix in enumerate(self.mixes)
            for name, tensor in mix.state_dict().items()
        }
        softmax = None
        if self.softmax is not None:
            softmax = {name: t.detach().cpu() for name, t in self.softmax.state_dict().items()}
        return Model(
            config=self.config,
            tensors={name: t.detach().cpu() for name, t in self.bilm.state_dict().items()},
            vocabulary=None if self.vocabulary is None else self.vocabulary.words,
            words=self.input_words,
            alphabet=self.alphabet,
            softmax=softmax,
            mixes=mixes,
            attribution=self.attribution,
        )

    def save_pretrained(
        self,
        folder: str | Path,
        *,
        weights: native.Precision = "float32",
        softmax: Stored = "float32",
        overwrite: bool = False,
    ) -> None:
        """Write a native model folder with the biLM, its vocabulary and the learned mixes.

        `weights="float16"` and `softmax="int8"` take half and a quarter of the room, and round.
        """
        native.write(
            self.to_model(), Path(folder), weights=weights, softmax=softmax, overwrite=overwrite
        )

    def push_to_hub(self, repo_id: str, *, private: bool = False, token: str | None = None) -> str:
        """Write the model folder to the Hugging Face hub; return its address."""
        import tempfile

        from torchelmo.formats import hub

        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "model"
            self.save_pretrained(folder)
            return hub.push(folder, repo_id, private=private, token=token)


def pick_device(device: str | torch.device | None = None) -> torch.device:
    """Return the device asked for, or the first of cuda, mps and cpu that is there."""
    if device is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device {str(device)!r} cannot be used here: {reason}") from None
    return torch.device(device)


def _restore(mix: ScalarMix, learned: dict[str, Tensor], number: int) -> None:
    """Start a mix from the weights and gamma that were saved with the model."""
    with torch.no_grad():
        weights, gamma = learned.get(f"{number}.weights"), learned.get(f"{number}.gamma")
        if weights is not None and mix.weights is not None:
            mix.weights.copy_(weights)
        if gamma is not None:
            mix.gamma.copy_(gamma)


def _in_order(count: int, batches: Iterable[tuple[list[int], list[Piece]]]) -> list[Piece]:
    """Return the pieces of every sentence, by sentence number."""
    found: dict[int, Piece] = {}
    for numbers, pieces in batches:
        found.update(zip(numbers, pieces, strict=True))
    return [found[number] for number in range(count)]


def _numpy(tensor: Tensor) -> Array:
    return tensor.detach().cpu().numpy()
