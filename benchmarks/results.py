"""What every result file says of itself: date, commit, command, hardware, versions."""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import torch


def write(
    path: Path,
    *,
    model: str,
    data: str,
    metric: str,
    values: dict[str, object],
    hardware: str | None = None,
    torch_version: str | None = None,
    commit: str | None = None,
    seeds: Sequence[int] = (),
) -> None:
    """Write `results/AREA/NAME.json`, and print the values.

    Machine, torch and commit are those of this process if not said.
    """
    if commit is None:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
    names = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    result = {
        "name": f"{path.parent.name}-{path.stem}",
        "date": date.today().isoformat(),
        "commit": commit,
        "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *names]),
        "hardware": hardware or this_machine(),
        "torch": torch_version or torch.__version__,
        "model": model,
        "data": data,
        "metric": metric,
        "seeds": list(seeds),
        "values": values,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(values))


def this_machine() -> str:
    """Name the processor and the threads in use."""
    name = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(encoding="utf-8").splitlines()
        name = next((x.split(": ")[1] for x in lines if x.startswith("model name")), name)
    return f"{name}, {torch.get_num_threads()} threads"
