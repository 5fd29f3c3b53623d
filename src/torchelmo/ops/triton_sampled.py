"""The sampled softmax's passes over rows as Triton kernels; see `torch_sampled` for each.

A program takes a group of rows of logits one after another, each whole in registers, and asks for
the next while it works on one; so logits are read once and written once, and the sums over rows
come along the way, a line a group. More drawn words than fit are taken in tiles, twice.

Targets repeat, some of them a thousand times a batch. Their rows are sorted by word and cut where a
new word or a multiple of PIECE begins; each cut is summed by a program of its own, then each word's
cuts. No two programs write the same row, so the order of the sums, and the result, is always one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDEST = 8192  # columns of a row that is held in registers
GROUP = 16  # rows of a program
TILE = 4096  # columns at a time of wider rows
PIECE = 8  # rows of one word that are summed at once
CUTS = 16  # cuts of one word that are summed at once


@triton.jit
def _true(
    hidden, targets, weight, bias, expected, out, n, width,
    ROWS: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    ok = row < n
    target = tl.load(targets + row, ok, 0).to(tl.int64)
    total = tl.load(bias + target, ok, 0.0).to(tl.float32) - tl.load(expected + row, ok, 0.0)
    for start in range(0, width, BP):
        unit = start + tl.arange(0, BP)
        mask = ok[:, None] & (unit < width)[None, :]
        x = tl.load(hidden + row.to(tl.int64)[:, None] * width + unit[None, :], mask, 0.0)
        w = tl.load(weight + target[:, None] * width + unit[None, :], mask, 0.0)
        total += tl.sum(x.to(tl.float32) * w.to(tl.float32), axis=1)
    tl.store(out + row, total, ok)


@triton.jit
def _narrow(
    logits, shift, hits, true, losses, d_true, sums, n, drawn,
    SHARES: tl.constexpr, SUMS: tl.constexpr, GROUP: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * GROUP
    column = tl.arange(0, BS)
    inside = column < drawn
    logits += first.to(tl.int64) * drawn
    total = tl.zeros((BS,), tl.float32)
    ahead = tl.load(logits + column, inside, 0.0)
    end = tl.minimum(first + GROUP, n)
    for row in range(first, end):
        x = ahead.to(tl.float32)
        ahead = tl.load(logits + drawn + column, column < tl.where(row + 1 < end, drawn, 0), 0.0)
        own = tl.load(true + row)
        hit = tl.load(hits + row)
        # The shift is the same for all rows and stays in the nearest cache.
        x += tl.load(shift + column, inside, 0.0, eviction_policy="evict_last")
        x = tl.where(inside & (column != hit), x, float("-inf"))
        top = tl.maximum(tl.max(x, axis=0), own)
        x = tl.exp(x - top)
        others = tl.sum(x, axis=0)
        whole = others + tl.exp(own - top)
        tl.store(losses + row, tl.log(whole) + (top - own))
        if SHARES:
            x = x * (1.0 / whole)
            tl.store(d_true + row, -others / whole)
            tl.store(logits + column, x.to(logits.dtype.element_ty), inside)
            if SUMS:
                total += x
        logits += drawn
    if SUMS:
        tl.store(sums + tl.program_id(0).to(tl.int64) * drawn + column, total, inside)


@triton.jit
def _wide(
    logits, shift, hits, true, losses, d_true, drawn,
    SHARES: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits += row * drawn
    own = tl.load(true + row)
    hit = tl.load(hits + row)
    top, others = own, 0.0
    for start in range(0, drawn, BS):
        column = start + tl.arange(0, BS)
        inside = column < drawn
        x = tl.load(logits + column, inside, 0.0).to(tl.float32)
        x += tl.load(shift + column, inside, 0.0)
        x = tl.where(inside & (column != hit), x, float("-inf"))
        higher = tl.maximum(tl.max(x, axis=0), top)
        others = others * tl.exp(top - higher) + tl.sum(tl.exp(x - higher), axis=0)
        top = higher
    whole = others + tl.exp(own - top)
    tl.store(losses + row, tl.log(whole) + (top - own))
    if SHARES:
        tl.store(d_true + row, -others / whole)
        for start in range(0, drawn, BS):
            column = start + tl.arange(0, BS)
            inside = column < drawn
            x = tl.load(logits + column, inside, 0.0).to(tl.float32)
            x += tl.load(shift + column, inside, 0.0)
            x = tl.where(column != hit, tl.exp(x - top) / whole, 0.0)
            tl.store(logits + column, x.to(logits.dtype.element_ty), inside)


@triton.jit
def _hidden(
    made, d_true, weight, targets, scale, out, n, width, ROWS: tl.constexpr, BP: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    unit = tl.program_id(1) * BP + tl.arange(0, BP)
    ok = row < n
    mask = ok[:, None] & (unit < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + unit[None, :]
    target = tl.load(targets + row, ok, 0).to(tl.int64)
    w = tl.load(weight + target[:, None] * width + unit[None, :], mask, 0.0).to(tl.float32)
    x = tl.load(made + at, mask, 0.0) + tl.load(d_true + row, ok, 0.0)[:, None] * w
    tl.store(out + at, (x * tl.load(scale)).to(out.dtype.element_ty), mask)


@triton.jit
def _drawn(
    d_rows, d_shift, ids, scale, d_weight, d_bias, drawn, width,
    ROWS: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    unit = tl.program_id(1) * BP + tl.arange(0, BP)
    ok = row < drawn
    mask = ok[:, None] & (unit < width)[None, :]
    factor = tl.load(scale)
    word = tl.load(ids + row, ok, 0).to(tl.int64)
    x = tl.load(d_rows + row.to(tl.int64)[:, None] * width + unit[None, :], mask, 0.0) * factor
    to = d_weight + word[:, None] * width + unit[None, :]
    tl.store(to, x.to(d_weight.dtype.element_ty), mask)
    if tl.program_id(1) == 0:
        y = tl.load(d_shift + row, ok, 0.0) * factor
        tl.store(d_bias + word, y.to(d_bias.dtype.element_ty), ok)


@triton.jit
def _cuts(
    words, order, hidden, d_true, cuts, bias_cuts, n, width,
    PIECE: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0)
    word = tl.load(words + first)
    before = tl.load(words + first - 1, first > 0, -1)
    if (word != before) | (first % PIECE == 0):
        place = first + tl.arange(0, PIECE)
        unit = tl.program_id(1) * BP + tl.arange(0, BP)
        ok = (place < n) & (place < (first // PIECE + 1) * PIECE)
        ok = ok & (tl.load(words + place, ok, -1) == word)
        row = tl.load(order + place, ok, 0).to(tl.int64)
        d = tl.load(d_true + row, ok, 0.0)
        mask = ok[:, None] & (unit < width)[None, :]
        x = tl.load(hidden + row[:, None] * width + unit[None, :], mask, 0.0).to(tl.float32)
        to = cuts + first.to(tl.int64) * width + unit
        tl.store(to, tl.sum(d[:, None] * x, axis=0), unit < width)
        if tl.program_id(1) == 0:
            tl.store(bias_cuts + first, tl.sum(d, axis=0))


@triton.jit
def _words(
    words, cuts, bias_cuts, scale, d_weight, d_bias, n, width,
    PIECE: tl.constexpr, CUTS: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0)
    word = tl.load(words + first)
    before = tl.load(words + first - 1, first > 0, -1)
    if word != before:
        unit = tl.program_id(1) * BP + tl.arange(0, BP)
        inside = unit < width
        total = tl.load(cuts + first.to(tl.int64) * width + unit, inside, 0.0)
        bias = tl.load(bias_cuts + first)
        following = (first // PIECE + 1) * PIECE
        left = 1
        while left > 0:
            place = following + PIECE * tl.arange(0, CUTS)
            ok = tl.load(words + place, place < n, -1) == word
            mask = ok[:, None] & inside[None, :]
            at = place.to(tl.int64)[:, None] * width + unit[None, :]
            total += tl.sum(tl.load(cuts + at, mask, 0.0), axis=0)
            bias += tl.sum(tl.load(bias_cuts + place, ok, 0.0), axis=0)
            following += PIECE * CUTS
            left = tl.where(tl.sum(ok.to(tl.int32), axis=0) == CUTS, 1, 0)
        factor = tl.load(scale)
        at = word.to(tl.int64)
        to = d_weight + at * width + unit
        total = tl.load(to, inside, 0.0).to(tl.float32) + total * factor
        tl.store(to, total.to(d_weight.dtype.element_ty), inside)
        if tl.program_id(1) == 0:
            bias = tl.load(d_bias + at).to(tl.float32) + bias * factor
            tl.store(d_bias + at, bias.to(d_bias.dtype.element_ty))


def true_logits(
    hidden: Tensor, targets: Tensor, weight: Tensor, bias: Tensor, expected: Tensor
) -> Tensor:
    """Return the targets' own logits (n,), less the logarithm of how often each is expected."""
    n, width = hidden.shape
    out = torch.empty_like(expected)
    if hidden.is_meta:
        return out
    rows, block = _block(width)
    _true[(triton.cdiv(n, rows),)](
        hidden, targets.contiguous(), weight.contiguous(), bias, expected.contiguous(), out,
        n, width, ROWS=rows, BP=block,
    )  # fmt: skip
    return out


