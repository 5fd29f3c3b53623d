"""A training run as a file: TOML, every key checked, unknown ones named with the nearest known.

[model]
preset = "small"

[data]
corpus = "corpus"

[train]
epochs = 10
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from torchelmo.config import (
    RISING,
    AdaptiveConfig,
    CharacterConfig,
    ElmoConfig,
    Json,
    LstmConfig,
    WordConfig,
    from_json,
    nearest,
    rising,
)
from torchelmo.errors import InputError
from torchelmo.formats import toml


@dataclass(frozen=True, kw_only=True)
class ModelRecipe:
    """The network: a published size, and what is different from it."""

    preset: Literal["small", "medium", "original"] | None = "small"
    characters: Json = field(default_factory=dict)  # keys of CharacterConfig that differ
    lstm: Json = field(default_factory=dict)  # keys of LstmConfig that differ
    words: bool = False  # read whole words instead of characters
    vectors: str | None = None  # with `words`: a GloVe text file to start from
    tie: bool = False  # with `words`: the softmax shares the word table
    directions: Literal["both", "forward"] = "both"

    def __post_init__(self) -> None:
        for name, wanted in (("vectors", self.vectors is not None), ("tie", self.tie)):
            if wanted and not self.words:
                raise InputError(f"model.{name} is for models that read whole words: model.words")


@dataclass(frozen=True, kw_only=True)
class DataRecipe:
    """What is read, and in which order."""

    corpus: str
    shuffle: Literal["documents", "sentences", "none"] = "documents"
    independent: bool = True  # each direction in an order of its own, as bilm-tf reads
    reset_share: float = 0.0  # how likely a row forgets at a sentence's start

    def __post_init__(self) -> None:
        _check("data.reset_share", self.reset_share, 0 <= self.reset_share <= 1, "0 to 1")


@dataclass(frozen=True, kw_only=True)
class TrainRecipe:
    """How long, how large, and with what step."""

    batch: int = 128
    unroll: int = 20
    epochs: float | None = None  # 10 if there are no steps either
    steps: int | None = None  # instead of epochs
    accumulate: int = 1  # batches a step of the optimizer
    dropout: float = 0.1
    softmax: Literal["sampled", "full", "adaptive"] = "sampled"
    negatives: int = 8192
    cutoffs: tuple[int, ...] | None = None  # of adaptive: where clusters begin; None: by vocabulary
    div_value: float = 4.0  # of adaptive: each cluster is so many times narrower
    optimizer: Literal["adagrad", "adamw"] = "adagrad"
    learning_rate: float = 0.2
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    warmup: int = 0  # steps
    final_share: float = 0.0  # of the learning rate, at the end of cosine and linear
    clip_norm: float = 10.0
    loss_scale: Literal["unroll", "one"] = "unroll"  # bilm-tf's gradient is of loss * unroll
    precision: Literal["float32", "bf16"] = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise InputError("a recipe has either train.epochs or train.steps, not both")
        if self.epochs is None and self.steps is None:
            object.__setattr__(self, "epochs", 10.0)
        for name in ("batch", "unroll", "accumulate", "negatives"):
            _check(f"train.{name}", getattr(self, name), getattr(self, name) >= 1, "1 or more")
        for name in ("epochs", "steps", "learning_rate", "clip_norm"):
            value = getattr(self, name)
            right = value is None or 0 < value < math.inf
            _check(f"train.{name}", value, right, "more than 0")
        for name in ("warmup", "weight_decay", "seed"):
            _check(f"train.{name}", getattr(self, name), getattr(self, name) >= 0, "0 or more")
        for name, values in (("dropout", (self.dropout,)), ("betas", self.betas)):
            right = all(0 <= value < 1 for value in values)
            _check(f"train.{name}", getattr(self, name), right, "0 or more and below 1")
        if self.cutoffs is not None:
            _check("train.cutoffs", list(self.cutoffs), rising(self.cutoffs), RISING)
            if self.softmax != "adaptive":
                raise InputError('train.cutoffs is for train.softmax = "adaptive"')
        _check("train.div_value", self.div_value, 1 <= self.div_value <= 1000, "1 to 1000")
        _check("train.final_share", self.final_share, 0 <= self.final_share <= 1, "0 to 1")


@dataclass(frozen=True, kw_only=True)
class WatchRecipe:
    """What is measured and kept on the way."""

    validate: int = 1000  # steps between validations
    validate_tokens: int | None = None  # of the validation text; None takes all
    patience: int | None = None  # stop after so many validations without a better one
    checkpoint: int = 1000  # steps between checkpoints
    keep: int = 2  # checkpoints
    log: int = 100  # steps between lines of the log
    tensorboard: bool = False

    def __post_init__(self) -> None:
        for name in ("validate", "validate_tokens", "patience", "checkpoint", "keep", "log"):
            value = getattr(self, name)
            _check(f"watch.{name}", value, value is None or value >= 1, "1 or more")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training run."""

    data: DataRecipe
    model: ModelRecipe = field(default_factory=ModelRecipe)
    train: TrainRecipe = field(default_factory=TrainRecipe)
    watch: WatchRecipe = field(default_factory=WatchRecipe)

    def __post_init__(self) -> None:
        if self.model.tie and self.train.softmax == "adaptive":
            raise InputError(
                "model.tie shares the word table with a softmax of the same shape: "
                'choose another train.softmax than "adaptive"'
            )

    def to_json(self) -> Json:
        """Return plain data that `from_json` reads."""
        return dataclasses.asdict(self)

    def adaptive(self, vocabulary: int) -> AdaptiveConfig | None:
        """Return the clusters of an adaptive softmax over a vocabulary; None for the others."""
        train = self.train
        if train.softmax != "adaptive":
            return None
        cutoffs = default_cutoffs(vocabulary) if train.cutoffs is None else train.cutoffs
        if cutoffs[-1] >= vocabulary:
            raise InputError(
                f"train.cutoffs is {list(cutoffs)}, the vocabulary has {vocabulary} words: "
                "expected smaller numbers, or none to have them chosen"
            )
        return AdaptiveConfig(cutoffs=cutoffs, div_value=train.div_value)

    def config(self, corpus_characters: CharacterConfig, vocabulary: int) -> ElmoConfig:
        """Return the network for a corpus, whose character scheme is that of its text."""
        base = ElmoConfig.preset(self.model.preset) if self.model.preset else ElmoConfig()
        assert base.characters is not None
        scheme = {
            "scheme": corpus_characters.scheme,
            "max_characters": corpus_characters.max_characters,
            "symbols": corpus_characters.symbols,
        }
        for key in self.model.characters:
            if key in scheme:
                raise InputError(f"model.characters.{key} is the corpus's: prepare it with another")
        characters = {**dataclasses.asdict(base.characters), **scheme, **self.model.characters}
        lstm = {**dataclasses.asdict(base.lstm), **self.model.lstm}
        config = dataclasses.replace(
            base,
            characters=from_json(CharacterConfig, characters, "model.characters"),
            lstm=from_json(LstmConfig, lstm, "model.lstm"),
        )
        if self.model.words:
            table = WordConfig(words=vocabulary, dim=config.lstm.projection)
            return dataclasses.replace(
                config,
                characters=None,
                words=table,
                token_projection=False,
                vocabulary=vocabulary,
                adaptive=self.adaptive(vocabulary),
            )
        assert config.characters is not None
        projected = config.characters.n_filters != config.lstm.projection
        return dataclasses.replace(
            config,
            token_projection=projected,
            vocabulary=vocabulary,
            adaptive=self.adaptive(vocabulary),
        )


