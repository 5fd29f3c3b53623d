"""How fast sentences become layers: many at once, one at a time, and ever more of them.

Cold means that none of the text's words was seen before, so each distinct one is spelt and goes
through the character CNN once; seen means that the cache holds them. What a first call sets up is
not counted: other words go first, those of the text with something added.
"""

from __future__ import annotations

import inspect
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import torch

from torchelmo.apps.bench import arithmetic, machine
from torchelmo.apps.bench.machine import Times, clock
from torchelmo.apps.bench.text import Text
from torchelmo.config import ElmoConfig
from torchelmo.elmo import Elmo
from torchelmo.formats.model import Model
from torchelmo.nn.bilm import BiLM

Sentences = Sequence[Sequence[str]]
PRESETS = ("small", "medium", "original")
WINDOW = {"cpu": 8192, "cuda": 1 << 17}  # tokens that are asked for at once, of a longer text


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One way to embed."""

    batch_tokens: int | None = None  # None: what the embedder chooses
    to: str = "host"  # numpy arrays; or "device", batches of layers that stay there
    precision: str = "float32"

    def __call__(self, elmo: Elmo, sentences: Sentences) -> object:
        """Embed; the result is the layers."""
        if self.to == "device":
            return list(elmo.encoder.run(sentences, batch_tokens=self.batch_tokens))
        return elmo.layers(sentences, batch_tokens=self.batch_tokens)


@dataclass
class Measured:
    """Seconds of a setting by round."""

    setting: Setting
    cold: list[float] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)


def random_model(name: str, seed: int = 0) -> Model:
    """Return a model of a published size with random weights."""
    config = ElmoConfig.preset(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model(config, BiLM(config).state_dict())


def precisions(device: torch.device) -> tuple[str, ...]:
    """Return the precisions that the embedder offers on a device."""
    if "precision" not in inspect.signature(Elmo).parameters:
        return ("float32",)
    return ("float32", "bf16", "int8") if device.type == "cpu" else ("float32", "bf16")


def make(model: Model, device: torch.device, precision: str = "float32") -> Elmo:
    """Return an embedder of a precision."""
    asked: dict[str, Any] = {} if precision == "float32" else {"precision": precision}
    return Elmo(model, **asked).to(device)


def fresh(model: Model, device: torch.device, setting: Setting, warm: Sentences) -> Elmo:
    """Return an embedder that is set up and has seen no word of the text."""
    elmo = make(model, device, setting.precision)
    others = [[f"{word}~~" for word in words] for words in warm]
    for window in windows(others, window_size(device)):
        setting(elmo, window)
    return elmo


def window_size(device: torch.device) -> int:
    """Return how many tokens are asked for at once."""
    return WINDOW.get(device.type, 8192)


def windows(sentences: Iterable[Sequence[str]], tokens: int) -> Iterator[list[Sequence[str]]]:
    """Cut a text into pieces of about so many tokens, at ends of sentences."""
    piece: list[Sequence[str]] = []
    count = 0
    for words in sentences:
        piece.append(words)
        count += len(words)
        if count >= tokens:
            yield piece
            piece, count = [], 0
    if piece:
        yield piece


def throughput(
    model: Model,
    text: Sentences,
    device: torch.device,
    *,
    batch_tokens: Sequence[int | None] = (None,),
    repeat: int = 3,
) -> list[dict[str, Any]]:
    """Return tokens a second of each way to embed, cold and seen, measured by turns."""
    places = ("device", "host") if device.type != "cpu" else ("host",)
    settings = [Setting(batch_tokens=n, to=to) for n, to in product(batch_tokens, places)]
    others = precisions(device)[1:]
    sizes = batch_tokens if device.type == "cuda" else (None,)
    settings += [
        Setting(batch_tokens=n, to=to, precision=kind)
        for kind, n, to in product(others, sizes, places)
    ]
    measured = [Measured(setting) for setting in settings]
    for _ in range(repeat):
        for one in measured:
            one_round(one, model, text, device)
    near = {kind: cosine(model, text[:64], device, kind) for kind in others}
    rows = [row for one in measured for row in _rows(model.config, text, one)]
    return [
        {**row, "cosine": near[row["precision"]]} if row["precision"] in near else row
        for row in rows
    ]


def cosine(model: Model, text: Sentences, device: torch.device, precision: str) -> float:
    """Return the least cosine between a token's vector, in any layer, and that in float32."""
    pairs = zip(
        make(model, device).layers(text, as_tensors=True),
        make(model, device, precision).layers(text, as_tensors=True),
        strict=True,
    )
    near = (torch.cosine_similarity(a.float(), b.float(), dim=-1).min() for a, b in pairs)
    return min(float(x) for x in near)


