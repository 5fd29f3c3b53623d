"""What a biLM is made of: frozen dataclasses with a JSON round trip, and the published sizes.

The names are ours; `formats/` maps them to the keys of other programs. An unknown key or a wrong
type raises one sentence that names the nearest known key or the expected type.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from torchelmo.errors import InputError

FORMAT_VERSION = "1.1"  # the newest that is read here
BEGIN, END, UNKNOWN = "<S>", "</S>", "<UNK>"  # the boundaries, and what unlisted words become

# (width, number of filters): 2048 in all, the same for every published English model.
FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))

RISING = "1 to 16 rising numbers of words, from 1 up"  # what `rising` asks for

Json = dict[str, Any]  # a parsed JSON object: its values are checked where they are used
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class CharacterConfig:
    """The character CNN: how a word is spelt, and the n-gram filters over its spelling."""

    scheme: Literal["bytes", "codepoints", "jamo"] = "bytes"
    max_characters: int = 50  # with the begin-word and end-word marks
    symbols: int = 256  # the alphabet, marks not counted
    dim: int = 16
    filters: tuple[tuple[int, int], ...] = FILTERS
    activation: Literal["relu", "tanh"] = "relu"
    highways: int = 1

    def __post_init__(self) -> None:
        _check_range("characters.max_characters", self.max_characters, 3, 10_000)
        _check_range("characters.symbols", self.symbols, 1, 65_000)
        _check_range("characters.dim", self.dim, 1, 1 << 16)
        _check_range("characters.highways", self.highways, 0, 64)
        _check_range("characters.filters (how many)", len(self.filters), 1, 256)
        for width, count in self.filters:
            _check_range("characters.filters (width)", width, 1, self.max_characters)
            _check_range("characters.filters (count)", count, 1, 1 << 20)
        if self.scheme == "bytes" and self.symbols != 256:
            raise InputError(f"the bytes scheme has 256 symbols, not {self.symbols}")

    @property
    def rows(self) -> int:
        """Rows of the character embedding: symbols, five marks and, except for bytes, unknown."""
        return self.symbols + (5 if self.scheme == "bytes" else 6)

    @property
    def n_filters(self) -> int:
        """Width of the vector that the filters give."""
        return sum(count for _, count in self.filters)


@dataclass(frozen=True, kw_only=True)
class WordConfig:
    """A table of word vectors at the input: alone, or in front of the character CNN's vector."""

    words: int
    dim: int

    def __post_init__(self) -> None:
        _check_range("words.words", self.words, 1, 1 << 31)
        _check_range("words.dim", self.dim, 1, 1 << 16)


@dataclass(frozen=True, kw_only=True)
class LstmConfig:
    """One stack of LSTM layers; the forward and the backward stack are alike."""

    cells: int = 4096
    projection: int = 512
    layers: int = 2
    cell_clip: float | None = 3.0
    projection_clip: float | None = 3.0
    residual: bool = True  # from the second layer on, the layer's input is added to its output
    project: bool = True  # False: the hidden state itself is the output, as wide as the cells
    forget_bias: float = 1.0  # added at run time, not part of the stored bias

    def __post_init__(self) -> None:
        _check_range("lstm.cells", self.cells, 1, 1 << 20)
        _check_range("lstm.projection", self.projection, 1, 1 << 20)
        _check_range("lstm.layers", self.layers, 1, 64)
        for name in ("cell_clip", "projection_clip"):
            clip = getattr(self, name)
            if clip is not None and not clip > 0:
                raise InputError(f"lstm.{name} must be a positive number or null, not {clip}")
        if not self.project and self.projection != self.cells:
            raise InputError(
                "an LSTM without projection gives vectors as wide as its cells: "
                f"lstm.projection is {self.projection}, lstm.cells {self.cells}"
            )


