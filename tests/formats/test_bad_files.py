"""Damaged, contradicting and hostile files: one sentence each that says what is wrong."""

import gzip
import json
import os
import struct
import subprocess
import sys
import zipfile
from contextlib import suppress

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from formats.tiny import WORDS, random_model, with_targets
from torchelmo.config import ElmoConfig, LstmConfig, WordConfig
from torchelmo.errors import InputError
from torchelmo.formats import bilm_tf, files, native
from torchelmo.formats.load import load

W0 = "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0"


@pytest.fixture
def original(tmp_path):
    bilm_tf.write(with_targets(random_model()), tmp_path / "original")
    return tmp_path / "original"


@pytest.fixture
def ours(tmp_path):
    native.write(with_targets(random_model()), tmp_path / "ours")
    return tmp_path / "ours"


def refused(source, **more):
    """The one sentence that loading gives."""
    with pytest.raises(InputError) as caught:
        load(source, **more)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def set_option(folder, name, value):
    path = folder / "options.json"
    options = json.loads(path.read_text(encoding="utf-8"))
    *parts, last = name.split(".")
    inner = options
    for part in parts:
        inner = inner[part]
    inner[last] = value
    path.write_text(json.dumps(options), encoding="utf-8")


class TestOptions:
    @pytest.mark.parametrize(
        ("name", "value", "sentence"),
        [
            ("lstm.dim", "64", "lstm.dim is '64', expected a whole number"),
            ("lstm.dim", None, "the option lstm.dim is missing"),
            ("lstm", 3, "lstm is 3, expected an object"),
            ("lstm.projection_dim", 7, "lstm.projection_dim is 7, above lstm.dim 6"),
            ("lstm.n_layers", 0, "lstm.layers is 0, expected 1 to 64"),
            ("lstm.cell_clip", "3", "lstm.cell_clip is '3', expected a number or null"),
            ("lstm.proj_clip", 10**400, "expected a number or null"),
            ("lstm.proj_clip", float("nan"), "lstm.projection_clip must be a positive number"),
            ("lstm.dim", 10**400, "expected 1 to 1048576"),
            ("lstm.use_skip_connections", 1, "lstm.use_skip_connections is 1, expected true or"),
            ("char_cnn", None, "the option char_cnn.filters is missing"),
            ("char_cnn.filters", [[1]], "char_cnn.filters has [1], expected [width, number]"),
            ("char_cnn.filters", 32, "char_cnn.filters has 32, expected [width, number]"),
            ("char_cnn.activation", "gelu", "char_cnn.activation is 'gelu', expected 'relu' or"),
            ("char_cnn.n_characters", 260, "char_cnn.n_characters is 260, expected 261 or 262"),
            ("char_cnn.embedding", {}, "the option char_cnn.embedding.dim is missing"),
            ("char_cnn.max_characters_per_token", 1, "max_characters is 1, expected 3 to 10000"),
            ("bidirectional", False, "only models of both directions are supported"),
        ],
    )
    def test_bad_values(self, original, name, value, sentence):
        set_option(original, name, value)
        found = refused(original)
        assert found.startswith(f"{original / 'options.json'}: ")
        assert sentence in found

    @pytest.mark.parametrize(
        ("name", "value", "sentence"),
        [
            ("lstm.dim", 8, f"{W0!r} of shape (8, 24), expected (8, 32) from lstm.dim"),
            ("lstm.projection_dim", 5, "'CNN_proj/W_proj' of shape (7, 4), expected (7, 5) from"),
            ("lstm.n_layers", 1, "Cell1/LSTMCell/B' that has no place in the model"),
            ("lstm.n_layers", 3, "no dataset 'RNN_0/RNN/MultiRNNCell/Cell2/LSTMCell/W_0'"),
            ("char_cnn.n_highway", 0, "'CNN_high_0/W_carry' that has no place in the model"),
            ("char_cnn.n_highway", 2, "has no dataset 'CNN_high_1/W_carry' of shape (7, 7)"),
            ("char_cnn.embedding.dim", 4, "'char_embed' of shape (261, 3), expected (261, 4)"),
            ("char_cnn.filters", [[1, 2], [2, 5]], "'CNN/W_cnn_1' of shape (1, 3, 3, 5), expected"),
            ("char_cnn.filters", [[1, 2]], "'CNN_high_0/W_carry' of shape (7, 7), expected (2, 2)"),
            ("n_tokens_vocab", 99, "n_tokens_vocab is 99, the softmax in"),
        ],
    )
    def test_options_that_contradict_the_weights(self, original, name, value, sentence):
        set_option(original, name, value)
        found = refused(original)
        assert sentence in found
        assert "weights.hdf5" in found or "softmax.hdf5" in found
        assert name.rpartition(".")[0] in found

    def test_not_json(self, original):
        path = original / "options.json"
        for data in (b"{", b"", b"\xff\xfe", b"[" * 100_000):
            path.write_bytes(data)
            assert f"{path} is not JSON" in refused(original)
        path.write_bytes(b"[1]")
        assert "holds list, expected a JSON object" in refused(original)

    def test_too_large(self, original, monkeypatch):
        monkeypatch.setattr(files, "JSON_BYTES", 10)
        assert "too large for what it should be" in refused(original)

    def test_characters_in_the_weights_alone(self, original):
        options = json.loads((original / "options.json").read_text(encoding="utf-8"))
        del options["char_cnn"]
        (original / "options.json").write_text(json.dumps(options), encoding="utf-8")
        assert "has characters (the dataset 'char_embed'), but" in refused(original)


