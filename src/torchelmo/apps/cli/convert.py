"""`torchelmo convert`: a model from one file format to another."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from torchelmo.apps.cli import console
from torchelmo.apps.cli.options import Offline, OptionsFile, SoftmaxFile, TargetsFile

EXAMPLE = "Example: torchelmo convert elmo_weights.hdf5 my-model --to native"


class Format(str, Enum):
    """What can be written."""

    native = "native"
    bilm_tf = "bilm-tf"


def convert(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="Folder, .hdf5, archive, name or hub id.")
    ],
    destination: Annotated[Path, typer.Argument(metavar="DST", help="A folder to be made.")],
    to: Annotated[
        Format,
        typer.Option(
            "--to",
            help="bilm-tf is what AllenNLP reads too.",
        ),
    ],
    options: OptionsFile = None,
    vocabulary: TargetsFile = None,
    softmax: SoftmaxFile = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the model in DST.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
    offline: Offline = False,
) -> None:
    """Read the model SRC and write it to DST in another format.

    Reads native folders, bilm-tf and AllenNLP files and archives, and ELMoForManyLangs folders.
    What DST cannot hold is said.
    """
    from torchelmo.formats import bilm_tf, load, native

    if options is None:
        console.download(source, offline or None)
    model = load.load(
        None if options else source,
        options=options,
        weights=source if options else None,
        vocabulary=vocabulary,
        softmax=softmax,
        offline=offline or None,
    )
    notes: list[str] = []
    if to is Format.native:
        native.write(model, destination, overwrite=overwrite)
    else:
        notes = bilm_tf.write(model, destination, overwrite=overwrite)
    config, written = model.config, sorted(path.name for path in destination.iterdir())
    if as_json:
        summary = {
            "source": source,
            "destination": str(destination),
            "format": to.value,
            "files": written,
            "layers": config.n_layers,
            "width": config.width,
            "notes": notes,
        }
        print(json.dumps(summary))
        return
    print(
        f"{destination} ({to.value}): {config.n_layers} layers, {config.width} wide, "
        f"in {', '.join(written)}"
    )
    for note in notes:
        print(f"not written: {note}")
