"""`torchelmo embed`: sentences to vectors."""

from __future__ import annotations

import dataclasses
import json
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from torchelmo.apps.cli import console
from torchelmo.apps.cli.options import Device, Offline
from torchelmo.errors import InputError

if TYPE_CHECKING:
    from torchelmo.bulk.local import EmbedOptions, Summary
    from torchelmo.bulk.vectors import LayerChoice
    from torchelmo.elmo import Elmo

EXAMPLE = "Example: torchelmo embed sentences.txt -o vectors.hdf5 --model FOLDER"


class StateName(str, Enum):
    """Where a sentence starts from."""

    reset = "reset"
    carry = "carry"


class Dtype(str, Enum):
    """Numbers of the output."""

    float32 = "float32"
    float16 = "float16"


class PrecisionName(str, Enum):
    """Numbers that are multiplied; the last two are quicker and less exact."""

    float32 = "float32"
    bf16 = "bf16"
    int8 = "int8"


def embed(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="UTF-8, a sentence a line; - reads standard input."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT", help=".hdf5, .npz, .parquet or .jsonl.")
    ],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name, folder or hub id.  [default: en-small]",
            show_default=False,
        ),
    ] = None,
    options: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="With --weights: files of the original programs."),
    ] = None,
    weights: Annotated[str | None, typer.Option(metavar="HDF5", help="Their weights.")] = None,
    vocabulary: Annotated[
        str | None, typer.Option(metavar="TXT", help="Their words, if words are the input.")
    ] = None,
    layers: Annotated[
        str, typer.Option(metavar="WHICH", help="all, top, average, a number.")
    ] = "all",
    tokenize: Annotated[
        bool, typer.Option("--tokenize", help="Split raw lines into words, not at spaces.")
    ] = False,
    state: Annotated[
        StateName, typer.Option(help="Each line starts from zero, or goes on.")
    ] = StateName.reset,
    rows: Annotated[int, typer.Option(metavar="N", help="Rows of the carried state.")] = 1,
    dtype: Annotated[Dtype, typer.Option(help="Of the vectors written.")] = Dtype.float32,
    precision: Annotated[
        PrecisionName, typer.Option(metavar="KIND", help="Inside: float32, bf16, int8.")
    ] = PrecisionName.float32,
    device: Device = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Tokens a batch. [default: by device]", show_default=False),
    ] = None,
    no_index: Annotated[
        bool, typer.Option("--no-index", help="Leave out sentence_to_index.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUT if it exists.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
    offline: Offline = False,
    window: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Write the vectors of each line of FILE to OUT.

    The same command goes on where it was stopped.
    """
    from torchelmo.bulk import local

    source = None if file == "-" else Path(file)
    asked = local.EmbedOptions(
        layers=parse_layers(layers),
        dtype=dtype.value,
        tokenize=tokenize,
        state=state.value,
        rows=rows,
        batch_tokens=batch_tokens,
        window=local.WINDOW if window is None else window,
        index=not no_index,
    )
    local.check_output(output, overwrite=overwrite, source=source)

    from torchelmo.elmo import Elmo

    if options is None and weights is None:
        model = console.model_name(model)
        console.download(model, offline or None)
    elmo = Elmo.from_pretrained(
        model,
        options=options,
        weights=weights,
        vocabulary=vocabulary,
        precision=precision.value,
        device=device,
        offline=offline or None,
    )
    summary = _run(elmo, source, output, asked, overwrite)
    if summary.blank:
        console.warn(
            f"{summary.blank:,} of {summary.lines:,} lines are blank: "
            "each became a sentence of no tokens"
        )
    if as_json:
        print(json.dumps(dataclasses.asdict(summary)))
    else:
        kept = f", {summary.kept:,} of them from before" if summary.kept else ""
        print(
            f"{summary.output}: {summary.lines:,} lines{kept}, {summary.tokens:,} tokens, "
            f"{summary.bytes / 1e6:,.1f} MB in {summary.seconds:,.1f} s "
            f"({summary.tokens_per_second:,.0f} tokens/s)"
        )


def parse_layers(text: str) -> LayerChoice:
    """Return what `--layers` asks for.

    >>> parse_layers("top"), parse_layers("2")
    ('top', 2)
    """
    if text in ("all", "top", "average"):
        return cast(Literal["all", "top", "average"], text)
    if text.isascii() and text.isdigit():
        return int(text)
    raise InputError(f"--layers is {text!r}, expected all, top, average or a layer's number")


def _run(
    elmo: Elmo, source: Path | None, output: Path, asked: EmbedOptions, overwrite: bool
) -> Summary:
    """Embed with a progress bar; ^C says what is kept."""
    from torchelmo.bulk import local, parts

    with console.bar("B", "embed") as shown:

        def report(now: local.Progress) -> None:
            if shown is None:
                return
            if now.phase != shown.desc.removesuffix(": "):  # the second phase starts at zero
                shown.set_description(now.phase, refresh=False)
                shown.reset(now.total)
            if shown.n == 0 and now.phase == "embed" and now.kept.input_bytes:
                shown.initial = shown.n = now.kept.input_bytes  # not work of this run: no speed
            shown.total = now.total
            elapsed = shown.format_dict["elapsed"] or 1.0
            fresh = now.tokens - (now.kept.tokens if now.phase == "embed" else 0)
            shown.set_postfix_str(f"{fresh / elapsed:,.0f} tokens/s", refresh=False)
            shown.update(now.done - shown.n)

        try:
            return local.embed_file(
                elmo,
                sys.stdin.buffer if source is None else source,
                output,
                asked,
                overwrite=overwrite,
                progress=None if shown is None else report,
            )
        except KeyboardInterrupt:
            partial = parts.Partial(output)
            kept = "nothing was finished yet"
            if partial.part(0).exists():
                kept = f"finished lines are kept in {partial.folder}, the same command goes on"
            raise console.Interrupted(f"interrupted: {kept}") from None
