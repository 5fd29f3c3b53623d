"""What the formats share: small files read with limits, folders that appear whole or not at all."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import secrets
import shutil
import sys
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from torchelmo.config import Json
from torchelmo.errors import InputError

JSON_BYTES = 16 << 20  # a config has some hundred bytes
LIST_BYTES = 1 << 30  # the largest published vocabulary has 10 MB
SMALL = 16 << 20  # what may be allocated whatever the file stores
RATIO = 100  # weights hardly compress; zeros compress a thousandfold


def claims_too_much(claimed: int, stored: int) -> bool:
    """Whether `claimed` bytes cannot come from `stored` ones, so that memory is not taken for them.

    >>> claims_too_much(10**12, 2048), claims_too_much(4 * 10**8, 3 * 10**8)
    (True, False)
    """
    return claimed > SMALL and claimed > RATIO * stored


def check_file(path: Path) -> None:
    """Raise unless a file is there and may be read; libraries are less clear about it."""
    try:
        if not path.is_file():
            raise InputError(f"there is no file {path}")
        path.open("rb").close()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def read_bytes(path: Path, limit: int) -> bytes:
    """Return a whole file of at most `limit` bytes."""
    check_file(path)
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise InputError(f"{path} is larger than {limit >> 20} MB, too large for what it should be")
    return data


def read_json(path: Path) -> Json:
    """Return the JSON object a file holds."""
    return parse_json(read_bytes(path, JSON_BYTES), str(path))


def parse_json(data: bytes, where: str) -> Json:
    """Return the JSON object that `data` spells; `where` names it in an error."""
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{where} holds {type(value).__name__}, expected a JSON object")
    return value


def unzip_list(data: bytes, where: str) -> bytes:
    """Return what the gzip file `data` holds, up to the size a list of words may have."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            text = file.read(LIST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{where} is not a whole gzip file: {error}") from None
    if len(text) > LIST_BYTES:
        raise InputError(f"{where} unpacks to more than {LIST_BYTES >> 20} MB")
    return text


def decode(data: bytes, where: str) -> str:
    """Return the text of UTF-8 bytes."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is not UTF-8 (byte {error.start}): save it as UTF-8") from None


def read_lines(path: Path) -> list[str]:
    r"""Return the lines of a list that `write_lines` wrote: as they are, parted by \n alone."""
    text = decode(read_bytes(path, LIST_BYTES), str(path)).replace("\r\n", "\n")
    return text.removesuffix("\n").split("\n") if text else []


def write_lines(path: Path, lines: Sequence[str], strip: Callable[[str], str]) -> None:
    """Write one word a line; a word that `strip` or a line break would change is refused."""
    for number, word in enumerate(lines, start=1):
        if strip(word) != word or "\n" in word or "\r" in word:
            raise InputError(
                f"word {number} of {path.name} is {word!r}: a line of a text file cannot hold "
                "white space around a word or a line break in it"
            )
    try:
        text = "".join(f"{word}\n" for word in lines).encode("utf-8")
    except UnicodeEncodeError as error:
        found = error.object[error.start : error.end]
        raise InputError(f"{path.name} would hold {found!r}, which UTF-8 cannot spell") from None
    path.write_bytes(text)


def strip_ascii(word: str) -> str:
    """Take ASCII white space away; wider spaces, such as U+3000, are words of some models."""
    return word.strip(" \t\n\r\f\v")


def write_json(path: Path, data: Json) -> None:
    """Write a JSON object, one key a line."""
    path.write_bytes((json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode("utf-8"))


@contextmanager
def new_folder(
    target: Path, *, overwrite: bool, known: Collection[str], what: str = "a model"
) -> Iterator[Path]:
    """Give a temporary folder beside `target` that takes its place when the block ends well.

    An existing folder with anything in it is refused, or with `overwrite` replaced if it holds
    nothing but the `known` file names: no file that is not ours is ever deleted. `what` is what
    the folder holds, for errors.
    """
    target = Path(os.path.realpath(target))
    _check_target(target, overwrite, known, what)
    temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}.partial"
    old = temporary.with_suffix(".old")
    try:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        yield temporary
        if target.exists():
            os.replace(target, old)
        try:
            os.replace(temporary, target)
        except OSError:
            if old.exists():
                os.replace(old, target)
            raise
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)


def _check_target(target: Path, overwrite: bool, known: Collection[str], what: str) -> None:
    try:
        names = sorted(os.listdir(target))
    except FileNotFoundError:
        return
    except OSError as error:
        if target.is_file():
            raise InputError(f"{target} is a file, expected the name of a folder") from None
        raise InputError(f"{target} cannot be written: {error.strerror or error}") from None
    if names and not overwrite:
        raise InputError(f"{target} exists and is not empty: choose another folder, or overwrite")
    foreign = [name for name in names if name not in known]
    if foreign:
        raise InputError(
            f"{target} holds {foreign[0]!r}, which is no file of {what}: it is not overwritten"
        )


def hold_lock(path: Path, taken: str) -> BinaryIO:
    """Return the file `path`, locked until it is closed or its process ends.

    If another process has it, that is an error whose sentence is `taken`.
    """
    try:
        file = path.open("ab")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from None
    if try_lock(file) is False:
        file.close()
        raise InputError(taken)
    return file


def try_lock(file: BinaryIO) -> bool | None:
    """Lock a file while it is open; False if another process has it.

    None says that the disk knows no locks, as some network disks: nobody can tell then.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        unknown = error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
        return None if unknown else False
    return True
