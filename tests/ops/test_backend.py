"""Tensors without memory go the way of the device for which they stand."""

import pytest
import torch

from torchelmo.ops import backend
from torchelmo.ops.backend import choose, kind, meta_as

META = torch.device("meta")


def test_tensors_without_memory_stand_for_others(monkeypatch):
    monkeypatch.delenv(backend.VARIABLE, raising=False)
    monkeypatch.setattr(backend, "has_triton", lambda: True)
    assert kind(META) == "cpu" and choose(META) == "torch"
    with meta_as("cuda"):
        assert kind(META) == "cuda" and choose(META) == "triton"
        assert kind(torch.device("cpu")) == "cpu" and choose(torch.device("cpu")) == "torch"
        monkeypatch.setattr(backend, "has_triton", lambda: False)
        assert choose(META) == "torch"
    with pytest.raises(ZeroDivisionError), meta_as("cuda"):
        raise ZeroDivisionError
    assert kind(META) == "cpu"
