"""The CPU's LSTM and character CNN against the reference, in every form that the weights take."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from torchelmo.ops import cpu, packed
from torchelmo.ops.reference import LstmWeights, char_conv_max, lstmp

FORMS = ["joined", "split", "split, plain input"]


@pytest.fixture(params=FORMS)
def form(request, monkeypatch):
    monkeypatch.setattr(cpu, "FEW_ROWS", 0 if request.param == "joined" else 10**9)
    if request.param == "split, plain input":
        monkeypatch.setattr(cpu, "SMALL_BYTES", -1)
    monkeypatch.setattr(cpu, "INPUT_ROWS", 9)


def weights(inputs, width, cells, project=True, seed=0):
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=draw) * 0.5

    projection = normal(width, cells) if project else None
    return LstmWeights(
        normal(4 * cells, inputs), normal(4 * cells, width), normal(4 * cells), projection
    )


def problem(sizes, inputs, width, cells, seed=0):
    draw = torch.Generator().manual_seed(seed)
    shapes = (sum(sizes), inputs), (sizes[0], width), (sizes[0], cells)
    return [torch.randn(shape, generator=draw) for shape in shapes]


SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=7).map(lambda s: sorted(s, reverse=True))


@settings(max_examples=20)
@given(SIZES, st.booleans(), st.sampled_from([None, 0.4]), st.sampled_from([None, 0.3]))
@pytest.mark.usefixtures("form")
def test_ragged_rows_state_and_clips(sizes, project, cell_clip, projection_clip):
    width, cells = (6, 8) if project else (8, 8)
    w = weights(5, width, cells, project)
    x, h, c = problem(sizes, 5, width, cells)
    kept = [t.clone() for t in (x, h, c)]
    layer = cpu.Lstm(w)
    for start in ((h, c), (None, None)):
        zero = [torch.zeros_like(h), torch.zeros_like(c)]
        begun = zero if start[0] is None else start
        expected = lstmp(x, sizes, w, *begun, cell_clip, projection_clip)
        found = layer(x, sizes, *start, cell_clip, projection_clip)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, atol=2e-6, rtol=1e-5)
    assert all(torch.equal(a, b) for a, b in zip((x, h, c), kept, strict=True))


@settings(max_examples=15)
@given(SIZES, st.integers(1, 30))
@pytest.mark.usefixtures("form")
def test_inputs_that_come_several_times(sizes, different):
    w = weights(5, 6, 8)
    _, h, c = problem(sizes, 5, 6, 8)
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(different, 5, generator=draw)
    index = torch.randint(0, different, (sum(sizes),), generator=draw)
    expected = lstmp(x[index], sizes, w, h, c, 0.5, 0.4)
    for a, b in zip(cpu.Lstm(w)(x, sizes, h, c, 0.5, 0.4, index), expected, strict=True):
        torch.testing.assert_close(a, b, atol=2e-6, rtol=1e-5)


@pytest.mark.usefixtures("form")
def test_windows_are_the_whole():
    w, sizes = weights(6, 6, 8), [9, 9, 9, 4, 2]
    x, h, c = problem(sizes, 6, 6, 8)
    layer = cpu.Lstm(w)
    whole, _, _ = layer(x, sizes, h, c)
    first, h, c = layer(x[:18], sizes[:2], h, c)
    second, _, _ = layer(x[18:], sizes[2:], h, c)
    torch.testing.assert_close(torch.cat([first, second]), whole, atol=2e-6, rtol=1e-5)


def test_both_forms_in_one_layer():
    w = weights(6, 6, 8)
    layer = cpu.Lstm(w)
    for rows in (1, cpu.FEW_ROWS - 1, cpu.FEW_ROWS, 50):
        sizes = [rows, rows, 1]
        x, h, c = problem(sizes, 6, 6, 8)
        for a, b in zip(layer(x, sizes, h, c), lstmp(x, sizes, w, h, c), strict=True):
            torch.testing.assert_close(a, b, atol=2e-6, rtol=1e-5)


def test_no_rows():
    out, h, c = cpu.Lstm(weights(3, 4, 5))(torch.empty(0, 3), [], None, None)
    assert out.shape == (0, 4) and h.shape == (0, 4) and c.shape == (0, 5)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
@pytest.mark.parametrize("project", [True, False])
def test_lower_precisions_are_near(precision, project):
    if not getattr(packed, f"has_{precision}")():
        pytest.skip(f"this processor has no {precision}")
    width, sizes = (32 if project else 64), [40, 40, 30, 11, 3]
    w = LstmWeights(*(None if t is None else t * 0.4 for t in weights(32, width, 64, project)))
    x, _, _ = problem(sizes, 32, width, 64)
    zero = torch.zeros(40, width), torch.zeros(40, 64)
    expected = lstmp(x, sizes, w, *zero, 3.0, 3.0)
    found = cpu.Lstm(w, precision)(x, sizes, None, None, 3.0, 3.0)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.float32
        assert F.cosine_similarity(a, b).min() > 0.999


FILTERS = ((1, 3), (2, 4), (5, 8))


def filters(seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(count, 4, width, generator=draw), torch.randn(count, generator=draw))
        for width, count in FILTERS
    ]


@settings(max_examples=25)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=30), st.booleans())
def test_words_of_any_length(spelt, in_order):
    spelt = sorted(spelt) if in_order else spelt
    draw = torch.Generator().manual_seed(1)
    embedding, padding = torch.randn(9, 4, generator=draw), 8
    ids = torch.randint(0, 8, (len(spelt), 12), generator=draw)
    for row, length in zip(ids, spelt, strict=True):
        row[length:] = padding
    found = cpu.CharCnn(embedding, filters())(ids, spelt, len(spelt) + 3)
    expected = char_conv_max(F.embedding(ids, embedding), filters())
    torch.testing.assert_close(found[: len(spelt)], expected, atol=2e-6, rtol=1e-5)
    assert not found[len(spelt) :].any()
