"""The padded and the flat view of the same layers."""

import torch

from torchelmo.nn.output import Layers


def test_padding_mask_halves_and_pieces():
    flat = torch.arange(2 * 3 * 4, dtype=torch.float32).reshape(2, 3, 4)
    layers = Layers(flat, (2, 0, 1))
    assert layers.mask.tolist() == [[True, True], [False, False], [True, False]]
    assert layers.values.shape == (2, 3, 2, 4) and len(layers) == 2
    torch.testing.assert_close(layers[1][0], flat[1, :2])
    assert not layers.values[:, 1].any() and not layers.values[:, 2, 1].any()
    torch.testing.assert_close(torch.cat([layers.forward, layers.backward], dim=-1), layers.values)
    assert [piece.shape for piece in layers.split()] == [(2, 2, 4), (2, 0, 4), (2, 1, 4)]


def test_boundaries_are_stripped():
    flat = torch.arange(7, dtype=torch.float32).reshape(1, 7, 1)
    inner = Layers(flat, (3, 2, 2), boundaries=True).strip()
    assert inner.flat.flatten().tolist() == [1.0] and inner.lengths == (1, 0, 0)
    assert inner.strip() is inner


def test_no_sentences_at_all():
    layers = Layers(torch.zeros(3, 0, 4), ())
    assert layers.values.shape == (3, 0, 0, 4) and layers.split() == []