class TestHdf5:
    def test_missing(self, original):
        missing = original / "none.hdf5"
        sentence = f"there is no file {missing}"
        assert sentence in refused(None, options=original / "options.json", weights=missing)
        assert sentence in refused(None, weights=missing)
        missing = original / "none.json"
        found = refused(None, options=missing, weights=original / "weights.hdf5")
        assert f"there is no file {missing}" in found

    @pytest.mark.parametrize("keep", [0, 7, 100, 0.3, 0.9, -1])
    def test_truncated(self, original, keep):
        path = original / "weights.hdf5"
        data = path.read_bytes()
        keep = int(len(data) * keep) if isinstance(keep, float) else keep
        path.write_bytes(data[:keep])
        found = refused(original)
        assert f"{path} " in found
        assert "hdf5" in found.replace(str(path), "")

    def test_not_hdf5(self, original):
        path = original / "weights.hdf5"
        path.write_bytes(b"PK\x03\x04" + bytes(5000))
        assert f"{path} cannot be opened as hdf5" in refused(original)

    def test_flipped_bytes_never_raise_anything_else(self, original):
        path = original / "weights.hdf5"
        data = path.read_bytes()
        random = np.random.default_rng(0)
        for _ in range(60):
            changed = bytearray(data)
            for place in random.integers(0, 4096, size=4):
                changed[place] = int(random.integers(256))
            path.write_bytes(changed)
            with suppress(InputError):
                load(original)

    @pytest.mark.parametrize("name", ["char_embed", "CNN/b_cnn_1", W0])
    def test_missing_dataset(self, original, name):
        with h5py.File(original / "weights.hdf5", "r+") as file:
            del file[name]
        assert f"has no dataset {name!r}" in refused(original)

    @pytest.mark.parametrize("array", [np.zeros((8, 24), dtype=int), np.full((8, 24), "x", "S1")])
    def test_no_floats(self, original, array):
        with h5py.File(original / "weights.hdf5", "r+") as file:
            del file[W0]
            file[W0] = array
        assert f"{W0!r} of type {array.dtype}, expected floats" in refused(original)

    def test_an_empty_dataset(self, original):
        with h5py.File(original / "weights.hdf5", "r+") as file:
            del file[W0]
            file[W0] = h5py.Empty("f4")
        assert f"{W0!r} of shape None, expected (8, 24)" in refused(original)

    @pytest.mark.parametrize("storage", [{"chunks": (1, 1024)}, {"compression": "gzip"}, {}])
    def test_a_dataset_that_claims_terabytes(self, original, storage):
        set_option(original, "lstm.dim", 1 << 20)
        set_option(original, "lstm.projection_dim", 1 << 18)
        set_option(original, "char_cnn.n_highway", 0)
        with h5py.File(original / "weights.hdf5", "r+") as file:
            for name in ("CNN_high_0", "CNN_proj"):
                del file[name]
            file["CNN_proj/b_proj"] = np.zeros(1 << 18, dtype="f4")
            file.create_dataset("CNN_proj/W_proj", (7, 1 << 18), "f4", compression="gzip")
            file["CNN_proj/W_proj"][...] = 0.5
            del file[W0]
            file.create_dataset(W0, (2 << 18, 4 << 20), "f4", **storage)
        assert f"{W0!r} of shape (524288, 4194304) but stores only 0 bytes" in refused(original)

    def test_compressed_weights_are_fine(self, original):
        with h5py.File(original / "weights.hdf5", "r+") as file:
            array = file[W0][...]
            del file[W0]
            file.create_dataset(W0, data=array, compression="gzip", shuffle=True)
        assert load(original).config.lstm.cells == 6

    def test_links_out_of_the_file(self, original, tmp_path):
        with h5py.File(tmp_path / "other.hdf5", "w") as other:
            other["secret"] = np.zeros((8, 24), dtype="f4")
        with h5py.File(original / "weights.hdf5", "r+") as file:
            del file[W0]
            file[W0] = h5py.ExternalLink(str(tmp_path / "other.hdf5"), "secret")
        assert f"has no dataset {W0!r}" in refused(original)
        (tmp_path / "raw").write_bytes(bytes(8 * 24 * 4))
        with h5py.File(original / "weights.hdf5", "r+") as file:
            del file[W0]
            where = [(str(tmp_path / "raw"), 0, 8 * 24 * 4)]
            file.create_dataset(W0, (8, 24), "f4", external=where)
        assert f"keeps the dataset {W0!r} in another file" in refused(original)

    def test_a_virtual_dataset(self, original, tmp_path):
        layout = h5py.VirtualLayout((8, 24), "f4")
        layout[...] = h5py.VirtualSource(str(tmp_path / "other.hdf5"), "secret", (8, 24))
        with h5py.File(original / "weights.hdf5", "r+") as file:
            del file[W0]
            file.create_virtual_dataset(W0, layout)
        assert f"keeps the dataset {W0!r} in another file" in refused(original)


