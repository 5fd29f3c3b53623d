"""The runs of a table as processes: several at once, each of which may fail or be killed alone.

A run (1) locks its folder, (2) reads its data, (3) trains with a checkpoint after each epoch, (4)
scores the test part once, with its best epoch, (5) leaves its model and its result. Whatever ends
it before that, the same call goes on after its last whole epoch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import platform
import secrets
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import date
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from torchelmo import __version__
from torchelmo.config import Json
from torchelmo.elmo import pick_device
from torchelmo.errors import InputError, MissingExtra
from torchelmo.formats import files
from torchelmo.tasks import encoders
from torchelmo.tasks.checkpoint import FILE, ResumableTrainer
from torchelmo.tasks.data import LayerStore
from torchelmo.tasks.experiment import (
    ERROR,
    LOCK,
    LOG,
    MODEL,
    STATUS,
    Places,
    Run,
    same_recipe,
)
from torchelmo.tasks.model import AnyTask, make, open_store, task_class, tokenizer_name
from torchelmo.tasks.readers.examples import Words
from torchelmo.tasks.recipe import Recipe
from torchelmo.tasks.trainer import Report, Status, hold_out
from torchelmo.text.words import get_tokenizer

POLL = 0.25  # seconds between looks at whether to stop
TRIES = 40  # at a lock that somebody may only be looking at


@dataclass(frozen=True)
class Settings:
    """What all runs of a call share."""

    places: Places
    device: str | None = None
    jobs: int = 1
    share_layers: bool = False  # as float16 under the work folder, once for all runs
    keep_models: bool = True


@dataclass(frozen=True)
class Event:
    """A run that begins or ends."""

    run: Run
    what: str  # "begins", "done", "failed"
    words: str = ""


Tell = Callable[[Event], None]


def run_all(
    runs: Sequence[Run],
    settings: Settings,
    tell: Tell | None = None,
    stop: Callable[[], bool] | None = None,
) -> dict[str, str]:
    """Run each in a process, `settings.jobs` at a time; return what went wrong, by name.

    When `stop` says so, the runs are ended; the same call goes on with them later.
    """
    make_process = _processes()
    waiting, failures = deque(runs), dict[str, str]()
    running: dict[object, tuple[BaseProcess, Run]] = {}  # by what says that they have ended
    say = tell or (lambda event: None)
    try:
        while (waiting or running) and not (stop is not None and stop()):
            while waiting and len(running) < settings.jobs:
                run = waiting.popleft()
                process = make_process(target=_process, args=(run, settings), name=run.name)
                process.start()
                running[process.sentinel] = process, run
                say(Event(run, "begins"))
            for ended in connection.wait([p.sentinel for p, _ in running.values()], POLL):
                process, run = running.pop(ended)
                process.join()
                if process.exitcode == 0:
                    say(Event(run, "done"))
                else:
                    failures[run.name] = _reason(run, settings, process.exitcode)
                    say(Event(run, "failed", failures[run.name]))
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.join()
    return failures


def execute(run: Run, settings: Settings, report: Report | None = None) -> Json:
    """Do one run in this process, or the rest of it, and return its result, which is written."""
    places = settings.places
    folder, target = places.folder(run), places.result(run)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / LOCK, f"{run.name} is running already in {folder}"):
        (folder / ERROR).unlink(missing_ok=True)
        began = time.perf_counter()
        named = run.read()
        recipe = _placed(named, places)
        place = pick_device(settings.device)
        store = open_store(_sharing(recipe, settings), None, place)
        parts = _read(run, recipe, store, places)
        model, trainer = _prepare(run, recipe, parts, store, place, folder, report, settings)
        trainer.run()
        test = model.evaluate(parts["test"])
        result = _result(run, named, model, parts, test, settings)
        result["seconds_all"] = round(trainer.before + time.perf_counter() - began, 2)
        if settings.keep_models:
            model.metrics = {**model.metrics, "test": test}
            model.save(folder / MODEL, overwrite=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, result)
        for name in (FILE, STATUS):
            (folder / name).unlink(missing_ok=True)
    return result


def write_whole(path: Path, data: Json) -> None:
    """Write a JSON file, whole or not at all."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        files.write_json(partial, data)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def commit() -> str:
    """Return the commit of the sources; TORCHELMO_COMMIT names it where they have no history."""
    command = ["git", "-C", str(Path(__file__).resolve().parent), "rev-parse", "--short", "HEAD"]
    found = os.environ.get("TORCHELMO_COMMIT", "")
    if not found:
        with contextlib.suppress(OSError):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            found = done.stdout.strip()
    return found


