"""Layers in host memory: arrays of sentences in memory of their own, pieces of batches."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from torchelmo.nn import host
from torchelmo.nn.output import Layers


def batch(lengths, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    flat = torch.randn(3, sum(lengths), 4, generator=generator, dtype=dtype)
    return Layers(flat, tuple(lengths))


class Event:
    """Of a copy that ends when somebody waits for it, as none does in truth."""

    def __init__(self, home, values):
        self.copy = partial(home.copy_, values)

    def synchronize(self):
        self.copy()


def sent(batches, size):
    """Pieces as a GPU would send them: wrong until they are waited for."""
    for numbers, layers in batches:
        for few, part in host._pieces(numbers, layers, 4):
            home = torch.full_like(part.flat, torch.nan)
            yield few, replace(part, flat=home), Event(home, part.flat)


@pytest.mark.parametrize("way", ["in host memory", "sent", "sent, one piece"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_arrays_are_the_sentences_in_order(monkeypatch, way, dtype):
    batches = [batch([3, 0, 5, 1], dtype=dtype), batch([], 1, dtype), batch([40, 2], 2, dtype)]
    if way == "sent, one piece":
        batches = [batch([2, 1], dtype=dtype)]
    if way != "in host memory":
        monkeypatch.setattr(host, "_sent", sent)
    given = ([(n, k) for k in range(len(one.lengths))] for n, one in enumerate(batches))
    parts = list(host.arrays(zip(given, batches, strict=True)))
    found = {number: own for few, owns in parts for number, own in zip(few, owns, strict=True)}
    wanted = {
        (n, k): piece for n, layers in enumerate(batches) for k, piece in enumerate(layers.split())
    }
    assert list(found) == list(wanted)
    for number, piece in wanted.items():
        own = found[number]
        assert np.array_equal(own, piece.numpy()) and own.dtype == piece.numpy().dtype
        assert own.base is None and own.flags.writeable


def test_pieces_that_were_sent_are_waited_for(monkeypatch):
    batches = [([0, 1], batch([3, 5])), ([2], batch([4], 1)), ([3, 4], batch([2, 0], 2))]
    monkeypatch.setattr(host, "_sent", sent)
    for most in (0, 1 << 30):
        monkeypatch.setattr(host, "HOST_BYTES", most)
        parts = list(host.on_host(batches))
        assert [number for numbers, _ in parts for number in numbers] == [0, 1, 2, 3, 4]
        flat = torch.cat([layers.flat for _, layers in parts], dim=1)
        assert torch.equal(flat, torch.cat([layers.flat for _, layers in batches], dim=1))


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
