"""Word vectors of other programs, to start a word table from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from torchelmo.errors import InputError


def fill_vectors(table: Tensor, path: Path, words: Sequence[str]) -> int:
    """Start a word table from a text file of vectors (GloVe's form).

    Returns how many of the `words` the file has; with none of them it is refused.
    """
    rows = {word: number for number, word in enumerate(words)}
    found, width = set[int](), table.shape[1]
    try:
        with path.open(encoding="utf-8") as file, torch.no_grad():
            for number, line in enumerate(file, start=1):
                # Some of GloVe's words have spaces inside, so the numbers are counted from the end.
                fields = line.rstrip().split(" ")
                word, values = " ".join(fields[:-width]), fields[-width:]
                if number == 1 and len(fields) == 2 != width + 1:
                    continue  # word2vec's first line: how many words, how wide
                if len(fields) <= width or (number == 1 and len(fields) != width + 1):
                    raise InputError(
                        f"line {number} of {path} has {len(fields) - 1} numbers, the model's width "
                        f"is {width}"
                    )
                if word in rows:
                    table[rows[word]] = torch.tensor([float(value) for value in values])
                    found.add(rows[word])
    except (OSError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is not a file of word vectors: {error}") from None
    if not found:
        raise InputError(
            f"{path} has none of the {len(words):,} words of the vocabulary: give vectors of the "
            "text's language, spelt and cut into words as the corpus is"
        )
    return len(found)
