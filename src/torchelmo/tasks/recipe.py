"""A task's run as a file: TOML, every key checked, unknown ones named with the nearest known.

task = "ner"

[words]              # word vectors; leave the section out to do without, so also the next three
vectors = "glove"

[characters]         # the task's own character CNN

[cove]               # the frozen LSTM of a translator, over vectors of 300 dimensions
weights = "MT-LSTM.pth"

[elmo]               # a frozen biLM's layers, mixed
model = "en-small"
where = "input"

[network]            # keys of the task's own network

[train]
epochs = 75
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from torchelmo.config import Json, from_json, nearest
from torchelmo.errors import InputError
from torchelmo.formats import toml
from torchelmo.nn.scalar_mix import LayerNorm

Where = Literal["input", "output", "both", "none"]
MIXES: tuple[Literal["learned", "average", "top"], ...] = ("learned", "average", "top")
NONE = "none"  # how TOML, which has no null, spells it: for these keys, and to drop a section
_NULLABLE = {
    ("words", "vectors"),
    ("cove", "vectors"),
    ("elmo", "layer_norm"),
    ("elmo", "reads"),
    *(("train", n) for n in ("patience", "halve_after", "clip_norm", "clip_value", "ema")),
}
_SECTIONS = ("words", "characters", "cove", "elmo")


@dataclass(frozen=True, kw_only=True)
class DataRecipe:
    """The files, and how the task's reader takes them."""

    train: str | None = None
    valid: str | None = None
    test: str | None = None
    hold_out: float = 0.0  # without `valid`, this share of `train`, the same for every seed
    reader: Json = field(default_factory=dict)  # keys of the task's reader
    tokenizer: str | None = None  # of raw text to predict; the biLM's own, or "words"

    def __post_init__(self) -> None:
        check_share("data.hold_out", self.hold_out)


@dataclass(frozen=True, kw_only=True)
class WordsRecipe:
    """Word vectors: from a file, fixed or tuned, or learned from nothing."""

    vectors: str | None = "glove"  # the installed package, a text file, or none to begin at random
    dim: int = 50  # of vectors that begin at random
    tuned: bool = False  # without a file they always are
    closed: bool = False  # keep the vectors of the data's words with the model, ask no file again
    common: int = 0  # with `closed`: and those of the first so many words of the file
    min_count: int = 1  # how often a word of the training data comes that gets a row of its own
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name, low in (("dim", 1), ("min_count", 1), ("common", 0)):
            check(
                f"words.{name}", getattr(self, name), getattr(self, name) >= low, f"{low} or more"
            )
        check_share("words.dropout", self.dropout)


@dataclass(frozen=True, kw_only=True)
class CharactersRecipe:
    """A character CNN of the task's own: relu, the largest over the positions of a word."""

    dim: int = 16
    filters: int = 128
    width: int = 3
    max_characters: int = 50  # further ones of a word are not read
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("dim", "filters", "width", "max_characters"):
            check(f"characters.{name}", getattr(self, name), getattr(self, name) >= 1, "1 or more")
        check_share("characters.dropout", self.dropout)


@dataclass(frozen=True, kw_only=True)
class CoveRecipe:
    """CoVe (McCann et al. 2017), beside the word vectors that it reads or without them."""

    weights: str  # a file: MT-LSTM.pth, or its tensors as safetensors
    vectors: str | None = None  # GloVe 840B 300d; by default those of `words`
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_share("cove.dropout", self.dropout)


@dataclass(frozen=True, kw_only=True)
class ElmoRecipe:
    """The layers of a frozen biLM: which, where they are added, and how they are mixed."""

    model: str = "en-small"  # a packaged or published name, a folder, a hub id
    where: Where = "input"
    mix: str = "learned"  # or average, top, or a layer's number
    reads: Literal["words", "tokens"] | None = None  # "tokens": its own, a word is their mean
    penalty: float = 0.001  # lambda: how strongly learned weights are drawn to the average
    layer_norm: LayerNorm | None = None
    dropout: float = 0.5
    keep: Literal["memory", "disk", "none"] = "memory"  # the layers of a data set, computed once
    keep_gb: float = 16.0  # in memory at most; beyond that they are computed in every pass
    folder: str | None = None  # of keep = "disk", where float16 is written

    def __post_init__(self) -> None:
        if self.mix not in MIXES and not self.mix.removeprefix("-").isdigit():
            raise InputError(
                f"elmo.mix is {self.mix!r}, expected {', '.join(MIXES)} or a layer's number"
            )
        check("elmo.penalty", self.penalty, 0 <= self.penalty < math.inf, "0 or more")
        check("elmo.keep_gb", self.keep_gb, self.keep_gb >= 0, "0 or more")
        check_share("elmo.dropout", self.dropout)
        if self.keep == "disk" and self.folder is None:
            raise InputError('elmo.keep = "disk" needs elmo.folder, where the layers are written')

    @property
    def kind(self) -> Literal["learned", "average", "top"] | int:
        """The mix as `ScalarMix` takes it."""
        named: dict[str, Literal["learned", "average", "top"]] = {name: name for name in MIXES}
        return named[self.mix] if self.mix in named else int(self.mix)


