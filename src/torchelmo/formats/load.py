"""One door to every model: a name, folder, file or address to the `Model` it holds.

A path that exists wins over a name; then come the packaged models, the published ones, and ids of
the Hugging Face hub (`owner/name`). What a folder or file is, is seen from the files in it and from
its ending; readers of other programs' formats are imported when they are needed.
"""

from __future__ import annotations

import difflib
import importlib.resources
import io
import os
import re
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from torchelmo.errors import InputError
from torchelmo.formats import bilm_tf, files, native
from torchelmo.formats.model import Model

HDF5 = (".hdf5", ".h5")
VOCABULARIES = ("vocab.txt", "vocab.txt.gz")


def load(
    name: str | Path | None = None,
    *,
    options: str | Path | None = None,
    weights: str | Path | None = None,
    vocabulary: str | Path | None = None,
    softmax: str | Path | None = None,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    offline: bool | None = None,
) -> Model:
    """Read a model from wherever it is.

    Args:
        name: a folder (native, bilm-tf, ELMoForManyLangs, AllenNLP), a file (.hdf5 with its options
            beside it, .zip with both, .tar.gz, .th), an address, a packaged or published model's
            name, or a hub id.
        options: instead of `name`, with `weights`: bilm-tf's options.json, as path or address.
        weights: bilm-tf's hdf5 file; without `options` they are looked for beside it.
        vocabulary: the words of the softmax (and of a word-input model), one a line.
        softmax: an hdf5 file with `softmax/W` and `softmax/b`.
        revision: of a hub id.
        cache_dir: where downloads are kept.
        offline: True never downloads; None asks the environment.
    """
    cache = None if cache_dir is None else Path(cache_dir)

    def local(source: str | Path) -> Path:
        return _local(source, cache, offline)

    extra = {
        part: local(source)
        for part, source in (("vocabulary", vocabulary), ("softmax", softmax))
        if source is not None
    }
    if options is not None or weights is not None:
        if name is not None:
            raise InputError(f"{name} was given together with options= or weights=: give one")
        if weights is None:
            raise InputError(f"options= ({options}) was given without weights=: give both")
        if options is None:
            return _read(local(weights), extra)
        return bilm_tf.read(local(options), local(weights), **extra)
    if name is None or not str(name):
        raise InputError("no model was given: give a name, a folder, or options= and weights=")
    path = local(name)
    if not os.path.exists(path):  # unlike Path.exists, False for names that no file can have
        path = _find(str(name), revision, cache, offline)
    return _read(path, extra)


def packaged() -> dict[str, Path]:
    """Return the models that came with torchelmo, by name."""
    home = importlib.resources.files("torchelmo") / "weights"
    if not isinstance(home, Path) or not home.is_dir():
        return {}
    return {path.parent.name: path.parent for path in sorted(home.glob(f"*/{native.CONFIG}"))}


def _local(source: str | Path, cache: Path | None, offline: bool | None) -> Path:
    """Return a path as it is, and where an address was downloaded to."""
    if re.match("https?://", str(source)):
        from torchelmo.formats import hub

        return hub.download_url(str(source), cache, offline)
    return Path(source).expanduser()


def _find(name: str, revision: str | None, cache: Path | None, offline: bool | None) -> Path:
    """Return the folder of a packaged, published or hub model."""
    ours = packaged()
    if name in ours:
        return ours[name]
    from torchelmo.formats import hub

    if hub.is_published(name) or re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name):
        return hub.fetch(name, revision=revision, cache_dir=cache, offline=offline)
    if "/" in name or "\\" in name or Path(name).suffix in (*HDF5, ".zip", ".gz", ".th", ".json"):
        raise InputError(f"there is no file or folder {name}")
    names = hub.published_names()
    near = difflib.get_close_matches(name, [*ours, *names], n=1)
    raise InputError(
        f"there is no model {name!r}"
        + (f", the nearest is {near[0]!r}" if near else "")
        + f", nor a folder of that name: packaged here are {', '.join(ours) or 'none'}, "
        f"published are {', '.join(names)}"
    )


def _read(path: Path, extra: dict[str, Path]) -> Model:
    try:
        return _read_folder(path, extra) if path.is_dir() else _read_file(path, extra)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def _read_folder(folder: Path, extra: dict[str, Path]) -> Model:
    if native.is_native(folder):
        _refuse(extra, folder)
        return native.read(folder)
    if _options_in(folder) and _hdf5_in(folder):
        return bilm_tf.read(_one_options(folder), _one_weights(folder), **_beside(folder, extra))
    from torchelmo.formats import allennlp, many_langs

    if many_langs.recognises(folder):
        _refuse(extra, folder)
        return many_langs.read(folder)
    if allennlp.find(folder) is not None:
        _refuse(extra, folder)
        return allennlp.read(folder)
    raise InputError(
        f"{folder} holds no model that is known here: expected config.json and model.safetensors, "
        "options.json and an .hdf5 file, encoder.pkl and token_embedder.pkl, or model.tar.gz"
    )


def _read_file(path: Path, extra: dict[str, Path]) -> Model:
    name = path.name.lower()
    if not path.exists():
        raise InputError(f"there is no file {path}")
    if name.endswith(HDF5):
        extra = _beside(path.parent, extra)
        return bilm_tf.read(_one_options(path.parent, of=path), path, **extra)
    if name.endswith(".zip"):
        return _read_zip(path, extra)
    if name.endswith((".tar.gz", ".tgz", ".th", ".pt")):
        from torchelmo.formats import allennlp

        _refuse(extra, path)
        return allennlp.read(path)
    if name in native.FILES:
        raise InputError(f"{path} is one file of a model: give its folder, {path.parent}")
    raise InputError(
        f"{path} is no model file that is known here: expected .hdf5, .zip, .tar.gz or .th"
    )


def _refuse(extra: dict[str, Path], where: Path) -> None:
    for part, path in extra.items():
        raise InputError(
            f"{part}= ({path}) goes with options.json and .hdf5 files, {where} is none of these"
        )


def _hdf5_in(folder: Path) -> list[Path]:
    """Return the hdf5 files that may be weights."""
    found = [p for p in sorted(folder.iterdir()) if p.name.lower().endswith(HDF5)]
    return [path for path in found if "softmax" not in path.name.lower()]


def _options_in(folder: Path) -> list[Path]:
    return [p for p in sorted(folder.glob("*.json")) if "options" in p.name.lower()]


def _one_weights(folder: Path) -> Path:
    """Return the only hdf5 file, or the only one with "weights" in its name."""
    found = _hdf5_in(folder)
    if len(found) > 1:
        found = [path for path in found if "weights" in path.name.lower()] or found
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise InputError(f"{folder} has several .hdf5 files ({names}): give one as weights=")
    return found[0]


def _one_options(folder: Path, *, of: Path | None = None) -> Path:
    """Return options.json, the options named like the weights `of`, or the only options there."""
    found = _options_in(folder)
    alike = None if of is None else f"{of.stem.replace('weights', 'options')}.json"
    for name in (alike, "options.json"):
        for path in found:
            if path.name == name:
                return path
    if len(found) != 1:
        names = f"several ({', '.join(path.name for path in found)})" if found else "none"
        raise InputError(f"{of or folder} needs its options: {names} in {folder}, give options=")
    return found[0]


def _beside(folder: Path, extra: dict[str, Path]) -> dict[str, Path]:
    """Add the vocabulary and the softmax that lie in the folder to those given."""
    vocabulary = [folder / name for name in VOCABULARIES if (folder / name).is_file()]
    softmax = [p for p in sorted(folder.iterdir()) if _is_softmax(p.name)]
    beside = {"vocabulary": vocabulary[:1], "softmax": softmax if len(softmax) == 1 else []}
    return {part: paths[0] for part, paths in beside.items() if paths} | extra


def _is_softmax(name: str) -> bool:
    return name.lower().endswith(HDF5) and "softmax" in name.lower()


def _read_zip(path: Path, extra: dict[str, Path]) -> Model:
    """Read an archive of the NLPL repository's kind, without unpacking it to disk."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {
                PurePosixPath(info.filename).name: info
                for info in archive.infolist()
                if not info.is_dir() and not PurePosixPath(info.filename).name.startswith(".")
            }
            found = {
                "options": [n for n in members if n.endswith(".json") and "options" in n],
                "weights": [n for n in members if n.endswith(HDF5) and not _is_softmax(n)],
            }
            for part, candidates in found.items():
                if len(candidates) != 1:
                    names = ", ".join(candidates) or "none"
                    raise InputError(
                        f"{path} must hold one options.json and one model.hdf5: of {part} it "
                        f"has {names}"
                    )
            found["vocabulary"] = [n for n in VOCABULARIES if n in members]
            found["softmax"] = [n for n in members if _is_softmax(n)]
            data = {
                part: _member(archive, members[names[0]], path)
                for part, names in found.items()
                if names and part not in extra
            }
            called = {part: f"{path}/{names[0]}" for part, names in found.items() if names}
    except (zipfile.BadZipFile, OSError, EOFError, RuntimeError, zlib.error) as error:
        raise InputError(f"{path} is damaged or not a zip archive: {error}") from None
    called |= {part: str(given) for part, given in extra.items()}
    words = data.get("vocabulary")
    if "vocabulary" in extra:
        words = files.read_bytes(extra["vocabulary"], files.LIST_BYTES)
    return bilm_tf.assemble(
        files.parse_json(data["options"], called["options"]),
        io.BytesIO(data["weights"]),
        None if words is None else bilm_tf.parse_vocabulary(words, called["vocabulary"]),
        io.BytesIO(data["softmax"]) if "softmax" in data else extra.get("softmax"),
        called,
    )


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> bytes:
    if files.claims_too_much(info.file_size, info.compress_size):
        raise InputError(
            f"{path} has a member {info.filename!r} that unpacks from {info.compress_size} to "
            f"{info.file_size} bytes: the archive is damaged or made to harm"
        )
    return archive.read(info)
