"""The LSTM step by hand, and its gradients."""

import math

import torch

from torchelmo.ops.reference import LstmWeights, char_conv_max, lstmp


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def weights(cells, width, *, project=True, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale

    projection = draw(width, cells) if project else None
    return LstmWeights(draw(4 * cells, width), draw(4 * cells, width), draw(4 * cells), projection)


def test_two_steps_by_hand_with_both_clips():
    # One cell, one unit: gates i, f, g, o see x * (1, 2, 3, 4) + h * 0.5 + bias.
    w = LstmWeights(
        torch.tensor([[1.0], [2.0], [3.0], [4.0]], dtype=torch.float64),
        torch.full((4, 1), 0.5, dtype=torch.float64),
        torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64),
        torch.tensor([[2.0]], dtype=torch.float64),
    )
    zero = torch.zeros(1, 1, dtype=torch.float64)
    x = torch.tensor([[0.5], [-1.0]], dtype=torch.float64)
    y, h_last, c_last = lstmp(x, [1, 1], w, zero, zero, cell_clip=0.6, projection_clip=0.9)
    h = c = 0.0
    for step, value in enumerate([0.5, -1.0]):
        i, f, g, o = (k * value + 0.5 * h + 0.1 * k for k in (1, 2, 3, 4))
        c = sigmoid(f) * c + sigmoid(i) * math.tanh(g)
        c = max(-0.6, min(0.6, c))
        h = max(-0.9, min(0.9, 2 * sigmoid(o) * math.tanh(c)))
        assert abs(y[step].item() - h) < 1e-15
    assert abs(h_last.item() - h) < 1e-15 and abs(c_last.item() - c) < 1e-15


def test_ragged_rows_equal_each_row_alone():
    w = weights(5, 3)
    lengths = [4, 2, 2, 1]
    rows = [torch.randn(n, 3, dtype=torch.float64) for n in lengths]
    h, c = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    sizes = [sum(n > t for n in lengths) for t in range(4)]
    packed = torch.cat(
        [torch.stack([rows[r][t] for r in range(size)]) for t, size in enumerate(sizes)]
    )
    y, h_last, c_last = lstmp(packed, sizes, w, h, c, 1.0, 2.0)
    starts = [sum(sizes[:t]) for t in range(4)]
    for r, n in enumerate(lengths):
        alone, h_one, c_one = lstmp(rows[r], [1] * n, w, h[r : r + 1], c[r : r + 1], 1.0, 2.0)
        torch.testing.assert_close(torch.stack([y[starts[t] + r] for t in range(n)]), alone)
        torch.testing.assert_close(h_last[r], h_one[0])
        torch.testing.assert_close(c_last[r], c_one[0])


def test_without_projection_only_the_cell_is_clipped():
    w = weights(3, 3, project=False, scale=4.0)
    x = torch.randn(6, 3, dtype=torch.float64)
    zero = torch.zeros(1, 3, dtype=torch.float64)
    y, _, c = lstmp(x, [1] * 6, w, zero, zero, cell_clip=0.5, projection_clip=0.01)
    assert c.abs().max() <= 0.5 and y.abs().max() > 0.01


def test_gradients_of_every_input():
    w = weights(3, 2, scale=0.7)
    x = torch.randn(5, 2, dtype=torch.float64)
    h, c = torch.randn(3, 2, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
    inputs = [t.requires_grad_() for t in (x, w.input, w.recurrent, w.bias, w.projection, h, c)]

    def run(x, a, b, d, p, h, c):
        return lstmp(x, [3, 1, 1], LstmWeights(a, b, d, p), h, c, 0.9, 0.8)

    assert torch.autograd.gradcheck(run, inputs)


def test_a_clip_that_acts_stops_the_gradient():
    w = weights(2, 2, scale=3.0)
    x = torch.randn(1, 2, dtype=torch.float64, requires_grad=True)
    zero = torch.zeros(1, 2, dtype=torch.float64)
    lstmp(x, [1], w, zero, zero, cell_clip=None, projection_clip=1e-9)[0].sum().backward()
    assert x.grad is not None and not x.grad.any()


def test_char_conv_max_by_hand():
    # One word of four characters in one dimension; widths 1 and 2, one filter each.
    embedded = torch.tensor([[[1.0], [-2.0], [3.0], [0.5]]])
    narrow = (torch.tensor([[[2.0]]]), torch.tensor([0.25]))
    wide = (torch.tensor([[[1.0, -1.0]]]), torch.tensor([-1.0]))
    out = char_conv_max(embedded, [narrow, wide])
    assert out.tolist() == [[6.25, 2.0]]  # 2*3+0.25; windows 3, -5, 2.5, minus 1
