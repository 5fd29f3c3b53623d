"""What a biLM is trained for: predict each word from its left and, apart, from its right context.

Losses are means over the batch, in nats. The sampled softmax is TensorFlow's: distinct ids drawn
from a log-uniform distribution (so the vocabulary must be sorted by falling frequency), each logit
lessened by the logarithm of how often that id was to be expected, samples that are the target left
out. The full softmax goes through the rows in pieces and makes its gradients on the way, so that
its memory is that of one piece, whatever the vocabulary; on a GPU it is a sampled one of all words,
whose kernels are there. The adaptive softmax is a full one over
its head, and one over each cluster for the rows whose targets lie there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchelmo.nn.bilm import BiLM, Direction, Memory
from torchelmo.nn.softmax import AdaptiveSoftmax, AnySoftmax, Softmax
from torchelmo.ops.backend import choose
from torchelmo.ops.sampled import sampled_softmax

PIECE = 1 << 25  # logits in memory at a time: 128 MB in float32
SPELLINGS = (8, 12, 16, 24)  # words of so many characters at most go through the CNN together


class Negatives(NamedTuple):
    """Drawn ids (S,) and the logarithm of how often each is expected in such a draw."""

    ids: Tensor
    log_expected: Tensor
    tries: int | Tensor  # on the device where a captured graph is to see each step's own


def draw_negatives(
    vocabulary: int, count: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int64], int]:
    """Draw distinct ids, P(k) = ln((k+2)/(k+1)) / ln(V+1); return them and the draws it took."""
    if count > vocabulary:
        raise ValueError(f"{count} distinct words of {vocabulary}")
    found: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
    seen = np.empty(vocabulary, dtype=np.int32)  # at which draw; read only where it was written
    size = max(11 * count // 4, 64)  # enough for 8192 of 100,000
    while True:
        more = rng.random(size)
        more *= math.log(vocabulary + 1)
        np.exp(more, out=more)
        more -= 1
        found = np.concatenate([found, np.minimum(more.astype(np.int64), vocabulary - 1)])
        number = np.arange(len(found), dtype=np.int32)
        seen[found[::-1]] = number[::-1]  # the last of repeated writes stays: the first draw
        first = np.flatnonzero(seen[found] == number)
        if len(first) >= count:
            return found[first[:count]], int(first[count - 1]) + 1
        size = max(len(found) // 2, 64)


def log_expected(ids: Tensor, vocabulary: int, tries: int | Tensor) -> Tensor:
    """Return ln(1 - (1 - P(k))^tries), in float32 from float64."""
    k = ids.double()
    share = torch.log((k + 2) / (k + 1)) / math.log(vocabulary + 1)
    return torch.log(-torch.expm1(tries * torch.log1p(-share))).float()


def sampled_loss(softmax: Softmax, hidden: Tensor, targets: Tensor, negatives: Negatives) -> Tensor:
    """Return the mean loss among the target and the drawn words: hidden (n, P), targets (n,)."""
    true_expected = log_expected(targets, len(softmax.bias), negatives.tries)
    ids, expected, _ = negatives
    return sampled_softmax(
        hidden, targets, softmax.weight, softmax.bias, ids, expected, true_expected
    )


def full_loss(softmax: AnySoftmax, hidden: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss over the whole vocabulary: hidden (n, P), targets (n,)."""
    if isinstance(softmax, Softmax) and choose(hidden.device) == "triton":
        weight, bias = softmax.weight, softmax.bias
        every = torch.arange(len(bias), device=hidden.device)
        as_expected = torch.zeros_like(bias), torch.zeros_like(targets, dtype=bias.dtype)
        return sampled_softmax(hidden, targets, weight, bias, every, *as_expected)
    # A cluster without rows gives zeros, not nothing: processes must have the same gradients.
    losses = [
        _FullLoss.apply(part.hidden, part.softmax.weight, part.softmax.bias, part.targets)  # type: ignore[no-untyped-call]
        for part in softmax.parts(hidden, targets)
    ]
    return torch.stack(losses).sum() / len(hidden)


