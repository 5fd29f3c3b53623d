"""Checkpoints: everything comes back, and nothing that was damaged is taken for whole."""

import contextlib
import errno
import json
import shutil
import sys

import pytest
import torch
from safetensors import SafetensorError

from pretrain.tiny import tiny_recipe, trainer
from torchelmo.errors import InputError
from torchelmo.formats import native
from torchelmo.pretrain import checkpoint

FACTS = {"best": {"perplexity": 61.5}, "words": ["naïve", "x"], "waited": 0, "share": 0.1}
TENSORS = {
    "memory": torch.arange(6.0).reshape(2, 3),
    "count": torch.tensor(7),
    "bits": torch.tensor([1, 2, 255], dtype=torch.uint8),
    "none": torch.zeros(4, 0, dtype=torch.int64),
    "turned": torch.arange(6).reshape(2, 3).t(),
}


@pytest.fixture(scope="module")
def model(corpus, tmp_path_factory):
    return trainer(tiny_recipe(), corpus, tmp_path_factory.mktemp("model")).to_model()


@pytest.fixture
def run(model, tmp_path):
    """Checkpoints of steps 5 and 10."""
    for step in (5, 10):
        checkpoint.save(tmp_path, step, model, TENSORS, {**FACTS, "mark": step})
    return tmp_path


def folders(run):
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def one_sentence(error):
    text = str(error.value)
    assert "\n" not in text
    return text


def test_round_trip(run, model):
    saved, broken = checkpoint.load_latest(run)
    assert broken == []
    assert saved.step == 10
    assert {key: saved.facts[key] for key in FACTS} == FACTS and saved.facts["mark"] == 10
    assert saved.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert saved.tensors[name].dtype == tensor.dtype
        assert torch.equal(saved.tensors[name], tensor)
    again = saved.model()
    assert again.vocabulary == model.vocabulary
    for name, tensor in model.tensors.items():
        assert torch.equal(again.tensors[name], tensor)
    for name, tensor in model.softmax.items():
        assert torch.equal(again.softmax[name], tensor)
    assert native.read(saved.folder).config == model.config  # a model folder like any other


def test_no_checkpoint(tmp_path):
    assert checkpoint.load_latest(tmp_path) == (None, [])
    (tmp_path / "checkpoints").mkdir()
    assert checkpoint.load_latest(tmp_path) == (None, [])


def names(run):
    return sorted(path.name for path in (run / "checkpoints" / "step-00000010").iterdir())


def test_every_file_has_a_sum(run):
    facts = json.loads((run / "checkpoints/step-00000010/training.json").read_text("utf-8"))
    assert sorted([*facts["sha256"], "training.json"]) == names(run)


