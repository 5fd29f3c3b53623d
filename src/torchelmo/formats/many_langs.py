"""ELMoForManyLangs' folders: config.json, char.dic, word.dic, token_embedder.pkl, encoder.pkl.

Its token layer joins a word's vector with a character CNN over Unicode code points (either may be
missing); its LSTMs are AllenNLP's. Three habits of the original are kept because its weights were
trained with them: a word begins with the mark `<eow>` and ends with `<bow>`, a word of over
`max_characters - 2` code points is cut before both look-ups, and its boundary words are `<bos>` and
`<eos>`. Rows of characters no text can reach (entries of more than one code point) are left out.

config.json names the file of the architecture by a path on the machine that trained the model. That
file is looked for in the folder by its name, then among its other JSON files. It is believed only
in what shapes cannot say: activation, clips, characters of a word. Without it they are those of the
published models.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path, PureWindowsPath
from typing import Literal

import torch
from torch import Tensor

from torchelmo.config import UNKNOWN, ElmoConfig, Json, WordConfig
from torchelmo.errors import InputError
from torchelmo.formats import files, state_dict
from torchelmo.formats.allennlp import Names, collect, infer, shape
from torchelmo.formats.model import Model

TOKENS, ENCODER = "token_embedder.pkl", "encoder.pkl"
BOUNDARIES = ("<bos>", "<eos>")
MARKS = (*BOUNDARIES, "<eow>", "<bow>", "<pad>", "<oov>")  # in the order of our rows: see above
IDEOGRAPHIC_SPACE = "\u3000"

NAMES = Names(
    characters="char_emb_layer.embedding.weight",
    convolution="convolutions.{}",
    highway="highways._layers.{}",
    projection="projection",
    lstm="{}_layer_{}",
    words="word_emb_layer.embedding.weight",
)


def read(folder: Path) -> Model:
    """Read a folder of ELMoForManyLangs."""
    if not recognises(folder):
        raise InputError(
            f"{folder} is not a folder of ELMoForManyLangs: expected {TOKENS} and {ENCODER} in it"
        )
    architecture = _architecture(folder)
    tensors = state_dict.read_file(folder / TOKENS)
    _check_kind(folder, tensors, architecture, "token_embedder", "cnn", "char_lstm.weight_ih_l0")
    encoder = state_dict.read_file(folder / ENCODER)
    _check_kind(folder, encoder, architecture, "encoder", "elmo", "encoder.weight_ih_l0")
    tensors |= encoder

    alphabet: list[str] = []
    words: list[str] | None = None
    character_rows = word_rows = torch.zeros(0, dtype=torch.long)
    if NAMES.characters in tensors:
        path = folder / "char.dic"
        rows = read_dictionary(path, shape(tensors, NAMES.characters, 2, str(folder))[0])
        missing = [mark for mark in MARKS if mark not in rows]
        if missing:
            raise InputError(f"{path} lacks the mark {missing[0]}, which every model has")
        alphabet = [symbol for symbol in rows if len(symbol) == 1]
        character_rows = torch.tensor([rows[symbol] for symbol in (*alphabet, *MARKS)])
    if NAMES.words in tensors:
        count = shape(tensors, NAMES.words, 2, str(folder))[0]
        words, word_rows = _words(folder / "word.dic", count)

    config = _config(tensors, architecture, len(alphabet), words, str(folder))
    table = NAMES.table(config, lambda t: t[character_rows], lambda t: t[word_rows])
    return Model(
        config, collect(tensors, table, config, str(folder)), words=words, alphabet=alphabet
    )


def recognises(folder: Path) -> bool:
    """Whether a folder holds the two files of weights that ELMoForManyLangs writes."""
    return (folder / TOKENS).is_file() and (folder / ENCODER).is_file()


def read_dictionary(path: Path, rows: int) -> dict[str, int]:
    """Read lines of token, tab, row number, in order of the rows.

    A line with white space for a token, or none, stands for the ideographic space: the original
    strips lines before it splits them.
    """
    text = files.decode(files.read_bytes(path, files.LIST_BYTES), str(path))
    found: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        token, tab, row = line.strip().rpartition("\t")
        if not tab:
            token = IDEOGRAPHIC_SPACE
        if not re.fullmatch("[0-9]{1,10}", row) or int(row) >= rows:
            raise InputError(
                f"{path} has {row!r} in line {number}, expected a token, a tab and a row number "
                f"below {rows}"
            )
        found[token] = int(row)
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _words(path: Path, rows: int) -> tuple[list[str], Tensor]:
    """Return the words in order of their rows, and the rows; unknown words have our own name."""
    numbers = read_dictionary(path, rows)
    missing = [word for word in (*BOUNDARIES, "<oov>") if word not in numbers]
    if missing:
        raise InputError(f"{path} lacks the word {missing[0]}, which every model has")
    numbers.pop(UNKNOWN, None)  # a word of the text that looks like it gives way
    words = [UNKNOWN if word == "<oov>" else word for word in numbers]
    return words, torch.tensor(list(numbers.values()))


def _config(
    tensors: dict[str, Tensor],
    architecture: Json,
    symbols: int,
    words: list[str] | None,
    where: str,
) -> ElmoConfig:
    token, encoder = architecture.get("token_embedder", {}), architecture.get("encoder", {})
    activation: Literal["relu", "tanh"] = "relu"
    if (name := token.get("activation", "relu")) == "tanh":
        activation = "tanh"
    elif name != "relu":
        raise InputError(f"{where} has the activation {name!r}, expected relu or tanh")
    length = token.get("max_characters_per_token", 50)
    if not isinstance(length, int) or isinstance(length, bool):
        raise InputError(f"{where} has max_characters_per_token {length!r}, expected a number")
    config = infer(
        tensors,
        NAMES,
        where,
        scheme="codepoints",
        symbols=symbols,
        max_characters=length,
        activation=activation,
        cell_clip=_clip(encoder, "cell_clip", where),
        projection_clip=_clip(encoder, "proj_clip", where),
    )
    if words is not None and config.words is not None:
        config = replace(config, words=WordConfig(words=len(words), dim=config.words.dim))
    return replace(config, boundaries=BOUNDARIES)


def _clip(encoder: Json, name: str, where: str) -> float | None:
    value = encoder.get(name, 3.0)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return float(value) if value else None  # the original takes 0 for no clip
    raise InputError(f"{where} has {name} {value!r}, expected a number")


def _architecture(folder: Path) -> Json:
    """Return the JSON object with the architecture, or an empty one if there is none."""
    name = None
    if (folder / "config.json").is_file():
        named = files.read_json(folder / "config.json").get("config_path")
        name = PureWindowsPath(str(named)).name  # takes the paths of either kind of machine
    for path in sorted(folder.glob("*.json"), key=lambda path: (path.name != name, path.name)):
        try:
            found = files.read_json(path)
        except InputError:
            if path.name == name:
                raise
            continue
        if all(isinstance(found.get(part), dict) for part in ("token_embedder", "encoder")):
            return found
    return {}


def _check_kind(
    folder: Path,
    tensors: dict[str, Tensor],
    architecture: Json,
    part: str,
    expected: str,
    lstm: str,
) -> None:
    """Refuse the kinds of network that are not ELMo's."""
    name = architecture.get(part, {}).get("name", expected)
    if lstm in tensors:
        name = "lstm"
    if str(name).lower() != expected:
        raise InputError(
            f"{folder} has a {part} of the kind {name!r}: only {expected!r}, as in the published "
            "models, is supported"
        )
