"""The LSTM with projection and its backward pass by hand, for both directions in one call.

What autograd would do in thousands of small kernels is here, for each step, two matrix products and
two pointwise kernels, forward and backward; the gradients of the weights are made after the time
loop, as large products over all steps. The directions lie side by side in every tensor (first
dimension D), so that one batched product serves both. Everything is deterministic.

The pointwise kernels are plain torch (`torch_lstm`) or Triton (`triton_lstm`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchelmo.ops import reference
from torchelmo.ops.backend import choose, compute_dtype
from torchelmo.ops.reference import LstmWeights

FEW = 64  # rows, up to which a step takes about as long as reading its weights


def lstmp(
    x: Tensor,  # (D, N, P_in) packed as in `reference.lstmp`
    sizes: Sequence[int],
    weights: Sequence[LstmWeights],  # one a direction
    h: Tensor,  # (D, B, P)
    c: Tensor,  # (D, B, H)
    cell_clip: float | None = None,
    projection_clip: float | None = None,
    resets: Tensor | None = None,  # (D, N)
    *,
    backend: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run D directions side by side; return outputs (D, N, P) and the last h and c."""
    chosen = choose(x.device, backend)
    if chosen == "reference" or not sizes:
        parts = [
            reference.lstmp(
                x[d],
                sizes,
                weights[d],
                h[d],
                c[d],
                cell_clip,
                projection_clip,
                None if resets is None else resets[d],
            )
            for d in range(len(weights))
        ]
        y, h, c = (torch.stack(part) for part in zip(*parts, strict=True))
        return y, h, c
    flat = [w for one in weights for w in one if w is not None]
    kernels = _kernels("torch" if x.dtype == torch.float64 else chosen)
    saving = torch.is_grad_enabled() and any(t.requires_grad for t in (x, h, c, *flat))
    run = _Run(tuple(sizes), cell_clip, projection_clip, kernels, compute_dtype(x), saving)
    batch = sizes[0]  # rows beyond take no step
    out: tuple[Tensor, Tensor, Tensor] = _Lstmp.apply(
        run, x, h[:, :batch], c[:, :batch], resets, *flat
    )  # type: ignore[no-untyped-call]
    y, h_last, c_last = out
    if h.shape[1] > batch:
        h_last = torch.cat([h_last, h[:, batch:]], dim=1)
        c_last = torch.cat([c_last, c[:, batch:]], dim=1)
    return y, h_last, c_last


class Prepared(NamedTuple):
    """Weights of all directions as the products take them."""

    gates: Tensor  # (D, 4H, K): input and recurrent weights side by side, K = P_in + P
    bias: Tensor  # (D, 4H)
    projection: Tensor | None  # (D, P, H)
    fused: bool  # products and cells are one kernel
    split: bool  # the matrices are twice as wide: see `_split`


def prepare(
    weights: Sequence[LstmWeights], dtype: torch.dtype, *, backend: str | None = None
) -> Prepared:
    """Return weights for `infer`, which computes in `dtype`."""
    device = weights[0].input.device
    kernels = _kernels(choose(device, backend))
    flat = [w for one in weights for w in one if w is not None]
    return _prepared(flat, len(weights), kernels, dtype, saving=False)


