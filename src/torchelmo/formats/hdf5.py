"""hdf5 files opened with care: no link is followed, no size believed, a failure is one sentence."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import h5py
import numpy as np
import numpy.typing as npt

from torchelmo.errors import InputError
from torchelmo.formats import files

Array = npt.NDArray[np.float32]
Datasets = dict[str, h5py.Dataset]


@contextmanager
def open_datasets(source: Path | BinaryIO, where: str) -> Iterator[Datasets]:
    """Open a file and give its datasets by name; soft and external links are left out."""
    if isinstance(source, Path):
        files.check_file(source)
    found: Datasets = {}

    def collect(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item

    try:
        # No lock: read-only and network file systems do not give one.
        file = h5py.File(source, "r", locking=False)
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{where} cannot be opened as hdf5: {_reason(error)}") from None
    with file:
        try:
            file.visititems(collect)
            for dataset in found.values():
                _ = dataset.shape, dataset.dtype  # damage shows here, not in the reader
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            raise InputError(f"{where} is a damaged hdf5 file: {_reason(error)}") from None
        yield found


def check_storage(dataset: h5py.Dataset, name: str, where: str) -> None:
    """Refuse a dataset of no floats, kept in another file, or storing far less than it claims."""
    kind = dataset.dtype
    if kind.kind != "f":
        raise InputError(f"{where} has the dataset {name!r} of type {kind}, expected floats")
    if dataset.is_virtual or dataset.external:
        raise InputError(f"{where} keeps the dataset {name!r} in another file: that is not read")
    stored = dataset.id.get_storage_size()
    if files.claims_too_much(math.prod(dataset.shape) * kind.itemsize, stored):
        raise InputError(
            f"{where} has the dataset {name!r} of shape {dataset.shape} but stores only {stored} "
            "bytes for it: the file is damaged or made to harm"
        )


def read_array(dataset: h5py.Dataset, name: str, where: str) -> Array:
    """Read a dataset as float32, whichever floats it holds."""
    array: Array = np.empty(dataset.shape, dtype=np.float32)
    try:
        dataset.read_direct(array)
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{where}: the dataset {name!r} is damaged: {_reason(error)}") from None
    return array


@contextmanager
def create(path: Path) -> Iterator[h5py.File]:
    """Open a new file for writing; a full disk raises OSError when the block ends."""
    with path.open("w+b", buffering=0) as raw:
        disk = _Disk(raw)
        try:
            with h5py.File(disk, "w") as file:
                yield file
        except RuntimeError as error:
            raise disk.error or OSError(_reason(error)) from None
        if disk.error is not None:
            raise disk.error


def write_arrays(path: Path, arrays: Iterable[tuple[str, Array]]) -> None:
    """Write a new file of datasets; a full disk raises OSError."""
    with create(path) as file:
        for name, array in arrays:
            file.create_dataset(name, data=np.ascontiguousarray(array))


class _Disk:
    """A file whose failures are kept for later: libhdf5 crashes the process if a write fails."""

    def __init__(self, file: io.FileIO) -> None:
        self.file = file
        self.error: OSError | None = None
        self.read, self.readinto = file.read, file.readinto
        self.seek, self.tell, self.flush = file.seek, file.tell, file.flush

    def write(self, data: memoryview) -> int:
        rest = memoryview(data)
        while rest and self.error is None:
            try:
                rest = rest[self.file.write(rest) :]
            except OSError as error:
                self.error = error
        return len(data)

    def truncate(self, size: int) -> int:
        try:
            return self.file.truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size


def _reason(error: Exception) -> str:
    lines = str(error).strip("'\" \n").splitlines()
    return lines[0] if lines else type(error).__name__
