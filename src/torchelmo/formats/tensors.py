"""Named tensors in a safetensors file: float32, float16, or int8 rows with a scale each.

A matrix in int8 rows is two tensors: `weight` int8 (n, d) and `weight.scale` float16 (n,), whose
product is the matrix. Each row's scale is its largest absolute value / 127, rounded up to float16,
so that no value is further from its own than half the row's scale. Whatever a file holds, float32
is read, once the header has the shapes that are expected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from torchelmo.errors import InputError
from torchelmo.formats import files
from torchelmo.formats.model import check_shapes

Shapes = dict[str, tuple[int, ...]]
Stored = Literal["float32", "float16", "int8"]

LARGEST = 127  # of int8, -128 left out: the rows are symmetric
SCALE = ".scale"
FLOATS = ("F32", "F16", "BF16")


def read_tensors(
    path: Path, expected: Callable[[Shapes], Shapes], *, rows: bool = False
) -> dict[str, Tensor]:
    """Read a file as float32 once its header has the shapes that are expected.

    `expected` is asked with the shapes that the header gives, without those of scales; `rows` says
    whether int8 rows may be among them.
    """
    files.check_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            found: Shapes = {}
            packed: set[str] = set()
            for name in file.keys():  # noqa: SIM118  # not a mapping
                header = file.get_slice(name)
                found[name] = tuple(header.get_shape())
                kind = header.get_dtype()
                if rows and kind == "I8" and len(found[name]) == 2:
                    packed.add(name)
                elif kind not in FLOATS:
                    raise InputError(f"{path} has {name!r} in {kind}, expected F32 or F16")
            scales = {f"{name}{SCALE}": found[name][:1] for name in packed}
            shapes = expected({n: shape for n, shape in found.items() if n not in scales})
            check_shapes(
                {name: torch.empty(shape, device="meta") for name, shape in found.items()},
                shapes | scales,
                str(path),
            )
            # a copy: what safetensors gives is a view of the file, which somebody may change
            tensors = {name: file.get_tensor(name).to(torch.float32, copy=True) for name in shapes}
            for name in packed:
                scale = file.get_tensor(f"{name}{SCALE}").to(torch.float32)
                tensors[name].mul_(scale.unsqueeze(1))
            return tensors
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is damaged or not safetensors: {error}") from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor], stored: Stored = "float32") -> None:
    """Write tensors; with "int8" the weight matrices in rows, all else in float32."""
    ready: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        values = tensor.detach().to("cpu", torch.float32).contiguous()
        if stored == "int8" and name.endswith("weight"):
            ready[name], ready[f"{name}{SCALE}"] = pack_rows(values, name)
        elif stored == "float16":
            ready[name] = _half(values, name)
        else:
            ready[name] = values
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(ready, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from None
    path.chmod(mode)  # some versions of safetensors make files that only their owner can read


def pack_rows(matrix: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Return a float32 matrix (n, d) as int8 (n, d) and one float16 scale a row (n,).

    >>> pack_rows(torch.tensor([[0.5, -127.0], [0.0, 0.0]]), "weight")
    (tensor([[   0, -127],
            [   0,    0]], dtype=torch.int8), tensor([1., 0.], dtype=torch.float16))
    """
    if not matrix.isfinite().all():
        raise InputError(f"{name} has values that are not finite: int8 rows cannot hold them")
    exact = matrix.abs().amax(dim=1) / LARGEST if matrix.shape[1] else matrix.new_zeros(len(matrix))
    scale = _half(exact, name)
    # Positive float16 values are in the order of their bits: the next one is a bit further.
    upper = (scale.view(torch.int16) + 1).view(torch.float16)
    scale = torch.where(scale.to(torch.float32) < exact, upper, scale)
    wide = scale.to(torch.float32).unsqueeze(1)
    rows = torch.where(wide > 0, matrix / wide, 0).round_().clamp_(-LARGEST, LARGEST)
    return rows.to(torch.int8), scale


def _half(values: Tensor, name: str) -> Tensor:
    half = values.to(torch.float16)
    if half.isinf().any() and not values.isinf().any():
        raise InputError(f"{name} has values too large for float16: write float32")
    return half
