"""The optimizers, their learning rate, and the common clip of all gradients.

On a GPU the learning rate is a tensor there, so that a recorded step (see `graphs`) reads the
rate of the moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from torchelmo.pretrain.recipe import TrainRecipe


class Adagrad(torch.optim.Optimizer):
    """bilm-tf's Adagrad: accumulators start from 1, and there is no epsilon."""

    def __init__(self, parameters: Sequence[nn.Parameter], lr: float | Tensor) -> None:
        super().__init__(parameters, {"lr": lr})
        for parameter in parameters:
            self.state[parameter]["sum"] = torch.ones_like(parameter)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        del closure
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            gradients = [p.grad for p in moved]
            sums = [self.state[p]["sum"] for p in moved]
            torch._foreach_addcmul_(sums, gradients, gradients)
            moves = torch._foreach_sqrt(sums)
            torch._foreach_reciprocal_(moves)
            torch._foreach_mul_(moves, gradients)
            torch._foreach_mul_(moves, group["lr"])
            torch._foreach_sub_(moved, moves)


def make_optimizer(train: TrainRecipe, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return bilm-tf's Adagrad, or AdamW."""
    rate: float | Tensor = train.learning_rate
    cuda = all(p.is_cuda for p in parameters)
    if cuda:
        rate = torch.tensor(rate, device=parameters[0].device)
    if train.optimizer == "adagrad":
        return Adagrad(parameters, rate)
    return torch.optim.AdamW(
        parameters,
        lr=rate,
        betas=train.betas,
        weight_decay=train.weight_decay,
        fused=cuda,
        capturable=cuda,
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group a learning rate."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def learning_rate(train: TrainRecipe, step: int, steps: int) -> float:
    """Return the rate of a step (from 0): linear warm-up, then the schedule.

    >>> recipe = TrainRecipe(learning_rate=1.0, warmup=2, schedule="linear")
    >>> [learning_rate(recipe, step, 6) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if step < train.warmup:
        return train.learning_rate * (step + 1) / train.warmup
    share = (step - train.warmup) / max(steps - train.warmup, 1)
    if train.schedule == "cosine":
        curve = 0.5 * (1 + math.cos(math.pi * share))
    else:
        curve = 1 - share if train.schedule == "linear" else 1.0
    if train.schedule != "constant":
        curve = train.final_share + (1 - train.final_share) * curve
    return train.learning_rate * curve


def clip_gradients(parameters: list[nn.Parameter], limit: float) -> Tensor:
    """Scale all gradients so that their common norm is at most `limit`; return the norm before."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    torch._foreach_mul_(gradients, limit / torch.clamp(norm, min=limit))
    return norm
