"""How fast text becomes character ids: tokens a second on one core.

    python benchmarks/encode.py TEXT -o results/text/encode.json

TEXT is plain UTF-8. Each distinct word is spelt once, so the cost is that of the distinct words.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import results

from torchelmo.config import CharacterConfig
from torchelmo.text.batching import WordTable
from torchelmo.text.characters import Characters
from torchelmo.text.words import get_tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    lines = arguments.text.read_text(encoding="utf-8").splitlines()

    tokenizer = get_tokenizer("words")
    start = time.perf_counter()
    sentences = [tokenizer.words(line) for line in lines]
    split = time.perf_counter() - start

    tokens = sum(map(len, sentences))
    start = time.perf_counter()
    table = WordTable()
    for words in sentences:
        table.ids(words)
    Characters(CharacterConfig()).encode(list(table))
    spelt = time.perf_counter() - start
    results.write(
        arguments.output,
        model="bytes, 50 a word",
        data=f"{tokens:,} tokens, {len(table):,} distinct",
        metric="tokens a second, one core",
        values={
            "words_to_ids": round(tokens / spelt),
            "text_to_words": round(tokens / split),
            "text_to_ids": round(tokens / (split + spelt)),
        },
    )


if __name__ == "__main__":
    main()
