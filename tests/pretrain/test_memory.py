"""The estimate against what torch allocates, and what it says when there is too little."""

import dataclasses
import itertools

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from pretrain.tiny import CPU, tiny_recipe, trainer
from torchelmo.config import ElmoConfig
from torchelmo.errors import InputError
from torchelmo.pretrain import memory
from torchelmo.pretrain.feed import Feed
from torchelmo.pretrain.memory import Memory, check_fits, estimate, first_step
from torchelmo.pretrain.recipe import DataRecipe, ModelRecipe, Recipe, TrainRecipe

# Large enough that the step takes more than what is between steps.
WIDE = {"lstm": {"cells": 64, "projection": 32}}
LONG = {"batch": 32, "unroll": 20}


def distinct(step):
    return len(step.spelt if step.words is None else step.words)


def allocated(recipe, corpus, folder):
    """Bytes that torch holds at most in a real step, parameters not counted."""
    made = trainer(recipe, corpus, folder)
    batches = Feed(corpus, recipe, CPU, made.directions)()
    step = max((fed.step for fed in itertools.islice(batches, memory.LOOK)), key=distinct)
    batches.close()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        with made._precision():
            losses, after = made.model(step, made.memory)
            loss = torch.stack(list(losses.values())).mean()
        loss.backward()
        del losses, loss, after
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate(event.nbytes() for event in events))


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"train": {"softmax": "full"}},
        {"train": {"dropout": 0.0}, "data": {"reset_share": 0.0}},
        {"train": {"precision": "bf16"}, "data": {"independent": False}},
        {"model": {"directions": "forward"}},
        {"model": {"words": True, "tie": True}, "train": {"unroll": 40}},
    ],
)
def test_the_estimate_is_what_torch_allocates(sections, corpus, tmp_path):
    recipe = tiny_recipe(
        model={**WIDE, **sections.get("model", {})},
        train={**LONG, **sections.get("train", {})},
        data=sections.get("data"),
    )
    config = recipe.config(corpus.config, corpus.vocabulary_size)
    found = estimate(config, recipe, corpus.vocabulary_size, step=first_step(corpus, recipe))
    real = allocated(recipe, corpus, tmp_path)
    assert found.activations + found.gradients == pytest.approx(real, rel=0.03)
    assert found.lstm > found.softmax > 0


def small(**train):
    options = {"batch": 64, "negatives": 1000, **train}
    return Recipe(data=DataRecipe(corpus="corpus"), train=TrainRecipe(**options))


def published(recipe, vocabulary=20_000, **options):
    return estimate(ElmoConfig.preset("small"), recipe, vocabulary, **options)


def test_parts_follow_the_recipe():
    config = ElmoConfig.preset("small")
    one = published(small(), words=1000)
    # 13.6 million weights, and 129 numbers for each word that is predicted.
    assert one.parameters == pytest.approx(4 * (13.59e6 + 20_000 * 129), rel=0.001)
    assert one.optimizer == one.parameters
    assert published(small(optimizer="adamw"), words=1000).optimizer == 2 * one.parameters
    assert one.words == 1000
    # Both directions, two layers, 20 steps of 64 rows. Each cell keeps eight numbers: four gates,
    # the cell before and after the clip, its tanh, the output. Projected ones are an eighth.
    cells = 2 * 2 * 20 * 64 * config.lstm.cells
    assert 4 * 8 * cells < one.lstm < 4 * 8.5 * cells

    double = published(small(batch=128), words=1000)
    assert double.lstm == pytest.approx(2 * one.lstm, rel=0.02)
    assert double.token == pytest.approx(one.token, rel=0.02)
    assert published(small(), words=2000).token == pytest.approx(2 * one.token, rel=0.05)
    assert published(small(unroll=40), words=1000).lstm == pytest.approx(double.lstm, rel=0.02)
    more = published(small(negatives=8000), words=1000)
    # Logits go by in pieces; what is kept is the gradient of the drawn words' rows and biases.
    grown = 2 * 7000 * (128 + 1) * 4
    assert more.softmax - one.softmax == pytest.approx(grown, rel=0.01)
    low = published(small(precision="bf16"), words=1000)
    assert 0.5 * one.lstm < low.lstm < 0.8 * one.lstm
    assert published(small(accumulate=4), words=1000).total > one.total
    # The full softmax needs no logits of all words at once: 100 times the words, 1.3 times memory.
    full = published(small(softmax="full"), vocabulary=200_000, words=1000)
    assert full.activations + full.gradients < 6 * 200_000 * 128 * 4 + one.activations + 4e8


def test_processes_share_rows_and_hold_gradients_twice():
    alone = published(small(batch=64), words=1000)
    four = published(small(batch=256), words=1000, world=4)
    assert four.lstm == alone.lstm
    assert four.gradients - alone.gradients == alone.parameters


def test_on_a_gpu_recorded_layers_are_never_freed():
    alike = {"words": 1000}
    cpu, gpu = (published(small(), **alike, device=device) for device in ("cpu", "cuda"))
    assert cpu.lstm < gpu.lstm < 2 * cpu.lstm
    assert gpu.slack < cpu.slack


def test_words_are_guessed_as_english_has_them():
    # Counted in English Wikipedia: 40,960 running words in two orders have 8,950 distinct ones, and
    # 20,480 read from both ends 7,400.
    assert published(small(batch=1024)).words == pytest.approx(8950, rel=0.05)
    common = dataclasses.replace(small(batch=1024), data=DataRecipe(corpus="c", independent=False))
    assert published(common).words == pytest.approx(7400, rel=0.05)
    assert published(small(batch=1, unroll=1)).words == 2


def test_a_model_of_words_has_no_character_network():
    recipe = Recipe(data=DataRecipe(corpus="c"), model=ModelRecipe(words=True), train=small().train)
    config = recipe.config(ElmoConfig().characters, 500)
    assert estimate(config, recipe, 500).token < 1e7


@pytest.mark.parametrize(
    ("parts", "advice"),
    [
        ({"lstm": 9e9}, "lower train.batch or train.unroll"),
        ({"softmax": 9e9}, "lower train.batch or train.negatives"),
        ({"gradients": 9e9}, "lower the size of the model, or that of the vocabulary"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(monkeypatch, parts, advice):
    asked = Memory(**{f.name: 10**8 for f in dataclasses.fields(Memory)} | parts)
    monkeypatch.setattr(memory, "available", lambda device: 20 * 10**9)
    check_fits(asked, CPU)
    with pytest.raises(InputError, match=r"needs 9\.6 GB of memory in each of 4"):
        check_fits(asked, CPU, processes=4)
    monkeypatch.setattr(memory, "available", lambda device: 8 * 10**9)
    with pytest.raises(InputError) as refusal:
        check_fits(asked, CPU)
    sentence = str(refusal.value)
    assert "training needs 9.6 GB of memory" in sentence and "this machine has 8.0 GB" in sentence
    assert advice in sentence
    monkeypatch.setattr(memory, "available", lambda device: None)  # nobody knows: no refusal
    check_fits(asked, CPU)


def test_this_machine_has_memory():
    found = memory.available(CPU)
    assert found is None or 10**8 < found < 10**14
