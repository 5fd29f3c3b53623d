"""Training against bilm-tf itself: twelve steps of five networks, its sampled softmax."""

import dataclasses
import json
import re

import h5py
import numpy as np
import pytest
import torch

from pretrain.tiny import tiny_recipe, trainer
from torchelmo.formats import bilm_tf
from torchelmo.nn.softmax import Softmax
from torchelmo.pretrain import loop
from torchelmo.pretrain.corpus import Corpus
from torchelmo.pretrain.evaluate import validate
from torchelmo.pretrain.objective import (
    LanguageModel,
    Negatives,
    full_loss,
    log_expected,
    sampled_loss,
)
from torchelmo.pretrain.prepare import PrepareOptions, prepare
from torchelmo.pretrain.streams import UNKNOWN_ID, Stream

TRACES = ["basic", "clipped", "noskip_tanh", "one_layer", "no_projection"]
NAMES = {  # of TensorFlow's variables, as bilm-tf names them in its files
    "^lm/": "",
    "rnn/multi_rnn_cell/cell_": "RNN/MultiRNNCell/Cell",
    "rnn/lstm_cell": "RNN/LSTMCell",
    "lstm_cell": "LSTMCell",
    "projection/kernel": "W_P_0",
    "kernel": "W_0",
    "bias": "B",
}


