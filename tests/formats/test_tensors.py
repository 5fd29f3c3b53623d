"""Tensors in files: int8 rows are near what they were made of, and are refused where they lie."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.torch import load_file, save_file

from formats.tiny import WORDS, random_model, with_targets
from torchelmo.elmo import Elmo
from torchelmo.errors import InputError
from torchelmo.formats import load, native
from torchelmo.formats.tensors import pack_rows, read_tensors, write_tensors

MODEL = with_targets(random_model())
SMALLEST = 2.0**-24  # of float16


def test_rows_by_hand():
    rows, scale = pack_rows(torch.tensor([[254.0, -1.0, 1.2, 0.0], [0.0] * 4]), "weight")
    assert scale.tolist() == [2.0, 0.0]
    assert rows.tolist() == [[127, 0, 1, 0], [0, 0, 0, 0]]  # -0.5 to the even 0
    assert (rows.dtype, scale.dtype) == (torch.int8, torch.float16)


@settings(max_examples=60, deadline=None)
@given(
    arrays.arrays(
        "float32",
        st.tuples(st.integers(1, 4), st.integers(0, 5)),
        elements=st.floats(-8e6, 8e6, width=32) | st.floats(-(2**-20), 2**-20, width=32),
    )
)
def test_no_value_moves_further_than_half_a_step(matrix):
    given_rows = torch.from_numpy(matrix.copy())
    rows, scale = pack_rows(given_rows, "weight")
    again = rows.double() * scale.double().unsqueeze(1)
    step = scale.double().unsqueeze(1)
    assert ((again - given_rows.double()).abs() <= step / 2 * (1 + 1e-6)).all()
    assert (rows.abs() <= 127).all()
    if matrix.shape[1]:  # the scale is hardly larger than it must be
        exact = given_rows.double().abs().amax(dim=1) / 127
        assert (scale.double() <= exact * (1 + 2**-10) + SMALLEST).all()


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_values_that_are_not_finite(value):
    with pytest.raises(InputError, match="weight has values that are not finite"):
        pack_rows(torch.tensor([[1.0, value]]), "weight")


def test_values_too_large_for_a_scale():
    with pytest.raises(InputError, match="too large for float16: write float32"):
        pack_rows(torch.tensor([[1e30]]), "weight")


class TestFolder:
    @pytest.fixture
    def folder(self, tmp_path):
        native.write(MODEL, tmp_path / "m", weights="float16", softmax="int8")
        return tmp_path / "m"

    def test_what_is_stored(self, folder):
        stored = load_file(folder / "softmax.safetensors")
        assert {name: (t.dtype, tuple(t.shape)) for name, t in stored.items()} == {
            "weight": (torch.int8, (len(WORDS), 4)),
            "weight.scale": (torch.float16, (len(WORDS),)),
            "bias": (torch.float32, (len(WORDS),)),
        }
        assert '"format_version": "1.1"' in (folder / "config.json").read_text(encoding="utf-8")

    def test_what_is_read(self, folder):
        model = native.read(folder)
        assert model.config == MODEL.config
        scale = load_file(folder / "softmax.safetensors")["weight.scale"].float()
        assert model.softmax["weight"].dtype == torch.float32
        error = (model.softmax["weight"] - MODEL.softmax["weight"]).abs()
        assert (error <= scale.unsqueeze(1) / 2 * 1.0001).all()
        assert torch.equal(model.softmax["bias"], MODEL.softmax["bias"])

    def test_written_again_in_full_it_is_of_the_first_version(self, folder, tmp_path):
        model = native.read(folder)
        native.write(model, tmp_path / "again")
        text = (tmp_path / "again/config.json").read_text(encoding="utf-8")
        assert '"format_version": "1.0"' in text
        assert torch.equal(
            native.read(tmp_path / "again").softmax["weight"], model.softmax["weight"]
        )

    def test_packing_twice_changes_nothing(self, folder, tmp_path):
        native.write(native.read(folder), tmp_path / "again", weights="float16", softmax="int8")
        for name in ("model.safetensors", "softmax.safetensors"):
            one, two = (load_file(home / name) for home in (folder, tmp_path / "again"))
            assert all(torch.equal(one[part], two[part]) for part in one)

    def test_the_card_says_what_is_lost(self, folder):
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert (
            "| stored as | biLM float16 (each value rounded to 11 binary digits); softmax int8"
            in (card)
        )
        assert "stored as" not in native.model_card(MODEL)

    def test_words_are_scored(self, folder):
        whole, small = Elmo(MODEL), Elmo.from_pretrained(folder)
        (one,), (two,) = whole.score([WORDS[3:6]]), small.score([WORDS[3:6]])
        assert two.forward == pytest.approx(one.forward, abs=0.1)
        assert two.backward == pytest.approx(one.backward, abs=0.1)
        words = ["a", "___", "…"]
        assert small.substitutes(words)[0].word == whole.substitutes(words)[0].word
        assert small.perplexity([WORDS[3:6]]).perplexity == pytest.approx(
            whole.perplexity([WORDS[3:6]]).perplexity, rel=0.05
        )

    def test_saved_small_by_elmo(self, tmp_path):
        Elmo(MODEL).save_pretrained(tmp_path / "m", weights="float16", softmax="int8")
        assert load_file(tmp_path / "m/softmax.safetensors")["weight"].dtype == torch.int8

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({"weight.scale": None}, r"lacks the tensor 'weight\.scale' of shape \(8,\)"),
            ({"weight.scale": torch.ones(7)}, r"'weight\.scale' of shape \(7,\)"),
            ({"weight.scale": torch.ones(8, dtype=torch.int8)}, "'weight.scale' in I8"),
            ({"weight": torch.ones(9, 4, dtype=torch.int8)}, r"'weight' of shape \(9, 4\)"),
            ({"weight": torch.ones(8, 4)}, r"has a tensor 'weight\.scale' that its config"),
            ({"weight": torch.ones(8, 4, dtype=torch.int16)}, "'weight' in I16, expected F32"),
            ({"bias": torch.ones(8, dtype=torch.int8)}, "'bias' in I8, expected F32 or F16"),
        ],
    )
    def test_files_that_are_wrong(self, folder, change, sentence):
        path = folder / "softmax.safetensors"
        tensors = {**load_file(path), **change}
        save_file({name: t for name, t in tensors.items() if t is not None}, path)
        with pytest.raises(InputError, match=sentence):
            load.load(folder)

    def test_rows_are_of_the_softmax_alone(self, folder):
        path = folder / "model.safetensors"
        tensors = load_file(path)
        tensors["token.projection.weight"] = tensors["token.projection.weight"].to(torch.int8)
        save_file(tensors, path)
        with pytest.raises(InputError, match=r"'token\.projection\.weight' in I8"):
            native.read(folder)

    def test_a_newer_major_version_is_refused(self, folder):
        path = folder / "config.json"
        text = path.read_text(encoding="utf-8")
        for version, ok in (("1.9", True), ("2.0", False)):
            path.write_text(text.replace('"1.1"', f'"{version}"'), encoding="utf-8")
            if ok:
                assert native.read(folder).vocabulary == WORDS
                continue
            with pytest.raises(InputError, match=r"format version 2\.0, .* upgrade torchelmo"):
                native.read(folder)


def test_names_that_look_like_scales(tmp_path):
    tensors = {"a": torch.ones(2, 3), "a.scale": torch.ones(2)}
    write_tensors(tmp_path / "t", tensors)
    assert set(read_tensors(tmp_path / "t", lambda found: found, rows=True)) == {"a", "a.scale"}
