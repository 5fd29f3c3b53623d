"""Our own model folder: config.json, model.safetensors and what else a model has.

| file | holds |
|---|---|
| config.json | the `ElmoConfig`, with `format_version` |
| model.safetensors | the biLM's tensors, float32 or float16 (read back as float32) |
| vocab.txt | targets of the softmax, one a line, by falling frequency |
| softmax.safetensors | the softmax, full or adaptive, float32, float16 or int8 rows with a scale
  each (read back as float32); without it no scoring or further training |
| words.txt | input words of a model that reads whole words, one a line |
| characters.txt | symbols of the code-point and jamo schemes, one a line as `U+AC00` |
| mixes.safetensors | learned mixes |
| README.md | the model card |
| ATTRIBUTION.md | whose text the model was trained on, and the licence of its weights |

Shapes in the safetensors headers are compared with the config before a tensor is read. Files with
int8 rows have format version 1.1, all others are written as 1.0, which every version reads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeVar

from torchelmo.config import FORMAT_VERSION, ElmoConfig
from torchelmo.errors import InputError
from torchelmo.formats import files
from torchelmo.formats.check import (
    check_alphabet,
    check_model,
    check_words,
    mix_shapes,
    softmax_shapes,
)
from torchelmo.formats.model import Model, expected_shapes
from torchelmo.formats.tensors import Stored, read_tensors, write_tensors

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
ATTRIBUTION = "ATTRIBUTION.md"
VOCABULARY, SOFTMAX = "vocab.txt", "softmax.safetensors"
WORDS, ALPHABET, MIXES = "words.txt", "characters.txt", "mixes.safetensors"
FILES = (CONFIG, WEIGHTS, CARD, ATTRIBUTION, VOCABULARY, SOFTMAX, WORDS, ALPHABET, MIXES)
VERSIONS = {"float32": "1.0", "float16": "1.0", "int8": "1.1"}  # by what the softmax is stored in
LOSSES = {
    "float16": "each value rounded to 11 binary digits",
    "int8": "each value rounded to one of 255 steps between the ends of its row",
}

Precision = Literal["float32", "float16"]
T = TypeVar("T")


def read(folder: Path) -> Model:
    """Read a model folder."""
    config = _read_config(folder / CONFIG)
    where = str(folder)
    words = _optional(folder / WORDS, files.read_lines)
    alphabet = _optional(folder / ALPHABET, _read_alphabet) or []
    vocabulary = _optional(folder / VOCABULARY, files.read_lines)
    check_words(config, words, where)
    check_alphabet(config, alphabet, where)
    rows = config.vocabulary
    if vocabulary is not None:
        if rows not in (None, len(vocabulary)):
            raise InputError(
                f"{folder / VOCABULARY} has {len(vocabulary)} words, {CONFIG} says {rows}"
            )
        rows = len(vocabulary)
    tensors = read_tensors(folder / WEIGHTS, lambda _: expected_shapes(config))
    softmax = _optional(
        folder / SOFTMAX,
        lambda path: read_tensors(
            path, lambda found: softmax_shapes(config, found, rows), rows=True
        ),
    )
    mixes = _optional(
        folder / MIXES,
        lambda path: read_tensors(path, lambda found: mix_shapes(config, list(found), str(path))),
    )
    return Model(
        config=config,
        tensors=tensors,
        vocabulary=vocabulary,
        words=words,
        alphabet=alphabet,
        softmax=softmax,
        mixes=mixes or {},
        attribution=_optional(folder / ATTRIBUTION, _read_text),
    )


def write(
    model: Model,
    folder: Path,
    *,
    weights: Precision = "float32",
    softmax: Stored = "float32",
    card: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write a model folder, whole or not at all.

    Args:
        model: what to write.
        folder: must not exist or be empty, unless `overwrite`; then a folder is replaced if it
            holds nothing but a model's files.
        weights: "float32" or "float16", for the biLM.
        softmax: "float32", "float16" or "int8": a byte a weight, and a scale a row.
        card: the text of README.md; None makes a short one.
        overwrite: replace an existing model.
    """
    with files.new_folder(folder, overwrite=overwrite, known=FILES) as out:
        write_files(model, out, weights=weights, softmax=softmax, card=card)


