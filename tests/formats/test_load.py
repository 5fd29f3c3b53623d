"""One door: what each kind of folder, file, name and address is read as."""

import gzip
import json
import os
import shutil
import sys
import types
import warnings
import zipfile
from pathlib import Path

import pytest

from formats.tiny import WORDS, equal, random_model, with_targets
from torchelmo.errors import InputError
from torchelmo.formats import bilm_tf, native
from torchelmo.formats import load as module
from torchelmo.formats.load import load, packaged

MODEL = with_targets(random_model())


@pytest.fixture
def original(tmp_path):
    """A folder of bilm-tf's files: options, weights, vocabulary, softmax."""
    bilm_tf.write(MODEL, tmp_path / "original")
    return tmp_path / "original"


@pytest.fixture
def hub(monkeypatch, original):
    """A stand-in for the hub that knows one published model and records what it is asked."""
    asked = []

    def fetch(name, *, revision, cache_dir, offline):
        asked.append((name, revision, cache_dir, offline))
        if name not in ("large", "owner/model"):
            raise InputError(f"the hub has no {name}")
        return original

    def download_url(url, cache_dir, offline):
        asked.append((url, cache_dir, offline))
        return original / url.rpartition("/")[2]

    stand_in = types.ModuleType("torchelmo.formats.hub")
    stand_in.asked = asked
    stand_in.fetch, stand_in.download_url = fetch, download_url
    stand_in.is_published = lambda name: name == "large"
    stand_in.published_names = lambda: ["large", "medium"]
    monkeypatch.setitem(sys.modules, "torchelmo.formats.hub", stand_in)
    monkeypatch.setattr("torchelmo.formats.hub", stand_in, raising=False)
    return stand_in


class TestFolders:
    def test_native(self, tmp_path):
        native.write(MODEL, tmp_path / "m")
        assert equal(load(tmp_path / "m").tensors, MODEL.tensors)
        assert equal(load(str(tmp_path / "m")).softmax, MODEL.softmax)

    def test_bilm_tf_with_what_lies_beside(self, original):
        model = load(original)
        assert equal(model.tensors, MODEL.tensors)
        assert equal(model.softmax, MODEL.softmax)
        assert model.vocabulary == WORDS

    def test_published_names_of_files(self, original):
        (original / "options.json").rename(original / "elmo_2x6_4_options.json")
        (original / "weights.hdf5").rename(original / "elmo_2x6_4_weights.hdf5")
        (original / "softmax.hdf5").rename(original / "elmo_2x6_4_softmax_weights.hdf5")
        (original / "vocab.txt.gz").write_bytes(
            gzip.compress((original / "vocab.txt").read_bytes())
        )
        (original / "vocab.txt").unlink()
        model = load(original)
        assert equal(model.softmax, MODEL.softmax)
        assert model.vocabulary == WORDS

    def test_weights_by_name_among_other_hdf5_files(self, original):
        shutil.copy(original / "softmax.hdf5", original / "embeddings.hdf5")
        assert equal(load(original).tensors, MODEL.tensors)
        shutil.copy(original / "weights.hdf5", original / "old_weights.hdf5")
        with pytest.raises(InputError, match=r"several \.hdf5 files \(old_weights\.hdf5, weights"):
            load(original)

    def test_the_repositorys_fixtures(self, fixtures):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in ("plain", "words", "many_langs", "many_langs_chars"):
                assert load(fixtures / name).build().config.width > 0

    def test_allennlp(self, shared):
        folder = shared / "fixtures/allennlp/test_fixtures/simple_tagger_with_elmo/serialization"
        whole = load(folder)
        for name in ("model.tar.gz", "best.th"):
            assert equal(load(folder / name).tensors, whole.tensors)

    def test_a_given_vocabulary_wins(self, original, tmp_path):
        other = tmp_path / "other.txt"
        other.write_text("\n".join(reversed(WORDS)), encoding="utf-8")
        assert load(original, vocabulary=other).vocabulary == WORDS[::-1]

    def test_no_model(self, tmp_path):
        with pytest.raises(InputError, match="holds no model that is known here"):
            load(tmp_path)

    def test_extra_files_for_a_format_that_takes_none(self, tmp_path, original):
        native.write(MODEL, tmp_path / "m")
        with pytest.raises(InputError, match=r"softmax= \(.*\) goes with options\.json"):
            load(tmp_path / "m", softmax=original / "softmax.hdf5")

    def test_several_options(self, original):
        (original / "options.json").rename(original / "a_options.json")
        shutil.copy(original / "a_options.json", original / "b_options.json")
        with pytest.raises(InputError, match=r"several \(a_options\.json, b_options\.json\)"):
            load(original)


