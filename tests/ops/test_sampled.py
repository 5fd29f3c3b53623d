"""The sampled softmax, in torch and in Triton, against the readable one in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchelmo.ops import reference, sampled, torch_sampled
from torchelmo.ops.backend import has_triton
from torchelmo.ops.sampled import sampled_softmax

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_triton = pytest.mark.skipif(not has_triton(), reason="Triton is not installed")
BACKENDS = ["torch", pytest.param("triton", marks=needs_triton)]


def case(n, width, vocabulary, drawn, *, seed=0, targets=None):
    """Draw hidden, targets, weight, bias, ids and both expected counts, in float64."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    ids = torch.randperm(vocabulary, generator=generator)[:drawn]
    if targets is None:
        targets = torch.randint(vocabulary, (n,), generator=generator)
    hidden, weight = draw(n, width), draw(vocabulary, width) / math.sqrt(width)
    return [hidden, targets, weight, draw(vocabulary), ids, draw(drawn) - 2, draw(n) - 2]


def run(made, backend, dtype=torch.float64, *, autocast=False, factor=20.0):
    """Return the loss and the gradients of hidden, weight and bias times a factor, in float64."""
    given = [t.to(DEVICE, dtype if t.is_floating_point() else t.dtype) for t in made]
    leaves = [given[i].requires_grad_() for i in (0, 2, 3)]
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=autocast):
        loss = sampled_softmax(*given, backend=backend)
    assert loss.shape == () and loss.dtype == torch.promote_types(dtype, torch.float32)
    gradients = torch.autograd.grad(loss * factor, leaves)
    for leaf, gradient in zip(leaves, gradients, strict=True):
        assert gradient.dtype == leaf.dtype and gradient.shape == leaf.shape
    return [t.detach().double().cpu() for t in (loss, *gradients)]


def compare(made, backend, dtype=torch.float32):
    # What does not depend on the dtype is rounded before the reference reads it.
    rounded = [t.to(dtype).double() if t.is_floating_point() else t for t in made]
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {}
    for found, expected in zip(run(made, backend, dtype), run(rounded, "reference"), strict=True):
        torch.testing.assert_close(found, expected, **close)


