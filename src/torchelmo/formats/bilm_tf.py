"""bilm-tf's files, which AllenNLP reads too: options.json and an hdf5 file of weights.

The mapping is one table, `_table`, used for reading and for writing: a file read and written again
has every dataset bit for bit. Beyond what the originals read:

* a file of one LSTM layer, which bilm-tf writes under a shorter name that neither original can
  load, is read under both names; it is written under the longer one (`MultiRNNCell/Cell0`), which
  AllenNLP reads;
* models without projection, without skip connections, without highway layers, and with words at
  the input;
* the softmax, `softmax/W` and `softmax/b`, in a file of its own as AI2 published it or in the same.

Nothing large is allocated before names, shapes and stored sizes agree with the options.
"""

from __future__ import annotations

import dataclasses
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from torchelmo.config import ElmoConfig, Json, TokenizerConfig
from torchelmo.errors import InputError
from torchelmo.formats import files, hdf5
from torchelmo.formats.bilm_options import TRAINING, read_options, warn_unused, write_options
from torchelmo.formats.check import check_model, check_vocabulary
from torchelmo.formats.hdf5 import Array
from torchelmo.formats.model import Model, expected_shapes
from torchelmo.text.vocabulary import Vocabulary

__all__ = ["assemble", "parse_vocabulary", "read", "read_options", "write", "write_options"]

VOCABULARY, SOFTMAX = "vocab.txt", "softmax.hdf5"
ATTRIBUTION = "ATTRIBUTION.md"  # as in native folders: a licence may ask for it
SOFTMAX_NAMES = {"softmax/W": "weight", "softmax/b": "bias"}


def read(
    options: Path, weights: Path, *, vocabulary: Path | None = None, softmax: Path | None = None
) -> Model:
    """Read a model from its files; a word-input model needs its vocabulary.

    The vocabulary has one word a line, in the order of the softmax's rows; gzip is unpacked.
    """
    words = None
    if vocabulary is not None:
        words = parse_vocabulary(files.read_bytes(vocabulary, files.LIST_BYTES), str(vocabulary))
    names = {"options": str(options), "vocabulary": str(vocabulary)}
    return assemble(files.read_json(options), weights, words, softmax, names)


def assemble(
    options: Json,
    weights: Path | BinaryIO,
    vocabulary: Sequence[str] | None = None,
    softmax: Path | BinaryIO | None = None,
    names: Mapping[str, str] | None = None,
) -> Model:
    """Make a model of parsed options and words, and of hdf5 files given as paths or open.

    `names` says what "options", "weights", "vocabulary" and "softmax" are called in errors.
    """
    called = {part: part for part in ("options", "weights", "vocabulary", "softmax")}
    called |= {
        part: str(source)
        for part, source in (("weights", weights), ("softmax", softmax))
        if isinstance(source, Path)
    }
    called |= names or {}
    warn_unused(options, called["options"])
    with hdf5.open_datasets(weights, called["weights"]) as found:
        config = _read_config(options, found, called)
        if config.words is not None and vocabulary is None:
            raise InputError(
                f"{called['options']} describes a model that reads whole words (it has no "
                "char_cnn): give its vocabulary too (vocabulary=, or vocab.txt beside the weights)"
            )
        tensors = _read_weights(config, found, called)
        targets = None
        if softmax is not None:
            with hdf5.open_datasets(softmax, called["softmax"]) as other:
                targets = _read_softmax(config, other, called["softmax"])
        elif "softmax/W" in found:
            called["softmax"] = called["weights"]
            targets = _read_softmax(config, found, called["weights"])
    _check_rows(config, vocabulary, targets, called)
    size = targets["weight"].shape[0] if targets is not None else None
    size = len(vocabulary) if vocabulary is not None else size
    return Model(
        config=dataclasses.replace(config, vocabulary=size),
        tensors=tensors,
        vocabulary=vocabulary,
        words=vocabulary if config.words is not None else None,
        softmax=targets,
    )


