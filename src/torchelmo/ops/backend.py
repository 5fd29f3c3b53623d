"""Which implementation of an operation runs.

reference   readable, differentiated by autograd; every other one is checked against it
torch       plain torch with a backward pass written by hand, on any device
triton      the same with Triton kernels, on CUDA

All give the same numbers up to rounding. `TORCHELMO_BACKEND` in the environment names one for the
whole process; an argument of an operation goes before that. Tensors without memory ("meta") go the
way of the device for which they stand (`meta_as`).
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, cast, get_args

import torch

from torchelmo.errors import InputError

Backend = Literal["reference", "torch", "triton"]
VARIABLE = "TORCHELMO_BACKEND"
_META: ContextVar[str] = ContextVar("_META", default="cpu")


def choose(device: torch.device, name: str | None = None) -> Backend:
    """Return the backend for tensors on a device; `name` decides if it is given.

    >>> choose(torch.device("cpu"))
    'torch'
    """
    name = name or os.environ.get(VARIABLE)
    if not name:
        return "triton" if kind(device) == "cuda" and has_triton() else "torch"
    if name not in get_args(Backend):
        raise InputError(f"there is no backend {name!r}: expected {', '.join(get_args(Backend))}")
    if name == "triton":
        if not has_triton():
            raise InputError("the triton backend needs Triton: pip install torchelmo[gpu]")
        if device.type not in ("cuda", "meta") and os.environ.get("TRITON_INTERPRET") != "1":
            raise InputError(f"the triton backend runs on CUDA, the tensors are on {device.type}")
    return cast("Backend", name)


def kind(device: torch.device) -> str:
    """Return the type of a device, or of the one for which it stands."""
    return _META.get() if device.type == "meta" else device.type


@contextmanager
def meta_as(kind: str) -> Iterator[None]:
    """Let tensors without memory stand for those of a type of device, "cpu" outside of this."""
    token = _META.set(kind)
    try:
        yield
    finally:
        _META.reset(token)


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def compute_dtype(x: torch.Tensor) -> torch.dtype:
    """Return the dtype of matrix products with `x`: autocast's where that is on.

    >>> compute_dtype(torch.zeros(1))
    torch.float32
    """
    kind = "cpu" if x.is_meta else x.device.type
    if x.dtype != torch.float64 and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype
