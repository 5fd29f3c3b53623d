"""Published models by name, and models of the Hugging Face hub by id, to and from this machine.

AI2's models are tried at their mirrors on the hub and then at AI2's own addresses. Files of the hub
are checked against the sums the hub itself gives, others against the sum of their first download.
Of a hub model only data files are taken, never pickles or code.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from torchelmo.config import nearest
from torchelmo.errors import InputError
from torchelmo.formats.download import (
    Progress,
    cache_folder,
    download_to,
    download_url,
    is_offline,
    sum_of,
)
from torchelmo.formats.published import (
    PUBLISHED,
    Published,
    is_published,
    published,
    published_names,
)

__all__ = [
    "PUBLISHED",
    "Cached",
    "Published",
    "cached",
    "download_url",
    "fetch",
    "fetch_softmax",
    "is_published",
    "published",
    "published_names",
    "push",
]

FILES = ["*.json", "*.safetensors", "*.hdf5", "*.txt", "README.md", "ATTRIBUTION.md"]
WEIGHTS = (".safetensors", ".hdf5")
TRAINING = ["training.safetensors", "training.json"]  # a checkpoint's own: of no use to others
OPTIONS_FILE, WEIGHTS_FILE = "options.json", "weights.hdf5"
ADVICE = "check the connection, or give files of your own (--options and --weights)"


class Cached(NamedTuple):
    """A model that is on this machine."""

    name: str
    path: Path
    size: int  # bytes


def fetch(
    name: str,
    *,
    revision: str | None = None,
    cache_dir: Path | None = None,
    offline: bool | None = None,
    progress: Progress | None = None,
) -> Path:
    """Return the local folder of a published model or of a hub id, downloaded if it must be.

    Args:
        name: a published model's name, or a hub id such as "owner/name".
        revision: a branch, tag or commit of a hub id.
        cache_dir: where downloads are kept; without it, where the hub keeps its own (for hub ids)
            and TORCHELMO_CACHE or ~/.cache/torchelmo.
        offline: True uses what is there and nothing else; None asks HF_HUB_OFFLINE and
            TORCHELMO_OFFLINE.
        progress: called with the bytes so far and in all; a hub download then shows the hub's bars.
    """
    off = is_offline(offline)
    if not is_published(name):
        if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name):
            raise InputError(
                f"there is no published model {name!r}{nearest(name, PUBLISHED)}; an id of the hub "
                "has the form owner/name"
            )
        try:
            return _snapshot(name, revision, cache_dir, off, progress)
        except InputError as error:
            raise InputError(f"{error}; {ADVICE}") from error.__cause__
    model = published(name)
    if revision is not None:
        raise InputError(f"{model.name} has no revisions, {revision!r} was asked for: leave it out")
    own = cache_folder(cache_dir) / "published" / model.name

    def from_address(off: bool) -> Path:
        # the weights last: a folder that has them is whole
        for url, file in ((model.options, OPTIONS_FILE), (model.weights, WEIGHTS_FILE)):
            download_to(url, own / file, off, progress=progress)
        return own

    if (own / WEIGHTS_FILE).is_file():
        return from_address(off)
    mirrors = [
        lambda off, repo=repo, commit=commit: _snapshot(repo, commit, cache_dir, off, progress)
        for repo, commit in model.mirrors
    ]
    return _first([*mirrors, from_address], model.name, off)


def _first(sources: list[Callable[[bool], Path]], name: str, offline: bool) -> Path:
    """Return what the first source gives: from the cache if any has it there, else downloaded."""
    reasons: list[str] = []
    for off in (True,) if offline else (True, False):
        reasons = []
        for source in sources:
            try:
                return source(off)
            except InputError as error:
                reasons.append(str(error))
    if offline:
        raise InputError(f"{name} is not on this machine and the network is off; {ADVICE}")
    raise InputError(f"{name} could not be downloaded: {'; '.join(reasons)}; {ADVICE}")


def fetch_softmax(
    name: str,
    *,
    cache_dir: Path | None = None,
    offline: bool | None = None,
    progress: Progress | None = None,
) -> tuple[Path, Path]:
    """Return the local files of a published model's softmax (hdf5) and of its vocabulary."""
    model = published(name)
    if model.softmax is None or model.vocabulary is None:
        known = ", ".join(m.name for m in PUBLISHED.values() if m.softmax)
        raise InputError(f"no softmax was published for {model.name}: there is one for {known}")
    # apart from the weights, so that a model does not bring its softmax each time it is read
    folder = cache_folder(cache_dir) / "published" / f"{model.name}-softmax"
    vocabulary = download_to(model.vocabulary, folder / "vocab.txt", offline, progress=progress)
    softmax = download_to(model.softmax, folder / "softmax.hdf5", offline, progress=progress)
    return softmax, vocabulary


