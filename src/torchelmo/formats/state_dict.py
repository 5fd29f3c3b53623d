"""Files of `torch.save` and archives that hold one, read as files from anywhere must be.

Nothing but tensors is unpickled. An archive is read as a stream and never unpacked: names in it are
compared and never used as paths, links and sparse members are passed over. A file may not claim
more memory than its own size accounts for, and what it claims is checked before memory is taken.
"""

from __future__ import annotations

import gzip
import io
import pickle
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import torch
from torch import Tensor

from torchelmo.errors import InputError

# Weights shrink by some percent. An archive that grows more than this is a bomb, not a model.
MAX_GROWTH = 20
SLACK = 1 << 20  # bytes; small archives hold mostly headers and vocabulary
MAX_MEMBER = 1 << 20  # bytes of a JSON file; larger ones are not what is looked for

ZIP_MAGIC = b"PK\x03\x04"
LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # torch before 1.6
GZIP_MAGIC = b"\x1f\x8b"


def read_file(path: Path) -> dict[str, Tensor]:
    """Load the tensors of a file that `torch.save` wrote."""
    try:
        with path.open("rb") as file:
            return load_tensors(file, str(path))
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def load_tensors(file: BinaryIO, where: str) -> dict[str, Tensor]:
    """Load an open file of `torch.save`, the old layout too; what is no tensor is left out."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    start = file.read(len(LEGACY_MAGIC))
    file.seek(0)
    if start.startswith(ZIP_MAGIC):
        _check_zip(file, size, where)
    elif start != LEGACY_MAGIC:
        raise InputError(f"{where} is not a file of torch.save: it begins with {start[:4]!r}")
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can make torch raise anything
        foreign = re.search(r"nsupported (?:global: )?GLOBAL (\S+)", str(error))
        if isinstance(error, pickle.UnpicklingError) and foreign:
            raise InputError(
                f"{where} asks for {foreign[1]}, but only tensors are ever loaded: "
                "save model.state_dict() with torch.save and give that file"
            ) from None
        raise InputError(f"{where} is damaged: torch cannot read it") from error
    if not isinstance(loaded, Mapping):
        raise InputError(f"{where} holds a {type(loaded).__name__}, expected a state dict")
    tensors = {n: t for n, t in loaded.items() if isinstance(n, str) and isinstance(t, Tensor)}
    _check_storage(tensors, size, where)
    return tensors


def is_archive(path: Path) -> bool:
    """Whether a file begins like a tar, with gzip or without."""
    try:
        with path.open("rb") as file:
            start = file.read(512)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    return start.startswith(GZIP_MAGIC) or start[257:262] == b"ustar"


def read_archive(
    path: Path, weights: str, wanted: Callable[[str], bool]
) -> tuple[dict[str, Tensor], dict[str, bytes]]:
    """Read a tar front to back: the tensors of the file `weights`, and small files by their names.

    Both are looked for by the last part of the name, in any folder of the archive; of several
    weights the first counts.
    """
    size = path.stat().st_size
    found: io.BytesIO | None = None
    small: dict[str, bytes] = {}
    try:
        with path.open("rb") as file:
            packed = file.read(2) == GZIP_MAGIC
            file.seek(0)
            source = gzip.GzipFile(fileobj=file) if packed else file
            stream = _Limited(source, MAX_GROWTH * size + SLACK, str(path))
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                for member in tar:
                    stream.expect(member.size)
                    # Sparse members give more bytes than are stored; links lead elsewhere.
                    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.sparse:
                        continue
                    name = PurePosixPath(member.name).name
                    if name == weights and found is None:
                        found = _read_member(tar, member, path)
                    elif wanted(name) and member.size <= MAX_MEMBER:
                        small[member.name] = _read_member(tar, member, path).getvalue()
    except InputError:
        raise
    except (tarfile.TarError, EOFError, OSError, zlib.error, ValueError) as error:
        raise InputError(f"{path} is damaged: the archive ends or breaks off") from error
    if found is None:
        raise InputError(f"{path} holds no file {weights}")
    return load_tensors(found, f"{weights} in {path}"), small


class _Limited(io.RawIOBase):
    """A stream that gives so many bytes and no more."""

    def __init__(self, source: BinaryIO | gzip.GzipFile, limit: int, where: str) -> None:
        self.source, self.left, self.where = source, limit, where

    def read(self, size: int = -1, /) -> bytes:
        data = self.source.read(size)
        self.left -= len(data)
        self.expect(0)
        return data

    def expect(self, size: int) -> None:
        """Refuse a member that claims more than may still come."""
        # tarfile reads ahead in blocks, so that some of a member may be counted before it is due
        if self.left + tarfile.RECORDSIZE < size or self.left < 0:
            raise InputError(
                f"{self.where} claims to hold over {MAX_GROWTH} times its own size: it is not a "
                "model's archive"
            )


def _read_member(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> io.BytesIO:
    source = tar.extractfile(member)  # a stream: no file is made
    data = io.BytesIO()
    while source is not None and (piece := source.read(1 << 20)):
        data.write(piece)
    if data.tell() != member.size:
        raise InputError(f"{path} is damaged: the archive ends or breaks off")
    data.seek(0)
    return data


def _check_zip(file: BinaryIO, size: int, where: str) -> None:
    """Refuse a zip whose entries say more than the file has; torch.save compresses nothing."""
    try:
        with zipfile.ZipFile(file) as archive:
            total = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise InputError(f"{where} is damaged: its zip directory cannot be read") from error
    file.seek(0)
    if total > size:
        raise InputError(
            f"{where} of {size:,} bytes claims to hold {total:,}: it was not written by torch.save"
        )


def _check_storage(tensors: Mapping[str, Tensor], size: int, where: str) -> None:
    """Refuse tensors that repeat a small storage, and storages that were claimed and not stored."""
    storages: dict[int, int] = {}
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            raise InputError(f"{where} has {name!r} as a special tensor, expected a dense one")
        held = tensor.untyped_storage().nbytes()
        if tensor.numel() * tensor.element_size() > held:
            raise InputError(
                f"{where} has {name!r} of shape {tuple(tensor.shape)} over {held:,} stored bytes"
            )
        storages[tensor.untyped_storage().data_ptr()] = held
    if sum(storages.values()) > size:
        claimed = sum(storages.values())
        raise InputError(f"{where} of {size:,} bytes claims tensors of {claimed:,}")
