import dataclasses

import numpy as np
import pytest
import torch

from bulk.tiny import LINES, tiny_model
from torchelmo.bulk import embed_batch
from torchelmo.bulk.vectors import Carry, model_hash
from torchelmo.elmo import Elmo
from torchelmo.encoder import out_of_memory
from torchelmo.errors import InputError
from torchelmo.nn.lstm import State

SENTENCES = [line.split() for line in LINES]


def pick(layers, which):
    if which == "average":
        return layers.mean(axis=0)
    return layers if which == "all" else layers[-1 if which == "top" else which]


@pytest.mark.parametrize("which", ["all", "top", "average", 0, 1, 2])
def test_layers(elmo, which):
    found = embed_batch(elmo, SENTENCES, which)
    for piece, layers in zip(found, elmo.layers(SENTENCES), strict=True):
        assert piece.dtype == np.float32
        np.testing.assert_allclose(piece, pick(layers, which), atol=1e-6)
    shape = (3, 0, 12) if which == "all" else (0, 12)
    assert found[2].shape == shape


def test_float16(elmo):
    for half, full in zip(
        embed_batch(elmo, SENTENCES, "top", "float16"),
        embed_batch(elmo, SENTENCES, "top"),
        strict=True,
    ):
        assert half.dtype == np.float16
        np.testing.assert_array_equal(half, full.astype(np.float16))


def test_no_sentences(elmo):
    assert embed_batch(elmo, []) == []


def test_an_array_does_not_keep_its_batch(elmo):
    assert all(piece.base is None for piece in embed_batch(elmo, SENTENCES))


@pytest.mark.parametrize("which", [3, -1, "middle"])
def test_unknown_layers(elmo, which):
    with pytest.raises(InputError, match="layer"):
        embed_batch(elmo, SENTENCES, which)


def test_carry_is_one_state_row_after_another(elmo):
    for rows in (1, 3):
        state, expected = State(), []
        for first in range(0, len(SENTENCES), rows):
            expected += elmo.layers(SENTENCES[first : first + rows], state=state)
        carry = Carry(rows)
        found = dict(carry.embed(elmo.encoder, SENTENCES, "all", "float32"))
        assert list(found) == list(range(len(SENTENCES)))
        for number, layers in enumerate(expected):
            np.testing.assert_allclose(found[number], layers, atol=1e-6)
        assert carry.state.rows == rows
        for name, tensor in state.tensors().items():
            torch.testing.assert_close(carry.state.tensors()[name], tensor, atol=1e-6, rtol=0)


def test_carry_goes_on_in_another_call(elmo):
    whole = dict(Carry(2).embed(elmo.encoder, SENTENCES, "top", "float32"))
    carry = Carry(2)
    first = dict(carry.embed(elmo.encoder, SENTENCES[:4], "top", "float32"))
    saved = State.from_tensors({k: v.clone() for k, v in carry.state.tensors().items()})
    second = dict(Carry(2, saved).embed(elmo.encoder, SENTENCES[4:], "top", "float32"))
    for number, vectors in whole.items():
        part = first[number] if number < 4 else second[number - 4]
        np.testing.assert_allclose(part, vectors, atol=1e-6)


@pytest.fixture
def small_memory(elmo, monkeypatch):
    """A network that runs out of memory above two sentences a batch, after half of its work."""
    run, sizes = elmo.bilm.quick, []

    def quick(vectors, words, lengths, *more):
        sizes.append(len(lengths))
        layers = run(vectors, words, lengths, *more)
        if len(lengths) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
        return layers

    monkeypatch.setattr(elmo.bilm, "quick", quick)
    return sizes


def test_a_batch_that_does_not_fit_is_split(elmo, small_memory, request):
    found = embed_batch(elmo, SENTENCES)
    assert max(small_memory) == len(SENTENCES)
    request.getfixturevalue("monkeypatch").undo()
    for piece, layers in zip(found, elmo.layers(SENTENCES), strict=True):
        np.testing.assert_allclose(piece, layers, atol=1e-6)


def test_a_carried_batch_that_does_not_fit_is_split(elmo, small_memory, request):
    carry = Carry(5)
    found = dict(carry.embed(elmo.encoder, SENTENCES, "all", "float32"))
    assert max(small_memory) == 5
    request.getfixturevalue("monkeypatch").undo()
    expected = Carry(5)
    for number, layers in expected.embed(elmo.encoder, SENTENCES, "all", "float32"):
        np.testing.assert_allclose(found[number], layers, atol=1e-6)
    for name, tensor in expected.state.tensors().items():
        torch.testing.assert_close(carry.state.tensors()[name], tensor, atol=1e-6, rtol=0)


def test_one_sentence_that_does_not_fit_is_an_error(elmo, monkeypatch):
    def quick(*_, **__):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(elmo.bilm, "quick", quick)
    with pytest.raises(RuntimeError, match="allocate"):
        embed_batch(elmo, [["one"]])
    with pytest.raises(RuntimeError, match="allocate"):
        list(Carry().embed(elmo.encoder, [["one"]], "all", "float32"))


def test_what_is_no_lack_of_memory():
    assert out_of_memory(MemoryError())
    assert not out_of_memory(RuntimeError("an illegal memory access was encountered"))


def test_model_hash_sees_what_changes_vectors():
    model = tiny_model()
    base = model_hash(Elmo(model))
    assert base == model_hash(Elmo(tiny_model()))
    assert base == model_hash(Elmo(model, mixes=3, kind="top"))
    assert base != model_hash(Elmo(tiny_model(seed=1)))
    assert base != model_hash(Elmo(model, escape_boundaries=True))
    lstm = dataclasses.replace(model.config.lstm, cell_clip=1.0)
    clipped = dataclasses.replace(model.config, lstm=lstm)
    assert base != model_hash(Elmo(dataclasses.replace(model, config=clipped)))
    tensors = {name: tensor.clone() for name, tensor in model.tensors.items()}
    tensors["backward_layers.1.bias"][-1] += 1e-7
    assert base != model_hash(Elmo(dataclasses.replace(model, tensors=tensors)))
    named = dataclasses.replace(model.config, training={"steps": 3})
    assert base == model_hash(Elmo(dataclasses.replace(model, config=named)))


def test_numbers_that_are_not_finite_are_refused():
    model = tiny_model()
    model.tensors["token.projection.bias"][0] = 1e6
    elmo = Elmo(model)
    with pytest.raises(InputError, match="beyond float16"):
        embed_batch(elmo, [["a"]], 0, "float16")
    assert embed_batch(elmo, [["a"]], 0)[0].max() > 1e5
    model.tensors["token.projection.bias"][0] = float("nan")
    with pytest.raises(InputError, match="weights are damaged"):
        embed_batch(Elmo(model), [["a"]], 0)
