"""The ragged character CNN against the readable one, values and gradients, kernel by kernel."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from torchelmo.config import CharacterConfig
from torchelmo.errors import InputError
from torchelmo.nn.char_cnn import CharCnn
from torchelmo.ops import reference, torch_chars
from torchelmo.ops.backend import has_triton
from torchelmo.ops.chars import char_conv_max, window_rows

TRITON = pytest.mark.skipif(not has_triton(), reason="Triton is not installed")
BACKENDS = ["torch", pytest.param("triton", marks=TRITON)]
# Triton's interpreter cuts bfloat16 off instead of rounding it, and cannot multiply it.
LOW = torch.bfloat16 if torch.cuda.is_available() else torch.float16
DTYPES = [torch.float32, LOW]
FILTERS = ((1, 3), (2, 5), (4, 6))  # (width, count): 14 filters, no power of two


def device(backend):
    return "cuda" if backend == "triton" and torch.cuda.is_available() else "cpu"


def spellings(spelt, characters, symbols, generator):
    """Random ids, the last symbol as padding behind each spelling."""
    spelt = torch.tensor(spelt)
    ids = torch.randint(symbols - 1, (len(spelt), characters), generator=generator)
    return ids.masked_fill(torch.arange(characters) >= spelt.unsqueeze(1), symbols - 1), spelt


def parameters(symbols, depth, filters, generator, dtype=torch.float64, on="cpu"):
    def draw(*shape):
        drawn = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return drawn.to(on, dtype).requires_grad_()

    return draw(symbols, depth), [(draw(n, depth, width), draw(n)) for width, n in filters]


def compare(spelt, backend, *, characters=9, symbols=11, depth=3, filters=FILTERS, spare=0, seed=0):
    """Hold values and all gradients against the reference in float64."""
    generator = torch.Generator().manual_seed(seed)
    on = device(backend)
    ids, spelt = spellings(spelt, characters, symbols, generator)
    table, weights = parameters(symbols, depth, filters, generator)
    leaves = [table, *(t for pair in weights for t in pair)]
    expected = reference.char_conv_max(F.embedding(ids, table), weights)
    upstream = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    wanted = torch.autograd.grad(expected, leaves, upstream)

    dtype = torch.float64 if backend == "torch" else torch.float32
    mine = [t.detach().to(on, dtype).requires_grad_() for t in leaves]
    pairs = list(zip(mine[1::2], mine[2::2], strict=True))
    rows = window_rows(spelt, characters) + spare
    got = char_conv_max(ids.to(on), spelt.to(on), mine[0], pairs, rows=rows, backend=backend)
    grads = torch.autograd.grad(got, mine, upstream.to(on, dtype))
    tolerance = (
        {"rtol": 1e-12, "atol": 1e-12} if backend == "torch" else {"rtol": 1e-5, "atol": 1e-5}
    )
    torch.testing.assert_close(got.cpu().double(), expected, **tolerance)
    for one, other in zip(grads, wanted, strict=True):
        torch.testing.assert_close(one.cpu().double(), other, **tolerance)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("spelt", "options"),
    [
        ([1], {}),
        ([9], {}),  # no padding at all
        ([8], {}),
        ([3, 9, 1, 8, 5, 2, 7], {}),
        ([3, 9, 1, 8, 5, 2, 7], {"spare": 1}),
        ([2, 4], {"spare": 700}),  # more rows of no word than programs that clear them
        ([4, 6, 1], {"characters": 6, "filters": ((6, 2),)}),  # as wide as the word
        ([4, 1, 2], {"characters": 4, "filters": ((1, 1),)}),
        ([5, 2, 9], {"filters": ((3, 2), (1, 2), (7, 3))}),  # widths in any order
        ([9, 5], {"symbols": 300, "depth": 16}),  # three blocks of symbols
        ([9, 5], {"depth": 20}),
    ],
)
def test_equals_the_reference(backend, spelt, options):
    compare(spelt, backend, **options)


@TRITON
def test_filters_of_more_than_one_block():
    compare([3, 9, 1], "triton", filters=((1, 3), (3, 1040)))


@given(
    spelt=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    widths=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    spare=st.integers(0, 9),
    seed=st.integers(0, 1000),
)
@settings(max_examples=20)
def test_equals_the_reference_for_any_words(spelt, widths, spare, seed):
    filters = tuple((width, 1 + width % 3) for width in widths)
    compare(spelt, "torch", characters=12, filters=filters, spare=spare, seed=seed)


def test_gradcheck():
    generator = torch.Generator().manual_seed(1)
    ids, spelt = spellings([3, 5, 1, 4], 5, 6, generator)
    table, weights = parameters(6, 2, ((1, 2), (3, 2)), generator)

    def op(table, *flat):
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        return char_conv_max(ids, spelt, table, pairs, rows=20)

    assert torch.autograd.gradcheck(op, (table, *(t for pair in weights for t in pair)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_first_of_equal_positions_takes_the_gradient(backend):
    on = device(backend)
    # Characters a and b weigh the same: every position of "ab" has the maximum.
    table = torch.tensor([[1.0], [1.0], [0.0]], device=on, requires_grad=True)
    weight = torch.ones(1, 1, 1, device=on)
    ids = torch.tensor([[0, 1, 2, 2], [1, 0, 1, 2]], device=on)
    spelt = torch.tensor([2, 3], device=on)
    filters = [(weight, torch.zeros(1, device=on))]
    out = char_conv_max(ids, spelt, table, filters, rows=9, backend=backend)
    out.backward(torch.tensor([[10.0], [1.0]], device=on))
    assert out.tolist() == [[1.0], [1.0]]
    assert table.grad.tolist() == [[10.0], [1.0], [0.0]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_computes_in_low_precision(backend):
    low = LOW if backend == "triton" else torch.bfloat16
    generator = torch.Generator().manual_seed(2)
    on = device(backend)
    ids, spelt = spellings([3, 9, 1, 8, 5, 2], 9, 11, generator)
    table, weights = parameters(11, 4, FILTERS, generator, torch.float32)
    leaves = [table, *(t for pair in weights for t in pair)]
    expected = reference.char_conv_max(F.embedding(ids, table), weights)
    # Averages, so that maxima that rounding moves to another position do not matter much.
    wanted = torch.autograd.grad(expected.mean(), leaves)
    mine = [t.detach().to(on).requires_grad_() for t in leaves]
    pairs = list(zip(mine[1::2], mine[2::2], strict=True))
    with torch.autocast(on, low):
        got = char_conv_max(ids.to(on), spelt.to(on), mine[0], pairs, rows=50, backend=backend)
    assert got.dtype == low
    torch.testing.assert_close(got.cpu().float(), expected, rtol=1e-2, atol=3e-2)
    for one, other in zip(torch.autograd.grad(got.float().mean(), mine), wanted, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.cpu(), other, rtol=0, atol=1e-2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_words_of_no_weight_change_nothing(backend):
    generator = torch.Generator().manual_seed(3)
    on = device(backend)
    ids, spelt = (t.to(on) for t in spellings([3, 9, 1, 1, 1], 9, 11, generator))
    ids[3:, 1:] = 7  # words that only fill the batch: anything may stand in them
    table, weights = parameters(11, 3, FILTERS, generator, torch.float32, on)
    few = char_conv_max(ids[:3], spelt[:3], table, weights, rows=16, backend=backend)
    all_ = char_conv_max(ids, spelt, table, weights, rows=30, backend=backend)
    torch.testing.assert_close(few, all_[:3])  # a product of another size may round otherwise
    (one,) = torch.autograd.grad(few.sum(), table)
    (other,) = torch.autograd.grad(all_[:3].sum(), table)
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_is_seen(backend):
    on = device(backend)
    table = torch.tensor([[1.0], [torch.nan], [0.0]], device=on)
    filters = [(torch.ones(1, 1, 2, device=on), torch.zeros(1, device=on))]
    ids = torch.tensor([[0, 1, 0, 0, 2], [0, 0, 0, 2, 2]], device=on)
    spelt = torch.tensor([4, 3], device=on)
    out = char_conv_max(ids, spelt, table, filters, rows=9, backend=backend)
    assert out.isnan().tolist() == [[True], [False]]


def kernels():
    from torchelmo.ops import triton_chars

    on = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(4)
    ids, spelt = (t.to(on) for t in spellings([3, 9, 1, 8, 5], 9, 11, generator))
    counts = (spelt.clamp(max=8) + 1).int()
    return triton_chars, generator, ids, counts, counts.cumsum(0, dtype=torch.int32), on


@TRITON
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernel_windows(dtype):
    triton_chars, generator, ids, counts, ends, on = kernels()
    table = torch.randn(11, 3, generator=generator).to(on)
    made = []
    for module in (torch_chars, triton_chars):
        out = torch.full((40, 12), torch.nan, dtype=dtype, device=on)
        chars = torch.full((40, 4), -7, dtype=torch.int32, device=on)
        module.windows(ids, counts, ends, table, out, chars)
        made.append((out, chars))
    assert torch.equal(made[0][0], made[1][0]) and torch.equal(made[0][1], made[1][1])
    assert not made[1][0][int(ends[-1]) :].any()


@TRITON
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [40, 20])  # with 20 the last two words have no room
def test_kernel_maximum(dtype, rows):
    triton_chars, generator, _, counts, ends, on = kernels()
    z = torch.randn(rows, 21, generator=generator).round(decimals=1).to(on, dtype)  # with ties
    z[int(ends[-1]) :] = torch.nan
    last = torch.arange(21, dtype=torch.int32, device=on) % 3 + 6
    bias = torch.randn(21, generator=generator).to(on)
    made = []
    for module in (torch_chars, triton_chars):
        pooled = torch.zeros(5, 21, dtype=dtype, device=on)
        places = torch.zeros(5, 21, dtype=torch.uint8, device=on)
        module.maximum(z, counts, ends, last, (6, 8), bias, pooled, places)
        fits = ends <= rows
        assert torch.equal(pooled.isnan().all(dim=1), ~fits)
        made.append((pooled[fits], places[fits]))
    assert torch.equal(made[0][0], made[1][0]) and torch.equal(made[0][1], made[1][1])


@TRITON
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernel_expand(dtype):
    triton_chars, generator, _, counts, ends, on = kernels()
    places = (torch.rand(5, 21, generator=generator).to(on) * counts.unsqueeze(1)).byte()
    gradient = torch.randn(5, 21, generator=generator).to(on, dtype)
    made = []
    for module in (torch_chars, triton_chars):
        dz = torch.full((140, 21), torch.nan, dtype=dtype, device=on)
        module.expand(gradient, places, counts, ends, dz)
        made.append(dz)
    assert torch.equal(*made)
    assert (made[1] != 0).sum() == gradient.numel()


@TRITON
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernel_embedding_gradient(dtype):
    triton_chars, generator, *_, on = kernels()
    chars = torch.randint(12, (150, 4), generator=generator).int().to(on)  # 11: no character
    of_windows = torch.randn(150, 12, generator=generator).to(on, dtype)
    made = []
    for module in (torch_chars, triton_chars):
        out = torch.full((11, 3), torch.nan, device=on)
        module.embedding_gradient(chars, of_windows, out)
        made.append(out)
    torch.testing.assert_close(*made, rtol=1e-5, atol=1e-5)


def test_meta_tensors_take_memory_and_compute_nothing():
    ids = torch.empty(7, 9, dtype=torch.long, device="meta")
    table = torch.empty(11, 3, device="meta", requires_grad=True)
    weight = torch.empty(5, 3, 2, device="meta", requires_grad=True)
    bias = torch.empty(5, device="meta", requires_grad=True)
    out = char_conv_max(ids, ids[:, 0], table, [(weight, bias)], rows=40)
    assert out.shape == (7, 5) and out.device.type == "meta"
    out.backward(torch.empty_like(out))
    assert [t.grad.shape for t in (table, weight, bias)] == [(11, 3), (5, 3, 2), (5,)]


def test_errors_and_no_words():
    generator = torch.Generator().manual_seed(5)
    ids, spelt = spellings([3, 9], 9, 11, generator)
    table, weights = parameters(11, 3, FILTERS, generator)
    with pytest.raises(InputError, match="13 windows, room was made for 12"):
        char_conv_max(ids, spelt, table, weights, rows=12)
    with pytest.raises(InputError, match="width 4"):
        char_conv_max(ids[:, :3], spelt.clamp(max=3), table, weights)
    assert char_conv_max(ids[:0], spelt[:0], table, weights).shape == (0, 14)


def test_reference_by_name():
    generator = torch.Generator().manual_seed(6)
    ids, spelt = spellings([3, 9], 9, 11, generator)
    table, weights = parameters(11, 3, FILTERS, generator)
    expected = reference.char_conv_max(F.embedding(ids, table), weights)
    assert torch.equal(char_conv_max(ids, spelt, table, weights, backend="reference"), expected)


def test_the_layer_takes_lengths():
    config = CharacterConfig(dim=4, filters=((1, 4), (3, 6)), highways=1, max_characters=10)
    torch.manual_seed(7)
    layer = CharCnn(config).double()
    spelt = torch.tensor([3, 10, 2])
    ids = torch.randint(1, 200, (3, 10)).masked_fill(
        torch.arange(10) >= spelt.unsqueeze(1), layer.padding_id
    )
    torch.testing.assert_close(layer(ids, spelt=spelt, rows=30), layer(ids))