@dataclass(frozen=True, kw_only=True)
class TrainRecipe:
    """How long, how large, and with what step."""

    epochs: int = 75
    patience: int | None = 25  # stop after so many epochs without a better one
    batch: int = 64  # examples
    batch_tokens: int | None = None  # fewer examples where they have more words than this
    accumulate: int = 1  # batches a step of the optimizer
    optimizer: Literal["adam", "adadelta", "adagrad", "sgd"] = "adam"
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    rho: float = 0.95  # of adadelta
    weight_decay: float = 0.0  # on weight matrices, never on the mixes
    halve_after: int | None = None  # epochs without a better one, then half the learning rate
    decay: float = 1.0  # the learning rate is multiplied by this ...
    decay_steps: int = 100  # ... every so many steps
    clip_norm: float | None = 5.0
    clip_value: float | None = None
    ema: float | None = None  # validate and keep the moving average of the weights
    precision: Literal["float32", "tf32", "bf16"] = "float32"  # of products, on a GPU, in training
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "batch_tokens", "accumulate", "decay_steps", "patience"):
            value = getattr(self, name)
            check(f"train.{name}", value, value is None or value >= 1, "1 or more")
        for name in ("learning_rate", "clip_norm", "clip_value"):
            value = getattr(self, name)
            check(f"train.{name}", value, value is None or 0 < value < math.inf, "more than 0")
        for name in ("halve_after", "weight_decay", "seed"):
            value = getattr(self, name)
            check(f"train.{name}", value, value is None or value >= 0, "0 or more")
        for name, values in (("betas", self.betas), ("rho", (self.rho,)), ("ema", (self.ema,))):
            right = all(value is None or 0 <= value < 1 for value in values)
            check(f"train.{name}", getattr(self, name), right, "0 or more and below 1")
        check("train.decay", self.decay, 0 < self.decay <= 1, "more than 0 and at most 1")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One run of a task."""

    task: str
    data: DataRecipe = field(default_factory=DataRecipe)
    words: WordsRecipe | None = None
    characters: CharactersRecipe | None = None
    cove: CoveRecipe | None = None
    elmo: ElmoRecipe | None = None
    network: Json = field(default_factory=dict)  # keys of the task's network
    train: TrainRecipe = field(default_factory=TrainRecipe)

    def __post_init__(self) -> None:
        if self.cove is None:
            return
        given = {name for name in (self.words and self.words.vectors, self.cove.vectors) if name}
        if len(given) != 1:
            raise InputError(
                "CoVe reads one file of word vectors of 300 dimensions (GloVe 840B): name it as "
                f"words.vectors or cove.vectors, not {' and '.join(sorted(given)) or 'none'}"
            )

    @property
    def vectors(self) -> str | None:
        """The word vectors' file, of `words` or of `cove`."""
        own = None if self.words is None else self.words.vectors
        return own or (None if self.cove is None else self.cove.vectors)

    @property
    def bilm(self) -> ElmoRecipe | None:
        """The `elmo` section, if it is used at all."""
        return None if self.elmo is None or self.elmo.where == "none" else self.elmo

    def to_json(self) -> Json:
        """Return plain data that `recipe_from_json` reads."""
        return dataclasses.asdict(self)


def packaged_recipes() -> dict[str, Path]:
    """Return the tasks' recipes that come with this package, by name."""
    package = Path(__file__).resolve().parents[1]
    # Inside the package where it is installed, at the top of the repository in a clone.
    places = (package / "recipes", package.parents[1] / "recipes")
    home = next((place for place in places if place.is_dir()), places[0])
    return {path.stem: path for path in sorted((home / "tasks").glob("*.toml"))}


def read_recipe(name: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """Read a recipe, a file or the name of one of ours.

    `changes` are `section.key=value` with values as in TOML; `elmo=none` drops that section.

    >>> read_recipe("ner", ["train.batch=32", "elmo.where=none"]).train.batch
    32
    """
    path = _find(Path(name))
    data = toml.read(path)
    for change in changes:
        _apply(data, change)
    return recipe_from_json(data, str(path))


def recipe_from_json(data: Json, where: str) -> Recipe:
    """Make a recipe from plain data; `where` names it in errors."""
    plain: Json = {}
    for section, values in data.items():
        if isinstance(values, dict):
            values = {
                key: None if value == NONE and (section, key) in _NULLABLE else value
                for key, value in values.items()
            }
            if section == "elmo" and isinstance(values.get("mix"), int):
                values["mix"] = str(values["mix"])
        plain[section] = values
    return from_json(Recipe, plain, where)


def check(name: str, value: object, right: bool, expected: str) -> None:
    """Refuse a value in one sentence."""
    if not right:
        raise InputError(f"{name} is {value}, expected {expected}")


def check_share(name: str, value: float) -> None:
    """Refuse what is no share, as of dropout."""
    check(name, value, 0 <= value < 1, "0 or more and below 1")


def _find(path: Path) -> Path:
    if path.exists() or path.name != str(path) or path.suffix not in ("", ".toml"):
        return path
    ours = packaged_recipes()
    if path.stem in ours:
        return ours[path.stem]
    raise InputError(
        f"there is no file and no task's recipe {str(path)!r}{nearest(path.stem, ours)}"
    )


def _apply(data: Json, change: str) -> None:
    section, _, text = change.partition("=")
    if section.strip() in _SECTIONS and text.strip() == NONE:
        data.pop(section.strip(), None)
        return
    sections = [f.name for f in dataclasses.fields(Recipe) if f.name != "task"]
    toml.put(data, change, sections)
