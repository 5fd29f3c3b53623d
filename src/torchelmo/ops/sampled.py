"""The sampled softmax loss, with gradients that are made on the way forward.

Rows go through in pieces, so that memory is that of one piece whatever the batch: a product gives
the logits of the drawn words, one pass over them turns each into its share of the probability in
the same place, two more products turn shares into gradients. The backward pass only scales, and
puts the rows of the weights where they belong. Everything is deterministic, and nothing waits for
the device, so a CUDA graph can hold it.

The passes over rows are plain torch (`torch_sampled`) or Triton (`triton_sampled`).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchelmo.ops import reference
from torchelmo.ops.backend import choose, compute_dtype, kind

# Bytes of logits in memory at a time. A CPU works faster on what its caches hold.
PIECE = {"cpu": 1 << 24, "cuda": 1 << 28}
LEAST = {"cpu": 1, "cuda": 2048}  # rows, where all words of a vocabulary are drawn: tall products


def sampled_softmax(
    hidden: Tensor,  # (n, P)
    targets: Tensor,  # (n,)
    weight: Tensor,  # (V, P)
    bias: Tensor,  # (V,)
    ids: Tensor,  # (S,) drawn words, distinct
    log_expected: Tensor,  # (S,) logarithm of how often each is expected in such a draw
    true_expected: Tensor,  # (n,) the same of the targets
    *,
    backend: str | None = None,
) -> Tensor:
    """Return the mean loss of the targets among themselves and the drawn words."""
    chosen = choose(hidden.device, backend)
    if chosen == "reference":
        return reference.sampled_softmax(
            hidden, targets, weight, bias, ids, log_expected, true_expected
        )
    if hidden.dtype == torch.float64 or not len(hidden):  # kernels work in float32, on rows
        chosen = "torch"
    saving = torch.is_grad_enabled() and any(t.requires_grad for t in (hidden, weight, bias))
    run = _Run(_kernels(chosen), compute_dtype(hidden), saving)
    loss: Tensor = _Sampled.apply(
        run, hidden, weight, bias, targets, ids, log_expected, true_expected
    )  # type: ignore[no-untyped-call]
    return loss


def _kernels(backend: str) -> ModuleType:
    if backend == "triton":
        from torchelmo.ops import triton_sampled

        return triton_sampled
    from torchelmo.ops import torch_sampled

    return torch_sampled


class _Run(NamedTuple):
    """What does not change with the tensors."""

    kernels: ModuleType
    dtype: torch.dtype  # of the products
    saving: bool  # for a backward pass


class _Sampled(torch.autograd.Function):
    """Gradients are kept without the factor 1/n, which comes with that of the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's
        run: _Run,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
        targets: Tensor,
        ids: Tensor,
        log_expected: Tensor,
        true_expected: Tensor,
    ) -> Tensor:
        hidden = hidden.contiguous()
        of_hidden = run.saving and ctx.needs_input_grad[1]
        of_weight = run.saving and (ctx.needs_input_grad[2] or ctx.needs_input_grad[3])
        with _no_autocast(hidden):
            losses, *made = _forward(
                run, hidden, weight, bias, targets, ids, log_expected, true_expected,
                of_hidden, of_weight,
            )  # fmt: skip
            loss = losses.mean()
        if run.saving:
            ctx.kernels = run.kernels
            ctx.save_for_backward(hidden, weight, bias, targets, ids, *made)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401 - autograd's
        hidden, weight, bias, targets, ids, d_true, d_hidden, d_rows, d_shift = ctx.saved_tensors
        of_weight = of_bias = None
        with _no_autocast(hidden):
            scale = gradient / len(hidden)
            if d_hidden is not None:
                d_hidden = ctx.kernels.hidden_gradient(
                    d_hidden, d_true, weight, targets, scale, hidden.dtype
                )
            if d_rows is not None:
                of_weight, of_bias = ctx.kernels.weight_gradient(
                    d_rows, d_shift, ids, hidden, d_true, targets, scale, weight, bias
                )
        if not ctx.needs_input_grad[2]:
            of_weight = None
        if not ctx.needs_input_grad[3]:
            of_bias = None
        return None, d_hidden, of_weight, of_bias, None, None, None, None


def _forward(
    run: _Run,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    targets: Tensor,
    ids: Tensor,
    log_expected: Tensor,
    true_expected: Tensor,
    of_hidden: bool,
    of_weight: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Return each row's loss, and gradients of the true logits, hidden, drawn rows and biases."""
    (n, width), drawn = hidden.shape, len(ids)
    wide = torch.promote_types(hidden.dtype, torch.float32)
    x, rows = hidden.to(run.dtype), weight.index_select(0, ids).to(run.dtype)
    shift = bias.index_select(0, ids).to(wide) - log_expected.to(wide)
    # Where each target is among the drawn words, where its logit must not count; -1 if nowhere.
    places = torch.full_like(bias, -1, dtype=torch.int32)
    places.index_copy_(0, ids, torch.arange(drawn, dtype=torch.int32, device=ids.device))
    hits = places.index_select(0, targets)
    true = run.kernels.true_logits(hidden, targets, weight, bias, true_expected.to(wide))
    losses, d_true = torch.empty_like(true), torch.empty_like(true)
    d_hidden = hidden.new_empty(n, width, dtype=wide) if of_hidden else None
    d_rows = hidden.new_empty(drawn, width, dtype=wide) if of_weight else None
    d_shift = torch.zeros_like(shift) if of_weight else None
    size = piece(n, drawn, x)
    logits = x.new_empty(size, drawn)
    for start in range(0, n, size):
        part = slice(start, start + size)
        share = logits[: min(size, n - start)]
        torch.mm(x[part], rows.t(), out=share)
        sums = run.kernels.shares(
            share, shift, hits[part], true[part], losses[part], d_true[part], of_hidden, of_weight
        )
        if d_hidden is not None:
            _product(d_hidden[part], share, rows)
        if d_rows is not None and d_shift is not None:
            _product(d_rows, share.t(), x[part], add=start > 0)
            d_shift += sums
    if d_rows is not None and not n:
        d_rows.zero_()
    return losses, d_true, d_hidden, d_rows, d_shift


def piece(n: int, drawn: int, x: Tensor) -> int:
    """Return how many rows go through at a time: pieces of nearly equal size."""
    place = "cpu" if kind(x.device) == "cpu" else "cuda"
    most = max(PIECE[place] // (drawn * x.element_size()), LEAST[place])
    even = -(-n // max(-(-n // most), 1))
    return min(-(-even // 64) * 64, max(n, 1))  # products like even sizes


def _product(out: Tensor, a: Tensor, b: Tensor, *, add: bool = False) -> None:
    """Put a @ b into `out`, or add it; `out` may be float32 where a and b are less."""
    if out.dtype == a.dtype:
        if add:
            torch.addmm(out, a, b, out=out)
        else:
            torch.mm(a, b, out=out)
    elif a.is_cuda and torch.__version__ >= "2.10":  # earlier ones cannot add it to float32
        if add:
            torch.ops.aten.addmm.dtype_out(out, a, b, out.dtype, out=out)
        else:
            torch.ops.aten.mm.dtype_out(a, b, out.dtype, out=out)
    elif add:
        out.add_(a @ b)
    else:
        out.copy_(a @ b)


def _no_autocast(x: Tensor) -> torch.autocast:
    kind = "cpu" if x.device.type == "meta" else x.device.type
    return torch.autocast(kind, enabled=False)