def infer(
    x: Tensor,
    sizes: Sequence[int],
    weights: Prepared,
    h: Tensor,
    c: Tensor,
    cell_clip: float | None = None,
    projection_clip: float | None = None,
    *,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Do what `lstmp` does without gradients, with prepared weights; every row takes a step.

    `c`, in float32, becomes the last one. Returns outputs and the last h.
    """
    kernels, dtype = _kernels(choose(x.device, backend)), weights.gates.dtype
    run = _Run(tuple(sizes), cell_clip, projection_clip, kernels, dtype, saving=False)
    with torch.no_grad(), _no_autocast(x):
        y, _, _ = _forward(run, x, h, c, None, weights, in_place=True)
        return y, _last(y, run.sizes)


def _kernels(backend: str) -> ModuleType:
    if backend == "triton":
        from torchelmo.ops import triton_lstm

        return triton_lstm
    from torchelmo.ops import torch_lstm

    return torch_lstm


class _Run(NamedTuple):
    """What does not change with the tensors."""

    sizes: tuple[int, ...]
    cell_clip: float | None
    projection_clip: float | None
    kernels: ModuleType
    dtype: torch.dtype  # of the products
    saving: bool  # for a backward pass


class _Lstmp(torch.autograd.Function):
    """Forward and backward pass; `ctx.set_materialize_grads` is off, as last states have none."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's
        run: _Run,
        x: Tensor,
        h: Tensor,
        c: Tensor,
        resets: Tensor | None,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        with _no_autocast(x):
            prepared = _prepared(weights, len(x), run.kernels, run.dtype, saving=run.saving)
            y, c_all, saved = _forward(run, x, h, c, resets, prepared)
            h_last = _last(y, run.sizes)
            c_last = _last(c_all, run.sizes) if run.saving else c_all
        if run.saving:
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(c, resets, *weights, y, c_all, *saved)
            ctx.run, ctx.count, ctx.input = run, len(weights), x.dtype
        return y, h_last.to(h.dtype), c_last

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401 - autograd's
        dy: Tensor | None,
        dh: Tensor | None,
        dc: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        c, resets, *rest = ctx.saved_tensors
        weights, (y, c_all, *saved) = rest[: ctx.count], rest[ctx.count :]
        with _no_autocast(y):
            dx, dh, dc, grads = _backward(ctx.run, weights, c, resets, y, c_all, saved, dy, dh, dc)
        return None, dx.to(ctx.input), dh, dc, None, *grads


def _no_autocast(x: Tensor) -> torch.autocast:
    kind = "cpu" if x.device.type == "meta" else x.device.type
    return torch.autocast(kind, enabled=False)


def _prepared(
    weights: Sequence[Tensor],
    directions: int,
    kernels: ModuleType,
    dtype: torch.dtype,
    *,
    saving: bool,
) -> Prepared:
    each = len(weights) // directions
    width, out_width, cells = weights[0].shape[1], weights[1].shape[1], len(weights[0]) // 4
    fused = each == 4 and kernels.fits(cells, width, out_width, dtype, saving)
    split = fused and dtype == torch.float32
    by_direction = [weights[d * each : (d + 1) * each] for d in range(directions)]

    def stack(matrices: Sequence[Sequence[Tensor]]) -> Tensor:
        """Put matrices of a direction side by side, (D, rows, sum of columns)."""
        first = matrices[0]
        columns = [matrix.shape[1] for matrix in first]
        total = sum(columns) * (2 if split else 1)
        out = first[0].new_empty(directions, len(first[0]), total, dtype=dtype)
        for home, own in zip(out, matrices, strict=True):
            for matrix, end in zip(own, accumulate(columns), strict=True):
                _put(home, matrix, end - matrix.shape[1], split=split)
        return out

    gates = stack([own[:2] for own in by_direction])
    bias = torch.stack([own[2] for own in by_direction])
    projection = stack([own[3:] for own in by_direction]) if each == 4 else None
    return Prepared(gates, bias, projection, fused, split)


def _put(out: Tensor, value: Tensor, start: int, *, split: bool) -> None:
    """Write columns from `start` on; a split float32 as what fits in tf32, and the rest further on.

    Three products of such parts, all but that of the two rests, make a product in float32.
    """
    here = slice(start, start + value.shape[-1])
    if not split:
        out[..., here] = value
        return
    bits = value.contiguous().view(torch.int32)
    high = ((bits + 0x1000) & -0x2000).view(torch.float32)
    low = out[..., out.shape[-1] // 2 :]
    out[..., here] = high
    torch.sub(value, high, out=low[..., here])


def _forward(
    run: _Run,
    x: Tensor,
    h: Tensor,
    c: Tensor,
    resets: Tensor | None,
    weights: Prepared,
    *,
    in_place: bool = False,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return outputs (D, N, P), cells (D, N, H) and what the backward pass needs."""
    kernels, sizes, keep = run.kernels, run.sizes, run.saving
    gates, bias, projection, fused, split = weights
    directions, count, width = x.shape
    batch, cells, out_width = sizes[0], c.shape[2], h.shape[2]

    def buffer(rows: int, columns: int, dtype: torch.dtype = run.dtype) -> Tensor:
        return x.new_empty(directions, rows, columns, dtype=dtype)

    # Input and state lie side by side, so that one product serves both. Without a backward pass
    # gates and cells are not kept. A step of few rows mostly reads weights: those of the input are
    # then read once for all steps.
    ahead = not (keep or fused) and batch <= FEW and len(sizes) > 1
    kept = count if keep else batch
    times = 2 if split else 1
    joined = buffer(count, times * (width + out_width))
    z = None if fused else buffer(count if ahead else kept, 4 * cells)
    cell_dtype = torch.promote_types(c.dtype, torch.float32)
    c_all = c if in_place else buffer(kept, cells, cell_dtype)
    m_all = buffer(kept, times * cells) if projection is not None else None
    y = buffer(count, out_width)
    _put(joined, x, 0, split=split)
    state = joined[..., width : width + out_width]
    first = None if resets is None else resets[:, :batch].unsqueeze(2)
    _put(joined[:, :batch], h if first is None else h.masked_fill(first, 0), width, split=split)
    # One split is quicker than a slice a step.
    inputs, states, outputs = (tensor.split(sizes, dim=1) for tensor in (joined, state, y))
    marks = [None] * len(sizes) if resets is None else resets.split(sizes, dim=1)

    def by_step(tensor: Tensor) -> Sequence[Tensor]:
        if tensor.shape[1] == count:
            return list(tensor.split(sizes, dim=1))
        tops = {size: tensor[:, :size] for size in set(sizes)}
        return [tops[size] for size in sizes]

    cells_after = by_step(c_all)
    made = None if z is None else by_step(z)
    to_project = outputs if m_all is None else by_step(m_all)
    clip = run.projection_clip if projection is not None else None
    before = c.to(cell_dtype)
    if ahead and z is not None:
        torch.bmm(joined[..., :width], gates[..., :width].transpose(1, 2), out=z)
    recurrent = gates[..., width:].transpose(1, 2)
    for t, size in enumerate(sizes):
        before = before if before.shape[1] == size else before[:, :size]
        given = (bias, before, marks[t], run.cell_clip, cells_after[t], to_project[t])
        more = t + 1 < len(sizes)
        following, reset = (states[t + 1], marks[t + 1]) if more else (None, None)
        if made is None:
            kernels.gates_cell(inputs[t], gates, *given)
            low = joined.shape[2] // 2 if split else 0
            kernels.project(to_project[t], projection, clip, outputs[t], following, reset, low)
        else:
            if ahead:
                torch.baddbmm(made[t], states[t], recurrent, out=made[t])
            else:
                torch.bmm(inputs[t], gates.transpose(1, 2), out=made[t])
            kernels.cell(made[t], *given)
            if projection is not None:
                torch.bmm(to_project[t], projection.transpose(1, 2), out=outputs[t])
            kernels.settle(outputs[t], clip, following, reset)
        before = cells_after[t]
    saved = [joined, gates, bias]
    saved += [tensor for tensor in (z, m_all, projection) if tensor is not None]
    return y, c_all, saved


def _last(steps: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return each row's last value, (D, B, .), of packed ones (D, N, .)."""
    parts, end = [], steps.shape[1]
    for t in range(len(sizes) - 1, -1, -1):
        following = sizes[t + 1] if t + 1 < len(sizes) else 0
        if sizes[t] > following:
            parts.append(steps[:, end - sizes[t] + following : end])
        end -= sizes[t]
    return torch.cat(parts, dim=1)


def _backward(
    run: _Run,
    weights: Sequence[Tensor],
    c: Tensor,
    resets: Tensor | None,
    y: Tensor,
    c_all: Tensor,
    saved: Sequence[Tensor],
    dy: Tensor | None,
    dh_last: Tensor | None,
    dc_last: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Return the gradients of x, h, c and the weights."""
    kernels, sizes = run.kernels, run.sizes
    joined, gates, bias, z, *rest = saved
    m_all, projection = rest if rest else (None, None)
    directions, count, out_width = y.shape
    cells, batch, width = c.shape[2], sizes[0], joined.shape[2] - out_width
    recurrent = gates[..., width:]

    dh = y.new_zeros(directions, batch, out_width)
    if dh_last is not None:
        dh.copy_(dh_last)
    dc = c_all.new_zeros(directions, batch, cells)
    if dc_last is not None:
        dc.copy_(dc_last)
    dp = torch.empty_like(y)  # gradient of what is clipped to y
    dm = y.new_empty(directions, batch, cells) if projection is not None else None
    dz = torch.empty_like(z)
    sums = kernels.bias_sums(dz, sizes)
    end = count
    for t in range(len(sizes) - 1, -1, -1):
        size = sizes[t]
        here = slice(end - size, end)
        before = c_all[:, end - size - sizes[t - 1] : end - size] if t else c
        following = sizes[t + 1] if t + 1 < len(sizes) else 0
        after = None if resets is None else resets[:, end : end + following]
        grad = None if dy is None else dy[:, here]
        clip = run.projection_clip if projection is not None else None
        kernels.unsettle(grad, dh[:, :size], after, y[:, here], clip, dp[:, here])
        if projection is not None and dm is not None:
            torch.bmm(dp[:, here], projection, out=dm[:, :size])
        got = dp[:, here] if dm is None else dm[:, :size]
        reset = None if resets is None else resets[:, here]
        kernels.cell_backward(
            z[:, here],
            bias,
            before[:, :size],
            reset,
            run.cell_clip,
            got,
            dc[:, :size],
            dz[:, here],
            sums,
            t,
        )
        torch.bmm(dz[:, here], recurrent, out=dh[:, :size])
        end -= size
    if resets is not None:
        dh.masked_fill_(resets[:, :batch].unsqueeze(2), 0)
    dx = torch.bmm(dz, gates[..., :width])
    d_gates = _product(dz.transpose(1, 2), joined)  # (D, 4H, P_in + P)
    d_bias = kernels.bias_gradient(sums, dz)  # (D, 4H)
    d_projection = _product(dp.transpose(1, 2), m_all) if m_all is not None else None
    grads = []
    each = len(weights) // directions
    for d in range(directions):
        own = [d_gates[d, :, :width], d_gates[d, :, width:], d_bias[d]]
        if d_projection is not None:
            own.append(d_projection[d])
        mine = weights[d * each : (d + 1) * each]
        grads += [g.to(w.dtype) for g, w in zip(own, mine, strict=True)]
    return dx, dh.to(c.dtype), dc.to(c.dtype), grads


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return a batched product with its sums in float32 where the device can."""
    if a.is_cuda and a.dtype != torch.float32 and a.dtype != torch.float64:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a, b)
