"""A task's training that goes on where it was stopped: a checkpoint after each epoch.

    trainer = ResumableTrainer(model, training, validation, folder=Path("work"), key="...")
    trainer.run()

The folder then holds one file: the weights now and at the best epoch, the optimizer's state, random
states, and what each epoch gave. A run that finds it walks through those epochs without training
(early stopping and halving are decided as they were), and trains on from the next: on a CPU it ends
with the weights of a run that nobody stopped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from torchelmo.config import Json
from torchelmo.tasks.model import AnyTask
from torchelmo.tasks.trainer import Report, Status, Trainer

FILE = "checkpoint.safetensors"
NOW, BEST, OPTIMIZER, AVERAGE = "now/", "best/", "optimizer/", "average/"


class ResumableTrainer(Trainer):
    """A `Trainer` over a folder with its checkpoint."""

    def __init__(
        self,
        model: AnyTask,
        training: Sequence[object],
        validation: Sequence[object],
        *,
        folder: Path,
        key: str,
        report: Report | None = None,
    ) -> None:
        """`key` tells this run from others: a checkpoint with another one is not gone on from."""
        super().__init__(model, training, validation, report=self._tell)
        self.path, self.key, self.told = folder / FILE, key, report
        self.facts, self.tensors = self._read()
        self.past: list[Json] = self.facts.get("epochs", [])  # of earlier processes
        self.before: float = self.facts.get("seconds", 0.0)
        if self.past:
            model.load_state_dict(_below(self.tensors, BEST))

    def _tell(self, now: Status) -> None:
        if now.epoch <= len(self.past):
            return
        if now.result is not None:
            self._write()
        if self.told is not None:
            self.told(now)

    def _epoch(self, number: int) -> tuple[float | None, bool]:
        if number <= len(self.past):
            return self.past[number - 1]["loss"], False
        if self.tensors:
            self._restore()
        return super()._epoch(number)

    def _result(self, number: int, loss: float | None, seconds: float) -> Json:
        if number <= len(self.past):
            return self.past[number - 1]
        return super()._result(number, loss, self.before + seconds)

    def _metrics(self, seconds: float) -> Json:
        return super()._metrics(self.before + seconds)

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        if len(self.epochs) < len(self.past):  # the best epoch's weights are in place
            yield
            return
        with super()._averaged():
            yield

    def _write(self) -> None:
        device = self.model.device
        tensors = {f"{NOW}{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"{BEST}{name}": value for name, value in self.weights.items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    tensors[f"{OPTIMIZER}{number}/{name}"] = value
        if self.ema is not None:
            tensors |= {f"{AVERAGE}{n}": value for n, value in enumerate(self.ema.average)}
        tensors["order"] = self.order.get_state()
        tensors["random"] = torch.get_rng_state()
        if device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(device)
        facts = {
            "key": self.key,
            "step": self.step,
            "seconds": self.epochs[-1]["seconds"],
            "epochs": self.epochs,
        }
        # Copies: safetensors refuses tensors that share memory.
        ready = {n: t.detach().to("cpu", copy=True).contiguous() for n, t in tensors.items()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f".{FILE}.partial")
        save_file(ready, partial, metadata={"facts": json.dumps(facts)})
        os.replace(partial, self.path)

    def _read(self) -> tuple[Json, dict[str, Tensor]]:
        """Return a checkpoint of this very run, or nothing."""
        if not self.path.is_file():
            return {}, {}
        try:
            with safe_open(self.path, framework="pt") as file:
                facts: Json = json.loads((file.metadata() or {}).get("facts", "{}"))
                if facts.get("key") != self.key:
                    return {}, {}
                # Copies: the views that safetensors gives are of a file that will be replaced.
                names = list(file.keys())
                tensors = {name: file.get_tensor(name).clone() for name in names}
        except (SafetensorError, OSError, ValueError):  # damaged: begin anew
            return {}, {}
        return facts, tensors

    def _restore(self) -> None:
        """Put everything as it was after the last of the past epochs."""
        tensors, self.tensors = self.tensors, {}
        self.model.load_state_dict(_below(tensors, NOW))
        states: dict[int, dict[str, Tensor]] = {}
        for name, value in _below(tensors, OPTIMIZER).items():
            number, _, part = name.partition("/")
            states.setdefault(int(number), {})[part] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": states, "param_groups": groups})
        self.step = self.facts["step"]
        if self.ema is not None:
            self.ema.steps = self.step
            with torch.no_grad():
                for n, average in enumerate(self.ema.average):
                    average.copy_(tensors[f"{AVERAGE}{n}"])
        self.order.set_state(tensors["order"])
        torch.set_rng_state(tensors["random"])
        if "random.cuda" in tensors and self.model.device.type == "cuda":
            torch.cuda.set_rng_state(tensors["random.cuda"], self.model.device)


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
