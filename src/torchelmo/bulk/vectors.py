"""Sentences to the vectors that are asked for: which layers, in which dtype, from which state.

With state `reset` sentences are sorted by length and batched by a token budget. With `carry` they
go through the state in order: sentence i continues on row i % rows where sentence i - rows
stopped. One row is what bilm-tf's dump did, 64 rows what AllenNLP's `elmo` command did.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from torchelmo.config import ElmoConfig
from torchelmo.elmo import Elmo
from torchelmo.encoder import Encoder
from torchelmo.errors import InputError
from torchelmo.nn.host import on_host
from torchelmo.nn.lstm import State
from torchelmo.nn.output import Layers
from torchelmo.text.batching import WordTable

LayerChoice = Literal["all", "top", "average"] | int
DtypeName = Literal["float32", "float16"]
Vectors = npt.NDArray[np.float32] | npt.NDArray[np.float16]

DTYPES = {"float32": torch.float32, "float16": torch.float16}


def embed_batch(
    elmo: Elmo,
    sentences: Sequence[Sequence[str]],
    layers: LayerChoice = "all",
    dtype: DtypeName = "float32",
    *,
    batch_tokens: int | None = None,
) -> list[Vectors]:
    """Return one array a sentence, in order: (L+1, T, D) for "all", else (T, D).

    Sentences are lists of words. A sentence's vectors depend on that sentence alone.
    """
    out: dict[int, Vectors] = {}
    for number, piece in embed_reset(
        elmo.encoder, sentences, layers, dtype, batch_tokens=batch_tokens
    ):
        out[number] = piece.copy()  # its own memory, not a view that keeps the batch
    return [out[number] for number in range(len(sentences))]


def embed_reset(
    encoder: Encoder,
    sentences: Sequence[Sequence[str]],
    layers: LayerChoice,
    dtype: DtypeName,
    *,
    batch_tokens: int | None = None,
) -> Iterator[tuple[int, Vectors]]:
    """Yield each sentence's number and vectors, longest sentences first."""
    check_layers(encoder.bilm.config, layers)
    for numbers, output in on_host(encoder.run(sentences, batch_tokens=batch_tokens)):
        yield from zip(numbers, _pieces(output, layers, dtype), strict=True)


def new_encoder(elmo: Elmo) -> Encoder:
    """Return an encoder that remembers no word yet."""
    old = elmo.encoder
    return Encoder(old.bilm, old.characters, old.words, escape_boundaries=old.escape_boundaries)


def meet(encoder: Encoder, sentences: Iterable[Sequence[str]]) -> None:
    """Compute and remember the words of sentences, as embedding them does first."""
    table = WordTable()
    for sentence in sentences:
        table.ids(sentence)
    encoder.vectors(list(table))


class Carry:
    """Runs sentences in order through a state that lives on from call to call."""

    def __init__(self, rows: int = 1, state: State | None = None) -> None:
        """Take how many rows the state has, and a state to go on from."""
        self.rows = rows
        self.state = State() if state is None else state

    def embed(
        self,
        encoder: Encoder,
        sentences: Sequence[Sequence[str]],
        layers: LayerChoice,
        dtype: DtypeName,
    ) -> Iterator[tuple[int, Vectors]]:
        """Yield each sentence's number and vectors, in order; the first takes row 0."""
        check_layers(encoder.bilm.config, layers)
        table = WordTable()
        numbers = [table.ids(sentence) for sentence in sentences]
        vectors = encoder.vectors(list(table))  # (2 + U, P)
        number = 0
        for first in range(0, len(numbers), self.rows):
            group = numbers[first : first + self.rows]
            for output in encoder.rows(vectors, group, state=self.state):
                for piece in _pieces(output, layers, dtype):
                    yield number, piece
                    number += 1


def check_layers(config: ElmoConfig, layers: LayerChoice) -> None:
    """Raise a sentence if the model has no such layer."""
    if not isinstance(layers, int) and layers not in ("all", "top", "average"):
        raise InputError(f"layers is {layers!r}, expected 'all', 'top', 'average' or a number")
    if isinstance(layers, int) and not 0 <= layers < config.n_layers:
        raise InputError(
            f"layer {layers} was asked for, the model has layers 0 to {config.n_layers - 1}"
        )


def token_shape(config: ElmoConfig, layers: LayerChoice) -> tuple[int, ...]:
    """Return how many vectors of which width a token has, (L+1, D) or (D,)."""
    return (config.n_layers, config.width) if layers == "all" else (config.width,)


def model_hash(elmo: Elmo) -> str:
    """Return a SHA-256 of all that the vectors depend on: network, spelling and every weight."""
    config, digest = elmo.config, hashlib.sha256()
    facts = {
        "characters": config.characters and dataclasses.asdict(config.characters),
        "words": config.words and dataclasses.asdict(config.words),
        "lstm": dataclasses.asdict(config.lstm),
        "token_projection": config.token_projection,
        "alphabet": list(elmo.alphabet),
        "input_words": None if elmo.input_words is None else list(elmo.input_words),
        "escape_boundaries": elmo.encoder.escape_boundaries,
    }
    digest.update(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(elmo.bilm.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy())
    return digest.hexdigest()


def _pieces(output: Layers, layers: LayerChoice, dtype: DtypeName) -> list[Vectors]:
    """Return the arrays of a batch's sentences; they share the batch's memory."""
    flat = output.flat  # (L+1, N, D)
    if layers == "average":
        flat = flat.mean(dim=0)
    elif layers != "all":
        flat = flat[-1 if layers == "top" else layers]
    narrow = flat.to(DTYPES[dtype])
    if not bool(torch.isfinite(narrow).all()):
        if bool(torch.isfinite(flat).all()):
            raise InputError("the vectors have values beyond float16's range: use float32")
        raise InputError("the vectors are not all finite: the model's weights are damaged")
    return [piece.numpy() for piece in output.split(narrow.cpu())]
