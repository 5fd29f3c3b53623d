"""Our own model folder: config.json, model.safetensors and what else a model has.

| file | holds |
|---|---|
| config.json | the `ElmoConfig`, with `format_version` |
| model.safetensors | the biLM's tensors, float32 or float16 (read back as float32) |
| vocab.txt | targets of the softmax, one a line, by falling frequency |
| softmax.safetensors | the softmax, full or adaptive; without it no scoring or further training |
| words.txt | input words of a model that reads whole words, one a line |
| characters.txt | symbols of the code-point and jamo schemes, one a line as `U+AC00` |
| mixes.safetensors | learned mixes |
| README.md | the model card |

Shapes in the safetensors headers are compared with the config before a tensor is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from torchelmo.config import ElmoConfig
from torchelmo.errors import InputError
from torchelmo.formats import files
from torchelmo.formats.check import (
    check_alphabet,
    check_model,
    check_words,
    mix_shapes,
    softmax_shapes,
)
from torchelmo.formats.model import Model, check_shapes, expected_shapes

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
VOCABULARY, SOFTMAX = "vocab.txt", "softmax.safetensors"
WORDS, ALPHABET, MIXES = "words.txt", "characters.txt", "mixes.safetensors"
FILES = (CONFIG, WEIGHTS, CARD, VOCABULARY, SOFTMAX, WORDS, ALPHABET, MIXES)

Shapes = dict[str, tuple[int, ...]]
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
    tensors = _read_tensors(folder / WEIGHTS, lambda _: expected_shapes(config))
    softmax = _optional(
        folder / SOFTMAX,
        lambda path: _read_tensors(path, lambda found: softmax_shapes(config, found, rows)),
    )
    mixes = _optional(
        folder / MIXES,
        lambda path: _read_tensors(path, lambda found: mix_shapes(config, list(found), str(path))),
    )
    return Model(
        config=config,
        tensors=tensors,
        vocabulary=vocabulary,
        words=words,
        alphabet=alphabet,
        softmax=softmax,
        mixes=mixes or {},
    )


def write(
    model: Model,
    folder: Path,
    *,
    dtype: torch.dtype | None = None,
    card: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write a model folder, whole or not at all.

    Args:
        model: what to write.
        folder: must not exist or be empty, unless `overwrite`; then a folder is replaced if it
            holds nothing but a model's files.
        dtype: float32 (as None) or float16, for the biLM and the softmax.
        card: the text of README.md; None makes a short one.
        overwrite: replace an existing model.
    """
    with files.new_folder(folder, overwrite=overwrite, known=FILES) as out:
        write_files(model, out, dtype=dtype, card=card)


def write_files(
    model: Model, folder: Path, *, dtype: torch.dtype | None = None, card: str | None = None
) -> None:
    """Write a model's files into an existing folder, for callers that put more beside them."""
    if dtype not in (None, torch.float32, torch.float16):
        raise InputError(f"weights are written in float32 or float16, not {dtype}")
    check_model(model)
    kind = dtype or torch.float32
    files.write_json(folder / CONFIG, model.config.to_json())
    _write_tensors(folder / WEIGHTS, model.tensors, kind)
    if model.vocabulary is not None:
        files.write_lines(folder / VOCABULARY, model.vocabulary, files.strip_ascii)
    if model.softmax is not None:
        _write_tensors(folder / SOFTMAX, model.softmax, kind)
    if model.words is not None:
        files.write_lines(folder / WORDS, model.words, files.strip_ascii)
    if model.alphabet:
        symbols = [f"U+{_code_point(symbol):04X}" for symbol in model.alphabet]
        files.write_lines(folder / ALPHABET, symbols, files.strip_ascii)
    if model.mixes:
        _write_tensors(folder / MIXES, model.mixes, torch.float32)
    text = card if card is not None else model_card(model)
    (folder / CARD).write_bytes(text.encode("utf-8"))


def is_native(folder: Path) -> bool:
    """Whether a folder holds a config.json of ours, or weights as only we name them."""
    if not (folder / CONFIG).is_file():
        return False
    try:
        return "format_version" in files.read_json(folder / CONFIG)
    except InputError:
        return (folder / WEIGHTS).is_file()  # ours, but damaged: reading it says how


def model_card(model: Model) -> str:
    """Return a short description of a model, with the header that the Hugging Face hub reads."""
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
    facts = {
        "input": " and ".join(inputs),
        "tokeniser": f"{config.tokenizer.name}, version {config.tokenizer.version}",
        "LSTM": f"{lstm.layers} layers a direction, {lstm.cells} cells, projection "
        f"{lstm.projection}" + ("" if lstm.project else " (none)"),
        "vectors": f"{config.n_layers} layers, {config.width} wide",
        "parameters": f"{count:,} without the softmax",
        "softmax": _describe_softmax(model),
    }
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
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

```python
from torchelmo import Elmo

elmo = Elmo.from_pretrained("path/to/this/folder")
vectors = elmo.embed(["A sentence to embed"])
```
"""


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
        return ElmoConfig.from_json(data)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _optional(path: Path, reader: Callable[[Path], T]) -> T | None:
    return reader(path) if os.path.lexists(path) else None


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


def _read_tensors(path: Path, expected: Callable[[Shapes], Shapes]) -> dict[str, Tensor]:
    """Read a safetensors file as float32 once its header has the shapes that are expected."""
    files.check_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            found: Shapes = {}
            for name in file.keys():  # noqa: SIM118  # not a mapping
                header = file.get_slice(name)
                found[name] = tuple(header.get_shape())
                if header.get_dtype() not in ("F32", "F16", "BF16"):
                    raise InputError(
                        f"{path} has {name!r} in {header.get_dtype()}, expected F32 or F16"
                    )
            shapes = expected(found)
            check_shapes(
                {name: torch.empty(shape, device="meta") for name, shape in found.items()},
                shapes,
                str(path),
            )
            # a copy: what safetensors gives is a view of the file, which somebody may change
            return {name: file.get_tensor(name).to(torch.float32, copy=True) for name in shapes}
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is damaged or not safetensors: {error}") from None


def _write_tensors(path: Path, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    ready = {
        name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in tensors.items()
    }
    for name, tensor in ready.items() if dtype == torch.float16 else ():
        if tensor.isinf().any() and not tensors[name].isinf().any():
            raise InputError(f"{name} has values too large for float16: write float32")
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(ready, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from None
    path.chmod(mode)  # some versions of safetensors make files that only their owner can read