def write_files(
    model: Model,
    folder: Path,
    *,
    weights: Precision = "float32",
    softmax: Stored = "float32",
    card: str | None = None,
) -> None:
    """Write a model's files into an existing folder, for callers that put more beside them."""
    if weights not in ("float32", "float16"):
        raise InputError(f"weights are written in float32 or float16, not {weights}")
    if softmax not in VERSIONS:
        raise InputError(f"a softmax is written in {', '.join(VERSIONS)}, not {softmax}")
    check_model(model)
    version = VERSIONS[softmax if model.softmax is not None else "float32"]
    files.write_json(folder / CONFIG, model.config.to_json() | {"format_version": version})
    write_tensors(folder / WEIGHTS, model.tensors, weights)
    if model.vocabulary is not None:
        files.write_lines(folder / VOCABULARY, model.vocabulary, files.strip_ascii)
    if model.softmax is not None:
        write_tensors(folder / SOFTMAX, model.softmax, softmax)
    if model.words is not None:
        files.write_lines(folder / WORDS, model.words, files.strip_ascii)
    if model.alphabet:
        symbols = [f"U+{_code_point(symbol):04X}" for symbol in model.alphabet]
        files.write_lines(folder / ALPHABET, symbols, files.strip_ascii)
    if model.mixes:
        write_tensors(folder / MIXES, model.mixes)
    if model.attribution is not None:
        (folder / ATTRIBUTION).write_bytes(model.attribution.encode("utf-8"))
    text = card if card is not None else model_card(model, weights, softmax)
    (folder / CARD).write_bytes(text.encode("utf-8"))


def is_native(folder: Path) -> bool:
    """Whether a folder holds a config.json of ours, or weights as only we name them."""
    if not (folder / CONFIG).is_file():
        return False
    try:
        return "format_version" in files.read_json(folder / CONFIG)
    except InputError:
        return (folder / WEIGHTS).is_file()  # ours, but damaged: reading it says how


def model_card(model: Model, weights: Precision = "float32", softmax: Stored = "float32") -> str:
    """Return a short description of a model, with the header that the Hugging Face hub reads."""
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts(model, weights, softmax))
    also = f"\nWhose text it was trained on: {ATTRIBUTION}.\n" if model.attribution else ""
    return f"""---
library_name: torchelmo
pipeline_tag: feature-extraction
tags:
- elmo
- bilm
---

# An ELMo model

A bidirectional language model whose layers are contextual word vectors, in the format of torchelmo.

| | |
|---|---|
{rows}
{also}
```python
from torchelmo import Elmo

elmo = Elmo.from_pretrained("path/to/this/folder")
vectors = elmo.embed(["A sentence to embed"])
```
"""


def facts(model: Model, weights: Precision, softmax: Stored) -> list[tuple[str, str]]:
    """Return what a model is made of and how it is stored, as name and value."""
    config, lstm, characters = model.config, model.config.lstm, model.config.characters
    count = sum(tensor.numel() for tensor in model.tensors.values())
    inputs = []
    if config.words is not None:
        inputs.append(f"a table of {config.words.words:,} words")
    if characters is not None:
        unit = {"bytes": "UTF-8 bytes", "codepoints": "Unicode code points", "jamo": "jamo"}
        inputs.append(
            f"characters ({unit[characters.scheme]}, {characters.max_characters} a word), "
            f"{characters.n_filters} filters, {characters.highways} highway layers"
        )
    found = {
        "input": " and ".join(inputs),
        "tokeniser": f"{config.tokenizer.name}, version {config.tokenizer.version}",
        "LSTM": f"{lstm.layers} layers a direction, {lstm.cells} cells, projection "
        f"{lstm.projection}" + ("" if lstm.project else " (none)"),
        "vectors": f"{config.n_layers} layers, {config.width} wide",
        "parameters": f"{count:,} without the softmax",
        "softmax": _describe_softmax(model),
    }
    stored = [f"biLM {weights} ({LOSSES[weights]})" if weights in LOSSES else ""]
    if model.softmax is not None and softmax in LOSSES:
        stored.append(f"softmax {softmax} ({LOSSES[softmax]})")
    if any(stored):
        found["stored as"] = "; ".join(filter(None, stored))
    return list(found.items())


def _describe_softmax(model: Model) -> str:
    if model.softmax is None:
        return "not included: no scoring, no further training"
    adaptive = model.config.adaptive
    if adaptive is None:
        return f"{model.softmax['weight'].shape[0]:,} words"
    starts = ", ".join(f"{cutoff:,}" for cutoff in adaptive.cutoffs)
    return f"{model.config.vocabulary:,} words, adaptive: clusters begin at {starts}"


def _read_config(path: Path) -> ElmoConfig:
    data = files.read_json(path)
    try:
        # Of the files, not of the model: it is written anew by what the next files hold.
        return replace(ElmoConfig.from_json(data), format_version=FORMAT_VERSION)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _optional(path: Path, reader: Callable[[Path], T]) -> T | None:
    return reader(path) if os.path.lexists(path) else None


def _read_text(path: Path) -> str:
    return files.decode(files.read_bytes(path, files.JSON_BYTES), str(path))


def _read_alphabet(path: Path) -> list[str]:
    symbols = []
    for number, line in enumerate(files.read_lines(path), start=1):
        if not re.fullmatch(r"U\+[0-9A-F]{4,6}", line) or int(line[2:], 16) > 0x10FFFF:
            raise InputError(f"line {number} of {path} is {line!r}, expected one such as 'U+AC00'")
        symbols.append(chr(int(line[2:], 16)))
    return symbols


def _code_point(symbol: str) -> int:
    if len(symbol) != 1:
        raise InputError(f"the alphabet has {symbol!r}, expected single symbols")
    return ord(symbol)
