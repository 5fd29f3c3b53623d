"""`make demo`: from two sentences to vectors, layers and neighbours, in one screen.

No trained model is packaged yet, so a tiny biLM with random weights is made on the spot: it shows
how everything fits together and that context changes a vector, not what words mean.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch

from torchelmo.config import CharacterConfig, ElmoConfig, LstmConfig
from torchelmo.elmo import Elmo
from torchelmo.formats.model import Model
from torchelmo.nn.bilm import BiLM

SENTENCES = ["My watch was a birthday gift .", "He has a gift for music ."]
CORPUS = [
    "She wrapped the present in blue paper .",
    "The gifted child plays the piano .",
    "They gave him a gift card .",
    "A lift took them to the third floor .",
]


def tiny_model() -> Model:
    """Make a random biLM of the published shape, a hundred times smaller."""
    torch.manual_seed(0)
    config = ElmoConfig(
        characters=CharacterConfig(filters=((1, 16), (2, 32), (3, 64), (4, 64)), highways=1),
        lstm=LstmConfig(cells=128, projection=32),
    )
    return Model(config, BiLM(config).state_dict())


def cosine(
    a: np.ndarray[tuple[int], np.dtype[np.float32]], b: np.ndarray[tuple[int], np.dtype[np.float32]]
) -> float:
    """Return the cosine of two vectors."""
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def main() -> None:
    """Run the demonstration."""
    print("A tiny biLM with random weights, made on the spot (no trained model is packaged yet):")
    print("it shows the mechanics; meaning comes with trained weights.\n")
    with tempfile.TemporaryDirectory() as scratch:
        Elmo(tiny_model()).save_pretrained(Path(scratch) / "tiny")
        elmo = Elmo.from_pretrained(Path(scratch) / "tiny")

    words = elmo.words(SENTENCES)
    layers = elmo.layers(words)
    for sentence, array in zip(words, layers, strict=True):
        print(
            f"{' '.join(sentence):34} -> {array.shape[0]} layers x {array.shape[1]} words"
            f" x {array.shape[2]} numbers"
        )

    first, second = (
        array[:, sentence.index("gift")] for sentence, array in zip(words, layers, strict=True)
    )
    print('\nHow alike is "gift" in the two sentences? (cosine by layer)')
    for number, (a, b) in enumerate(zip(first, second, strict=True)):
        name = "spelling alone" if number == 0 else f"LSTM layer {number}"
        print(f"  {number}  {name:15} {cosine(a, b):6.3f}")

    print('\nWho is nearest to "gift" in the second sentence?')
    for layer in (0, elmo.config.lstm.layers):
        hits = elmo.neighbours("gift", SENTENCES[1], CORPUS, count=4, layer=layer)
        print(f"  layer {layer}: " + ", ".join(f"{hit.word} {hit.score:.2f}" for hit in hits))

    print("\nYour own files:  torchelmo embed sentences.txt -o vectors.hdf5 --model FOLDER")


if __name__ == "__main__":
    main()
