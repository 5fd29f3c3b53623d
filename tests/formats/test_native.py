"""Our own folder: what is written comes back bit for bit, whole or not at all."""

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from formats.tiny import PLAIN, WORDS, configs, equal, random_model, with_targets
from torchelmo.config import CharacterConfig, ElmoConfig, LstmConfig, WordConfig
from torchelmo.errors import InputError
from torchelmo.formats import files, native

LETTERS = ["가", "\u3000", "\n", " ", "😀", "\u0301", "\ud800"]  # any symbol, a lone surrogate too
BOTH = ElmoConfig(
    characters=CharacterConfig(
        scheme="codepoints", symbols=len(LETTERS), dim=2, filters=((1, 3),), max_characters=6
    ),
    words=WordConfig(words=len(WORDS), dim=5),
    lstm=LstmConfig(cells=4, projection=4, forget_bias=0.0),
    training={"hours": 1.5, "corpus": "한국어"},
)


def whole_model():
    """A model with every part there is."""
    words = [*WORDS[:-1], "\u3000"]  # a word of some ELMoForManyLangs models
    mixes = {"0.weights": torch.randn(3), "0.gamma": torch.ones(1), "1.gamma": torch.ones(1)}
    model = with_targets(random_model(BOTH, words=words, alphabet=LETTERS))
    return replace(model, alphabet=LETTERS, mixes=mixes, attribution="Herons, by 왜가리.\n")


def same(a, b):
    assert a.config == b.config
    assert a.attribution == b.attribution
    for part in ("vocabulary", "words", "alphabet"):
        one, two = getattr(a, part), getattr(b, part)
        assert (None if one is None else list(one)) == (None if two is None else list(two))
    for part in ("tensors", "softmax", "mixes"):
        assert equal(getattr(a, part), getattr(b, part))


class TestRoundTrip:
    def test_every_part(self, tmp_path):
        model = whole_model()
        native.write(model, tmp_path / "m")
        assert sorted(os.listdir(tmp_path / "m")) == sorted(native.FILES)
        assert os.listdir(tmp_path) == ["m"]
        same(native.read(tmp_path / "m"), model)

    @settings(max_examples=15, deadline=None)
    @given(configs(), st.booleans())
    def test_random_models(self, config, targets):
        model = random_model(config, words=WORDS if config.words else None)
        model = with_targets(model) if targets else model
        with tempfile.TemporaryDirectory() as scratch:
            native.write(model, Path(scratch, "m"))
            same(native.read(Path(scratch, "m")), model)

    # Any word but one with a line break in it or ASCII white space around it.
    @settings(max_examples=30, deadline=None)
    @given(
        st.lists(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r")).map(
                files.strip_ascii
            )
        )
    )
    def test_any_words(self, words):
        with tempfile.TemporaryDirectory() as scratch:
            files.write_lines(Path(scratch, "w.txt"), words, files.strip_ascii)
            assert files.read_lines(Path(scratch, "w.txt")) == words

    def test_float16(self, tmp_path):
        model = with_targets(random_model())
        native.write(model, tmp_path / "m", weights="float16", softmax="float16")
        stored = load_file(tmp_path / "m/model.safetensors")
        assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
        again = native.read(tmp_path / "m")
        for name, tensor in model.tensors.items():
            assert again.tensors[name].dtype == torch.float32
            assert torch.equal(again.tensors[name], tensor.half().float())
        assert torch.equal(again.softmax["bias"], model.softmax["bias"].half().float())

    def test_values_beyond_float16_are_refused(self, tmp_path):
        model = random_model()
        model.tensors["token.projection.bias"][0] = 70_000
        with pytest.raises(InputError, match=r"token\.projection\.bias has values too large"):
            native.write(model, tmp_path / "m", weights="float16")
        assert os.listdir(tmp_path) == []

    def test_reading_does_not_hold_the_file(self, tmp_path):
        native.write(random_model(), tmp_path / "m")
        model = native.read(tmp_path / "m")
        (tmp_path / "m/model.safetensors").write_bytes(b"gone")
        assert equal(model.tensors, random_model().tensors)

    def test_the_written_files_are_as_described(self, tmp_path):
        native.write(whole_model(), tmp_path / "m")
        config = json.loads((tmp_path / "m/config.json").read_text(encoding="utf-8"))
        assert config["format_version"] == "1.0"
        assert config["tokenizer"] == {"name": "words", "version": "1"}
        symbols = (tmp_path / "m/characters.txt").read_text(encoding="utf-8").split()
        assert symbols[:3] == ["U+AC00", "U+3000", "U+000A"]
        lines = (tmp_path / "m/vocab.txt").read_text(encoding="utf-8").split("\n")
        assert lines[:3] == ["<S>", "</S>", "<UNK>"]

    def test_a_checkout_with_windows_line_ends(self, tmp_path):
        native.write(with_targets(random_model()), tmp_path / "m")
        vocabulary = tmp_path / "m/vocab.txt"
        vocabulary.write_bytes(vocabulary.read_bytes().replace(b"\n", b"\r\n"))
        assert native.read(tmp_path / "m").vocabulary == WORDS