class TestVocabulary:
    def test_softmax_of_another_width(self, original):
        with h5py.File(original / "softmax.hdf5", "w") as file:
            file["softmax/W"] = np.zeros((len(WORDS), 5), dtype="f4")
            file["softmax/b"] = np.zeros(len(WORDS), dtype="f4")
        found = refused(original)
        assert "softmax.hdf5 has the dataset 'softmax/W' of shape (8, 5), expected (8, 4)" in found

    def test_softmax_of_another_length(self, original):
        with h5py.File(original / "softmax.hdf5", "r+") as file:
            del file["softmax/b"]
            file["softmax/b"] = np.zeros(9, dtype="f4")
        assert "'softmax/b' of shape (9,), expected (8,)" in refused(original)

    def test_no_softmax_in_the_softmax_file(self, original):
        with h5py.File(original / "softmax.hdf5", "w"):
            pass
        assert "softmax.hdf5 has no dataset 'softmax/W'" in refused(original)

    def test_of_another_length(self, original):
        with (original / "vocab.txt").open("a", encoding="utf-8") as file:
            file.write("more\n")
        found = refused(original)
        assert "vocab.txt has 9 words, the softmax in" in found
        assert "softmax.hdf5 has 8 rows: they do not belong together" in found

    @pytest.mark.parametrize("word", ["<UNK>", "<S>", "</S>"])
    def test_without_a_special_word(self, original, word):
        text = (original / "vocab.txt").read_text(encoding="utf-8")
        (original / "vocab.txt").write_text(text.replace(f"{word}\n", "x\n"), encoding="utf-8")
        assert f"vocab.txt lacks {word}, which the softmax in" in refused(original)

    def test_not_utf_8(self, original):
        (original / "vocab.txt").write_bytes(b"<S>\n\xff\n")
        assert "vocab.txt is not UTF-8 (byte 4)" in refused(original)

    def test_damaged_gzip(self, original):
        (original / "vocab.txt").unlink()
        (original / "vocab.txt.gz").write_bytes(gzip.compress(b"<S>\n" * 99)[:20])
        assert "vocab.txt.gz is not a whole gzip file" in refused(original)

    def test_gzip_that_unpacks_without_end(self, original, monkeypatch):
        monkeypatch.setattr(files, "LIST_BYTES", 1 << 20)
        (original / "vocab.txt").unlink()
        (original / "vocab.txt.gz").write_bytes(gzip.compress(bytes(2 << 20)))
        assert "unpacks to more than 1 MB" in refused(original)

    def test_word_input(self, tmp_path):
        config = ElmoConfig(
            characters=None,
            words=WordConfig(words=len(WORDS), dim=4),
            lstm=LstmConfig(cells=6, projection=4),
            token_projection=False,
        )
        bilm_tf.write(random_model(config, words=WORDS), tmp_path / "m")
        vocabulary = tmp_path / "m/vocab.txt"
        text = vocabulary.read_text(encoding="utf-8")
        vocabulary.write_text(text.replace("<UNK>", "unknown"), encoding="utf-8")
        assert "vocab.txt lacks <UNK>, which the word table in" in refused(tmp_path / "m")
        vocabulary.write_text(text + "more\n", encoding="utf-8")
        assert "vocab.txt has 9 words, the word table in" in refused(tmp_path / "m")
        vocabulary.write_text(text, encoding="utf-8")
        set_option(tmp_path / "m", "n_tokens_vocab", 7)
        assert "n_tokens_vocab is 7, the word table in" in refused(tmp_path / "m")
        vocabulary.unlink()
        assert "reads whole words (it has no char_cnn): give its vocabulary" in refused(
            tmp_path / "m"
        )


