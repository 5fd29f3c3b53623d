"""Mixes: values by hand, both layer normalisations, and what may not be asked for."""

import numpy as np
import pytest
import torch

from torchelmo.errors import InputError
from torchelmo.nn.output import Layers
from torchelmo.nn.scalar_mix import ScalarMix


@pytest.fixture
def layers():
    flat = torch.randn(3, 9, 4, generator=torch.Generator().manual_seed(1))
    return Layers(flat, (5, 4), boundaries=True)


def test_weights_gamma_and_penalty(layers):
    mix = ScalarMix(3, weights=[0.1, 0.3, 0.5], gamma=1.1)
    share = np.exp([0.1, 0.3, 0.5]) / np.exp([0.1, 0.3, 0.5]).sum()
    expected = 1.1 * np.tensordot(share, layers.flat.numpy(), axes=1)
    np.testing.assert_allclose(mix(layers).detach().numpy(), expected, atol=1e-6)
    assert mix.penalty().item() == pytest.approx(0.01 + 0.09 + 0.25)


def test_a_new_mix_is_the_average(layers):
    for mix in (ScalarMix(3), ScalarMix(3, kind="average")):
        torch.testing.assert_close(mix(layers), layers.flat.mean(dim=0))


def test_top_and_single_layers(layers):
    for kind, layer in (("top", 2), (0, 0), (1, 1), (-1, 2)):
        mix = ScalarMix(3, kind=kind, gamma=2.0)
        torch.testing.assert_close(mix(layers), 2.0 * layers.flat[layer])
        assert mix.penalty().item() == 0.0
        assert [p.requires_grad for p in mix.parameters()] == [True]  # gamma alone


@pytest.mark.parametrize(("kind", "kept"), [("tf", [1, 2, 3, 6, 7]), ("allennlp", range(9))])
def test_layer_norm_takes_its_statistics_over_the_batch(layers, kind, kept):
    mix = ScalarMix(3, layer_norm=kind)
    expected = []
    for layer in layers.flat.numpy().astype(np.float64):
        seen = layer[list(kept)]
        expected.append((layer - seen.mean()) / np.sqrt(seen.var() + 1e-12))
    np.testing.assert_allclose(mix(layers).detach().numpy(), np.mean(expected, axis=0), atol=1e-6)


def test_fixed_weights_do_not_learn(layers):
    mix = ScalarMix(3, weights=[1.0, 2.0, 3.0], trainable=False)
    assert not any(p.requires_grad for p in mix.parameters())
    assert mix.shares().sum().item() == pytest.approx(1.0)


def test_dropout_only_while_training(layers):
    mix = ScalarMix(3, dropout=0.5)
    torch.manual_seed(0)
    assert (mix(layers) == 0).any()
    torch.testing.assert_close(mix.mix(layers), layers.flat.mean(dim=0))
    torch.testing.assert_close(mix.eval()(layers), layers.flat.mean(dim=0))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"weights": [1.0]}, "1 mix weights were given for 3 layers"),
        ({"kind": 3}, "layer 3 of a model with layers 0 to 2"),
        ({"kind": "best"}, "not 'best'"),
        ({"kind": "top", "weights": [1.0, 2.0, 3.0]}, "together with kind='top'"),
        ({"layer_norm": "batch"}, "not 'batch'"),
    ],
)
def test_wrong_arguments_get_one_sentence(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        ScalarMix(3, **arguments)


def test_a_wrong_number_of_layers_is_refused():
    with pytest.raises(InputError, match="for 3 layers, 2 were given"):
        ScalarMix(3)(Layers(torch.zeros(2, 1, 4), (1,)))