class TestCard:
    def test_made_if_none_is_given(self, tmp_path):
        native.write(with_targets(random_model()), tmp_path / "m")
        card = (tmp_path / "m/README.md").read_text(encoding="utf-8")
        assert card.startswith("---\nlibrary_name: torchelmo\n")
        assert "2 layers a direction, 6 cells, projection 4" in card
        assert f"| softmax | {len(WORDS)} words |" in card

    def test_given(self, tmp_path):
        native.write(random_model(), tmp_path / "m", card="# 모델\n")
        assert (tmp_path / "m/README.md").read_bytes() == "# 모델\n".encode()


class TestWholeOrNotAtAll:
    def test_a_folder_with_something_in_it_is_refused(self, tmp_path):
        native.write(random_model(), tmp_path / "m")
        before = (tmp_path / "m/model.safetensors").read_bytes()
        with pytest.raises(InputError, match="exists and is not empty"):
            native.write(random_model(seed=1), tmp_path / "m")
        assert (tmp_path / "m/model.safetensors").read_bytes() == before

    def test_an_empty_folder_is_taken(self, tmp_path):
        (tmp_path / "m").mkdir()
        native.write(random_model(), tmp_path / "m")
        same(native.read(tmp_path / "m"), random_model())

    def test_overwrite_leaves_nothing_of_the_old_model(self, tmp_path):
        native.write(with_targets(random_model()), tmp_path / "m")
        native.write(random_model(seed=1), tmp_path / "m", overwrite=True)
        same(native.read(tmp_path / "m"), random_model(seed=1))
        assert os.listdir(tmp_path) == ["m"]

    def test_overwrite_deletes_no_file_of_somebody_else(self, tmp_path):
        native.write(random_model(), tmp_path / "m")
        (tmp_path / "m/thesis.tex").write_text("years of work", encoding="utf-8")
        with pytest.raises(InputError, match=r"holds 'thesis\.tex', which is no file of a model"):
            native.write(random_model(), tmp_path / "m", overwrite=True)
        assert (tmp_path / "m/thesis.tex").exists()

    def test_a_failure_half_way(self, tmp_path, monkeypatch):
        native.write(random_model(), tmp_path / "m")

        def full(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(native, "model_card", full)
        for target in ("m", "new"):
            with pytest.raises(InputError, match=r"cannot be written: No space left on device"):
                native.write(random_model(seed=1), tmp_path / target, overwrite=True)
        assert os.listdir(tmp_path) == ["m"]
        same(native.read(tmp_path / "m"), random_model())

    def test_an_interrupt(self, tmp_path, monkeypatch):
        def stop(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(native, "model_card", stop)
        with pytest.raises(KeyboardInterrupt):
            native.write(random_model(), tmp_path / "m")
        assert os.listdir(tmp_path) == []

    def test_the_swap_fails(self, tmp_path, monkeypatch):
        native.write(random_model(), tmp_path / "m")
        real = os.replace

        def replace_but(old, new):
            if str(old).endswith(".partial"):
                raise PermissionError(13, "Permission denied")
            real(old, new)

        monkeypatch.setattr(files.os, "replace", replace_but)
        with pytest.raises(InputError, match="Permission denied"):
            native.write(random_model(seed=1), tmp_path / "m", overwrite=True)
        assert os.listdir(tmp_path) == ["m"]
        same(native.read(tmp_path / "m"), random_model())

    def test_a_file_in_the_way(self, tmp_path):
        (tmp_path / "m").write_text("x", encoding="utf-8")
        with pytest.raises(InputError, match="is a file, expected the name of a folder"):
            native.write(random_model(), tmp_path / "m")
        with pytest.raises(InputError, match="cannot be written"):
            native.write(random_model(), tmp_path / "m/inner")

    def test_folders_above_are_made(self, tmp_path):
        native.write(random_model(), tmp_path / "a/b/m")
        same(native.read(tmp_path / "a/b/m"), random_model())

    @pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")
    def test_others_may_read_it(self, tmp_path):
        old = os.umask(0o022)
        try:
            native.write(random_model(), tmp_path / "m")
        finally:
            os.umask(old)
        modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "m").iterdir()}
        assert modes == {0o644}
        assert (tmp_path / "m").stat().st_mode & 0o777 == 0o755


