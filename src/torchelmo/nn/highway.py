"""A highway layer: y = g * relu(transform(x)) + (1 - g) * x, with g = sigmoid(gate(x)).

bilm-tf's files call the gate "carry" although it multiplies the transformed branch; AllenNLP stores
the same gate with its sign turned. The non-linearity is relu, whatever the filters use.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchelmo.nn.init import normal_


class Highway(nn.Module):
    """One layer of width n; new layers mostly pass their input on (gate bias -2)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.transform = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)
        for linear in (self.transform, self.gate):
            normal_(linear.weight, std=width**-0.5)
        nn.init.zeros_(self.transform.bias)
        nn.init.constant_(self.gate.bias, -2.0)

    def forward(self, x: Tensor) -> Tensor:
        """Mix each row with its transform, (n, width) to (n, width)."""
        gate = torch.sigmoid(self.gate(x))
        return x + gate * (torch.relu(self.transform(x)) - x)
