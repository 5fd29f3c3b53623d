"""The sampled softmax's passes over rows in plain torch, for any device and float dtype."""

from __future__ import annotations

import torch
from torch import Tensor


def true_logits(
    hidden: Tensor,  # (n, P)
    targets: Tensor,  # (n,)
    weight: Tensor,  # (V, P)
    bias: Tensor,  # (V,)
    expected: Tensor,  # (n,)
) -> Tensor:
    """Return the targets' own logits (n,), less the logarithm of how often each is expected."""
    wide = expected.dtype
    true = (hidden.to(wide) * weight.index_select(0, targets).to(wide)).sum(dim=1)
    return true + bias.index_select(0, targets).to(wide) - expected


def shares(
    logits: Tensor,  # (n, S)
    shift: Tensor,  # (S,) added to each row
    hits: Tensor,  # (n,) the column that is the target itself, or -1
    true: Tensor,  # (n,)
    losses: Tensor,  # (n,) out
    d_true: Tensor,  # (n,) out: the gradient of the true logit, p - 1
    of_hidden: bool,
    of_weight: bool,
) -> Tensor | None:
    """Make each row's loss; put probabilities in the place of logits and return their sums (S,)."""
    wide = logits.to(shift.dtype).add_(shift)
    column = hits.long().clamp(min=0).unsqueeze(1)
    own = wide.gather(1, column).masked_fill_((hits >= 0).unsqueeze(1), -torch.inf)
    wide.scatter_(1, column, own)
    total = torch.logaddexp(true, torch.logsumexp(wide, dim=1))
    losses.copy_(total - true)
    if not (of_hidden or of_weight):
        return None
    torch.expm1(true - total, out=d_true)
    wide.sub_(total.unsqueeze(1)).exp_()
    if wide is not logits:
        logits.copy_(wide)
    return wide.sum(dim=0) if of_weight else None


def hidden_gradient(
    d_hidden: Tensor,  # (n, P) from the drawn words; overwritten
    d_true: Tensor,  # (n,)
    weight: Tensor,  # (V, P)
    targets: Tensor,  # (n,)
    scale: Tensor,  # ()
    dtype: torch.dtype,
) -> Tensor:
    """Add what comes from the targets, and scale."""
    own = weight.index_select(0, targets).to(d_hidden.dtype)
    return torch.addcmul(d_hidden, own, d_true.unsqueeze(1)).mul_(scale).to(dtype)


def weight_gradient(
    d_rows: Tensor,  # (S, P) of the drawn words
    d_shift: Tensor,  # (S,)
    ids: Tensor,  # (S,) distinct
    hidden: Tensor,  # (n, P)
    d_true: Tensor,  # (n,)
    targets: Tensor,  # (n,) which repeat
    scale: Tensor,  # ()
    weight: Tensor,
    bias: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of all rows (V, P) and biases (V,)."""
    words, own = len(bias), d_true.mul(scale).unsqueeze(1)  # (n, 1)
    # Sums repeated rows in a fixed order, on CUDA too.
    place = torch.ops.aten.embedding_dense_backward
    d_weight = place(own * hidden, targets, words, -1, False)
    d_bias = place(own, targets, words, -1, False).squeeze(1)
    d_weight.index_add_(0, ids, d_rows * scale)
    d_bias.index_add_(0, ids, d_shift * scale)
    return d_weight.to(weight.dtype), d_bias.to(bias.dtype)
