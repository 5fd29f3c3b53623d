"""Runs: stopped and gone on with they end alike, bit for bit; what they refuse; what they leave."""

import dataclasses
import json
import random
import shutil
import sys
import threading

import numpy as np
import pytest
import torch

from pretrain.tiny import CPU, digest, split, state, tiny_recipe, toy_corpus, trainer
from torchelmo import Elmo
from torchelmo.errors import InputError
from torchelmo.formats import native
from torchelmo.nn.softmax import Softmax
from torchelmo.pretrain import checkpoint, loop
from torchelmo.pretrain.corpus import Corpus
from torchelmo.pretrain.evaluate import first_tokens, validate
from torchelmo.pretrain.loop import Trainer, difference, learning_rate
from torchelmo.pretrain.objective import LanguageModel
from torchelmo.pretrain.plan import plan
from torchelmo.pretrain.processes import Processes
from torchelmo.pretrain.recipe import TrainRecipe
from torchelmo.pretrain.word_vectors import fill_vectors

KINDS = {
    "adagrad": {},
    "adamw": {
        "train": {
            "optimizer": "adamw",
            "learning_rate": 0.01,
            "weight_decay": 0.1,
            "schedule": "cosine",
            "warmup": 3,
            "accumulate": 2,
            "loss_scale": "one",
            "softmax": "full",
        },
        "data": {"independent": False, "shuffle": "sentences"},
    },
    "words": {"model": {"words": True, "tie": True}, "train": {"accumulate": 2}},
    "forward": {"model": {"directions": "forward"}},
    "bf16": {"train": {"precision": "bf16"}},
    "adaptive": {"train": {"softmax": "adaptive", "cutoffs": (8, 16), "div_value": 2.0}},
}


def stop_after(steps):
    """A way to ask for a stop at the nth step from here."""
    left = iter(range(steps - 1, -1, -1))
    return lambda: next(left) == 0