@given(
    n=st.integers(1, 40),
    width=st.integers(1, 20),
    vocabulary=st.integers(1, 30),
    share=st.floats(0, 1),
    seed=st.integers(0, 99),
)
@settings(max_examples=30)
def test_exact_in_float64(n, width, vocabulary, share, seed):
    drawn = max(1, round(share * vocabulary))
    compare(case(n, width, vocabulary, drawn, seed=seed), "torch", torch.float64)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("n", "width", "vocabulary", "drawn"),
    [(1, 1, 1, 1), (1, 3, 7, 5), (37, 20, 50, 13), (33, 8, 40, 32), (4, 700, 9, 6), (20, 64, 9, 9)],
)
def test_odd_shapes(n, width, vocabulary, drawn, backend):
    compare(case(n, width, vocabulary, drawn, seed=n + drawn), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("word", ["drawn", "not drawn"])
def test_a_word_that_fills_the_batch(word, backend):
    # 290 rows of one target, ends of its run inside and on the border of what is summed at once.
    made = case(300, 5, 12, 4)
    ids, n = made[4].tolist(), 290
    usual = ids[0] if word == "drawn" else next(k for k in range(12) if k not in ids)
    made[1][:n] = usual
    made[1] = made[1][torch.randperm(300, generator=torch.Generator().manual_seed(1))]
    compare(made, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_target_is_not_its_own_rival(backend):
    # The only drawn word is the target of the first row, and the rival of the second.
    made = case(2, 3, 6, 1, targets=torch.tensor([4, 2]))
    made[4] = torch.tensor([4])
    compare(made, backend)
    alone = [t[:1] if i in (0, 1, 6) else t for i, t in enumerate(made)]
    loss, *gradients = run(alone, backend, torch.float32)
    assert loss == 0 and not any(g.any() for g in gradients)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("most", [1, 64, 100, 128])
def test_pieces_of_rows(monkeypatch, most, backend):
    made = case(200, 6, 30, 11)
    monkeypatch.setattr(sampled, "PIECE", dict.fromkeys(("cpu", "cuda"), most * 11 * 4))
    size = sampled.piece(200, 11, torch.empty(0))
    assert size == {1: 64, 64: 64, 100: 128, 128: 128}[most]
    compare(made, backend)


@needs_triton
def test_more_words_than_a_program_holds(monkeypatch):
    from torchelmo.ops import triton_sampled

    monkeypatch.setattr(triton_sampled, "WIDEST", 8)
    monkeypatch.setattr(triton_sampled, "TILE", 16)
    compare(case(5, 4, 60, 50), "triton")


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
def test_large_logits_stay_finite(backend):
    made = case(6, 3, 20, 7)
    made[2] *= 300
    compare(made, backend)
    made[5] += 1e4  # no rival has a chance
    loss, *gradients = run(made, backend, torch.float32)
    assert loss == 0 and not any(g.any() for g in gradients)


def test_bfloat16_is_near():
    made = case(64, 32, 100, 40)
    exact = run(made, "reference")
    for found in (
        run(made, "torch", torch.float32, autocast=True),
        run([made[0].bfloat16(), *made[1:]], "torch", torch.bfloat16),
    ):
        for one, other in zip(found, exact, strict=True):
            assert (one - other).norm() <= 1e-2 * other.norm()


@needs_triton
@pytest.mark.parametrize("autocast", [True, False])
def test_kernels_in_bfloat16_are_near(autocast):
    made = case(64, 32, 100, 40)
    exact = run(made, "reference")
    dtype = torch.float32 if autocast else torch.bfloat16
    found = run(made, "triton", dtype, autocast=autocast)
    # Triton's interpreter cuts bfloat16 off instead of rounding it.
    most = 1e-2 if DEVICE.type == "cuda" else 2e-2
    for one, other in zip(found, exact, strict=True):
        assert (one - other).norm() <= most * other.norm()


def test_numerical_gradients():
    hidden, targets, weight, bias, *rest = case(5, 3, 7, 4)
    leaves = [t.requires_grad_() for t in (hidden, weight, bias)]

    def loss(hidden, weight, bias):
        return sampled_softmax(hidden, targets, weight, bias, *rest, backend="torch")

    assert torch.autograd.gradcheck(loss, leaves)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wanted", [(), (0,), (2,), (3,), (0, 3)])
def test_only_the_gradients_that_are_wanted(wanted, backend):
    made = [t.float() if t.is_floating_point() else t for t in case(9, 4, 12, 5)]
    given = [t.to(DEVICE) for t in made]
    for i in wanted:
        given[i].requires_grad_()
    loss = sampled_softmax(*given, backend=backend)
    exact, *gradients = run(made, "reference", factor=1.0)
    torch.testing.assert_close(loss.double().cpu(), exact, rtol=1e-5, atol=1e-6)
    assert loss.requires_grad == bool(wanted)
    if wanted:
        loss.backward()
    for i, gradient in zip((0, 2, 3), gradients, strict=True):
        if i in wanted:
            close = {"rtol": 1e-4, "atol": 1e-6}
            torch.testing.assert_close(given[i].grad.double().cpu(), gradient, **close)
        else:
            assert given[i].grad is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_gradients_without_a_tape(monkeypatch, backend):
    made = case(9, 4, 12, 5)
    given = [t.to(DEVICE, torch.float32) if t.is_floating_point() else t.to(DEVICE) for t in made]
    given[0].requires_grad_()

    def refuse(*args, **options):
        raise AssertionError("a gradient was made")

    monkeypatch.setattr(sampled, "_product", refuse)
    with torch.no_grad():
        loss = sampled_softmax(*given, backend=backend)
    torch.testing.assert_close(loss.double().cpu(), run(made, "reference")[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_twice(backend):
    made = case(100, 7, 20, 9)
    first, second = (run(made, backend, torch.float32) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensors_without_memory(monkeypatch, backend):
    made = [t.float() if t.is_floating_point() else t for t in case(9, 4, 12, 5)]
    given = [t.to("meta") for t in made]
    leaves = [given[i].requires_grad_() for i in (0, 2, 3)]
    loss = sampled_softmax(*given, backend=backend)
    loss.backward()
    assert loss.is_meta and loss.shape == ()
    assert all(leaf.grad.is_meta and leaf.grad.shape == leaf.shape for leaf in leaves)


def test_rows_in_any_order_of_memory():
    made = case(9, 4, 12, 5)
    made[0] = made[0].t().contiguous().t()
    compare(made, "torch", torch.float64)


def test_shares_by_hand():
    # exp of the logits: 1 and 3 drawn, 4 true; in the second row 3 is the target itself.
    logits = torch.tensor([[0.0, 2.0], [0.0, 2.0]], dtype=torch.float64)
    shift = torch.tensor([0.0, math.log(3) - 2], dtype=torch.float64)
    true, out = torch.full((2,), math.log(4), dtype=torch.float64), torch.empty(2, 2).double()
    hits = torch.tensor([-1, 1], dtype=torch.int32)
    sums = torch_sampled.shares(logits, shift, hits, true, out[0], out[1], True, True)
    close = torch.testing.assert_close
    close(logits, torch.tensor([[1 / 8, 3 / 8], [1 / 5, 0.0]], dtype=torch.float64))
    close(sums, logits.sum(dim=0))
    close(out[0], torch.tensor([math.log(2), math.log(5 / 4)], dtype=torch.float64))
    close(out[1], torch.tensor([-1 / 2, -1 / 5], dtype=torch.float64))


def test_reference_is_the_softmax_where_all_words_are_drawn():
    hidden, targets, weight, bias, *_ = case(6, 3, 8, 8)
    ids, zero = torch.arange(8), torch.zeros(8, dtype=torch.float64)
    found = reference.sampled_softmax(hidden, targets, weight, bias, ids, zero, zero[:6])
    torch.testing.assert_close(
        found, torch.nn.functional.cross_entropy(hidden @ weight.t() + bias, targets)
    )