def write(
    model: Model,
    folder: Path,
    *,
    options_name: str = "options.json",
    weights_name: str = "weights.hdf5",
    overwrite: bool = False,
) -> list[str]:
    """Write a folder of options, weights and, if the model has them, vocabulary and softmax.

    Returns a sentence for each thing that the model has and this format cannot hold; raises if it
    cannot hold the network itself.
    """
    config = model.config
    options = write_options(config)
    check_model(model)
    words = model.vocabulary if model.words is None else model.words
    if model.words is not None and list(model.vocabulary or model.words) != list(model.words):
        raise InputError(
            "the model's input words are not its targets: bilm-tf has one vocabulary for both, "
            "write the native format"
        )
    known = (options_name, weights_name, VOCABULARY, SOFTMAX, ATTRIBUTION)
    with files.new_folder(folder, overwrite=overwrite, known=known) as out:
        files.write_json(out / options_name, options)
        arrays = (
            (entry.name, entry.layout.encode([_to_write(model, name) for name in entry.tensors]))
            for entry in _table(config)
        )
        hdf5.write_arrays(out / weights_name, arrays)
        if words is not None:
            # bilm-tf and AllenNLP strip each line of every kind of white space
            files.write_lines(out / VOCABULARY, words, str.strip)
        if model.softmax is not None and config.adaptive is None:
            softmax = model.softmax
            arrays = ((name, _numpy(softmax[ours])) for name, ours in SOFTMAX_NAMES.items())
            hdf5.write_arrays(out / SOFTMAX, arrays)
        if model.attribution is not None:
            (out / ATTRIBUTION).write_bytes(model.attribution.encode("utf-8"))
    return _losses(model)


def parse_vocabulary(data: bytes, where: str) -> list[str]:
    r"""Return the words of a vocabulary file, as bilm-tf reads it: stripped, without the end mark.

    >>> parse_vocabulary(b"<S>\n</S>\n<UNK>\nthe \n!!!MAXTERMID\n", "vocab.txt")
    ['<S>', '</S>', '<UNK>', 'the']
    """
    if data[:2] == b"\x1f\x8b":
        data = files.unzip_list(data, where)
    return list(Vocabulary.from_lines(io.StringIO(files.decode(data, where), newline=None)).words)


@dataclass(frozen=True)
class _Layout:
    """How one dataset holds tensors of ours, in both directions."""

    decode: Callable[[Array], list[Array]]
    encode: Callable[[list[Array]], Array]


def _swap_gates(blocks: Array) -> Array:
    """Swap the middle two of four blocks of rows: i j f o to i f j o, and back."""
    parts = blocks.reshape(4, -1, *blocks.shape[1:])
    swapped: Array = parts[[0, 2, 1, 3]].reshape(blocks.shape)
    return swapped


_SAME = _Layout(lambda a: [a], lambda t: t[0])
_TRANSPOSED = _Layout(lambda a: [a.T], lambda t: t[0].T)
# (1, width, d, n) to (n, d, width)
_FILTER = _Layout(lambda a: [a[0].transpose(2, 1, 0)], lambda t: t[0].transpose(2, 1, 0)[None])
# (2P, 4H), the rows of x before those of h, to (4H, P) for x and (4H, P) for h
_GATES = _Layout(
    lambda a: list(np.split(_swap_gates(a.T), 2, axis=1)),
    lambda t: _swap_gates(np.concatenate(t, axis=1)).T,
)
_GATE_BIAS = _Layout(lambda a: [_swap_gates(a)], lambda t: _swap_gates(t[0]))


@dataclass(frozen=True)
class _Entry:
    """A dataset of the weights file and the tensors of ours that it holds."""

    name: str
    shape: tuple[int, ...]  # in the file
    layout: _Layout
    tensors: tuple[str, ...]
    why: str  # the options that ask for it


def _table(config: ElmoConfig) -> list[_Entry]:
    """Return every dataset of a model's weights file."""
    table: list[_Entry] = []

    def add(name: str, shape: tuple[int, ...], layout: _Layout, *tensors: str) -> None:
        table.append(_Entry(name, shape, layout, tensors, why))

    lstm, characters = config.lstm, config.characters
    width = lstm.projection
    if config.words is not None:
        why = "n_tokens_vocab and lstm.projection_dim"
        add("embedding", (config.words.words, width), _SAME, "token.words")
    if characters is not None:
        ours, filters = "token.characters", characters.n_filters
        why = "char_cnn.embedding.dim"
        add("char_embed", (characters.rows, characters.dim), _SAME, f"{ours}.embedding")
        why = "char_cnn.embedding.dim and char_cnn.filters"
        for i, (span, count) in enumerate(characters.filters):
            name, kernel = f"{ours}.convolutions.{i}", (1, span, characters.dim, count)
            add(f"CNN/W_cnn_{i}", kernel, _FILTER, f"{name}.weight")
            add(f"CNN/b_cnn_{i}", (count,), _SAME, f"{name}.bias")
        why = "char_cnn.filters and char_cnn.n_highway"
        for i in range(characters.highways):
            # the gate that bilm-tf calls "carry" multiplies the transformed branch
            for theirs, part in (("carry", "gate"), ("transform", "transform")):
                name = f"{ours}.highways.{i}.{part}"
                add(f"CNN_high_{i}/W_{theirs}", (filters, filters), _TRANSPOSED, f"{name}.weight")
                add(f"CNN_high_{i}/b_{theirs}", (filters,), _SAME, f"{name}.bias")
        if config.token_projection:
            why = "char_cnn.filters and lstm.projection_dim"
            add("CNN_proj/W_proj", (filters, width), _TRANSPOSED, "token.projection.weight")
            add("CNN_proj/b_proj", (width,), _SAME, "token.projection.bias")
    why = "lstm.dim, lstm.projection_dim and lstm.n_layers"
    for side, direction in enumerate(("forward", "backward")):
        for i in range(lstm.layers):
            group, name = f"RNN_{side}/RNN/MultiRNNCell/Cell{i}/LSTMCell", f"{direction}_layers.{i}"
            gates, both = (2 * width, 4 * lstm.cells), ("input_weight", "recurrent_weight")
            add(f"{group}/W_0", gates, _GATES, *(f"{name}.{part}" for part in both))
            add(f"{group}/B", gates[1:], _GATE_BIAS, f"{name}.bias")
            if lstm.project:
                shape = (lstm.cells, width)
                add(f"{group}/W_P_0", shape, _TRANSPOSED, f"{name}.projection_weight")
    return table


