"""The highway LSTM against a loop over words, one text at a time, that autograd differentiates."""

import pytest
import torch

from torchelmo.ops.backend import has_triton
from torchelmo.tasks.highway_lstm import AlternatingLstm, HighwayLayer, run_steps, ways

LENGTHS = [3, 7, 1, 7, 4, 2]


def plain_layer(layer, words, backwards, mask=None):
    """One text (T, D) -> (T, H), by the equations."""
    cells = layer.recurrent.shape[1]
    h = c = torch.zeros(cells, dtype=words.dtype)
    out = [None] * len(words)
    for t in reversed(range(len(words))) if backwards else range(len(words)):
        six = (layer.input.weight @ words[t] + layer.input.bias).split(cells)
        five = (layer.recurrent @ h).split(cells)
        g = torch.tanh(six[0] + five[0])
        i, f, o, r = (torch.sigmoid(six[n] + five[n]) for n in range(1, 5))
        c = f * c + i * g
        h = r * (o * torch.tanh(c)) + (1 - r) * six[5]
        if mask is not None:
            h = h * mask
        out[t] = h
    return torch.stack(out)


def plain(lstm, values, lengths):
    rows = []
    for row, length in zip(values, lengths, strict=True):
        words = row[:length]
        for number, layer in enumerate(lstm.layers):
            words = plain_layer(layer, words, number % 2 == 1)
        rows.append(words)
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def made(layers, lengths=LENGTHS, width=5, cells=4):
    torch.manual_seed(layers)
    lstm = AlternatingLstm(width, cells, layers).double()
    for parameter in lstm.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    values = torch.randn(len(lengths), max(lengths), width, dtype=torch.float64)
    return lstm, values.requires_grad_()


@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize("lengths", [LENGTHS, [4, 4, 4], [1], [6]])
def test_values_and_gradients_are_those_of_a_plain_loop(layers, lengths):
    lstm, values = made(layers, lengths)
    asked = [values, *lstm.parameters()]
    ours, theirs = lstm(values, lengths), plain(lstm, values, lengths)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(theirs)
    one = torch.autograd.grad((ours * weights).sum(), asked)
    two = torch.autograd.grad((theirs * weights).sum(), asked)
    torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("backwards", [False, True])
def test_dropout_is_one_mask_a_text_in_the_recurrence_and_at_the_output(backwards):
    torch.manual_seed(0)
    layer = HighwayLayer(5, 8, dropout=0.5).double()
    way = ways([2, 2, 1], torch.device("cpu"))[backwards]
    packed = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(1)
    ours = layer(packed, way)
    torch.manual_seed(1)
    mask = torch.empty(2, 8, dtype=torch.float64).bernoulli_(0.5) / 0.5
    assert 0 < (mask == 0).sum() < 16
    rows = ([0, 2, 4], [1, 3])
    theirs = [plain_layer(layer, packed[r], backwards, mask[n]) for n, r in enumerate(rows)]
    for n, r in enumerate(rows):
        torch.testing.assert_close(ours[r], theirs[n], rtol=1e-12, atol=1e-12)
    asked = [packed, *layer.parameters()]
    one = torch.autograd.grad(ours.square().sum(), asked)
    two = torch.autograd.grad(sum(t.square().sum() for t in theirs), asked)
    torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-11)
    layer.eval()
    torch.testing.assert_close(
        layer(packed, way)[rows[1]], plain_layer(layer, packed[rows[1]], backwards)
    )


@pytest.mark.skipif(not has_triton(), reason="needs Triton")
@pytest.mark.parametrize("sizes", [[6, 4, 4, 1], [3, 3], [1], [2, 1, 1, 1, 1]])
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
def test_kernels_give_what_the_plain_steps_give(sizes, backwards, dropped):
    """In Triton's interpreter where there is no GPU."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    cells = 10
    way = ways(sizes, device)[backwards]
    products = torch.randn(sum(sizes), 6 * cells, device=device, requires_grad=True)
    weight = (0.5 * torch.randn(5 * cells, cells, device=device)).requires_grad_()
    mask = torch.randint(2, (max(sizes), cells), device=device) * 2.0 if dropped else None
    plain = run_steps(products, weight, mask, way, "torch")
    fused = run_steps(products, weight, mask, way, "triton")
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5)
    weights = torch.randn_like(plain)
    one = torch.autograd.grad((fused * weights).sum(), [products, weight])
    two = torch.autograd.grad((plain * weights).sum(), [products, weight])
    torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


def test_padding_and_neighbours_change_nothing():
    lstm, values = made(4)
    together = lstm(values, LENGTHS)
    filled = torch.cat([values, torch.full((6, 2, 5), 9.0, dtype=values.dtype)], dim=1)
    longer = lstm(filled, LENGTHS)
    assert longer.shape == (6, 9, 4)
    for n, length in enumerate(LENGTHS):
        assert not together[n, length:].any() and not longer[n, length:].any()
        assert torch.equal(longer[n, :length], together[n, :length])
        alone = lstm(values[n : n + 1, :length], [length])
        torch.testing.assert_close(alone[0], together[n, :length], rtol=1e-12, atol=1e-12)


def test_each_word_sees_both_sides_from_the_second_layer_on():
    for layers in (1, 2):
        lstm, values = made(layers, [6])
        (reach,) = torch.autograd.grad(lstm(values, [6])[0, 2].sum(), values)
        seen = reach[0].abs().sum(dim=1) > 0
        assert seen.tolist() == ([True] * 3 + [False] * 3 if layers == 1 else [True] * 6)


def test_beginning_orthonormal_with_a_forget_bias_of_one():
    layer = HighwayLayer(7, 3)
    for weight in (layer.input.weight, layer.recurrent):
        for gate in weight.split(3):
            torch.testing.assert_close(gate @ gate.t(), torch.eye(3), rtol=0, atol=1e-5)
    assert layer.input.bias.tolist() == [0.0] * 6 + [1.0] * 3 + [0.0] * 9


def test_low_precision_products_and_float32_steps():
    torch.manual_seed(0)
    lstm = AlternatingLstm(5, 4, 3)
    values = torch.randn(2, 6, 5)
    with torch.autocast("cpu", torch.bfloat16):
        low = lstm(values, [6, 4])
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, lstm(values, [6, 4]), rtol=0.05, atol=0.05)
    low.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in lstm.parameters())
