"""Short documents of our own with clusters, and their files in CoNLL-2012's columns."""

from torchelmo.tasks.readers.examples import Document
from torchelmo.tasks.recipe import recipe_from_json

# [1 a mention of cluster 1 ]; a bar ends a sentence.
STORIES = {
    "tale/boat": "[1 Mara ] sees [2 the boat ] . | [1 She ] paints [2 it ] . | Rain fell .",
    "tale/lake": "[1 Ivo ] likes [2 the lake ] . | [1 He ] sees [2 it ] and sings .",
    "tale/dog": "[1 The dog ] sleeps . | [2 Mara ] wakes [1 it ] . | [2 She ] laughs . | Rain .",
    "tale/brother": "[1 [2 Mara ] 's brother ] sings . | [2 She ] wakes [1 him ] .",
    "talk/dog": "Where is [1 the dog ] ? | [1 It ] sees [2 the lake ] . | [2 The lake ] sleeps .",
    "talk/none": "Rain fell again .",
}
SPEAKERS = {"talk/dog": ("Ann", "Bo", "Ann")}


def document(name, text):
    sentences, clusters, opened = [[]], {}, []
    place = 0
    for word in text.split():
        if word.startswith("["):
            opened.append((word[1:], place))
        elif word == "]":
            number, start = opened.pop()
            clusters.setdefault(number, []).append((start, place))
        elif word == "|":
            sentences.append([])
        else:
            sentences[-1].append(word)
            place += 1
    speakers = SPEAKERS.get(name, ("",) * len(sentences))
    found = sorted(tuple(sorted(spans)) for spans in clusters.values())
    return Document(name, tuple(map(tuple, sentences)), speakers, tuple(found))


def documents():
    return [document(name, text) for name, text in STORIES.items()]


def conll(examples):
    """The columns of *_gold_conll files."""
    out = []
    for example in examples:
        marks = [[] for _ in example.words()]
        for number, cluster in enumerate(example.clusters):
            for start, end in cluster:
                if end == start + 1:
                    marks[start].append(f"({number})")
                else:
                    marks[start].append(f"({number}")
                    marks[end - 1].append(f"{number})")
        out.append(f"#begin document ({example.name}); part 000")
        place = 0
        for words, speaker in zip(example.sentences, example.speakers, strict=True):
            for n, word in enumerate(words):
                spans = "|".join(marks[place]) or "-"
                row = [
                    example.name,
                    0,
                    n,
                    word,
                    "X",
                    "*",
                    "-",
                    "-",
                    "-",
                    speaker or "-",
                    "*",
                    spans,
                ]
                out.append("   ".join(map(str, row)))
                place += 1
            out.append("")
        out.append("#end document")
    return "\n".join(out) + "\n"


def coref_recipe(**sections):
    """A network that learns our documents by heart in seconds; None drops a section."""
    data = {
        "characters": {"dim": 8, "filters": 24},
        "elmo": {"model": "tiny", "where": "input", "dropout": 0.0, "penalty": 0.0},
        "network": {
            "cells": 24, "longest": 3, "spans": 1.5, "antecedents": 20, "hidden": [24],
            "features": 4, "sentences": 9, "dropout_input": 0.2, "dropout": 0.2,
        },
        "train": {"epochs": 70, "patience": "none", "batch": 1, "learning_rate": 0.01},
    }  # fmt: skip
    for name, values in sections.items():
        data[name] = values and {**data.get(name, {}), **values}
    kept = {name: values for name, values in data.items() if values is not None}
    return recipe_from_json({"task": "coref", **kept}, "recipe")
