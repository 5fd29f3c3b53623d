"""How long a packaged model takes to load, each time in a new process.

    python benchmarks/load_time.py en-small -o results/models/load-en-small.json

import   `import torch` and torchelmo's own modules
load     `Elmo.from_pretrained(NAME)`
first    the first sentence embedded, which makes what later ones reuse
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import results

PARTS = ("import", "load", "first")
CODE = """
import json, sys, time
begin = time.perf_counter()
import torch
from torchelmo.elmo import Elmo
done = time.perf_counter()
elmo = Elmo.from_pretrained(sys.argv[1], device="cpu")
loaded = time.perf_counter()
elmo.embed([["A", "heron", "waits"]])
print(json.dumps([done - begin, loaded - done, time.perf_counter() - loaded]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a packaged model's name, or a folder")
    parser.add_argument("--rounds", type=int, default=7, help="one more comes first, uncounted")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    command = [sys.executable, "-c", CODE, arguments.model]
    times = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(arguments.rounds + 1)
    ][1:]
    columns = dict(zip(PARTS, zip(*times, strict=True), strict=True))
    results.write(
        arguments.output,
        model=Path(arguments.model).name,
        data=f"{arguments.rounds} processes, files in the system's cache",
        metric="seconds, median; slowest",
        values={
            **{name: round(statistics.median(column), 3) for name, column in columns.items()},
            "slowest": {name: round(max(column), 3) for name, column in columns.items()},
        },
    )


if __name__ == "__main__":
    main()
