"""How long the thread that makes batches takes for each, stage by stage.

    python benchmarks/feed.py CORPUS -o results/pretrain/feed.json

CORPUS is a prepared one; without it, words with frequencies like those of text are made up. Counted
is the processor's time of one thread, of which the best of several blocks of batches is taken:
other work on the machine does not count, though it empties caches. On the device "meta" the work is
that for a GPU, without the copy.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import results
import torch

from torchelmo.pretrain import feed as feeding
from torchelmo.pretrain import streams
from torchelmo.pretrain.corpus import Corpus
from torchelmo.pretrain.feed import Feed
from torchelmo.pretrain.prepare import PrepareOptions, prepare
from torchelmo.pretrain.recipe import DataRecipe, Recipe, TrainRecipe

STAGES = {
    "rows_take_sentences": (streams.Assignment, "_assign"),
    "lay_out": (streams.Stream, "_lay_out"),
    "distinct_words": (Feed, "_distinct"),
    "negatives": (Feed, "_negatives"),
    "send": (feeding, "send"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path, nargs="?")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--unroll", type=int, default=20)
    parser.add_argument("--blocks", type=int, default=8, help="best of so many")
    parser.add_argument("--device", default="meta")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        folder = arguments.corpus
        if folder is None:
            folder = made_up(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        corpus = Corpus.open(folder)
        train = TrainRecipe(batch=arguments.batch, unroll=arguments.unroll)
        device = torch.device(arguments.device)
        found = {}
        for name, independent in (("common_order", False), ("independent_orders", True)):
            data = DataRecipe(corpus="corpus", independent=independent)
            feed = Feed(corpus, Recipe(data=data, train=train), device)
            found[name] = measure(feed, arguments.blocks)
    tokens, types = corpus.train.n_tokens, corpus.types
    results.write(
        arguments.output,
        model=f"{train.batch} rows of {train.unroll}, both directions, {train.negatives} negatives",
        data=f"{tokens:,} tokens, {types:,} distinct, vocabulary {corpus.vocabulary_size:,}",
        metric=f"ms of one thread's processor time a step, best of {arguments.blocks} blocks of "
        f"{streams.BLOCK} steps; device {device}",
        values=dict(found),
    )


def measure(feed: Feed, blocks: int) -> dict[str, float]:
    """Return milliseconds a step, all and of each stage, from the block that took least."""
    spent: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        for stage, (owner, name) in STAGES.items():
            stack.enter_context(timed(owner, name, stage, spent))
        made = feed._make(0, None)  # what the thread does
        least = {"all": float("inf")}
        for _ in range(blocks):
            spent.clear()
            start = time.thread_time()
            for _ in range(streams.BLOCK):
                next(made)
            whole = time.thread_time() - start
            if whole < least["all"]:
                least = {"all": whole, **spent, "rest": whole - spent.total()}
    return {name: round(1e3 * seconds / streams.BLOCK, 3) for name, seconds in least.items()}


@contextlib.contextmanager
def timed(owner: object, name: str, stage: str, spent: Counter[str]) -> Iterator[None]:
    """Let a function add the time it takes."""
    function: Callable[..., object] = getattr(owner, name)

    def run(*arguments: object) -> object:
        start = time.thread_time()
        try:
            return function(*arguments)
        finally:
            spent[stage] += time.thread_time() - start  # type: ignore[assignment]

    setattr(owner, name, run)
    try:
        yield
    finally:
        setattr(owner, name, function)


def made_up(folder: Path, words: int = 8_000_000, types: int = 1_500_000) -> Path:
    """Prepare text in which the word of rank r comes 1/r as often as the first."""
    rng = np.random.default_rng(1)
    with (folder / "text.txt").open("w", encoding="utf-8") as file:
        while words > 0:
            length = int(rng.integers(2, 48))
            ranks = np.exp(rng.random(length) * np.log(types)).astype(np.int64)
            file.write(" ".join(np.base_repr(rank, 36).lower() for rank in ranks) + "\n")
            words -= length
    options = PrepareOptions(tokenizer="whitespace", sentences="lines")
    prepare([folder / "text.txt"], folder / "corpus", options)
    return folder / "corpus"


if __name__ == "__main__":
    main()