def close(found, expected):
    """Within 1e-5, relative; absolute below 1."""
    found, expected = np.asarray(found, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    assert found.shape == expected.shape
    assert (np.abs(found - expected) / np.maximum(np.abs(expected), 1)).max() <= 1e-5


def prepared(folder, text, vocabulary, max_characters, *, valid=False):
    """A corpus of tokenised lines with a given vocabulary."""
    folder.mkdir()
    for name, content in (("text.txt", text), ("vocab.txt", vocabulary)):
        (folder / name).write_text(content, encoding="utf-8")
    options = PrepareOptions(
        tokenizer="whitespace", sentences="lines", max_characters=max_characters, valid_share=0.0
    )
    prepare(
        [folder / "text.txt"],
        folder / "corpus",
        options,
        valid=[folder / "text.txt"] if valid else (),
        vocabulary=folder / "vocab.txt",
    )
    return Corpus.open(folder / "corpus")


class Trace:
    """What bilm-tf wrote down of a run, and the corpus it read."""

    def __init__(self, path, folder):
        self.folder = folder
        with h5py.File(path) as file:
            facts = dict(file.attrs)
            self.data = {}
            file.visititems(lambda name, item: self._keep(name, item))
        self.options = json.loads(facts["options"])
        self.rates = facts["learning_rate"], facts["initial_accumulator_value"]
        spelling = self.options["char_cnn"]["max_characters_per_token"]
        self.corpus = prepared(folder / "text", facts["data"], facts["vocab"], spelling)
        (folder / "options.json").write_text(facts["options"], encoding="utf-8")

    def _keep(self, name, item):
        if isinstance(item, h5py.Dataset):
            self.data[name] = item[...]

    def model(self, group):
        """Read a group of variables as the model file that bilm-tf would write."""
        path = self.folder / f"{group}.hdf5"
        with h5py.File(path, "w") as file:
            for name, value in self.data.items():
                variable = name.removeprefix(f"{group}/")
                if variable == name:
                    continue
                for pattern, replacement in NAMES.items():
                    variable = re.sub(pattern, replacement, variable)
                file[variable] = value
        vocabulary = self.folder / "text" / "vocab.txt"
        return bilm_tf.read(self.folder / "options.json", path, vocabulary=vocabulary, softmax=path)

    def recipe(self):
        clip, unroll = self.options["all_clip_norm_val"], self.options["unroll_steps"]
        train = {"batch": self.options["batch_size"], "unroll": unroll, "clip_norm": clip}
        fixed = {"dropout": 0.0, "softmax": "full", "learning_rate": float(self.rates[0])}
        return tiny_recipe(
            train={**train, **fixed, "steps": 12},
            data={"shuffle": "none", "reset_share": 0.0},
            watch={"log": 1},
        )


@pytest.fixture(params=TRACES)
def trace(request, shared, tmp_path):
    return Trace(shared / f"fixtures/tf-generated/training_{request.param}.hdf5", tmp_path)


def test_batches(trace):
    corpus, steps = trace.corpus, trace.options["unroll_steps"]
    for reverse, ending in ((False, ""), (True, "_reverse")):
        stream = Stream(corpus.train, 3, steps, corpus.vocabulary_size, reverse=reverse)
        for number, (_, pairs) in zip(range(12), stream, strict=False):
            known = np.where(pairs.inputs < corpus.vocabulary_size, pairs.inputs, UNKNOWN_ID)
            spelled = corpus.characters[pairs.inputs].astype(np.int64) - 1  # theirs count from 0
            for found, name in (
                (known, "token_ids"),
                (pairs.targets, "next_token_id"),
                (spelled, "tokens_characters"),
            ):
                expected = trace.data[f"batches/{number}/{name}{ending}"]
                np.testing.assert_array_equal(found, expected)


def test_twelve_steps(trace, tmp_path, monkeypatch):
    """The whole way: prepared text, feed, losses, clipping, Adagrad."""
    losses, norms = [], []

    class Watched(LanguageModel):
        def forward(self, step, memory):
            found = super().forward(step, memory)
            losses.append([found[0][name].item() for name in ("forward", "backward")])
            return found

    def clip(parameters, limit):
        norms.append(clip_gradients(parameters, limit))
        return norms[-1]

    clip_gradients = loop.clip_gradients
    monkeypatch.setattr(loop, "LanguageModel", Watched)
    monkeypatch.setattr(loop, "clip_gradients", clip)
    assert trace.rates[1] == 1.0
    made = trainer(trace.recipe(), trace.corpus, tmp_path / "run", start=trace.model("initial"))
    made()
    close(losses, trace.data["losses_forward_backward"])
    close(norms, trace.data["grad_global_norm_before_clip"])
    final, sums = trace.model("final"), trace.model("final_accumulator")
    found, accumulated = made.model.bilm.state_dict(), {}
    for parameter, name in made.names.items():
        accumulated[name] = made.optimizer.state[parameter]["sum"]
    assert found.keys() == final.tensors.keys()
    for name, expected in final.tensors.items():
        close(found[name], expected)
        close(accumulated[f"bilm.{name}"], sums.tensors[name])
    for name, expected in final.softmax.items():
        close(made.model.softmax.state_dict()[name], expected)
        close(accumulated[f"softmax.{name}"], sums.softmax[name])


def test_sampled_softmax(shared):
    with h5py.File(shared / "fixtures/tf-generated/sampled_softmax.hdf5") as file:
        data = {name: torch.from_numpy(file[name][...]) for name in file}
    vocabulary, tries = len(data["b"]), 58
    softmax = Softmax(*data["W"].shape)
    softmax.load_state_dict({"weight": data["W"], "bias": data["b"]})
    labels, ids = data["labels"][:, 0], data["sampled_ids"]
    expected = log_expected(ids, vocabulary, tries)
    close(expected.exp(), data["sampled_expected_count"])
    close(log_expected(labels, vocabulary, tries).exp(), data["true_expected_count"][:, 0])
    negatives = Negatives(ids, expected, tries)
    with torch.no_grad():
        for row in range(len(labels)):  # each alone, then the mean
            one = data["inputs"][row : row + 1], labels[row : row + 1]
            close(sampled_loss(softmax, *one, negatives), data["loss"][row])
            close(full_loss(softmax, *one), data["full_softmax_loss"][row])
        close(sampled_loss(softmax, data["inputs"], labels, negatives), data["loss"].mean())
        close(full_loss(softmax, data["inputs"], labels), data["full_softmax_loss"].mean())


CHARACTERS = {
    "dim": 4,
    "filters": [[1, 8], [2, 8], [3, 16], [4, 32], [5, 64]],
    "activation": "tanh",
    "highways": 1,
}
LSTM = {
    "cells": 16,
    "projection": 8,
    "cell_clip": None,
    "projection_clip": None,
    "residual": False,
}


@pytest.mark.parametrize(
    "model",
    [
        {},
        pytest.param({"words": True, "directions": "forward"}, marks=pytest.mark.verify),
        pytest.param({"words": True, "tie": True}, marks=pytest.mark.verify),
        pytest.param({"words": True, "lstm": {**LSTM, "residual": True}}, marks=pytest.mark.verify),
    ],
    ids=["characters", "one direction", "shared table", "skip connections"],
)
def test_five_sentences_in_fifty_epochs(shared, tmp_path, model):
    source = shared / "fixtures/bilm-tf/tests/fixtures/train"
    text, vocabulary = ((source / name).read_text("utf-8") for name in ("data.txt", "vocab.txt"))
    corpus = prepared(tmp_path / "text", text, vocabulary, 10)
    assert corpus.train.n_tokens == 134
    recipe = tiny_recipe(
        model={"characters": CHARACTERS, "lstm": LSTM, **model},
        train={
            "batch": 2,
            "unroll": 10,
            "steps": 50 * (134 // 20),
            "dropout": 0.1,
            "negatives": 16,
            "clip_norm": 1.0,
            "learning_rate": 0.2,
        },
        data={"reset_share": 0.0, "shuffle": "sentences"},
        watch={"log": 100, "checkpoint": 1000},
    )
    made = trainer(recipe, corpus, tmp_path / "run")
    made()
    again = dataclasses.replace(corpus, valid=corpus.train)
    found = validate(made.model, again, torch.device("cpu"), made.directions)
    assert found["perplexity"] < 20