class TestNative:
    def test_config(self, ours):
        path = ours / "config.json"
        good = json.loads(path.read_text(encoding="utf-8"))
        for changed, sentence in (
            (good | {"lstmm": {}}, "config has no key 'lstmm', the nearest is 'lstm'"),
            (good | {"format_version": "2.0"}, "format version 2.0, this torchelmo reads up to"),
            (good | {"lstm": {"cells": "many"}}, "config.lstm.cells is 'many', expected int"),
        ):
            path.write_text(json.dumps(changed), encoding="utf-8")
            found = refused(ours)
            assert found.startswith(f"{path}: ")
            assert sentence in found
        path.write_text("{", encoding="utf-8")
        assert f"{path} is not JSON" in refused(ours)

    def test_missing_weights(self, ours):
        (ours / "model.safetensors").unlink()
        assert f"there is no file {ours / 'model.safetensors'}" in refused(ours)

    @pytest.mark.parametrize("keep", [0, 5, 8, 100, -1])
    def test_truncated(self, ours, keep):
        for name in ("model.safetensors", "softmax.safetensors"):
            path = ours / name
            data = path.read_bytes()
            path.write_bytes(data[:keep])
            assert f"{path} is damaged or not safetensors" in refused(ours)
            path.write_bytes(data)

    def test_tensors(self, ours):
        path = ours / "model.safetensors"
        good = load_file(path)
        name = "forward_layers.1.bias"
        for changed, sentence in (
            ({**good, "more": torch.ones(1)}, "has a tensor 'more' that its config does not know"),
            ({**good, name: torch.ones(3)}, f"{name!r} of shape (3,), its config expects (24,)"),
            ({k: v for k, v in good.items() if k != name}, f"lacks the tensor {name!r} of shape"),
            ({**good, name: good[name].to(torch.int32)}, f"{name!r} in I32, expected F32 or F16"),
        ):
            save_file(changed, path)
            found = refused(ours)
            assert found.startswith(str(path))
            assert sentence in found

    def test_a_header_that_claims_terabytes(self, ours):
        path = ours / "model.safetensors"
        size = 1 << 44
        header = {"token.words": {"dtype": "F32", "shape": [size], "data_offsets": [0, 4 * size]}}
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text)
        assert f"{path} is damaged or not safetensors" in refused(ours)
        path.write_bytes(struct.pack("<Q", 1 << 50) + text)
        assert f"{path} is damaged or not safetensors" in refused(ours)

    def test_a_config_that_claims_terabytes(self, ours):
        path = ours / "config.json"
        good = json.loads(path.read_text(encoding="utf-8"))
        good["lstm"] |= {"cells": 1 << 20, "projection": 1 << 20}
        path.write_text(json.dumps(good), encoding="utf-8")
        assert "its config expects (1048576, 7)" in refused(ours)

    def test_lists(self, ours):
        (ours / "vocab.txt").write_text("a\nb\n", encoding="utf-8")
        assert "vocab.txt has 2 words, config.json says 8" in refused(ours)
        (ours / "vocab.txt").unlink()
        assert load(ours).vocabulary is None
        (ours / "words.txt").write_text("a\n", encoding="utf-8")
        assert "list of input words, but its config has no word table" in refused(ours)
        (ours / "words.txt").unlink()
        (ours / "characters.txt").write_text("U+0041\n", encoding="utf-8")
        assert "alphabet of 1 symbols, expected 0" in refused(ours)
        for line in ("A", "U+110000", "U+ZZZZ"):
            (ours / "characters.txt").write_text(f"U+0041\n{line}\n", encoding="utf-8")
            assert f"line 2 of {ours / 'characters.txt'} is {line!r}" in refused(ours)

    def test_mixes(self, ours):
        save_file({"0.weights": torch.ones(9)}, ours / "mixes.safetensors")
        assert "'0.weights' of shape (9,), its config expects (3,)" in refused(ours)

    def test_a_softmax_of_another_size(self, ours):
        softmax = {"weight": torch.ones(9, 4), "bias": torch.ones(9)}
        save_file(softmax, ours / "softmax.safetensors")
        assert "'weight' of shape (9, 4), its config expects (8, 4)" in refused(ours)