def shares(
    logits: Tensor,
    shift: Tensor,
    hits: Tensor,
    true: Tensor,
    losses: Tensor,
    d_true: Tensor,
    of_hidden: bool,
    of_weight: bool,
) -> Tensor | None:
    """Make each row's loss; put probabilities in the place of logits and return their sums (S,)."""
    n, drawn = logits.shape
    wanted = of_hidden or of_weight
    if drawn > WIDEST:
        if not logits.is_meta:
            _wide[(n,)](
                logits, shift, hits, true, losses, d_true, drawn,
                SHARES=wanted, BS=TILE, num_warps=8,
            )  # fmt: skip
        return logits.sum(dim=0, dtype=torch.float32) if of_weight else None
    groups = triton.cdiv(n, GROUP)
    sums = shift.new_empty(groups if of_weight else 1, drawn)
    if not logits.is_meta:
        block = triton.next_power_of_2(drawn)
        _narrow[(groups,)](
            logits, shift, hits, true, losses, d_true, sums, n, drawn,
            SHARES=wanted, SUMS=of_weight, GROUP=GROUP, BS=block,
            num_warps=min(max(block // 512, 1), 16),
        )  # fmt: skip
    return sums.sum(dim=0) if of_weight else None


def hidden_gradient(
    d_hidden: Tensor,
    d_true: Tensor,
    weight: Tensor,
    targets: Tensor,
    scale: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Add what comes from the targets, and scale."""
    n, width = d_hidden.shape
    out = torch.empty_like(d_hidden, dtype=dtype)
    if d_hidden.is_meta:
        return out
    rows, block = _block(width)
    _hidden[(triton.cdiv(n, rows), triton.cdiv(width, block))](
        d_hidden, d_true, weight.contiguous(), targets.contiguous(), scale, out,
        n, width, ROWS=rows, BP=block,
    )  # fmt: skip
    return out


def weight_gradient(
    d_rows: Tensor,
    d_shift: Tensor,
    ids: Tensor,
    hidden: Tensor,
    d_true: Tensor,
    targets: Tensor,
    scale: Tensor,
    weight: Tensor,
    bias: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of all rows (V, P) and biases (V,)."""
    (n, width), drawn = hidden.shape, len(ids)
    d_weight = torch.zeros_like(weight, memory_format=torch.contiguous_format)
    d_bias = torch.zeros_like(bias)
    cuts, bias_cuts = torch.empty_like(hidden, dtype=torch.float32), torch.empty_like(d_true)
    if hidden.is_meta:
        return d_weight, d_bias
    rows, block = _block(width)
    columns = triton.cdiv(width, block)
    _drawn[(triton.cdiv(drawn, rows), columns)](
        d_rows, d_shift, ids.contiguous(), scale, d_weight, d_bias, drawn, width,
        ROWS=rows, BP=block,
    )  # fmt: skip
    words, order = torch.sort(targets.to(torch.int32), stable=True)
    _cuts[(n, columns)](
        words, order, hidden, d_true, cuts, bias_cuts, n, width, PIECE=PIECE, BP=block
    )
    _words[(n, columns)](
        words, cuts, bias_cuts, scale, d_weight, d_bias, n, width,
        PIECE=PIECE, CUTS=CUTS, BP=block,
    )  # fmt: skip
    return d_weight, d_bias


def _block(width: int) -> tuple[int, int]:
    """Return rows and columns of a program that goes over rows of a width: 2048 values."""
    block = min(triton.next_power_of_2(width), 512)
    return max(2048 // block, 1), block
