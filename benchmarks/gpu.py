"""How fast a GPU embeds and trains, beside cuDNN and beside what its products and copies allow.

    python benchmarks/gpu.py --text TOKENS --corpus CORPUS -o results/speed/gpu.json

TOKENS has a sentence a line, words between blanks; CORPUS is what `torchelmo prepare` wrote, for
the training steps. Parts: the LSTMs alone, forward and with the backward pass, beside cuDNN's LSTM
of the same size, which does not clip; embedding from lists of words to layers on the device and to
arrays in host memory, all at once and by batches of sentences; one sentence at a time; texts from a
thousand tokens up; whole training steps; a step of both stacks by number of rows, beside the time
it takes to read its weights; and what GPU and host do in a small batch. Needs torch, numpy,
safetensors and regex alone.
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import pstats
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import results
import torch
from torch import Tensor, nn

from torchelmo.apps.bench import arithmetic, embedding, machine
from torchelmo.apps.bench.machine import clock
from torchelmo.config import ElmoConfig
from torchelmo.elmo import Elmo
from torchelmo.nn import gpu
from torchelmo.nn.bilm import BiLM
from torchelmo.pretrain.corpus import Corpus
from torchelmo.pretrain.loop import Trainer
from torchelmo.pretrain.recipe import read_recipe

PARTS = ("lstm", "steps", "embed", "busy", "scale", "train")
NAMES = ("small", "original")
RECIPES = {"small": "small", "original": "original-fast"}
ROWS, STEPS = 1024, 20  # of the LSTMs alone
LARGE = 1_000_000  # tokens; a shorter text is repeated, in new strings
SIZES = (256, 32)  # sentences of small batches
FUNCTIONS = 10  # of the host that are named, the slowest
Sentences = list[list[str]]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, help="for the part `train`")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--commit", help="where the code has no history")
    parser.add_argument("--data", default="", help="what the text is")
    asked = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("there is no GPU here")
    device = torch.device("cuda")
    lines = asked.text.read_text(encoding="utf-8").splitlines()
    text = [line.split() for line in lines if line.strip()]
    values: dict[str, Any] = {
        "limits": machine.limits(device),
        "text": {"sentences": len(text), "tokens": sum(map(len, text))},
    }
    for name in NAMES:
        found = values[name] = {}
        if "lstm" in asked.only:
            found["lstm"] = lstms(name, device)
        if "steps" in asked.only:
            found["steps"] = list(steps(name, device, values["limits"]))
        if "embed" in asked.only:
            found["embed"] = list(embeddings(name, text, device))
        if "busy" in asked.only:
            found["busy"] = list(busy(name, text, device))
        if "scale" in asked.only and name == "small":
            found["scale"] = list(by_size(name, text, device))
        if "train" in asked.only and asked.corpus is not None:
            found["train"] = training(name, asked.corpus, device)
        print(name, found, flush=True)
    results.write(
        asked.output,
        model="small and original, random weights",
        data=asked.data,
        metric="tokens per second",
        hardware=torch.cuda.get_device_name(device),
        commit=asked.commit,
        values=values,
    )


def lstms(name: str, device: torch.device) -> dict[str, float]:
    """Return tokens a second of both stacks in bf16: ours, which clip, and cuDNN's."""
    config = ElmoConfig.preset(name).lstm
    torch.manual_seed(0)
    bilm = BiLM(ElmoConfig.preset(name)).to(device)
    x = torch.randn(2, STEPS * ROWS, config.projection, device=device, dtype=torch.bfloat16)
    x.requires_grad_()
    memory = [bilm.zero_memory(ROWS) for _ in range(2)]
    upstream = torch.randn_like(x)
    weights = [*bilm.forward_layers.parameters(), *bilm.backward_layers.parameters()]

    def ours() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            sizes = [ROWS] * STEPS
            return bilm.stacks(["forward", "backward"], x, sizes, memory)[0][-1]

    other = nn.ModuleList(
        nn.LSTM(config.projection, config.cells, config.layers, proj_size=config.projection)
        for _ in range(2)
    ).to(device, torch.bfloat16)
    by_step = x.detach().view(2, STEPS, ROWS, -1).requires_grad_()
    theirs_up = upstream.view(2, STEPS, ROWS, -1)

    def theirs() -> Tensor:
        return torch.stack([lstm(part)[0] for lstm, part in zip(other, by_step, strict=True)])

    def both(run: Callable[[], Tensor], inputs: Sequence[Tensor], up: Tensor) -> object:
        return torch.autograd.grad(run(), inputs, up)

    def only(run: Callable[[], Tensor]) -> Tensor:
        with torch.no_grad():
            return run()

    trained = partial(both, theirs, [by_step, *other.parameters()], theirs_up)
    works: dict[str, Callable[[], object]] = {
        "forward": recorded(partial(only, ours)),
        "forward and backward": recorded(partial(both, ours, [x, *weights], upstream)),
        "cuDNN forward": partial(only, theirs),
        "cuDNN forward and backward": trained,
    }
    return {key: STEPS * ROWS / best(work, device) for key, work in works.items()}


