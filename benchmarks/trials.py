"""Short trainings side by side, each measured on held-out text and probes: a JSON row a trial.

    python benchmarks/trials.py benchmarks/trials/ko.json --data FOLDER... -o rows.jsonl
    python benchmarks/trials.py LIST --data FOLDER... --only kiwi-jamo,kiwi-bytes --jobs 2
    python benchmarks/trials.py LIST --data FOLDER... --toy     # 20 steps, to see that it runs
    python benchmarks/trial_results.py rows.jsonl --data "what was read" -o results/models/NAME.json

A list has `texts` (ways to cut the training text), `valid` (raw texts to measure), `alphabet`,
`spacing` and `cut` (see trial_measures.py), `wic` and `homographs` (probes), `defaults` and
`trials`; a trial with `extra` runs only if it is named. Its files lie in the folders of --data.
Corpora are prepared in the background while trials run. Every trial is a process of its own, so
that a bad one spoils nothing: its row says why it failed.
"""

from __future__ import annotations

import argparse
import gc
import json
import lzma
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trial_measures as measures

from torchelmo.elmo import Elmo
from torchelmo.pretrain.corpus import Corpus
from torchelmo.pretrain.log import Status
from torchelmo.pretrain.loop import Trainer
from torchelmo.pretrain.prepare import PrepareOptions, prepare
from torchelmo.pretrain.recipe import read_recipe

Json = dict[str, Any]
SIZES = (60_000, 80_000, 100_000, 110_000, 120_000, 124_000, 128_000, 150_000)
FACTS = ("tokenizer", "characters", "types", "vocabulary", "coverage", "train", "valid", "sha256")
CUTTING = ("tokenizer", "tokenized_by", "sentences")
OVERHEAD, SPEED = 25, 2.3e6  # seconds of a trial beside its steps; tokens a second, to plan by
TOY_BYTES, TOY_VALID, TOY_PAIRS = 200_000, 40_000, 60
TOY = (
    "train.batch=16",
    "train.unroll=10",
    "train.steps=20",
    "train.negatives=64",
    "train.precision=float32",
    "train.warmup=5",
    "model.lstm.cells=32",
    "model.lstm.projection=16",
    "model.characters.filters=[[1,8],[2,8],[3,16]]",
    "watch.log=10",
    "watch.validate=10",
    "watch.validate_tokens=2000",
)


@dataclass(frozen=True)
class Bench:
    """A list of trials, where its files are, and where to work."""

    list: Json
    folders: tuple[Path, ...]
    work: Path
    recipe: str
    device: str
    toy: bool

    def corpus(self, trial: Json) -> Path:
        """Return where a trial's corpus is or will be."""
        keys = ("text", "characters", "max_characters", "vocab")
        return self.work / "corpora" / "-".join(str(trial[key]) for key in keys)

    def file(self, name: str, *, joined: bool = False) -> Path:
        """Return a file of the list; its tokens joined again if asked; cut short for a toy."""
        source = next((f / name for f in self.folders if (f / name).exists()), None)
        if source is None:
            raise FileNotFoundError(f"no folder of --data has {name}")
        packed, text = source.suffix == ".xz", ".txt" in name
        if not text or not (joined or self.toy):
            return source
        kind = "joined-" * joined + "toy-" * self.toy
        target = self.work / "text" / (kind + source.name.removesuffix(".xz"))
        if not target.exists():
            left = (TOY_VALID if "valid" in name else TOY_BYTES) if self.toy else 1 << 62
            target.parent.mkdir(parents=True, exist_ok=True)
            scratch = target.with_name(f"{target.name}.{os.getpid()}")
            with (lzma.open if packed else open)(source, "rb") as lines, scratch.open("wb") as out:
                for line in lines:
                    out.write(line.replace(measures.BORDER.encode(), b"") if joined else line)
                    left -= len(line)
                    if left < 0:
                        break
            os.replace(scratch, target)
        return target

    def plain(self, name: str) -> Path:
        """Return a file of the list unpacked."""
        path = self.file(name)
        if path.suffix != ".xz":
            return path
        target = self.work / "text" / f"{os.getpid()}-{path.stem}"
        target.parent.mkdir(parents=True, exist_ok=True)
        with lzma.open(path) as packed, target.open("wb") as out:
            shutil.copyfileobj(packed, out)
        return target


