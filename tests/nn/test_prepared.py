"""A biLM with prepared weights is the biLM: values, changes of weights, copies, precision."""

import copy
import json

import numpy as np
import pytest
import torch

from torchelmo.elmo import Elmo
from torchelmo.nn import prepared
from torchelmo.nn.lstm import State
from torchelmo.ops import packed

MODELS = (
    "plain noskip_tanh one_layer no_projection no_highway three_layers same_width words"
    " many_langs many_langs_chars"
).split()

# In these the float32 reference is itself about 1e-5 from float64.
ATOL = {"plain": 1e-5, "one_layer": 1e-5}


@pytest.fixture(scope="module")
def sentences(fixtures):
    found = json.loads((fixtures / "sentences.json").read_text(encoding="utf-8"))
    return [*found, [], ["x" * 80, "a"], ["gift"] * 40]


@pytest.fixture
def plain(fixtures):
    return Elmo.from_pretrained(fixtures / "plain", device="cpu")


def of_reference(monkeypatch, run):
    with monkeypatch.context() as patch:
        patch.setenv("TORCHELMO_BACKEND", "reference")
        assert not prepared.applies(torch.device("cpu"), torch.float32)
        return run()


def error(found, exact):
    """How far from float64, by norm."""
    return (found.double() - exact).norm() / exact.norm().clamp(min=1e-30)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("threads", [1, 2])
def test_every_kind_of_model(fixtures, sentences, monkeypatch, name, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        elmo = Elmo.from_pretrained(fixtures / name, device="cpu")
        exact = Elmo.from_pretrained(fixtures / name, device="cpu").to(torch.float64)
        for boundaries in (False, True):

            def run(state, elmo=elmo, boundaries=boundaries):
                encoder = copy.deepcopy(elmo.encoder)  # knows no words
                out = {}
                for numbers, layers in encoder.run(
                    sentences, state=state, batch_tokens=50, boundaries=boundaries
                ):
                    out.update(zip(numbers, layers.split(), strict=True))
                return [out[n] for n in range(len(sentences))], state

            for first, second in ((None, None), (State(), State())):
                state = None if first is None else State()
                expected, old = of_reference(monkeypatch, lambda first=first: run(first))
                true, last = of_reference(monkeypatch, lambda state=state: run(state, exact))
                found, new = run(second)
                for a, b, c in zip(found, expected, true, strict=True):
                    torch.testing.assert_close(a, b, atol=ATOL.get(name, 2e-6), rtol=1e-5)
                    assert error(a, c) < 5e-6
                if new is not None:
                    for key, tensor in new.tensors().items():
                        wanted = old.tensors()[key]
                        torch.testing.assert_close(
                            tensor, wanted, atol=ATOL.get(name, 2e-6), rtol=1e-5
                        )
                        assert error(tensor, last.tensors()[key]) < 1e-5
    finally:
        torch.set_num_threads(before)


def test_where_it_applies(plain):
    cpu, single = torch.device("cpu"), torch.float32
    assert not prepared.applies(cpu, single)  # gradients are wanted
    with torch.no_grad():
        assert prepared.applies(cpu, single)
        assert not prepared.applies(cpu, torch.float64)
        with torch.autocast("cpu", torch.bfloat16):
            assert not prepared.applies(cpu, single)
    assert plain.double().layers([["a", "gift"]], as_tensors=True)[0].dtype == torch.float64


def test_changed_weights_are_noticed(plain, monkeypatch):
    sentences = [["a", "gift"], ["music"]]
    plain.layers(sentences)
    with torch.no_grad():
        plain.bilm.backward_layers[1].recurrent_weight.add_(0.5)
        plain.bilm.token.characters.highways[0].gate.weight.mul_(-2)
    for a, b in zip(
        plain.layers(sentences),
        of_reference(monkeypatch, lambda: plain.layers(sentences)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, atol=2e-6)


def test_copies_have_their_own(plain):
    before = plain.layers([["a", "gift"]])[0]
    twin = copy.deepcopy(plain)
    with torch.no_grad():
        twin.bilm.forward_layers[0].bias.add_(1.0)
    assert np.abs(twin.layers([["a", "gift"]])[0] - before).max() > 0.01
    np.testing.assert_array_equal(plain.layers([["a", "gift"]])[0], before)


def test_what_is_prepared_goes_with_the_network(plain):
    plain.layers([["a"]])
    key = plain.bilm
    assert key in prepared._STACKS and key.token in prepared._WORDS
    count = len(prepared._STACKS)
    del plain.bilm, plain.encoder, key
    assert len(prepared._STACKS) < count


@pytest.mark.parametrize("precision", ["bf16", "int8"])
@pytest.mark.parametrize("name", MODELS)
def test_lower_precision(fixtures, sentences, name, precision):
    if not getattr(packed, f"has_{precision}")():
        pytest.skip(f"this processor has no {precision}")
    elmo = Elmo.from_pretrained(fixtures / name, device="cpu")
    expected = elmo.layers(sentences)
    elmo.bilm.precision = precision
    found = elmo.layers(sentences)
    for a, b in zip(found, expected, strict=True):
        if a.size:
            dots = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
            # Of six numbers each, with large weights: a wide model is near everywhere.
            assert np.median(dots) > 0.999 and not np.array_equal(a, b)
    elmo.bilm.precision = "float32"
    for a, b in zip(elmo.layers(sentences), expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)
