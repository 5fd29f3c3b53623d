"""How fast raw text becomes a prepared corpus, on all cores.

    python benchmarks/prepare.py TEXT... -o results/pretrain/prepare.json

TEXT is whatever `torchelmo prepare` reads. The corpus is written to a temporary folder.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import results

from torchelmo.pretrain.prepare import PrepareOptions, Progress, prepare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tokenizer", default="words")
    arguments = parser.parse_args()

    phases: dict[str, float] = {}
    start = time.perf_counter()

    def note(now: Progress) -> None:
        phases[now.phase] = time.perf_counter() - start  # the last call of a phase is its end

    with tempfile.TemporaryDirectory() as folder:
        made = prepare(
            arguments.text,
            Path(folder) / "corpus",
            PrepareOptions(tokenizer=arguments.tokenizer),
            workers=arguments.workers,
            progress=note,
        )
    words = made.train.words + made.valid.words
    tokens = made.train.tokens + made.valid.tokens
    ends = list(phases.values())
    results.write(
        arguments.output,
        model=f"tokeniser {arguments.tokenizer}, {arguments.workers} processes",
        data=f"{words:,} words, {tokens:,} tokens, {made.types:,} distinct",
        metric="white-space words a second, all steps; seconds of each step",
        values={
            "words_per_second": round(words / made.seconds),
            "tokens_per_second": round(made.tokens_per_second),
            "seconds": round(made.seconds, 1),
            "minutes_for_60_million_words": round(60e6 / (words / made.seconds) / 60, 2),
            "steps": {
                name: round(end - begin, 1)
                for name, begin, end in zip(phases, [0.0, *ends], ends, strict=False)
            },
        },
    )


if __name__ == "__main__":
    main()
