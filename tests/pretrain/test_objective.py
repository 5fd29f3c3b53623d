"""Losses against formulas, hand-worked cases and torch's cross-entropy; where dropout is."""

import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from torchelmo.config import CharacterConfig, ElmoConfig, LstmConfig
from torchelmo.nn.bilm import BiLM
from torchelmo.nn.softmax import Softmax
from torchelmo.ops.backend import has_triton
from torchelmo.ops.reference import lstmp
from torchelmo.pretrain import objective
from torchelmo.pretrain.objective import (
    Dropout,
    LanguageModel,
    Negatives,
    Side,
    Step,
    draw_negatives,
    full_loss,
    log_expected,
    sampled_loss,
)


def share(k, vocabulary):
    return (math.log(k + 2) - math.log(k + 1)) / math.log(vocabulary + 1)


@pytest.mark.parametrize(("vocabulary", "count"), [(5, 1), (5, 5), (300, 40), (1000, 999), (1, 1)])
def test_draws_are_those_of_one_at_a_time(vocabulary, count):
    found, tries = draw_negatives(vocabulary, count, np.random.default_rng(7))
    rng, seen, draws = np.random.default_rng(7), [], 0
    while len(seen) < count:
        k = int((vocabulary + 1) ** rng.random() - 1)
        draws += 1
        if k not in seen:
            seen.append(k)
    assert found.tolist() == seen
    assert tries == draws
    assert len(set(seen)) == count and min(seen) >= 0 and max(seen) < vocabulary


def test_draws_are_log_uniform():
    rng, draws = np.random.default_rng(1), 20_000
    found = np.bincount([draw_negatives(9, 1, rng)[0][0] for _ in range(draws)], minlength=9)
    expected = draws * np.array([share(k, 9) for k in range(9)])
    assert math.isclose(expected.sum(), draws)
    assert ((found - expected) ** 2 / expected).sum() < 27.9  # chi-square, 8 degrees: 0.05 %


def test_more_words_than_there_are_cannot_be_drawn():
    with pytest.raises(ValueError, match="7 distinct words of 6"):
        draw_negatives(6, 7, np.random.default_rng(0))


def test_expected_counts():
    ids, tries = torch.arange(50), 37
    direct = [math.log(1 - (1 - share(k, 50)) ** tries) for k in range(50)]
    torch.testing.assert_close(log_expected(ids, 50, tries), torch.tensor(direct))
    for kind in (torch.int64, torch.float64):  # as a captured graph has them
        on_device = torch.tensor(tries, dtype=kind)
        assert torch.equal(log_expected(ids, 50, on_device), log_expected(ids, 50, tries))
    # A word so rare that 1 - P is 1 in float32: as often as the draws times its share.
    rare = log_expected(torch.tensor([10**9 - 1]), 10**9, 3)
    assert math.isclose(rare.item(), math.log(3 * share(10**9 - 1, 10**9)), rel_tol=1e-6)
    assert log_expected(torch.tensor([0]), 1, 4).item() == 0  # the only word is always drawn


def by_hand(rows, biases):
    softmax = Softmax(len(rows), len(rows[0]))
    softmax.load_state_dict({"weight": torch.tensor(rows), "bias": torch.tensor(biases)})
    return softmax


def test_sampled_loss_by_hand():
    softmax = by_hand([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [-1.0, 1.0]], [0.1, 0.2, 0.3, 0.4])
    hidden = torch.tensor([[1.0, 1.0], [2.0, -1.0]])
    ids, tries = torch.tensor([2, 0]), 3
    q = [math.log(1 - (1 - share(k, 4)) ** tries) for k in range(4)]
    negatives = Negatives(ids, log_expected(ids, 4, tries), tries)
    # The first row predicts word 1 among 2 and 0; the second predicts 0, which was drawn as well.
    first = [2.2 - q[1], 4.3 - q[2], 1.1 - q[0]]
    second = [2.1 - q[0], 5.3 - q[2]]
    losses = [math.log(sum(map(math.exp, row))) - row[0] for row in (first, second)]
    found = sampled_loss(softmax, hidden, torch.tensor([1, 0]), negatives)
    assert math.isclose(found.item(), sum(losses) / 2, rel_tol=1e-6)


def test_a_draw_of_the_target_alone_costs_nothing():
    softmax, hidden = Softmax(6, 3), torch.randn(2, 3, requires_grad=True)
    ids = torch.tensor([4])
    negatives = Negatives(ids, log_expected(ids, 6, 1), 1)
    loss = sampled_loss(softmax, hidden, torch.tensor([4, 4]), negatives)
    loss.backward()
    assert loss.item() == 0
    assert (hidden.grad == 0).all() and (softmax.weight.grad == 0).all()


