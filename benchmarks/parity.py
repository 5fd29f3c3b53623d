"""Compare torchelmo's layers with dumps that other programs made from the same weights and text.

    python benchmarks/parity.py --weights DIR --sentences FILE \
        --dump allennlp=an.npz --dump simple_elmo=se.npz -o results/parity/original.json

DIR holds options.json and weights.hdf5; FILE one tokenised sentence a line; a dump has for line i
an array `s<i>` of shape (layers, tokens, width), computed from a zero state. The result holds the
largest absolute difference of each layer from each program. Exits with 1 if any is above --within.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import results

from torchelmo.elmo import Elmo


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--sentences", type=Path, required=True)
    parser.add_argument("--dump", action="append", required=True, metavar="NAME=FILE.npz")
    parser.add_argument("--about", default="random weights")
    parser.add_argument("--within", type=float, default=1e-5)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()

    text = arguments.sentences.read_text(encoding="utf-8").splitlines()
    sentences = [line.split() for line in text if line.strip()]
    elmo = Elmo.from_pretrained(arguments.weights, device="cpu")
    layers = elmo.layers(sentences)

    values: dict[str, object] = {}
    worst = 0.0
    for item in arguments.dump:
        name, _, path = item.partition("=")
        with np.load(path) as dump:
            differences = [
                np.abs(array - dump[f"s{number}"]).max(axis=(1, 2))
                for number, array in enumerate(layers)
            ]
            counted = len(dump.files)
        largest = np.max(differences, axis=0)
        values[name] = {
            "max_abs_by_layer": [float(f"{x:.3g}") for x in largest],
            "sentences": counted,
        }
        worst = max(worst, float(largest.max()))
    tokens = sum(map(len, sentences))
    results.write(
        arguments.output,
        model=f"{arguments.about}, {elmo.config.lstm.cells}/{elmo.config.lstm.projection}",
        data=f"{len(sentences)} sentences, {tokens} tokens",
        metric="largest absolute difference by layer",
        values={**values, "within": arguments.within},
    )
    if worst > arguments.within:
        sys.exit(1)


if __name__ == "__main__":
    main()
