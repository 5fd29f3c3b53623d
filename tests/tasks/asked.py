"""Ten questions of our own about two short texts, and a quick recipe."""

import dataclasses

from tasks.small import recipe

HARBOUR = (
    "Greta Holm built the ferry Albatross in Kiel in 1931. It carried flour and salt to Oslo, "
    "and a well-known baker named Noor met it every Friday."
)
LAKE = (
    "The lake freezes in late November. Skaters come from Lindqvist, a village on the north "
    "shore, and drink hot apple juice beside the old mill."
)
ASKED = [
    (HARBOUR, "Who built the ferry?", "Greta Holm"),
    (HARBOUR, "What was the name of the ferry?", "Albatross"),
    (HARBOUR, "Where was it built?", "Kiel"),
    (HARBOUR, "When was it built?", "1931"),
    (HARBOUR, "What did it carry?", "flour and salt"),
    (HARBOUR, "How was the baker known?", "well"),
    (LAKE, "When does the lake freeze?", "late November"),
    (LAKE, "Who comes from Lindqvist?", "Skaters"),
    (LAKE, "What do skaters drink?", "hot apple juice"),
    (LAKE, "Where is the village?", "on the north shore"),
]


def squad():
    """The questions in SQuAD's form."""
    paragraphs = [
        {
            "context": context,
            "qas": [
                {
                    "id": f"q{n}",
                    "question": question,
                    "answers": [{"text": answer, "answer_start": context.index(answer)}],
                }
                for n, (place, question, answer) in enumerate(ASKED)
                if place == context
            ],
        }
        for context in (HARBOUR, LAKE)
    ]
    return {"version": "1.1", "data": [{"title": "Two places", "paragraphs": paragraphs}]}


def quick(**sections):
    """A recipe whose runs take seconds."""
    sections = {
        "words": {"vectors": "none", "dim": 50},
        "characters": None,
        "elmo": {"where": "both", "penalty": 0.0},
        "train": {"epochs": 32, "learning_rate": 0.006},
        **sections,
    }
    network = {"cells": 32, "width": 64, "dropout": 0.0, **sections.pop("network", {})}
    return dataclasses.replace(recipe("qa", **sections), network=network)
