"""The pointwise parts of the LSTM as Triton kernels; see `torch_lstm` for what each does.

One program takes a block of rows and cells of one direction. The gradient of the bias is summed
over each block of rows on the way, so that the gates' gradients need not be read again; the blocks'
sums are added at the end, always in the same order. In 16 bits the hardware's own tanh is used,
whose error (2**-11) is below their rounding.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, CELLS = 4, 256  # of a program of the forward pass
BACK_ROWS, BACK_CELLS, BACK_WARPS = 8, 512, 4  # ... and of the backward pass
WIDE = 1024  # values of a program that knows no rows


# Arguments that change from step to step: kernels are not compiled anew for each kind of number.
VARYING = ("rows", "next_rows", "r_d")


class Block(NamedTuple):
    """What a program of a product takes."""

    rows: int
    columns: int
    depth: int  # of the sum, at a time
    warps: int
    stages: int

    def divides(self, columns: int, depth: int) -> bool:
        """Whether a product of such a shape has no part of a block left over, but for rows."""
        return columns % self.columns == 0 and depth % self.depth == 0


# Measured on an H200, as is when to take them: see `fits`. For 16 bits, and for split float32.
GATES, SPLIT_GATES = Block(128, 64, 64, 8, 3), Block(128, 64, 16, 8, 3)
PROJECTION, SPLIT_PROJECTION = Block(64, 32, 64, 4, 5), Block(64, 64, 32, 4, 3)
# ... and for few rows.
FEW = 32
FEW_GATES, SPLIT_FEW_GATES = Block(16, 32, 128, 4, 3), Block(32, 32, 32, 4, 3)
FEW_PROJECTION, SPLIT_FEW_PROJECTION = Block(16, 16, 256, 4, 3), Block(16, 16, 64, 4, 4)
DEEPEST = 512  # products of 16 bits with a longer sum are quicker by the library, cells apart


@triton.jit
def _tanh(x, FAST: tl.constexpr):
    if FAST:
        return tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    square = x * x
    near = x * (1 + square * (-1 / 3 + square * (2 / 15 - square * (17 / 315))))
    return tl.where(square < 0.01, near, 2 * tl.sigmoid(2 * x) - 1)


@triton.jit
def _sigmoid(x, FAST: tl.constexpr):
    if FAST:
        return 0.5 + 0.5 * _tanh(0.5 * x, FAST)
    return tl.sigmoid(x)


@triton.jit
def _gates(z, bias, cells, mask, ok, FAST: tl.constexpr):
    i = tl.load(z, mask, 0.0).to(tl.float32) + tl.load(bias, ok, 0.0)[None, :]
    f = tl.load(z + cells, mask, 0.0).to(tl.float32) + tl.load(bias + cells, ok, 0.0)[None, :]
    g = tl.load(z + 2 * cells, mask, 0.0).to(tl.float32)
    g += tl.load(bias + 2 * cells, ok, 0.0)[None, :]
    o = tl.load(z + 3 * cells, mask, 0.0).to(tl.float32)
    o += tl.load(bias + 3 * cells, ok, 0.0)[None, :]
    return _sigmoid(i, FAST), _sigmoid(f, FAST), _tanh(g, FAST), _sigmoid(o, FAST)


@triton.jit(do_not_specialize=VARYING)
def _cell(
    z, z_d, z_r, bias, before, b_d, b_r, reset, r_d, c, c_d, c_r, m, m_d, m_r,
    rows, cells, clip,
    RESET: tl.constexpr, CLIP: tl.constexpr, FAST: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    d = tl.program_id(2).to(tl.int64)
    row = tl.program_id(1) * BR + tl.arange(0, BR)
    unit = tl.program_id(0) * BC + tl.arange(0, BC)
    ok = unit < cells
    mask = (row < rows)[:, None] & ok[None, :]
    wide, column = row.to(tl.int64)[:, None], unit[None, :]
    old = tl.load(before + d * b_d + wide * b_r + column, mask, 0.0)
    if RESET:
        gone = tl.load(reset + d * r_d + row, row < rows, 0) != 0
        old = tl.where(gone[:, None], 0.0, old)
    i, f, g, o = _gates(
        z + d * z_d + wide * z_r + column, bias + d * 4 * cells + unit, cells, mask, ok, FAST
    )
    value = f * old + i * g
    if CLIP:
        value = tl.minimum(tl.maximum(value, -clip), clip)
    tl.store(c + d * c_d + wide * c_r + column, value, mask)
    out = o * _tanh(value, FAST)
    tl.store(m + d * m_d + wide * m_r + column, out.to(m.dtype.element_ty), mask)


@triton.jit(do_not_specialize=VARYING)
def _cell_backward(
    z, z_d, z_r, bias, before, b_d, b_r, reset, r_d, dm, m_d, m_r, dc, c_d, c_r,
    dz, sums, s_d, s_b, rows, cells, clip,
    RESET: tl.constexpr, CLIP: tl.constexpr, FAST: tl.constexpr,
    ROWS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    # Row after row, so that bias and sums of a block of cells stay in registers.
    d = tl.program_id(2).to(tl.int64)
    block = tl.program_id(1).to(tl.int64)
    unit = tl.program_id(0) * BC + tl.arange(0, BC)
    ok = unit < cells
    bias += d * 4 * cells + unit
    i_bias, f_bias = tl.load(bias, ok, 0.0), tl.load(bias + cells, ok, 0.0)
    g_bias, o_bias = tl.load(bias + 2 * cells, ok, 0.0), tl.load(bias + 3 * cells, ok, 0.0)
    i_sum, f_sum = tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
    g_sum, o_sum = tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
    z += d * z_d + unit
    dz += d * z_d + unit
    before += d * b_d + unit
    dm += d * m_d + unit
    dc += d * c_d + unit
    for row in range(block * ROWS, tl.minimum(block * ROWS + ROWS, rows)):
        gates = z + row * z_r
        i = _sigmoid(tl.load(gates, ok, 0.0).to(tl.float32) + i_bias, FAST)
        f = _sigmoid(tl.load(gates + cells, ok, 0.0).to(tl.float32) + f_bias, FAST)
        g = _tanh(tl.load(gates + 2 * cells, ok, 0.0).to(tl.float32) + g_bias, FAST)
        o = _sigmoid(tl.load(gates + 3 * cells, ok, 0.0).to(tl.float32) + o_bias, FAST)
        old = tl.load(before + row * b_r, ok, 0.0)
        own = tl.load(dm + row * m_r, ok, 0.0).to(tl.float32)
        carried = tl.load(dc + row * c_r, ok, 0.0)
        keep = 1.0
        if RESET:
            keep = tl.where(tl.load(reset + d * r_d + row) == 0, 1.0, 0.0)
            old = old * keep
        raw = f * old + i * g
        value = raw
        if CLIP:
            value = tl.minimum(tl.maximum(raw, -clip), clip)
        squashed = _tanh(value, FAST)
        total = carried + own * o * (1 - squashed * squashed)
        if CLIP:
            total = tl.where(tl.abs(raw) > clip, 0.0, total)
        tl.store(dc + row * c_r, total * f * keep, ok)
        i_grad = total * g * i * (1 - i)
        f_grad = total * old * f * (1 - f)
        g_grad = total * i * (1 - g * g)
        o_grad = own * squashed * o * (1 - o)
        out = dz + row * z_r
        tl.store(out, i_grad.to(dz.dtype.element_ty), ok)
        tl.store(out + cells, f_grad.to(dz.dtype.element_ty), ok)
        tl.store(out + 2 * cells, g_grad.to(dz.dtype.element_ty), ok)
        tl.store(out + 3 * cells, o_grad.to(dz.dtype.element_ty), ok)
        i_sum += i_grad
        f_sum += f_grad
        g_sum += g_grad
        o_sum += o_grad
    sums += d * s_d + block * s_b + unit
    tl.store(sums, i_sum, ok)
    tl.store(sums + cells, f_sum, ok)
    tl.store(sums + 2 * cells, g_sum, ok)
    tl.store(sums + 3 * cells, o_sum, ok)


@triton.jit
def _high(x):
    """Return what of a float32 fits in tf32."""
    return ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def _split_dot(x, x_low, w, w_low, total, one):
    """Add a product of split float32 to a sum.

    Tensor cores cut what they add: a few terms do no harm, a thousand would. So each block is
    summed alone, the small terms first, and added by itself; times one, which the compiler does
    not know to be one, since it would add to the sum directly otherwise.
    """
    part = tl.dot(x_low, w, input_precision="tf32")
    part = tl.dot(x, w_low, part, input_precision="tf32")
    part = tl.dot(x, w, part, input_precision="tf32")
    return total + part * one


@triton.jit(do_not_specialize=VARYING)
def _gates_cell(
    a, a_d, a_r, w, w_d, bias, before, b_d, b_r, reset, r_d, c, c_d, c_r,
    m, m_d, m_r, rows, cells, depth, clip, one,
    RESET: tl.constexpr, CLIP: tl.constexpr, SPLIT: tl.constexpr, FAST: tl.constexpr,
    BM: tl.constexpr, BU: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    # A block of rows by a block of cells, all four gates: the cell is made where their sums lie.
    d = tl.program_id(1).to(tl.int64)
    blocks = tl.cdiv(rows, BM)
    row = (tl.program_id(0) % blocks) * BM + tl.arange(0, BM)  # neighbours share the weights
    unit = (tl.program_id(0) // blocks) * BU + tl.arange(0, BU)
    inner = tl.arange(0, BK)
    there = (row < rows)[:, None]
    wide = row.to(tl.int64)[:, None]
    left = a + d * a_d + wide * a_r + inner[None, :]
    length = 2 * depth if SPLIT else depth
    right = w + d * w_d + unit.to(tl.int64)[None, :] * length + inner[:, None]
    gate = cells.to(tl.int64) * length
    i, f = tl.zeros((BM, BU), tl.float32), tl.zeros((BM, BU), tl.float32)
    g, o = tl.zeros((BM, BU), tl.float32), tl.zeros((BM, BU), tl.float32)
    for _ in range(0, depth, BK):
        x = tl.load(left, there, 0.0)
        if SPLIT:
            x_low = tl.load(left + depth, there, 0.0)
            i = _split_dot(x, x_low, tl.load(right), tl.load(right + depth), i, one)
            here = right + gate
            f = _split_dot(x, x_low, tl.load(here), tl.load(here + depth), f, one)
            here += gate
            g = _split_dot(x, x_low, tl.load(here), tl.load(here + depth), g, one)
            here += gate
            o = _split_dot(x, x_low, tl.load(here), tl.load(here + depth), o, one)
        else:
            i = tl.dot(x, tl.load(right), i)
            f = tl.dot(x, tl.load(right + gate), f)
            g = tl.dot(x, tl.load(right + 2 * gate), g)
            o = tl.dot(x, tl.load(right + 3 * gate), o)
        left += BK
        right += BK
    column = unit[None, :]
    bias += d * 4 * cells + unit
    i = _sigmoid(i + tl.load(bias)[None, :], FAST)
    f = _sigmoid(f + tl.load(bias + cells)[None, :], FAST)
    g = _tanh(g + tl.load(bias + 2 * cells)[None, :], FAST)
    o = _sigmoid(o + tl.load(bias + 3 * cells)[None, :], FAST)
    old = tl.load(before + d * b_d + wide * b_r + column, there, 0.0)
    if RESET:
        gone = tl.load(reset + d * r_d + row, row < rows, 0) != 0
        old = tl.where(gone[:, None], 0.0, old)
    value = f * old + i * g
    if CLIP:
        value = tl.minimum(tl.maximum(value, -clip), clip)
    tl.store(c + d * c_d + wide * c_r + column, value, there)
    made = o * _tanh(value, FAST)
    m += d * m_d + wide * m_r + column
    if SPLIT:
        high = _high(made)
        tl.store(m, high, there)
        tl.store(m + cells, made - high, there)
    else:
        tl.store(m, made.to(m.dtype.element_ty), there)


@triton.jit(do_not_specialize=VARYING)
def _project(
    m, m_d, m_r, w, w_d, y, y_d, y_r, following, f_d, f_r, reset, r_d,
    rows, next_rows, width, depth, clip, low, one,
    RESET: tl.constexpr, CLIP: tl.constexpr, NEXT: tl.constexpr, SPLIT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    d = tl.program_id(1).to(tl.int64)
    blocks = tl.cdiv(rows, BM)
    row = (tl.program_id(0) % blocks) * BM + tl.arange(0, BM)
    column = (tl.program_id(0) // blocks) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    there = (row < rows)[:, None]
    wide = row.to(tl.int64)[:, None]
    left = m + d * m_d + wide * m_r + inner[None, :]
    length = 2 * depth if SPLIT else depth
    right = w + d * w_d + column.to(tl.int64)[None, :] * length + inner[:, None]
    total = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, depth, BK):
        if SPLIT:
            x, x_low = tl.load(left, there, 0.0), tl.load(left + depth, there, 0.0)
            total = _split_dot(x, x_low, tl.load(right), tl.load(right + depth), total, one)
        else:
            total = tl.dot(tl.load(left, there, 0.0), tl.load(right), total)
        left += BK
        right += BK
    if CLIP:
        total = tl.minimum(tl.maximum(total, -clip), clip)
    out = total.to(y.dtype.element_ty)
    tl.store(y + d * y_d + wide * y_r + column[None, :], out, there)
    if NEXT:
        coming = row < next_rows
        if RESET:
            gone = tl.load(reset + d * r_d + row, coming, 0) != 0
            total = tl.where(gone[:, None], 0.0, total)
        following += d * f_d + wide * f_r + column[None, :]
        if SPLIT:
            high = _high(total)
            tl.store(following, high, coming[:, None])
            tl.store(following + low, total - high, coming[:, None])
        else:
            tl.store(following, total.to(y.dtype.element_ty), coming[:, None])


@triton.jit(do_not_specialize=VARYING)
def _settle(
    y, y_d, y_r, following, f_d, f_r, reset, r_d, rows, next_rows, width, clip,
    CLIP: tl.constexpr, NEXT: tl.constexpr, RESET: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    d = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, column = place // width, place % width
    mask = row < rows
    wide = row.to(tl.int64)
    y += d * y_d + wide * y_r + column
    value = tl.load(y, mask, 0.0)
    if CLIP:
        value = tl.minimum(tl.maximum(value.to(tl.float32), -clip), clip).to(y.dtype.element_ty)
        tl.store(y, value, mask)
    if NEXT:
        mask = row < next_rows
        if RESET:
            gone = tl.load(reset + d * r_d + row, mask, 0) != 0
            value = tl.where(gone, 0.0, value).to(y.dtype.element_ty)
        tl.store(following + d * f_d + wide * f_r + column, value, mask)


@triton.jit(do_not_specialize=VARYING)
def _unsettle(
    dy, g_d, g_r, dh, h_d, h_r, reset, r_d, y, y_d, y_r, dp, p_d, p_r,
    rows, next_rows, width, clip,
    GIVEN: tl.constexpr, RESET: tl.constexpr, CLIP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    d = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, column = place // width, place % width
    mask = row < rows
    wide = row.to(tl.int64)
    total = tl.load(dh + d * h_d + wide * h_r + column, mask, 0.0).to(tl.float32)
    if RESET:
        gone = tl.load(reset + d * r_d + row, mask & (row < next_rows), 0) != 0
        total = tl.where(gone, 0.0, total)
    if GIVEN:
        total += tl.load(dy + d * g_d + wide * g_r + column, mask, 0.0).to(tl.float32)
    if CLIP:
        out = tl.load(y + d * y_d + wide * y_r + column, mask, 0.0).to(tl.float32)
        total = tl.where(tl.abs(out) >= clip, 0.0, total)
    tl.store(dp + d * p_d + wide * p_r + column, total.to(dp.dtype.element_ty), mask)


def fits(cells: int, width: int, out_width: int, dtype: torch.dtype, saving: bool) -> bool:
    """Whether products and cells should be one kernel: blocks divide the shapes, and it is quicker.

    That is so where no gates are kept for a backward pass, in float32 (see `lstm._put`), and in 16
    bits for short sums.
    """
    if saving or dtype.itemsize > 4 or (dtype.itemsize == 2 and width + out_width > DEEPEST):
        return False
    split = dtype == torch.float32
    gates, projection = (SPLIT_GATES, SPLIT_PROJECTION) if split else (GATES, PROJECTION)
    return gates.divides(cells, width + out_width) and projection.divides(out_width, cells)


def _block(usual: Block, few_rows: Block, rows: int, columns: int, depth: int) -> Block:
    return few_rows if rows <= FEW and few_rows.divides(columns, depth) else usual


def gates_cell(
    joined: Tensor,  # (D, B, K), or split (D, B, 2K)
    gates: Tensor,  # (D, 4H, K), or split (D, 4H, 2K)
    bias: Tensor,
    c_before: Tensor,
    reset: Tensor | None,
    clip: float | None,
    c: Tensor,
    m: Tensor,  # (D, B, H), or (D, B, 2H) to be split, written
) -> None:
    """Make the gates, the new cell and what goes to the projection."""
    if c.is_meta:
        return
    directions, rows, cells = c.shape
    split = m.shape[2] != cells
    depth = joined.shape[2] // (2 if split else 1)
    kinds = (SPLIT_GATES, SPLIT_FEW_GATES) if split else (GATES, FEW_GATES)
    block = _block(*kinds, rows, cells, depth)
    grid = (triton.cdiv(rows, block.rows) * (cells // block.columns), directions)
    _gates_cell[grid](
        joined, *joined.stride()[:2], gates, gates.stride(0), bias,
        c_before, *c_before.stride()[:2], *_marks(reset), c, *c.stride()[:2], m, *m.stride()[:2],
        rows, cells, depth, clip or 0.0, 1.0,
        RESET=reset is not None, CLIP=clip is not None, SPLIT=split, FAST=_fast(m),
        BM=block.rows, BU=block.columns, BK=block.depth,
        num_warps=block.warps, num_stages=block.stages,
    )  # fmt: skip


def project(
    m: Tensor,  # (D, B, H), or split (D, B, 2H)
    projection: Tensor,  # (D, P, H), or split (D, P, 2H)
    clip: float | None,
    y: Tensor,  # (D, B, P), written
    following: Tensor | None,  # (D, B', P), written
    reset: Tensor | None,
    low: int,  # how far behind `following` the rests of split numbers are; 0 if they are not split
) -> None:
    """Project and clip, and hand the state to the next step's rows."""
    if y.is_meta:
        return
    directions, rows, width = y.shape
    split = low > 0
    depth = m.shape[2] // (2 if split else 1)
    kinds = (SPLIT_PROJECTION, SPLIT_FEW_PROJECTION) if split else (PROJECTION, FEW_PROJECTION)
    block = _block(*kinds, rows, width, depth)
    there = y if following is None else following
    next_rows = 0 if following is None else following.shape[1]
    grid = (triton.cdiv(rows, block.rows) * (width // block.columns), directions)
    _project[grid](
        m, *m.stride()[:2], projection, projection.stride(0), y, *y.stride()[:2],
        there, *there.stride()[:2], *_marks(reset),
        rows, next_rows, width, depth, clip or 0.0, low, 1.0,
        RESET=reset is not None, CLIP=clip is not None, NEXT=following is not None, SPLIT=split,
        BM=block.rows, BN=block.columns, BK=block.depth,
        num_warps=block.warps, num_stages=block.stages,
    )  # fmt: skip


def cell(
    z: Tensor,
    bias: Tensor,
    c_before: Tensor,
    reset: Tensor | None,
    clip: float | None,
    c: Tensor,
    m: Tensor,
) -> None:
    """Make the new cell and what goes to the projection."""
    if c.is_meta:
        return
    directions, rows, cells = c.shape
    grid = (triton.cdiv(cells, CELLS), triton.cdiv(rows, ROWS), directions)
    _cell[grid](
        z, *z.stride()[:2], bias, c_before, *c_before.stride()[:2], *_marks(reset),
        c, *c.stride()[:2], m, *m.stride()[:2], rows, cells, clip or 0.0,
        RESET=reset is not None, CLIP=clip is not None, FAST=_fast(z), BR=ROWS, BC=CELLS,
    )  # fmt: skip


def settle(y: Tensor, clip: float | None, following: Tensor | None, reset: Tensor | None) -> None:
    """Clip the projection, and hand it to the next step's rows."""
    if (clip is None and following is None) or y.is_meta:
        return
    directions, rows, width = y.shape
    there = y if following is None else following
    next_rows = 0 if following is None else following.shape[1]
    _settle[(triton.cdiv(rows * width, WIDE), directions)](
        y, *y.stride()[:2], there, *there.stride()[:2], *_marks(reset),
        rows, next_rows, width, clip or 0.0,
        CLIP=clip is not None, NEXT=following is not None, RESET=reset is not None, BLOCK=WIDE,
    )  # fmt: skip


def unsettle(
    dy: Tensor | None,
    dh: Tensor,
    reset: Tensor | None,
    y: Tensor,
    clip: float | None,
    dp: Tensor,
) -> None:
    """Make the gradient of the projection before its clip."""
    if y.is_meta:
        return
    directions, rows, width = y.shape
    if dy is not None and dy.stride(2) != 1:
        dy = dy.contiguous()
    given = dh if dy is None else dy
    next_rows = 0 if reset is None else reset.shape[1]
    _unsettle[(triton.cdiv(rows * width, WIDE), directions)](
        given, *given.stride()[:2], dh, *dh.stride()[:2], *_marks(reset),
        y, *y.stride()[:2], dp, *dp.stride()[:2], rows, next_rows, width, clip or 0.0,
        GIVEN=dy is not None, RESET=next_rows > 0, CLIP=clip is not None, BLOCK=WIDE,
    )  # fmt: skip


def cell_backward(
    z: Tensor,
    bias: Tensor,
    c_before: Tensor,
    reset: Tensor | None,
    clip: float | None,
    dm: Tensor,
    dc: Tensor,
    dz: Tensor,
    sums: Sequence[Tensor],
    step: int,
) -> None:
    """Make the gradients of the gates and of the cell before."""
    if dc.is_meta:
        return
    directions, rows, cells = dc.shape
    part = sums[step]  # (D, blocks, 4H)
    grid = (triton.cdiv(cells, BACK_CELLS), part.shape[1], directions)
    _cell_backward[grid](
        z, *z.stride()[:2], bias, c_before, *c_before.stride()[:2], *_marks(reset),
        dm, *dm.stride()[:2], dc, *dc.stride()[:2], dz, part, *part.stride()[:2],
        rows, cells, clip or 0.0,
        RESET=reset is not None, CLIP=clip is not None, FAST=_fast(z),
        ROWS=BACK_ROWS, BC=BACK_CELLS, num_warps=BACK_WARPS,
    )  # fmt: skip


def bias_sums(dz: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Return, for each step, where the sums of blocks of rows go, (D, blocks, 4H)."""
    blocks = [triton.cdiv(size, BACK_ROWS) for size in sizes]
    whole = dz.new_empty(dz.shape[0], sum(blocks), dz.shape[2], dtype=torch.float32)
    return list(whole.split(blocks, dim=1))


def bias_gradient(sums: Sequence[Tensor], dz: Tensor) -> Tensor:
    """Return the gradient of the bias, (D, 4H)."""
    del dz
    whole = sums[0]._base
    assert whole is not None
    return whole.sum(dim=1)


def _marks(reset: Tensor | None) -> tuple[Any, int]:
    """Return the marks as bytes, which kernels read, and their stride over directions."""
    if reset is None:
        return 0, 0
    return reset.view(torch.uint8), reset.stride(0)


def _fast(z: Tensor) -> bool:
    return z.element_size() == 2 and os.environ.get("TRITON_INTERPRET") != "1"
