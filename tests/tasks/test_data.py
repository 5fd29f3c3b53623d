import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.small import elmo, tagged
from torchelmo.errors import InputError
from torchelmo.tasks.data import LayerStore, group

TEXTS = [example.words for example in tagged()]


@given(
    st.lists(st.integers(1, 50), max_size=40),
    st.integers(1, 7),
    st.none() | st.integers(1, 120),
    st.none() | st.integers(0, 3),
)
def test_each_example_once_within_the_limits(sizes, batch, tokens, seed):
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    batches = group(sizes, batch, tokens, generator)
    assert sorted(itertools.chain(*batches)) == list(range(len(sizes)))
    for numbers in batches:
        assert 1 <= len(numbers) <= batch
        widest = max(sizes[n] for n in numbers)
        assert tokens is None or len(numbers) == 1 or widest * len(numbers) <= tokens


def test_batches_are_of_about_one_length_and_differ_by_epoch():
    sizes = [n % 40 + 1 for n in range(400)]
    generator = torch.Generator().manual_seed(0)
    first, second = (group(sizes, 10, generator=generator) for _ in range(2))
    spread = [max(sizes[n] for n in b) - min(sizes[n] for n in b) for b in first]
    assert max(spread) <= 10
    assert {frozenset(b) for b in first} != {frozenset(b) for b in second}
    again = torch.Generator().manual_seed(0)
    assert group(sizes, 10, generator=again) == first


def check(store, model, texts, tolerance=1e-6):
    layers = store.layers(texts)
    assert layers.lengths == tuple(map(len, texts))
    for piece, expected in zip(layers.split(), model.layers(texts), strict=True):
        np.testing.assert_allclose(piece, expected, rtol=0, atol=tolerance)


def test_layers_in_memory_are_the_models_and_computed_once(monkeypatch):
    model = elmo()
    store = LayerStore(model)
    told = []
    assert store.add(TEXTS, told.append) and sum(told) == len(store) == len(TEXTS)
    assert store.kept == sum(map(len, TEXTS)) * 3 * 12 * 4
    check(store, model, [TEXTS[3], TEXTS[0], TEXTS[3]])

    def never(*_, **__):
        raise AssertionError("computed again")

    monkeypatch.setattr(model.encoder, "run", never)
    assert store.add(TEXTS[::-1])
    store.layers(TEXTS[:4])


def test_what_does_not_fit_or_was_not_added_is_computed():
    model = elmo()
    full = LayerStore(model, keep_gb=1e-7)
    assert not full.add(TEXTS) and len(full) == 0
    check(full, model, TEXTS[:3])
    none = LayerStore(model, keep="none")
    assert not none.add(TEXTS) and len(none) == 0
    check(none, model, [TEXTS[1], TEXTS[1]])


def test_layers_on_disk_are_float16_and_found_again(tmp_path, monkeypatch):
    model = elmo()
    store = LayerStore(model, keep="disk", folder=tmp_path / "layers")
    store.add(TEXTS)
    (file,) = (tmp_path / "layers").iterdir()
    assert np.load(file, mmap_mode="r").dtype == np.float16
    check(store, model, TEXTS[:5], tolerance=2e-3)
    again = LayerStore(model, keep="disk", folder=tmp_path / "layers")
    with monkeypatch.context() as patch:
        patch.setattr(again, "_compute", None)
        again.add(TEXTS[::-1])
    assert torch.equal(again.layers(TEXTS).flat, store.layers(TEXTS).flat)
    other = LayerStore(elmo(), keep="disk", folder=tmp_path / "layers")
    torch.nn.init.zeros_(next(other.elmo.bilm.parameters()))
    other.add(TEXTS)
    assert len(list((tmp_path / "layers").iterdir())) == 2


def test_nothing_half_written_is_left(tmp_path, monkeypatch):
    store = LayerStore(elmo(), keep="disk", folder=tmp_path / "layers")

    def broken(texts, progress=None):
        raise OSError("no space left")
        yield

    monkeypatch.setattr(store, "_compute", broken)
    with pytest.raises(OSError, match="no space"):
        store.add(TEXTS)
    assert list((tmp_path / "layers").iterdir()) == []


def test_boundaries_are_kept_where_asked_for():
    store = LayerStore(elmo(), boundaries=True)
    store.add(TEXTS[:2])
    layers = store.layers(TEXTS[:2])
    assert layers.boundaries and layers.lengths == (8, 8)
    plain = LayerStore(store.elmo).layers(TEXTS[:2])
    torch.testing.assert_close(layers.strip().flat, plain.flat)


def test_disk_needs_a_folder():
    with pytest.raises(InputError, match="give a folder"):
        LayerStore(elmo(), keep="disk")