class TestFiles:
    def test_hdf5_with_its_options_beside_it(self, original):
        assert equal(load(original / "weights.hdf5").softmax, MODEL.softmax)
        shutil.copy(original / "weights.hdf5", original / "b_weights.hdf5")
        shutil.copy(original / "options.json", original / "b_options.json")
        options = json.loads((original / "options.json").read_text(encoding="utf-8"))
        options["lstm"]["use_skip_connections"] = False
        (original / "b_options.json").write_text(json.dumps(options), encoding="utf-8")
        assert load(original / "b_weights.hdf5").config.lstm.residual is False
        assert load(weights=original / "weights.hdf5").config.lstm.residual is True

    def test_hdf5_without_options(self, original, tmp_path):
        (tmp_path / "alone").mkdir()
        shutil.copy(original / "weights.hdf5", tmp_path / "alone/weights.hdf5")
        with pytest.raises(InputError, match="needs its options: none in"):
            load(tmp_path / "alone/weights.hdf5")

    def test_options_and_weights(self, original):
        model = load(options=original / "options.json", weights=str(original / "weights.hdf5"))
        assert equal(model.tensors, MODEL.tensors)
        assert (model.vocabulary, model.softmax) == (None, None)

    @pytest.mark.parametrize("packed", [True, False])
    @pytest.mark.parametrize("inside", ["", "repository/7/"])
    def test_zip(self, original, tmp_path, packed, inside):
        vocabulary = (original / "vocab.txt").read_bytes()
        with zipfile.ZipFile(tmp_path / "7.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(original / "weights.hdf5", f"{inside}model.hdf5")
            archive.write(original / "options.json", f"{inside}options.json")
            archive.write(original / "softmax.hdf5", f"{inside}softmax.hdf5")
            archive.writestr(f"{inside}meta.json", "{}")
            archive.writestr("__MACOSX/._model.hdf5", b"\0")
            if packed:
                archive.writestr(f"{inside}vocab.txt.gz", gzip.compress(vocabulary))
            else:
                archive.writestr(f"{inside}vocab.txt", vocabulary)
        before = sorted(tmp_path.iterdir())
        model = load(tmp_path / "7.zip")
        assert equal(model.tensors, MODEL.tensors)
        assert equal(model.softmax, MODEL.softmax)
        assert model.vocabulary == WORDS
        assert sorted(tmp_path.iterdir()) == before
        given = {"vocabulary": original / "vocab.txt", "softmax": original / "softmax.hdf5"}
        assert load(tmp_path / "7.zip", **given).vocabulary == WORDS

    def test_a_file_of_a_folder(self, tmp_path):
        native.write(MODEL, tmp_path / "m")
        with pytest.raises(InputError, match="is one file of a model: give its folder"):
            load(tmp_path / "m/model.safetensors")

    def test_other_endings(self, tmp_path):
        (tmp_path / "m.docx").write_bytes(b"")
        with pytest.raises(InputError, match=r"expected \.hdf5, \.zip, \.tar\.gz or \.th"):
            load(tmp_path / "m.docx")


class TestNames:
    def test_a_packaged_name(self, tmp_path, monkeypatch):
        native.write(MODEL, tmp_path / "weights/xx-small")
        (tmp_path / "weights/notes").mkdir()
        monkeypatch.setattr(module.importlib.resources, "files", lambda _: tmp_path)
        assert packaged() == {"xx-small": tmp_path / "weights/xx-small"}
        assert equal(load("xx-small").tensors, MODEL.tensors)

    def test_packaged_models_are_folders(self):
        for folder in packaged().values():
            assert isinstance(folder, Path)
            assert native.is_native(folder)

    def test_a_published_name_and_a_hub_id(self, hub, tmp_path):
        assert equal(load("large", offline=True).tensors, MODEL.tensors)
        load("owner/model", revision="v1", cache_dir=str(tmp_path))
        assert hub.asked == [
            ("large", None, None, True),
            ("owner/model", "v1", tmp_path, None),
        ]

    def test_addresses(self, hub):
        home = "https://models.example/elmo"
        model = load(options=f"{home}/options.json", weights=f"{home}/weights.hdf5")
        assert equal(model.tensors, MODEL.tensors)
        assert equal(load(f"{home}/weights.hdf5", offline=False).tensors, MODEL.tensors)
        assert [asked[0].rpartition("/")[2] for asked in hub.asked] == [
            "options.json",
            "weights.hdf5",
            "weights.hdf5",
        ]

    def test_a_folder_wins_over_a_name(self, hub, tmp_path, monkeypatch):
        native.write(random_model(seed=5), tmp_path / "large")
        monkeypatch.chdir(tmp_path)
        assert equal(load("large").tensors, random_model(seed=5).tensors)
        assert hub.asked == []

    def test_an_unknown_name_names_the_nearest(self, hub):
        with pytest.raises(InputError, match="no model 'larg', the nearest is 'large'"):
            load("larg")
        with pytest.raises(InputError, match=r"packaged here are .*, published are large, medium"):
            load("qqqqqqqq")

    @pytest.mark.parametrize("name", ["./no/such", "../no", "/no/such/folder", "no.hdf5", "~/no/x"])
    def test_a_path_that_does_not_exist(self, hub, name):
        with pytest.raises(InputError, match="there is no file or folder"):
            load(name)
        assert hub.asked == []


class TestArguments:
    def test_nothing(self):
        with pytest.raises(InputError, match="no model was given"):
            load()

    @pytest.mark.parametrize("name", ["", "a\0b", "x" * 5000, "é" * 200])
    def test_names_that_no_file_can_have(self, hub, name):
        with pytest.raises(InputError, match="no model"):
            load(name)

    @pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="the superuser may read all")
    def test_no_permission(self, original):
        original.chmod(0)
        with pytest.raises(InputError, match="cannot be read: Permission denied"):
            load(original)
        original.chmod(0o700)

    def test_too_much(self, original):
        with pytest.raises(InputError, match="together with options= or weights="):
            load(original, weights=original / "weights.hdf5")

    def test_options_alone(self, original):
        with pytest.raises(InputError, match="without weights="):
            load(options=original / "options.json")
