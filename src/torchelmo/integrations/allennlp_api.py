"""AllenNLP's ELMo by its own names: change an import, keep the code.

`Elmo` and `batch_to_ids` are those of AllenNLP 2.10, `ElmoEmbedder` that of AllenNLP 0.9; no
AllenNLP is needed. Numbers are AllenNLP's, with its carried state (`state="carry"`) and its layer
normalisation, whose statistics count the boundary tokens.

Departures from AllenNLP:

* `state="reset"` starts every sentence from zero, so that a sentence has the same vectors whatever
  came before it. It is the better choice for new code.
* Models that AllenNLP refuses work: without skip connections, highways or projections, of one
  layer, with other than 50 characters a word (`batch_to_ids(batch, max_characters=...)`).
* An empty sentence gives (L+1, 0, D) for every D. Padding is zero after layer normalisation, too.
* With `vocab_to_cache` a word is padding if its number is 0; AllenNLP also lost words whose cached
  vector has no positive component.
* Words with gaps between them, or with id 0 inside a spelling, are an error; AllenNLP read on.
"""

from __future__ import annotations

import json
import os
import secrets
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Literal, TypedDict, cast

import h5py
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from torchelmo.config import CharacterConfig
from torchelmo.errors import InputError
from torchelmo.formats import allennlp, load
from torchelmo.formats.model import Model
from torchelmo.formats.published import PUBLISHED
from torchelmo.nn.lstm import State
from torchelmo.nn.output import Layers
from torchelmo.nn.scalar_mix import ScalarMix
from torchelmo.text.batching import WordTable
from torchelmo.text.characters import Characters

Array = npt.NDArray[np.float32]
StateChoice = Literal["carry", "reset"]
BLOCK = 128  # distinct words a call of the character CNN
DEFAULT_BATCH_SIZE = 64


class ElmoOutput(TypedDict):
    """What `Elmo` returns: one (B, T, D) tensor a mix, and which of them are words, (B, T)."""

    elmo_representations: list[Tensor]
    mask: Tensor


class BiLmOutput(TypedDict):
    """What the biLM returns: L+1 tensors (B, T+2, D) with boundaries, and their mask (B, T+2)."""

    activations: list[Tensor]
    mask: Tensor


def batch_to_ids(
    batch: Sequence[Sequence[str]],
    *,
    tokens_to_add: Mapping[str, int] | None = None,
    max_characters: int = 50,
) -> Tensor:
    """Spell sentences as character ids, (B, longest, 50), without boundaries; padding is 0.

    >>> batch_to_ids([["a", "gift"]], max_characters=7).tolist()
    [[[259, 98, 260, 261, 261, 261, 261], [259, 104, 106, 103, 117, 260, 261]]]

    `tokens_to_add` maps a word to the one id (below 261) that it is spelt with, as the argument of
    AllenNLP's `ELMoTokenCharactersIndexer`.
    """
    for sentence in batch:
        if isinstance(sentence, str):
            raise InputError(f"the sentence {sentence[:40]!r} is a text: give a list of words")
    # Spelling needs no filters; these fit any number of characters.
    spelling = Characters(CharacterConfig(max_characters=max_characters, filters=((1, 1),)))
    table = WordTable()
    numbers = [table.ids(sentence) for sentence in batch]
    rows = np.zeros((len(table) + 1, max_characters), dtype=np.int64)  # row 0: no word
    rows[1:] = spelling.encode(list(table))
    for word, character in (tokens_to_add or {}).items():
        if not 0 <= character < 261:
            raise InputError(f"the token {word!r} has the character id {character}, not 0 to 260")
        if word in table:
            rows[table[word] + 1] = spelling.boundary(end=False)
            rows[table[word] + 1, 1] = character + 1
    longest = max(map(len, numbers), default=0)
    places = np.zeros((len(numbers), longest), dtype=np.int64)
    for place, ids in zip(places, numbers, strict=True):
        place[: len(ids)] = ids + 1
    return torch.from_numpy(rows[places])


