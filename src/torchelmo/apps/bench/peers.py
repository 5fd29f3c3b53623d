"""Other ELMo programs on the same weights and the same text, by turns with torchelmo.

Each runs in its own interpreter and stays there while rounds go on: `peer.py` is what it runs.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from torchelmo.apps.bench import machine
from torchelmo.apps.bench import peer as runner
from torchelmo.apps.bench.embedding import (
    Measured,
    Sentences,
    Setting,
    milliseconds,
    one_by_one,
    one_round,
)
from torchelmo.apps.bench.machine import Times
from torchelmo.config import nearest
from torchelmo.elmo import Elmo
from torchelmo.errors import InputError
from torchelmo.formats import bilm_tf
from torchelmo.formats.model import Model

NAMES = tuple(runner.LOADERS)


def parse(items: Sequence[str]) -> dict[str, str]:
    """Return interpreters by program: those given as NAME=PYTHON, and those installed here."""
    found = {name: sys.executable for name in NAMES if importlib.util.find_spec(name)}
    for item in items:
        name, sign, python = item.partition("=")
        if not sign or not python:
            raise InputError(
                f"--peer is {item!r}, expected NAME=PYTHON, such as allennlp=venv/bin/python"
            )
        if name not in NAMES:
            raise InputError(f"--peer names {name!r}{nearest(name, NAMES)}")
        if shutil.which(python) is None:
            raise InputError(f"--peer {name}: {python} is no program that can be run")
        found[name] = python
    return found


class Peer:
    """A program at work in another interpreter."""

    def __init__(
        self, name: str, python: str, folder: Path, text: Path, batch: int, device: str
    ) -> None:
        """Start it, and wait until its model is loaded."""
        threads = torch.get_num_threads()
        self.name = name
        self._said = folder.with_name(f"{name}.log")
        numbers = [str(batch), str(threads)]
        line = [python, runner.__file__, name, str(folder), str(text), *numbers, device]
        with self._said.open("w", encoding="utf-8") as said:
            self._process = subprocess.Popen(
                line,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                encoding="utf-8",
            )
        try:
            self.version = str(self._answer()["version"])
        except BaseException:
            self._close()
            raise

    def ask(self, **what: int) -> dict[str, Any]:
        """Ask for something that `peer.py` knows; return its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # what it said follows
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        self._process.wait()
        said = self._said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = said[-1].strip() if said else "it said nothing"
        raise InputError(f"--peer {self.name} stopped: {last}")

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        self._process.kill()
        self._process.communicate()


def beside(
    model: Model,
    text: Sentences,
    pythons: dict[str, str],
    device: torch.device,
    *,
    batches: Sequence[int] = (32,),
    repeat: int = 3,
    singles: int = 30,
) -> list[dict[str, object]]:
    """Return a row a program, torchelmo first: tokens a second, one sentence's time, memory.

    A peer takes so many sentences at a time, sorted by length, and has a row for each such batch.

    `times` says how many times as fast torchelmo is, by the medians: cold, with words seen, and in
    the time of one sentence. `difference` is the largest one between a number of the peer's layers
    and ours, in one sentence.
    """
    tokens = sum(map(len, text))
    ours = Measured(Setting())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="torchelmo-")))
        bilm_tf.write(model, folder / "model")
        lines = folder / "text.txt"
        lines.write_text("".join(" ".join(words) + "\n" for words in text), encoding="utf-8")
        running = [
            stack.enter_context(
                Peer(name, python, folder / "model", lines, max(batches), device.type),
            )
            for name, python in pythons.items()
        ]
        seconds: dict[tuple[str, int], list[float]] = {}
        alone: dict[str, list[float]] = {name: [] for name in ("cold", "seen", *pythons)}
        held: dict[str, float | None] = {}
        machine.reset_peak(device)
        for _ in range(repeat):
            one_round(ours, model, text, device)
            for words, times in one_by_one(model, text[:singles], device).items():
                alone[words] += times
            for one, batch in product(running, batches):
                answer = one.ask(batch=batch)
                seconds.setdefault((one.name, batch), []).append(answer["seconds"])
                held[one.name] = answer["peak_mb"]
            for one in running:
                alone[one.name] += one.ask(batch=1, limit=singles)["each"]
        (layers,) = Elmo(model).to(device).layers([text[0]])
        single = {name: milliseconds(times) for name, times in alone.items()}
        rows = [{**_ours(ours, tokens, single), **machine.peak(device)}]
        for one, batch in product(running, batches):
            spent = Times(seconds[one.name, batch])
            found = np.array(one.ask(vectors=0)["vectors"], dtype=np.float32)
            rows.append(
                {
                    "name": one.name,
                    "version": one.version,
                    "batch": batch,
                    "tokens_per_second": tokens / spent.best,
                    "median": tokens / spent.median,
                    "latency": single[one.name],
                    "process_mb": held[one.name],
                    "times": {
                        "cold": spent.median / Times(ours.cold).median,
                        "seen": spent.median / Times(ours.seen).median,
                        "latency": _ratio(single, one.name, "cold"),
                        "latency_seen": _ratio(single, one.name, "seen"),
                    },
                    "difference": float(np.abs(found - layers).max()),
                }
            )
    return rows


def _ratio(single: dict[str, dict[str, float]], name: str, words: str) -> float:
    return single[name]["median_ms"] / single[words]["median_ms"]


def _ours(one: Measured, tokens: int, alone: dict[str, dict[str, float]]) -> dict[str, object]:
    from torchelmo import __version__

    cold, seen = Times(one.cold), Times(one.seen)
    return {
        "name": "torchelmo",
        "version": f"{__version__} (torch {torch.__version__})",
        "tokens_per_second": tokens / cold.best,
        "median": tokens / cold.median,
        "seen": {"tokens_per_second": tokens / seen.best, "median": tokens / seen.median},
        "latency": alone["cold"],
        "latency_seen": alone["seen"],
    }
