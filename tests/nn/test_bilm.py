"""One direction's stack over running rows, which training and perplexity read with."""

import pytest
import torch

from torchelmo.config import CharacterConfig, ElmoConfig, LstmConfig
from torchelmo.nn.bilm import BiLM
from torchelmo.ops.reference import lstmp

ROWS, STEPS, WIDTH = 3, 7, 6


@pytest.fixture(scope="module", params=[True, False], ids=["residual", "plain"])
def bilm(request):
    torch.manual_seed(3)
    config = ElmoConfig(
        characters=CharacterConfig(dim=4, filters=((1, 4), (2, 6)), highways=1, max_characters=12),
        lstm=LstmConfig(cells=9, projection=WIDTH, residual=request.param),
    )
    return BiLM(config).requires_grad_(False)


@pytest.fixture
def x():
    return torch.randn(STEPS, ROWS, WIDTH, generator=torch.Generator().manual_seed(5))


def full(bilm, direction, x, memory, **options):
    """The top of full rows (T, B, P), and the memory."""
    sizes = [x.shape[1]] * x.shape[0]
    outputs, memory = bilm.stack(direction, x.flatten(0, 1), sizes, memory, **options)
    assert len(outputs) == 2
    return outputs[-1].view(x.shape), memory


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_windows_of_rows_are_the_rows(bilm, x, direction):
    whole, end = full(bilm, direction, x, bilm.zero_memory(ROWS))
    first, memory = full(bilm, direction, x[:4], bilm.zero_memory(ROWS))
    second, memory = full(bilm, direction, x[4:], memory)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    torch.testing.assert_close(memory, end)


def test_it_is_what_a_batch_of_sentences_goes_through(bilm, x):
    """Rows of T inputs are sentences of T - 2 words with their boundaries."""
    index = torch.arange(STEPS * ROWS).view(STEPS, ROWS).t()
    layers = bilm(x.flatten(0, 1), index, [STEPS - 2] * ROWS, boundaries=True)
    forward, backward = layers.values[-1].chunk(2, dim=2)  # (B, T, P)
    for direction, half, order in (("forward", forward, x), ("backward", backward, x.flip(0))):
        top, _ = full(bilm, direction, order, bilm.zero_memory(ROWS))
        top = top if direction == "forward" else top.flip(0)
        torch.testing.assert_close(top.transpose(0, 1), half)


def test_rows_may_end(bilm, x):
    """A row that ends early keeps its memory and changes no other row."""
    whole, _ = full(bilm, "forward", x, bilm.zero_memory(ROWS))
    lengths = [7, 5, 2]
    sizes = [sum(length > t for length in lengths) for t in range(STEPS)]
    packed = torch.cat([x[t, :size] for t, size in enumerate(sizes)])
    outputs, memory = bilm.stack("forward", packed, sizes, bilm.zero_memory(ROWS))
    expected = torch.cat([whole[t, :size] for t, size in enumerate(sizes)])
    torch.testing.assert_close(outputs[-1], expected)
    for row, length in enumerate(lengths):
        alone = full(bilm, "forward", x[:length, row : row + 1], bilm.zero_memory(1))[1]
        for (h, c), (own_h, own_c) in zip(memory, alone, strict=True):
            torch.testing.assert_close(h[row], own_h[0])
            torch.testing.assert_close(c[row], own_c[0])


def test_resets_start_a_row_from_zero(bilm, x):
    resets = torch.zeros(STEPS, ROWS, dtype=torch.bool)
    resets[3, 1] = True
    top, _ = full(bilm, "forward", x, bilm.zero_memory(ROWS), resets=resets.flatten())
    whole, _ = full(bilm, "forward", x, bilm.zero_memory(ROWS))
    fresh, _ = full(bilm, "forward", x[3:, 1:2], bilm.zero_memory(1))
    torch.testing.assert_close(top[:, [0, 2]], whole[:, [0, 2]])
    torch.testing.assert_close(top[:3, 1], whole[:3, 1])
    torch.testing.assert_close(top[3:, 1:2], fresh)


def test_dropout_is_on_the_input_of_every_layer(bilm, x):
    """Doubling stands for dropout: the residual adds what the layer was given."""
    seen = []

    def double(value):
        seen.append(value)
        return 2 * value

    sizes = [ROWS] * STEPS
    outputs, _ = bilm.stack("forward", x.flatten(0, 1), sizes, bilm.zero_memory(ROWS), None, double)
    assert len(seen) == 2
    torch.testing.assert_close(seen[1][0], outputs[0])
    first, _ = bilm.stack("forward", 2 * x.flatten(0, 1), sizes, bilm.zero_memory(ROWS))
    torch.testing.assert_close(outputs[0], first[0])
    lstm, (h, c) = bilm.config.lstm, bilm.zero_memory(ROWS)[1]
    own = bilm.forward_layers[1].weights()
    second = lstmp(2 * outputs[0], sizes, own, h, c, lstm.cell_clip, lstm.projection_clip)[0]
    residual = 2 * outputs[0] if bilm.config.lstm.residual else 0
    torch.testing.assert_close(outputs[1], second + residual)


def test_memory_carries_no_gradient(bilm, x):
    x = x.requires_grad_()
    top, memory = full(bilm, "forward", x, bilm.zero_memory(ROWS))
    assert top.requires_grad
    assert not any(part.requires_grad for pair in memory for part in pair)
