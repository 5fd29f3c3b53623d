"""Files from the web, kept in a folder of our own and checked each time they are used.

A file is written under a temporary name and takes its place when it is whole. Its SHA-256 is kept
beside it, in the form that `sha256sum -c` reads: the sum the caller knows, or else the one found at
the first download, so that a file that changes later is noticed.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from torchelmo.errors import InputError

BLOCK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte
TRUE = {"1", "ON", "YES", "TRUE"}

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all if the server says


def cache_folder(cache_dir: Path | None = None) -> Path:
    """Return where downloads are kept: `cache_dir`, TORCHELMO_CACHE or ~/.cache/torchelmo."""
    chosen = cache_dir or os.environ.get("TORCHELMO_CACHE") or Path("~/.cache/torchelmo")
    return Path(chosen).expanduser()


def is_offline(offline: bool | None = None) -> bool:
    """Whether the network must not be used: as told, or as the environment says."""
    if offline is not None:
        return offline
    names = ("TORCHELMO_OFFLINE", "HF_HUB_OFFLINE")
    return any(os.environ.get(name, "").upper() in TRUE for name in names)


def download_url(
    url: str,
    cache_dir: Path | None = None,
    offline: bool | None = None,
    *,
    sha256: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Return a local copy of an http or https address, downloaded if it is not there yet."""
    path = urllib.parse.unquote(urllib.parse.urlsplit(url).path)
    name = re.sub(r"[^\w.-]", "_", path.rpartition("/")[2]).lstrip(".") or "download"
    mark = hashlib.sha256(url.encode()).hexdigest()[:16]
    target = cache_folder(cache_dir) / "files" / mark / name[-100:]
    return download_to(url, target, offline, sha256=sha256, progress=progress)


def download_to(
    url: str,
    target: Path,
    offline: bool | None = None,
    *,
    sha256: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Download an address to a file, or check the file that is there."""
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise InputError(f"{url} is no address that can be downloaded: expected http or https")
    if target.is_file():
        _check(target, sha256)
        return target
    if is_offline(offline):
        raise InputError(f"{url} is not in the cache ({target.parent}) and the network is off")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(".partial", ".", target.parent)
    except OSError as error:
        raise _unwritable(target, error) from None
    try:
        with os.fdopen(handle, "wb") as file:
            found = _write(url, file, target, progress)
        if sha256 is not None and found != sha256.lower():
            raise InputError(
                f"{url} has the SHA-256 {found}, expected {sha256.lower()}: the file was changed "
                "or damaged on its way, and is not kept"
            )
        _record(target, found)  # before the file: a file without its sum is never seen
        os.replace(partial, target)
    except OSError as error:
        raise _unwritable(target, error) from None
    finally:
        Path(partial).unlink(missing_ok=True)
    return target


def sum_of(path: Path, kind: str = "sha256", start: bytes = b"") -> str:
    """Return the checksum of `start` and a file, in hexadecimal."""
    digest = hashlib.new(kind, start)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _check(path: Path, sha256: str | None) -> None:
    """Refuse a kept file that is not what was downloaded."""
    try:
        found = sum_of(path)
        record = _record_of(path)
        if record.is_file():
            kept = record.read_text(encoding="utf-8").partition(" ")[0].strip()
        else:  # put there by hand: from now on it may not change
            _record(path, kept := found)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} in the cache cannot be checked: {error}") from None
    for expected in filter(None, (kept, sha256)):
        if found != expected.lower():
            raise InputError(
                f"{path} in the cache has the SHA-256 {found}, expected {expected}: it was changed "
                "or damaged, delete it to download it again"
            )


def _record_of(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _record(path: Path, found: str) -> None:
    handle, partial = tempfile.mkstemp(".partial", ".", path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(f"{found}  {path.name}\n")
    os.replace(partial, _record_of(path))


def _write(url: str, file: IO[bytes], target: Path, progress: Progress | None) -> str:
    """Write what an address gives, and return its SHA-256."""
    digest = hashlib.sha256()
    done = 0
    for block, total in _receive(url):
        done += len(block)
        digest.update(block)
        try:
            file.write(block)
        except OSError as error:
            raise _unwritable(target, error) from None
        if progress is not None:
            progress(done, total)
    return digest.hexdigest()


def _receive(url: str) -> Iterator[tuple[bytes, int | None]]:
    """Yield the blocks of an answer and its length; an answer that ends early raises."""
    request = urllib.request.Request(url, headers={"User-Agent": "torchelmo"})
    done = 0
    try:
        with _opener().open(request, timeout=TIMEOUT) as response:
            length = response.headers.get("Content-Length")
            total = int(length) if length and length.isdigit() else None
            while block := response.read(BLOCK):
                done += len(block)
                yield block, total
    except urllib.error.HTTPError as error:
        raise InputError(f"{url} answers {error.code} ({error.reason})") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = getattr(error, "reason", None) or error
        raise InputError(f"{url} cannot be reached: {reason}") from None
    if total is not None and done != total:
        raise InputError(f"{url} broke off after {done:,} of {total:,} bytes")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from https to an open connection."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Return the request to follow."""
        if req.type == "https" and urllib.parse.urlsplit(newurl).scheme != "https":
            raise InputError(f"{req.full_url} leads to {newurl}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """Return what opens http and https, and nothing else: no files, no ftp."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        _Redirects(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _unwritable(target: Path, error: OSError) -> InputError:
    return InputError(f"{target} cannot be written: {error.strerror or error}")