def _placed(recipe: Recipe, places: Places) -> Recipe:
    """Put the folder of the data where the reader's keys have "{data}"."""
    reader = {
        key: value.replace("{data}", str(places.data)) if isinstance(value, str) else value
        for key, value in recipe.data.reader.items()
    }
    return replace(recipe, data=replace(recipe.data, reader=reader))


def _sharing(recipe: Recipe, settings: Settings) -> Recipe:
    """Have the biLM's layers kept on disk, where other runs find them."""
    if recipe.elmo is None or not settings.share_layers:
        return recipe
    folder = str(settings.places.work / "layers")
    return replace(recipe, elmo=replace(recipe.elmo, keep="disk", folder=folder))


def _read(
    run: Run, recipe: Recipe, store: LayerStore | None, places: Places
) -> dict[str, list[object]]:
    """Return the examples of each part."""
    task = task_class(run.task)
    tokenizer = get_tokenizer(tokenizer_name(recipe, store))
    parts = {
        part: [
            example
            for path in paths
            for example in task.read(
                recipe, places.file(path), tokenizer=tokenizer, training=part == "train"
            )
        ]
        for part, paths in run.data.items()
    }
    for part in ("train", "test"):
        if not parts[part]:
            raise InputError(f"there are no examples in {', '.join(run.data[part])}")
    if not parts["valid"] and recipe.data.hold_out:
        parts["train"], parts["valid"] = _hold_out(task, parts["train"], recipe.data.hold_out)
    return parts


def _hold_out(
    task: type[AnyTask], examples: Sequence[object], share: float
) -> tuple[list[object], list[object]]:
    """Part examples as `hold_out` does; those of one longest text, as a context, together."""

    def longest(example: object) -> Words:
        return max((words for role in task.texts(example) for words in role), key=len)

    kept = set(hold_out(list(dict.fromkeys(map(longest, examples))), share)[0])
    return (
        [example for example in examples if longest(example) in kept],
        [example for example in examples if longest(example) not in kept],
    )


def _prepare(
    run: Run,
    recipe: Recipe,
    parts: dict[str, list[object]],
    store: LayerStore | None,
    place: torch.device,
    folder: Path,
    report: Report | None,
    settings: Settings,
) -> tuple[AnyTask, ResumableTrainer]:
    """Make the network and its trainer, as `fit` does, with the layers of its texts computed."""
    task = task_class(run.task)
    texts = list(dict.fromkeys(_texts(task, parts["train"])))
    if store is not None:
        everything = list(dict.fromkeys([*texts, *_texts(task, parts["valid"])]))
        with ExitStack() as stack:
            if settings.share_layers:  # one computes, the others wait and read
                lock = settings.places.work / "layers" / f"{run.group}.{LOCK}"
                lock.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(_locked(lock))
            if not store.add(everything) and store.keep != "none":
                warnings.warn(
                    f"the biLM's layers of {len(everything):,} texts need more than elmo.keep_gb: "
                    "they are computed in every pass",
                    stacklevel=2,
                )
    vectors = encoders.load_vectors(recipe)
    vocabularies = {
        **encoders.collect(recipe, texts, vectors),
        **task.collect(recipe, parts["train"]),
    }
    torch.manual_seed(recipe.train.seed)
    model = make(recipe, vocabularies, vectors, store).to(place)
    facts = [
        same_recipe(run.read()),
        run.data,
        [len(examples) for examples in parts.values()],
        None if store is None else store.fingerprint,
        [(name, list(value.shape)) for name, value in model.state_dict().items()],
    ]
    trainer = ResumableTrainer(
        model,
        parts["train"],
        parts["valid"],
        folder=folder,
        key=hashlib.sha256(json.dumps(facts).encode()).hexdigest(),
        report=report,
    )
    return model, trainer


