"""AllenNLP's models with an ELMo inside: an archive, a state dict's file, or a training folder.

AllenNLP keeps no options with its weights: sizes are read from the tensors' shapes; the rest
(activation, clips, characters of a word, skip connections) from options found in the archive or
beside the file, else it is that of the published models. Its numbers are ours but for three things:
a zero row leads the character embedding, one matrix holds both halves of a highway with the gate's
sign turned round, and the forget bias already has its +1 (so `lstm.forget_bias` is 0 here).
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from torchelmo.config import CharacterConfig, ElmoConfig, Json, LstmConfig, WordConfig
from torchelmo.errors import InputError
from torchelmo.formats import bilm_tf, state_dict
from torchelmo.formats.model import Model, check_shapes, expected_shapes

Part = Callable[[Tensor], Tensor]  # what of a foreign tensor is one of ours


def read(path: Path) -> Model:
    """Read the ELMo of an archive, of a state dict's file, or of a folder that holds either."""
    if path.is_dir():
        found = find(path)
        if found is None:
            raise InputError(
                f"{path} holds no AllenNLP weights: expected model.tar.gz, weights.th, best.th or "
                "model_state_epoch_N.th"
            )
        path = found
    if not path.is_file():
        raise InputError(f"there is no file {path}: give an AllenNLP archive or state dict")
    if state_dict.is_archive(path):
        tensors, texts = state_dict.read_archive(
            path, "weights.th", lambda name: name == "config.json" or "options" in name
        )
    else:
        tensors, texts = state_dict.read_file(path), _texts_beside(path)
    options = [(name, found) for name, text in texts.items() for found in _options_in(text)]
    return from_state_dict(tensors, options, where=str(path))


def find(folder: Path) -> Path | None:
    """Return the weights that AllenNLP itself would use from a training folder, if it is one."""
    for name in ("weights.th", "best.th", "model.tar.gz"):
        if (folder / name).is_file():
            return folder / name
    epochs = {
        p: [int(n) for n in re.findall(r"\d+", p.stem)] for p in folder.glob("model_state_*.th")
    }
    return max(epochs, key=lambda p: epochs[p], default=None)


def from_state_dict(
    tensors: Mapping[str, Tensor],
    options: Sequence[tuple[str, Json]] = (),
    *,
    where: str = "the state dict",
) -> Model:
    """Make a model from a state dict.

    `options` are options files after their names; those of other sizes are passed over.
    """
    prefixes = _prefixes(tensors, where)
    own = _under(tensors, prefixes[0])
    rows = shape(own, NAMES.characters, 2, where)[0]
    if rows != 262:
        raise InputError(
            f"{where} has {rows} rows in {NAMES.characters}, expected 262: padding, 256 bytes and "
            "5 marks"
        )
    config = infer(own, NAMES, where)
    for name, candidate in options:
        config = _with_options(config, candidate, name)
    table = NAMES.table(config, lambda t: t[1:])
    mixes = _mixes(tensors, prefixes, config.n_layers, where)
    return Model(config, collect(own, table, config, where), mixes=mixes)


@dataclass(frozen=True)
class Names:
    """What a program calls each part; `{}` stands for a number, or a direction and a number."""

    characters: str
    convolution: str
    highway: str
    projection: str
    lstm: str
    words: str = ""

    def table(
        self, config: ElmoConfig, character_rows: Part, word_rows: Part | None = None
    ) -> dict[str, tuple[str, Part]]:
        """Return our name of each tensor with the foreign name and what to take from there."""
        table: dict[str, tuple[str, Part]] = {}
        if config.words is not None:
            table["token.words"] = self.words, word_rows or _whole
        if config.characters is not None:
            table["token.characters.embedding"] = self.characters, character_rows
            for i in range(len(config.characters.filters)):
                ours, theirs = f"token.characters.convolutions.{i}", self.convolution.format(i)
                table[f"{ours}.weight"] = f"{theirs}.weight", _whole
                table[f"{ours}.bias"] = f"{theirs}.bias", _whole
            for k in range(config.characters.highways):
                ours, theirs = f"token.characters.highways.{k}", self.highway.format(k)
                for kind in ("weight", "bias"):
                    table[f"{ours}.transform.{kind}"] = f"{theirs}.{kind}", _transform
                    table[f"{ours}.gate.{kind}"] = f"{theirs}.{kind}", _gate
        for kind in ("weight", "bias"):
            table[f"token.projection.{kind}"] = f"{self.projection}.{kind}", _whole
        for direction in ("forward", "backward"):
            for level in range(config.lstm.layers):
                ours, theirs = f"{direction}_layers.{level}", self.lstm.format(direction, level)
                table[f"{ours}.input_weight"] = f"{theirs}.input_linearity.weight", _whole
                table[f"{ours}.recurrent_weight"] = f"{theirs}.state_linearity.weight", _whole
                table[f"{ours}.bias"] = f"{theirs}.state_linearity.bias", _whole
                table[f"{ours}.projection_weight"] = f"{theirs}.state_projection.weight", _whole
        return table