class _ElmoBiLm(nn.Module):
    """The biLM alone, with the state it carries; `Elmo` holds one as `_elmo_lstm`.

    `forward` gives every layer with its boundaries. `_elmo_lstm`, `stateful` and `reset_states` are
    where AllenNLP's users found the state.
    """

    _boundaries: Tensor  # (2, C): the spelling of <S> and of </S>
    _boundary_vectors: Tensor  # (2, P), with cached words

    def __init__(
        self,
        options_file: str | Path | None,
        weight_file: str | Path | None,
        requires_grad: bool = False,
        vocab_to_cache: Sequence[str] | None = None,
        *,
        state: StateChoice = "carry",
    ) -> None:
        super().__init__()
        if state not in ("carry", "reset"):
            raise InputError(f"state is 'carry' or 'reset', not {state!r}")
        model = _load(options_file, weight_file)
        characters = model.config.characters
        if characters is None or characters.scheme != "bytes" or model.config.words is not None:
            raise InputError(
                "AllenNLP's interface takes words as bytes, which this model does not read: use "
                "torchelmo.Elmo"
            )
        spelling = Characters(characters)
        self.bilm = model.build().requires_grad_(requires_grad)
        self.num_layers = model.config.n_layers
        self.stateful = state == "carry"
        self.state = State()
        self._padding, self._width = spelling.padding, characters.max_characters
        ends = np.stack([spelling.boundary(end=end) for end in (False, True)]).astype(np.int64)
        self.register_buffer("_boundaries", torch.from_numpy(ends), persistent=False)
        self._word_embedding: nn.Embedding | None = None
        if vocab_to_cache:
            self.create_cached_cnn_embeddings(vocab_to_cache)

    @property
    def _elmo_lstm(self) -> _ElmoBiLm:
        return self

    def get_output_dim(self) -> int:
        """D, the width of a layer."""
        return self.bilm.config.width

    def reset_states(self, mask: Tensor | None = None) -> None:
        """Forget what was read: of all batch rows, or of those where `mask` (rows,) is true."""
        if mask is None:
            self.state.reset()
            return
        if mask.shape != (self.state.rows,):
            raise InputError(
                f"a mask of shape {tuple(mask.shape)} was given for a state of "
                f"{self.state.rows} rows"
            )
        keep = ~mask.bool().unsqueeze(1)
        tensors = self.state.tensors().items()
        self.state = State.from_tensors({name: t * keep.to(t.device) for name, t in tensors})

    def create_cached_cnn_embeddings(self, tokens: Sequence[str]) -> None:
        """Compute the vectors of words once; `word_inputs` are then places in this list."""
        ids = batch_to_ids([tokens], max_characters=self._width)[0].to(self._boundaries.device)
        with torch.no_grad():
            vectors = self._token_vectors(torch.cat([self._boundaries, ids]))
        self.register_buffer("_boundary_vectors", vectors[:2], persistent=False)
        trained = next(self.bilm.parameters()).requires_grad
        self._word_embedding = nn.Embedding.from_pretrained(
            vectors[2:], freeze=not trained, padding_idx=0
        )

    def layers(self, inputs: Tensor, word_inputs: Tensor | None = None) -> Layers:
        """Return the layers with boundaries, from ids (B, T, C) or from cached words (B, T)."""
        table = self._word_embedding
        if table is not None and word_inputs is not None:
            known = (word_inputs >= 0) & (word_inputs < table.num_embeddings)
            if bool(known.all()):
                mask = word_inputs > 0
                vectors = torch.cat([self._boundary_vectors, table.weight])
                return self._run(vectors, word_inputs[mask], mask)
        if inputs.dim() != 3 or inputs.shape[2] != self._width or inputs.is_floating_point():
            raise InputError(
                f"the character ids are {inputs.dtype} of shape {tuple(inputs.shape)}, this model "
                f"reads whole numbers (B, T, {self._width}): use batch_to_ids(batch, "
                f"max_characters={self._width})"
            )
        mask = (inputs > 0).any(dim=-1)
        rows = inputs[mask]  # (N, C)
        if rows.numel() and not 1 <= int(rows.min()) <= int(rows.max()) <= 261:
            raise InputError(
                f"a word has character ids from {int(rows.min())} to {int(rows.max())}, expected "
                "1 to 261 (make them with batch_to_ids)"
            )
        # Each distinct word is computed once; small integers sort faster.
        distinct, numbers = torch.unique(rows.to(torch.int16), dim=0, return_inverse=True)
        vectors = self._token_vectors(torch.cat([self._boundaries, distinct.to(torch.int64)]))
        return self._run(vectors, numbers, mask)

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> BiLmOutput:
        """Return all layers, padded, boundaries kept."""
        layers = self.layers(inputs, word_inputs)
        mask = layers.mask
        steps = (inputs if word_inputs is None else word_inputs).shape[1] + 2
        activations = _widen(layers.values, steps, dim=2)
        return {"activations": list(activations), "mask": _widen(mask, steps, dim=1)}

    def _run(self, vectors: Tensor, numbers: Tensor, mask: Tensor) -> Layers:
        """Run the biLM over words given by their numbers, (N,), from 0 after the boundaries."""
        counts = mask.sum(dim=1)
        places = torch.arange(mask.shape[1], device=mask.device)
        if not torch.equal(mask, places < counts.unsqueeze(1)):
            raise InputError(
                "a sentence has padding before or between its words: padding goes on the right"
            )
        index = torch.zeros(mask.shape[0], mask.shape[1] + 2, dtype=torch.long, device=mask.device)
        index[:, 1:-1][mask] = numbers + 2
        index.scatter_(1, counts.unsqueeze(1) + 1, 1)  # </S> after the last word
        state = self.state if self.stateful else None
        layers: Layers = self.bilm(vectors, index, counts.tolist(), state=state, boundaries=True)
        return layers

    def _token_vectors(self, ids: Tensor) -> Tensor:
        """Compute the vectors of spelt words, (n, C) to (n, P), words of like length together."""
        last = torch.arange(1, ids.shape[1] + 1, device=ids.device)
        lengths = ((ids != self._padding) * last).amax(dim=1)
        order = torch.argsort(lengths)
        parts = [
            self.bilm.token(ids[block], None, int(lengths[block[-1]]))
            for block in order.split(BLOCK)
        ]
        return torch.cat(parts)[torch.argsort(order)]