class TestRefusedToWrite:
    @pytest.mark.parametrize("word", ["two\nlines", "car\rriage", " space", "tab\t", "\ud800"])
    def test_words_that_a_line_cannot_hold(self, tmp_path, word):
        with pytest.raises(InputError, match=r"word 9 of vocab\.txt|UTF-8 cannot spell"):
            native.write(with_targets(random_model(), [*WORDS, word]), tmp_path / "m")
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize(
        ("parts", "sentence"),
        [
            ({"words": WORDS}, "list of input words, but its config has no word table"),
            ({"alphabet": ["a"]}, "alphabet of 1 symbols, expected 0"),
            ({"mixes": {"gamma": torch.ones(1)}}, "has a mix 'gamma', expected names such as"),
            ({"mixes": {"0.weights": torch.ones(2)}}, r"'0\.weights' of shape \(2,\)"),
            ({"softmax": {"weight": torch.ones(2, 4)}}, "lacks the tensor 'bias'"),
            (
                {
                    "softmax": {"weight": torch.ones(2, 4), "bias": torch.ones(2)},
                    "vocabulary": ["a", "b", "c"],
                },
                r"'weight' of shape \(2, 4\), its config expects \(3, 4\)",
            ),
            ({"config": replace(PLAIN, vocabulary=5), "vocabulary": ["a"]}, "its config says 5"),
            ({"tensors": {}}, "lacks the tensor"),
        ],
    )
    def test_parts_that_do_not_fit(self, tmp_path, parts, sentence):
        with pytest.raises(InputError, match=sentence):
            native.write(replace(random_model(), **parts), tmp_path / "m")
        assert os.listdir(tmp_path) == []

    def test_lists_that_do_not_fit(self, tmp_path):
        with pytest.raises(InputError, match="reads whole words, but lacks the list"):
            native.write(replace(whole_model(), words=None), tmp_path / "m")
        with pytest.raises(InputError, match="has 1 input words, its word table 8 rows"):
            native.write(replace(whole_model(), words=["a"]), tmp_path / "m")
        with pytest.raises(InputError, match="expected single symbols"):
            native.write(replace(whole_model(), alphabet=[*LETTERS[1:], "ab"]), tmp_path / "m")

    def test_other_dtypes(self, tmp_path):
        with pytest.raises(InputError, match="float32 or float16, not int8"):
            native.write(random_model(), tmp_path / "m", weights="int8")
        with pytest.raises(InputError, match="written in float32, float16, int8, not int4"):
            native.write(random_model(), tmp_path / "m", softmax="int4")


def test_is_native(tmp_path):
    native.write(random_model(), tmp_path / "m")
    assert native.is_native(tmp_path / "m")
    assert not native.is_native(tmp_path)
    (tmp_path / "config.json").write_text('{"config_path": "x"}', encoding="utf-8")
    assert not native.is_native(tmp_path)
    (tmp_path / "m/config.json").write_text("{", encoding="utf-8")
    assert native.is_native(tmp_path / "m")


def test_bfloat16_is_read(tmp_path):
    native.write(random_model(), tmp_path / "m")
    path = tmp_path / "m/model.safetensors"
    save_file({name: t.bfloat16() for name, t in load_file(path).items()}, path)
    assert native.read(tmp_path / "m").tensors["forward_layers.0.bias"].dtype == torch.float32