def log_of(run):
    """The lines of the log, but for how fast it went."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]
    return [
        {key: value for key, value in line.items() if key != "tokens_per_second"} for line in lines
    ]


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refused(*arguments, **options):
    with pytest.raises(InputError) as caught:
        trainer(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """Undisturbed runs of each kind, made when asked for."""
    home, made = tmp_path_factory.mktemp("whole"), {}

    def run(kind):
        if kind not in made:
            made[kind] = trainer(tiny_recipe(**KINDS[kind]), corpus, home / kind)
            assert made[kind]().reason == "finished"
        return made[kind]

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_stopped_and_gone_on_with_is_undisturbed(corpus, tmp_path, whole, kind):
    recipe, expected = tiny_recipe(**KINDS[kind]), whole(kind)
    stops = (5, 3, 1)  # at steps 5, 8 and 9
    for number, steps in enumerate(stops):
        result = trainer(recipe, corpus, tmp_path / "run")(stop=stop_after(steps))
        assert (result.reason, result.step) == ("stopped", sum(stops[: number + 1]))
    last = trainer(recipe, corpus, tmp_path / "run")
    assert last.step == 9 and last.passed_over == []
    assert last().reason == "finished"
    assert state(last) == state(expected)
    assert log_of(tmp_path / "run") == log_of(expected.run_folder)
    for name in ("best", "last", "checkpoints/step-00000012"):
        assert files_of(tmp_path / "run" / name) == files_of(expected.run_folder / name)


def test_one_trainer_called_again_goes_on(corpus, tmp_path, whole):
    again = trainer(tiny_recipe(), corpus, tmp_path)
    again(stop=stop_after(7))
    again()
    assert digest(again) == digest(whole("adagrad"))


def test_a_finished_run_stays_as_it_is(corpus, tmp_path, whole):
    shutil.copytree(whole("adagrad").run_folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "last")  # killed just before it was written
    again = trainer(tiny_recipe(), corpus, tmp_path / "run")
    result = again()
    assert (result.reason, result.step) == ("finished", 12)
    assert digest(again) == digest(whole("adagrad"))
    assert files_of(tmp_path / "run" / "last") == files_of(whole("adagrad").run_folder / "last")
    assert log_of(tmp_path / "run") == log_of(whole("adagrad").run_folder)


def test_a_stop_at_the_last_step_is_the_end(corpus, tmp_path):
    result = trainer(tiny_recipe(), corpus, tmp_path)(stop=stop_after(12))
    assert result.reason == "finished" and (tmp_path / "last").is_dir()


def test_others_random_numbers_change_nothing(corpus, tmp_path, whole):
    def report(status):
        torch.rand(status.step)
        np.random.seed(status.step)  # noqa: NPY002  # the old generator that others may use
        random.random()

    seeded = trainer(tiny_recipe(), corpus, tmp_path / "report")
    seeded(report)
    assert digest(seeded) == digest(whole("adagrad"))
    torch.manual_seed(5)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    trainer(tiny_recipe(), corpus, tmp_path / "quiet")()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]  # noqa: NPY002


def test_the_seed_decides(corpus, tmp_path):
    runs = [
        trainer(tiny_recipe(train={"seed": seed, "steps": 2}), corpus, tmp_path / name)
        for seed, name in ((1, "a"), (1, "b"), (2, "c"))
    ]
    for run in runs:
        run()
    assert digest(runs[0]) == digest(runs[1]) != digest(runs[2])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"train": {"batch": 5}}, "another recipe (train.batch is 4 there, 5 here)"),
        ({"train": {"steps": 13}}, "another recipe (train.steps is 12 there, 13 here)"),
        ({"data": {"shuffle": "none"}}, "(data.shuffle is 'documents' there, 'none' here)"),
        (
            {"model": {"lstm": {"cells": 12, "projection": 8}}},
            "another network (lstm.cells is 16 there, 12 here)",
        ),
    ],
)
def test_another_recipe_is_refused(corpus, whole, changes, sentence):
    assert sentence in refused(tiny_recipe(**changes), corpus, whole("adagrad").run_folder)


def test_another_corpus_is_refused_but_not_the_same_elsewhere(corpus, tmp_path, whole):
    run = whole("adagrad").run_folder
    other = toy_corpus(tmp_path / "other", seed=6)
    assert "holds a run of another corpus: choose another folder" in refused(
        tiny_recipe(), other, run
    )
    shutil.copytree(corpus.folder, tmp_path / "moved")
    moved = tiny_recipe(data={"corpus": "moved"})
    assert trainer(moved, Corpus.open(tmp_path / "moved"), run).step == 12


def test_a_broken_checkpoint_is_passed_over(corpus, tmp_path, whole):
    run = tmp_path / "run"
    trainer(tiny_recipe(watch={"keep": 1}), corpus, run)(stop=stop_after(6))
    shutil.copytree(run / "checkpoints/step-00000006", tmp_path / "good")
    undisturbed = trainer(tiny_recipe(watch={"keep": 1}), corpus, run)
    undisturbed(stop=stop_after(5))  # to step 11
    shutil.copytree(tmp_path / "good", run / "checkpoints/step-00000006")
    damaged = run / "checkpoints/step-00000011/training.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    again = trainer(tiny_recipe(watch={"keep": 1}), corpus, run)
    assert again.step == 6
    assert again.passed_over == [f"{damaged} is damaged: its checkpoint cannot be used"]
    again(stop=stop_after(2))  # to step 8: the broken one of step 11 must not outlive it
    final = trainer(tiny_recipe(watch={"keep": 1}), corpus, run)
    assert final.step == 8
    final()
    assert digest(final) == digest(whole("adagrad"))
    assert log_of(run) == log_of(whole("adagrad").run_folder)


def test_no_whole_checkpoint(corpus, tmp_path):
    trainer(tiny_recipe(), corpus, tmp_path)(stop=stop_after(5))
    for folder in (tmp_path / "checkpoints").iterdir():
        (folder / "training.json").write_text("{}", encoding="utf-8")
    assert f"no checkpoint in {tmp_path} is whole" in refused(tiny_recipe(), corpus, tmp_path)


def test_a_folder_has_one_run_at_a_time(corpus, tmp_path, whole):
    refusals = []

    def meddle(status):
        if status.step == 6:  # there is a checkpoint, of step 4
            refusals.append(refused(tiny_recipe(), corpus, tmp_path / "run"))
            with pytest.raises(InputError) as error:
                early()
            refusals.append(str(error.value))

    early = trainer(tiny_recipe(), corpus, tmp_path / "run")  # made before there was a lock
    assert not (tmp_path / "run").exists()
    first = trainer(tiny_recipe(), corpus, tmp_path / "run")
    first(meddle)
    sentence = f"another process is training in {tmp_path / 'run'}: wait for it, or choose another"
    assert len(refusals) == 2 and all(found.startswith(sentence) for found in refusals)
    assert digest(first) == digest(whole("adagrad"))
    assert log_of(tmp_path / "run") == log_of(whole("adagrad").run_folder)
    early()  # late now, and alone: the same steps again
    assert digest(early) == digest(first)


def test_the_log_of_a_killed_run_is_cut(corpus, tmp_path, whole):
    trainer(tiny_recipe(), corpus, tmp_path)(stop=stop_after(5))
    with (tmp_path / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 6, "loss": 9.9, "validation": null}\n{"step": 7, "lo')
    trainer(tiny_recipe(), corpus, tmp_path)()
    assert log_of(tmp_path) == log_of(whole("adagrad").run_folder)


def test_what_the_log_says(whole):
    made = whole("adagrad")
    lines = log_of(made.run_folder)
    losses = [line for line in lines if "loss" in line]
    validations = [line for line in lines if line.get("validation")]
    assert [line["step"] for line in losses] == [3, 6, 9, 12]
    assert [line["step"] for line in validations] == [5, 10, 12]
    assert all(line["learning_rate"] == 0.1 for line in losses)
    best = min((line["validation"] for line in validations), key=lambda found: found["perplexity"])
    assert made.best == best


def test_losses_are_means_since_the_last_line(corpus, tmp_path):
    losses = []
    every = tiny_recipe(watch={"log": 1, "validate": 100})
    trainer(every, corpus, tmp_path / "every")(lambda status: losses.append(status.loss))
    some = []
    third = tiny_recipe(watch={"log": 3, "validate": 100})
    trainer(third, corpus, tmp_path / "third")(lambda status: some.append(status.loss))
    # The last status of each is the validation.
    assert np.allclose(some[:-1], np.reshape(losses[:-1], (-1, 3)).mean(axis=1))


def test_model_folders(corpus, whole):
    made = whole("adagrad")
    for name, steps in (("best", made.best["step"]), ("last", 12)):
        elmo = Elmo.from_pretrained(made.run_folder / name)
        (layers,) = elmo.embed([["the", "grey", "cat", "purrs", "."]])
        assert layers.shape[-1] == 16 and np.isfinite(np.asarray(layers)).all()
        model = native.read(made.run_folder / name)
        assert model.config.training["steps"] == steps
        assert model.config.training["recipe"] == json.loads(json.dumps(made.recipe.to_json()))
        assert model.config.training["corpus"]["sha256"] == corpus.sha256
        assert model.vocabulary == corpus.vocabulary
        softmax = Softmax(corpus.vocabulary_size, 8)
        softmax.load_state_dict(dict(model.softmax))
        found = validate(LanguageModel(model.build(), softmax), corpus, CPU)
        step = next(line for line in log_of(made.run_folder)[::-1] if line["step"] == steps)
        assert {**found, "step": steps} == step["validation"]


@pytest.mark.parametrize("kind", ["words", "forward"])
def test_other_models_load_too(whole, kind):
    elmo = Elmo.from_pretrained(whole(kind).run_folder / "last")
    (layers,) = elmo.embed([["the", "grey", "zebra"]])
    assert layers.shape[-1] == 16


def test_one_direction_alone(whole):
    made = whole("forward")
    assert made.best.keys() == {"forward", "perplexity", "tokens", "step"}
    assert made.best["perplexity"] == made.best["forward"]
    fresh = made._network(None)[0]
    for mine, untouched in zip(
        made.model.bilm.backward_layers.parameters(),
        fresh.backward_layers.parameters(),
        strict=True,
    ):
        assert torch.equal(mine, untouched)
    assert not any(name.startswith("memory.backward") for name in made.memory)


def test_a_shared_table_stays_one(whole):
    made = whole("words")
    assert made.model.softmax.weight is made.model.bilm.token.words
    model = native.read(made.run_folder / "last")
    assert torch.equal(model.tensors["token.words"], model.softmax["weight"])


@pytest.mark.parametrize("optimizer", ["adagrad", "adamw"])
def test_validation_falls(corpus, tmp_path, optimizer):
    recipe = tiny_recipe(
        train={
            "steps": 60,
            "batch": 16,
            "optimizer": optimizer,
            "learning_rate": 0.5 if optimizer == "adagrad" else 0.02,
            "dropout": 0.0,
            "softmax": "full",
        },
        watch={"validate": 20, "checkpoint": 100},
    )
    found = []
    trainer(recipe, corpus, tmp_path)(
        lambda status: found.append(status.validation["perplexity"]) if status.validation else None
    )
    assert found == sorted(found, reverse=True)
    assert found[-1] < 12  # guessing has 30


def test_patience(corpus, tmp_path):
    recipe = tiny_recipe(
        train={"learning_rate": 1e-30}, watch={"validate": 2, "patience": 2, "checkpoint": 3}
    )
    first = trainer(recipe, corpus, tmp_path)
    result = first()
    assert (result.reason, result.step, result.best["step"]) == ("converged", 6, 2)
    assert checkpoint.load_latest(tmp_path)[0].step == 6
    shutil.rmtree(tmp_path / "last")
    again = trainer(recipe, corpus, tmp_path)
    result = again()  # it is over: nothing is trained any more
    assert (result.reason, result.step, result.best["step"]) == ("converged", 6, 2)
    assert digest(again) == digest(first) and (tmp_path / "last").is_dir()


def test_patience_counts_over_a_stop(corpus, tmp_path):
    recipe = tiny_recipe(
        train={"learning_rate": 1e-30}, watch={"validate": 2, "patience": 2, "checkpoint": 3}
    )
    trainer(recipe, corpus, tmp_path)(stop=stop_after(5))
    again = trainer(recipe, corpus, tmp_path)
    assert again.waited == 1
    assert again().step == 6


def test_without_validation_text(corpus, tmp_path):
    bare = dataclasses.replace(corpus, valid=split([], documents=[]))
    result = trainer(tiny_recipe(), bare, tmp_path)()
    assert result.reason == "finished" and result.best is None
    assert not any(line.get("validation") for line in log_of(tmp_path))
    assert not (tmp_path / "best").exists() and (tmp_path / "last").is_dir()


def test_some_of_the_validation_text(corpus, tmp_path):
    recipe = tiny_recipe(watch={"validate_tokens": 20})
    made = trainer(recipe, corpus, tmp_path)
    made()
    part = first_tokens(corpus.valid, 20)
    assert made.best["tokens"] == part.n_tokens + part.n_sentences
    assert part.n_tokens <= 20 < part.n_tokens + 10
    assert first_tokens(corpus.valid, 1).n_sentences == 1
    assert first_tokens(corpus.valid, 10**9).n_tokens == corpus.valid.n_tokens


def test_plan(corpus):
    pairs = corpus.train.n_tokens + corpus.train.n_sentences
    recipe = tiny_recipe(train={"epochs": 2.5, "steps": None, "accumulate": 3})
    found = plan(recipe, corpus, recipe.config(corpus.config, 30))
    assert found.tokens_per_step == 4 * 5 * 3
    assert found.train_pairs == pairs
    assert found.steps == int(2.5 * pairs / 60)
    assert found.epochs == pytest.approx(found.steps * 60 / pairs)
    short = tiny_recipe(train={"epochs": 1e-6, "steps": None})
    assert plan(short, corpus, short.config(corpus.config, 30)).steps == 1


@pytest.mark.parametrize("kind", ["adagrad", "words"])
def test_the_plan_counts_parameters(whole, kind):
    made = whole(kind)
    assert made.plan.parameters == sum(p.numel() for p in made.model.parameters())


def test_too_little_text(corpus, tmp_path):
    pairs = corpus.train.n_tokens + corpus.train.n_sentences
    sentence = refused(tiny_recipe(train={"batch": 400}), corpus, tmp_path)
    assert f"has {pairs:,} words to predict, a step takes 2,000 (batch 400 x unroll 5" in sentence
    empty = dataclasses.replace(corpus, train=split([], documents=[]))
    assert "has no sentence to train on" in refused(tiny_recipe(), empty, tmp_path)


def test_rows_that_cannot_be_divided(corpus, tmp_path):
    sentence = refused(tiny_recipe(), corpus, tmp_path, processes=Processes(0, 3))
    assert sentence == "train.batch (4) rows cannot be divided among 3 processes"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [1, 1, 1, 1, 1]),
        ({"warmup": 2}, [0.5, 1, 1, 1, 1]),
        ({"schedule": "linear"}, [1, 0.8, 0.6, 0.4, 0.2]),
        ({"schedule": "linear", "final_share": 0.5}, [1, 0.9, 0.8, 0.7, 0.6]),
        ({"schedule": "linear", "warmup": 1}, [1, 1, 0.75, 0.5, 0.25]),
        ({"schedule": "cosine", "warmup": 1}, [1, 1, 0.8535534, 0.5, 0.1464466]),
        ({"schedule": "cosine", "warmup": 9}, [1 / 9, 2 / 9, 3 / 9, 4 / 9, 5 / 9]),
    ],
)
def test_learning_rates(corpus, tmp_path, options, expected):
    recipe = TrainRecipe(learning_rate=1.0, **options)
    assert [learning_rate(recipe, step, 5) for step in range(5)] == pytest.approx(expected)
    # And they reach the optimizer.
    rates = []
    changes = {"learning_rate": 0.01, "steps": 5, **options}
    made = trainer(
        tiny_recipe(train=changes, watch={"log": 1, "validate": 9}), corpus, tmp_path / "run"
    )
    made(lambda _: rates.append(made.optimizer.param_groups[0]["lr"]))
    assert rates[:5] == pytest.approx([0.01 * rate for rate in expected])


def finite(run):
    saved, _ = checkpoint.load_latest(run)
    tensors = {**saved.model().tensors, **saved.tensors}
    return saved.step, all(t.isfinite().all() for t in tensors.values())


def test_a_loss_that_is_no_number(corpus, tmp_path):
    recipe = tiny_recipe(
        train={"learning_rate": 1e30}, watch={"log": 10, "checkpoint": 1, "validate": 20}
    )
    made = trainer(recipe, corpus, tmp_path)
    with pytest.raises(InputError, match=r"is (nan|inf) at step \d+: lower train") as error:
        made()
    assert "\n" not in str(error.value)
    assert finite(tmp_path) == (made.step - 1, True)


def test_a_gradient_that_is_no_number(corpus, tmp_path, monkeypatch):
    norms = iter([1.0, 2.0, 3.0, 4.0, float("inf")])
    monkeypatch.setattr(loop, "clip_gradients", lambda *_: torch.tensor(next(norms)))
    with pytest.raises(InputError, match="the gradient is inf at step 5"):
        trainer(tiny_recipe(watch={"checkpoint": 1, "log": 50}), corpus, tmp_path)()
    assert finite(tmp_path) == (4, True)


def test_clipping():
    parameters = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1))]
    for limit, share in ((10.0, 1.0), (5.0, 0.5)):
        parameters[0].grad, parameters[1].grad = torch.tensor([6.0, 0.0]), torch.tensor([8.0])
        assert loop.clip_gradients(parameters, limit).item() == pytest.approx(10)
        assert parameters[0].grad.tolist() == pytest.approx([6 * share, 0])
        assert parameters[1].grad.tolist() == pytest.approx([8 * share])


def test_several_batches_a_step_have_the_mean_of_their_gradients(corpus, tmp_path, monkeypatch):
    gradients = []

    def keep(parameters, limit):
        gradients.append([parameter.grad.clone() for parameter in parameters])
        return torch.tensor(1.0)

    monkeypatch.setattr(loop, "clip_gradients", keep)
    for number in (1, 3):  # at a rate that leaves the weights as they are
        changes = {"accumulate": number, "steps": 3 // number, "learning_rate": 1e-30}
        trainer(tiny_recipe(train=changes), corpus, tmp_path / str(number))()
    *singles, together = gradients
    assert len(singles) == 3
    for parts, whole in zip(zip(*singles, strict=True), together, strict=True):
        torch.testing.assert_close(whole, torch.stack(parts).mean(dim=0))


def test_no_thread_outlives_a_run(corpus, tmp_path):
    def report(status):
        raise RuntimeError("the terminal went away")

    with pytest.raises(RuntimeError):
        trainer(tiny_recipe(), corpus, tmp_path)(report)
    assert not [t for t in threading.enumerate() if t.name == "torchelmo-feed"]


def test_from_a_given_model(corpus, tmp_path, whole):
    start = native.read(whole("adagrad").run_folder / "last")
    made = Trainer(tiny_recipe(), corpus, tmp_path, device=CPU, start=start)
    assert made.step == 0
    for name, tensor in made.model.bilm.state_dict().items():
        assert torch.equal(tensor, start.tensors[name])
    assert torch.equal(made.model.softmax.weight, start.softmax["weight"])


def test_difference():
    assert (
        difference({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}) == " (a.c is 2 there, 3 here)"
    )
    assert difference({"a": 1}, {"a": 1, "b": 2}) == " (b is None there, 2 here)"
    assert difference({"a": [1]}, {"a": [1]}) == ""


GLOVE = """the 1 2 3
cat 4 5 6
. . 7 8 9
. 10 11 12
zebra 0 0 0
"""


def test_vectors_to_start_from(corpus, tmp_path):
    path = tmp_path / "glove.txt"
    for text in (GLOVE, f"5 3\n{GLOVE}"):  # word2vec says first how many there are
        path.write_text(text, encoding="utf-8")
        table = torch.full((4, 3), -1.0)
        assert fill_vectors(table, path, ["<S>", "the", ".", "cat"]) == 3
        assert table.tolist() == [[-1] * 3, [1, 2, 3], [10, 11, 12], [4, 5, 6]]
    path.write_text(
        "".join(f"{word} {' 0.5' * 8}".replace("  ", " ") + "\n" for word in ("the", "a"))
    )
    made = trainer(
        tiny_recipe(model={"words": True, "vectors": str(path)}), corpus, tmp_path / "run"
    )
    rows = [corpus.vocabulary.index(word) for word in ("the", "a", "cat")]
    table = made.model.bilm.token.words.detach()
    assert (table[rows[:2]] == 0.5).all() and not (table[rows[2]] == 0.5).any()
    assert made.to_model().config.training["vectors_found"] == 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("the 1 2\n", "line 1 of {path} has 2 numbers, the model's width is 3"),
        ("the 1 2 3 4\n", "line 1 of {path} has 4 numbers, the model's width is 3"),
        ("the 1 2 3\ncat 1 2\n", "line 2 of {path} has 2 numbers, the model's width is 3"),
        ("the 1 2 x\n", "{path} is not a file of word vectors: could not convert"),
        (None, "{path} is not a file of word vectors"),
        ("dog 1 2 3\n", "{path} has none of the 2 words of the vocabulary: give vectors of"),
        ("", "{path} has none of the 2 words of the vocabulary"),
    ],
)
def test_wrong_vectors(tmp_path, text, sentence):
    path = tmp_path / "glove.txt"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        fill_vectors(torch.zeros(2, 3), path, ["the", "cat"])
    assert sentence.format(path=path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
def test_three_kills(corpus, tmp_path):
    from pretrain import children

    recipe = tiny_recipe(train={"steps": 20})
    children.check_kills(recipe, corpus, tmp_path, 3, seed=1)
