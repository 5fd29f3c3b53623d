"""A step of the highway LSTM between two matrix products, as one Triton kernel each way.

A program takes one text at one step. Rows are packed, of all steps one after the other: `start` is
where a step's rows begin. The first `known` rows have a step before (forward) or behind (backward).
Cells are float32, all else is in the products' dtype.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

WARPS = 4
VARYING = ("start", "last", "known", "before")  # kernels are not compiled anew for each


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit(do_not_specialize=VARYING)
def _step(
    products, product, mask, gates, cell, out, start, last, known, cells,
    MASK: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    unit = tl.arange(0, BC)
    ok = unit < cells
    there = ok & (row + 0 * unit < known)
    x = products + (start + row) * (6 * cells) + unit
    z = product + row * (5 * cells) + unit
    g = tl.load(x, ok, 0.0).to(tl.float32) + tl.load(z, there, 0.0).to(tl.float32)
    x += cells
    z += cells
    i = tl.load(x, ok, 0.0).to(tl.float32) + tl.load(z, there, 0.0).to(tl.float32)
    x += cells
    z += cells
    f = tl.load(x, ok, 0.0).to(tl.float32) + tl.load(z, there, 0.0).to(tl.float32)
    x += cells
    z += cells
    o = tl.load(x, ok, 0.0).to(tl.float32) + tl.load(z, there, 0.0).to(tl.float32)
    x += cells
    z += cells
    r = tl.load(x, ok, 0.0).to(tl.float32) + tl.load(z, there, 0.0).to(tl.float32)
    carried = tl.load(x + cells, ok, 0.0).to(tl.float32)
    old = tl.load(cell + (last + row) * cells + unit, there, 0.0)
    g, i, f, o, r = _tanh(g), tl.sigmoid(i), tl.sigmoid(f), tl.sigmoid(o), tl.sigmoid(r)
    c = g * i + f * old
    h = r * (o * _tanh(c)) + (1 - r) * carried
    if MASK:
        h *= tl.load(mask + row * cells + unit, ok, 0.0)
    place = start + row
    tl.store(cell + place * cells + unit, c, ok)
    tl.store(out + place * cells + unit, h.to(out.dtype.element_ty), ok)
    kind = gates.dtype.element_ty
    saved = gates + place * (5 * cells) + unit
    tl.store(saved, g.to(kind), ok)
    tl.store(saved + cells, i.to(kind), ok)
    tl.store(saved + 2 * cells, f.to(kind), ok)
    tl.store(saved + 3 * cells, o.to(kind), ok)
    tl.store(saved + 4 * cells, r.to(kind), ok)


@triton.jit(do_not_specialize=VARYING)
def _step_backward(
    products, gates, cell, mask, grad, back, grad_cell, grads, start, last, known, before, cells,
    MASK: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    unit = tl.arange(0, BC)
    ok = unit < cells
    there = ok & (row + 0 * unit < known)  # a step that comes later
    place = start + row
    dh = tl.load(grad + place * cells + unit, ok, 0.0).to(tl.float32)
    dh += tl.load(back + row * cells + unit, there, 0.0).to(tl.float32)
    if MASK:
        dh *= tl.load(mask + row * cells + unit, ok, 0.0)
    saved = gates + place * (5 * cells) + unit
    g = tl.load(saved, ok, 0.0).to(tl.float32)
    i = tl.load(saved + cells, ok, 0.0).to(tl.float32)
    f = tl.load(saved + 2 * cells, ok, 0.0).to(tl.float32)
    o = tl.load(saved + 3 * cells, ok, 0.0).to(tl.float32)
    r = tl.load(saved + 4 * cells, ok, 0.0).to(tl.float32)
    carried = tl.load(products + place * (6 * cells) + 5 * cells + unit, ok, 0.0).to(tl.float32)
    squashed = _tanh(tl.load(cell + place * cells + unit, ok, 0.0))
    earlier = ok & (row + 0 * unit < before)  # a step that came before
    old = tl.load(cell + (last + row) * cells + unit, earlier, 0.0)
    here = grad_cell + row * cells + unit
    dc = dh * r * o * (1 - squashed * squashed) + tl.load(here, there, 0.0)
    tl.store(here, dc * f, ok)
    kind = grads.dtype.element_ty
    out = grads + place * (6 * cells) + unit
    tl.store(out, (dc * i * (1 - g * g)).to(kind), ok)
    tl.store(out + cells, (dc * g * i * (1 - i)).to(kind), ok)
    tl.store(out + 2 * cells, (dc * old * f * (1 - f)).to(kind), ok)
    tl.store(out + 3 * cells, (dh * r * squashed * o * (1 - o)).to(kind), ok)
    tl.store(out + 4 * cells, (dh * (o * squashed - carried) * r * (1 - r)).to(kind), ok)
    tl.store(out + 5 * cells, (dh * (1 - r)).to(kind), ok)


def step(
    products: Tensor,
    product: Tensor,
    mask: Tensor | None,
    gates: Tensor,
    cell: Tensor,
    out: Tensor,
    rows: int,
    start: int,
    last: int,
    known: int,
) -> None:
    """Make a step's gates, cells and states of its products with x and h."""
    cells = out.shape[1]
    _step[(rows,)](
        products, product, products if mask is None else mask, gates, cell, out,
        start, last, known, cells,
        MASK=mask is not None, BC=triton.next_power_of_2(cells), num_warps=WARPS,
    )  # fmt: skip


def step_backward(
    products: Tensor,
    gates: Tensor,
    cell: Tensor,
    mask: Tensor | None,
    grad: Tensor,
    back: Tensor,
    grad_cell: Tensor,
    grads: Tensor,
    rows: int,
    start: int,
    last: int,
    known: int,
    before: int,
) -> None:
    """Make the gradients of a step's products, and of the cells of the step before."""
    cells = cell.shape[1]
    _step_backward[(rows,)](
        products, gates, cell, products if mask is None else mask, grad, back, grad_cell, grads,
        start, last, known, before, cells,
        MASK=mask is not None, BC=triton.next_power_of_2(cells), num_warps=WARPS,
    )  # fmt: skip
