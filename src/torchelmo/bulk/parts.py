"""OUT.partial/: what a run has finished, so that the same command goes on after a kill.

`run.json` says what was asked of which model. Each window is one part, written under a temporary
name and renamed when it is whole and on disk:

    one line of JSON   `Header`
    text               the sentences, words parted by one space, a line each
    data               sentence after sentence, (L+1, T, D) or (T, D), little-endian
    state              safetensors; only if state is carried: what the LSTMs remember after it

A lock that ends with its process keeps two runs from writing the same output.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load, save

from torchelmo.bulk.reader import Window
from torchelmo.bulk.vectors import Vectors
from torchelmo.config import Json
from torchelmo.errors import InputError
from torchelmo.formats import files
from torchelmo.nn.lstm import State

RUN, LOCK, DONE = "run.json", "lock", "done.json"
Facts = dict[str, str | int | bool | None]


@dataclass(frozen=True)
class Header:
    """The first line of a part."""

    first: int  # 0-based number of its first line
    lines: int
    tokens: int
    blank: int
    last: bool
    input_bytes: int
    input_sha256: str
    text_bytes: int
    data_bytes: int


class Partial:
    """The folder, locked while open; use it as a context.

    Left with an error, it keeps finished parts; without any it vanishes.
    """

    def __init__(self, output: Path) -> None:
        """Take the path of the output, which the folder lies beside."""
        self.output = output
        self.folder = output.with_name(output.name + ".partial")
        self._lock: BinaryIO | None = None

    def __enter__(self) -> Partial:
        self.folder.mkdir(exist_ok=True)
        known = re.compile(
            rf"(part-\d{{8}}|{re.escape(self.output.name)}.*)(\.tmp)?|{RUN}(\.tmp)?|{DONE}(\.tmp)?|{LOCK}"
        )
        for path in self.folder.iterdir():
            if not known.fullmatch(path.name):
                raise InputError(
                    f"{self.folder} holds {path.name!r}, which no unfinished run wrote: "
                    "move that folder away, or choose another output"
                )
        self._lock = files.hold_lock(
            self.folder / LOCK,
            f"another process is writing {self.output}: wait for it, or choose another output",
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):
            for path in self.folder.glob("*.tmp"):
                path.unlink()
        if self._lock is not None:
            self._lock.close()  # an open file cannot be deleted on Windows
            self._lock = None
        if kind is None or not self.part(0).exists():
            self.remove()

    def part(self, number: int) -> Path:
        """Return where a part is."""
        return self.folder / f"part-{number:08d}"

    def temporary(self, name: str) -> Path:
        """Return a name for what is not finished; such files go when the run ends."""
        return self.folder / f"{name}.tmp"

    def begin(self, facts: Facts, *, overwrite: bool) -> None:
        """Note what is run; refuse to go on from parts that another run made."""
        path = self.folder / RUN
        if self.part(0).exists():
            found = _read_json(path)
            changed = [name for name in facts if found.get(name) != facts[name]]
            if not changed:
                return
            if not overwrite:
                what = ", ".join(
                    "another model" if name == "model" else f"{name} {found.get(name)}"
                    for name in changed
                )
                raise InputError(
                    f"{self.folder} holds an unfinished run with {what}: repeat that command, or "
                    "delete the folder, or pass --overwrite"
                )
        self.clear()
        self.write_json(RUN, facts)

    def clear(self) -> None:
        """Delete what an earlier run left."""
        (self.folder / DONE).unlink(missing_ok=True)
        self._delete_parts()

    def remove(self) -> None:
        """Delete the folder; the note that the output is ready goes last."""
        with suppress(OSError):
            self._delete_parts()
            for name in (RUN, LOCK, DONE):
                (self.folder / name).unlink(missing_ok=True)
            self.folder.rmdir()

    def _delete_parts(self) -> None:
        # The last first: a kill in between leaves parts that go together.
        for path in sorted(self.folder.glob("part-*"), reverse=True):
            path.unlink()

    def write_json(self, name: str, facts: Mapping[str, object]) -> None:
        """Write a small file, whole or not at all."""
        temporary = self.temporary(name)
        with temporary.open("wb") as file:
            file.write(json.dumps(facts, indent=1).encode() + b"\n")
            sync(file)
        os.replace(temporary, self.folder / name)

    def done(self) -> Json:
        """Return what was noted when the output was ready, or an empty object."""
        return _read_json(self.folder / DONE)

    def parts(self) -> Iterator[tuple[Path, Header]]:
        """Yield the finished parts in order."""
        for number in itertools.count():
            path = self.part(number)
            if not path.exists():
                return
            with path.open("rb") as file:
                yield path, read_header(file)


class PartWriter:
    """Writes one part; each sentence goes to its final place as soon as it is there."""

    def __init__(self, partial: Partial, number: int, window: Window, token_bytes: int) -> None:
        """Open the temporary file; `token_bytes` is the size of one token's vectors."""
        self.path, self.temporary = partial.part(number), partial.temporary(f"part-{number:08d}")
        text = "\n".join(" ".join(words) for words in window.sentences).encode()
        lengths = np.fromiter(map(len, window.sentences), dtype=np.int64)
        self._offsets = np.concatenate([[0], np.cumsum(lengths)]) * token_bytes
        self.header = Header(
            first=window.first,
            lines=len(window.sentences),
            tokens=window.tokens,
            blank=window.blank,
            last=window.last,
            input_bytes=window.size,
            input_sha256=window.sha256,
            text_bytes=len(text),
            data_bytes=int(self._offsets[-1]),
        )
        self._file = self.temporary.open("wb")
        self._file.write(json.dumps(dataclasses.asdict(self.header)).encode() + b"\n" + text)
        self._data = self._file.tell()

    def write(self, number: int, vectors: Vectors) -> None:
        """Write the vectors of a sentence of the window."""
        if vectors.size:
            little = vectors.astype(vectors.dtype.newbyteorder("<"), order="C", copy=False)
            self._file.seek(self._data + int(self._offsets[number]))
            self._file.write(little.data)

    def finish(self, state: State | None = None) -> None:
        """Add the state, and give the part its name once it is on disk."""
        self._file.seek(self._data + self.header.data_bytes)
        if state is not None:
            tensors = {name: t.cpu().contiguous() for name, t in state.tensors().items()}
            self._file.write(save(tensors))
        sync(self._file)
        self._file.close()
        os.replace(self.temporary, self.path)
        sync_folder(self.path.parent)

    def close(self) -> None:
        """Let go of the file, finished or not."""
        with suppress(OSError):
            self._file.close()


