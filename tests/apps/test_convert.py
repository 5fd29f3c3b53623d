import json
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch

from bulk.tiny import LINES, left_behind
from formats.tiny import equal, random_model, with_targets
from torchelmo.elmo import Elmo
from torchelmo.formats import native
from torchelmo.formats.load import load

SENTENCES = [line.split() for line in LINES]


def layers(folder):
    return Elmo.from_pretrained(folder, device="cpu").layers(SENTENCES)


@pytest.mark.parametrize("name", ["plain", "one_layer", "no_projection", "same_width"])
def test_there_and_back(run, fixtures, tmp_path, name):
    source = fixtures / name
    result = run("convert", source, "ours", "--to", "native")
    assert result.code == 0
    assert result.out.startswith("ours (native): ")
    assert run("convert", "ours", "theirs", "--to", "bilm-tf").code == 0
    assert equal(load(source).tensors, load(tmp_path / "theirs").tensors)
    for one, other in zip(layers(source), layers(tmp_path / "theirs"), strict=True):
        np.testing.assert_array_equal(one, other)
    assert left_behind(tmp_path) == ["ours", "theirs"]


def test_many_langs_and_what_cannot_be_written(run, fixtures, tmp_path):
    result = run("convert", fixtures / "many_langs", "ours", "--to", "native", "--json")
    summary = json.loads(result.out)
    assert (summary["format"], summary["layers"], summary["width"]) == ("native", 3, 12)
    assert summary["notes"] == []
    assert set(summary["files"]) >= {"config.json", "model.safetensors", "words.txt"}
    run("convert", "ours", "theirs", "--to", "bilm-tf").sentence  # noqa: B018  # asserts
    assert left_behind(tmp_path) == ["ours"]


def test_notes_are_printed(run, tmp_path):
    Elmo(with_targets(random_model()), mixes=2).save_pretrained(tmp_path / "ours")
    result = run("convert", "ours", "theirs", "--to", "bilm-tf")
    assert result.code == 0
    assert "\nnot written: " in result.out
    assert "mix" in result.out
    notes = json.loads(run("convert", "ours", "more", "--to", "bilm-tf", "--json").out)["notes"]
    assert len(notes) == result.out.count("not written: ")


def test_options_and_softmax_in_places_of_their_own(run, fixtures, tmp_path):
    plain = fixtures / "plain"
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "w.hdf5").write_bytes((plain / "weights.hdf5").read_bytes())
    (tmp_path / "b" / "o.json").write_bytes((plain / "options.json").read_bytes())
    more = "--vocabulary", plain / "vocab.txt", "--softmax", plain / "softmax.hdf5"
    result = run("convert", "a/w.hdf5", "ours", "--to", "native", "--options", "b/o.json", *more)
    assert result.code == 0
    assert equal(load(tmp_path / "ours").softmax, load(plain).softmax)


def test_a_destination_that_exists(run, fixtures, tmp_path):
    native.write(random_model(), tmp_path / "ours")
    before = (tmp_path / "ours" / "model.safetensors").read_bytes()
    assert (
        "ours exists" in run("convert", fixtures / "no_highway", "ours", "--to", "native").sentence
    )
    assert (tmp_path / "ours" / "model.safetensors").read_bytes() == before
    assert (
        run("convert", fixtures / "no_highway", "ours", "--to", "native", "--overwrite").code == 0
    )
    assert (tmp_path / "ours" / "model.safetensors").read_bytes() != before
    (tmp_path / "file").write_text("!", encoding="utf-8")
    assert (
        "file is a file"
        in run("convert", fixtures / "no_highway", "file", "--to", "native").sentence
    )
    assert left_behind(tmp_path) == ["file", "ours"]


def hostile_archive(path):
    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(path.parent / "harmed"),)

    torch.save({"a": Harm()}, path)


def hostile_pickle(path):
    path.write_bytes(pickle.dumps({"a": os.getcwd}))


def escaping_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../escaped/options.json", "{}")
        archive.writestr("../escaped/weights.hdf5", b"not hdf5")


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("best.th", hostile_archive),
        ("best.th", hostile_pickle),
        ("model.zip", escaping_zip),
        ("model.tar.gz", lambda path: path.write_bytes(b"\x1f\x8b not gzip")),
        ("weights.hdf5", lambda path: path.write_bytes(b"not hdf5")),
        ("model.bin", lambda path: path.write_bytes(b"?")),
    ],
)
def test_hostile_and_damaged_files(run, tmp_path, name, make):
    home = tmp_path / "in"
    home.mkdir()
    make(home / name)
    sentence = run("convert", f"in/{name}", "out", "--to", "native").sentence
    assert name in sentence
    assert left_behind(tmp_path) == ["in"]
    assert left_behind(home) == [name]


def test_a_vocabulary_without_unk(run, fixtures, tmp_path):
    listed = (fixtures / "words" / "vocab.txt").read_text(encoding="utf-8")
    (tmp_path / "v.txt").write_text(listed.replace("<UNK>", "<OOV>"), encoding="utf-8")
    arguments = "--vocabulary", "v.txt"
    sentence = run(
        "convert", fixtures / "words" / "weights.hdf5", "out", "--to", "native", *arguments
    ).sentence
    assert "<UNK>" in sentence
    assert left_behind(tmp_path, "v.txt") == []


def test_a_source_that_does_not_exist(run, tmp_path):
    assert "no file or folder" in run("convert", "no/where/x", "out", "--to", "native").sentence
    assert "nearest is 'ai2-medium'" in run("convert", "ai2-medum", "o", "--to", "native").sentence
    assert left_behind(tmp_path) == []
