"""How a run stands, and RUN/log.jsonl, which keeps that."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from torchelmo.config import Json
from torchelmo.errors import InputError
from torchelmo.pretrain.plan import Plan


@dataclass(frozen=True)
class Status:
    """How a run stands; `loss` is the mean of both directions since the last status."""

    step: int
    plan: Plan
    loss: float
    tokens_per_second: float
    seconds_left: float
    learning_rate: float
    validation: Json | None = None


class Log:
    """RUN/log.jsonl, cut back to the step that a run goes on from."""

    def __init__(self, run: Path, step: int, *, enabled: bool) -> None:
        """Open the log for what follows `step`."""
        self.path, self.step, self.enabled = run / "log.jsonl", step, enabled

    def __enter__(self) -> Log:
        if self.enabled:
            kept = [line for line in self._lines() if line["step"] <= self.step]
            scratch = self.path.with_suffix(".tmp")
            with self._writing():
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with scratch.open("w", encoding="utf-8") as file:
                    file.writelines(json.dumps(line) + "\n" for line in kept)
                os.replace(scratch, self.path)
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def write(self, status: Status) -> None:
        """Add a line."""
        if not self.enabled:
            return
        facts = asdict(status)
        del facts["plan"], facts["seconds_left"]
        if status.validation is not None:
            facts = {"step": status.step, "validation": status.validation}
        with self._writing(), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                f"{self.path} cannot be written: {error.strerror or error}; the same command goes "
                "on from the last checkpoint"
            ) from None

    def _lines(self) -> Iterator[Json]:
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError):  # the last line of a killed run
                    yield json.loads(line)