class _FullLoss(torch.autograd.Function):
    """Cross-entropy, summed, in pieces of rows; gradients are made together with the loss."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, targets):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        rows = max(PIECE // weight.shape[0], 1)
        needed = any(ctx.needs_input_grad[:3])
        w, b = weight.to(hidden.dtype), bias.to(hidden.dtype)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        d_hidden, d_weight, d_bias = (
            torch.zeros_like(t, dtype=torch.float32) if needed else None
            for t in (hidden, weight, bias)
        )
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            x, goal = hidden[part], targets[part].unsqueeze(1)
            logits = F.linear(x, w, b).float()
            # In place: memory that is new each time costs more than the sums do.
            logits -= logits.amax(dim=1, keepdim=True)
            true = logits.gather(1, goal)
            share = logits.exp_()
            whole = share.sum(dim=1, keepdim=True)
            total += (whole.log() - true).sum()
            if d_hidden is not None and d_weight is not None and d_bias is not None:
                share /= whole
                share.scatter_add_(1, goal, share.new_full(goal.shape, -1.0))
                d_bias += share.sum(dim=0)
                share = share.to(x.dtype)
                d_hidden[part] = share @ w
                d_weight += share.t() @ x
        if needed:
            ctx.save_for_backward(d_hidden, d_weight, d_bias)
            ctx.dtype = hidden.dtype
        return total

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        d_hidden, d_weight, d_bias = (t * gradient for t in ctx.saved_tensors)
        return d_hidden.to(ctx.dtype), d_weight, d_bias, None


class Dropout:
    """Dropout with a random generator of its own, whose state is part of a checkpoint."""

    def __init__(self, rate: float, generator: torch.Generator) -> None:
        """Take the share of values to drop."""
        self.rate, self.generator = rate, generator

    def __call__(self, x: Tensor) -> Tensor:
        """Drop values at random and scale the rest up."""
        if not self.rate:
            return x
        keep = 1 - self.rate
        mask = torch.empty_like(x).bernoulli_(keep, generator=self.generator)
        return x * (mask / keep)


@dataclass(frozen=True)
class Side:
    """One direction of a batch, time first as the LSTMs take it."""

    index: Tensor  # (T, B): which of the distinct words is read
    targets: Tensor  # (T, B)
    resets: Tensor | None  # (T, B)
    negatives: Negatives | None


class Ragged(NamedTuple):
    """What lets the character CNN cut each word at its own length, in shapes known beforehand."""

    spelt: Tensor  # (U,) on the device
    windows: int  # room for the windows of all words


@dataclass(frozen=True)
class Step:
    """A batch on the device: its distinct words by rising spelling length, and its directions."""

    characters: Tensor | None  # (U, C) ids of the distinct words
    spelt: npt.NDArray[np.int64]  # (U,) on the host: how many of them spell the word; (0,) without
    words: Tensor | None  # (U,) rows of the word table
    sides: dict[Direction, Side]
    ragged: Ragged | None = None


class LanguageModel(nn.Module):
    """A biLM with its softmax, as it is trained: a batch in, the loss of each direction out."""

    def __init__(self, bilm: BiLM, softmax: AnySoftmax, dropout: Dropout | None = None) -> None:
        super().__init__()
        self.bilm, self.softmax, self.dropout = bilm, softmax, dropout

    def forward(
        self, step: Step, memory: dict[Direction, Memory]
    ) -> tuple[dict[Direction, Tensor], dict[Direction, Memory]]:
        """Return the mean loss and the new memory of each direction."""
        vectors = self.vectors(step)
        dropout = self.dropout if self.training else None
        names, sides = list(step.sides), list(step.sides.values())
        steps, batch = sides[0].index.shape
        index = torch.stack([side.index.reshape(-1) for side in sides])  # (D, T * B)
        marks = [side.resets.reshape(-1) for side in sides if side.resets is not None]
        layers, after = self.bilm.stacks(
            names,
            F.embedding(index, vectors),
            [batch] * steps,
            [memory[name] for name in names],
            torch.stack(marks) if marks else None,
            dropout,
        )
        # bilm-tf drops on the input of every layer and, before the softmax, on the top.
        top = dropout(layers[-1]) if dropout else layers[-1]  # (D, T * B, P)
        losses: dict[Direction, Tensor] = {}
        for name, side, hidden in zip(names, sides, top, strict=True):
            losses[name] = self._loss(hidden, side)
        return losses, dict(zip(names, after, strict=True))

    def _loss(self, hidden: Tensor, side: Side) -> Tensor:
        targets = side.targets.reshape(-1)
        if side.negatives is None or isinstance(self.softmax, AdaptiveSoftmax):
            return full_loss(self.softmax, hidden, targets)
        return sampled_loss(self.softmax, hidden, targets, side.negatives)

    def vectors(self, step: Step) -> Tensor:
        """Return the context-free vectors of the distinct words, (U, P)."""
        if step.characters is None:
            whole: Tensor = self.bilm.token(None, step.words)
            return whole
        if step.ragged is not None:
            spelt, rows = step.ragged
            cut: Tensor = self.bilm.token(step.characters, step.words, spelt=spelt, rows=rows)
            return cut
        parts = []
        ends = [*np.searchsorted(step.spelt, SPELLINGS, side="right").tolist(), len(step.spelt)]
        for start, end in pairwise([0, *ends]):
            if start < end:
                words = None if step.words is None else step.words[start:end]
                longest = int(step.spelt[end - 1])
                parts.append(self.bilm.token(step.characters[start:end], words, longest))
        return torch.cat(parts)