def one_round(one: Measured, model: Model, text: Sentences, device: torch.device) -> None:
    """Embed a text twice by an embedder that has not seen its words, and note the seconds."""
    # Shapes matter on a GPU, which is set up for each; a processor only has to be warm.
    elmo = fresh(model, device, one.setting, text if device.type == "cuda" else text[:64])
    for times in (one.cold, one.seen):
        spent = 0.0
        for window in windows(text, window_size(device)):
            spent += clock(partial(one.setting, elmo, window), device)
        times.append(spent)


def _rows(config: ElmoConfig, text: Sentences, one: Measured) -> Iterator[dict[str, Any]]:
    tokens = sum(map(len, text))
    distinct = {word for words in text for word in words}
    running = tokens * arithmetic.per_token(config)
    spelling = arithmetic.of_words(config, distinct)
    for words, seconds in (("cold", one.cold), ("seen", one.seen)):
        times = Times(seconds)
        work = running + (spelling if words == "cold" else 0)
        yield {
            "words": words,
            "batch_tokens": one.setting.batch_tokens,
            "to": one.setting.to,
            "precision": one.setting.precision,
            "tokens_per_second": tokens / times.best,
            "median": tokens / times.median,
            "gflops": work / times.best / 1e9,
        }


def latency(
    model: Model, text: Sentences, device: torch.device, repeat: int = 1
) -> dict[str, dict[str, float]]:
    """Return the milliseconds of one sentence at a time: median, and that of nine in ten."""
    rounds = [one_by_one(model, text, device) for _ in range(repeat)]
    return {
        name: milliseconds([seconds for one in rounds for seconds in one[name]])
        for name in ("cold", "seen")
    }


def one_by_one(model: Model, text: Sentences, device: torch.device) -> dict[str, list[float]]:
    """Return the seconds of each sentence alone, cold and then with its words seen."""
    setting = Setting()
    elmo = fresh(model, device, setting, text[:8])
    for words in text[:8]:  # one at a time is a way of its own
        setting(elmo, [[f"{word}~~~" for word in words]])
    return {
        name: [clock(partial(setting, elmo, [words]), device) for words in text]
        for name in ("cold", "seen")
    }


def milliseconds(times: Sequence[float]) -> dict[str, float]:
    """Return the median and the ninth decile of some seconds, in ms.

    >>> milliseconds([0.001, 0.002, 0.003])
    {'median_ms': 2.0, 'p90_ms': 3.0}
    """
    ordered = sorted(times)
    ninth = ordered[min(int(0.9 * len(ordered)), len(ordered) - 1)]
    return {"median_ms": 1e3 * statistics.median(ordered), "p90_ms": 1e3 * ninth}


def by_length(
    model: Model, lengths: Sequence[int], tokens: int, device: torch.device, seed: int = 0
) -> Iterator[dict[str, float]]:
    """Yield what a token costs in texts of as many tokens, in ever longer sentences."""
    setting = Setting()
    for length in lengths:
        made = Text(seed)
        text = [made.sentence(length) for _ in range(-(-tokens // length))]
        measured = Measured(setting)
        one_round(measured, model, text, device)
        count = length * len(text)
        yield {
            "words": length,
            "microseconds_per_token": 1e6 * measured.cold[0] / count,
            "seen": 1e6 * measured.seen[0] / count,
        }


def by_size(
    model: Model, sizes: Sequence[int], device: torch.device, seed: int = 0
) -> Iterator[dict[str, float]]:
    """Yield what a token costs, and the memory, for ever longer texts that are never held whole."""
    setting = Setting(to="host" if device.type == "cpu" else "device")
    for size in sizes:
        elmo = fresh(model, device, setting, list(Text(seed + 1).sentences(1000)))
        machine.reset_peak(device)
        text, spent = Text(seed), 0.0
        for window in windows(text.sentences(size), window_size(device)):
            spent += clock(partial(setting, elmo, window), device)
        yield {
            "tokens": size,
            "distinct": text.types,
            "microseconds_per_token": 1e6 * spent / size,
            **machine.peak(device),
        }
