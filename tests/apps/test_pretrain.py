"""`torchelmo pretrain`: what it says, where it stops, and that it goes on."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from pretrain.tiny import toy_corpus
from torchelmo.elmo import Elmo
from torchelmo.formats import native
from torchelmo.pretrain import checkpoint, memory

RECIPE = """
[model]
characters = { filters = [[1, 4], [2, 4], [3, 8]], dim = 4 }
lstm = { cells = 16, projection = 8 }

[data]
corpus = "corpus"
reset_share = 0.3

[train]
batch = 4
unroll = 5
steps = 12
negatives = 12
dropout = 0.2

[watch]
validate = 5
checkpoint = 4
log = 3
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return toy_corpus(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def here(tmp_path, prepared):
    """A folder with the recipe and its corpus, which is the current one."""
    shutil.copytree(prepared.folder, tmp_path / "corpus")
    (tmp_path / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    return tmp_path


def weights(folder):
    return [(folder / name).read_bytes() for name in ("model.safetensors", "softmax.safetensors")]


def steps(run):
    """The checkpoints that are there."""
    return sorted(int(path.name[5:]) for path in (run / "checkpoints").iterdir())


def test_a_run_says_what_it_does_and_leaves_models(run, here, prepared):
    done = run("pretrain", "recipe.toml", "-o", "out")
    assert done.code == 0
    # 12 steps of 4 x 5 predictions; an epoch predicts every word and every sentence's end.
    text = prepared.train
    pairs = text.n_tokens + text.n_sentences
    assert f"{text.n_tokens:,} tokens in {text.n_sentences:,} sentences" in done.err
    assert f"12 steps ({12 * 20 / pairs:.2f} epochs) of 20 tokens (batch 4 x unroll 5)" in done.err
    assert "M parameters" in done.err and "of memory" in done.err and "device   cpu" in done.err
    assert "going on" not in done.err
    assert "step 12: validation perplexity" in done.err
    assert done.out.splitlines()[0].startswith("out: finished at step 12, 12 of them in ")
    assert done.out.splitlines()[1].startswith("out/best: validation perplexity ")
    elmo = Elmo.from_pretrained(here / "out" / "last")
    assert elmo.layers([["the", "red", "cat"]])[0].shape == (3, 3, 16)
    assert native.read(here / "out" / "best").softmax is not None
    assert len((here / "out" / "log.jsonl").read_text(encoding="utf-8").splitlines()) == 4 + 3


def test_json_and_changes(run, here, prepared):
    changed = ("--set", "train.batch=8", "--set", "train.epochs=0.5", "--seed", "7")
    found = run("pretrain", "recipe.toml", "-o", "out", *changed, "--json")
    assert found.code == 0
    result = json.loads(found.out)
    pairs = prepared.train.n_tokens + prepared.train.n_sentences
    expected = int(0.5 * pairs / 40)
    assert (result["step"], result["steps"], result["from_step"]) == (expected, expected, 0)
    assert result["reason"] == "finished" and result["tokens"] == expected * 40
    assert result["epochs"] == pytest.approx(expected * 40 / pairs, abs=1e-4)
    assert result["best"]["perplexity"] > 1 and result["best"]["step"] <= expected
    assert result["tokens_per_second"] > 0 and result["memory_estimate"] > 4 * result["parameters"]
    model = native.read(here / "out" / "last")
    assert (
        sum(t.numel() for t in (*model.tensors.values(), *model.softmax.values()))
        == (result["parameters"])
    )
    assert model.config.training["recipe"]["train"]["seed"] == 7
    assert model.config.training["recipe"]["train"]["batch"] == 8

    again = run("pretrain", "recipe.toml", "-o", "out", *changed, "--json")
    assert json.loads(again.out)["from_step"] == expected
    other = run("pretrain", "recipe.toml", "-o", "out", *changed[:-1], "8")
    assert "holds a run of another recipe" in other.sentence


def test_word_vectors_to_start_from_are_counted(run, here, prepared):
    line = f"the{' 0.5' * 8}\n"
    (here / "vectors.txt").write_text(line, encoding="utf-8")
    changed = ("--set", "model.words=true", "--set", "model.vectors=vectors.txt")
    found = run("pretrain", "recipe.toml", "-o", "out", *changed, "--json")
    share = 100 / prepared.vocabulary_size
    assert f"vectors  of 1 words ({share:.1f}%) in vectors.txt" in found.err.splitlines()
    assert json.loads(found.out)["vectors_found"] == 1
    (here / "vectors.txt").write_text(line.replace("the", "der"), encoding="utf-8")
    sentence = run("pretrain", "recipe.toml", "-o", "other", *changed).sentence
    assert f"vectors.txt has none of the {prepared.vocabulary_size} words" in sentence
    assert not (here / "other").exists()


def test_the_corpus_is_sought_here_and_then_beside_the_recipe(run, here):
    (here / "recipes").mkdir()
    shutil.move(here / "recipe.toml", here / "recipes")
    shutil.move(here / "corpus", here / "recipes")
    short = ("--set", "train.steps=1")
    assert run("pretrain", "recipes/recipe.toml", "-o", "one", *short).code == 0
    (here / "corpus").mkdir()  # nearer, and no corpus
    assert "corpus is no prepared corpus" in (
        run("pretrain", "recipes/recipe.toml", "-o", "two", *short).sentence
    )
    assert run("pretrain", "recipes/recipe.toml", "-o", "one", *short).code == 2
    whole = ("--set", f"data.corpus={(here / 'recipes' / 'corpus').as_posix()}")
    assert run("pretrain", "recipes/recipe.toml", "-o", "three", *short, *whole).code == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--set", "train.bach=3"], "has no key 'bach', the nearest is 'batch'"),
        (["--set", "trian.batch=3"], "there is no section 'trian', the nearest is 'train'"),
        (["--set", "train.batch"], "expected section.key=value"),
        (["--set", "train.batch=large"], "train.batch is 'large', expected int"),
        (["--set", "train.batch=0"], "train.batch is 0, expected 1 or more"),
        (["--set", "train.optimizer=sgd"], "expected one of adagrad, adamw"),
        (["--set", "data.corpus=nowhere"], "nowhere is no prepared corpus"),
        (["--set", "train.batch=4000"], "a step takes 20,000"),
        (["--device", "cuda:9"], "device 'cuda:9' cannot be used here"),
        (["--device", "gpu"], "device 'gpu' cannot be used here"),
        (["--set", "model.lstm.cells=8", "--set", "model.lstm.cels=8"], "has no key 'cels'"),
        (["--set", "model.characters.scheme=jamo"], "model.characters.scheme is the corpus's"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(run, here, arguments, expected):
    found = run("pretrain", "recipe.toml", "-o", "out", *arguments)
    assert expected in found.sentence
    assert not (here / "out").exists()


def test_bad_files_are_one_sentence(run, here):
    assert "nowhere.toml cannot be read" in run("pretrain", "nowhere.toml", "-o", "out").sentence
    (here / "bad.toml").write_text("[train\n", encoding="utf-8")
    assert "bad.toml is not a TOML file" in run("pretrain", "bad.toml", "-o", "out").sentence
    (here / "key.toml").write_text(RECIPE.replace("unroll", "unrol"), encoding="utf-8")
    assert "has no key 'unrol', the nearest" in run("pretrain", "key.toml", "-o", "out").sentence
    assert "recipe.toml is a file" in run("pretrain", "recipe.toml", "-o", "recipe.toml").sentence
    found = run("pretrain", "recipe.toml", "-o", "corpus").sentence
    assert "corpus holds characters.npy and no training run" in found
    words = (here / "corpus" / "vocab.txt").read_text(encoding="utf-8")
    (here / "corpus" / "vocab.txt").write_text(words.replace("<S>", "the", 1), encoding="utf-8")
    found = run("pretrain", "recipe.toml", "-o", "out").sentence
    assert "begins with the, </S>, <UNK>, expected <S>, </S>, <UNK>" in found
    assert not (here / "out").exists()


def test_too_little_memory_is_refused_before_anything_is_made(run, here, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda device: 100_000)
    found = run("pretrain", "recipe.toml", "-o", "out").sentence
    assert "this machine has 0 MB: lower " in found
    assert not (here / "out").exists()


def test_tensorboard_is_an_extra(run, here, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    found = run("pretrain", "recipe.toml", "-o", "out", "--set", "watch.tensorboard=true")
    assert "watch.tensorboard needs tensorboard: pip install 'torchelmo[train]'" in found.sentence
    assert not (here / "out").exists()


def test_curves_for_tensorboard(run, here):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    wanted = ("--set", "watch.tensorboard=true", "--set", "watch.log=4")
    assert run("pretrain", "recipe.toml", "-o", "out", *wanted).code == 0
    events = EventAccumulator(str(here / "out" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [4, 8, 12]
    assert [event.step for event in events.Scalars("valid/perplexity")] == [5, 10, 12]
    assert set(events.Tags()["scalars"]) == {
        *(f"train/{name}" for name in ("loss", "learning_rate", "tokens_per_second")),
        *(f"valid/{name}" for name in ("perplexity", "forward", "backward")),
    }


def test_interrupted_it_saves_and_the_same_command_goes_on(run, here):
    long = ("--set", "train.steps=400", "--set", "watch.log=1", "--set", "watch.checkpoint=1000")
    assert run("pretrain", "recipe.toml", "-o", "whole", *long).code == 0

    def interrupt():
        log = here / "out" / "log.jsonl"
        while not log.exists() or not log.stat().st_size:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    stopped = run("pretrain", "recipe.toml", "-o", "out", *long)
    thread.join()
    assert stopped.code == 130
    (step,) = steps(here / "out")
    assert 0 < step < 400
    last = stopped.err.splitlines()[-1]
    assert last == f"torchelmo: stopped and saved at step {step}: the same command goes on"
    assert stopped.out == ""
    assert not (here / "out" / "last").exists()
    finished = run("pretrain", "recipe.toml", "-o", "out", *long)
    assert finished.code == 0
    assert f"going on from step {step}" in finished.err
    assert weights(here / "out" / "last") == weights(here / "whole" / "last")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGTERM there")
def test_terminated_it_saves_and_exits_with_143(here):
    command = [sys.executable, "-c", "from torchelmo.apps.cli import main; main()"]
    command += ["pretrain", "recipe.toml", "-o", "out", "--set", "train.steps=1000000", "--json"]
    command += ["--set", "watch.log=1", "--set", "watch.checkpoint=1000000"]
    with subprocess.Popen(
        command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        log = here / "out" / "log.jsonl"
        while process.poll() is None and not (log.exists() and log.stat().st_size):
            time.sleep(0.01)
        process.terminate()
        out, err = process.communicate(timeout=120)
    assert process.returncode == 143, err
    result = json.loads(out)
    (step,) = steps(here / "out")
    assert (result["reason"], result["step"]) == ("stopped", step)
    assert f"torchelmo: stopped and saved at step {step:,}: the same command goes on" in err
    saved, broken = checkpoint.load_latest(here / "out")
    assert saved.step == step and not broken


def test_broken_checkpoints_are_told(run, here):
    assert run("pretrain", "recipe.toml", "-o", "out").code == 0
    path = here / "out" / "checkpoints" / "step-00000012" / "training.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    before = weights(here / "out" / "last")
    again = run("pretrain", "recipe.toml", "-o", "out", "--json")
    assert again.code == 0
    assert "torchelmo: warning: " in again.err and "training.safetensors is damaged" in again.err
    assert "going on from step 8" in again.err
    assert len(json.loads(again.out)["passed_over"]) == 1
    assert weights(here / "out" / "last") == before
