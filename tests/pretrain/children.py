"""Runs of the toy recipe in processes of their own: killed, short of disk, or several together.

They are forked from a process that has torch already, which saves the seconds of importing it.
"""

import json
import multiprocessing
import os
import random
import resource
import signal
import socket
import sys
import time
from pathlib import Path

import torch

from pretrain.tiny import CPU, digest, trainer
from torchelmo.config import from_json
from torchelmo.errors import InputError
from torchelmo.pretrain.corpus import Corpus
from torchelmo.pretrain.processes import Processes
from torchelmo.pretrain.recipe import Recipe

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torchelmo.pretrain.loop", "torch._dynamo"])
EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir")


def train(recipe, corpus, run, out, *, kill_at=None, disk=None, place=None, stop=None):
    """Train, and write down how it ended; a child process.

    Args:
        recipe, corpus, run: as JSON, and as folders.
        out: the file to write.
        kill_at: the number of the access to the run's files at which the process kills itself.
        disk: bytes that a file may have.
        place: (rank, processes, port) of one of several processes.
        stop: the step after which to stop.
    """
    torch.set_num_threads(1)
    accesses, began = 0, time.perf_counter()

    def watch(event, arguments):
        nonlocal accesses
        if event in EVENTS and str(arguments[0]).startswith(str(run)):
            accesses += 1
            if accesses == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    if disk is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (disk, resource.RLIM_INFINITY))
    processes = Processes.alone()
    if place is not None:
        names = ("RANK", "WORLD_SIZE", "MASTER_PORT")
        os.environ |= dict(zip(names, map(str, place), strict=True), MASTER_ADDR="127.0.0.1")
        processes = Processes.join(CPU)
    losses, ended = [], {}
    try:
        made = trainer(
            from_json(Recipe, json.loads(recipe), "recipe"),
            Corpus.open(corpus),
            run,
            processes=processes,
        )
        ended = {"first": made.step}
        result = made(
            lambda status: losses.append((status.step, status.loss, status.validation)),
            stop=lambda: made.step == stop,
        )
        ended |= {"step": result.step, "digest": digest(made), "accesses": accesses}
        ended["seconds"] = time.perf_counter() - began
    except InputError as error:
        ended["error"] = str(error)
    weights = {} if "error" in ended else made.model.state_dict()
    ended |= {"losses": losses, "sum": sum(float(t.double().sum()) for t in weights.values())}
    if processes.first:
        if disk is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        Path(out).write_text(json.dumps(ended), encoding="utf-8")
    if place is not None:
        torch.distributed.destroy_process_group()


def start(recipe, corpus, run, out, **options):
    """Start `train` in a process."""
    arguments = json.dumps(recipe.to_json()), str(corpus.folder), str(run), str(out)
    process = CONTEXT.Process(target=train, args=arguments, kwargs=options)
    process.start()
    return process


def finished(recipe, corpus, run, **options):
    """Run `train` to its end; return what it wrote down."""
    out = run.with_suffix(".json")
    out.unlink(missing_ok=True)
    process = start(recipe, corpus, run, out, **options)
    process.join()
    assert process.exitcode == 0
    return json.loads(out.read_text(encoding="utf-8"))


def together(recipe, corpus, run, world, **options):
    """Run `train` in processes that share the batch; return what the first wrote down."""
    out = run.with_suffix(".json")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = [(rank, world, port) for rank in range(world)]
    children = [start(recipe, corpus, run, out, place=place, **options) for place in places]
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * world
    return json.loads(out.read_text(encoding="utf-8"))


def killed(recipe, corpus, run, moment):
    """Start `train` and kill it: at an access to its files, or after so many seconds."""
    out = run.with_suffix(".json")
    if isinstance(moment, int):
        process = start(recipe, corpus, run, out, kill_at=moment)
    else:
        process = start(recipe, corpus, run, out)
        time.sleep(moment)
        process.kill()
    process.join()
    return process.exitcode


def files(run):
    """What a run has in its folder, checkpoints and log included, but for measured speed."""
    found = {}
    for path in sorted(run.rglob("*")):
        if path.is_file():
            found[str(path.relative_to(run))] = path.read_bytes()
    lines = [json.loads(line) for line in found.pop("log.jsonl").splitlines()]
    for line in lines:
        line.pop("tokens_per_second", None)
    return found, lines


def check_kills(recipe, corpus, folder, kills, seed):
    """Kill a run again and again and go on; it must end as one that was left alone."""
    whole = finished(recipe, corpus, folder / "whole")
    rng = random.Random(seed)
    codes = []
    for number in range(kills):
        # Two of three at an access to files, of which most belong to a save. What is lost by each
        # kill makes sure that the run is not over before the last.
        share = rng.uniform(0.2, 1.2) / kills
        moment = share * whole["seconds"] if number % 3 == 2 else 1 + int(share * whole["accesses"])
        codes.append(killed(recipe, corpus, folder / "run", moment))
    assert codes.count(-signal.SIGKILL) >= kills - 1  # the clock may have been late
    found = finished(recipe, corpus, folder / "run")
    assert found["digest"] == whole["digest"]
    assert files(folder / "run") == files(folder / "whole")
    return found
