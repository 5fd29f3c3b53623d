"""Matrix products with fixed weights on a CPU: rearranged once for the processor, used many times.

Products of few rows, as the steps of an LSTM are, spend much of their time on rearranging the
weights: with 48 rows and 16,384 columns, half of it. Torch has oneDNN's products with weights that
stay rearranged, made for its compiler and called by name here. Where they are not there (other
processors, builds without oneDNN) a plain product runs.

oneDNN compiles a product for each number of rows, which takes half a millisecond and about as many
megabytes. Give it a `round_up` number of rows, and there are few of them.

float32   the numbers of a plain product up to rounding
bf16      weights and inputs rounded to 8 bits of mantissa, sums in float32; twice as fast
int8      weights to 8 bits by column, inputs to 8 bits by row, sums exact; four times as fast
"""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
from collections.abc import Callable
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from torchelmo.errors import InputError

Precision = Literal["float32", "bf16", "int8"]
Activation = Literal["none", "sigmoid", "tanh", "relu"]

_ZERO = 128  # what stands for 0 among the bytes of an input
_ACTIVATIONS = {"sigmoid": torch.sigmoid_, "tanh": torch.tanh_, "relu": torch.relu_}


def round_up(rows: int) -> int:
    """Return a number of rows that is at least as large, of which there are few.

    >>> round_up(3), round_up(5), round_up(61), round_up(130)
    (3, 8, 64, 160)
    """
    step = 1 if rows <= 4 else 4 if rows <= 32 else 8 if rows <= 128 else 32 if rows <= 512 else 128
    return -(-rows // step) * step


class Product:
    """x (n, K) to activation(x @ weight.t() + bias), (n, N), for one weight (N, K).

    Inputs and results are bf16 for bf16, else float32. Without `packed`, float32 weights stay as
    they are: it costs time, and memory for a second copy is saved.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, precision: Precision, *, packed: bool = True
    ) -> None:
        check_precision(precision)
        self.precision = precision
        self._packed = has_packed() and (packed or precision != "float32")
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32  # of in- and output
        weight = weight.detach()
        self.rows, self.columns = weight.shape
        self._bias = None if bias is None else bias.detach().to(self.dtype)
        self._scales: Tensor | None = None
        if precision == "int8":
            scales = weight.abs().amax(dim=1).clamp_(min=1e-30) / 127  # (N,)
            rounded = (weight / scales.unsqueeze(1)).round_().to(torch.int8)
            self._weight: Tensor = torch.ops.onednn.qlinear_prepack(rounded, None)
            self._scales, self._zeros = scales, torch.zeros(len(scales), dtype=torch.int32)
        elif self._packed:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.to(self.dtype))
        else:
            self._weight = weight

    def __call__(
        self, x: Tensor, activation: Activation = "none", out: Tensor | None = None
    ) -> Tensor:
        """Return a new (n, N), or `out` if that is given and the way of computing can fill it."""
        if self.precision == "int8":
            quantised, scales = _quantise(x)
            out = self._bytes(quantised, 1.0).mul_(scales)
            if self._bias is not None:
                out.add_(self._bias)
        elif self._packed:
            linear = torch.ops.mkldnn._linear_pointwise.default
            packed: Tensor = linear(x, self._weight, self._bias, activation, [], "")
            return packed
        elif out is not None and self._bias is not None:
            out = torch.addmm(self._bias, x, self._weight.t(), out=out)
        else:
            out = F.linear(x, self._weight, self._bias)
        return out if activation == "none" else _ACTIVATIONS[activation](out)

    def add(self, x: Tensor, other: Tensor) -> Tensor:
        """Return x @ weight.t() + other, a new (n, N)."""
        if self.precision == "int8":
            quantised, scales = _quantise(x)
            product = self._bytes(quantised, 1.0)
            return torch.addcmul(other, product, scales, out=product)
        if self._packed:
            linear = torch.ops.mkldnn._linear_pointwise.binary
            packed: Tensor = linear(x, other, self._weight, None, "add")
            return packed
        return torch.addmm(other, x, self._weight.t())

    def of_units(self, x: Tensor) -> Tensor:
        """Return the product with an x that lies between -0.5 and 0.5."""
        if self.precision != "int8":
            return self(x)
        # Half a unit more, as the conversion to bytes cuts off what is behind the point.
        return self._bytes(x.mul(254).add_(_ZERO + 0.5).to(torch.uint8), 1 / 254)

    def _bytes(self, x: Tensor, scale: float) -> Tensor:
        out: Tensor = torch.ops.onednn.qlinear_pointwise.default(
            *(x, scale, _ZERO, self._weight, self._scales, self._zeros, None),
            *(1.0, 0, torch.float32, "none", [], ""),
        )
        return out


def check_precision(precision: str, device: torch.device | None = None) -> None:
    """Raise a sentence if products of this precision cannot be had on a device, or on this CPU."""
    if precision not in get_args(Precision):
        names = ", ".join(get_args(Precision))
        raise InputError(f"precision is {precision!r}, expected one of {names}")
    if device is not None and device.type != "cpu":
        if precision == "int8":
            raise InputError(f"products of int8 run on a CPU, not on {device.type}: choose bf16")
        return
    if precision == "bf16" and not has_bf16():
        raise InputError("this processor has no products of bf16: choose float32 or int8")
    if precision == "int8" and not has_int8():
        raise InputError("this processor has no products of int8: choose float32 or bf16")


@functools.cache
def has_packed() -> bool:
    """Whether weights can be kept rearranged."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    if not torch.backends.mkldnn.is_available():
        return False
    try:
        weight = torch.ops.mkldnn._reorder_linear_weight(torch.eye(2, 3))
        other, x = torch.ones(1, 2), torch.ones(1, 3)
        first = torch.ops.mkldnn._linear_pointwise.default(x, weight, None, "none", [], "")
        second = torch.ops.mkldnn._linear_pointwise.binary(x, other, weight, None, "add")
    except (AttributeError, RuntimeError):
        return False
    return bool(first.tolist() == [[1.0, 1.0]] and second.tolist() == [[2.0, 2.0]])


@functools.cache
def has_bf16() -> bool:
    """Whether the processor multiplies bf16."""
    return has_packed() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@functools.cache
def has_int8() -> bool:
    """Whether the processor adds up products of bytes in 32 bits (VNNI).

    Older ones add pairs in 16 bits, which overflow.
    """
    supported = getattr(torch.cpu, "_is_vnni_supported", None)
    if not has_packed() or supported is None or not supported():
        return False
    return hasattr(torch.ops.onednn, "qlinear_pointwise")


def give_back() -> None:
    """Let the system have memory that is free but kept, after large weights were rearranged.

    glibc keeps it for later, as much as a quarter of the weights.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):  # another C library
        return None
    return found


def _quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows as bytes, and what a step of each row's bytes stands for, (n, 1)."""
    scales = x.abs().amax(dim=1, keepdim=True).clamp_(min=1e-30).div_(127)
    return (x / scales).add_(_ZERO + 0.5).to(torch.uint8), scales