def recorded(work: Callable[[], object]) -> Callable[[], object]:
    """Return the work as a CUDA graph, as the training loop runs it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def best(work: Callable[[], object], device: torch.device, times: int = 3, each: int = 5) -> float:
    """Return the least seconds of a piece of work, several in a row taken together."""
    work()

    def some() -> None:
        for _ in range(each):
            work()

    return min(clock(some, device) for _ in range(times)) / each


def steps(
    name: str, device: torch.device, limits: dict[str, float]
) -> Iterator[dict[str, float | str]]:
    """Yield the microseconds of a step of all layers, without gradients, as segments are run.

    And those that reading its weights takes at least, and its products at least, by the limits.
    """
    config = ElmoConfig.preset(name)
    lstm = config.lstm
    weights = lstm.layers * 2 * lstm.cells * (4 * 2 * lstm.projection + lstm.projection)
    for precision, dtype in (("float32", torch.float32), ("bf16", torch.bfloat16)):
        bilm = BiLM(config).to(device)
        stacks = gpu.Stacks([list(bilm.forward_layers), list(bilm.backward_layers)], dtype)
        for rows in (1, 8, 32, 64, 256, 1024, 2048):
            with torch.no_grad():
                home = stacks._enter(torch.zeros(1, lstm.projection, device=device))
                work = partial(home, 8, rows, fresh=True)
                for _ in range(3):
                    work()
                seconds = best(work, device, each=20) / 8
            yield {
                "precision": precision,
                "rows": rows,
                "microseconds": 1e6 * seconds,
                "weights_read": 1e6 * weights * dtype.itemsize / (1e9 * limits["copy"]),
                "multiplied": 1e6 * rows * arithmetic.per_token(config) / (1e9 * limits[precision]),
            }


def embeddings(name: str, text: Sentences, device: torch.device) -> Iterator[dict[str, Any]]:
    """Yield tokens a second of each way to embed, its words seen before if not said."""
    model = embedding.random_model(name)
    tokens = sum(map(len, text))
    copies = -(-LARGE // tokens)
    large = [" ".join(words).split(" ") for _ in range(copies) for words in text]
    ordered = sorted(text, key=len)
    for precision in ("float32", "bf16"):
        elmo = Elmo(model, precision=precision).to(device)
        device_work = partial(run_through, elmo)
        strange = [[word + "~" for word in words] for words in text]  # sets up, words unseen
        for _ in range(2):
            device_work(strange)
        row = partial(rate, precision, arithmetic.per_token(model.config))
        yield row("device", clock(partial(device_work, text), device), tokens, words="unseen")
        device_work(large)
        seconds = min(clock(partial(device_work, large), device) for _ in range(3))
        yield row("device", seconds, copies * tokens)
        elmo.layers(text)
        yield row("host", best(partial(elmo.layers, text), device, each=1), tokens)
        for size in SIZES:
            batches = [ordered[i : i + size] for i in range(0, len(ordered), size)]
            work = partial(one_by_one, elmo, batches)
            work()
            yield row("host", best(work, device, each=1), tokens, call=f"{size} sentences")
            work = partial(stream, elmo, ordered, batch_tokens(text, size))
            work()
            yield row("host", best(work, device, each=1), tokens, batch=f"{size} sentences")
        singles = [[words] for words in text[:200]]
        one_by_one(elmo, singles)
        one_by_one(elmo, singles)
        times = [clock(partial(elmo.layers, one), device) for one in singles]
        yield {"precision": precision, "to": "host", **embedding.milliseconds(times)}
        near = embedding.cosine(model, text[:64], device, precision)
        yield {"precision": precision, "least_cosine_to_float32": near}


def busy(name: str, text: Sentences, device: torch.device) -> Iterator[dict[str, Any]]:
    """Yield the milliseconds of a small batch to host memory: of GPU and host, by part.

    `host` has the functions that took longest by themselves, as the profiler of Python sees them.
    """
    model = embedding.random_model(name)
    ordered = sorted(text, key=len)
    elmos = {kind: Elmo(model, precision=kind).to(device) for kind in ("float32", "bf16")}
    for (precision, elmo), size in itertools.product(elmos.items(), SIZES):
        batches = len(text) / size
        work = partial(stream, elmo, ordered, batch_tokens(text, size))
        for _ in range(2):
            work()
        wall = best(work, device, each=1)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            work()
            torch.cuda.synchronize(device)
        times = [(e.key, e.self_device_time_total / 1e3) for e in seen.key_averages()]
        python = cProfile.Profile()
        python.runcall(work)
        rows = pstats.Stats(python).stats.items()  # type: ignore[attr-defined]
        own = sorted(((t[2], f"{Path(f).name}:{n}") for (f, _, n), t in rows), reverse=True)
        yield {
            "precision": precision,
            "sentences": size,
            "wall": 1e3 * wall / batches,
            "kernels": sum(t for key, t in times if not key.startswith("Mem")) / batches,
            "copies": sum(t for key, t in times if key.startswith("Mem")) / batches,
            "host": {key: 1e3 * seconds / batches for seconds, key in own[:FUNCTIONS]},
        }


def rate(
    precision: str, work: int, to: str, seconds: float, tokens: int, **more: object
) -> dict[str, Any]:
    """Return what is said of one way to embed."""
    speed = tokens / seconds
    said = {"precision": precision, "to": to, **more}
    return {**said, "tokens_per_second": speed, "tflops": speed * work / 1e12}


def by_size(name: str, text: Sentences, device: torch.device) -> Iterator[dict[str, float]]:
    """Yield what a token costs, and the memory, in texts of 1e3 to 1e7 tokens, never held whole.

    They are the text again and again, with every fiftieth word a new one each time.
    """
    model = embedding.random_model(name)
    for size in (1000, 10_000, 100_000, 1_000_000, 10_000_000):
        elmo = Elmo(model, precision="bf16").to(device)
        strange = [[word + "~" for word in words] for words in text]
        for _ in range(2):
            run_through(elmo, shortened(strange, size))
        machine.reset_peak(device)
        spent, done, distinct, turn = 0.0, 0, set[str](), 0
        while done < size:
            window = shortened(again(text, turn), size - done)
            distinct.update(word for words in window for word in words)
            spent += clock(partial(run_through, elmo, window), device)
            done += sum(map(len, window))
            turn += 1
        yield {
            "tokens": done,
            "distinct": len(distinct),
            "microseconds_per_token": 1e6 * spent / done,
            **machine.peak(device),
        }


def again(text: Sentences, turn: int) -> Sentences:
    """Return new strings, and every fiftieth word a new word."""
    words = [" ".join(sentence).split(" ") for sentence in text]
    for number, sentence in enumerate(words):
        for place in range(number % 50, len(sentence), 50):
            sentence[place] += str(turn)
    return words


def shortened(text: Sentences, tokens: int) -> Sentences:
    """Return sentences from the beginning up to so many tokens, one sentence at least."""
    total, end = 0, 0
    while end < len(text) and (total < tokens or end == 0):
        total += len(text[end])
        end += 1
    return text[:end]


def run_through(elmo: Elmo, sentences: Sentences) -> None:
    for _ in elmo.encoder.run(sentences):
        pass


def one_by_one(elmo: Elmo, batches: Sequence[Sentences]) -> None:
    for batch in batches:
        elmo.layers(batch)


def batch_tokens(text: Sentences, sentences: int) -> int:
    """Return the tokens of a batch of so many sentences, boundaries counted."""
    return sentences * sum(map(len, text)) // len(text) + 2 * sentences


def stream(elmo: Elmo, sentences: Sentences, batch_tokens: int) -> None:
    elmo.layers(sentences, batch_tokens=batch_tokens)


def training(name: str, corpus: Path, device: torch.device, steps: int = 200) -> dict[str, float]:
    """Return tokens a second of whole training steps, by a recipe of the package."""
    every = 25
    with tempfile.TemporaryDirectory() as folder:
        changes = [f"train.steps={steps}", f"watch.log={every}", "watch.validate=1000000"]
        recipe = read_recipe(
            Path("recipes") / f"{RECIPES[name]}.toml", [*changes, "watch.checkpoint=1000000"]
        )
        torch.cuda.reset_peak_memory_stats(device)
        trainer = Trainer(recipe, Corpus.open(corpus), Path(folder) / "run", device=device)
        speeds: list[float] = []
        trainer(lambda status: speeds.append(status.tokens_per_second))
    peak = torch.cuda.max_memory_allocated(device)
    counted = speeds[2 : steps // every]
    return {"median": statistics.median(counted), "best": max(counted), "peak_mb": peak / 1e6}


if __name__ == "__main__":
    main()
