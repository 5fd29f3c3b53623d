"""The sum over all sequences of tags of a CRF, and its gradients, as two Triton kernels.

A program reads one sentence from its first word to its last, or back; the tags' scores stay on the
chip. The gradient of a tag's score is the tag's probability, that of a transition the sum of its
probabilities over the words.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

NEVER = tl.constexpr(-1e30)  # the score of a tag that there is not


@triton.jit
def _log_sum(x, axis: tl.constexpr):
    highest = tl.max(x, axis)
    return highest + tl.log(tl.sum(tl.exp(x - tl.expand_dims(highest, axis)), axis))


@triton.jit
def _table(transitions, tags, K: tl.constexpr):
    one, two = tl.arange(0, K)[:, None], tl.arange(0, K)[None, :]
    return tl.load(transitions + one * tags + two, (one < tags) & (two < tags), NEVER)


@triton.jit(do_not_specialize=("steps",))
def _forward(
    scores, lengths, transitions, begin, end, before, total, steps, tags, K: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + row)
    tag = tl.arange(0, K)
    known = tag < tags
    step = _table(transitions, tags, K)
    here = scores + row * steps * tags + tag
    kept = before + row * steps * tags + tag
    sums = tl.load(begin + tag, known, NEVER) + tl.load(here, known, 0.0)
    tl.store(kept, sums, known)
    for t in range(1, length):
        sums = _log_sum(sums[:, None] + step, 0) + tl.load(here + t * tags, known, 0.0)
        tl.store(kept + t * tags, sums, known)
    whole = _log_sum(sums + tl.load(end + tag, known, NEVER), 0)
    tl.store(total + row, tl.where(length > 0, whole, 0.0))


@triton.jit(do_not_specialize=("steps",))
def _backward(
    grad, scores, lengths, transitions, end, before, total, grad_scores, grad_steps, grad_end,
    steps, tags, K: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + row)
    tag = tl.arange(0, K)
    known = tag < tags
    step = _table(transitions, tags, K)
    here = scores + row * steps * tags + tag
    kept = before + row * steps * tags + tag
    out = grad_scores + row * steps * tags + tag
    share = tl.load(grad + row)
    whole = tl.load(total + row)
    behind = tl.load(end + tag, known, NEVER)  # of what follows each tag
    moves = tl.zeros((K, K), tl.float32)
    last = tl.maximum(length - 1, 0)
    chance = tl.exp(tl.load(kept + last * tags, known, NEVER) + behind - whole) * share
    chance = tl.where(length > 0, chance, 0.0)
    tl.store(grad_end + row * tags + tag, chance, known)
    tl.store(out + last * tags, chance, known)
    for number in range(1, length):
        t = length - number  # from t - 1 to t
        follows = step + (tl.load(here + t * tags, known, NEVER) + behind)[None, :]
        sums = tl.load(kept + (t - 1) * tags, known, NEVER)
        moves += tl.exp(sums[:, None] + follows - whole) * share
        behind = _log_sum(follows, 1)
        tl.store(out + (t - 1) * tags, tl.exp(sums + behind - whole) * share, known)
    square = row * tags * tags + tag[:, None] * tags + tag[None, :]
    tl.store(grad_steps + square, moves, known[:, None] & known[None, :])


def forward(
    scores: Tensor, lengths: Tensor, transitions: Tensor, begin: Tensor, end: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the log of the sum over sequences (B), 0 without words, and sums up to each word."""
    batch, steps, tags = scores.shape
    before, total = torch.empty_like(scores), scores.new_empty(batch)
    _forward[(batch,)](
        scores, lengths, transitions, begin, end, before, total, steps, tags, K=_padded(tags)
    )
    return total, before


def backward(
    grad: Tensor,
    scores: Tensor,
    lengths: Tensor,
    transitions: Tensor,
    end: Tensor,
    before: Tensor,
    total: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients of the scores (B, T, K), of transitions and of the end, a row each."""
    batch, steps, tags = scores.shape
    grad_scores = torch.zeros_like(scores)
    grad_steps, grad_end = scores.new_empty(batch, tags, tags), scores.new_empty(batch, tags)
    _backward[(batch,)](
        grad, scores, lengths, transitions, end, before, total, grad_scores, grad_steps, grad_end,
        steps, tags, K=_padded(tags),
    )  # fmt: skip
    return grad_scores, grad_steps, grad_end


def _padded(tags: int) -> int:
    return max(int(triton.next_power_of_2(tags)), 16)
