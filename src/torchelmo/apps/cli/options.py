"""Options that several commands have, each written once."""

from __future__ import annotations

from typing import Annotated

import typer

Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="cuda, mps or cpu. [default: the first there]", show_default=False
    ),
]
Offline = Annotated[bool, typer.Option("--offline", help="Download nothing.")]

# Parts of a model of the original programs that lie apart from its weights.
OptionsFile = Annotated[
    str | None, typer.Option(metavar="JSON", help="Options of an .hdf5, if not beside it.")
]
TargetsFile = Annotated[
    str | None, typer.Option(metavar="TXT", help="Words of the softmax, one a line.")
]
SoftmaxFile = Annotated[
    str | None, typer.Option(metavar="HDF5", help="The softmax, if in a file of its own.")
]