def test_all_words_drawn_is_nearly_the_full_softmax():
    torch.manual_seed(0)
    softmax, hidden, targets = Softmax(7, 4), torch.randn(5, 4), torch.tensor([0, 6, 2, 2, 5])
    ids = torch.arange(7)
    negatives = Negatives(ids, log_expected(ids, 7, 10_000), 10_000)
    sampled = sampled_loss(softmax, hidden, targets, negatives)
    torch.testing.assert_close(sampled, full_loss(softmax, hidden, targets))


@pytest.mark.parametrize("piece", [1, 11, 23, 35, 1 << 25])
def test_full_loss_is_the_cross_entropy(monkeypatch, piece):
    monkeypatch.setattr(objective, "PIECE", piece)  # of 11 words and 7 rows
    torch.manual_seed(piece)
    softmax, hidden = Softmax(11, 5), torch.randn(7, 5, requires_grad=True)
    torch.nn.init.normal_(softmax.bias)
    targets = torch.randint(11, (7,))
    inputs = [hidden, softmax.weight, softmax.bias]
    losses = full_loss(softmax, hidden, targets), F.cross_entropy(softmax(hidden), targets)
    torch.testing.assert_close(*losses)
    # By a factor, as the training loop takes them.
    found, expected = (torch.autograd.grad(loss * 20, inputs) for loss in losses)
    torch.testing.assert_close(found, expected)


@pytest.mark.skipif(not has_triton(), reason="Triton is not installed")
@pytest.mark.parametrize("words", [11, 8500])  # a row in registers, and one that is too wide
def test_full_loss_by_the_kernels(monkeypatch, words):
    torch.manual_seed(words)
    softmax, hidden = Softmax(words, 5), torch.randn(7, 5, requires_grad=True)
    torch.nn.init.normal_(softmax.bias)
    targets = torch.tensor([0, words - 1, 3, 3, 3, 10, 1])
    inputs = [hidden, softmax.weight, softmax.bias]
    expected = F.cross_entropy(softmax(hidden), targets)
    monkeypatch.setenv("TORCHELMO_BACKEND", "triton")
    found = full_loss(softmax, hidden, targets)
    torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad(loss * 20, inputs) for loss in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


def test_full_loss_without_gradients_and_with_some():
    softmax, hidden, targets = Softmax(6, 3), torch.randn(4, 3), torch.tensor([1, 5, 0, 0])
    expected = F.cross_entropy(softmax(hidden), targets)
    with torch.no_grad():
        torch.testing.assert_close(full_loss(softmax, hidden, targets), expected)
    softmax.weight.requires_grad_(False)
    full_loss(softmax, hidden, targets).backward()
    assert softmax.weight.grad is None
    softmax.bias.grad, found = None, softmax.bias.grad
    F.cross_entropy(softmax(hidden), targets).backward()
    torch.testing.assert_close(found, softmax.bias.grad)


def test_full_loss_agrees_with_numerical_gradients():
    torch.manual_seed(3)
    softmax, hidden = Softmax(5, 3), torch.randn(2, 3)
    targets, step = torch.tensor([4, 1]), 1e-2
    full_loss(softmax, hidden, targets).backward()
    with torch.no_grad():
        for row, column in ((4, 0), (1, 2), (0, 1)):
            around = []
            for sign in (1, -1):
                softmax.weight[row, column] += sign * step
                around.append(full_loss(softmax, hidden, targets).item())
                softmax.weight[row, column] -= sign * step
            slope = (around[0] - around[1]) / (2 * step)
            assert math.isclose(softmax.weight.grad[row, column], slope, abs_tol=1e-3)


def bilm(*, residual=True):
    torch.manual_seed(11)
    config = ElmoConfig(
        characters=CharacterConfig(dim=2, filters=((1, 4),), highways=0, max_characters=6),
        lstm=LstmConfig(cells=6, projection=4, residual=residual),
        token_projection=False,
    )
    return BiLM(config)


def step_of(index, targets, resets=None, negatives=None):
    """A batch of three words, of one or both directions alike."""
    characters = torch.tensor([[259, 98, 260, 261, 261, 261], [259, 99, 100, 260, 261, 261]])
    side = Side(torch.tensor(index), torch.tensor(targets), resets, negatives)
    return Step(characters, np.array([3, 4]), None, {"forward": side, "backward": side})


INDEX, TARGETS = [[0, 1], [1, 1], [0, 0]], [[3, 4], [1, 1], [0, 2]]  # T = 3, B = 2


