import io
import json
import os
import shutil
import struct
import subprocess
import sys

import h5py
import numpy as np
import pytest

from bulk.tiny import ENDINGS, LINES, command, left_behind, read_output, write_lines
from torchelmo.apps.cli.embed import parse_layers
from torchelmo.bulk import local, parts
from torchelmo.elmo import Elmo
from torchelmo.errors import InputError
from torchelmo.ops.packed import has_bf16

SENTENCES = [line.split() for line in LINES]


@pytest.fixture
def text(tmp_path):
    return write_lines(tmp_path / "in.txt", LINES)


@pytest.fixture(scope="module")
def expected(model_folder):
    return Elmo.from_pretrained(model_folder, device="cpu").layers(SENTENCES)


@pytest.mark.parametrize("layers", ["all", "top", "average", "1"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_values(run, text, tmp_path, model_folder, expected, ending, layers):
    output = f"out.{ending}"
    result = run("embed", "in.txt", "-o", output, "--model", model_folder, "--layers", layers)
    assert result.code == 0
    assert result.err.startswith("torchelmo: warning: 1 of 8 lines are blank")
    assert result.out.startswith(f"{output}: 8 lines, 37 tokens, ")
    found = read_output(tmp_path / output)
    for number, array in enumerate(expected):
        if layers == "average":
            array = array.mean(axis=0)
        elif layers != "all":
            array = array[{"top": -1, "1": 1}[layers]]
        np.testing.assert_allclose(found[number].reshape(array.shape), array, atol=1e-6)
    assert left_behind(tmp_path, "in.txt") == [output]


def test_summary_as_json(run, text, model_folder):
    arguments = "--dtype", "float16", "--no-index", "--device", "cpu", "--json", "--offline"
    result = run("embed", "in.txt", "-o", "out.h5", "--model", model_folder, *arguments)
    summary = json.loads(result.out)
    assert summary.pop("seconds") > 0
    assert summary.pop("tokens_per_second") > 0
    size = os.path.getsize("out.h5")
    facts = {"lines": 8, "tokens": 37, "blank": 1, "kept": 0, "output": "out.h5", "bytes": size}
    assert summary == facts
    with h5py.File("out.h5", "r") as file:
        assert len(file) == 8
        assert file["0"].dtype == np.float16


def test_precision(run, text, model_folder):
    if not has_bf16():
        pytest.skip("this processor has no bf16")
    found = {}
    for kind in ("float32", "bf16"):
        output = f"{kind}.npz"
        asked = "--model", model_folder, "--precision", kind, "--device", "cpu"
        assert run("embed", "in.txt", "-o", output, *asked).code == 0
        with np.load(output) as file:
            found[kind] = file["0"]
    assert not np.array_equal(found["bf16"], found["float32"])
    np.testing.assert_allclose(found["bf16"], found["float32"], atol=0.1)


def test_standard_input(run, text, model_folder, monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(text.read_bytes()), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", stream)
    assert run("embed", "-", "-o", "a.npz", "--model", model_folder).code == 0
    assert run("embed", "in.txt", "-o", "b.npz", "--model", model_folder).code == 0
    with open("a.npz", "rb") as a, open("b.npz", "rb") as b:
        assert a.read() == b.read()


def test_tokenize_and_carry(run, model_folder, tmp_path):
    write_lines(tmp_path / "in.txt", ["Isn't it?", "It is."])
    arguments = "--tokenize", "--state", "carry", "--rows", "2", "--batch-tokens", "50"
    result = run("embed", "in.txt", "-o", "out.jsonl", "--model", model_folder, *arguments)
    assert result.code == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    assert [row["tokens"] for row in rows] == [["Is", "n't", "it", "?"], ["It", "is", "."]]


@pytest.mark.filterwarnings("default:.*unused options")
def test_files_of_the_original_programs(run, text, fixtures, tmp_path):
    plain = fixtures / "plain"
    files = "--options", plain / "options.json", "--weights", plain / "weights.hdf5"
    result = run("embed", "in.txt", "-o", "a.npz", *files)
    assert result.code == 0
    warning = result.err.splitlines()[0]
    assert warning.startswith("torchelmo: warning: ")
    assert "unused options" in warning
    assert run("embed", "in.txt", "-o", "b.npz", "--model", plain).code == 0
    for number, array in read_output(tmp_path / "a.npz").items():
        np.testing.assert_array_equal(read_output(tmp_path / "b.npz")[number], array)


@pytest.mark.parametrize("name", ["bilm", "allennlp"])
def test_the_dumps_of_the_original_program(run, shared, tmp_path, name):
    made = shared / "fixtures" / "tf-generated"
    home = {"bilm": "bilm-tf/tests/fixtures/model", "allennlp": "allennlp/test_fixtures/elmo"}
    folder = shared / "fixtures" / home[name]
    files = "--options", folder / "options.json", "--weights", folder / "lm_weights.hdf5"
    source = made / "dump_input.txt"
    assert run("embed", source, "-o", "out.hdf5", *files, "--state", "carry").code == 0
    found = read_output(tmp_path / "out.hdf5")
    for number, array in read_output(made / f"dump_bilm_embeddings_{name}.hdf5").items():
        np.testing.assert_allclose(found[number], array, atol=2e-6, rtol=0)


def test_layers_are_parsed():
    assert [parse_layers(x) for x in ("all", "top", "average", "0", "12")] == [
        "all",
        "top",
        "average",
        0,
        12,
    ]
    for text in ("", "-1", "first", "1.0", "²"):
        with pytest.raises(InputError, match="expected all, top, average or a layer's number"):
            parse_layers(text)


BAD_TEXT = {
    "utf-8": (b"good\nb\xe4d\n", "line 2 of in.txt is not UTF-8"),
    "utf-16": ("good".encode("utf-16"), "line 1 of in.txt looks like UTF-16"),
    "nul": (b"good\nb\0d\n", "line 2 of in.txt has a NUL byte"),
    "long": (b"good\n" + b"x" * 10_000_000, "line 2 of in.txt has a token of 10,000,000"),
    "empty": (b"", "in.txt is empty: expected one sentence a line"),
}


@pytest.mark.parametrize("kind", BAD_TEXT)
def test_bad_text(run, tmp_path, model_folder, kind):
    data, sentence = BAD_TEXT[kind]
    (tmp_path / "in.txt").write_bytes(data)
    found = run("embed", "in.txt", "-o", "out.hdf5", "--model", model_folder).sentence
    assert sentence in found
    assert left_behind(tmp_path, "in.txt") == []


@pytest.mark.parametrize("kind", BAD_TEXT)
def test_bad_standard_input(run, tmp_path, model_folder, kind, monkeypatch):
    data, sentence = BAD_TEXT[kind]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
    found = run("embed", "-", "-o", "out.hdf5", "--model", model_folder).sentence
    assert sentence.removeprefix("in.txt").partition(" of in.txt")[0] in found
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none.txt", "-o", "o.npz"], "there is no file none.txt"),
        ([".", "-o", "o.npz"], "is a folder, expected a text file"),
        (["in.txt", "-o", "exists.npz"], "exists.npz exists: choose another name, or pass"),
        (["in.txt", "-o", "o.txt"], "o.txt has to end in one of .hdf5, .h5, .npz"),
        (["in.txt", "-o", "none/o.npz"], "there is no folder none"),
        (["in.txt", "-o", "in.txt/o.npz"], "there is no folder in.txt"),
        (["in.txt", "-o", "o.npz", "--layers", "first"], "--layers is 'first', expected all"),
        (["in.txt", "-o", "o.npz", "--layers", "3"], "the model has layers 0 to 2"),
        (["in.txt", "-o", "o.npz", "--batch-tokens", "0"], "batch-tokens is 0, expected 1"),
        (["in.txt", "-o", "o.npz", "--rows", "4"], "add --state carry"),
        (["in.txt", "-o", "o.npz", "--device", "abacus"], "device 'abacus' cannot be used"),
        (["in.txt", "-o", "o.npz", "--weights", "w.hdf5"], "give one"),
    ],
)
def test_bad_arguments(run, text, tmp_path, model_folder, arguments, sentence):
    (tmp_path / "exists.npz").write_bytes(b"precious")
    assert sentence in run("embed", *arguments, "--model", model_folder).sentence
    assert left_behind(tmp_path, "in.txt") == ["exists.npz"]
    assert (tmp_path / "exists.npz").read_bytes() == b"precious"


def truncate(folder):
    path = folder / "weights.hdf5"
    path.write_bytes(path.read_bytes()[:-5000])


def shrink(folder):
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        del file["CNN/W_cnn_1"]
        file["CNN/W_cnn_1"] = np.zeros((1, 2, 2, 3), dtype=np.float32)


def contradict(folder):
    path = folder / "options.json"
    options = json.loads(path.read_text(encoding="utf-8"))
    options["lstm"]["projection_dim"] += 1
    path.write_text(json.dumps(options), encoding="utf-8")


def claim(folder):
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        del file["char_embed"]
        file.create_dataset("char_embed", shape=(10**7, 10**6), dtype="f4", chunks=(1000, 1000))


def unlink(folder):
    (folder / "weights.hdf5").unlink()
    (folder / "expected.hdf5").unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate, ["weights.hdf5"]),
        (shrink, ["CNN/W_cnn_1", "(1, 2, 2, 3)"]),
        (contradict, ["weights.hdf5"]),
        (claim, ["char_embed"]),
        (unlink, ["holds no model", "options.json and an .hdf5"]),
    ],
)
def test_bad_models_of_the_original_format(run, text, tmp_path, fixtures, damage, words):
    folder = shutil.copytree(fixtures / "no_highway", tmp_path / "model")
    damage(folder)
    sentence = run("embed", "in.txt", "-o", "o.npz", "--model", folder).sentence
    for word in words:
        assert word in sentence
    assert left_behind(tmp_path, "in.txt", "model") == []


