"""The LSTM with a backward pass by hand, in torch and in Triton, against autograd in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchelmo.errors import InputError
from torchelmo.ops.backend import choose, has_triton
from torchelmo.ops.lstm import lstmp
from torchelmo.ops.reference import LstmWeights

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_triton = pytest.mark.skipif(not has_triton(), reason="Triton is not installed")
BACKENDS = ["torch", pytest.param("triton", marks=needs_triton)]


def case(
    sizes, *, width=5, cells=7, project=True, directions=2, resets=0.0, seed=0, scale=1.0, idle=0
):
    """Draw float64 inputs, weights, states, resets, and a gradient for each result."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)

    count, batch = sum(sizes), sizes[0] + idle
    out = width if project else cells
    weights = [
        LstmWeights(
            draw(4 * cells, width),
            draw(4 * cells, out) / math.sqrt(out),
            draw(4 * cells),
            draw(out, cells) if project else None,
        )
        for _ in range(directions)
    ]
    x, h, c = draw(directions, count, width), draw(directions, batch, out), draw(2, batch, cells)
    marks = torch.rand(directions, count, generator=generator) < resets if resets else None
    upstream = draw(directions, count, out), draw(directions, batch, out), draw(2, batch, cells)
    return x, weights, h, c[:directions], marks, (*upstream[:2], upstream[2][:directions])


def run(backend, sizes, made, clips, dtype=torch.float64, *, last=True, autocast=None):
    """Return results and gradients, as float64 on the CPU."""
    x, weights, h, c, marks, upstream = made

    def leaf(tensor):
        return None if tensor is None else tensor.to(DEVICE, dtype).requires_grad_()

    x, h, c = leaf(x), leaf(h), leaf(c)
    weights = [LstmWeights(*map(leaf, one)) for one in weights]
    marks = None if marks is None else marks.to(DEVICE)
    with torch.autocast(DEVICE.type, dtype=autocast, enabled=autocast is not None):
        results = lstmp(x, sizes, weights, h, c, *clips, marks, backend=backend)
    wanted = zip(results, upstream, strict=True)
    total = sum((r.double() * u.to(DEVICE)).sum() for r, u in (wanted if last else [*wanted][:1]))
    leaves = [x, h, c, *(w for one in weights for w in one if w is not None)]
    grads = torch.autograd.grad(total, leaves)
    return [t.detach().double().cpu() for t in (*results, *grads)]


def error(found, wanted):
    """The largest relative distance of any tensor."""
    return max(
        ((a - b).norm() / max(b.norm().item(), 1e-9)).item()
        for a, b in zip(found, wanted, strict=True)
    )