class Elmo(nn.Module):
    """Layer mixes over a biLM, as `allennlp.modules.elmo.Elmo`.

    Args:
        options_file: path or address; or, with `weight_file=None`, any model's name or folder.
        weight_file: path or address of the hdf5 file.
        num_output_representations: how many mixes.
        requires_grad: train the biLM too.
        do_layer_norm: normalise each layer over the batch before mixing.
        dropout: on each mix, while training.
        vocab_to_cache: words whose vectors are computed once, for `word_inputs`.
        keep_sentence_boundaries: return the vectors of `<S>` and `</S>` as well.
        scalar_mix_parameters: fixed weights of the layers, before the softmax.
        module: a biLM to use in place of files: it has `num_layers` and `get_output_dim`, and
            returns `activations` and `mask` with boundaries.
        state: "carry" goes on, in each batch row, from what that row read last, as AllenNLP does;
            "reset" starts every sentence from zero.
    """

    def __init__(
        self,
        options_file: str | Path | None,
        weight_file: str | Path | None,
        num_output_representations: int,
        requires_grad: bool = False,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        vocab_to_cache: Sequence[str] | None = None,
        keep_sentence_boundaries: bool = False,
        scalar_mix_parameters: Sequence[float] | None = None,
        module: nn.Module | None = None,
        *,
        state: StateChoice = "carry",
    ) -> None:
        super().__init__()
        if module is None:
            module = _ElmoBiLm(
                options_file, weight_file, requires_grad, vocab_to_cache, state=state
            )
        elif options_file is not None or weight_file is not None:
            raise InputError("a module was given together with files: give one of them")
        self._elmo_lstm = module
        self._has_cached_vocab = vocab_to_cache is not None
        self._keep_sentence_boundaries = keep_sentence_boundaries
        self._dropout = nn.Dropout(dropout)
        self._mixes: list[str] = []
        for number in range(num_output_representations):
            mix = ScalarMix(
                cast(int, module.num_layers),
                weights=scalar_mix_parameters,
                trainable=scalar_mix_parameters is None,
                layer_norm="allennlp" if do_layer_norm else None,
            )
            self._mixes.append(f"scalar_mix_{number}")
            self.add_module(self._mixes[-1], mix)
        self.register_load_state_dict_pre_hook(_translate)  # type: ignore[no-untyped-call]

    def get_output_dim(self) -> int:
        """D, the width of a mix."""
        return int(cast(_ElmoBiLm, self._elmo_lstm).get_output_dim())

    def reset_states(self) -> None:
        """Forget what was read."""
        cast(_ElmoBiLm, self._elmo_lstm).reset_states()

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> ElmoOutput:
        """Mix the layers of character ids, (B, T, C) or (B, ..., T, C).

        `word_inputs`, (B, T) or (B, ..., T), are places in `vocab_to_cache`; if one is not there,
        the whole batch is computed from its characters.
        """
        if word_inputs is not None and not self._has_cached_vocab:
            warnings.warn("word_inputs are not used: no vocab_to_cache was given", stacklevel=2)
            word_inputs = None
        shape = inputs.shape[:-1] if word_inputs is None else word_inputs.shape
        steps = shape[-1]
        ids = inputs.flatten(0, -3) if inputs.dim() > 3 else inputs
        words = None if word_inputs is None else word_inputs.flatten(0, -2)
        if isinstance(self._elmo_lstm, _ElmoBiLm):
            layers = self._elmo_lstm.layers(ids, words)
        else:
            output = self._elmo_lstm(ids, words)
            mask = output["mask"].bool()
            flat = torch.stack([layer[mask] for layer in output["activations"]])
            layers = Layers(flat, tuple(mask.sum(dim=1).tolist()), boundaries=True)
        kept, rows = layers.strip(), layers.inner()
        if self._keep_sentence_boundaries:
            kept, rows, steps = layers, torch.ones_like(rows), steps + 2
        outer = (*shape[:-1], steps)
        representations = []
        for name in self._mixes:
            mixed = cast(ScalarMix, self.get_submodule(name)).mix(layers)[rows]
            padded = self._dropout(_widen(kept.pad(mixed), steps, dim=1))
            representations.append(padded.reshape(*outer, padded.shape[2]))
        mask = _widen(kept.mask, steps, dim=1).reshape(outer)
        return {"elmo_representations": representations, "mask": mask}


