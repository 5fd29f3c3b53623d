"""The GRU's kernels, in Triton's interpreter where there is no GPU, against torch's own GRU."""

import pytest
import torch

from torchelmo.ops.backend import has_triton
from torchelmo.tasks.gru import BiGru

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def made(lengths, cells, width=5):
    torch.manual_seed(cells)
    gru = BiGru(width, cells).to(DEVICE)
    for parameter in gru.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    values = torch.randn(len(lengths), max(lengths), width, device=DEVICE)
    return gru, values.requires_grad_()


@pytest.mark.skipif(not has_triton(), reason="needs Triton")
@pytest.mark.parametrize(
    ("lengths", "cells"),
    [([4, 2, 5], 3), ([1], 7), ([3] * 16 + [6, 1, 2], 17), ([2, 2], 16), ([9, 9, 3], 33)],
)
def test_values_and_gradients_are_those_of_torch(lengths, cells):
    gru, values = made(lengths, cells)
    theirs, ours = gru(values, lengths), gru.fused(values, lengths)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for row, length in zip(ours, lengths, strict=True):
        assert not row[length:].any()
    asked = [values, *gru.parameters()]
    weights = torch.randn_like(theirs)
    expected = torch.autograd.grad((theirs * weights).sum(), asked)
    found = torch.autograd.grad((ours * weights).sum(), asked)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not has_triton(), reason="needs Triton")
def test_two_runs_are_identical():
    gru, values = made([5, 3, 4], 9)
    one, two = (gru.fused(values, [5, 3, 4]) for _ in range(2))
    assert torch.equal(one, two)