class TestZip:
    def test_not_a_zip(self, tmp_path):
        (tmp_path / "m.zip").write_bytes(b"no zip")
        assert "m.zip is damaged or not a zip archive" in refused(tmp_path / "m.zip")

    def test_without_weights(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
            archive.writestr("options.json", "{}")
        assert "of weights it has none" in refused(tmp_path / "m.zip")

    def test_damaged_member(self, tmp_path, original):
        path = tmp_path / "m.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(original / "options.json", "options.json")
            archive.write(original / "weights.hdf5", "model.hdf5")
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 255
        path.write_bytes(data)
        assert "m.zip is damaged or not a zip archive" in refused(path)

    def test_a_bomb(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "m.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("options.json", "{}")
            archive.writestr("../../model.hdf5", bytes(64 << 20))
        found = refused(tmp_path / "m.zip")
        assert "'../../model.hdf5' that unpacks from" in found
        assert not (tmp_path.parent.parent / "model.hdf5").exists()


class TestDisk:
    # Files are cut off at 20 kB, as on a full disk; in another process, since the limit stays.
    @pytest.mark.skipif(os.name == "nt", reason="limits of POSIX")
    @pytest.mark.parametrize("format_", ["native", "bilm_tf"])
    def test_full(self, tmp_path, format_):
        code = f"""
import resource, signal, sys
from pathlib import Path
from formats.tiny import random_model
from torchelmo.config import CharacterConfig, ElmoConfig, LstmConfig
from torchelmo.errors import InputError
from torchelmo.formats import {format_}

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
config = ElmoConfig(
    characters=CharacterConfig(dim=2, filters=((1, 8),)), lstm=LstmConfig(cells=64, projection=16)
)
try:
    {format_}.write(random_model(config), Path(sys.argv[1]))
except InputError as error:
    print(error)
"""
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "m")],
            cwd=os.path.dirname(os.path.dirname(__file__)),
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(["."]), "OMP_NUM_THREADS": "1"},
        )
        (line,) = done.stdout.splitlines()
        assert line.startswith(f"{tmp_path / 'm'} cannot be written: ")
        assert os.listdir(tmp_path) == []

    @pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="the superuser may do all")
    def test_no_permission(self, tmp_path):
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(InputError, match="cannot be written: Permission denied"):
            native.write(random_model(), tmp_path / "locked/m")
