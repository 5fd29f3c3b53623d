"""Products with prepared weights against plain ones, in each precision that the processor has."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from torchelmo.errors import InputError
from torchelmo.ops import packed
from torchelmo.ops.packed import Product, block, filled, round_up

KINDS = {"float32": True, "bf16": packed.has_bf16(), "int8": packed.has_int8()}
CLOSE = {"float32": 1e-5, "bf16": 0.02, "int8": 0.03}


@pytest.fixture(params=list(KINDS))
def precision(request):
    if not KINDS[request.param]:
        pytest.skip(f"this processor has no {request.param}")
    return request.param


@pytest.fixture(params=[True, False], ids=["packed", "plain"])
def any_processor(request, monkeypatch):
    """Also as on a processor without oneDNN."""
    if not request.param:
        monkeypatch.setattr(packed, "has_packed", lambda: False)


def add(product, x, other):
    return packed.product_and(x, other, product.kind, product.parts)


def problem(rows=7, inputs=24, outputs=40, seed=0):
    draw = torch.Generator().manual_seed(seed)
    shapes = (rows, inputs), (outputs, inputs), (outputs,), (rows, outputs)
    x, weight, bias, other = (torch.randn(shape, generator=draw) for shape in shapes)
    return x, weight / inputs**0.5, bias, other


@pytest.mark.usefixtures("any_processor")
@pytest.mark.parametrize("activation", ["none", "sigmoid", "tanh", "relu"])
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_float32(activation, rows):
    x, weight, bias, other = problem(rows)
    apply = {"none": lambda y: y, "relu": torch.relu}.get(activation) or getattr(torch, activation)
    for kept in (True, False):
        product = Product(weight, bias, "float32", packed=kept)
        close = {"atol": 2e-6, "rtol": 1e-5}
        torch.testing.assert_close(
            product(x, activation), apply(F.linear(x, weight, bias)), **close
        )
        torch.testing.assert_close(add(product, x, other), F.linear(x, weight) + other, **close)


def test_each_precision(precision):
    x, weight, bias, other = problem(32, 128, 64)
    product, within = Product(weight, bias, precision), CLOSE[precision]
    given = x.to(product.dtype)
    kept = given.clone()
    torch.testing.assert_close(
        product(given).float(), F.linear(x, weight, bias), atol=3 * within, rtol=within
    )
    if precision != "bf16":
        found = add(Product(weight, None, precision), given, other)
        torch.testing.assert_close(found, x @ weight.t() + other, atol=3 * within, rtol=within)
    assert torch.equal(given, kept)


def test_a_row_does_not_depend_on_others(precision):
    x, weight, bias, _ = problem(6)
    product = Product(weight, bias, precision)
    x[1:] *= 1000
    given = x.to(product.dtype)
    torch.testing.assert_close(product(given)[:1], product(given[:1]), atol=1e-5, rtol=1e-5)


def test_zeros_stay_zero(precision):
    product = Product(torch.zeros(3, 5), None, precision)
    assert not product(torch.zeros(2, 5, dtype=product.dtype)).any()


@given(st.integers(1, 3000))
def test_few_numbers_of_rows(rows):
    rounded = round_up(rows)
    assert rows <= rounded == round_up(rounded)
    assert rounded <= rows * 1.25 or rounded - rows <= 3
    assert rows > 1024 or rounded <= rows + 127  # beyond, steps grow with the numbers
    assert len({round_up(n) for n in range(1, 513)}) < 30


@given(st.integers(1, 3000), st.sampled_from([1, 4, 8]))
def test_blocks_hold_all_rows_and_few_more(rows, least):
    sizes = []
    while sum(sizes) < rows:
        sizes.append(block(rows - sum(sizes), least))
    assert set(sizes) <= {size for size in (1, 2, 4, 8, 16, 32, 64) if size >= least}
    assert sizes[:-1] == sorted(sizes[:-1], reverse=True)
    assert rows <= sum(sizes) == filled(rows, least) <= rows + max(10, least - 1)
    assert len(sizes) <= rows // 64 + 4


def test_a_precision_that_is_not_there(monkeypatch):
    with pytest.raises(InputError, match="precision is 'int4', expected one of float32, bf16"):
        Product(torch.eye(2), None, "int4")
    monkeypatch.setattr(packed, "has_bf16", lambda: False)
    with pytest.raises(InputError, match="no products of bf16"):
        Product(torch.eye(2), None, "bf16")