@pytest.mark.parametrize("damage", ["flip first", "flip last", "cut", "empty", "delete"])
def test_damage_is_seen_and_the_one_before_is_used(run, damage):
    for name in names(run):
        path = run / "checkpoints" / "step-00000010" / name
        whole = path.read_bytes()
        changed = bytearray(whole)
        if damage.startswith("flip"):
            changed[0 if damage == "flip first" else -1] ^= 1
        elif damage == "cut":
            del changed[len(whole) // 2 :]
        elif damage == "empty":
            changed.clear()
        path.write_bytes(changed)
        if damage == "delete":
            path.unlink()
        with pytest.raises(InputError) as error:
            checkpoint.load(path.parent)
        assert "step-00000010" in one_sentence(error)
        saved, broken = checkpoint.load_latest(run)
        assert (saved.step, saved.facts["mark"]) == (5, 5)
        assert broken == [str(error.value)]
        path.write_bytes(whole)
    assert checkpoint.load_latest(run)[0].step == 10


def test_a_bit_of_any_byte_of_the_facts(run):
    """A flipped bit is found, unless the text still says the same (1e-05 is 1E-05)."""
    folder = run / "checkpoints" / "step-00000010"
    path = folder / "training.json"
    whole = path.read_bytes()
    said = checkpoint.load(folder).facts
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << (place * 5 % 8)
        path.write_bytes(changed)
        with contextlib.suppress(InputError):
            assert checkpoint.load(folder).facts == said


@pytest.mark.parametrize("text", ["[]", "3", '"x"', "null", "{}", '{"self": 1}', "[" * 10_000])
def test_facts_of_another_kind(run, text):
    path = run / "checkpoints" / "step-00000010" / "training.json"
    path.write_text(text, encoding="utf-8")
    saved, broken = checkpoint.load_latest(run)
    assert saved.step == 5 and len(broken) == 1


def test_no_whole_one_is_left(run):
    for name in ("step-00000005", "step-00000010"):
        (run / "checkpoints" / name / "training.json").unlink()
    saved, broken = checkpoint.load_latest(run)
    assert saved is None
    assert ["step-00000010" in broken[0], "step-00000005" in broken[1]] == [True, True]


def test_half_written_ones_are_not_seen_and_go(run, model):
    half = run / "checkpoints" / "step-00000015.tmp"
    shutil.copytree(run / "checkpoints" / "step-00000010", half)
    (run / ".best.12ab.partial").mkdir()
    (run / ".last.12ab.old").mkdir()
    (run / "best").mkdir()
    assert checkpoint.load_latest(run)[0].step == 10
    checkpoint.save(run, 15, model, TENSORS, FACTS)  # takes the place of its half
    assert checkpoint.load_latest(run)[0].step == 15
    half.mkdir()
    checkpoint.prune(run, 2)
    assert folders(run) == ["step-00000010", "step-00000015"]
    assert sorted(path.name for path in run.iterdir()) == ["best", "checkpoints"]


@pytest.mark.parametrize(("keep", "left"), [(1, [30]), (2, [20, 30]), (3, [10, 20, 30]), (9, None)])
def test_prune_keeps_the_newest(run, model, keep, left):
    for step in (20, 30):
        checkpoint.save(run, step, model, TENSORS, FACTS)
    checkpoint.prune(run, keep)
    assert folders(run) == [f"step-{step:08d}" for step in left or [5, 10, 20, 30]]


def test_one_of_the_same_step_is_replaced(run, model):
    checkpoint.save(run, 10, model, TENSORS, {**FACTS, "mark": "new"})
    assert checkpoint.load_latest(run)[0].facts["mark"] == "new"
    assert folders(run) == ["step-00000005", "step-00000010"]


def test_broken_ones_are_set_aside(run, model):
    """Else the next prune would delete whole ones for the sake of a broken one."""
    (run / "checkpoints" / "step-00000010" / "vocab.txt").unlink()
    saved, _ = checkpoint.load_latest(run)
    checkpoint.set_aside(run, saved.step)
    assert folders(run) == ["step-00000005", "step-00000010.broken"]
    checkpoint.save(run, 8, model, TENSORS, FACTS)
    checkpoint.prune(run, 1)
    assert folders(run) == ["step-00000008", "step-00000010.broken"]
    assert checkpoint.load_latest(run)[0].step == 8


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def full_of_tensors(*_, **__):
    raise SafetensorError("I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize(
    ("place", "fail"),
    [
        ("pretrain.checkpoint.native.write_files", full),
        ("formats.tensors.save_file", full_of_tensors),
        ("pretrain.checkpoint.save_file", full),
        ("pretrain.checkpoint.save_file", full_of_tensors),
        ("pretrain.checkpoint.json.dumps", full),
        ("pretrain.checkpoint.os.replace", full),
    ],
)
def test_a_full_disk_leaves_the_one_before(run, model, monkeypatch, place, fail):
    with monkeypatch.context() as patch:
        patch.setattr(f"torchelmo.{place}", fail)
        with pytest.raises(InputError) as error:
            checkpoint.save(run, 15, model, TENSORS, FACTS)
    text = one_sentence(error)
    assert "step 15" in text and "No space left on device" in text and "goes on from there" in text
    assert folders(run) == ["step-00000005", "step-00000010"]
    assert checkpoint.load_latest(run)[0].step == 10


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
@pytest.mark.parametrize("limit", [100, 10_000, 35_000])
def test_a_file_that_may_not_grow(run, corpus, limit):
    """The system itself refuses to write on, as on a full disk."""
    from pretrain import children

    recipe = tiny_recipe(watch={"checkpoint": 3, "log": 100, "validate": 100})
    folder = run / "run"
    whole = children.finished(recipe, corpus, folder)
    shutil.rmtree(folder / "checkpoints" / "step-00000012")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    ended = children.finished(recipe, corpus, folder, disk=limit)
    assert ended["first"] == 9
    assert "cannot be written" in ended["error"] and "\n" not in ended["error"]
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    changed = {path.name for path in before if after.get(path) != before[path]}
    assert changed <= {"log.jsonl"} and {path.name for path in after.keys() - before} <= {"log.tmp"}
    assert children.finished(recipe, corpus, folder)["digest"] == whole["digest"]
