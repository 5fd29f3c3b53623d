"""What the biLM gives: the token layer and every LSTM layer of every token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layers:
    """L+1 layers of a batch, kept without padding; `values` and `mask` are the padded view.

    `layers[j]` is layer j, (B, T, D): 0 the token layer given twice, L the top.
    """

    flat: Tensor  # (L+1, N, D): the tokens of the first sentence, then those of the second, ...
    lengths: tuple[int, ...]  # tokens of each sentence; with boundaries, those are counted
    boundaries: bool = False  # whether each sentence begins with <S> and ends with </S>

    @property
    def mask(self) -> Tensor:
        """(B, T), true where there is a token."""
        lengths = torch.tensor(self.lengths, device=self.flat.device).unsqueeze(1)
        return torch.arange(max(self.lengths, default=0), device=self.flat.device) < lengths

    @property
    def values(self) -> Tensor:
        """(L+1, B, T, D), zero at padding."""
        return self.pad(self.flat)

    def __getitem__(self, layer: int) -> Tensor:
        return self.pad(self.flat[layer])

    def __len__(self) -> int:
        return self.flat.shape[0]

    @property
    def forward(self) -> Tensor:
        """The left-to-right half, (L+1, B, T, P)."""
        return self.pad(self.flat[..., : self.flat.shape[-1] // 2])

    @property
    def backward(self) -> Tensor:
        """The right-to-left half, (L+1, B, T, P)."""
        return self.pad(self.flat[..., self.flat.shape[-1] // 2 :])

    def pad(self, flat: Tensor) -> Tensor:
        """Lay out (..., N, W) as (..., B, T, W) with zeros at padding."""
        mask = self.mask
        out = flat.new_zeros(*flat.shape[:-2], *mask.shape, flat.shape[-1])
        out[..., mask, :] = flat
        return out

    def split(self, flat: Tensor | None = None) -> list[Tensor]:
        """Return one (L+1, T, D) a sentence (or the pieces of another flat tensor, (..., T, W))."""
        return list((self.flat if flat is None else flat).split(self.lengths, dim=-2))

    def inner(self) -> Tensor:
        """Which of the N rows are words, not boundaries, (N,)."""
        keep = torch.ones(self.flat.shape[1], dtype=torch.bool, device=self.flat.device)
        if self.boundaries and self.lengths:
            ends = torch.tensor(self.lengths, device=keep.device).cumsum(0)
            keep[ends - 1] = False
            keep[ends[:-1]] = False
            keep[0] = False
        return keep

    def strip(self) -> Layers:
        """Return the same layers without boundaries."""
        if not self.boundaries:
            return self
        return Layers(self.flat[:, self.inner()], tuple(n - 2 for n in self.lengths))
