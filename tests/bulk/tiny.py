"""A tiny model with random weights, and readers of every output that `embed` writes."""

import json
import os
import random
import subprocess
import sys
import time

import h5py
import numpy as np
import torch

from torchelmo.config import CharacterConfig, ElmoConfig, LstmConfig
from torchelmo.formats.model import Model
from torchelmo.nn.bilm import BiLM

ENDINGS = ("hdf5", "h5", "npz", "parquet", "jsonl")
LINES = [
    "The heron waits",
    "Rain again , says the tall gardener",
    "",
    "Ünïcode 물 too 🙂",
    "one",
    "The heron waits",
    "a b a b a b a b a b a b a b",
    '"quoted" \\ and / slashed',
]


def tiny_model(cells=12, projection=6, seed=0):
    torch.manual_seed(seed)
    config = ElmoConfig(
        characters=CharacterConfig(
            dim=4, filters=((1, 4), (2, 6), (3, 8)), highways=1, max_characters=20
        ),
        lstm=LstmConfig(cells=cells, projection=projection),
    )
    return Model(config, BiLM(config).state_dict())


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def read_output(path):
    """Arrays by line number, of whatever format."""
    if path.suffix in (".hdf5", ".h5"):
        with h5py.File(path, "r") as file:
            return {int(k): file[k][...] for k in file if k != "sentence_to_index"}
    if path.suffix == ".npz":
        with np.load(path) as file:
            return {int(k): file[k] for k in file if k != "sentence_to_index"}
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        rows = pq.read_table(path)
        kind = str(rows.schema.field("vectors").type.value_type)
        kind = {"float": "float32", "halffloat": "float16"}[kind]
        return {
            row["line"]: np.array(row["vectors"], dtype=kind).reshape(row["shape"])
            for row in rows.to_pylist()
        }
    out = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        out[row["line"]] = np.array(row["vectors"], dtype=np.float32)
    return out


def read_words(path):
    """Words by line number, of the formats that hold them."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return {row["line"]: row["tokens"] for row in pq.read_table(path).to_pylist()}
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {row["line"]: row["tokens"] for row in rows}


def command(*arguments):
    """A command line and an environment for a process of its own, with one thread."""
    code = "from torchelmo.apps.cli import main; main()"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    return [sys.executable, "-c", code, *map(str, arguments)], env


def left_behind(folder, *known):
    """Names in a folder beside those that were put there."""
    return sorted(path.name for path in folder.iterdir() if path.name not in known)


def generate(path, lines, *, seed=1, words=20_000):
    """A file of lines of three to five made-up words."""
    make = random.Random(seed)
    letters = "abcdefghijklmnop"
    known = ["".join(make.choices(letters, k=make.randint(2, 8))) for _ in range(words)]
    with path.open("w", encoding="utf-8") as file:
        for _ in range(lines):
            file.write(" ".join(make.choices(known, k=make.randint(3, 5))) + "\n")
    return path


def measured(*arguments):
    """Run a command; return its JSON summary and its peak memory in MB."""
    line, env = command(*arguments, "--json")
    with subprocess.Popen(line, env=env, stdout=subprocess.PIPE) as process:
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    unit = 1 if sys.platform == "darwin" else 1024
    return json.loads(out), usage.ru_maxrss * unit / 1e6


def killed_at(moments, output, *arguments):
    """Run a command until it ends, killing it first at each of the moments.

    A moment is a number of finished parts, or "join": when the parts are being joined. Returns
    the signals and the exit code it ended with, in order.
    """
    folder = output.with_name(output.name + ".partial")
    joined = folder / f"{output.name}.tmp"

    def reached(moment):
        if moment == "join":
            return joined.exists() and joined.stat().st_size > 0
        return (folder / f"part-{moment - 1:08d}").exists()

    codes = []
    for moment in moments:
        line, env = command(*arguments)
        with subprocess.Popen(line, env=env, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None:
                try:
                    if reached(moment):
                        process.kill()
                        break
                except FileNotFoundError:  # renamed between two looks
                    pass
                time.sleep(0.0005)
        codes.append(process.returncode)
    line, env = command(*arguments)
    codes.append(subprocess.run(line, env=env, stdout=subprocess.DEVNULL, check=False).returncode)
    return codes
