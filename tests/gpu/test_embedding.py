"""Embedding on a GPU against the reference on the processor; needs a GPU."""

import numpy as np
import pytest
import torch

from torchelmo import encoder
from torchelmo.apps.bench.embedding import random_model
from torchelmo.apps.bench.text import Text
from torchelmo.elmo import Elmo
from torchelmo.nn import host
from torchelmo.nn.lstm import State

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

NEAR = {"atol": 2e-5, "rtol": 1e-5}


@pytest.fixture(scope="module")
def text():
    return [*Text(3).sentences(6000), [], ["word"] * 300]


@pytest.fixture(scope="module")
def models():
    model = random_model("small")
    return Elmo(model), Elmo(model).to("cuda")


@pytest.fixture(scope="module")
def expected(models, text):
    return models[0].layers(text)


@pytest.mark.parametrize("batch_tokens", [None, 700, 5000])
@pytest.mark.parametrize("ahead", [encoder.AHEAD_TOKENS, 1000])
def test_layers(models, text, expected, monkeypatch, batch_tokens, ahead):
    monkeypatch.setattr(encoder, "AHEAD_TOKENS", ahead)
    for _ in range(3):  # as it is, recording it, recorded
        found = models[1].layers(text, batch_tokens=batch_tokens)
        for own, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(own, wanted, **NEAR)


def test_pieces_and_copies_by_threads(models, text, expected, monkeypatch):
    monkeypatch.setattr(host, "HOST_PIECE", 1 << 18)
    monkeypatch.setattr(host, "HOST_BYTES", 1 << 20)
    monkeypatch.setattr(host, "OWN_PIECE", 1 << 18)
    monkeypatch.setattr(host, "OWN_PIECES", 3)
    for own, wanted in zip(models[1].layers(text), expected, strict=True):
        np.testing.assert_allclose(own, wanted, **NEAR)
        assert own.base is None


def test_a_small_cache(models, text, expected):
    elmo = models[1]
    kept, elmo.encoder.cache_bytes = elmo.encoder.cache_bytes, 40 * 128 * 4
    elmo.encoder.forget()
    for own, wanted in zip(elmo.layers(text[:60]), expected, strict=False):
        np.testing.assert_allclose(own, wanted, **NEAR)
    elmo.encoder.cache_bytes = kept
    elmo.encoder.forget()


def test_tensors_mixes_and_states(models, text):
    cpu, gpu = models
    few = text[:40]
    for own, wanted in zip(gpu.embed(few, as_tensors=True), cpu.embed(few), strict=True):
        assert own.is_cuda
        np.testing.assert_allclose(own.cpu().numpy(), wanted, **NEAR)
    states = State(), State()
    for _ in range(2):
        found = [e.layers(few, state=s) for e, s in zip(models, states, strict=True)]
        for wanted, own in zip(*found, strict=True):
            np.testing.assert_allclose(own, wanted, **NEAR)


def test_two_runs_are_identical_and_another_stream_waits(models, text):
    elmo = models[1]
    first = elmo.layers(text)
    with torch.cuda.stream(torch.cuda.Stream()):
        second = elmo.layers(text)
    third = elmo.layers(text)
    for one, two, three in zip(first, second, third, strict=True):
        assert np.array_equal(one, two) and np.array_equal(one, three)


def test_half_precision_is_near(models, text, expected):
    elmo = Elmo(random_model("small"), precision="bf16").to("cuda")
    for own, wanted in zip(elmo.layers(text), expected, strict=True):
        if len(wanted[0]):
            near = (own * wanted).sum(-1)
            near /= np.linalg.norm(own, axis=-1) * np.linalg.norm(wanted, axis=-1)
            assert near.min() > 0.999
