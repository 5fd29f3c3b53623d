"""The character CNN with its maximum over positions, for words of any mix of lengths.

1. Word w owns `counts[w]` rows of one ragged buffer, a row for each position at which a filter may
   start; one position of padding alone stands for all of them, as they give one value.
2. A row holds the embedded characters under the widest filter. Narrower filters are filled up with
   zeros, so that one matrix product (rows, width * d) x (width * d, F) serves all filters.
3. The maximum over the rows of each word, with its position, then the bias.

Backward, the gradient goes to the first position that has the maximum, as in TensorFlow, by way of
two matrix products; nothing is added up in an order that may change. The product's result is not
kept: only windows and positions are. Steps 1 and 3 are plain torch (`torch_chars`) or Triton
(`triton_chars`). Nothing waits for the device when `rows` is given.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchelmo.errors import InputError
from torchelmo.ops import reference
from torchelmo.ops.backend import choose, compute_dtype


def char_conv_max(
    ids: Tensor,  # (n, C) rows of the embedding
    spelt: Tensor,  # (n,) how many ids of a word are not padding, 1..C; padding lies behind them
    embedding: Tensor,  # (R, d)
    filters: Sequence[tuple[Tensor, Tensor]],  # (count, d, width) and (count,)
    *,
    rows: int | None = None,
    backend: str | None = None,
) -> Tensor:
    """Convolve each word with each filter and take the maximum over positions, (n, F).

    `rows` is the size of the buffer of windows, at least `window_rows(spelt, C)`; with None it is
    worked out, which on a GPU waits for the device. Words that do not fit come out as NaN on a GPU,
    and are an error elsewhere.
    """
    chosen = choose(embedding.device, backend)
    if chosen == "reference" or not len(ids):
        return reference.char_conv_max(F.embedding(ids.long(), embedding), filters)
    limit, meta = ids.shape[1], embedding.device.type == "meta"
    widths = tuple(weight.shape[2] for weight, _ in filters)
    if max(widths) > limit:
        raise InputError(f"a filter of width {max(widths)} needs as many characters, not {limit}")
    if rows is None:
        rows = len(ids) * limit if meta else window_rows(spelt, limit)
    elif ids.device.type == "cpu" and rows < (needed := window_rows(spelt, limit)):
        raise InputError(f"the words have {needed} windows, room was made for {rows}")
    flat = [tensor for pair in filters for tensor in pair]
    dtype = compute_dtype(embedding)
    saving = torch.is_grad_enabled() and any(t.requires_grad for t in (embedding, *flat))
    kernels = None if meta else _kernels(chosen, dtype)
    run = _Run(rows, widths, tuple(len(bias) for _, bias in filters), kernels, dtype, saving)
    out: Tensor = _CharConvMax.apply(run, ids, spelt, embedding, *flat)  # type: ignore[no-untyped-call]
    return out


def window_rows(spelt: Tensor, characters: int) -> int:
    """Return how many windows words have in all; they are spelt in rows of so many characters.

    >>> window_rows(torch.tensor([3, 50]), 50)  # 3 and one of padding; all 50, none of padding
    54
    """
    return int(_counts(spelt, characters).sum())


def _counts(spelt: Tensor, characters: int) -> Tensor:
    return spelt.clamp(max=characters - 1) + 1


def _kernels(backend: str, dtype: torch.dtype) -> ModuleType:
    if backend == "triton" and dtype != torch.float64:
        from torchelmo.ops import triton_chars

        return triton_chars
    from torchelmo.ops import torch_chars

    return torch_chars


class _Run(NamedTuple):
    """What does not change with the tensors."""

    rows: int
    widths: tuple[int, ...]  # of each group of filters
    groups: tuple[int, ...]  # how many filters each has
    kernels: ModuleType | None  # None on meta tensors: memory is taken, nothing computed
    dtype: torch.dtype  # of the products
    saving: bool  # for a backward pass


class _CharConvMax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's
        run: _Run,
        ids: Tensor,
        spelt: Tensor,
        embedding: Tensor,
        *filters: Tensor,  # weight, bias, weight, bias, ...
    ) -> Tensor:
        with _no_autocast(embedding):
            return _forward(ctx, run, ids, spelt, embedding, filters)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,  # noqa: ANN401 - autograd's
        gradient: Tensor,
    ) -> tuple[Tensor | None, ...]:
        with _no_autocast(gradient):
            d_embedding, *d_filters = _backward(ctx, ctx.run, gradient)
        return None, None, None, d_embedding, *d_filters


def _no_autocast(x: Tensor) -> torch.autocast:
    kind = "cpu" if x.device.type == "meta" else x.device.type
    return torch.autocast(kind, enabled=False)


def _forward(
    ctx: Any,  # noqa: ANN401 - autograd's
    run: _Run,
    ids: Tensor,
    spelt: Tensor,
    embedding: Tensor,
    filters: Sequence[Tensor],
) -> Tensor:
    kernels, wide, words = run.kernels, max(run.widths), len(ids)
    depth, total = embedding.shape[1], sum(run.groups)

    def buffer(*shape: int, dtype: torch.dtype = run.dtype) -> Tensor:
        return embedding.new_empty(*shape, dtype=dtype)

    counts = _counts(spelt, ids.shape[1]).int()  # (n,)
    ends = counts.cumsum(0, dtype=torch.int32)  # (n,), the row behind each word's last
    windows = buffer(run.rows, wide * depth)
    chars = buffer(run.rows, wide, dtype=torch.int32)  # the id of each place; R where there is none
    if kernels is not None:
        kernels.windows(ids.contiguous(), counts, ends, embedding.contiguous(), windows, chars)
    weight = _joined(run, filters[::2])  # (F, width * d)
    z = windows @ weight.t()  # (rows, F)
    pooled = buffer(words, total)
    small = torch.uint8 if ids.shape[1] <= 256 else torch.int16
    places = buffer(words if run.saving else 0, total, dtype=small)
    if kernels is not None:
        last = _last_positions(run.widths, run.groups, ids.shape[1], ids.device)
        span = ids.shape[1] - wide, ids.shape[1] - min(run.widths)
        bias = torch.cat(list(filters[1::2]))
        kept = places if run.saving else None
        kernels.maximum(z, counts, ends, last, span, bias, pooled, kept)
    if run.saving:
        ctx.run, ctx.shape = run, embedding.shape
        ctx.dtypes = [embedding.dtype, *(tensor.dtype for tensor in filters)]
        ctx.save_for_backward(counts, ends, windows, chars, weight, places)
    return pooled


def _backward(
    ctx: Any,  # noqa: ANN401 - autograd's
    run: _Run,
    gradient: Tensor,  # (n, F)
) -> list[Tensor | None]:
    """Return the gradients of the embedding and of each weight and bias."""
    counts, ends, windows, chars, weight, places = ctx.saved_tensors
    symbols, depth = ctx.shape
    sums = torch.float64 if run.dtype == torch.float64 else torch.float32
    gradient = gradient.contiguous()
    dz = gradient.new_empty(run.rows, gradient.shape[1])  # zero but at the maxima
    if run.kernels is not None:
        run.kernels.expand(gradient, places, counts, ends, dz)
    of_weight = _product(dz.t(), windows).view(len(weight), max(run.widths), depth)
    of_bias = gradient.sum(dim=0, dtype=sums)
    grads: list[Tensor | None] = [None]
    if ctx.needs_input_grad[3]:
        of_windows = dz @ weight  # (rows, width * d)
        of_embedding = gradient.new_empty(symbols, depth, dtype=sums)
        if run.kernels is not None:
            run.kernels.embedding_gradient(chars, of_windows, of_embedding)
        grads = [of_embedding.to(ctx.dtypes[0])]
    start = 0
    for i, (width, count) in enumerate(zip(run.widths, run.groups, strict=True)):
        own = of_weight[start : start + count, :width].transpose(1, 2)  # (count, d, width)
        # A copy of the weight's own layout: any other would be copied once more by autograd.
        fresh = own.new_empty(own.shape, dtype=ctx.dtypes[1 + 2 * i]).copy_(own)
        grads += [fresh, of_bias[start : start + count].to(ctx.dtypes[2 + 2 * i])]
        start += count
    return grads


def _joined(run: _Run, weights: Sequence[Tensor]) -> Tensor:
    """Return all filters as (F, width * d), the narrow ones filled up with zeros behind."""
    first, wide = weights[0], max(run.widths)
    joined = first.new_zeros(sum(run.groups), wide, first.shape[1], dtype=run.dtype)
    parts = joined.split(list(run.groups))
    for part, weight, width in zip(parts, weights, run.widths, strict=True):
        part[:, :width].copy_(weight.transpose(1, 2))
    return joined.flatten(1)


def _last_positions(
    widths: tuple[int, ...], groups: tuple[int, ...], characters: int, device: torch.device
) -> Tensor:
    """Return the last position at which each filter still lies inside of the word, (F,)."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        # A graph's memory must not be kept beyond it.
        return _new_last_positions(widths, groups, characters, device)
    return _kept_last_positions(widths, groups, characters, device)


def _new_last_positions(
    widths: tuple[int, ...], groups: tuple[int, ...], characters: int, device: torch.device
) -> Tensor:
    parts = [
        torch.full((count,), characters - width, dtype=torch.int32, device=device)
        for width, count in zip(widths, groups, strict=True)
    ]
    return torch.cat(parts)


_kept_last_positions = functools.lru_cache(maxsize=64)(_new_last_positions)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return a product over many rows, its sums in float32 where the device can."""
    if (
        a.is_cuda
        and a.dtype in (torch.bfloat16, torch.float16)
        and hasattr(torch.ops.aten.mm, "dtype")
    ):
        return torch.mm(a, b, out_dtype=torch.float32)
    return a @ b