NAMES = Names(
    characters="_token_embedder._char_embedding_weights",
    convolution="_token_embedder.char_conv_{}",
    highway="_token_embedder._highways._layers.{}",
    projection="_token_embedder._projection",
    lstm="_elmo_lstm.{}_layer_{}",
)


def _whole(t: Tensor) -> Tensor:
    return t


def _transform(t: Tensor) -> Tensor:
    return t[: t.shape[0] // 2].clone()


def _gate(t: Tensor) -> Tensor:
    return -t[t.shape[0] // 2 :]  # sigmoid(-a) = 1 - sigmoid(a): theirs weighs the input, ours f


def infer(
    tensors: Mapping[str, Tensor],
    names: Names,
    where: str,
    *,
    scheme: Literal["bytes", "codepoints"] = "bytes",
    symbols: int = 256,
    max_characters: int = 50,
    activation: Literal["relu", "tanh"] = "relu",
    cell_clip: float | None = 3.0,
    projection_clip: float | None = 3.0,
) -> ElmoConfig:
    """Read the sizes off the shapes; the rest is as in the published models unless given."""
    characters = words = None
    if names.characters in tensors:
        filters = []
        for i in range(_count(tensors, lambda i: f"{names.convolution.format(i)}.weight")):
            count, _, width = shape(tensors, f"{names.convolution.format(i)}.weight", 3, where)
            filters.append((width, count))
        characters = CharacterConfig(
            scheme=scheme,
            max_characters=max_characters,
            symbols=symbols,
            dim=shape(tensors, names.characters, 2, where)[1],
            filters=tuple(filters),
            activation=activation,
            highways=_count(tensors, lambda k: f"{names.highway.format(k)}.weight"),
        )
    if names.words and names.words in tensors:
        count, dim = shape(tensors, names.words, 2, where)
        words = WordConfig(words=count, dim=dim)
    first = names.lstm.format("forward", 0)
    projection, cells = shape(tensors, f"{first}.state_projection.weight", 2, where)
    lstm = LstmConfig(
        cells=cells,
        projection=projection,
        layers=_count(
            tensors, lambda i: f"{names.lstm.format('forward', i)}.input_linearity.weight"
        ),
        cell_clip=cell_clip,
        projection_clip=projection_clip,
        forget_bias=0.0,
    )
    return ElmoConfig(characters=characters, words=words, lstm=lstm)


def shape(tensors: Mapping[str, Tensor], name: str, dims: int, where: str) -> tuple[int, ...]:
    """Return a tensor's shape, of as many numbers as expected."""
    if name not in tensors:
        raise InputError(f"{where} lacks the tensor {name!r}")
    found = tuple(tensors[name].shape)
    if len(found) != dims:
        raise InputError(f"{where} has {name!r} of shape {found}, expected {dims} dimensions")
    return found


def collect(
    tensors: Mapping[str, Tensor],
    table: Mapping[str, tuple[str, Part]],
    config: ElmoConfig,
    where: str,
) -> dict[str, Tensor]:
    """Take each of our tensors from where the table says, as float32, and check the shapes."""
    taken = {}
    for ours, (theirs, part) in table.items():
        if theirs not in tensors:
            raise InputError(f"{where} lacks the tensor {theirs!r}")
        found = tensors[theirs].detach()
        if not found.is_floating_point() or found.dim() == 0:
            raise InputError(f"{where} has {theirs!r} of {found.dtype}, expected weights")
        taken[ours] = part(found.float()).contiguous()
    check_shapes(taken, expected_shapes(config), where)
    return taken


def _count(tensors: Mapping[str, Tensor], name: Callable[[int], str]) -> int:
    """Return how many of the names of 0, 1, 2, ... there are before the first gap."""
    number = 0
    while name(number) in tensors:
        number += 1
    return number


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _prefixes(tensors: Mapping[str, Tensor], where: str) -> list[str]:
    """Return how the names of the ELMo begin; several are one ELMo used in several places."""
    ends = [n.removesuffix(NAMES.characters) for n in tensors if n.endswith(NAMES.characters)]
    prefixes = [prefix for prefix in ends if not prefix or prefix.endswith(".")]
    if not prefixes:
        raise InputError(
            f"{where} holds {len(tensors)} tensors but no ELMo: none is named "
            f"'...{NAMES.characters}'"
        )
    first, *others = (_under(tensors, prefix) for prefix in prefixes)
    for other in others:
        if first.keys() != other.keys() or not all(torch.equal(first[n], other[n]) for n in first):
            raise InputError(
                f"{where} holds {len(prefixes)} different ELMos, at {', '.join(prefixes)}: keep "
                "the tensors of one of them"
            )
    return prefixes


def _mixes(
    tensors: Mapping[str, Tensor], prefixes: Sequence[str], n_layers: int, where: str
) -> dict[str, Tensor]:
    """Return the learned mixes of all places where the ELMo is used, numbered from 0."""
    mixes: dict[str, Tensor] = {}
    seen: set[int] = set()
    for prefix in prefixes:
        outer = prefix.removesuffix("_elmo_lstm.") + "scalar_mix_"
        for i in itertools.count():
            names = [f"{outer}{i}.scalar_parameters.{j}" for j in range(n_layers)]
            gamma = tensors.get(f"{outer}{i}.gamma")
            if gamma is None:
                break
            if gamma.data_ptr() in seen:  # one module under two names
                continue
            seen.add(gamma.data_ptr())
            parts = [tensors[name].detach().float() for name in names if name in tensors]
            if [p.numel() for p in (*parts, gamma)] != [1] * (n_layers + 1):
                raise InputError(
                    f"{where} has a mix {outer}{i} that is not of {n_layers} numbers and a gamma"
                )
            number = len(mixes) // 2
            mixes[f"{number}.weights"] = torch.cat([p.reshape(1) for p in parts])
            mixes[f"{number}.gamma"] = gamma.detach().float().reshape(1)
    return mixes


def _with_options(config: ElmoConfig, options: Json, where: str) -> ElmoConfig:
    """Take from options what shapes do not say, if they are of a model of these sizes."""
    other = bilm_tf.read_options(options, where=where, token_projection=True)
    if other.characters is None or config.characters is None or _sizes(other) != _sizes(config):
        return config
    return replace(
        config,
        characters=replace(
            config.characters,
            activation=other.characters.activation,
            max_characters=other.characters.max_characters,
        ),
        lstm=replace(
            config.lstm,
            cell_clip=other.lstm.cell_clip,
            projection_clip=other.lstm.projection_clip,
            residual=other.lstm.residual,
        ),
    )


def _sizes(config: ElmoConfig) -> tuple[object, ...]:
    characters, lstm = config.characters, config.lstm
    assert characters is not None
    cnn = characters.dim, characters.filters, characters.highways
    return *cnn, lstm.cells, lstm.projection, lstm.layers


def _texts_beside(path: Path) -> dict[str, bytes]:
    """Return the JSON files next to a state dict that may hold options."""
    patterns = ("config.json", "*options*.json", "fta/*options_file")
    found = [file for pattern in patterns for file in sorted(path.parent.glob(pattern))]
    return {
        str(file): file.read_bytes()
        for file in found
        if file.is_file() and file.stat().st_size <= state_dict.MAX_MEMBER
    }


def _options_in(text: bytes) -> list[Json]:
    """Return each object with the keys of an options file, at any depth of a JSON text."""

    def walk(value: object) -> Iterator[Json]:
        if isinstance(value, dict):
            if isinstance(value.get("lstm"), dict) and isinstance(value.get("char_cnn"), dict):
                yield value
            else:
                for inner in value.values():
                    yield from walk(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from walk(inner)

    try:
        return list(walk(json.loads(text)))
    except (ValueError, RecursionError):
        return []  # a vocabulary or a broken file: the sizes come from the tensors all the same