def _texts(task: type[AnyTask], examples: Sequence[object]) -> Iterator[Words]:
    for number, example in enumerate(examples, 1):
        for role in task.texts(example):
            for words in role:
                if not words:
                    raise InputError(f"example {number} has a text without words: leave it out")
                yield words


def _result(
    run: Run,
    recipe: Recipe,
    model: AnyTask,
    parts: dict[str, list[object]],
    test: dict[str, float],
    settings: Settings,
) -> Json:
    metrics, best = model.metrics, model.metrics["best"]
    store = model.inputs.store
    return {
        "name": run.name,
        "task": run.task,
        "condition": run.condition,
        "seed": run.seed,
        "date": date.today().isoformat(),
        "commit": commit(),
        "torchelmo": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "hardware": _hardware(model.device),
        "metric": model.metric,
        "test": test,
        "valid": best.get("valid"),
        "best_epoch": best["epoch"],
        "epochs": len(metrics["epochs"]),
        "seconds": metrics["seconds"],
        "parameters": metrics["parameters"],
        "mixes": best.get("mixes", {}),
        "examples": {part: len(examples) for part, examples in parts.items()},
        "bilm": None if store is None else [recipe.bilm and recipe.bilm.model, store.fingerprint],
        "layers": "float16 on disk" if store is not None and settings.share_layers else "float32",
        "data": run.data,
        "recipe": recipe.to_json(),
    }


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{device.type}, {torch.get_num_threads()} threads, {platform.machine()}"


@contextmanager
def _locked(path: Path, taken: str | None = None) -> Iterator[None]:
    """Hold a lock; wait for it, or with `taken` refuse soon if another process has it."""
    with path.open("ab") as file:
        tries = 0
        while files.try_lock(file) is False:
            tries += 1
            if taken is not None and tries >= TRIES:
                raise InputError(taken)
            time.sleep(0.05)
        yield


def _processes() -> Callable[..., BaseProcess]:
    """Return what makes a process; where that is possible torch is imported once for all."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn").Process
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context.Process


def _process(run: Run, settings: Settings) -> None:
    """Do one run in a process of its own; its words go to the log."""
    folder = settings.places.folder(run)
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(ValueError, AttributeError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is for the one who started us
    threading.Thread(target=_die_with_parent, daemon=True).start()
    if settings.jobs > 1:
        torch.set_num_threads(max((os.cpu_count() or 1) // settings.jobs, 1))
    log = (folder / LOG).open("a", encoding="utf-8", buffering=1)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    sys.stdout = sys.stderr = log
    log.write(f"{run.name} begins, process {os.getpid()}\n")

    def report(now: Status) -> None:
        if now.result is not None:
            write_whole(folder / STATUS, {"epoch": now.epoch, "result": now.result})
            log.write(json.dumps(now.result) + "\n")

    try:
        execute(run, settings, report)
    except (InputError, MissingExtra) as error:
        _fail(folder, str(error))
    except BaseException as error:
        traceback.print_exc(file=log)
        words = " ".join(f"{type(error).__name__}: {error}".split())
        _fail(folder, f"{words} (see {folder / LOG})")


def _fail(folder: Path, words: str) -> None:
    write_whole(folder / ERROR, {"error": words})
    sys.exit(1)


def _die_with_parent() -> None:
    """End this process when the one that started it is gone, so that nobody trains unseen."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _reason(run: Run, settings: Settings, code: int | None) -> str:
    folder = settings.places.folder(run)
    with contextlib.suppress(InputError):
        return str(files.read_json(folder / ERROR)["error"])
    words = f"the process ended with {code} (see {folder / LOG})"
    write_whole(folder / ERROR, {"error": words})
    return words
