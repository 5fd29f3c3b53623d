"""The estimate against what torch allocates, and what it says when there is too little."""

import dataclasses
import itertools

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from pretrain.tiny import CPU, tiny_recipe, trainer
from torchelmo.config import ElmoConfig
from torchelmo.errors import InputError
from torchelmo.pretrain import memory
from torchelmo.pretrain.feed import Feed
from torchelmo.pretrain.memory import Memory, check_fits, estimate, first_step
from torchelmo.pretrain.recipe import DataRecipe, ModelRecipe, Recipe, TrainRecipe, read_recipe

# Large enough that the step takes more than what is between steps.
WIDE = {"lstm": {"cells": 64, "projection": 32}}
LONG = {"batch": 32, "unroll": 20}


def distinct(step):
    return len(step.spelt if step.words is None else step.words)


def allocated(recipe, corpus, folder):
    """Bytes that torch holds at most in a real step, parameters not counted."""
    return held(recipe, corpus, folder)[1]


def held(recipe, corpus, folder):
    """The same, after what it holds between forward and backward pass."""
    made = trainer(recipe, corpus, folder)
    batches = Feed(corpus, recipe, CPU, made.directions)()
    step = max((fed.step for fed in itertools.islice(batches, memory.LOOK)), key=distinct)
    batches.close()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        with made._precision():
            losses, after = made.model(step, made.memory)
            loss = torch.stack(list(losses.values())).mean()
        with record_function("half"):
            pass
        loss.backward()
        del losses, loss, after
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    half = next(event.start_ns() for event in events if event.name() == "half")
    events = [event for event in events if event.name() == "[memory]"]
    kept = sum(event.nbytes() for event in events if event.start_ns() < half)
    return kept, max(itertools.accumulate(event.nbytes() for event in events))


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
    kept, peak = held(recipe, corpus, tmp_path)
    assert found.activations == pytest.approx(kept, rel=0.03)
    # A CPU's products in bf16 turn operands round in memory of their own.
    close = 0.15 if recipe.train.precision == "bf16" else 0.03
    assert found.activations + found.gradients == pytest.approx(peak, rel=close)
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
    # Both directions, two layers, 20 steps of 64 rows. Each cell keeps six numbers: four gates, the
    # cell, what is projected. Each row keeps its input and state side by side, the output and
    # dropout's mask, 128 numbers each. Weights are kept as they were laid out for the products.
    rows = 2 * 2 * 20 * 64
    cells, narrow = rows * config.lstm.cells, rows * 4 * config.lstm.projection
    weights = 2 * 2 * config.lstm.cells * 128 * (4 + 4 + 1)
    assert one.lstm == pytest.approx(4 * (6 * cells + narrow + weights), rel=0.02)
    low = published(small(precision="bf16"), words=1000)  # but for the cell
    assert low.lstm == pytest.approx(2 * (7 * cells + narrow + weights), rel=0.03)

    double = published(small(batch=128), words=1000)
    assert double.lstm - one.lstm == pytest.approx(4 * (6 * cells + narrow), rel=0.02)
    assert double.token == pytest.approx(one.token, rel=0.02)
    assert published(small(), words=2000).token == pytest.approx(2 * one.token, rel=0.05)
    assert published(small(unroll=40), words=1000).lstm == pytest.approx(double.lstm, rel=0.02)
    more = published(small(negatives=8000), words=1000)
    # Logits go by in pieces; what is kept is the gradient of the drawn words' rows and biases.
    grown = 2 * 7000 * (128 + 1) * 4
    assert more.softmax - one.softmax == pytest.approx(grown, rel=0.01)
    assert published(small(accumulate=4), words=1000).total > one.total
    # The full softmax needs no logits of all words at once: 100 times the words, 1.3 times memory.
    full = published(small(softmax="full"), vocabulary=200_000, words=1000)
    assert full.activations + full.gradients < 6 * 200_000 * 128 * 4 + one.activations + 4e8


def test_processes_share_rows_and_hold_gradients_twice():
    alone = published(small(batch=64), words=1000)
    four = published(small(batch=256), words=1000, world=4)
    assert four.lstm == alone.lstm
    assert four.gradients - alone.gradients == alone.parameters


def test_on_a_gpu_words_are_padded_and_cut_each_at_its_length():
    cpu, gpu = (published(small(), words=1000, device=device) for device in ("cpu", "cuda"))
    assert gpu.lstm == cpu.lstm
    assert gpu.token < cpu.token / 2
    assert gpu.words == 1000
    padded = published(small(), words=1024, device="cuda")
    assert dataclasses.replace(padded, words=1000) == gpu


def test_on_a_gpu_a_recorded_step_lends_validation_no_memory():
    alone = published(small(), vocabulary=200_000, words=1000, device="cuda")
    two = published(small(batch=128), vocabulary=200_000, words=1000, device="cuda", world=2)
    assert two.activations == alone.activations
    # The logits of 1024 rows, 2^25 at a time, and their exponentials.
    assert alone.slack - two.slack > 2 * 2**25 * 4


def test_on_a_gpu_spellings_are_kept_there():
    million = 1_000_000 * 50 * 2
    found = [
        published(small(), words=100, table=size, device=device).table
        for size, device in ((million, "cpu"), (million, "cuda"), (100 * million, "cuda"))
    ]
    assert found == [0, million, 0]


@pytest.mark.parametrize(("name", "most"), [("small", 2.7e9), ("original-fast", 10.0e9)])
def test_the_estimate_is_what_a_gpu_allocated(name, most):
    # torch.cuda.max_memory_allocated of an NVIDIA H200. It knows nothing of slack, but of what is
    # not counted here: batches made ahead, spellings, workspaces of cuBLAS.
    recipe = read_recipe(name)
    config = recipe.config(ElmoConfig().characters, 100_000)
    found = estimate(config, recipe, 100_000, words=7619, device="cuda")
    assert 0.85 * most < found.total - found.slack < most
    assert found.total == pytest.approx(most, rel=0.2)


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
    with pytest.raises(InputError, match=r"needs 9\.7 GB of memory in each of 4"):
        check_fits(asked, CPU, processes=4)
    monkeypatch.setattr(memory, "available", lambda device: 8 * 10**9)
    with pytest.raises(InputError) as refusal:
        check_fits(asked, CPU)
    sentence = str(refusal.value)
    assert "training needs 9.7 GB of memory" in sentence and "this machine has 8.0 GB" in sentence
    assert advice in sentence
    monkeypatch.setattr(memory, "available", lambda device: None)  # nobody knows: no refusal
    check_fits(asked, CPU)


def test_this_machine_has_memory():
    found = memory.available(CPU)
    assert found is None or 10**8 < found < 10**14