def _read_config(options: Json, found: hdf5.Datasets, called: Mapping[str, str]) -> ElmoConfig:
    """Read the options, and from the weights what only they say."""
    if "char_cnn" not in options and "char_embed" in found:
        raise InputError(
            f"{called['weights']} has characters (the dataset 'char_embed'), but "
            f"{called['options']} has no char_cnn"
        )
    words = found.get("embedding")
    return read_options(
        options,
        where=called["options"],
        words=words.shape[0] if words is not None and words.shape else None,
        token_projection="CNN_proj/W_proj" in found,
    )


def _read_weights(
    config: ElmoConfig, found: hdf5.Datasets, called: Mapping[str, str]
) -> dict[str, Tensor]:
    weights, options = called["weights"], called["options"]
    if config.lstm.layers == 1:
        found = {_long_name(name): dataset for name, dataset in found.items()}
    table = _table(config)
    for entry in table:
        if entry.name not in found:
            raise InputError(
                f"{weights} has no dataset {entry.name!r} of shape {entry.shape}, which "
                f"{entry.why} in {options} ask for"
            )
        shape = found[entry.name].shape
        if shape != entry.shape and not _is_padded(entry, shape):
            raise InputError(
                f"{weights} has the dataset {entry.name!r} of shape {shape}, expected "
                f"{entry.shape} from {entry.why} in {options}"
            )
        hdf5.check_storage(found[entry.name], entry.name, weights)
    _check_extra(set(found) - {entry.name for entry in table}, called)
    tensors: dict[str, Tensor] = {}
    for entry in table:
        array = hdf5.read_array(found[entry.name], entry.name, weights)
        if _is_padded(entry, array.shape):
            if array[0].any():
                raise InputError(
                    f"{weights} has {len(array)} rows in 'char_embed' and the first is not zero, "
                    f"expected {entry.shape[0]} rows"
                )
            array = array[1:]
        for name, part in zip(entry.tensors, entry.layout.decode(array), strict=True):
            # A copy in torch's memory: aligned alike in every process, so sums get the same bits.
            tensors[name] = torch.from_numpy(np.ascontiguousarray(part)).clone()
    return {name: tensors[name] for name in expected_shapes(config)}


def _read_softmax(config: ElmoConfig, found: hdf5.Datasets, where: str) -> dict[str, Tensor]:
    weight = found.get("softmax/W")
    rows = weight.shape[0] if weight is not None and weight.shape else 0
    shapes = {"softmax/W": (rows, config.lstm.projection), "softmax/b": (rows,)}
    for name, shape in shapes.items():
        if name not in found:
            raise InputError(f"{where} has no dataset {name!r}, which a softmax needs")
        if found[name].shape != shape:
            raise InputError(
                f"{where} has the dataset {name!r} of shape {found[name].shape}, expected {shape} "
                f"for this model"
            )
        hdf5.check_storage(found[name], name, where)
    return {
        ours: torch.from_numpy(hdf5.read_array(found[name], name, where))
        for name, ours in SOFTMAX_NAMES.items()
    }


