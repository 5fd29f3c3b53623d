"""A direction's LSTMs recorded as CUDA graphs: one launch forward and one backward, not thousands.

The small model's step is some thousand kernels of microseconds each; started one by one from Python
they leave the GPU waiting. A graph has fixed shapes and knows no random generator of ours, so the
masks of dropout between layers come in as inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from torchelmo.nn.bilm import BiLM, Direction, Memory


class _Stack(nn.Module):
    """The stack as a function of tensors alone, as graphs need it."""

    def __init__(self, bilm: BiLM, direction: Direction, steps: int, batch: int) -> None:
        super().__init__()
        self.direction, self.sizes = direction, [batch] * steps
        # A graph asks for the gradients of all parameters of its module: only these take part, so
        # the biLM itself must not count as a part.
        self.layers = bilm.forward_layers if direction == "forward" else bilm.backward_layers
        self.run = bilm.stack

    def forward(self, x: Tensor, resets: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        """Take inputs (N, P), resets (N,), a mask (N, P) for each layer but the first, h and c."""
        count = len(self.layers)
        masks, memory = iter(rest[: count - 1]), rest[count - 1 :]
        first = [True]

        def dropout(value: Tensor) -> Tensor:
            if first:
                first.clear()
                return value  # dropped by the caller
            return value * next(masks)

        pairs = list(zip(memory[::2], memory[1::2], strict=True))
        outputs, after = self.run(self.direction, x, self.sizes, pairs, resets, dropout)
        return (outputs[-1], *(tensor for pair in after for tensor in pair))


class GraphedStack:
    """One direction, recorded for rows of `steps` inputs."""

    def __init__(self, bilm: BiLM, direction: Direction, steps: int, batch: int) -> None:
        """Record; under autocast, if that is how it will run."""
        stack = _Stack(bilm, direction, steps, batch)
        count, width = steps * batch, bilm.config.lstm.projection
        weight = next(bilm.parameters())
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        self._dtype = dtype or weight.dtype
        self._ones = weight.new_ones(count, width, dtype=self._dtype)
        self._no_resets = torch.zeros(count, dtype=torch.bool, device=weight.device)
        memory = [tensor for pair in bilm.zero_memory(batch) for tensor in pair]
        x = torch.zeros(count, width, dtype=self._dtype, device=weight.device, requires_grad=True)
        masks = [self._ones.clone() for _ in range(len(stack.layers) - 1)]
        sample = (x, self._no_resets.clone(), *masks, *memory)
        self._layers = len(stack.layers)
        graphed = torch.cuda.make_graphed_callables(stack, sample, allow_unused_input=True)
        self._run = cast("Callable[..., tuple[Tensor, ...]]", graphed)

    def __call__(
        self,
        x: Tensor,
        memory: Memory,
        resets: Tensor | None,
        dropout: Callable[[Tensor], Tensor] | None,
    ) -> tuple[Tensor, Memory]:
        """Return the top layer (N, P) and the memory after it."""
        x = x.to(self._dtype)
        masks = [dropout(self._ones) if dropout else self._ones for _ in range(self._layers - 1)]
        x = dropout(x) if dropout else x
        flat = [tensor.float() for pair in memory for tensor in pair]
        resets = self._no_resets if resets is None else resets
        top, *after = self._run(x, resets, *masks, *flat)
        pairs = list(zip(after[::2], after[1::2], strict=True))
        # The graph writes to the same memory each time; the next call copies it from there.
        return top, [(h.detach(), c.detach()) for h, c in pairs]
