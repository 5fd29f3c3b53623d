"""The GPU's way through a batch; recordings are tested where there is a GPU."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchelmo.config import CharacterConfig, ElmoConfig, LstmConfig
from torchelmo.nn import gpu
from torchelmo.nn.bilm import BiLM
from torchelmo.nn.lstm import State
from torchelmo.nn.packing import with_boundaries

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LENGTHS = [5, 1, 0, 12, 7]


@pytest.fixture(scope="module")
def bilm():
    torch.manual_seed(3)
    config = ElmoConfig(
        characters=CharacterConfig(dim=4, filters=((1, 4), (2, 6)), highways=1, max_characters=12),
        lstm=LstmConfig(cells=64, projection=64, cell_clip=0.5, projection_clip=0.4),
    )
    return BiLM(config).requires_grad_(False).to(DEVICE)


@pytest.fixture
def vectors():
    return torch.randn(30, 64, generator=torch.Generator().manual_seed(5)).to(DEVICE)


def sentences(seed=0, lengths=LENGTHS):
    """Words one after another for `Stacks`, and padded with their boundaries for `BiLM`."""
    words = np.random.default_rng(seed).integers(0, 28, sum(lengths))
    index = np.zeros((len(lengths), max(lengths) + 2), dtype=np.int64)
    for row, n, end in zip(index, lengths, np.cumsum(lengths), strict=True):
        row[1 : n + 2] = [*words[end - n : end] + 2, 1]
    return with_boundaries(words, lengths), torch.from_numpy(index).to(DEVICE)


def made(bilm, dtype=torch.float32):
    return gpu.Stacks([list(bilm.forward_layers), list(bilm.backward_layers)], dtype)


@pytest.mark.parametrize("boundaries", [False, True])
@pytest.mark.parametrize("lengths", [LENGTHS, [0, 0], [1], [70, *[3] * 20, 11]])
def test_layers_are_the_references(bilm, vectors, monkeypatch, boundaries, lengths):
    words, index = sentences(lengths=lengths)
    with monkeypatch.context() as patch:
        patch.setenv("TORCHELMO_BACKEND", "reference")
        wanted = bilm(vectors, index, lengths, boundaries=boundaries)
    stacks = made(bilm)
    for _ in range(3 if DEVICE.type == "cuda" else 1):  # as it is, recording it, recorded
        found = stacks(vectors, words, lengths, None, 0, boundaries)
        torch.testing.assert_close(found.flat, wanted.flat, atol=2e-6, rtol=1e-5)
        assert found.lengths == wanted.lengths and found.boundaries == boundaries


def test_more_sentences_than_rows(bilm, vectors, monkeypatch):
    monkeypatch.setattr(gpu, "ROWS", (1, 2, 4))
    monkeypatch.setattr(gpu, "SLACK", 0)
    lengths = [9, 2, 30, 1, 17, 4, 0, 2, 12]
    words, index = sentences(lengths=lengths)
    with monkeypatch.context() as patch:
        patch.setenv("TORCHELMO_BACKEND", "reference")
        wanted = bilm(vectors, index, lengths)
    found = made(bilm)(vectors, words, lengths, None, 0, False)
    torch.testing.assert_close(found.flat, wanted.flat, atol=2e-6, rtol=1e-5)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=200))
@settings(max_examples=50, deadline=None)
def test_segments_cover_every_step_once(steps):
    steps = np.array(sorted(steps, reverse=True))
    parts = gpu.segments(steps, first=7)
    begin = 0
    for part in parts:
        assert part.begin == begin and part.first == 7
        assert part.sentences == (steps > begin).sum() <= part.rows
        assert part.steps in gpu.STEPS and part.rows in gpu.ROWS
        assert part.steps * part.rows <= gpu.LARGEST
        begin += part.steps
    assert steps[0] <= begin < steps[0] + gpu.WIDE_STEPS[-1]
    work = steps.sum()
    assert sum(p.steps * p.rows for p in parts) <= 4 * work + gpu.SLACK * len(parts)


def test_state_is_carried(bilm, vectors, monkeypatch):
    states = State(), State()
    stacks = made(bilm)
    for seed in (1, 2):
        words, index = sentences(seed)
        with monkeypatch.context() as patch:
            patch.setenv("TORCHELMO_BACKEND", "reference")
            wanted = bilm(vectors, index, LENGTHS, state=states[0])
        found = stacks(vectors, words, LENGTHS, states[1], 0, False)
        torch.testing.assert_close(found.flat, wanted.flat, atol=2e-6, rtol=1e-5)
    for name, tensor in states[0].tensors().items():
        torch.testing.assert_close(states[1].tensors()[name], tensor, atol=2e-6, rtol=1e-5)


def test_sixteen_bits(bilm, vectors):
    words, _ = sentences()
    wanted = made(bilm)(vectors, words, LENGTHS, None, 0, False).flat
    found = made(bilm, torch.bfloat16)(vectors, words, LENGTHS, None, 0, False).flat
    assert 1e-4 < (found - wanted).norm() / wanted.norm() < 1e-2


def test_prepared_anew_when_a_weight_has_changed(bilm):
    parts = [list(bilm.forward_layers), list(bilm.backward_layers)]
    first = gpu.stacks(bilm, parts, torch.float32)
    assert gpu.stacks(bilm, parts, torch.float32) is first
    bilm.forward_layers[0].bias.add_(0)
    assert gpu.stacks(bilm, parts, torch.float32) is not first


def test_shapes_recorded_are_few(bilm, vectors, monkeypatch):
    monkeypatch.setattr(gpu, "SHAPES", 2)
    stacks = made(bilm)
    for longest in (3, 11, 19, 27, 3, 3):
        words, _ = sentences(lengths=[longest, longest])
        stacks(vectors, words, [longest, longest], None, 0, False)
    assert list(stacks._home._graphs) == [(28, 2, True), (4, 2, True)]