class Doubled:
    """Stands for dropout: doubles, and keeps what it was given."""

    def __init__(self):
        self.given = []

    def __call__(self, x):
        self.given.append(x)
        return 2 * x


@pytest.mark.parametrize("residual", [True, False])
def test_dropout_is_on_every_input_and_on_the_top(residual):
    network, softmax, drop = bilm(residual=residual), Softmax(5, 4), Doubled()
    model, step = LanguageModel(network, softmax, drop), step_of(INDEX, TARGETS)
    memory = {name: network.zero_memory(2) for name in step.sides}
    losses, _ = model(step, memory)
    assert len(drop.given) == 3  # two layers and the top, both directions together
    x = model.vectors(step)[step.sides["forward"].index.reshape(-1)]
    torch.testing.assert_close(drop.given[0][0], x)
    zero, sizes = network.zero_memory(2), [2, 2, 2]
    first, second = (layer.weights() for layer in network.forward_layers)
    below = lstmp(2 * x, sizes, first, *zero[0])[0]
    torch.testing.assert_close(drop.given[1][0], below)
    top = lstmp(2 * below, sizes, second, *zero[1])[0]
    top = top + 2 * below if residual else top  # the input as it was dropped
    torch.testing.assert_close(drop.given[2][0], top)
    targets = torch.tensor(TARGETS).reshape(-1)
    torch.testing.assert_close(losses["forward"], F.cross_entropy(softmax(2 * top), targets))
    model.eval()
    model(step, memory)
    assert len(drop.given) == 3


def test_losses_by_the_direction_and_by_the_softmax():
    network, softmax = bilm(), Softmax(5, 4)
    ids = torch.tensor([2, 0, 4])
    negatives = Negatives(ids, log_expected(ids, 5, 6), 6)
    model = LanguageModel(network, softmax)
    memory = {"forward": network.zero_memory(2), "backward": network.zero_memory(2)}
    x = model.vectors(step_of(INDEX, TARGETS))[torch.tensor(INDEX).reshape(-1)]
    targets = torch.tensor(TARGETS).reshape(-1)
    for drawn in (None, negatives):
        losses, after = model(step_of(INDEX, TARGETS, negatives=drawn), memory)
        for name, loss in losses.items():
            layers, kept = network.stack(name, x, [2, 2, 2], memory[name])
            expected = (
                full_loss(softmax, layers[-1], targets)
                if drawn is None
                else sampled_loss(softmax, layers[-1], targets, negatives)
            )
            torch.testing.assert_close(loss, expected)
            torch.testing.assert_close(after[name], kept)
            assert not any(tensor.requires_grad for pair in after[name] for tensor in pair)
    assert losses["forward"] != losses["backward"]


def test_reset_rows_start_from_zero():
    network = bilm()
    model = LanguageModel(network, Softmax(5, 4))
    old = {name: [(h + 1, c - 1) for h, c in network.zero_memory(2)] for name in ("forward",)}
    resets = torch.tensor([[True, False], [False, False], [False, True]])

    def run(index, memory, resets=None):
        side = Side(
            torch.tensor(index), torch.zeros(len(index), len(index[0]), dtype=int), resets, None
        )
        step = dataclasses.replace(step_of(INDEX, TARGETS), sides={"forward": side})
        return model(step, {"forward": memory})[1]["forward"]

    found = run(INDEX, old["forward"], resets)
    first = run([[0], [1], [0]], network.zero_memory(1))  # row 0: from zero at once
    second = run([[0]], network.zero_memory(1))  # row 1: from zero at the last step
    for level, (h, c) in enumerate(found):
        torch.testing.assert_close(h, torch.cat([first[level][0], second[level][0]]))
        torch.testing.assert_close(c, torch.cat([first[level][1], second[level][1]]))


def test_dropout_has_a_generator_of_its_own():
    x = torch.ones(200, 50)
    before = torch.get_rng_state()
    masks = [Dropout(0.25, torch.Generator().manual_seed(seed))(x) for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(masks[0], masks[1]) and not torch.equal(masks[0], masks[2])
    assert set(masks[0].unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert 0.23 < (masks[0] == 0).float().mean() < 0.27
    generator = torch.Generator().manual_seed(3)
    drop = Dropout(0.25, generator)
    state = generator.get_state()
    first, second = drop(x), drop(x)
    assert not torch.equal(first, second)
    generator.set_state(state)
    assert torch.equal(drop(x), first)


def test_no_dropout_changes_nothing():
    generator = torch.Generator().manual_seed(3)
    x, state = torch.ones(3), generator.get_state()
    assert Dropout(0.0, generator)(x) is x
    assert torch.equal(generator.get_state(), state)
