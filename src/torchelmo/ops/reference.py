"""The readable version of each operation, differentiable, on any device and float dtype.

Sequences are *packed*: all rows that take step 0, then all rows that take step 1, and so on, with
rows sorted by falling length, so that `sizes[t]` rows take step t and no padding is ever computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class LstmWeights(NamedTuple):
    """One layer of one direction; gates in the order input, forget, candidate, output."""

    input: Tensor  # (4H, P_in)
    recurrent: Tensor  # (4H, P)
    bias: Tensor  # (4H,), the forget bias included
    projection: Tensor | None  # (P, H)


def lstmp(
    x: Tensor,  # (N, P_in) packed
    sizes: Sequence[int],  # rows at each step, falling
    weights: LstmWeights,
    h: Tensor,  # (B, P)
    c: Tensor,  # (B, H)
    cell_clip: float | None = None,
    projection_clip: float | None = None,
    resets: Tensor | None = None,  # (N,) packed, true where the row's state is zeroed first
) -> tuple[Tensor, Tensor, Tensor]:
    """Run an LSTM with projection; return its packed outputs (N, P) and each row's last h and c.

    The cell is clipped before its tanh, and the clipped value is carried. The projected state is
    clipped after the projection; without a projection there is no such clip, as in the original
    program.
    """
    from_input = F.linear(x, weights.input, weights.bias)  # (N, 4H), all steps in one product
    # Under autocast the product above is in a lower precision: cast the rest once, not every step.
    recurrent = weights.recurrent.to(from_input.dtype).t()
    projection = weights.projection
    if projection is not None:
        projection = projection.to(from_input.dtype)
    outputs: list[Tensor] = []
    ended: list[tuple[Tensor, Tensor]] = []  # final states of rows that are done, shortest first
    # Split once: the gradient of a slice would be as large as the whole, at every step.
    by_step = from_input.split(list(sizes))
    kept = [None] * len(sizes) if resets is None else (~resets).unsqueeze(1).split(list(sizes))
    for size, x_t, keep in zip(sizes, by_step, kept, strict=True):
        if size < h.shape[0]:
            ended.append((h[size:], c[size:]))
            h, c = h[:size], c[:size]
        if keep is not None:
            h, c = h * keep, c * keep
        z = torch.addmm(x_t, h.to(x_t.dtype), recurrent)  # (size, 4H)
        i, f, g, o = z.chunk(4, dim=1)  # (size, H) each
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        if cell_clip is not None:
            c = c.clamp(-cell_clip, cell_clip)
        h = torch.sigmoid(o) * torch.tanh(c)  # (size, H)
        if projection is not None:
            h = F.linear(h.to(from_input.dtype), projection)  # (size, P)
            if projection_clip is not None:
                h = h.clamp(-projection_clip, projection_clip)
        outputs.append(h)
    last = [(h, c), *reversed(ended)]
    packed = torch.cat(outputs) if outputs else h[:0]
    return packed, torch.cat([h for h, _ in last]), torch.cat([c for _, c in last])


def char_conv_max(
    embedded: Tensor,  # (n, C, d) characters of n words
    filters: Sequence[tuple[Tensor, Tensor]],  # (count, d, width) and (count,)
) -> Tensor:
    """Convolve each word with each filter and take the maximum over positions, (n, F).

    As matrix products over windows: three times as fast as `conv1d` on a CPU, and on a GPU as exact
    as other products (cuDNN convolutions round float32 to tf32 unless told not to).
    """
    pooled = []
    for weight, bias in filters:
        windows = embedded.unfold(1, weight.shape[2], 1).flatten(2)  # (n, C-width+1, d*width)
        best = (windows @ weight.flatten(1).t()).amax(dim=1)
        pooled.append(best + bias.to(best.dtype))
    return torch.cat(pooled, dim=1)


def sampled_softmax(
    hidden: Tensor,  # (n, P)
    targets: Tensor,  # (n,)
    weight: Tensor,  # (V, P)
    bias: Tensor,  # (V,)
    ids: Tensor,  # (S,) drawn words, distinct
    log_expected: Tensor,  # (S,) logarithm of how often each is expected in such a draw
    true_expected: Tensor,  # (n,) the same of the targets
) -> Tensor:
    """Return the mean loss of the targets among themselves and the drawn words.

    Each logit is lessened by the logarithm of how often its word is expected; a drawn word that is
    the target itself is left out. The target's own logit is made in float32 at least.
    """
    wide = torch.promote_types(hidden.dtype, torch.float32)
    true = (hidden.to(wide) * F.embedding(targets, weight)).sum(dim=1)
    true = true + bias[targets] - true_expected
    drawn = F.embedding(ids, weight).to(hidden.dtype)
    logits = F.linear(hidden, drawn).to(wide) + (bias[ids] - log_expected)  # (n, S)
    logits = logits.masked_fill(targets.unsqueeze(1) == ids, -torch.inf)
    return (torch.logaddexp(true, torch.logsumexp(logits, dim=1)) - true).mean()