def read_header(file: BinaryIO) -> Header:
    """Read the first line of a part, and check that the rest is there."""
    try:
        header = Header(**json.loads(file.readline()))
        size = file.tell() + header.text_bytes + header.data_bytes
        whole = os.fstat(file.fileno()).st_size >= size
    except (ValueError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise InputError(f"{file.name} is damaged: delete its folder to begin anew")
    return header


def read_words(path: Path) -> Iterator[list[str]]:
    """Yield the words of each sentence of a part."""
    with path.open("rb") as file:
        header = read_header(file)
        for line in file.read(header.text_bytes).decode().split("\n"):
            yield line.split(" ") if line else []


def read_sentences(
    path: Path, shape: tuple[int, ...], dtype: str
) -> Iterator[tuple[int, list[str], Vectors]]:
    """Yield line number, words and vectors of each sentence of a part.

    `shape` is that of one token's vectors, (L+1, D) or (D,).
    """
    kind = np.dtype(dtype).newbyteorder("<")
    token_bytes = int(np.prod(shape)) * kind.itemsize
    with path.open("rb") as file:
        header = read_header(file)
        text = file.read(header.text_bytes).decode()
        for number, line in enumerate(text.split("\n"), start=header.first):
            words = line.split(" ") if line else []
            data = np.frombuffer(file.read(len(words) * token_bytes), dtype=kind)
            yield number, words, data.reshape(*shape[:-1], len(words), shape[-1])


def read_state(path: Path) -> State:
    """Return what the LSTMs remembered after a part."""
    with path.open("rb") as file:
        header = read_header(file)
        file.seek(header.text_bytes + header.data_bytes, os.SEEK_CUR)
        try:
            return State.from_tensors(load(file.read()))
        except (SafetensorError, ValueError) as error:
            raise InputError(
                f"{path} is damaged ({error}): delete its folder to begin anew"
            ) from None


def sync(file: BinaryIO) -> None:
    """Wait until a file is on disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until a renaming is on disk, where the system knows how."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def check_space(folder: Path, needed: int, what: str) -> None:
    """Raise a sentence if a disk has not `needed` bytes free."""
    usage = shutil.disk_usage(folder)
    if usage.total and usage.free < needed:
        raise InputError(
            f"{what} needs {_size(needed)}, the disk of {folder} has {_size(usage.free)} free: "
            "make room and repeat the command"
        )


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _read_json(path: Path) -> Json:
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