def misspell(folder):
    path = folder / "config.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"cells"', '"cels"'), encoding="utf-8")


def claim_tensors(folder):
    header = {"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}
    data = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(data)) + data)


def claim_header(folder):
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + b"{}")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (misspell, ["'cels'", "nearest is 'cells'"]),
        (claim_tensors, ["model.safetensors"]),
        (claim_header, ["model.safetensors"]),
    ],
)
def test_bad_models_of_our_format(run, text, tmp_path, model_folder, damage, words):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    damage(folder)
    sentence = run("embed", "in.txt", "-o", "o.npz", "--model", folder).sentence
    for word in words:
        assert word in sentence
    assert left_behind(tmp_path, "in.txt", "model") == []


def test_a_name_that_does_not_exist(run, text):
    sentence = run("embed", "in.txt", "-o", "o.npz", "--model", "ai2-smal", "--offline").sentence
    assert "there is no model 'ai2-smal', the nearest is 'ai2-small'" in sentence


def test_the_default_model_is_missed_clearly(run, text, monkeypatch):
    monkeypatch.setattr("torchelmo.formats.load.packaged", dict)
    sentence = run("embed", "in.txt", "-o", "o.npz").sentence
    assert "en-small, the default, is not part of this installation" in sentence
    assert "give --model a folder or a name (ai2-small, " in sentence