def push(
    folder: Path,
    repo_id: str,
    *,
    private: bool = False,
    token: str | None = None,
    commit_message: str = "Upload an ELMo model with torchelmo",
) -> str:
    """Write a model folder to the hub, making the repository if need be; return its address."""
    import huggingface_hub

    if not any((folder / name).is_file() for name in ("config.json", OPTIONS_FILE)):
        raise InputError(f"{folder} is not a model folder: it has neither config.json nor options")
    api = huggingface_hub.HfApi(endpoint=_endpoint(), token=token)
    try:
        address = api.create_repo(repo_id, private=private, exist_ok=True)
        with _quiet(True):
            api.upload_folder(
                repo_id=repo_id,
                folder_path=folder,
                commit_message=commit_message,
                allow_patterns=FILES,
                ignore_patterns=TRAINING,
            )
    except Exception as error:  # the hub's library has raised several HTTP libraries' errors
        raise InputError(f"{repo_id} could not be written to the hub: {_reason(error)}") from error
    return str(address)


def cached(cache_dir: Path | None = None) -> list[Cached]:
    """Return the models on this machine: published ones, hub models with an ELMo, single files."""
    home = cache_folder(cache_dir)
    found = [
        Cached(n, path, _size(path))
        for n in PUBLISHED
        if _holds_elmo(path := home / "published" / n)
    ]
    for snapshot in sorted(_hub_cache(cache_dir).glob("models--*/snapshots/*")):
        if _holds_elmo(snapshot):
            repo = snapshot.parent.parent.name.removeprefix("models--").replace("--", "/")
            found.append(Cached(repo, snapshot, _size(snapshot)))
    single = [p for p in sorted(home.glob("files/*/[!.]*")) if p.suffix != ".sha256"]
    return [*found, *(Cached(path.name, path, path.stat().st_size) for path in single)]


def _holds_elmo(folder: Path) -> bool:
    """Whether a folder has bilm-tf's two files, or a native model's."""
    if (folder / OPTIONS_FILE).is_file():
        return any(folder.glob("*.hdf5"))
    if not (folder / "model.safetensors").is_file():
        return False
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and {"format_version", "lstm"} <= config.keys()


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _hub_cache(cache_dir: Path | None) -> Path:
    from huggingface_hub import constants

    return Path(cache_dir or constants.HF_HUB_CACHE).expanduser()


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None  # the hub's library reads it once, at its import


def _snapshot(
    repo: str, revision: str | None, cache_dir: Path | None, off: bool, progress: Progress | None
) -> Path:
    """Return the local snapshot of a hub model's data files."""
    import huggingface_hub

    snapshots = _hub_cache(cache_dir) / f"models--{repo.replace('/', '--')}" / "snapshots"
    before = {path.resolve() for path in snapshots.rglob("*")}
    try:
        with _quiet(progress is None):
            folder = Path(
                huggingface_hub.snapshot_download(
                    repo,
                    revision=revision,
                    cache_dir=cache_dir,
                    allow_patterns=FILES,
                    local_files_only=off,
                    endpoint=_endpoint(),
                )
            )
    except Exception as error:  # the hub's library has raised several HTTP libraries' errors
        raise InputError(_failure(error, repo, revision, off)) from error
    new = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.resolve() not in before]
    # all of them before the first is complained of: what stays is not looked at again
    damaged = [sentence for path in new if (sentence := _verify(path, repo, folder))]
    if damaged:
        raise InputError(damaged[0])
    if not any(path.suffix in WEIGHTS for path in folder.rglob("*")):
        if off:
            raise InputError(
                f"the hub model {repo} is not whole on this machine, the network is off"
            )
        raise InputError(
            f"the hub model {repo} has no .safetensors or .hdf5 file: pickles are not downloaded, "
            "so get it yourself and give its folder"
        )
    return folder


def _verify(path: Path, repo: str, folder: Path) -> str:
    """Check a new file of a snapshot against the sum the hub gave; delete one that differs."""
    import huggingface_hub

    name, real = path.relative_to(folder).as_posix(), path.resolve()
    expected: str | None = real.name  # the hub's cache names a file by its sum
    if real.parent.name != "blobs":  # without symbolic links it does not
        url = huggingface_hub.hf_hub_url(repo, name, revision=folder.name, endpoint=_endpoint())
        expected = huggingface_hub.get_hf_file_metadata(url).etag
    if re.fullmatch("[0-9a-f]{64}", expected or ""):
        found = sum_of(real)
    elif re.fullmatch("[0-9a-f]{40}", expected or ""):  # git's own, of small files
        found = sum_of(real, "sha1", b"blob %d\0" % real.stat().st_size)
    else:
        return ""
    if found == expected:
        return ""
    path.unlink()
    real.unlink(missing_ok=True)
    return (
        f"{name} of the hub model {repo} has the sum {found}, the hub says {expected}: it was "
        "damaged on its way, and is not kept"
    )


@contextmanager
def _quiet(quiet: bool) -> Iterator[None]:
    """Keep the hub's library from drawing bars."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if not quiet or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _failure(error: Exception, repo: str, revision: str | None, off: bool) -> str:
    """Say why a hub model did not come."""
    kinds = {kind.__name__ for kind in type(error).__mro__}  # they moved between modules
    if "RevisionNotFoundError" in kinds:
        return f"the hub model {repo} has no revision {revision!r}"
    if "RepositoryNotFoundError" in kinds:
        return f"the hub has no model {repo}, or it is private and needs a login (hf auth login)"
    if off:
        return f"the hub model {repo} is not on this machine and the network is off"
    return f"the hub model {repo} could not be downloaded ({_reason(error)})"


def _reason(error: Exception) -> str:
    """Return the first line of what went wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
