"""Sentences of our own, a tiny random biLM, and recipes whose runs take a second."""

import numpy as np

from bulk.tiny import tiny_model
from torchelmo.elmo import Elmo
from torchelmo.tasks.readers.examples import Labelled, Tagged
from torchelmo.tasks.recipe import recipe_from_json
from torchelmo.tasks.vectors import StaticVectors

ENTITIES = """
Greta|B-PER Holm|I-PER paints|O boats|O in|O Oslo|B-LOC
The|O ferry|O leaves|O Kiel|B-LOC at|O noon|O
Noor|B-PER met|O Greta|B-PER Holm|I-PER in|O New|B-LOC Harbour|I-LOC
Rain|O fell|O on|O Oslo|B-LOC all|O week|O
Lindqvist|B-ORG Mills|I-ORG bakes|O bread|O
Bread|O from|O Lindqvist|B-ORG Mills|I-ORG is|O dark|O
Ivo|B-PER sings|O
New|B-LOC Harbour|I-LOC sleeps|O ,|O Ivo|B-PER does|O not|O
We|O bought|O flour|O from|O Mills|B-ORG
Noor|B-PER Kiel|I-PER owns|O the|O ferry|O
"""
PARTS = {
    "paints": "VERB", "leaves": "VERB", "met": "VERB", "fell": "VERB", "bakes": "VERB",
    "is": "AUX", "sings": "VERB", "sleeps": "VERB", "does": "AUX", "not": "PART",
    "bought": "VERB", "owns": "VERB", "in": "ADP", "at": "ADP", "on": "ADP", "from": "ADP",
    "The": "DET", "the": "DET", "all": "DET", "We": "PRON", ",": "PUNCT", "dark": "ADJ",
}  # fmt: skip


def tagged():
    lines = [line.split() for line in ENTITIES.strip().splitlines()]
    pairs = [[cell.split("|") for cell in line] for line in lines]
    return [Tagged(tuple(w for w, _ in p), tuple(t for _, t in p)) for p in pairs]


def parts_of_speech():
    return [Tagged(e.words, tuple(PARTS.get(w, "NOUN") for w in e.words)) for e in tagged()]


def labelled():
    lines = [
        ("good", "a warm and funny film"),
        ("bad", "a cold and empty film"),
        ("good", "I would see it again"),
        ("bad", "I would not see it again"),
        ("good", "the songs are lovely"),
        ("bad", "the songs are dreadful"),
        ("so", "it is long"),
        ("so", "a film about a lake"),
        ("good", "not cold , not empty : lovely"),
        ("bad", "funny ? not once"),
    ]
    return [Labelled(tuple(text.split()), label) for label, text in lines]


def elmo():
    return Elmo(tiny_model())


def static():
    """Vectors of some of the words, in lower case, as GloVe's are."""
    words = sorted({word.lower() for e in [*tagged(), *labelled()] for word in e.words})[::2]
    values = np.random.default_rng(0).normal(size=(len(words), 6)).astype(np.float32)
    return StaticVectors("ours", words, values)


def recipe(task, **sections):
    """A recipe without dropout; sections are merged into it, None drops one."""
    tags = task in ("ner", "chunk", "pos")
    tagger = {"cells": [24], "dropout": 0.0}
    classifier = {"cells": 16, "before": 16, "hidden": [16], "dropout_input": 0.0, "dropout": 0.0}
    rate, epochs = (0.04, 20) if tags else (0.02, 48)
    data = {
        "task": task,
        "characters": {"dim": 8, "filters": 24},
        "elmo": {"model": "tiny", "where": "input", "dropout": 0.0},
        "network": tagger if tags else classifier,
        "train": {"epochs": epochs, "patience": "none", "batch": 5, "learning_rate": rate},
    }
    for name, values in sections.items():
        if values is None:
            data.pop(name, None)
        else:
            data[name] = {**data.get(name, {}), **values}
    return recipe_from_json(data, "recipe")


def write_columns(path, examples):
    lines = ["\n".join(f"{w} {t}" for w, t in zip(e.words, e.tags, strict=True)) for e in examples]
    path.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_labels(path, examples):
    text = "".join(f"{e.label}\t{' '.join(e.words)}\n" for e in examples)
    path.write_text(text, encoding="utf-8")
    return path