def default_cutoffs(vocabulary: int) -> tuple[int, ...]:
    """Return where clusters begin: the frequent words in the head, most words in the last.

    >>> default_cutoffs(800_000), default_cutoffs(100_000), default_cutoffs(1000)
    ((2000, 10000, 100000), (2000, 10000), (200, 500))
    """
    first = min(max(vocabulary // 5, 1), 2000)
    second = min(max(vocabulary // 2, first + 1), 10_000)
    return (first, second, 100_000) if vocabulary >= 250_000 else (first, second)


def packaged_recipes() -> dict[str, Path]:
    """Return the recipes that come with this package, by name."""
    package = Path(__file__).resolve().parents[1]
    # Inside the package where it is installed, at the top of the repository in a clone.
    home = next((p for p in (package, package.parents[1]) if (p / "recipes").is_dir()), package)
    return {path.stem: path for path in sorted((home / "recipes").glob("*.toml"))}


def find_recipe(name: str | Path) -> Path:
    """Return the file that is meant: one that is there, or else ours of that name."""
    path = Path(name)
    if path.exists() or path.name != str(path) or path.suffix not in ("", ".toml"):
        return path
    ours = packaged_recipes()
    if path.stem in ours:
        return ours[path.stem]
    if not path.suffix:
        raise InputError(
            f"there is no file and no recipe {str(path)!r}{nearest(path.name, list(ours))}"
        )
    return path


def read_recipe(name: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """Read a recipe, a file or the name of one of ours.

    `changes` are `section.key=value` with values as in TOML.

    >>> read_recipe("small", ["train.batch=64"]).train.batch
    64
    """
    path = find_recipe(name)
    data = toml.read(path)
    for change in changes:
        _apply(data, change)
    return from_json(Recipe, data, str(path))


def _apply(data: Json, change: str) -> None:
    section, key = toml.put(data, change, [f.name for f in dataclasses.fields(Recipe)])
    if section == "train" and key in ("steps", "epochs"):  # one takes the other's place
        data["train"].pop("epochs" if key == "steps" else "steps", None)


def _check(name: str, value: object, right: bool, expected: str) -> None:
    if not right:
        raise InputError(f"{name} is {value}, expected {expected}")
