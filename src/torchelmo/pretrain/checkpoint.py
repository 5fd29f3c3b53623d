"""Checkpoints: a native model folder, and beside it all that a run needs to go on bit for bit.

    RUN/checkpoints/step-00001000/   config.json, model.safetensors, vocab.txt, ... (a whole model)
                                     training.safetensors  optimizer, LSTM states, random states,
                                                           stream positions
                                     training.json         step, recipe, corpus, versions, and the
                                                           SHA-256 of every other file

A checkpoint is written under another name, flushed to disk and renamed; training.json is its last
file and carries a sum of itself. One that is cut short or changed is passed over for the one
before.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from torchelmo.config import Json
from torchelmo.errors import InputError
from torchelmo.formats import files, native
from torchelmo.formats.model import Model
from torchelmo.pretrain.processes import Processes

LOCK = "lock"
TENSORS, FACTS = "training.safetensors", "training.json"
NAME = re.compile(r"step-(\d{8})")


@dataclass(frozen=True)
class Checkpoint:
    """What was saved."""

    step: int
    folder: Path
    facts: Json
    tensors: dict[str, Tensor]

    def model(self) -> Model:
        """Read the network and its vocabulary."""
        return native.read(self.folder)


@contextlib.contextmanager
def alone(run: Path, processes: Processes, *, make: bool = False) -> Iterator[None]:
    """Keep other runs out of a folder, which is made if asked for.

    The lock is the first process's; if it cannot be had, the error is raised in all of them.
    """
    with contextlib.ExitStack() as stack:
        refusal = None
        if processes.first and (make or run.is_dir()):
            taken = f"another process is training in {run}: wait for it, or choose another folder"
            try:
                run.mkdir(parents=True, exist_ok=True)
                stack.enter_context(files.hold_lock(run / LOCK, taken))
            except InputError as error:
                refusal = str(error)
            except OSError as error:
                refusal = f"{run} cannot be written: {error.strerror or error}"
        refusal = processes.tell(refusal)
        if refusal is not None:
            raise InputError(refusal)
        yield


def save(run: Path, step: int, model: Model, tensors: Mapping[str, Tensor], facts: Json) -> Path:
    """Write a checkpoint, whole or not at all."""
    home = run / "checkpoints"
    target, scratch = home / f"step-{step:08d}", home / f"step-{step:08d}.tmp"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        home.mkdir(parents=True, exist_ok=True)
        scratch.mkdir()
        native.write_files(model, scratch)
        ready = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
        save_file(ready, scratch / TENSORS)
        sums = {path.name: _sum(path) for path in sorted(scratch.iterdir())}
        facts = {**facts, "step": step, "sha256": sums}
        facts["self"] = _sum_of(facts)
        (scratch / FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        for path in (*scratch.iterdir(), scratch):
            _flush(path)
        if target.exists():  # left by a run that was killed after this step and began before it
            shutil.rmtree(target)
        os.replace(scratch, target)
        _flush(home)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(scratch, ignore_errors=True)
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"the checkpoint of step {step} cannot be written to {home}: {reason}; the one before "
            "it is whole, and the same command goes on from there"
        ) from None
    return target


def load_latest(run: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest whole checkpoint, and a sentence for each broken one passed over."""
    broken: list[str] = []
    for folder in sorted(_folders(run), reverse=True):
        try:
            return load(folder), broken
        except InputError as error:
            broken.append(str(error))
    return None, broken


def load(folder: Path) -> Checkpoint:
    """Read a checkpoint after checking every file's sum."""
    try:
        facts = files.read_json(folder / FACTS)
        kept = facts.pop("self")
        if kept != _sum_of(facts):
            raise InputError(f"{folder / FACTS} was changed: its checkpoint cannot be used")
        for name, expected in facts["sha256"].items():
            if _sum(folder / name) != expected:
                raise InputError(f"{folder / name} is damaged: its checkpoint cannot be used")
        tensors = load_file(folder / TENSORS)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{folder} is not a whole checkpoint: {error}") from None
    return Checkpoint(int(facts["step"]), folder, facts, tensors)


def prune(run: Path, keep: int) -> None:
    """Delete all but the newest checkpoints, and what killed runs left half written."""
    folders = sorted(_folders(run))
    for folder in folders[: max(len(folders) - keep, 0)]:
        # Renamed first: a kill in the middle must not leave half a checkpoint under its name.
        doomed = folder.with_suffix(".tmp")
        shutil.rmtree(doomed, ignore_errors=True)
        os.replace(folder, doomed)
        shutil.rmtree(doomed, ignore_errors=True)
    halves = [*run.glob(".best.*"), *run.glob(".last.*")]  # of the model folders
    for folder in (*(run / "checkpoints").glob("*.tmp"), *halves):
        shutil.rmtree(folder, ignore_errors=True)


def set_aside(run: Path, step: int) -> None:
    """Rename what is newer than the checkpoint that a run goes on from: those are broken.

    Under their names they would count as the newest, and whole ones would be deleted for them.
    """
    for folder in _folders(run):
        if folder.name > f"step-{step:08d}":
            kept = folder.with_suffix(".broken")
            shutil.rmtree(kept, ignore_errors=True)
            with contextlib.suppress(OSError):
                os.replace(folder, kept)


def _folders(run: Path) -> list[Path]:
    home = run / "checkpoints"
    return [p for p in home.iterdir() if NAME.fullmatch(p.name)] if home.is_dir() else []


def _sum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _sum_of(facts: Json) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _flush(path: Path) -> None:
    """Wait until a file or folder is on disk, where the system knows how."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]
) -> dict[str, Tensor]:
    """Return an optimizer's state as named tensors."""
    out = {}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            tensor = value if isinstance(value, Tensor) else torch.tensor(value)
            out[f"optimizer.{names[parameter]}.{key}"] = tensor
    return out


def restore_optimizer(
    optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str], tensors: Mapping[str, Tensor]
) -> None:
    """Put an optimizer's state back."""
    for parameter, name in names.items():
        start = f"optimizer.{name}."
        state = {k.removeprefix(start): t for k, t in tensors.items() if k.startswith(start)}
        for key, value in state.items():
            # Adam keeps its count of steps on the CPU unless it is fused.
            old = optimizer.state[parameter].get(key)
            device = old.device if isinstance(old, Tensor) else parameter.device
            optimizer.state[parameter][key] = value.to(device)
