"""Whether the parts of a model belong together: tensors, and the words that name their rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from torchelmo.config import BEGIN, END, UNKNOWN, ElmoConfig
from torchelmo.errors import InputError
from torchelmo.formats.model import Model, check_shapes, expected_shapes


def check_model(model: Model, where: str = "the model") -> None:
    """Raise one sentence for the first part of a model that does not fit its config."""
    config = model.config
    check_shapes(model.tensors, expected_shapes(config), where)
    check_words(config, model.words, where)
    check_alphabet(config, model.alphabet, where)
    if model.vocabulary is not None and config.vocabulary not in (None, len(model.vocabulary)):
        raise InputError(
            f"{where} has a vocabulary of {len(model.vocabulary)} words, its config says "
            f"{config.vocabulary}"
        )
    if model.softmax is not None:
        rows = None if model.vocabulary is None else len(model.vocabulary)
        rows = config.vocabulary if config.vocabulary is not None else rows
        shapes = softmax_shapes(config, shape_of(model.softmax), rows)
        check_shapes(model.softmax, shapes, f"the softmax of {where}")
    check_shapes(model.mixes, mix_shapes(config, list(model.mixes), where), f"{where}, mixes")


def check_words(config: ElmoConfig, words: Sequence[str] | None, where: str) -> None:
    """Check the input words: one for each row of the word table, none without one."""
    if config.words is None and words is not None:
        raise InputError(f"{where} has a list of input words, but its config has no word table")
    if config.words is not None and words is None:
        raise InputError(f"{where} reads whole words, but lacks the list of its input words")
    if config.words is not None and words is not None and len(words) != config.words.words:
        raise InputError(
            f"{where} has {len(words)} input words, its word table {config.words.words} rows"
        )


def check_alphabet(config: ElmoConfig, alphabet: Sequence[str], where: str) -> None:
    """Check the symbols: as many as the config says, none for bytes."""
    characters = config.characters
    expected = characters.symbols if characters and characters.scheme != "bytes" else 0
    if len(alphabet) != expected:
        raise InputError(f"{where} has an alphabet of {len(alphabet)} symbols, expected {expected}")


def check_vocabulary(words: Sequence[str], rows: int, where: str, of: str) -> None:
    """Check a vocabulary against the table whose rows it names, and for the three special words."""
    if len(words) != rows:
        raise InputError(
            f"{where} has {len(words)} words, {of} has {rows} rows: they do not belong together"
        )
    known = set(words)
    missing = [word for word in (UNKNOWN, BEGIN, END) if word not in known]
    if missing:
        raise InputError(f"{where} lacks {' and '.join(missing)}, which {of} needs")


def softmax_shapes(
    config: ElmoConfig, found: Mapping[str, tuple[int, ...]], rows: int | None
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a softmax of `rows` words, or of as many as it has itself."""
    width, adaptive = config.lstm.projection, config.adaptive
    if adaptive is None or rows is None:
        rows = found.get("weight", (0,))[0] if rows is None else rows
        return {"weight": (rows, width), "bias": (rows,)}
    first = adaptive.cutoffs[0] + len(adaptive.cutoffs)  # the head: words, then clusters
    shapes: dict[str, tuple[int, ...]] = {"head.weight": (first, width), "head.bias": (first,)}
    borders = pairwise((*adaptive.cutoffs, rows))
    for number, narrow in enumerate(adaptive.widths(width)):
        low, high = next(borders)
        shapes[f"projections.{number}"] = (narrow, width)
        shapes[f"tails.{number}.weight"] = (high - low, narrow)
        shapes[f"tails.{number}.bias"] = (high - low,)
    return shapes


def mix_shapes(config: ElmoConfig, names: Sequence[str], where: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of mixes such as "0.weights" and "0.gamma"."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name in names:
        if not re.fullmatch(r"\d+\.(weights|gamma)", name):
            raise InputError(f"{where} has a mix {name!r}, expected names such as '0.weights'")
        shapes[name] = (config.n_layers,) if name.endswith("weights") else (1,)
    return shapes


def shape_of(tensors: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor."""
    return {name: tuple(getattr(tensor, "shape", ())) for name, tensor in tensors.items()}
