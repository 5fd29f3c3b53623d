"""The recurrence of a bidirectional GRU as one Triton kernel, and one for its gradients.

A program reads some texts in one direction from their first word to their last: its weights stay on
the chip, so that a step costs about a microsecond, where a library that launches kernels a step
needs twenty. That is so for few cells, as those of question answering.

Weights come padded, (2, 3, W, W): direction, gate (r z n), from a cell of the step before, to one
of this step; for the gradients turned round, as `nn.GRU` has them. Rows are padded texts, products
with the input (B, T, 6 H): r z n of the forward direction, then of the other.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, WARPS = 16, 8  # texts of a program; the least that tensor cores take
VARYING = ("batch", "steps")  # kernels are not compiled anew for each


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit(do_not_specialize=VARYING)
def _forward(
    products, weight, bias, lengths, out, gates, batch, steps, cells,
    SAVE: tl.constexpr, BM: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    d = tl.program_id(1)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    unit = tl.arange(0, W)
    known = unit < cells
    length = tl.load(lengths + row, row < batch, 0)
    square = tl.arange(0, W)[:, None] * W + unit[None, :]
    weight += d * 3 * W * W
    to_r = tl.load(weight + square)
    to_z = tl.load(weight + W * W + square)
    to_n = tl.load(weight + 2 * W * W + square)
    bias_n = tl.load(bias + d * cells + unit, known, 0.0).to(tl.float32)[None, :]
    h = tl.zeros((BM, W), tl.float32)
    for t in range(tl.max(length, 0)):
        live = (t < length)[:, None] & known[None, :]
        word = row.to(tl.int64) * steps + tl.where(d == 0, t, length - 1 - t)
        x = products + word[:, None] * (6 * cells) + d * 3 * cells + unit[None, :]
        r = tl.load(x, live, 0.0).to(tl.float32)
        z = tl.load(x + cells, live, 0.0).to(tl.float32)
        n = tl.load(x + 2 * cells, live, 0.0).to(tl.float32)
        low = h.to(to_r.dtype)
        r = tl.sigmoid(r + tl.dot(low, to_r, input_precision="ieee"))
        z = tl.sigmoid(z + tl.dot(low, to_z, input_precision="ieee"))
        inner = tl.dot(low, to_n, input_precision="ieee") + bias_n
        n = _tanh(n + r * inner)
        h = tl.where(live, (1 - z) * n + z * h, h)
        kind = out.dtype.element_ty
        tl.store(out + word[:, None] * (2 * cells) + d * cells + unit[None, :], h.to(kind), live)
        if SAVE:
            saved = gates + (word[:, None] * 2 + d) * (4 * cells) + unit[None, :]
            tl.store(saved, r.to(kind), live)
            tl.store(saved + cells, z.to(kind), live)
            tl.store(saved + 2 * cells, n.to(kind), live)
            tl.store(saved + 3 * cells, inner.to(kind), live)


@triton.jit(do_not_specialize=VARYING)
def _backward(
    grad, weight, lengths, out, gates, grad_products, grad_inner, batch, steps, cells,
    BM: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    d = tl.program_id(1)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    unit = tl.arange(0, W)
    known = unit < cells
    length = tl.load(lengths + row, row < batch, 0)
    square = tl.arange(0, W)[:, None] * W + unit[None, :]
    weight += d * 3 * W * W
    to_r = tl.load(weight + square)
    to_z = tl.load(weight + W * W + square)
    to_n = tl.load(weight + 2 * W * W + square)
    kind = grad_products.dtype.element_ty
    dh = tl.zeros((BM, W), tl.float32)
    longest = tl.max(length, 0)
    for number in range(longest):
        t = longest - 1 - number
        live = (t < length)[:, None] & known[None, :]
        word = row.to(tl.int64) * steps + tl.where(d == 0, t, length - 1 - t)
        column = d * cells + unit[None, :]
        own = tl.load(grad + word[:, None] * (2 * cells) + column, live, 0.0).to(tl.float32)
        before = word + tl.where(d == 0, -1, 1)
        later = live & (t + 0 * length > 0)[:, None]
        h = tl.load(out + before[:, None] * (2 * cells) + column, later, 0.0)
        saved = gates + (word[:, None] * 2 + d) * (4 * cells) + unit[None, :]
        r = tl.load(saved, live, 0.0).to(tl.float32)
        z = tl.load(saved + cells, live, 0.0).to(tl.float32)
        n = tl.load(saved + 2 * cells, live, 0.0).to(tl.float32)
        inner = tl.load(saved + 3 * cells, live, 0.0).to(tl.float32)
        total = dh + own
        dz = total * (h.to(tl.float32) - n) * z * (1 - z)
        dn = total * (1 - z) * (1 - n * n)
        dr = dn * inner * r * (1 - r)
        di = dn * r
        x = grad_products + word[:, None] * (6 * cells) + d * 3 * cells + unit[None, :]
        tl.store(x, dr.to(kind), live)
        tl.store(x + cells, dz.to(kind), live)
        tl.store(x + 2 * cells, dn.to(kind), live)
        tl.store(grad_inner + word[:, None] * (2 * cells) + column, di.to(kind), live)
        low = to_r.dtype
        back = tl.dot(dr.to(low), to_r, input_precision="ieee")
        back = tl.dot(dz.to(low), to_z, back, input_precision="ieee")
        back = tl.dot(di.to(low), to_n, back, input_precision="ieee")
        dh = tl.where(live, total * z + back, 0.0)


def padded(cells: int) -> int:
    """Return the width of weights in which a program reads them."""
    return max(int(triton.next_power_of_2(cells)), 16)


def forward(
    products: Tensor, weight: Tensor, bias: Tensor, lengths: Tensor, save: bool
) -> tuple[Tensor, Tensor]:
    """Return the states (B, T, 2 H), zero at padding, and r z n and n's inner part."""
    batch, steps, wide = products.shape
    cells = wide // 6
    out = products.new_zeros(batch, steps, 2 * cells)
    gates = products.new_empty((batch, steps, 2, 4 * cells) if save else (1,))
    _forward[(triton.cdiv(batch, ROWS), 2)](
        products, weight, bias, lengths, out, gates, batch, steps, cells,
        SAVE=save, BM=ROWS, W=weight.shape[2], num_warps=WARPS,
    )  # fmt: skip
    return out, gates


def backward(
    grad: Tensor, weight: Tensor, lengths: Tensor, out: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the products (B, T, 6 H) and of n's inner part (B, T, 2 H)."""
    batch, steps, both = out.shape
    cells = both // 2
    products = torch.zeros(batch, steps, 6 * cells, dtype=out.dtype, device=out.device)
    inner = torch.zeros_like(out)
    _backward[(triton.cdiv(batch, ROWS), 2)](
        grad, weight, lengths, out, gates, products, inner, batch, steps, cells,
        BM=ROWS, W=weight.shape[2], num_warps=WARPS,
    )  # fmt: skip
    return products, inner