@dataclass(frozen=True, kw_only=True)
class AdaptiveConfig:
    """A softmax in clusters: which words each has, and how narrow it is.

    >>> AdaptiveConfig(cutoffs=(2000, 10000)).widths(512)  # words from 2000 and from 10000 on
    [128, 32]
    """

    cutoffs: tuple[int, ...]  # the id of each cluster's first word; those before are in the head
    div_value: float = 4.0  # how many times narrower each cluster is than the one before

    def __post_init__(self) -> None:
        if not rising(self.cutoffs):
            raise InputError(f"adaptive.cutoffs is {list(self.cutoffs)}, expected {RISING}")
        if not 1 <= self.div_value <= 1000:
            raise InputError(f"adaptive.div_value is {self.div_value}, expected 1 to 1000")

    def widths(self, projection: int) -> list[int]:
        """Return the width of each cluster, at least 1, for hidden vectors of a width."""
        count = range(1, len(self.cutoffs) + 1)
        return [max(int(projection // self.div_value**number), 1) for number in count]


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """The word tokeniser whose tokens the model was trained on."""

    name: str = "words"
    version: str = "1"


@dataclass(frozen=True, kw_only=True)
class ElmoConfig:
    """A whole biLM.

    >>> ElmoConfig.preset("small").width
    256
    """

    characters: CharacterConfig | None = field(default_factory=CharacterConfig)
    words: WordConfig | None = None
    lstm: LstmConfig = field(default_factory=LstmConfig)
    token_projection: bool = True  # a linear layer from the token vector to the LSTM's input
    vocabulary: int | None = None  # targets of the softmax
    adaptive: AdaptiveConfig | None = None  # the softmax is in clusters; None: one for all words
    boundaries: tuple[str, str] = (BEGIN, END)  # the words that stand for a sentence's two ends
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    training: Json = field(default_factory=dict)  # what is known of the training run
    format_version: str = FORMAT_VERSION

    def __post_init__(self) -> None:
        if self.characters is None and self.words is None:
            raise InputError("a model needs characters or words at its input, the config has none")
        if not self.token_projection and self.token_width != self.lstm.projection:
            raise InputError(
                f"token vectors of width {self.token_width} need token_projection to enter an "
                f"LSTM of width {self.lstm.projection}"
            )
        if self.adaptive is not None and self.adaptive.cutoffs[-1] >= (self.vocabulary or 0):
            raise InputError(
                f"adaptive.cutoffs is {list(self.adaptive.cutoffs)}, expected numbers below that "
                f"of the words, vocabulary, which is {self.vocabulary}"
            )

    @property
    def token_width(self) -> int:
        """Width of a token's vector before the linear projection."""
        words = self.words.dim if self.words else 0
        return words + (self.characters.n_filters if self.characters else 0)

    @property
    def width(self) -> int:
        """D, the width of one layer: the two directions side by side."""
        return 2 * self.lstm.projection

    @property
    def n_layers(self) -> int:
        """L+1: the token layer and the LSTM layers."""
        return self.lstm.layers + 1

    @classmethod
    def preset(cls, name: str) -> ElmoConfig:
        """Return a published size: small (13.6 M parameters), medium (28.0) or original (93.6)."""
        sizes = {"small": (1024, 128, 1), "medium": (2048, 256, 1), "original": (4096, 512, 2)}
        if name not in sizes:
            raise InputError(f"there is no preset {name!r}{nearest(name, sizes)}")
        cells, projection, highways = sizes[name]
        return cls(
            characters=CharacterConfig(highways=highways),
            lstm=LstmConfig(cells=cells, projection=projection),
        )

    def to_json(self) -> Json:
        """Return a JSON object that `from_json` reads back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Json) -> ElmoConfig:
        """Read a JSON object; a newer major format version is refused."""
        version = data.get("format_version", FORMAT_VERSION) if isinstance(data, dict) else ""
        major, _, _ = str(version).partition(".")
        if isinstance(data, dict) and major.isdigit() and int(major) > int(FORMAT_VERSION[0]):
            raise InputError(
                f"the model has format version {version}, this torchelmo reads up to "
                f"{FORMAT_VERSION}: upgrade torchelmo"
            )
        return from_json(cls, data, "config")


def from_json(cls: type[T], data: object, where: str) -> T:
    """Make a dataclass from a JSON object, checking each key and type.

    >>> from_json(LstmConfig, {"cels": 8}, "lstm")
    Traceback (most recent call last):
    torchelmo.errors.InputError: lstm has no key 'cels', the nearest is 'cells'
    """
    if not isinstance(data, dict):
        raise InputError(f"{where} must be an object, not {type(data).__name__}")
    hints = typing.get_type_hints(cls)
    for key in data:
        if key not in hints:
            raise InputError(f"{where} has no key {key!r}{nearest(key, hints)}")
    values = {key: _convert(hints[key], value, f"{where}.{key}") for key, value in data.items()}
    try:
        return cls(**values)
    except TypeError as error:
        raise InputError(f"{where} is incomplete: {error}") from None


def rising(cutoffs: typing.Sequence[int]) -> bool:
    """Whether there are one to 16 numbers, from 1 up, each larger than the one before."""
    borders = (0, *cutoffs)
    return 1 <= len(cutoffs) <= 16 and all(a < b for a, b in itertools.pairwise(borders))


def nearest(word: str, known: typing.Iterable[str]) -> str:
    """Return ", the nearest is 'x'" for the closest known word, or a list if none is close."""
    names = [str(name) for name in known]
    match = difflib.get_close_matches(str(word), names, n=1)
    if match:
        return f", the nearest is {match[0]!r}"
    return ", known are " + ", ".join(names) if names else ""


def _convert(hint: Any, value: object, where: str) -> object:  # noqa: ANN401 - a type hint
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in args:
            return None
        (inner,) = (a for a in args if a is not type(None))
        return _convert(inner, value, where)
    if dataclasses.is_dataclass(hint):
        return from_json(typing.cast("type[object]", hint), value, where)
    if origin is Literal:
        if value not in args:
            raise InputError(f"{where} is {value!r}, expected one of {', '.join(map(str, args))}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple) or (args[-1] is not ... and len(value) != len(args)):
            raise InputError(f"{where} is {value!r}, expected a list as in {hint}")
        inner_types = [args[0]] * len(value) if args[-1] is ... else list(args)
        return tuple(_convert(a, v, where) for a, v in zip(inner_types, value, strict=True))
    kind = origin or hint
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InputError(f"{where} is {value!r}, expected {kind.__name__}")
    return value


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InputError(f"{name} is {value}, expected {low} to {high}")
