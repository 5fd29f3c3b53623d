"""Made-up text of any size, and the memory that a command and its workers take."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np

LETTERS = np.frombuffer(b"aeioknst", dtype=np.uint8)


def spelled(ranks):
    """Words for ranks from 1, the more frequent the shorter, as one array of bytes with spaces."""
    digits = np.maximum(np.ceil(np.log2(ranks + 1.0) / 3).astype(np.int64), 1)
    ends = np.cumsum(digits + 1)
    owner = np.repeat(np.arange(len(ranks)), digits + 1)
    place = np.arange(ends[-1]) - (ends - digits - 1)[owner]
    out = LETTERS[(ranks[owner] >> (3 * np.minimum(place, 20))) & 7]
    out[ends - 1] = ord(" ")
    return out, ends


def zipf_text(path, size, *, types, seed=1):
    """Write about `size` bytes: 20 words a line, 20 lines a document, frequency 1 / rank."""
    rng = np.random.default_rng(seed)
    with path.open("wb") as file:
        while file.tell() < size:
            ranks = np.exp(rng.random(200_000) * np.log(types)).astype(np.int64)
            text, ends = spelled(ranks)
            text[ends[19::20] - 1] = ord("\n")
            blocks = np.split(text, ends[399::400])
            file.write(b"\n".join(block.tobytes() for block in blocks if len(block)) + b"\n")
    return path


def tree_memory(pid):
    """Resident bytes of a process and all its descendants, pages they share counted for each."""
    total = 0
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmRSS:"):
                total += int(line.split()[1]) * 1024
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text(encoding="utf-8").split()
        ]
    except OSError:  # it has just ended
        return total
    return total + sum(map(tree_memory, children))


def peak_memory(command, **options):
    """Run a command; return its output and the peak of its tree's memory in bytes."""
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options) as process:
        while process.poll() is None:
            peak = max(peak, tree_memory(process.pid))
            time.sleep(0.02)
        out = process.stdout.read()
    assert process.returncode == 0
    return out, peak


measurable = sys.platform == "linux"
