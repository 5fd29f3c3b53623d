"""Layers in host memory: arrays of sentences in memory of their own, pieces of batches."""

import numpy as np
import pytest
import torch

from torchelmo.nn import host
from torchelmo.nn.output import Layers


def batch(lengths, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    flat = torch.randn(3, sum(lengths), 4, generator=generator, dtype=dtype)
    return Layers(flat, tuple(lengths))


@pytest.mark.parametrize("shared", [0, 1 << 30], ids=["threads", "one thread"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_arrays_are_the_sentences_in_order(monkeypatch, shared, dtype):
    monkeypatch.setattr(host, "SHARED_BYTES", shared)
    batches = [batch([3, 0, 5, 1], dtype=dtype), batch([], 1, dtype), batch([40, 2], 2, dtype)]
    given = enumerate(batches)
    found = [own for _, few in host.arrays(([n], one) for n, one in given) for own in few]
    wanted = [piece for layers in batches for piece in layers.split()]
    assert len(found) == 6
    for own, piece in zip(found, wanted, strict=True):
        assert np.array_equal(own, piece.numpy()) and own.dtype == piece.numpy().dtype
        assert own.base is None and own.flags.writeable


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (100, [[7, 8, 9, 5]]),
        (8, [[7, 8, 9], [5]]),
        (3, [[7, 8], [9], [5]]),
        (0, [[7], [8], [9], [5]]),
    ],
)
def test_pieces_are_cut_between_sentences(tokens, expected):
    layers = batch([3, 0, 5, 1])
    found = list(host._pieces([7, 8, 9, 5], layers, tokens))
    assert [numbers for numbers, _ in found] == expected
    assert torch.equal(torch.cat([part.flat for _, part in found], dim=1), layers.flat)
    assert all(sum(part.lengths) == part.flat.shape[1] for _, part in found)
