"""Embedding on a CPU beside other programs: tokens a second, one sentence at a time, memory.

    python benchmarks/cpu.py --peers DIR -o results/speed/cpu.json

DIR holds the other programs as their runners expect them: weights/{small,original} (options.json
and weights.hdf5), sents.txt and sents200.txt (a tokenised sentence a line), run_allennlp.py with
venv/allennlp, run_simple_elmo.py with venv/tf; what is not there is left out. All programs take
turns, each in a process of its own, and the median of the rounds counts. All sort sentences by
length, take two warm-up batches of 32 that are not timed, and give all layers as numpy arrays.

cold   no word was seen before (the others have no other way)
seen   every word was
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import results

TEXTS = {"small": "sents.txt", "original": "sents200.txt"}
PRECISIONS = ("float32", "bf16", "int8")
RUNNERS = {
    "allennlp": ("venv/allennlp", "run_allennlp.py"),
    "simple_elmo": ("venv/tf", "run_simple_elmo.py"),
}
SINGLE = {"small": 100, "original": 30}  # sentences, one at a time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", nargs="+", default=list(TEXTS), choices=list(TEXTS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("SIZE", "PRECISION"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(ours(arguments.peers, *arguments.one, arguments.threads)))
        return
    if arguments.output is None:
        parser.error("the following arguments are required: -o/--output")

    values: dict[str, object] = {"rounds": arguments.rounds, "products": products()}
    tokens = {}
    for size in arguments.sizes:
        measured: dict[str, list[dict[str, float]]] = {}
        for _ in range(arguments.rounds):
            for name, command in commands(arguments.peers, size, arguments.threads).items():
                measured.setdefault(name, []).append(run(command))
                print(size, name, measured[name][-1], file=sys.stderr)
        values[size] = summary(measured)
        lines = sentences(arguments.peers, size)
        words = [word for line in lines for word in line]
        tokens[size] = f"{len(lines):,} sentences, {len(words):,} tokens, {len(set(words)):,} words"
    results.write(
        arguments.output,
        model="random weights of the published sizes",
        data="; ".join(f"{size}: {text}" for size, text in tokens.items()),
        metric="tokens a second; ms a sentence; peak memory in MB (2^20 bytes)",
        values=values,
    )


def commands(peers: Path, size: str, threads: int) -> dict[str, list[list[str]]]:
    """Return what each program is run with: for throughput, and for one sentence at a time."""
    here = [sys.executable, __file__, "--peers", str(peers), "--threads", str(threads)]
    out = {kind: [[*here, "--one", size, kind]] for kind in PRECISIONS}
    for name, (venv, script) in RUNNERS.items():
        python = peers / venv / "bin" / "python"
        if python.exists():
            weights = ["--weights", str(peers / "weights" / size), "--threads", str(threads)]
            line = [str(python), str(peers / script), *weights]
            single = ["--batch", "1", "--order", "file", "--limit", str(SINGLE[size])]
            out[name] = [
                [*line, "--sents", str(peers / TEXTS[size])],
                [*line, "--sents", str(peers / TEXTS["original"]), *single],
            ]
    return out


def run(lines: list[list[str]]) -> dict[str, float]:
    """Run a program; return its figures under our names."""
    found = []
    for line in lines:
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=3600)
        if done.returncode:
            sys.exit(f"{' '.join(line)}\n{done.stderr[-2000:]}")
        found.append(json.loads(done.stdout.splitlines()[-1]))
    if len(found) == 1:
        ours: dict[str, float] = found[0]
        return ours
    many, single = found
    return {
        "cold": many["tok_s"],
        "ms_a_sentence": single["seconds"] / single["n_sents"] * 1e3,
        "peak_mb": many["max_rss_mb"],
    }


def summary(measured: dict[str, list[dict[str, float]]]) -> dict[str, object]:
    """Return the median of each figure, and how often we are as fast as the fastest other."""
    out: dict[str, dict[str, float]] = {}
    for name, rounds in measured.items():
        out[name] = {
            key: float(f"{statistics.median(r[key] for r in rounds):.4g}") for key in rounds[0]
        }
        if "cosine" in out[name]:
            out[name]["cosine"] = round(min(r["cosine"] for r in rounds), 5)
        out[name]["peak_mb"] = max(r["peak_mb"] for r in rounds)
    others = [name for name in RUNNERS if name in out]
    ratios: dict[str, object] = {}
    if others:
        best = max(out[name]["cold"] for name in others)
        for kind in PRECISIONS:
            ratios[kind] = {key: round(out[kind][key] / best, 2) for key in ("cold", "seen")}
    if "allennlp" in out:
        ratios["latency_of_allennlp"] = {
            kind: round(out[kind]["ms_a_sentence"] / out["allennlp"]["ms_a_sentence"], 3)
            for kind in PRECISIONS
        }
    return {**out, "ratios": ratios}


def ours(peers: Path, size: str, precision: str, threads: int) -> dict[str, float]:
    """Measure this program, in this process."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch

    from torchelmo.elmo import Elmo

    torch.set_num_threads(threads)
    text = sentences(peers, size)
    elmo = Elmo.from_pretrained(peers / "weights" / size, device="cpu", precision=precision)
    longest = sorted(text, key=len)[-64:]

    def timed(batches: list[list[list[str]]]) -> float:
        start = time.perf_counter()
        for batch in batches:
            elmo.layers(batch)
        return time.perf_counter() - start

    timed([longest])
    elmo.encoder.forget()
    tokens = sum(map(len, text))
    out = {"cold": tokens / timed([text]), "seen": tokens / timed([text])}
    single = sentences(peers, "original")
    for sentence in single[-20:]:
        elmo.layers([sentence])
    elmo.encoder.forget()
    asked = [[sentence] for sentence in single[: SINGLE[size]]]
    out["ms_a_sentence"] = timed(asked) / len(asked) * 1e3
    out["ms_a_sentence_seen"] = timed(asked) / len(asked) * 1e3
    out["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    if precision != "float32":
        some = text[:300]
        found = elmo.layers(some)
        elmo.bilm.precision = "float32"
        out["cosine"] = min(
            float(cosines(a, b).min()) for a, b in zip(found, elmo.layers(some), strict=True)
        )
    return out


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return those of each vector of each layer."""
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def products() -> dict[str, float]:
    """Measure the limit: GFLOP/s of a large product on all threads."""
    import torch

    out = {}
    for kind, dtype in (("float32", torch.float32), ("bf16", torch.bfloat16)):
        a, b = (torch.randn(2048, 2048, dtype=dtype) for _ in range(2))
        best = 1e9
        for _ in range(8):
            start = time.perf_counter()
            torch.mm(a, b)
            best = min(best, time.perf_counter() - start)
        out[kind] = round(2 * 2048**3 / best / 1e9)
    return out


def sentences(peers: Path, size: str) -> list[list[str]]:
    """Return the text that a size is measured on."""
    lines = (peers / TEXTS[size]).read_text(encoding="utf-8").split("\n")
    return [line.split() for line in lines if line.strip()]


if __name__ == "__main__":
    main()