class ElmoEmbedder:
    """AllenNLP 0.9's embedder: all layers of pretokenised sentences, as arrays (L+1, T, D)."""

    def __init__(
        self,
        options_file: str | Path | None = None,
        weight_file: str | Path | None = None,
        cuda_device: int = -1,
        *,
        state: StateChoice = "carry",
    ) -> None:
        """Load a model; without files the published original one, as AllenNLP did."""
        if options_file is None and weight_file is None:
            options_file = "ai2-original"
        self.elmo_bilm = _ElmoBiLm(options_file, weight_file, state=state)
        self.cuda_device = cuda_device
        if cuda_device >= 0:
            self.elmo_bilm.to(f"cuda:{cuda_device}")

    @torch.no_grad()
    def batch_to_embeddings(self, batch: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Return the layers of a batch, (B, L+1, T, D), and its mask, (B, T)."""
        ids = batch_to_ids(batch, max_characters=self.elmo_bilm._width)
        layers = self.elmo_bilm.layers(ids.to(self.elmo_bilm._boundaries.device)).strip()
        return layers.values.transpose(0, 1), layers.mask

    def embed_sentence(self, sentence: Sequence[str]) -> Array:
        """Return the layers of one sentence."""
        return self.embed_batch([sentence])[0]

    def embed_batch(self, batch: Sequence[Sequence[str]]) -> list[Array]:
        """Return the layers of each sentence of one batch."""
        if not batch:
            return []
        values, _ = self.batch_to_embeddings(batch)
        arrays = values.cpu().numpy()
        # Each its own memory, not a view that keeps the batch.
        return [layers[:, : len(words)].copy() for layers, words in zip(arrays, batch, strict=True)]

    def embed_sentences(
        self, sentences: Iterable[Sequence[str]], batch_size: int = DEFAULT_BATCH_SIZE
    ) -> Iterator[Array]:
        """Yield the layers of each sentence, `batch_size` at a time."""
        stream = iter(sentences)
        while batch := list(islice(stream, batch_size)):
            yield from self.embed_batch(batch)

    def embed_file(
        self,
        input_file: IO[str],
        output_file_path: str | Path,
        output_format: Literal["all", "top", "average"] = "all",
        batch_size: int = DEFAULT_BATCH_SIZE,
        forget_sentences: bool = False,
        use_sentence_keys: bool = False,
    ) -> None:
        """Write the vectors of a file's lines, split on white space, to an hdf5 file.

        A line's dataset is named by its number from 0, or by the line itself; the dataset
        `sentence_to_index` holds a JSON object from lines to numbers unless forgotten. For large
        files `torchelmo embed` writes the same with bounded memory and goes on after a stop.
        """
        if output_format not in ("all", "top", "average"):
            raise InputError(f"output_format is all, top or average, not {output_format!r}")
        lines = [line.strip() for line in input_file]
        blank = [number for number, line in enumerate(lines) if not line]
        if blank:
            raise InputError(f"the input has empty lines, at {blank} from 0: remove them")
        if use_sentence_keys and len(set(lines)) < len(lines):
            raise InputError("a sentence comes twice, so it cannot be a key: leave out the keys")
        keys = lines if use_sentence_keys else [str(number) for number in range(len(lines))]
        path = Path(output_file_path)
        partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
        vectors = self.embed_sentences((line.split() for line in lines), batch_size)
        try:
            with h5py.File(partial, "w") as file:
                for key, layers in zip(keys, vectors, strict=True):
                    if output_format == "top":
                        file[key] = layers[-1]
                    else:
                        file[key] = layers if output_format == "all" else layers.mean(axis=0)
                if not (forget_sentences or use_sentence_keys):
                    index = json.dumps({line: str(number) for number, line in enumerate(lines)})
                    text = h5py.string_dtype("utf-8")
                    file.create_dataset("sentence_to_index", data=[index], dtype=text)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def _load(options_file: str | Path | None, weight_file: str | Path | None) -> Model:
    if weight_file is None:
        return load.load(options_file)
    for model in PUBLISHED.values():
        # AI2's addresses have changed hosts: the part after "models" says which file it is.
        tail = model.weights.partition("/models/")[2]
        if str(weight_file).startswith("http") and str(weight_file).endswith(f"/models/{tail}"):
            return load.load(model.name)
    return load.load(options=options_file, weights=weight_file)


def _widen(tensor: Tensor, steps: int, *, dim: int) -> Tensor:
    """Add padding up to `steps` along a dimension: all sentences may be shorter than the batch."""
    missing = steps - tensor.shape[dim]
    if not missing:
        return tensor
    shape = [*tensor.shape[:dim], missing, *tensor.shape[dim + 1 :]]
    return torch.cat([tensor, tensor.new_zeros(shape)], dim=dim)


def _translate(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Let a state dict that AllenNLP saved be loaded: give its tensors our names and forms."""
    assert isinstance(module, Elmo)
    if not isinstance(module._elmo_lstm, _ElmoBiLm):
        return
    bilm, inner = module._elmo_lstm.bilm, f"{prefix}_elmo_lstm."
    if f"{inner}{allennlp.NAMES.characters}" not in state:
        return
    starts = (f"{inner}_token_embedder.", f"{inner}_elmo_lstm.", f"{prefix}scalar_mix_")
    theirs = {name: state.pop(name) for name in list(state) if name.startswith(starts)}
    found = allennlp.from_state_dict(theirs)
    cells = bilm.config.lstm.cells
    for name, tensor in found.tensors.items():
        if "_layers." in name and name.endswith(".bias"):
            tensor = tensor.clone()  # AllenNLP stores the forget bias with its 1
            tensor[cells : 2 * cells] -= bilm.config.lstm.forget_bias
        state[f"{inner}bilm.{name}"] = tensor
    for name, tensor in found.mixes.items():
        state[f"{prefix}scalar_mix_{name}"] = tensor
