"""`torchelmo prepare`: raw text to a corpus that models are trained on."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from torchelmo.apps.cli import console
from torchelmo.errors import InputError

if TYPE_CHECKING:
    from torchelmo.pretrain.prepare import Progress, Report

RECIPES = ("small", "original")  # whose memory is reported
EXAMPLE = "Example: torchelmo prepare wiki.txt.xz books/ -o corpus"


class Needed(TypedDict):
    """What a recipe needs to train."""

    device: str
    batch: int
    bytes: int


class LineKind(str, Enum):
    """What a line is: a paragraph to be split, or a sentence."""

    paragraphs = "split"
    sentences = "lines"


class InputFormat(str, Enum):
    """What a file holds."""

    auto = "auto"
    text = "text"
    jsonl = "jsonl"


class Scheme(str, Enum):
    """How words are spelt."""

    bytes = "bytes"
    codepoints = "codepoints"
    jamo = "jamo"


def prepare(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="Text, .jsonl, .gz .xz .zst .bz2; folders; -"),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to be made.")
    ],
    tokenizer: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="words, whitespace, kiwi, fugashi, codepoints. [words]",
            show_default=False,
        ),
    ] = "words",
    tokenized_by: Annotated[
        str | None, typer.Option(metavar="NAME", help="With whitespace: who cut the text.")
    ] = None,
    sentences: Annotated[
        LineKind,
        typer.Option(
            metavar="HOW", help="split lines, or lines as they are. [split]", show_default=False
        ),
    ] = LineKind.paragraphs,
    input_format: Annotated[
        InputFormat,
        typer.Option(
            "--format", metavar="NAME", help="text, jsonl, or auto: by ending.", show_default=False
        ),
    ] = InputFormat.auto,
    field: Annotated[
        str, typer.Option(metavar="KEY", help="Where a JSON record has its text.")
    ] = "text",
    block_lines: Annotated[
        int, typer.Option(metavar="N", help="Document, where no line is blank.")
    ] = 200,
    vocab_size: Annotated[int, typer.Option(metavar="N", help="Words to be predicted.")] = 100_000,
    min_count: Annotated[int, typer.Option(metavar="N", help="How often such a word comes.")] = 1,
    vocabulary: Annotated[
        Path | None, typer.Option(metavar="TXT", help="Or: these words, one a line.")
    ] = None,
    characters: Annotated[
        Scheme,
        typer.Option(
            metavar="NAME", help="Spelling: bytes, codepoints, jamo. [bytes]", show_default=False
        ),
    ] = Scheme.bytes,
    max_characters: Annotated[
        int, typer.Option(metavar="N", help="Of a word, two marks too.")
    ] = 50,
    alphabet_size: Annotated[int, typer.Option(metavar="N", help="Code points or jamo.")] = 65_000,
    alphabet_min_count: Annotated[
        int, typer.Option(metavar="N", help="How often such a symbol comes.")
    ] = 2,
    valid: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Validation text; may be repeated."),
    ] = None,
    valid_share: Annotated[
        float | None,
        typer.Option(
            metavar="P", help="Or: this part of the documents. [0.005]", show_default=False
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Decides which documents.")] = 1,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", help="Processes. [all cores]", show_default=False),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the corpus in DIR.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
) -> None:
    """Split, count and number raw text, for `torchelmo pretrain`."""
    from torchelmo.pretrain import prepare as library

    if workers is not None and workers < 1:
        raise InputError(f"--workers is {workers}, expected 1 or more")
    if valid and valid_share is not None:
        raise InputError("--valid and --valid-share were both given: choose one of them")
    options = library.PrepareOptions(
        tokenizer=tokenizer,
        tokenized_by=tokenized_by,
        sentences=sentences.value,
        form=input_format.value,
        field=field,
        block_lines=block_lines,
        characters=characters.value,
        max_characters=max_characters,
        alphabet_size=alphabet_size,
        alphabet_min_count=alphabet_min_count,
        vocab_size=vocab_size,
        min_count=min_count,
        valid_share=0.005 if valid_share is None else valid_share,
        seed=seed,
    )
    if [*inputs, *(valid or [])].count("-") > 1:
        raise InputError("standard input (-) was given twice, it can be read only once")
    with console.bar("B", "read") as shown:

        def report(now: Progress) -> None:
            if shown is None:
                return
            if now.phase != shown.desc.removesuffix(": "):
                shown.set_description(now.phase, refresh=False)
                shown.unit = {"read": "B", "write": " words"}.get(now.phase, " parts")
                shown.reset(now.total)
            shown.total = now.total
            shown.set_postfix_str(f"{now.tokens:,} words", refresh=False)
            shown.update(now.done - shown.n)

        made = library.prepare(
            [sys.stdin.buffer if name == "-" else name for name in inputs],
            output,
            options,
            valid=[sys.stdin.buffer if name == "-" else name for name in valid or []],
            vocabulary=vocabulary,
            overwrite=overwrite,
            workers=workers or os.cpu_count() or 1,
            progress=report,
        )
    needed = training_memory(made)
    print(json.dumps(summary(made, needed)) if as_json else describe(made, needed))


def training_memory(made: Report) -> dict[str, Needed]:
    """Return what the sizes' recipes need on this machine's device, if the text fills a batch."""
    from torchelmo.pretrain.corpus import Corpus
    from torchelmo.pretrain.recipe import read_recipe

    pairs, found = made.train.tokens + made.train.sentences, dict[str, Needed]()
    for name in RECIPES:
        recipe = read_recipe(name)
        if recipe.train.batch * recipe.train.unroll > pairs:
            continue
        from torchelmo.elmo import pick_device
        from torchelmo.pretrain.memory import estimate, first_step

        corpus, device = Corpus.open(made.output), pick_device(None).type
        try:
            config = recipe.config(corpus.config, made.vocabulary)
        except InputError:  # words are cut shorter than this network's filters are wide
            continue
        step, table = first_step(corpus, recipe), corpus.characters.nbytes
        needed = estimate(config, recipe, made.vocabulary, step=step, table=table, device=device)
        found[name] = {"device": device, "batch": recipe.train.batch, "bytes": needed.total}
    return found


def summary(made: Report, needed: dict[str, Needed]) -> dict[str, object]:
    """Return the report as JSON has it."""
    return {
        **dataclasses.asdict(made),
        "unknown_valid": made.valid.unknown_percent,
        "tokens_per_second": round(made.tokens_per_second),
        "training_memory": needed,
    }


def describe(made: Report, needed: dict[str, Needed]) -> str:
    """Return the report in a few lines."""
    lines = [
        f"{made.output}: {made.bytes / 1e6:,.1f} MB in {made.seconds:,.1f} s "
        f"({made.tokens_per_second:,.0f} tokens/s)"
    ]
    for name, split in (("training", made.train), ("validation", made.valid)):
        lines.append(
            f"{name:<12}{split.tokens:>14,} tokens  {split.sentences:>12,} sentences  "
            f"{split.documents:>9,} documents  {split.unknown_percent:.2f} % unknown"
        )
    lines.append(
        f"{'vocabulary':<12}{made.vocabulary:>14,} of {made.types:,} distinct words, "
        f"{made.coverage:.2f} % of the training tokens"
    )
    if needed:
        device = next(iter(needed.values()))["device"]
        sizes = ", ".join(
            f"{name} {facts['bytes'] / 1e9:.1f} GB (batch {facts['batch']})"
            for name, facts in needed.items()
        )
        lines.append(f"{'memory':<12}to train on {device}: {sizes}")
    return "\n".join(lines)
