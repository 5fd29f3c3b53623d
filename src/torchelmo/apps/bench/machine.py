"""What this machine can do at most, what memory a process takes, and what the machine is called."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

LIMITS = ("float32", "tf32", "bf16")  # kinds of matrix products; tf32 on CUDA alone
SIZE = {"cpu": 2048, "cuda": 8192}  # of the square matrices
COPY_BYTES = {"cpu": 256 << 20, "cuda": 2 << 30}


@dataclass(frozen=True)
class Times:
    """Seconds of the same work, done several times."""

    seconds: Sequence[float]

    @property
    def best(self) -> float:
        """The least."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """The one in the middle."""
        return statistics.median(self.seconds)


def clock(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds that a piece of work takes, the device's part of it waited for."""
    wait(device)
    begin = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - begin


def wait(device: torch.device) -> None:
    """Wait until the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def limits(
    device: torch.device, *, seconds: float = 0.5, size: int | None = None
) -> dict[str, float]:
    """Return GFLOP/s of large matrix products by kind, and `copy`, GB/s read and written.

    On CUDA there is also `to_host`, GB/s of a copy to memory of the machine that is pinned.
    """
    size = size or SIZE.get(device.type, 4096)
    found = {}
    for kind in LIMITS:
        if kind == "tf32" and device.type != "cuda":
            continue
        found[kind] = 2e-9 * size**3 / _product(kind, size, device, seconds)
    count = min(COPY_BYTES.get(device.type, 256 << 20), 16 * size**2) // 4
    source = torch.ones(count, device=device)
    target = torch.empty_like(source)
    best = _best(lambda: target.copy_(source), device, seconds)
    found["copy"] = 2e-9 * 4 * count / best
    if device.type == "cuda":
        host = torch.empty(count, pin_memory=True)
        found["to_host"] = 1e-9 * 4 * count / _best(lambda: host.copy_(source), device, seconds)
    return found


def _product(kind: str, size: int, device: torch.device, seconds: float) -> float:
    """Return the seconds of a product of square matrices."""
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
    try:
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        part = a[: max(size // 16, 1)]
        torch.mm(part, b)  # starts threads, chooses kernels
        slice_time = clock(lambda: torch.mm(part, b), device)
        if slice_time * 16 > 8 * seconds:  # a processor without such instructions
            return slice_time * 16
        return _best(lambda: torch.mm(a, b, out=out), device, seconds)
    finally:
        torch.set_float32_matmul_precision(before)


def _best(work: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Repeat a piece of work for a while, three times at least; return the least seconds."""
    work()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < seconds and len(times) < 1000):
        times.append(clock(work, device))
    return min(times)


def reset_peak(device: torch.device) -> None:
    """Start to count the peak of memory anew, where the system can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak(device: torch.device) -> dict[str, float]:
    """Return the most memory held since `reset_peak`: of the process, and of a CUDA device, in MB.

    Where the system cannot count anew it is the most that the process has ever held; where it does
    not count at all there is nothing.
    """
    found = {}
    held = _process_peak()
    if held is not None:
        found["process_mb"] = held
    if device.type == "cuda":
        found["device_mb"] = torch.cuda.max_memory_allocated(device) / 1e6
    return found


def _process_peak() -> float | None:
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    if sys.platform == "win32":
        return None
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def load() -> float | None:
    """Return how many processes wanted a core in the last minute, where the system tells."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def describe(device: torch.device) -> str:
    """Name what does the work."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next((x.split(": ")[1] for x in lines if x.startswith("model name")), name)
    if device.type == "mps":
        return f"{name}, mps"
    count = torch.get_num_threads()
    return f"{name}, {count} thread{'s' * (count > 1)}"
