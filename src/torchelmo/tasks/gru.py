"""A bidirectional GRU over padded texts.

cuDNN reads it step by step. On a GPU, in training, where products need not be float32 (autocast or
TF32), one Triton kernel reads all steps (`triton_gru`): its state is float32, what it multiplies
has 16 bits: bfloat16, or for TF32, forward, float16, which has as many digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from torchelmo.ops.backend import has_triton
from torchelmo.tasks.data import move
from torchelmo.tasks.packing import pack, unpack

GATES = 3  # r z n
FUSED_CELLS = 128


class _Recurrence(torch.autograd.Function):
    """Products with the input (B, T, 6 H), U (2, 3 H, H), bias of n (2, H) -> (B, T, 2 H)."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's
        products: Tensor,
        weight: Tensor,
        bias: Tensor,
        lengths: Tensor,
        precisions: tuple[torch.dtype, torch.dtype],
    ) -> Tensor:
        from torchelmo.ops import triton_gru

        cells = weight.shape[2]
        width = triton_gru.padded(cells)
        square = weight.new_zeros(2, GATES, width, width)
        square[:, :, :cells, :cells] = weight.unflatten(1, (GATES, cells))
        turned = square.transpose(2, 3).to(precisions[0]).contiguous()
        out, gates = triton_gru.forward(products.contiguous(), turned, bias, lengths, save=True)
        ctx.save_for_backward(square.to(precisions[1]), lengths, out, gates)
        return out

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,  # noqa: ANN401 - autograd's
        grad: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, None, None]:
        from torchelmo.ops import triton_gru

        square, lengths, out, gates = ctx.saved_tensors
        cells = out.shape[2] // 2
        products, inner = triton_gru.backward(grad.contiguous(), square, lengths, out, gates)
        # Padding is zero: neighbours there are what a text's first word had before it.
        before = torch.stack(
            [
                nn.functional.pad(out[:, :-1, :cells], (0, 0, 1, 0)),
                nn.functional.pad(out[:, 1:, cells:], (0, 0, 0, 1)),
            ]
        ).flatten(1, 2)  # (2, B T, H)
        both = products.unflatten(2, (2, GATES * cells)).permute(2, 0, 1, 3).flatten(1, 2)
        own = inner.unflatten(2, (2, cells)).permute(2, 0, 1, 3).flatten(1, 2)
        gates_grad = torch.cat([both[:, :, : 2 * cells], own], dim=2)  # (2, B T, 3 H)
        weight = torch.bmm(gates_grad.transpose(1, 2), before)
        return products, weight.float(), own.float().sum(dim=1), None, None


class BiGru(nn.Module):
    """A bidirectional GRU over padded texts: (B, T, D) -> (B, T, 2 H), zero at padding."""

    def __init__(self, width: int, cells: int) -> None:
        super().__init__()
        self.gru = nn.GRU(width, cells, batch_first=True, bidirectional=True)
        self.cells, self.width = cells, 2 * cells
        for name, weight in self.gru.named_parameters():
            if "weight" in name:
                nn.init.trunc_normal_(weight, std=0.05, a=-0.1, b=0.1)
            else:
                nn.init.zeros_(weight)

    def forward(self, values: Tensor, lengths: Sequence[int]) -> Tensor:
        """Read texts of these lengths, each 1 or more."""
        if self._fits(values):
            return self.fused(values, lengths)
        with torch.autocast(values.device.type, enabled=False):
            out, _ = self.gru(pack(values.to(next(self.gru.parameters()).dtype), lengths))
            return unpack(out.data, lengths, values.shape[1])

    def fused(self, values: Tensor, lengths: Sequence[int]) -> Tensor:
        """Do the same by one kernel over all steps."""
        cells = self.cells
        weights = dict(self.gru.named_parameters())
        given, recurrent, given_bias, bias = (
            torch.stack([weights[f"{name}_l0"], weights[f"{name}_l0_reverse"]])
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )  # (2, 3 H, ...) each
        # r and z add both biases, n has its own inside the product with r.
        given_bias = given_bias + nn.functional.pad(bias[:, : 2 * cells], (0, cells))
        products = nn.functional.linear(values, given.flatten(0, 1), given_bias.flatten())
        counts = move(torch.tensor(lengths, dtype=torch.int32), values.device)
        precisions = products.dtype, products.dtype
        if products.is_cuda and products.dtype == torch.float32:
            precisions = torch.float16, torch.bfloat16  # gradients may be too small for float16
        with torch.autocast(values.device.type, enabled=False):
            out: Tensor = _Recurrence.apply(  # type: ignore[no-untyped-call]
                products, recurrent, bias[:, 2 * cells :].contiguous(), counts, precisions
            )
        return out

    def _fits(self, values: Tensor) -> bool:
        return (
            values.is_cuda
            and self.training
            and self.cells <= FUSED_CELLS
            and (
                torch.is_autocast_enabled("cuda")
                or torch.get_float32_matmul_precision() != "highest"
            )
            and has_triton()
        )