def prepare_all(bench: Bench, trials: Sequence[Json]) -> None:
    """Prepare every corpus that the trials need, in their order; a failure leaves NAME.failed."""
    for trial in trials:
        folder, text = bench.corpus(trial), bench.list["texts"][trial["text"]]
        if folder.exists():
            continue
        given = {
            key: text[key] for key in ("tokenizer", "tokenized_by", "sentences") if key in text
        }
        try:
            options = PrepareOptions(
                characters=trial["characters"],
                max_characters=trial["max_characters"],
                vocab_size=trial["vocab"],
                **given,
            )
            joined = text.get("joined", False)
            prepare(
                [bench.file(name, joined=joined) for name in text["train"]],
                folder,
                options,
                valid=[bench.file(name, joined=joined) for name in text["valid"]],
                workers=1 if bench.toy else max((os.cpu_count() or 1) - 2, 1),
            )
        except Exception:
            folder.parent.mkdir(parents=True, exist_ok=True)
            _failed(folder).write_text(traceback.format_exc(), encoding="utf-8")


def _failed(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.failed")


def wait_for(folder: Path) -> None:
    """Wait until a corpus is there."""
    failed, parent = _failed(folder), os.getppid()
    while not folder.exists():
        if failed.exists():
            raise RuntimeError(f"corpus: {failed.read_text(encoding='utf-8').splitlines()[-1]}")
        if os.getppid() != parent:
            raise RuntimeError("left alone")
        time.sleep(0.5)


def run_trial(bench: Bench, trial: Json) -> Json:
    """Train and measure; return the row."""
    began, folder = time.time(), bench.corpus(trial)
    wait_for(folder)
    waited, corpus = time.time() - began, Corpus.open(folder)
    changes = [f"data.corpus={folder.as_posix()}", "watch.checkpoint=1000000", *trial["set"]]
    first = read_recipe(bench.recipe, changes).train
    steps = max(int(trial["tokens"]) // (first.batch * first.unroll * first.accumulate), 1)
    changes += [f"train.steps={steps}", f"watch.validate={max(steps // 4, 1)}"]
    recipe = read_recipe(bench.recipe, [*changes, *(TOY if bench.toy else ())])
    run = bench.work / "runs" / trial["name"]
    shutil.rmtree(run, ignore_errors=True)
    trainer = Trainer(recipe, corpus, run, device=torch.device(bench.device))
    curve: list[Json] = []
    speeds: list[float] = []

    def report(now: Status) -> None:
        if now.validation:
            curve.append({key: round(value, 3) for key, value in now.validation.items()})
        else:
            speeds.append(now.tokens_per_second)

    began = time.time()
    result = trainer(report)
    row = {
        "name": trial["name"],
        "trial": trial,
        "steps": result.step,
        "tokens": result.step * trainer.plan.tokens_per_step,
        "epochs": trainer.plan.epochs,
        "parameters": trainer.plan.parameters,
        "seconds": time.time() - began,
        "waited_seconds": waited,
        "tokens_per_second": sorted(speeds)[len(speeds) // 2] if speeds else None,
        "curve": curve,
        "corpus": {key: corpus.facts[key] for key in FACTS},
        "unknown_by_vocabulary": measures.unknown_by_size(
            np.asarray(corpus.valid.tokens).tolist(), SIZES
        ),
        "recipe": recipe.to_json(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if bench.device == "cuda" else bench.device,
    }
    del trainer
    gc.collect()
    try:  # the training's own figures are kept
        row |= measure(bench, trial, corpus, run / "last")
    except Exception as error:
        row |= {"failed": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    shutil.rmtree(run, ignore_errors=True)
    return row


def measure(bench: Bench, trial: Json, corpus: Corpus, model: Path) -> Json:
    """Return what a trained model can do."""
    elmo, given = Elmo.from_pretrained(model, device=bench.device), bench.list
    tokenizer = elmo.config.tokenizer
    if "cut" in given and tokenizer.name not in ("words", "whitespace"):
        path = next(f / given["cut"] for f in bench.folders if (f / given["cut"]).exists())
        elmo._tokenizer = measures.Cut.read(path, tokenizer.name, tokenizer.version)
    speller = measures.Speller(measures.outside(corpus), given["alphabet"])
    spacing = given.get("spacing", {}).get(trial["text"], {})
    valid = {name: bench.plain(file) for name, file in given["valid"].items()}
    asked = {name: bench.file(given[name]) for name in ("wic", "homographs") if name in given}
    with torch.no_grad():
        return {
            "text": measures.texts(elmo, valid, speller, spacing),
            "probes": measures.probes(elmo, asked, TOY_PAIRS if bench.toy else None),
        }


def run_all(
    bench: Bench, trials: Sequence[Json], out: Path, again: Sequence[str], jobs: int, limit: float
) -> int:
    """Run trials as processes of their own; return how many failed."""
    start, rows = time.time(), bench.work / "rows"
    rows.mkdir(parents=True, exist_ok=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    for trial in trials:  # of an earlier run
        _failed(bench.corpus(trial)).unlink(missing_ok=True)
    names = ",".join(trial["name"] for trial in trials)
    preparing = subprocess.Popen([*again, "--only", names, "--prepare"])
    running: list[tuple[Json, Path, subprocess.Popen[bytes]]] = []
    waiting, failures = list(trials), 0
    try:
        while running or waiting:
            while waiting and len(running) < jobs:
                trial = waiting.pop(0)
                left, needs = limit - time.time() + start, OVERHEAD + trial["tokens"] / SPEED * jobs
                if left < needs and not bench.toy:
                    print(f"{trial['name']}: not begun, {needs:.0f} s needed, {left:.0f} s left")
                    continue
                file = rows / f"{trial['name']}.json"
                file.unlink(missing_ok=True)
                child = subprocess.Popen([*again, "--only", trial["name"], "--row", str(file)])
                running.append((trial, file, child))
            time.sleep(0.2)
            for entry in list(running):
                trial, file, child = entry
                if child.poll() is None and time.time() - start > limit:
                    child.kill()
                    child.wait()
                if child.poll() is None:
                    continue
                running.remove(entry)
                row = {"name": trial["name"], "trial": trial, "failed": f"exit {child.returncode}"}
                if file.exists():
                    row = json.loads(file.read_text(encoding="utf-8"))
                failures += "failed" in row
                with out.open("a", encoding="utf-8") as rows_file:
                    rows_file.write(json.dumps(row, ensure_ascii=False) + "\n")
                print(f"[{time.time() - start:4.0f} s] {summary(row)}", flush=True)
    finally:
        if preparing.poll() is None:
            preparing.terminate()
        preparing.wait()
    return failures


def summary(row: Json) -> str:
    """Return a row for people."""
    if "failed" in row:
        return f"{row['name']}: {row['failed']}"
    parts = [f"{row['name']}: {row['tokens'] / 1e6:.0f} M tokens, {row['seconds']:.0f} s"]
    for name, one in row["text"].items():
        bits = " / ".join(
            f"{one[kind]['bits_per_character_spelt']:.4f}" for kind in ("warm", "cold")
        )
        parts.append(f"{name} {bits} bits a character, {one['unknown_percent']:.2f} % unknown")
    for name, probe in row["probes"].items():
        figure = "dev" if name == "wic" else "centroid"
        best = {layer: values[figure] for layer, values in probe["layers"].items()}
        parts.append(f"{name} " + " ".join(f"{k}:{v:.1f}" for k, v in best.items()))
    return "; ".join(parts)


def chosen(given: Json, only: str, *, toy: bool) -> list[Json]:
    """Return the trials that are asked for, with the list's defaults."""
    trials = [{"set": [], **given.get("defaults", {}), **trial} for trial in given["trials"]]
    known = {trial["name"]: trial for trial in trials}
    missing = [name for name in only.split(",") if only and name not in known]
    if missing:
        sys.exit(f"trials: there is no trial {missing[0]}, only {', '.join(known)}")
    named = [known[name] for name in only.split(",")] if only else []
    trials = named or [trial for trial in trials if not trial.get("extra")]
    size = 1000 if toy else 1 << 62
    return [{**trial, "vocab": min(trial["vocab"], size)} for trial in trials]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("list", type=Path, help="see benchmarks/trials")
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="where its files lie")
    parser.add_argument("-o", "--output", type=Path, help="rows are added to this file")
    parser.add_argument("--work", type=Path, default=Path("trials-work"), help="for corpora, runs")
    parser.add_argument("--recipe", default="small", help="what trials change")
    parser.add_argument("--only", default="", help="names with commas between")
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds in all")
    parser.add_argument("--device")
    parser.add_argument("--toy", action="store_true", help="20 steps of a tiny model")
    parser.add_argument("--prepare", action="store_true", help="make the corpora and stop")
    parser.add_argument("--row", type=Path, help="run one trial here, its row into this file")
    asked = parser.parse_args()
    given = json.loads(asked.list.read_text(encoding="utf-8"))
    device = asked.device or ("cuda" if torch.cuda.is_available() and not asked.toy else "cpu")
    bench = Bench(given, tuple(asked.data), asked.work, asked.recipe, device, asked.toy)
    trials = chosen(given, asked.only, toy=asked.toy)
    if asked.prepare:
        prepare_all(bench, trials)
    elif asked.row:
        try:
            row = run_trial(bench, trials[0])
        except Exception as error:
            row = {"name": trials[0]["name"], "trial": trials[0]}
            row |= {"failed": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        asked.row.write_text(json.dumps(row, ensure_ascii=False), encoding="utf-8")
    else:
        again = [sys.executable, __file__, str(asked.list), "--data", *map(str, asked.data)]
        again += ["--work", str(asked.work), "--recipe", asked.recipe, "--device", device]
        again += ["--toy"] * asked.toy
        out = asked.output or Path(f"{asked.list.stem}.jsonl")
        failures = run_all(bench, trials, out, again, asked.jobs, asked.limit)
        sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
