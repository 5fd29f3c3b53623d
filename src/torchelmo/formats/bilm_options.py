"""bilm-tf's options.json to our config and back.

`n_characters` may be 261 (what bilm-tf wants while training), 262 (what it wants for prediction) or
absent: the table of characters has 261 rows in every file. The options written say 262; to test or
train on with bilm-tf, make it 261. All other options that those need are written for a model that
has its vocabulary: of the run that made it where that is known, else of the original model's run.
"""

from __future__ import annotations

import warnings

from torchelmo.config import (
    BEGIN,
    END,
    CharacterConfig,
    ElmoConfig,
    Json,
    LstmConfig,
    TokenizerConfig,
    WordConfig,
)
from torchelmo.errors import InputError

# What bilm-tf's training reads besides the network's shape; kept in `config.training`.
TRAINING = (
    "bidirectional",
    "dropout",
    "all_clip_norm_val",
    "n_epochs",
    "n_train_tokens",
    "batch_size",
    "n_tokens_vocab",
    "unroll_steps",
    "n_negative_samples_batch",
    "learning_rate",
    "sample_softmax",
    "share_embedding_softmax",
)
# The original model's run, and where a run of ours has the same; both as bilm-tf counts.
ORIGINAL: Json = {
    "bidirectional": True,
    "dropout": 0.1,
    "all_clip_norm_val": 10.0,
    "n_epochs": 10,
    "n_train_tokens": 768648884,
    "batch_size": 128,
    "unroll_steps": 20,
    "n_negative_samples_batch": 8192,
}
RECALLED = {
    "dropout": "recipe.train.dropout",
    "all_clip_norm_val": "recipe.train.clip_norm",
    "n_train_tokens": "corpus.train.tokens",
    "batch_size": "recipe.train.batch",
    "unroll_steps": "recipe.train.unroll",
    "n_negative_samples_batch": "recipe.train.negatives",
}
LSTM = ("dim", "projection_dim", "n_layers", "cell_clip", "proj_clip", "use_skip_connections")
CHARACTERS = (
    "activation",
    "embedding",
    "filters",
    "max_characters_per_token",
    "n_characters",
    "n_highway",
)


def read_options(
    options: Json,
    *,
    where: str = "options.json",
    words: int | None = None,
    token_projection: bool = False,
) -> ElmoConfig:
    """Make a config of bilm-tf's options.

    Args:
        options: the parsed options.json.
        where: names the options in errors.
        words: rows of the word table, if the weights have one; `n_tokens_vocab` stands in.
        token_projection: whether the weights have a projection after the filters where none is
            needed, because there are as many filters as the LSTM is wide.
    """
    try:
        return _config(options, words, token_projection)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def write_options(config: ElmoConfig) -> Json:
    """Make bilm-tf's options of a config, or say what they cannot express."""
    lstm, characters = config.lstm, config.characters
    if characters is not None and characters.scheme != "bytes":
        raise InputError(
            f"bilm-tf spells words in bytes, this model in {characters.scheme}: "
            "write the native format"
        )
    if characters is not None and config.words is not None:
        raise InputError(
            "bilm-tf reads characters or words, this model both: write the native format"
        )
    if config.words is not None and config.token_projection:
        raise InputError(
            "bilm-tf gives word vectors to the LSTM as they are, this model projects them first: "
            "write the native format"
        )
    if lstm.project and lstm.projection >= lstm.cells:
        raise InputError(
            f"bilm-tf has no projection from {lstm.cells} cells to {lstm.projection} values, only "
            "to fewer values than cells: write the native format"
        )
    if config.boundaries != (BEGIN, END):
        raise InputError(
            f"bilm-tf marks sentences with {BEGIN} and {END}, this model with "
            f"{' and '.join(config.boundaries)}: write the native format"
        )
    options = _training(config)
    options["lstm"] = {
        "dim": lstm.cells,
        "projection_dim": lstm.projection,
        "n_layers": lstm.layers,
        "cell_clip": _plain(lstm.cell_clip),
        "proj_clip": _plain(lstm.projection_clip),
        "use_skip_connections": lstm.residual,
    }
    if characters is not None:
        options["char_cnn"] = {
            "activation": characters.activation,
            "embedding": {"dim": characters.dim},
            "filters": [list(pair) for pair in characters.filters],
            "max_characters_per_token": characters.max_characters,
            "n_characters": 262,
            "n_highway": characters.highways,
        }
    return options


def _training(config: ElmoConfig) -> Json:
    """Return what bilm-tf's training and test read besides the network's shape."""
    known = {key: config.training[key] for key in TRAINING if key in config.training}
    targets = config.words.words if config.words is not None else config.vocabulary
    if targets is None:
        return known
    options = {**ORIGINAL, **_recalled(config.training), **known, "n_tokens_vocab": targets}
    # Negatives are drawn without repetition.
    if "n_negative_samples_batch" not in known:
        options["n_negative_samples_batch"] = min(options["n_negative_samples_batch"], targets)
    return {key: options[key] for key in TRAINING if key in options}


