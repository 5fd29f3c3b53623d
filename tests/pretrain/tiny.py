"""A toy language, a corpus and a network so small that a run takes a second."""

import dataclasses
import hashlib
import random
from pathlib import Path

import numpy as np
import torch

from torchelmo.pretrain.corpus import Corpus, Split
from torchelmo.pretrain.loop import Trainer
from torchelmo.pretrain.prepare import PrepareOptions, prepare
from torchelmo.pretrain.recipe import DataRecipe, ModelRecipe, Recipe, TrainRecipe, WatchRecipe

CPU = torch.device("cpu")
ONE = {"cat": "purrs", "dog": "barks", "bird": "sings", "kettle": "whistles"}
MANY = {"cats": "purr", "dogs": "bark", "birds": "sing", "kettles": "whistle"}
COLOURS = ["red", "green", "grey", "tiny"]
PLACES = ["on the roof", "in the garden", "by the old well"]


def toy_sentence(rng):
    """Nouns tell what verb follows, and whether a determiner is possible."""
    noun, verb = rng.choice([*ONE.items(), *MANY.items()])
    words = [*([rng.choice(["a", "the"])] if noun in ONE else []), rng.choice(COLOURS), noun, verb]
    if rng.random() < 0.5:
        words += rng.choice(PLACES).split()
    if rng.random() < 0.05:
        words.append(f"{rng.choice('bcdfg')}{rng.choice('aeiou')}{rng.randrange(100)}")  # rare
    return " ".join([*words, "."])


def toy_text(documents, seed=5):
    """Documents of a few sentences, one a line, parted by blank lines."""
    rng = random.Random(seed)
    made = (
        "\n".join(toy_sentence(rng) for _ in range(rng.randint(2, 6))) for _ in range(documents)
    )
    return "\n\n".join(made) + "\n"


def toy_corpus(folder, documents=60, *, seed=5, valid=8):
    """Prepare a toy text; rare words are outside its vocabulary of 30."""
    folder.mkdir(parents=True, exist_ok=True)
    inputs = []
    for name, count, number in (("train", documents, seed), ("valid", valid, seed + 1)):
        inputs.append(folder / f"{name}.txt")
        inputs[-1].write_text(toy_text(count, number), encoding="utf-8")
    options = PrepareOptions(tokenizer="whitespace", sentences="lines", vocab_size=30)
    prepare(inputs[:1], folder / "corpus", options, valid=inputs[1:])
    return Corpus.open(folder / "corpus")


MODEL = ModelRecipe(
    characters={"filters": [[1, 4], [2, 4], [3, 8]], "dim": 4}, lstm={"cells": 16, "projection": 8}
)
TRAIN = TrainRecipe(
    batch=4,
    unroll=5,
    epochs=None,
    steps=12,
    dropout=0.2,
    negatives=12,
    learning_rate=0.1,
    seed=3,
)
DATA = DataRecipe(corpus="corpus", reset_share=0.3)
WATCH = WatchRecipe(validate=5, checkpoint=4, log=3)


def tiny_recipe(*, model=None, train=None, data=None, watch=None):
    """The tiny recipe, with keys of its sections changed."""
    return Recipe(
        model=dataclasses.replace(MODEL, **(model or {})),
        train=dataclasses.replace(TRAIN, **(train or {})),
        data=dataclasses.replace(DATA, **(data or {})),
        watch=dataclasses.replace(WATCH, **(watch or {})),
    )


def trainer(recipe, corpus, run, **options):
    return Trainer(recipe, corpus, Path(run), **{"device": CPU, **options})


def split(sentences, documents=None):
    """A text from lists of word ids."""
    ends = np.cumsum([0, *map(len, sentences)])
    tokens = np.array([word for sentence in sentences for word in sentence], dtype=np.int32)
    borders = [0, len(sentences)] if documents is None else np.cumsum([0, *documents])
    return Split(tokens, ends.astype(np.int64), np.array(borders, dtype=np.int64))


def state(trained):
    """Everything that a run carries from step to step, as bytes by name."""
    out = {name: tensor.detach().numpy() for name, tensor in trained.model.state_dict().items()}
    for parameter, kept in trained.optimizer.state.items():
        for key, value in kept.items():
            out[f"{trained.names[parameter]}.{key}"] = np.asarray(value)
    for name, levels in trained.memory.items():
        for level, (h, c) in enumerate(levels):
            out[f"{name}.{level}.h"] = h.float().numpy()  # may be bfloat16
            out[f"{name}.{level}.c"] = c.float().numpy()
    for name, place in trained.positions.items():
        out |= {f"{name}.{key}": array for key, array in place.items()}
    out["generator"] = trained.generator.get_state().numpy()
    out["step"] = np.array(trained.step)
    return {name: np.ascontiguousarray(array).tobytes() for name, array in out.items()}


def digest(trained):
    """A short name of that state."""
    parts = (name.encode() + value for name, value in sorted(state(trained).items()))
    return hashlib.sha256(b"".join(parts)).hexdigest()
