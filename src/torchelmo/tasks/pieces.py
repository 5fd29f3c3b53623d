"""A biLM over smaller tokens than a task's words: morphemes below eojeol.

The words joined by spaces are cut by the biLM's own tokeniser, and a word's vector is, layer by
layer, the mean of its tokens': `elmo.reads = "tokens"` in a recipe.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from torchelmo.elmo import Elmo
from torchelmo.errors import InputError
from torchelmo.tasks.data import Keep, LayerStore
from torchelmo.tasks.readers.examples import Words
from torchelmo.tasks.recipe import Recipe
from torchelmo.text.alignment import WHOLE_WORDS, overlapping, spread
from torchelmo.text.words import Tokenizer

Spans = list[tuple[int, int]]  # of tokens, a span a word


class PieceStore(LayerStore):
    """Layers of words that the biLM reads in its own tokens."""

    def __init__(
        self,
        elmo: Elmo,
        *,
        keep: Keep = "memory",
        keep_gb: float = 16.0,
        folder: str | Path | None = None,
        boundaries: bool = False,
    ) -> None:
        self.tokenizer = elmo.tokenizer
        if folder is not None:
            # Not beside layers of the same words that were not cut, or cut by other rules.
            rules = f"{self.tokenizer.name} {self.tokenizer.version}"
            folder = Path(folder) / f"{self.tokenizer.name}-{zlib.crc32(rules.encode()):08x}"
        super().__init__(elmo, keep=keep, keep_gb=keep_gb, folder=folder, boundaries=boundaries)

    def _compute(
        self, texts: Sequence[Words], progress: Callable[[int], None] | None = None
    ) -> Iterator[tuple[Words, Tensor]]:
        owners: dict[Words, list[tuple[Words, Spans]]] = {}
        for words in texts:
            tokens, spans = cut(words, self.tokenizer)
            if self.boundaries:
                inner = [(start + 1, end + 1) for start, end in spans]
                spans = [(0, 1), *inner, (len(tokens) + 1, len(tokens) + 2)]
            owners.setdefault(tokens, []).append((words, spans))
        for tokens, layers in super()._compute(list(owners), progress):
            for words, spans in owners[tokens]:
                yield words, means(layers, spans)


def cut(words: Words, tokenizer: Tokenizer) -> tuple[Words, Spans]:
    """Return the tokens of a text in words, and which of them each word is.

    ("학교에", "갔다", ".") -> ("학교", "에", "갔", "다", "."), [(0, 2), (2, 4), (4, 5)]
    """
    tokens = tokenizer(" ".join(words))
    try:
        spans = overlapping(tokens, [(word.start, word.end) for word in spread(words)])
    except ValueError:
        raise InputError(f"a word of {' '.join(words)!r} is white space alone") from None
    return tuple(token.text for token in tokens), spans


def means(values: Tensor, spans: Sequence[tuple[int, int]]) -> Tensor:
    """Return the mean of the rows of each span: (L, N, D) -> (L, spans, D)."""
    numbers = [row for span in spans for row in range(*span)]
    rows = torch.tensor(numbers, dtype=torch.long, device=values.device)
    taken = values[:, rows]
    if len(rows) == len(spans):
        return taken
    sizes = torch.tensor([end - start for start, end in spans], device=values.device)
    owner = torch.repeat_interleave(torch.arange(len(spans), device=values.device), sizes)
    sums = taken.new_zeros(len(values), len(spans), values.shape[2]).index_add_(1, owner, taken)
    return sums / sizes.unsqueeze(1)


def check_reads(recipe: Recipe, elmo: Elmo) -> None:
    """Refuse words that are not the biLM's tokens where the recipe does not say what to do."""
    options, own = recipe.bilm, elmo.config.tokenizer.name
    if options is None:
        return
    if options.reads == "tokens" and own in WHOLE_WORDS:
        raise InputError(
            f'elmo.reads = "tokens" cuts words into the smaller tokens of a biLM, but those of '
            f"{options.model} ({own!r}) are words: leave it out"
        )
    others = recipe.data.tokenizer not in (None, own)
    if options.reads is None and own not in WHOLE_WORDS and others:
        raise InputError(
            f"raw text is cut by {recipe.data.tokenizer!r} and the biLM {options.model} reads the "
            f'tokens of {own!r}: say elmo.reads = "tokens", or leave data.tokenizer out'
        )


def check_given(recipe: Recipe, tokenizer: Tokenizer | None, path: str | Path) -> None:
    """Refuse a file that has words already where the recipe does not say whether to cut them."""
    options = recipe.bilm
    if options is None or options.reads is not None or tokenizer is None:
        return
    if tokenizer.name not in WHOLE_WORDS:
        raise InputError(
            f"{path} comes in words and the biLM {options.model} reads tokens of "
            f'{tokenizer.name!r}: say elmo.reads = "tokens" to have the words cut into them, or '
            '"words" if they are such tokens'
        )