def _recalled(training: Json) -> Json:
    """Return bilm-tf's options for the run that a model of ours remembers."""

    def recall(name: str) -> object:
        value: object = training
        for key in name.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def number(name: str) -> float | None:
        value = recall(name)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    found: Json = {key: number(name) for key, name in RECALLED.items()}
    epochs = number("recipe.train.epochs")
    words, sentences = number("corpus.train.tokens"), number("corpus.train.sentences")
    read = number("tokens")
    if epochs is None and words and sentences and read:
        epochs = read / (words + sentences)
    if epochs is not None:
        found["n_epochs"] = max(round(epochs), 1)  # a whole number of epochs, or it never ends
    if recall("recipe.train.optimizer") == "adagrad":  # the rate of another is no use to bilm-tf
        found["learning_rate"] = number("recipe.train.learning_rate")
    if recall("recipe.train.softmax") == "full":
        found["sample_softmax"] = False
    if recall("recipe.model.tie") is True:
        found["share_embedding_softmax"] = True
    return {key: value for key, value in found.items() if value is not None}


def warn_unused(options: Json, where: str) -> None:
    """Name in one warning every option that is of no use here; real files carry some."""
    known = {"": (*TRAINING, "lstm", "char_cnn"), "lstm": LSTM, "char_cnn": CHARACTERS}
    unused: list[str] = []
    for part, keys in known.items():
        inner = options.get(part) if part else options
        if isinstance(inner, dict):
            unused += [f"{part}.{key}".lstrip(".") for key in inner if key not in keys]
    if unused:
        warnings.warn(f"{where}: unused options {', '.join(unused)}", stacklevel=2)


def _config(options: Json, words: int | None, token_projection: bool) -> ElmoConfig:
    if options.get("bidirectional", True) is not True:
        raise InputError(
            f"bidirectional is {options['bidirectional']!r}, but only models of both directions "
            "are supported"
        )
    cells, width = _whole(options, "lstm.dim"), _whole(options, "lstm.projection_dim")
    if width > cells:
        raise InputError(
            f"lstm.projection_dim is {width}, above lstm.dim {cells}: a projection must be "
            "narrower than the cells, or as wide (then there is none)"
        )
    lstm = LstmConfig(
        cells=cells,
        projection=width,
        layers=_whole(options, "lstm.n_layers", 1),
        cell_clip=_number(options, "lstm.cell_clip"),
        projection_clip=_number(options, "lstm.proj_clip"),
        residual=_flag(options, "lstm.use_skip_connections"),
        project=width < cells,
    )
    characters, table = None, None
    if "char_cnn" in options:
        characters = _characters(options)
        token_projection = token_projection or characters.n_filters != width
    else:
        count = words if words is not None else _whole(options, "n_tokens_vocab")
        table, token_projection = WordConfig(words=count, dim=width), False
    return ElmoConfig(
        characters=characters,
        words=table,
        lstm=lstm,
        token_projection=token_projection,
        tokenizer=TokenizerConfig(name="words", version="1"),
        training={key: options[key] for key in TRAINING if key in options},
    )


def _characters(options: Json) -> CharacterConfig:
    filters = _value(options, "char_cnn.filters", needed=True)
    pairs: list[tuple[int, int]] = []
    for pair in filters if isinstance(filters, list) else [filters]:
        if not isinstance(pair, list) or [type(number) for number in pair] != [int, int]:
            raise InputError(f"char_cnn.filters has {pair!r}, expected [width, number]")
        pairs.append((pair[0], pair[1]))
    activation = _value(options, "char_cnn.activation", needed=True)
    if activation not in ("relu", "tanh"):
        raise InputError(f"char_cnn.activation is {activation!r}, expected 'relu' or 'tanh'")
    rows = _whole(options, "char_cnn.n_characters", 262)
    if rows not in (261, 262):
        raise InputError(f"char_cnn.n_characters is {rows}, expected 261 or 262")
    return CharacterConfig(
        max_characters=_whole(options, "char_cnn.max_characters_per_token"),
        dim=_whole(options, "char_cnn.embedding.dim"),
        filters=tuple(pairs),
        activation="tanh" if activation == "tanh" else "relu",
        highways=_whole(options, "char_cnn.n_highway", 0),
    )


def _value(options: Json, name: str, *, needed: bool = False) -> object:
    """Return an option by its dotted name, or None where it is absent or null."""
    value: object = options
    path = name.split(".")
    for depth, key in enumerate(path):
        if not isinstance(value, dict):
            raise InputError(f"{'.'.join(path[:depth])} is {value!r}, expected an object")
        value = value.get(key)
        if value is None:
            break
    if value is None and needed:
        raise InputError(f"the option {name} is missing")
    return value


def _whole(options: Json, name: str, default: int | None = None) -> int:
    value = _value(options, name, needed=default is None)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{name} is {value!r}, expected a whole number")
    return value


def _number(options: Json, name: str) -> float | None:
    value = _value(options, name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > 1e30:
        raise InputError(f"{name} is {value!r}, expected a number or null")
    return float(value)


def _flag(options: Json, name: str) -> bool:
    value = _value(options, name)
    if value is not None and not isinstance(value, bool):
        raise InputError(f"{name} is {value!r}, expected true or false")
    return bool(value)


def _plain(value: float | None) -> float | None:
    """Return 3.0 as 3, as the originals' files have it."""
    return int(value) if value is not None and value.is_integer() else value