def test_a_published_model_that_is_not_here(run, text):
    sentence = run("embed", "in.txt", "-o", "o.npz", "--model", "ai2-small", "--offline").sentence
    assert "not on this machine and the network is off" in sentence


def test_no_permission(run, text, tmp_path, model_folder, monkeypatch):
    def mkdir(self, **_):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(parts.Path, "mkdir", mkdir)
    sentence = run("embed", "in.txt", "-o", "o.npz", "--model", model_folder).sentence
    assert "o.npz.partial cannot be read or written: Permission denied" in sentence
    assert left_behind(tmp_path, "in.txt") == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may do all")
def test_a_folder_that_may_not_be_written(run, text, tmp_path, model_folder):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    sentence = run("embed", "in.txt", "-o", "locked/o.npz", "--model", model_folder).sentence
    assert "Permission denied" in sentence


def test_interrupted(run, text, tmp_path, model_folder, monkeypatch):
    finish, done = parts.PartWriter.finish, []

    def stop(self, state=None):
        if done:
            raise KeyboardInterrupt
        finish(self, state)
        done.append(self)

    arguments = "embed", "in.txt", "-o", "o.npz", "--model", model_folder, "--window", "14"
    with monkeypatch.context() as patch:
        patch.setattr(parts.PartWriter, "finish", stop)
        result = run(*arguments)
    assert result.code == 130
    assert result.err == (
        "torchelmo: interrupted: finished lines are kept in o.npz.partial, "
        "the same command goes on\n"
    )
    assert left_behind(tmp_path, "in.txt") == ["o.npz.partial"]
    assert "8 lines, 2 of them from before" in run(*arguments).out
    monkeypatch.setattr(local, "scan", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    result = run(*arguments, "--overwrite")
    assert result[::2] == (130, "torchelmo: interrupted: nothing was finished yet\n")


def test_progress_on_a_terminal(run, text, model_folder, monkeypatch):
    monkeypatch.setattr(local._Run, "_shown", -1.0, raising=False)
    ticks = iter(range(1, 10**6))
    monkeypatch.setattr(local.time, "monotonic", lambda: float(next(ticks)))
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: True, raising=False)
    result = run("embed", "in.txt", "-o", "o.npz", "--model", model_folder, "--window", "14")
    assert result.code == 0
    assert "tokens/s" in result.err
    assert "embed:" in result.err
    assert "join:" in result.err


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on file sizes there")
@pytest.mark.parametrize("ending", ["hdf5", "npz", "parquet"])
def test_a_full_disk(tmp_path, model_folder, ending):
    """Files may grow to 300 KB: enough for each part, too little for the whole."""
    import resource

    text = write_lines(tmp_path / "in.txt", ["one two three four five"] * 800)
    output = tmp_path / f"out.{ending}"
    line, env = command(
        "embed", text, "-o", output, "--model", model_folder, "--layers", "all", "--window", "1000"
    )

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    done = subprocess.run(
        line, env=env, preexec_fn=limit, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("torchelmo: ")
    assert "File too large" in sentence
    assert f"kept in {output}.partial" in sentence
    assert left_behind(tmp_path, "in.txt") == [f"out.{ending}.partial"]
    assert not list((tmp_path / f"out.{ending}.partial").glob("*.tmp"))
    again = subprocess.run([*line, "--json"], env=env, capture_output=True, text=True, check=True)
    assert json.loads(again.stdout)["kept"] == 800
    assert left_behind(tmp_path, "in.txt") == [f"out.{ending}"]
    assert len(read_output(output)) == 800
