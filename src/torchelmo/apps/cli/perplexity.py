"""`torchelmo perplexity`: how well a model's two language models predict a text."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchelmo.apps.cli import console
from torchelmo.apps.cli.options import Device, Offline, OptionsFile, SoftmaxFile, TargetsFile
from torchelmo.errors import InputError

if TYPE_CHECKING:
    from torchelmo.perplexity import WordText
    from torchelmo.scoring import Perplexity
    from torchelmo.text.words import Tokenizer

EXAMPLE = "Example: torchelmo perplexity MODEL text.txt --tokenize"
STREAMS, BATCH = 32, 256


class RowsName(str, Enum):
    """How the text is laid out."""

    slices = "slices"
    bilm = "bilm"


def perplexity(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Folder, .hdf5, archive, name or hub id.")
    ],
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="UTF-8, a sentence a line; - reads standard input."),
    ],
    tokenize: Annotated[
        bool, typer.Option("--tokenize", help="Split raw text into sentences and words.")
    ] = False,
    streams: Annotated[
        int | None,
        typer.Option(
            metavar="N", help=f"Slices read side by side. [default: {STREAMS}]", show_default=False
        ),
    ] = None,
    rows: Annotated[
        RowsName, typer.Option(help="bilm: as bilm-tf's test program reads.")
    ] = RowsName.slices,
    batch: Annotated[
        int | None,
        typer.Option(
            metavar="N", help=f"Rows of --rows bilm. [default: {BATCH}]", show_default=False
        ),
    ] = None,
    options: OptionsFile = None,
    vocabulary: TargetsFile = None,
    softmax: SoftmaxFile = None,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    offline: Offline = False,
) -> None:
    """Print how well MODEL predicts FILE, by the full softmax, from both sides.

    Sentences are read on and on; each slice of the text starts from zero.
    """
    count = _rows(rows, streams, batch)
    source = None if file == "-" else Path(file)
    if source is not None and not source.exists():
        raise InputError(f"there is no file {source}")
    if source is not None and source.is_dir():
        raise InputError(f"{source} is a folder, expected a text file")

    from torchelmo.elmo import Elmo
    from torchelmo.perplexity import text_perplexity
    from torchelmo.scoring import ready

    if options is None:
        console.download(model, offline or None)
    elmo = Elmo.from_pretrained(
        None if options else model,
        options=options,
        weights=model if options else None,
        vocabulary=vocabulary,
        softmax=softmax,
        device=device,
        offline=offline or None,
    )
    ready(elmo.softmax, elmo.vocabulary)
    # bilm-tf takes a blank line for a sentence; elsewhere it stands between documents.
    text = read(source, elmo.tokenizer if tokenize else None, blank=rows is RowsName.bilm)
    with console.bar("token", "perplexity", text.predictions) as shown:
        found = text_perplexity(
            elmo.encoder,
            elmo.softmax,
            elmo.vocabulary,
            text,
            streams=count,
            rows=rows.value,
            progress=None if shown is None else shown.update,
        )
    dropped = text.predictions - found.tokens
    if dropped:
        console.warn(
            f"{dropped:,} of {text.predictions:,} predictions are of incomplete batches at the end "
            "of the text and were left out, as bilm-tf does"
        )
    print(as_line(found) if as_json else table(found))


def read(source: Path | None, tokenizer: Tokenizer | None, *, blank: bool) -> WordText:
    """Read a text: a sentence a line, split at white space; or raw, split by a tokeniser."""
    from torchelmo.bulk.reader import Reader, check_words, decode
    from torchelmo.perplexity import WordText
    from torchelmo.text.sentences import split_sentences

    text = WordText()
    with ExitStack() as stack:
        stream = sys.stdin.buffer if source is None else stack.enter_context(source.open("rb"))
        reader = Reader(stream, "standard input" if source is None else str(source))
        while not reader.ended:
            line = decode(reader.line(), reader.lines, reader.name)
            if tokenizer is None:
                sentences = [line.split()]
            else:
                sentences = [tokenizer.words(span.text) for span in split_sentences(line)]
            for words in sentences:
                check_words(words, reader.lines, reader.name)
            text.add([words for words in sentences if words or blank], line)
        if not len(text.tokens):
            raise InputError(f"{reader.name} has only blank lines: expected sentences")
    return text


def as_line(found: Perplexity) -> str:
    """Return a result as JSON; what is infinite becomes null."""
    facts = dataclasses.asdict(found)
    return json.dumps(
        {k: v if isinstance(v, int) or math.isfinite(v) else None for k, v in facts.items()}
    )


def table(found: Perplexity) -> str:
    """Return a result for people."""
    share = found.unknown / found.tokens
    return "\n".join(
        [
            f"perplexity          {found.perplexity:,.2f} "
            f"(forward {found.forward:,.2f}, backward {found.backward:,.2f})",
            f"per word            {found.perplexity_per_word:,.2f}",
            f"bits per character  {found.bits_per_character:.4f}",
            f"tokens              {found.tokens:,} in {found.sentences:,} sentences, "
            f"{found.unknown:,} ({share:.2%}) charged as <UNK>",
            f"vocabulary          {found.vocabulary:,}",
            f"raw text            {found.words:,} words, {found.characters:,} characters",
        ]
    )


def _rows(rows: RowsName, streams: int | None, batch: int | None) -> int:
    """Return how many rows are asked for."""
    name, count, default = "--streams", streams, STREAMS
    if rows is RowsName.bilm:
        name, count, default = "--batch", batch, BATCH
        if streams is not None:
            raise InputError("--streams cuts slices: with --rows bilm give --batch")
    elif batch is not None:
        raise InputError("--batch is of --rows bilm: give that too, or --streams")
    if count is not None and count < 1:
        raise InputError(f"{name} is {count}, expected 1 or more")
    return default if count is None else count
