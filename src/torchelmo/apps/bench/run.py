"""All of it, part by part, as one result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchelmo.apps.bench import arithmetic, embedding, machine, peers, training
from torchelmo.apps.bench.embedding import Sentences
from torchelmo.apps.bench.text import Text
from torchelmo.formats.model import Model

PARTS = ("limits", "embed", "latency", "train", "scale", "peers")

Values = dict[str, Any]  # what is written as JSON


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured."""

    parts: Sequence[str] = PARTS
    tokens: int = 4000  # of the text that is embedded
    batch_tokens: Sequence[int | None] = (None,)  # None: as the embedder chooses
    repeat: int = 3
    singles: int = 30  # sentences that go one at a time
    sizes: Sequence[int] = (1000, 10_000)  # of the texts of `scale`
    lengths: Sequence[int] = (8, 64, 512)  # of their sentences
    peer_batches: Sequence[int] = (32,)  # sentences of a peer's batch
    precisions: Sequence[training.Precision] = ("float32",)
    train: training.Run = field(default_factory=training.Run)
    limit_size: int | None = None  # of the matrices; None: by device
    pythons: dict[str, str] = field(default_factory=dict)  # interpreters of peers
    seed: int = 0


def quick(device: torch.device) -> Plan:
    """Return what takes half a minute on two cores."""
    if device.type != "cuda":
        return Plan(batch_tokens=(256, None))
    return Plan(
        tokens=200_000,
        batch_tokens=(1024, None),
        sizes=(1000, 10_000, 100_000, 1_000_000),
        precisions=("float32", "bf16"),
        train=training.Run(batch=1024, steps=20, blocks=8, tokens=2_000_000),
        singles=100,
        peer_batches=(32, 256),
    )


def full(device: torch.device) -> Plan:
    """Return what takes ten minutes, longer with large models."""
    if device.type != "cuda":
        return Plan(
            tokens=30_000,
            batch_tokens=(256, 512, None, 4096),
            repeat=5,
            singles=200,
            lengths=(8, 32, 128, 512, 2048),
            sizes=(1000, 10_000, 100_000, 1_000_000),
            train=training.Run(steps=4, blocks=5, tokens=1_000_000),
        )
    return replace(
        quick(device),
        tokens=1_000_000,
        batch_tokens=(1024, 4096, None, 65_536),
        repeat=5,
        sizes=(1000, 10_000, 100_000, 1_000_000, 10_000_000),
        train=training.Run(batch=1024, steps=50, blocks=6, tokens=5_000_000),
        singles=500,
        lengths=(8, 32, 128, 512, 2048),
    )


def measure(
    model: Model,
    plan: Plan,
    device: torch.device,
    *,
    text: Sentences | None = None,
    note: Callable[[str], None] = lambda part: None,
) -> Values:
    """Return what was measured of each part; `note` is told which comes next.

    `share` is how much of the arithmetic that the machine can do in matrix products is done.
    """
    if text is None:
        text = list(Text(plan.seed).sentences(plan.tokens))
    config = model.config
    distinct = {word for words in text for word in words}
    tokens = sum(map(len, text))
    found: Values = {
        "load": machine.load(),
        "text": {"sentences": len(text), "tokens": tokens, "distinct": len(distinct)},
        "mflop": {
            "per_token": arithmetic.per_token(config) / 1e6,
            "per_word": arithmetic.per_word(config) / 1e6,
            "per_word_of_text": arithmetic.of_words(config, distinct) / len(distinct) / 1e6,
        },
    }
    # The first part is the one whose memory is counted: later ones leave some behind.
    if "embed" in plan.parts:
        note("embed")
        machine.reset_peak(device)
        found["embed"] = embedding.throughput(
            model, text, device, batch_tokens=plan.batch_tokens, repeat=plan.repeat
        )
        found["memory"] = machine.peak(device)
    if "latency" in plan.parts:
        note("latency")
        found["latency"] = embedding.latency(
            model, text[: plan.singles], device, repeat=plan.repeat
        )
    if "scale" in plan.parts:
        note("scale")
        tokens = min(plan.tokens, 4096)
        found["scale"] = {
            "embed": list(embedding.by_size(model, plan.sizes, device, plan.seed)),
            "prepare": list(training.preparing(plan.sizes, plan.seed)),
            "sentence": list(embedding.by_length(model, plan.lengths, tokens, device, plan.seed)),
        }
    if "train" in plan.parts:
        note("train")
        found["train"] = [
            training.training(config, plan.train, device, precision)
            for precision in plan.precisions
        ]
    if "peers" in plan.parts and plan.pythons:
        note("peers")
        found["peers"] = peers.beside(
            model,
            text,
            plan.pythons,
            device,
            batches=plan.peer_batches,
            repeat=plan.repeat,
            singles=plan.singles,
        )
    if "limits" in plan.parts:
        note("limits")
        found["limits"] = machine.limits(device, size=plan.limit_size)
        for row in [*found.get("embed", ()), *found.get("train", ())]:
            limit = found["limits"].get(row["precision"])
            if limit:  # none is measured for int8
                row["share"] = row["gflops"] / limit
    return found