SHAPES = {
    "one step": [4],
    "one row": [1, 1, 1],
    "full": [3, 3, 3, 3],
    "ragged": [5, 4, 4, 1],
    "more than a block": [19, 17, 2],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("project", [True, False], ids=["projected", "plain"])
@pytest.mark.parametrize("sizes", SHAPES.values(), ids=SHAPES)
def test_values_and_gradients_are_the_references(sizes, project, backend):
    made = case(sizes, project=project, resets=0.4)
    clips = (0.9, 1.1)  # both act
    dtype = torch.float64 if backend == "torch" else torch.float32
    wanted = run("reference", sizes, made, clips)
    assert (wanted[0].abs() == 1.1).any() == project
    found = run(backend, sizes, made, clips, dtype)
    assert error(found, wanted) < (1e-12 if backend == "torch" else 1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "options",
    [
        {"resets": 0.0},
        {"directions": 1},
        {"cells": 130, "width": 3},
        {"cells": 64, "width": 16, "resets": 0.9},
        {"scale": 4.0, "resets": 0.2},
        {"idle": 2},
    ],
    ids=["no resets", "one direction", "odd width", "even", "large", "rows without a step"],
)
@pytest.mark.parametrize("clips", [(None, None), (3.0, 3.0), (0.3, None)], ids=str)
@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # of Triton's interpreter
def test_options_that_change_the_kernels(options, clips, backend):
    sizes = [4, 4, 3]
    made = case(sizes, **options)
    dtype = torch.float64 if backend == "torch" else torch.float32
    wanted = run("reference", sizes, made, clips)
    assert error(run(backend, sizes, made, clips, dtype), wanted) < (
        1e-12 if backend == "torch" else 1e-5
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_sixteen_bits_under_autocast(backend):
    sizes = [16] * 5
    made = case(sizes, cells=48, width=16, resets=0.1, scale=0.3)
    wanted = run("reference", sizes, made, (3.0, 3.0))
    found = run(backend, sizes, made, (3.0, 3.0), torch.float32, autocast=torch.bfloat16)
    assert 1e-4 < error(found, wanted) < 1e-2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sizes", [[5, 5, 2, 1], [40, 33, 2]], ids=["few rows", "more"])
def test_without_gradients_the_results_are_the_same(backend, sizes):
    x, weights, h, c, marks, _ = case(sizes, resets=0.5)
    dtype = torch.float64 if backend == "torch" else torch.float32
    inputs = [t.to(DEVICE, dtype) for t in (x, h, c)]
    weights = [LstmWeights(*(w.to(DEVICE, dtype) for w in one)) for one in weights]
    marks = marks.to(DEVICE)
    x, h, c = inputs
    with torch.no_grad():
        plain = lstmp(x, sizes, weights, h, c, 0.8, 0.9, marks, backend=backend)
    saved = lstmp(
        x.clone().requires_grad_(), sizes, weights, h, c, 0.8, 0.9, marks, backend=backend
    )
    for a, b in zip(plain, saved, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)


@needs_triton
@pytest.mark.parametrize(
    ("sizes", "cells"),
    [([5, 5, 3], 256), ([40, 36], 128), ([130, 129], 128)],
    ids=["few rows", "less than a block", "more than a block"],
)
@pytest.mark.parametrize("clips", [(0.6, 0.5), (None, None)], ids=str)
def test_products_and_cells_in_one_kernel(sizes, cells, clips):
    """Shapes that the blocks divide, in 16 bits, no gradients."""
    from torchelmo.ops import triton_lstm  # needs Triton

    made = case(sizes, cells=cells, width=64, resets=0.3, scale=0.3)
    x, weights, h, c, marks, _ = made
    wanted = run("reference", sizes, made, clips)

    def narrow(tensor):
        return tensor.to(DEVICE, torch.float32)

    # The interpreter cannot multiply matrices in bf16.
    low = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16
    own = [LstmWeights(*map(narrow, one)) for one in weights]
    with torch.no_grad(), torch.autocast(DEVICE.type, low):
        found = lstmp(
            narrow(x), sizes, own, narrow(h), narrow(c), *clips, marks.to(DEVICE), backend="triton"
        )
    assert triton_lstm.fits(cells, 64, 64, low, saving=False)
    assert 1e-5 < error([t.double().cpu() for t in found], wanted[:3]) < 1e-2


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_last_states_may_be_without_a_gradient(backend):
    sizes = [3, 3, 2]
    made = case(sizes)
    dtype = torch.float64 if backend == "torch" else torch.float32
    wanted = run("reference", sizes, made, (0.9, 1.1), last=False)
    assert error(run(backend, sizes, made, (0.9, 1.1), dtype, last=False), wanted) < 1e-5


@settings(max_examples=20)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(1, 2),
    st.sampled_from([0.0, 0.5]),
    st.integers(0, 99),
)
def test_random_shapes(sizes, width, cells, directions, resets, seed):
    sizes = sorted(sizes, reverse=True)
    made = case(
        sizes, width=width, cells=cells, directions=directions, resets=resets, seed=seed, scale=0.7
    )
    wanted = run("reference", sizes, made, (0.5, 0.6))
    assert error(run("torch", sizes, made, (0.5, 0.6)), wanted) < 1e-10


def test_two_runs_are_identical():
    sizes = [33] * 3
    made = case(sizes, cells=20, width=9)
    backend = "triton" if has_triton() else "torch"
    first, second = (run(backend, sizes, made, (3, 3), torch.float32) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_backend_is_chosen_by_name_and_by_the_environment(monkeypatch):
    cpu = torch.device("cpu")
    monkeypatch.delenv("TORCHELMO_BACKEND", raising=False)
    assert choose(cpu) == "torch"
    assert choose(cpu, "reference") == "reference"
    monkeypatch.setenv("TORCHELMO_BACKEND", "reference")
    assert choose(cpu) == "reference"
    assert choose(cpu, "torch") == "torch"
    with pytest.raises(InputError, match="no backend 'cuda': expected reference, torch, triton"):
        choose(cpu, "cuda")
    if has_triton():
        monkeypatch.delenv("TRITON_INTERPRET", raising=False)
        with pytest.raises(InputError, match="runs on CUDA, the tensors are on cpu"):
            choose(cpu, "triton")
