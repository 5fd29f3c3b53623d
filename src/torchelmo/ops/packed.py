"""Matrix products with fixed weights on a CPU: rearranged once for the processor, used many times.

Products of few rows, as the steps of an LSTM are, spend much of their time on rearranging the
weights: with 48 rows and 16,384 columns, half of it. Torch has oneDNN's products with weights that
stay rearranged, made for its compiler and called by name here. Where they are not there (other
processors, builds without oneDNN) a plain product runs.

oneDNN compiles a product for each number of rows, which takes a millisecond and 0.6 MB. Half of it
is never freed, however small its cache is made, so memory would grow as long as new numbers come.
Small weights, which stay in the processor's cache, are multiplied by a `block` of rows at a time:
there are few sizes. Large ones are read once for all rows, a `round_up` number.

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
from torch import Tensor

from torchelmo.errors import InputError

Precision = Literal["float32", "bf16", "int8"]
Activation = Literal["none", "sigmoid", "tanh", "relu"]

PLAIN, PACKED, BYTES = 0, 1, 2  # how the weights of a product are kept
Parts = list[Tensor]  # weight, bias (or empty), and for bytes what a step of each column stands for


def round_up(rows: int, parts: int = 4) -> int:
    """Return a number of rows that is at least as large, one of few: `parts` as numbers double.

    >>> round_up(3), round_up(5), round_up(61), round_up(130), round_up(130, 2)
    (3, 8, 64, 160, 192)
    """
    if rows <= 4:
        return rows
    double = 8
    while double < rows:
        double *= 2
    step = max(double // (2 * parts), 4)
    return (rows + step - 1) // step * step


def block(rows: int, least: int = 1) -> int:
    """Return how many of the rows, or a few more, the next product takes.

    It is a power of two between `least`, one as well, and 64.

    >>> block(200), block(60), block(50), block(18), block(2), block(2, 4)
    (64, 64, 32, 16, 2, 4)
    """
    size = least
    while size < rows and size < 64:
        size *= 2
    # A few rows too many cost less than another product.
    return size if size == least or size - rows <= size // 8 + 2 else size // 2


def filled(rows: int, least: int = 1) -> int:
    """Return how many rows the products of all blocks have.

    >>> filled(50)  # 32 + 16 + 2
    50
    """
    done = 0
    while done < rows:
        done += block(rows - done, least)
    return done


class Product:
    """x (n, K) to activation(x @ weight.t() + bias), (n, N), for one weight (N, K).

    Inputs and results are bf16 for bf16, else float32. Without `packed`, float32 weights stay as
    they are: it costs time, and memory for a second copy is saved.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, precision: Precision, *, packed: bool = True
    ) -> None:
        check_precision(precision)
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32  # of in- and output
        self.rows, self.columns = weight.shape
        self.kind = PLAIN
        weight = weight.detach()
        bias = weight.new_empty(0) if bias is None else bias.detach()
        self.parts: Parts = [weight, bias]
        if precision == "int8":
            self.kind = BYTES
            scales = weight.abs().amax(dim=1).clamp_(min=1e-30) / 127  # (N,)
            rounded = (weight / scales.unsqueeze(1)).round_().to(torch.int8)
            kept = torch.ops.onednn.qlinear_prepack(rounded, None)
            self.parts = [kept, bias, scales, torch.zeros(len(scales), dtype=torch.int32)]
        elif has_packed() and (packed or precision == "bf16"):
            self.kind = PACKED
            kept = torch.ops.mkldnn._reorder_linear_weight(weight.to(self.dtype))
            self.parts = [kept, bias.to(self.dtype)]

    def __call__(self, x: Tensor, activation: Activation = "none") -> Tensor:
        """Return a new (n, N)."""
        return product(x, self.kind, self.parts, activation)


# The rest is compiled as part of a loop (`cpu.steps`): it is in the Python that TorchScript knows.


def product(x: Tensor, kind: int, parts: list[Tensor], activation: str) -> Tensor:
    """Return activation(x @ weight.t() + bias)."""
    bias: Tensor | None = None
    if parts[1].numel() > 0:
        bias = parts[1]
    if kind == 1:
        packed: Tensor = torch.ops.mkldnn._linear_pointwise(x, parts[0], bias, activation, [], "")
        return packed
    if kind == 0:
        out = torch.nn.functional.linear(x, parts[0], bias)
    else:
        scales = row_scales(x)
        out = of_bytes(x / scales, parts).mul_(scales)
        if bias is not None:
            out.add_(bias)
    if activation == "sigmoid":
        out.sigmoid_()
    elif activation == "tanh":
        out.tanh_()
    elif activation == "relu":
        out.relu_()
    return out


def product_and(x: Tensor, other: Tensor, kind: int, parts: list[Tensor]) -> Tensor:
    """Return x @ weight.t() + other, a new tensor."""
    if kind == 1:
        packed: Tensor = torch.ops.mkldnn._linear_pointwise(x, other, parts[0], None, "add")
        return packed
    if kind == 0:
        return torch.addmm(other, x, parts[0].t())
    scales = row_scales(x)
    out = of_bytes(x / scales, parts)
    return torch.addcmul(other, out, scales, out=out)


def row_scales(x: Tensor) -> Tensor:
    """Return what a step of each row's bytes stands for, (n, 1)."""
    return (
        torch.maximum(x.amax(dim=1, keepdim=True), -x.amin(dim=1, keepdim=True))
        .clamp_(min=1e-30)
        .div_(127)
    )


def of_bytes(x: Tensor, parts: list[Tensor]) -> Tensor:
    """Return the product of an x that lies between -127 and 127 and is not needed any more."""
    # Bytes have no sign here: 128 stands for 0, and a half is for rounding instead of cutting off.
    out: Tensor = torch.ops.onednn.qlinear_pointwise(
        x.add_(128.5).to(torch.uint8), 1.0, 128, parts[0], parts[2], parts[3],
        None, 1.0, 0, torch.float32, "none", [], "",
    )  # fmt: skip
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
