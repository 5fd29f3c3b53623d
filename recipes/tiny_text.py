"""Write made-up English to train a toy model on, so that no download is needed.

    python recipes/tiny_text.py > tiny.txt

A small grammar: each paragraph stays with a few people and one topic, verbs agree with their
subject and pronouns with their person, and "watch", "gift" and "bank" have two meanings by topic.
The same seed writes the same text everywhere.
"""

from __future__ import annotations

import argparse
import random
import sys

PEOPLE = {
    "he": "Anton Bruno Carl David Emil Felix Georg Hugo Ivan Jonas".split(),
    "she": "Anna Berta Clara Dora Emma Frida Greta Hanna Ines Julia".split(),
}
KIN = {"he": "brother uncle son friend".split(), "she": "sister aunt daughter friend".split()}
ADJECTIVES = "old new small large red green quiet broken heavy cheap".split()
TIMES = "today,yesterday,in the morning,after lunch,on Sunday,before the rain".split(",")
FEELINGS = "glad tired angry proud afraid calm".split()

# Verb forms are (he ..., they ...); places come with their preposition.
TOPICS = {
    "present": {
        "things": "watch gift ring book scarf card ribbon box".split(),
        "verbs": [("buys", "buy"), ("opens", "open"), ("wraps", "wrap"), ("likes", "like")],
        "places": "at the party,in the shop,at home".split(","),
        "lines": ["the watch is a gift for {name}", "{name} wears the watch on {their} wrist"],
    },
    "music": {
        "things": "song violin piano choir concert melody drum flute".split(),
        "verbs": [
            ("plays", "play"),
            ("hears", "hear"),
            ("learns", "learn"),
            ("tunes", "tune"),
        ],
        "places": "in the hall,at school,on the stage".split(","),
        "lines": ["{name} has a gift for music", "people watch {name} play"],
    },
    "river": {
        "things": "boat fish bridge stone net bird bank current".split(),
        "verbs": [("sees", "see"), ("follows", "follow"), ("paints", "paint"), ("finds", "find")],
        "places": "by the water,under the bridge,on the bank of the river".split(","),
        "lines": ["the river runs past the old bank", "{name} sits on the bank and fishes"],
    },
    "money": {
        "things": "bank coin account bill letter price loan purse".split(),
        "verbs": [("counts", "count"), ("pays", "pay"), ("checks", "check"), ("loses", "lose")],
        "places": "at the bank,in the office,at the market".split(","),
        "lines": ["the bank opens at nine", "{name} brings the money to the bank"],
    },
}


def paragraph(rng: random.Random) -> list[str]:
    """Return the sentences of one paragraph."""
    topic = TOPICS[rng.choice(list(TOPICS))]
    pronoun = rng.choice(list(PEOPLE))
    name, their = rng.choice(PEOPLE[pronoun]), {"he": "his", "she": "her"}[pronoun]
    sentences = []
    for number in range(rng.randint(4, 8)):
        words = sentence(rng, topic, name if number == 0 else rng.choice([name, pronoun]), their)
        words = words.format(name=name, their=their)
        sentences.append(words[0].upper() + words[1:] + ".")
    return sentences


def sentence(rng: random.Random, topic: dict, who: str, their: str) -> str:
    """Return one sentence about a person or their kin."""
    kind = rng.random()
    if kind < 0.15:
        return rng.choice(topic["lines"])
    if kind < 0.3:
        return f"{who} is {rng.choice(FEELINGS)} {rng.choice(TIMES)}"
    thing, (one, many) = rng.choice(topic["things"]), rng.choice(topic["verbs"])
    if rng.random() < 0.5:
        thing = f"{rng.choice(ADJECTIVES)} {thing}"
    ending = rng.choice([f" {rng.choice(topic['places'])}", f" {rng.choice(TIMES)}", ""])
    if kind < 0.6:
        return f"{who} {one} the {thing}{ending}"
    kin = rng.choice(KIN["she" if their == "her" else "he"])
    if kind < 0.8:
        return f"{their} {kin} and {their} {rng.choice(KIN['he'])} {many} the {thing}{ending}"
    return f"{their} {kin}, who {one} the {thing}, is {rng.choice(FEELINGS)}{ending}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--paragraphs", type=int, default=12_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    for _ in range(asked.paragraphs):
        sys.stdout.write(" ".join(paragraph(rng)) + "\n\n")


if __name__ == "__main__":
    main()
