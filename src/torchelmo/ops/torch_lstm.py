"""The pointwise parts of the LSTM in plain torch, on any device; z are the gates before bias.

All tensors are those of one step, (D, B, .) with D directions. Results go to given tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def fits(cells: int, width: int, out_width: int, dtype: torch.dtype, saving: bool) -> bool:
    """Products are the library's here, never one with the cell."""
    del cells, width, out_width, dtype, saving
    return False


def cell(
    z: Tensor,  # (D, B, 4H)
    bias: Tensor,  # (D, 4H)
    c_before: Tensor,  # (D, B, H)
    reset: Tensor | None,  # (D, B)
    clip: float | None,
    c: Tensor,  # (D, B, H), written
    m: Tensor,  # (D, B, H), written
) -> None:
    """Make the new cell and what goes to the projection."""
    i, f, g, o = _gates(z, bias, c)
    value = f * _kept(c_before, reset) + i * g
    if clip is not None:
        value = value.clamp(-clip, clip)
    c.copy_(value)
    m.copy_(o * torch.tanh(value))


def settle(
    y: Tensor,  # (D, B, P), clipped in place
    clip: float | None,
    following: Tensor | None,  # (D, B', P), written: the state as the next step sees it
    reset: Tensor | None,  # (D, B') of the next step
) -> None:
    """Clip the projection, and hand it to the next step's rows."""
    if clip is not None:
        y.clamp_(-clip, clip)
    if following is not None:
        following.copy_(_kept(y[:, : following.shape[1]], reset))


def unsettle(
    dy: Tensor | None,  # (D, B, P)
    dh: Tensor,  # (D, B, P), of the state as the next step sees it
    reset: Tensor | None,  # (D, B') of the next step
    y: Tensor,  # (D, B, P)
    clip: float | None,
    dp: Tensor,  # (D, B, P), written
) -> None:
    """Make the gradient of the projection before its clip."""
    if reset is not None and reset.shape[1]:
        dh = dh.clone()
        dh[:, : reset.shape[1]] = _kept(dh[:, : reset.shape[1]], reset)
    total = dh if dy is None else dh + dy
    dp.copy_(total if clip is None else total.masked_fill(y.abs() >= clip, 0))


def cell_backward(
    z: Tensor,
    bias: Tensor,
    c_before: Tensor,
    reset: Tensor | None,
    clip: float | None,
    dm: Tensor,  # (D, B, H)
    dc: Tensor,  # (D, B, H): of the cell after the step; becomes that of the cell before
    dz: Tensor,  # (D, B, 4H), written
    sums: Tensor,  # (D, 4H), added to
    step: int,
) -> None:
    """Make the gradients of the gates and of the cell before."""
    del step
    i, f, g, o = _gates(z, bias, dc)
    before = _kept(c_before, reset)
    raw = f * before + i * g
    value = raw if clip is None else raw.clamp(-clip, clip)
    squashed = torch.tanh(value)
    d = dc + dm * o * (1 - squashed * squashed)
    if clip is not None:
        d = d.masked_fill(raw.abs() > clip, 0)
    cells = dc.shape[2]
    dz[..., :cells] = d * g * i * (1 - i)
    dz[..., cells : 2 * cells] = d * before * f * (1 - f)
    dz[..., 2 * cells : 3 * cells] = d * i * (1 - g * g)
    dz[..., 3 * cells :] = dm * squashed * o * (1 - o)
    dc.copy_(_kept(d * f, reset))
    sums += dz.sum(dim=1, dtype=sums.dtype)  # of one step: a CPU first casts what it sums


def bias_sums(dz: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return where the gradient of the bias is summed up step by step, (D, 4H)."""
    del sizes
    wide = torch.promote_types(dz.dtype, torch.float32)
    return dz.new_zeros(dz.shape[0], dz.shape[2], dtype=wide)


def bias_gradient(sums: Tensor, dz: Tensor) -> Tensor:
    """Return the gradient of the bias, (D, 4H)."""
    del dz
    return sums


def _gates(z: Tensor, bias: Tensor, like: Tensor) -> list[Tensor]:
    i, f, g, o = (z.to(like.dtype) + bias.unsqueeze(1).to(like.dtype)).chunk(4, dim=2)
    return [torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)]


def _kept(state: Tensor, reset: Tensor | None) -> Tensor:
    return state if reset is None else state.masked_fill(reset.unsqueeze(2), 0)
