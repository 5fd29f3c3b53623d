"""Compare torchelmo's layers with dumps that other programs made from the same weights and text.

    python benchmarks/parity.py --weights DIR --sentences FILE \
        --dump allennlp=an.npz --dump simple_elmo=se.npz -o results/parity/original.json

DIR holds options.json and weights.hdf5; FILE one tokenised sentence a line; a dump has for line i
an array `s<i>` of shape (layers, tokens, width), computed from a zero state. The result holds the
largest absolute difference of each layer from each program. Exits with 1 if any is above --within.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import numpy as np
import torch

from torchelmo.elmo import Elmo


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--sentences", type=Path, required=True)
    parser.add_argument("--dump", action="append", required=True, metavar="NAME=FILE.npz")
    parser.add_argument("--within", type=float, default=1e-5)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()

    text = arguments.sentences.read_text(encoding="utf-8").splitlines()
    sentences = [line.split() for line in text if line.strip()]
    elmo = Elmo.from_pretrained(arguments.weights, device="cpu")
    elmo.layers(sentences[:2])
    start = time.perf_counter()
    layers = elmo.layers(sentences)
    seconds = time.perf_counter() - start

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
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    tokens = sum(map(len, sentences))
    result = {
        "name": f"parity-{arguments.output.stem}",
        "date": date.today().isoformat(),
        "commit": commit,
        "command": "python benchmarks/parity.py",
        "hardware": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "model": f"random weights, {elmo.config.lstm.cells}/{elmo.config.lstm.projection}",
        "data": f"{len(sentences)} sentences, {tokens} tokens",
        "metric": "largest absolute difference by layer",
        "seeds": [],
        "values": {
            **values,
            "within": arguments.within,
            "tokens_per_second": round(tokens / seconds),
        },
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result["values"]))
    if worst > arguments.within:
        sys.exit(1)


if __name__ == "__main__":
    main()
