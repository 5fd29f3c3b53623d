"""The language model's output layer, shared by both directions: logits = h W^T + b."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchelmo.nn.init import normal_


class Softmax(nn.Module):
    """Scores of every vocabulary word; new weights have standard deviation 1/sqrt(P)."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, width))
        normal_(self.weight, std=width**-0.5)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, hidden: Tensor) -> Tensor:
        """(n, P) to logits (n, V)."""
        return F.linear(hidden, self.weight, self.bias)
