"""CoVe's weights: the encoder of a translator, as McCann et al. (2017) published it (MT-LSTM.pth).

It is the state dict of one `nn.LSTM` of two bidirectional layers, 300 values in and 300 a direction
out. The published file has its names as they are (`weight_ih_l0`); a whole module that was saved
puts its own before them (`rnn.weight_ih_l0`), and may have word vectors beside them, which are left
out. Files of `torch.save`, the old layout too, and safetensors are read.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from torchelmo.errors import InputError
from torchelmo.formats import state_dict
from torchelmo.formats.tensors import read_tensors

INPUT, CELLS, LAYERS = 300, 300, 2


def expected() -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the LSTM's tensors."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(LAYERS):
        width = 2 * CELLS if layer else INPUT
        for suffix in (f"_l{layer}", f"_l{layer}_reverse"):
            shapes[f"weight_ih{suffix}"] = (4 * CELLS, width)
            shapes[f"weight_hh{suffix}"] = (4 * CELLS, CELLS)
            shapes[f"bias_ih{suffix}"] = shapes[f"bias_hh{suffix}"] = (4 * CELLS,)
    return shapes


def read(path: str | Path) -> dict[str, Tensor]:
    """Read a file; the tensors go by the names that `nn.LSTM` has for them."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise InputError(
            f"there is no file {path}: CoVe's weights (MT-LSTM.pth) are those of "
            "https://github.com/salesforce/cove"
        )
    if path.suffix == ".safetensors":
        tensors = read_tensors(path, dict)
    else:
        tensors = state_dict.read_file(path)
    found = {name.rpartition(".")[2]: tensor for name, tensor in tensors.items()}
    out: dict[str, Tensor] = {}
    for name, shape in expected().items():
        if name not in found or tuple(found[name].shape) != shape:
            has = f"{tuple(found[name].shape)}" if name in found else "none"
            raise InputError(
                f"{path} has {has} for {name!r} of shape {shape}: expected CoVe's two LSTM layers"
            )
        out[name] = found[name].float()
    return out
