"""Small parts that several tasks' networks share.

A batch is padded on the right; what is behind a text's last word is zero after every part here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchelmo.tasks.packing import pack, unpack


class VariationalDropout(nn.Module):
    """Dropout with one mask a text, the same at each of its words (Gal & Ghahramani 2016)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, values: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        if not self.training or self.p == 0:
            return values
        keep = values.new_empty(values.shape[0], 1, values.shape[2]).bernoulli_(1 - self.p)
        return values * keep.div_(1 - self.p)


class BiLstm(nn.Module):
    """A bidirectional LSTM over padded texts: (B, T, D) -> (B, T, 2 H).

    Orthogonal recurrent weights and a forget bias of 1 to begin with.
    """

    def __init__(self, width: int, cells: int, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.lstm = nn.LSTM(
            width, cells, layers, batch_first=True, bidirectional=True, dropout=dropout
        )
        self.width = 2 * cells
        with torch.no_grad():
            for name, weight in self.lstm.named_parameters():
                if "weight_hh" in name:
                    for gate in weight.split(cells):
                        nn.init.orthogonal_(gate)
                elif "weight_ih" in name:
                    nn.init.xavier_uniform_(weight)
                else:
                    nn.init.zeros_(weight)
                    if "bias_ih" in name:
                        weight[cells : 2 * cells] = 1.0

    def forward(self, values: Tensor, lengths: Sequence[int]) -> Tensor:
        """Read texts of these lengths, each 1 or more."""
        # Autocast would take float16 here, whatever it takes elsewhere; float32 is as quick.
        with torch.autocast(values.device.type, enabled=False):
            values = values.to(next(self.lstm.parameters()).dtype)
            out, _ = self.lstm(pack(values, lengths))
            return unpack(out.data, lengths, values.shape[1])


class FeedForward(nn.Module):
    """Linear layers with relu, or with the largest of `maxout` pieces, and dropout after each."""

    def __init__(
        self, width: int, hidden: Sequence[int], *, dropout: float = 0.0, maxout: int = 1
    ) -> None:
        super().__init__()
        widths = [width, *hidden]
        self.maxout, self.width = maxout, widths[-1]
        self.layers = nn.ModuleList(
            nn.Linear(one, two * maxout) for one, two in itertools.pairwise(widths)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: Tensor) -> Tensor:
        """(..., D) -> (..., last of hidden)."""
        for layer in self.layers:
            values = layer(values)
            if self.maxout > 1:
                values = values.unflatten(-1, (-1, self.maxout)).amax(dim=-1)
            else:
                values = values.relu()
            values = self.dropout(values)
        return values


def precise(layer: nn.Linear, values: Tensor) -> Tensor:
    """Apply a layer in float32 under autocast too: the last one, whose scores are compared."""
    with torch.autocast(values.device.type, enabled=False):
        out: Tensor = layer(values.to(layer.weight.dtype))
        return out


def match(one: Tensor, two: Tensor) -> Tensor:
    """Return all products of words, in float32: (B, S, D), (B, T, D) -> (B, S, T)."""
    with torch.autocast(one.device.type, enabled=False):
        return one.float() @ two.float().transpose(1, 2)


def masked_softmax(scores: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """Softmax over the places where `mask` is true; zero elsewhere, and where none is."""
    shares = scores.float().masked_fill(~mask, torch.finfo(torch.float32).min).softmax(dim)
    return (shares * mask).to(scores.dtype)
