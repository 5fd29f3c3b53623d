"""The ragged parts of the character CNN as Triton kernels; see `torch_chars` for what each does.

One program takes a word, or a word and a block of filters; a few more write the zeros behind the
last word. All of them move memory: rows are read and written in whole lines, once.

The gradient of the embedding is a product with a one-hot matrix that is made on chip: each program
sums one stretch of the windows, and the stretches are added at the end, always in the same order.
"""

from __future__ import annotations

import contextlib

import torch
import triton
import triton.language as tl
from torch import Tensor

FILTERS = 1024  # of a program: 16 bytes of each row a thread
POSITIONS = 8  # of a word at a time, when windows are laid out
TAIL = 64  # programs for the rows of no word
STRETCHES = 128  # the windows are summed in so many parts


@triton.jit
def _windows(
    ids, counts, ends, embedding, out, chars, words, characters, rows, symbols,
    WIDE: tl.constexpr, DEPTH: tl.constexpr, SPARE: tl.constexpr,
    BP: tl.constexpr, BK: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    word = tl.program_id(0)
    step = tl.arange(0, BP)
    k = tl.arange(0, BK)
    place, part = k // DEPTH, k % DEPTH
    j = tl.arange(0, BW)
    if word < words:
        count = tl.load(counts + word)
        end = tl.load(ends + word)
        start = (end - count).to(tl.int64)
        ids += word.to(tl.int64) * characters
        for first in range(0, count, BP):
            position = first + step
            row = start + position
            here = (position < count) & (row < rows)
            column = position[:, None] + place[None, :]  # (BP, BK)
            mask = here[:, None] & (k < WIDE * DEPTH)[None, :]
            inside = mask & (column < characters)
            char = tl.load(ids + column, inside, 0).to(tl.int64)
            value = tl.load(embedding + char * DEPTH + part[None, :], inside, 0.0)
            at = row[:, None] * (WIDE * DEPTH) + k[None, :]
            tl.store(out + at, value.to(out.dtype.element_ty), mask)
            column = position[:, None] + j[None, :]  # (BP, BW)
            mask = here[:, None] & (j < WIDE)[None, :]
            char = tl.load(ids + column, mask & (column < characters), symbols).to(tl.int32)
            tl.store(chars + row[:, None] * WIDE + j[None, :], char, mask)
    else:
        total = tl.load(ends + words - 1)
        for first in range(total + (word - words) * BP, rows, SPARE * BP):
            row = (first + step).to(tl.int64)
            here = (row < rows)[:, None]
            at = row[:, None] * (WIDE * DEPTH) + k[None, :]
            zero = tl.zeros((BP, BK), out.dtype.element_ty)
            tl.store(out + at, zero, here & (k < WIDE * DEPTH)[None, :])
            none = tl.zeros((BP, BW), tl.int32) + symbols
            tl.store(chars + row[:, None] * WIDE + j[None, :], none, here & (j < WIDE)[None, :])


@triton.jit
def _larger(best, at, value, position, last):
    # NaN is kept, so that it is seen; once it is there nothing is larger.
    better = ((value > best) | (value != value)) & (position <= last)
    return tl.where(better, value, best), tl.where(better, position, at)


@triton.jit
def _maximum(
    z, counts, ends, last, bias, pooled, places, rows, total,
    KEEP: tl.constexpr, BF: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(total, BF)
    word = tl.program_id(0) // blocks
    f = (tl.program_id(0) % blocks) * BF + tl.arange(0, BF)
    inside = f < total
    count, end = tl.load(counts + word), tl.load(ends + word)
    fits = end <= rows
    stop = end.to(tl.int64) * total
    at_row = (end - count).to(tl.int64) * total + f  # in z
    lowest = float("-inf")
    limit = tl.load(last + f, inside, 0)
    best = tl.full((BF,), lowest, tl.float32)
    at = tl.zeros((BF,), tl.int32)
    # Four rows are asked for before the first is used.
    for first in range(0, tl.where(fits, count, 0), 4):
        a = tl.load(z + at_row, inside, lowest)
        b = tl.load(z + at_row + total, inside & (at_row + total < stop), lowest)
        c = tl.load(z + at_row + 2 * total, inside & (at_row + 2 * total < stop), lowest)
        d = tl.load(z + at_row + 3 * total, inside & (at_row + 3 * total < stop), lowest)
        best, at = _larger(best, at, a.to(tl.float32), first, limit)
        best, at = _larger(best, at, b.to(tl.float32), first + 1, limit)
        best, at = _larger(best, at, c.to(tl.float32), first + 2, limit)
        best, at = _larger(best, at, d.to(tl.float32), first + 3, limit)
        at_row += 4 * total
    value = best + tl.load(bias + f, inside, 0.0).to(tl.float32)
    value = tl.where(fits, value, float("nan"))
    out = word.to(tl.int64) * total + f
    tl.store(pooled + out, value.to(pooled.dtype.element_ty), inside)
    if KEEP:
        tl.store(places + out, at.to(places.dtype.element_ty), inside)


@triton.jit
def _expand(
    gradient, places, counts, ends, dz, words, rows, total,
    SPARE: tl.constexpr, BF: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(total, BF)
    word = tl.program_id(0) // blocks
    f = (tl.program_id(0) % blocks) * BF + tl.arange(0, BF)
    inside = f < total
    if word < words:
        count, end = tl.load(counts + word), tl.load(ends + word)
        start = end - count
        source = word.to(tl.int64) * total + f
        value = tl.load(gradient + source, inside, 0.0)
        at = tl.load(places + source, inside, 0).to(tl.int32)
        row = dz + start.to(tl.int64) * total + f
        for position in range(tl.minimum(count, rows - start)):
            tl.store(row, tl.where(at == position, value, tl.zeros_like(value)), inside)
            row += total
    else:
        behind = tl.load(ends + words - 1)
        for spare in range(behind + word - words, rows, SPARE):
            row = tl.zeros((BF,), tl.int64) + spare
            tl.store(dz + row * total + f, tl.zeros((BF,), dz.dtype.element_ty), inside)


@triton.jit
def _embedding_gradient(
    chars, of_windows, sums, items, each, symbols,
    DEPTH: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    stretch = tl.program_id(0)
    symbol = tl.program_id(1) * BR + tl.arange(0, BR)
    part = tl.arange(0, BD)
    total = tl.zeros((BR, BD), tl.float32)
    for first in range(0, each, BK):
        item = stretch.to(tl.int64) * each + first + tl.arange(0, BK)
        char = tl.load(chars + item, item < items, symbols)
        mask = (item < items)[:, None] & (part < DEPTH)[None, :]
        value = tl.load(of_windows + item[:, None] * DEPTH + part[None, :], mask, 0.0)
        hot = (symbol[:, None] == char[None, :]).to(value.dtype)  # (BR, BK)
        total = tl.dot(hot, value, total, input_precision="ieee")
    at = (stretch * symbols + symbol)[:, None] * DEPTH + part[None, :]
    tl.store(sums + at, total, (symbol < symbols)[:, None] & (part < DEPTH)[None, :])


def windows(
    ids: Tensor, counts: Tensor, ends: Tensor, embedding: Tensor, out: Tensor, chars: Tensor
) -> None:
    """Lay out the windows of all words."""
    words, characters = ids.shape
    rows, wide = chars.shape
    symbols, depth = embedding.shape
    blocks = {
        "BP": POSITIONS,
        "BK": triton.next_power_of_2(wide * depth),
        "BW": triton.next_power_of_2(wide),
    }
    with _on(ids):
        _windows[(words + TAIL,)](
            ids, counts, ends, embedding, out, chars, words, characters, rows, symbols,
            WIDE=wide, DEPTH=depth, SPARE=TAIL, **blocks,
        )  # fmt: skip


def maximum(
    z: Tensor,
    counts: Tensor,
    ends: Tensor,
    last: Tensor,
    span: tuple[int, int],
    bias: Tensor,
    pooled: Tensor,
    places: Tensor | None,
) -> None:
    """Take the maximum over each word's rows, and add the bias."""
    del span
    words, total = pooled.shape
    block = min(triton.next_power_of_2(total), FILTERS)
    with _on(z):
        _maximum[(words * triton.cdiv(total, block),)](
            z, counts, ends, last, bias, pooled, pooled if places is None else places,
            len(z), total, KEEP=places is not None, BF=block,
        )  # fmt: skip


def expand(gradient: Tensor, places: Tensor, counts: Tensor, ends: Tensor, dz: Tensor) -> None:
    """Put each gradient in the row whose value was the maximum, zero elsewhere."""
    rows, total = dz.shape
    words = len(counts)
    block = min(triton.next_power_of_2(total), FILTERS)
    with _on(dz):
        _expand[((words + TAIL) * triton.cdiv(total, block),)](
            gradient, places, counts, ends, dz, words, rows, total, SPARE=TAIL, BF=block
        )


def embedding_gradient(chars: Tensor, of_windows: Tensor, out: Tensor) -> None:
    """Sum the gradients of the windows by character."""
    symbols, depth = out.shape
    items, block = chars.numel(), 64
    stretches = min(STRETCHES, triton.cdiv(items, block))
    each = triton.cdiv(triton.cdiv(items, stretches), block) * block
    sums = out.new_empty(stretches, symbols, depth)
    with _on(chars):
        _embedding_gradient[(stretches, triton.cdiv(symbols, 128))](
            chars, of_windows, sums, items, each, symbols,
            DEPTH=depth, BR=128, BD=max(triton.next_power_of_2(depth), 16), BK=block,
        )  # fmt: skip
    torch.sum(sums, dim=0, out=out)


def _on(tensor: Tensor) -> contextlib.AbstractContextManager[None]:
    """Triton launches on the current device, which need not be the tensor's."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()
