"""Padded texts (B, T, D) without their padding, and back.

1. `flatten`, `pad`: rows of the first text, then of the second (N, D), as a biLM's layers are kept;
2. `pack`, `unpack`: rows by steps, the longest text first, as `nn.LSTM` reads them.

torch's own functions launch a kernel a length or a step, and wait for a GPU. Here one index says
where the rows are; it is made on the host and kept for the batch's other layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from torchelmo.tasks.data import move

KEPT = 16  # batches of one shape, or roles of a batch, whose indices are kept


@lru_cache(KEPT)
def rows(lengths: tuple[int, ...], width: int, device: torch.device) -> Tensor:
    """Return which of the B * T rows of padded texts are words, (N), text by text.

    >>> rows((2, 1), 3, torch.device("cpu"))
    tensor([0, 1, 3])
    """
    inside = np.arange(width) < np.array(lengths)[:, None]  # (B, T)
    return move(torch.from_numpy(np.flatnonzero(inside)), device)


@lru_cache(KEPT)
def packed_rows(
    lengths: tuple[int, ...], width: int, device: torch.device
) -> tuple[Tensor, tuple[int, ...]]:
    """Return which rows are words (N), step by step, and how many texts have a word at each step.

    >>> packed_rows((1, 2), 3, torch.device("cpu"))
    (tensor([3, 0, 4]), (2, 1))
    """
    sizes = np.array(lengths)
    order = np.argsort(-sizes, kind="stable")
    steps = np.arange(sizes.max())[:, None]
    inside = steps < sizes[order]  # (T, B)
    found = (order * width + steps)[inside]
    return move(torch.from_numpy(found), device), tuple(inside.sum(axis=1).tolist())


def flatten(values: Tensor, lengths: Sequence[int]) -> Tensor:
    """(B, T, D) -> (N, D)."""
    index = rows(tuple(lengths), values.shape[1], values.device)
    return values.flatten(0, 1).index_select(0, index)


def pad(flat: Tensor, lengths: Sequence[int]) -> Tensor:
    """(N, D) -> (B, T, D), zero at padding."""
    width = max(lengths)
    index = rows(tuple(lengths), width, flat.device)
    out = flat.new_zeros(len(lengths) * width, flat.shape[1]).index_copy_(0, index, flat)
    return out.view(len(lengths), width, -1)


def pack(values: Tensor, lengths: Sequence[int]) -> PackedSequence:
    """(B, T, D) -> (N, D) with the texts of each step; each has 1 word or more."""
    index, sizes = packed_rows(tuple(lengths), values.shape[1], values.device)
    return PackedSequence(values.flatten(0, 1).index_select(0, index), torch.tensor(sizes))


def unpack(data: Tensor, lengths: Sequence[int], width: int) -> Tensor:
    """(N, D) of packed texts -> (B, T, D), zero at padding."""
    index, _ = packed_rows(tuple(lengths), width, data.device)
    out = data.new_zeros(len(lengths) * width, data.shape[1]).index_copy_(0, index, data)
    return out.view(len(lengths), width, -1)
