"""Whether the kernels are right: each against a float64 reference, and a training run with them.

    python benchmarks/kernels.py -o results/speed/kernels.json

Parts run side by side, each in a process of its own. `kernel_checks` says what is compared and how,
`kernel_curve` what is trained. Ends with 1 if a relative error is too large, if two runs of the
same seed differ in a bit, or if the loss is as far from the reference's as from another seed's.
Needs torch, numpy, safetensors and regex alone (with PYTHONPATH=src where the package is not
installed). Without a GPU, `--quick` takes a few small cases through Triton's interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import results
import torch

PARTS = ("operations", "curve")
SECONDS = 240  # after which a process is given up


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="small cases and a tiny model")
    parser.add_argument("--only", choices=PARTS)
    asked = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parts = [asked.only] if asked.only else PARTS
    if device == "cpu" and not asked.quick:
        parser.error("there is no GPU here: ask for --quick")
    values: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(32 if device == "cuda" else 1) as pool,
    ):
        checks: dict[str, Future[Any]] = {}
        runs: dict[str, Future[Any]] = {}
        if "operations" in parts:
            checks = start_checks(pool, device, asked.quick)
        if "curve" in parts:
            runs = start_runs(pool, Path(folder), device, asked.quick)
        failed: list[str] = []
        if checks:
            found = gather(checks, failed)
            values["operations"] = [row for rows in found.values() for row in rows]
            values["worst"] = worst(values["operations"])
        if runs:
            found = gather(runs, failed)
            if len(found) == len(runs):
                from kernel_curve import compare

                values["curve"] = compare(found, asked.quick)
        if failed:
            values["failed"] = failed
    results.write(
        asked.output,
        model="operations of the small and original sizes; training of the small one in bf16",
        data="random numbers; made-up text",
        metric="relative error by norm against float64, the worst of results and all gradients; "
        "mean loss of so many steps in nats",
        values=values,
        hardware=torch.cuda.get_device_name() if device == "cuda" else None,
    )
    show(values)
    missed = misses(values)
    if missed:
        sys.exit("\n".join(missed))


def gather(parts: dict[str, Future[Any]], failed: list[str]) -> dict[str, Any]:
    """Return what the parts found; a part that broke is named, the others still count."""
    found = {}
    for name, future in parts.items():
        try:
            found[name] = future.result()
        except subprocess.SubprocessError as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed.append(name)
    return found


def start_checks(pool: ThreadPoolExecutor, device: str, quick: bool) -> dict[str, Future[Any]]:
    from kernel_checks import JOBS

    # One process for all on a CPU, where it takes longer to start them than to run what is quick.
    groups = {job: [job] for job in JOBS} if device == "cuda" else {"operations": list(JOBS)}
    return {
        name: pool.submit(child, "check", [jobs, device, quick], device)
        for name, jobs in groups.items()
    }


def start_runs(
    pool: ThreadPoolExecutor, folder: Path, device: str, quick: bool
) -> dict[str, Future[Any]]:
    from kernel_curve import QUICK, Size, write_corpus

    corpus = str(write_corpus(folder, QUICK if quick else Size()))
    # Triton's interpreter is too slow to train with.
    kernels = "triton" if device == "cuda" else "torch"
    wanted = {
        "kernels": (kernels, 0),
        "again": (kernels, 0),
        "another seed": (kernels, 1),
        "reference": ("reference", 0),
    }
    return {
        name: pool.submit(train, backend, [corpus, device, quick, seed])
        for name, (backend, seed) in wanted.items()
    }


def train(backend: str, given: list[Any]) -> Any:
    """Train from recorded steps or, where the reference cannot be recorded, without."""
    device = given[1]
    try:
        return child("train", [*given, device == "cuda"], device, backend)
    except subprocess.CalledProcessError:
        if backend != "reference" or device == "cpu":
            raise
        print("the reference cannot be recorded; once more, step by step", file=sys.stderr)
        return child("train", [*given, False], device, backend)


def child(what: str, given: list[Any], device: str, backend: str | None = None) -> Any:
    """Run a part in a process of its own; return what it found."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    environment.pop("TORCHELMO_BACKEND", None)
    if backend is not None:
        environment["TORCHELMO_BACKEND"] = backend
    if device == "cpu":
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, __file__, "--part", what, json.dumps(given)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, check=True, env=environment, timeout=SECONDS
    )
    return json.loads(done.stdout.splitlines()[-1])


def part(what: str, given: list[Any]) -> Any:
    """Do what `child` asks for."""
    if what == "train":
        from kernel_curve import train as run

        return run(*given)
    from kernel_checks import check

    jobs, device, quick = given
    return [row for job in jobs for row in check(job, device, quick)]


def worst(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the largest error by operation, dtype and backend."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        place = found.setdefault(row["operation"], {}).setdefault(row["dtype"], {})
        place[row["backend"]] = max(place.get(row["backend"], 0.0), row["error"])
    return found


def misses(values: dict[str, Any]) -> list[str]:
    """Return a sentence for each thing that is not as it must be."""
    from kernel_checks import LIMITS

    found = [
        f"{row['operation']}, {row['backend']}, {row['dtype']}, {row['case']}: {row['tensor']} is "
        f"off by {row['error']:.1e}, expected less than {LIMITS[row['dtype']]:.0e}"
        for row in values.get("operations", [])
        if not row["error"] < LIMITS[row["dtype"]]
    ]
    found += [f"{name} did not run to its end" for name in values.get("failed", [])]
    if "curve" in values:
        curve = values["curve"]
        if not curve["identical"]:
            found.append("two training runs of the same seed end with different weights")
        if not curve["from_reference"]["mean"] < curve["between_seeds"]["mean"]:
            found.append("the loss is as far from the reference's as from another seed's")
    return found


def show(values: dict[str, Any]) -> None:
    """Print what matters of the values."""
    for operation, dtypes in values.get("worst", {}).items():
        for dtype, by_backend in dtypes.items():
            errors = "  ".join(f"{name} {error:.1e}" for name, error in by_backend.items())
            print(f"{operation:20}{dtype:10}{errors}")
    if "curve" in values:
        curve = values["curve"]
        for name, losses in curve["curves"].items():
            print(f"{name:20}" + " ".join(f"{loss:.3f}" for loss in losses[:: len(losses) // 4]))
        facts = ("identical", "reference_recorded", "from_reference", "between_seeds")
        print({name: curve[name] for name in (*facts, "deviation_of_last")})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        print(json.dumps(part(sys.argv[2], json.loads(sys.argv[3]))))
    else:
        main()
