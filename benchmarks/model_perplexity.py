"""How well a model predicts held-out text, from a warm and from a cold start.

    python benchmarks/model_perplexity.py en-small wiki.valid.txt books.valid.txt \
        -o results/models/perplexity-en-small.json

warm   as `torchelmo perplexity --tokenize`: 32 slices of the text, the state carried on
cold   every sentence from a zero state, as `torchelmo embed` reads it

Both have the same tokens and characters, so that all figures can be compared.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import results
import torch

from torchelmo.apps.bench import machine
from torchelmo.elmo import Elmo
from torchelmo.perplexity import WordText, text_perplexity
from torchelmo.scoring import perplexity
from torchelmo.text.sentences import split_sentences


def measure(elmo: Elmo, path: Path) -> dict[str, dict[str, object]]:
    """Return the figures of one raw text."""
    text, sentences, raw = WordText(), [], []
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            cut = [elmo.tokenizer.words(span.text) for span in split_sentences(line)]
            kept = [words for words in cut if words]
            text.add(kept, line)
            sentences += kept
            raw.append(line)
    parts = elmo.encoder, elmo.softmax, elmo.vocabulary
    warm = text_perplexity(*parts, text)
    cold = perplexity(*parts, sentences, raw=raw)
    return {"warm": dataclasses.asdict(warm), "cold": dataclasses.asdict(cold)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="name or folder; it needs its softmax")
    parser.add_argument("texts", type=Path, nargs="+", help="raw text, UTF-8")
    parser.add_argument("--name", help="what to call the model")
    parser.add_argument("--device")
    parser.add_argument("--hardware", help="what to call the machine")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    elmo = Elmo.from_pretrained(arguments.model, device=arguments.device)
    lstm, name = elmo.config.lstm, arguments.name or Path(arguments.model).name
    hardware = arguments.hardware
    if hardware is None and elmo.device.type != "cpu":
        hardware = machine.describe(elmo.device)
    with torch.no_grad():
        # A model card names a figure by its keys with dots between.
        values = {path.name.split(".")[0]: measure(elmo, path) for path in arguments.texts}
    results.write(
        arguments.output,
        model=f"{name}, {lstm.cells}/{lstm.projection}",
        data=", ".join(path.name for path in arguments.texts),
        metric="perplexity, perplexity per word, bits per character: mean of both directions",
        values=values,
        hardware=hardware,
    )


if __name__ == "__main__":
    main()