def _check_rows(
    config: ElmoConfig,
    vocabulary: Sequence[str] | None,
    softmax: Mapping[str, Tensor] | None,
    called: Mapping[str, str],
) -> None:
    """Check the vocabulary and `n_tokens_vocab` against the tables that they name the rows of."""
    tables = {}
    if config.words is not None:
        tables[f"the word table in {called['weights']}"] = config.words.words
    if softmax is not None:
        tables[f"the softmax in {called['softmax']}"] = softmax["weight"].shape[0]
    claimed = config.training.get("n_tokens_vocab")
    for table, rows in tables.items():
        if vocabulary is not None:
            check_vocabulary(vocabulary, rows, called["vocabulary"], table)
        if claimed not in (None, rows):
            raise InputError(
                f"{called['options']}: n_tokens_vocab is {claimed}, {table} has {rows} rows"
            )
    if not tables and vocabulary is not None and claimed not in (None, len(vocabulary)):
        # harmless without a table: the originals predict with any vocabulary
        warnings.warn(
            f"{called['vocabulary']} has {len(vocabulary)} words, n_tokens_vocab in "
            f"{called['options']} is {claimed}: it may not be the vocabulary of the training",
            stacklevel=2,
        )


def _long_name(name: str) -> str:
    """Return a one-layer file's dataset under the name that files of more layers have."""
    for side in ("RNN_0", "RNN_1"):
        short = f"{side}/RNN/LSTMCell/"
        if name.startswith(short):
            return f"{side}/RNN/MultiRNNCell/Cell0/LSTMCell/{name.removeprefix(short)}"
    return name


def _is_padded(entry: _Entry, shape: tuple[int, ...] | None) -> bool:
    """Whether a character table has AllenNLP's row of zeros in front."""
    return entry.name == "char_embed" and shape == (entry.shape[0] + 1, entry.shape[1])


def _check_extra(extra: set[str], called: Mapping[str, str]) -> None:
    """Refuse datasets of a larger network than the options describe, warn of foreign ones."""
    reasons = {
        "CNN/": "char_cnn.filters",
        "CNN_high_": "char_cnn.n_highway",
        "CNN_proj/": "char_cnn",
        "RNN_": "lstm.n_layers or lstm.projection_dim",
    }
    foreign = []
    for name in sorted(extra - set(SOFTMAX_NAMES)):
        why = next((why for start, why in reasons.items() if name.startswith(start)), None)
        if why is not None:
            raise InputError(
                f"{called['weights']} has a dataset {name!r} that has no place in the model that "
                f"{called['options']} describes: {why} contradicts the weights"
            )
        foreign.append(name)
    if foreign:
        warnings.warn(f"{called['weights']}: unused datasets {', '.join(foreign)}", stacklevel=2)


def _losses(model: Model) -> list[str]:
    """Say what of a model the written files do not hold."""
    config, notes = model.config, []
    if config.lstm.forget_bias != 1.0:
        notes.append(
            f"the forget bias of {config.lstm.forget_bias} went into the stored bias, since "
            "bilm-tf adds 1.0 itself: values may differ in the last bit"
        )
    if model.softmax is not None and config.adaptive is not None:
        notes.append(
            "the adaptive softmax was left out: bilm-tf's files have one softmax for all words"
        )
    if model.mixes:
        notes.append("the learned mixes were left out: bilm-tf's files have no place for them")
    if config.tokenizer != TokenizerConfig(name="words", version="1"):
        notes.append(f"the tokeniser {config.tokenizer.name!r} is not named in bilm-tf's options")
    other = [key for key in config.training if key not in TRAINING]
    if other:
        notes.append(f"facts of the training were left out: {', '.join(other)}")
    recipe = config.training.get("recipe")
    run = recipe.get("model") if isinstance(recipe, dict) else None
    if isinstance(run, dict) and run.get("directions") == "forward":
        notes.append("that only the forward direction was trained: the backward one is random")
    characters = config.characters
    if characters and config.token_projection and characters.n_filters == config.lstm.projection:
        notes.append(
            "bilm-tf will not read the token projection, since there are as many filters as the "
            "LSTM is wide (AllenNLP will)"
        )
    return notes


def _to_write(model: Model, name: str) -> Array:
    """Return a tensor as bilm-tf holds it: the forget bias lacks the 1.0 added at run time."""
    array, lstm = _numpy(model.tensors[name]), model.config.lstm
    of_gates = name.startswith(("forward_layers.", "backward_layers.")) and name.endswith(".bias")
    if of_gates and lstm.forget_bias != 1.0:
        array = array.copy()
        array[lstm.cells : 2 * lstm.cells] += np.float32(lstm.forget_bias - 1.0)
    return array


def _numpy(tensor: Tensor) -> Array:
    array: Array = tensor.detach().to("cpu", torch.float32).numpy()
    return array
