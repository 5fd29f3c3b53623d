"""A file of sentences to a file of vectors on this machine, in bounded memory.

1. Read a window of lines (65,536 tokens) and compute it, sorted by length, batch by batch.
2. Write each batch where it belongs in the window's part, in OUT.partial/.
3. When all is there, join the parts in the format that is asked for, and rename.

The same call goes on from the parts that are there, if model, options and input agree; its output
has the bytes of an undisturbed run. For that, what a window gives must not depend on who computed
the windows before it. The last bits of a word's vector depend on the words it was computed with,
and words are remembered from window to window. So they are forgotten every sixteen windows, and a
run that goes on first meets the words since then in the same order again.

At the end parts and output are on disk together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import torch

import torchelmo
from torchelmo.bulk.parts import (
    DONE,
    Facts,
    Header,
    Partial,
    PartWriter,
    check_space,
    read_sentences,
    read_state,
    read_words,
    sync,
    sync_folder,
)
from torchelmo.bulk.reader import Reader, Scan, Split, Window, scan
from torchelmo.bulk.vectors import (
    Carry,
    DtypeName,
    LayerChoice,
    Vectors,
    check_layers,
    embed_reset,
    meet,
    model_hash,
    new_encoder,
    token_shape,
)
from torchelmo.bulk.writers import Writer, writer_class
from torchelmo.elmo import Elmo
from torchelmo.encoder import Encoder, out_of_memory
from torchelmo.errors import InputError
from torchelmo.ops import threads

EPOCH = 16  # windows after which remembered words are forgotten
WINDOW = 65_536  # tokens, two a line added: seconds to minutes of work, lost at most by a kill


Phase = Literal["embed", "join"]


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """What is asked for."""

    layers: LayerChoice = "all"
    dtype: DtypeName = "float32"
    tokenize: bool = False  # split raw lines with the model's tokeniser, not at white space
    state: Literal["reset", "carry"] = "reset"
    rows: int = 1  # of the carried state: line i goes on where line i - rows stopped
    batch_tokens: int | None = None
    window: int = WINDOW
    index: bool = True  # write `sentence_to_index`

    def __post_init__(self) -> None:
        for name in ("rows", "batch_tokens", "window"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name.replace('_', '-')} is {value}, expected 1 or more")
        if self.rows > 1 and self.state != "carry":
            raise InputError(f"rows ({self.rows}) are those of a carried state: add --state carry")


@dataclass
class Totals:
    """Sums over parts."""

    parts: int = 0
    lines: int = 0
    tokens: int = 0
    blank: int = 0  # lines without tokens
    input_bytes: int = 0
    text_bytes: int = 0

    def add(self, header: Header) -> None:
        """Count a part."""
        self.parts += 1
        self.lines += header.lines
        self.tokens += header.tokens
        self.blank += header.blank
        self.input_bytes += header.input_bytes
        self.text_bytes += header.text_bytes


@dataclass(frozen=True)
class Progress:
    """How far a run is; `done` and `total` are bytes of input."""

    phase: Phase
    tokens: int  # embedded or joined by now
    done: int
    total: int | None  # None: the end of a stream is not known
    kept: Totals  # what an earlier run had finished


@dataclass(frozen=True)
class Summary:
    """What a run did."""

    output: str
    lines: int
    tokens: int
    blank: int  # lines without tokens
    kept: int  # lines that an earlier, interrupted run had finished
    seconds: float
    tokens_per_second: float
    bytes: int  # size of the output


class InputChanged(InputError):
    """The input is not the one of the unfinished run."""


def embed_file(
    elmo: Elmo,
    source: Path | BinaryIO,
    output: Path,
    options: EmbedOptions | None = None,
    *,
    overwrite: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Summary:
    """Embed each line of a file, or of an open binary stream.

    Args:
        elmo: the model.
        source: UTF-8 text, one sentence a line.
        output: a path that ends in .hdf5, .h5, .npz, .parquet or .jsonl.
        options: what is asked for.
        overwrite: replace an output that exists, and what is left of other unfinished runs.
        progress: called now and then.
    """
    check_output(output, overwrite=overwrite, source=source)
    if isinstance(source, Path) and not source.is_file():  # a pipe is read once
        with source.open("rb") as stream:
            return embed_file(elmo, stream, output, options, overwrite=overwrite, progress=progress)
    run = _Run(elmo, output, options or EmbedOptions(), progress)
    partial = Partial(output)
    try:
        if isinstance(source, Path):
            run.found = scan(source, check_tokens=not run.options.tokenize)
        with partial:
            if (summary := run.finished(partial, source)) is not None:
                return summary
            if output.exists() and not overwrite:
                raise _exists(output)
            partial.begin(run.facts, overwrite=overwrite)
            try:
                return run(partial, source)
            except InputChanged:
                if not overwrite or not isinstance(source, Path):
                    raise
            partial.clear()
            return run(partial, source)
    except OSError as error:
        raise InputError(describe(error, output, partial)) from error


def check_output(output: Path, *, overwrite: bool, source: Path | BinaryIO | None = None) -> None:
    """Raise a sentence if the output cannot be written there; cheap, for before a model is read."""
    writer_class(output)
    if output.is_dir():
        raise InputError(f"{output} is a folder, expected the name of a file to write")
    if not output.parent.is_dir():
        raise InputError(f"there is no folder {output.parent} to write {output.name} into")
    if isinstance(source, Path):
        if not source.exists():
            raise InputError(f"there is no file {source}")
        if source.is_dir():
            raise InputError(f"{source} is a folder, expected a text file")
        if output.exists() and os.path.samefile(source, output):
            raise InputError(f"{output} is the input: choose another name for the output")
    # A run may have been killed after its output was ready and before it had cleaned up.
    ready = (Partial(output).folder / DONE).exists()
    if output.exists() and not overwrite and not ready:
        raise _exists(output)


def describe(error: OSError, output: Path, partial: Partial) -> str:
    """Return one sentence for a failure of the system."""
    number = error.errno
    if number is None and (match := re.search(r"errno = (\d+)", str(error))):
        number = int(match[1])  # HDF5 says it in its text only
    reason = os.strerror(number) if number else str(error).splitlines()[0]
    where = error.filename or output
    text = f"{where} cannot be read or written: {reason}"
    if partial.part(0).exists():
        text += f" (finished lines are kept in {partial.folder}: the same command goes on)"
    return text


def _exists(output: Path) -> InputError:
    return InputError(f"{output} exists: choose another name, or pass --overwrite to replace it")


@contextlib.contextmanager
def _open(source: Path | BinaryIO) -> Iterator[Reader]:
    if isinstance(source, Path):
        with source.open("rb") as stream:
            yield Reader(stream, str(source))
    else:
        name = getattr(source, "name", None)
        yield Reader(source, "standard input" if name in (0, "<stdin>") else "the input")


class _Run:
    """One call of `embed_file`."""

    def __init__(
        self,
        elmo: Elmo,
        output: Path,
        options: EmbedOptions,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        check_layers(elmo.config, options.layers)
        self.elmo, self.output, self.options = elmo, output, options
        self.found: Scan | None = None  # what a first look at the input found
        self.shape = token_shape(elmo.config, options.layers)
        self.token_bytes = int(np.prod(self.shape)) * np.dtype(options.dtype).itemsize
        self.split: Split = elmo.tokenizer.words if options.tokenize else str.split
        tokenizer = elmo.tokenizer if options.tokenize else None
        self.facts: Facts = {
            "model": model_hash(elmo),
            "layers": options.layers,
            "dtype": options.dtype,
            "precision": elmo.bilm.precision,
            "state": options.state,
            "rows": options.rows,
            "tokenizer": f"{tokenizer.name} {tokenizer.version}" if tokenizer else None,
            "batch_tokens": options.batch_tokens,
            "window": options.window,
            # These change the last bits of a number.
            "device": elmo.device.type,
            "torch": torch.__version__,
            "torchelmo": torchelmo.__version__,
        }
        self._progress, self._shown = progress, 0.0
        self._started = time.perf_counter()
        self._encoder = new_encoder(elmo)
        self._kept = Totals()  # what an earlier run had finished
        self._all = Totals()

    def __call__(self, partial: Partial, source: Path | BinaryIO) -> Summary:
        """Do what is not done yet."""
        self._kept, self._all = Totals(), Totals()
        with _open(source) as reader:
            carry = Carry(self.options.rows)
            for path, header in partial.parts():
                self._check_part(partial, path, header, reader)
                self._kept.add(header)
                self._all.add(header)
            if self.options.state == "carry" and self._kept.parts:
                carry.state = read_state(partial.part(self._kept.parts - 1))
            for number in range(self._kept.parts - self._kept.parts % EPOCH, self._kept.parts):
                meet(self._encoder_of(number), read_words(partial.part(number)))
            if self.found:
                missing = max(self.found.tokens - self._kept.tokens, 0) * self.token_bytes
                whole = self._output_bytes(self.found.lines, self.found.tokens, self.found.size)
                check_space(partial.folder, missing + whole, f"{self.output} with its parts")
            for window in self._windows(reader, early=isinstance(source, Path)):
                self._all.add(self._embed(partial, window, carry))
            digest = reader.digest.hexdigest()
        self._join(partial, digest)
        return self._summary()

    def finished(self, partial: Partial, source: Path | BinaryIO) -> Summary | None:
        """Return a summary if an earlier run was killed when only cleaning up was left."""
        done = partial.done()
        asked = {**self.facts, "index": self.options.index}
        if done.get("facts") != asked or done.get("output") != _identity(self.output):
            return None
        with _open(source) as reader:
            while not reader.ended:
                reader.line()
            if reader.digest.hexdigest() != done.get("input_sha256"):
                if isinstance(source, Path):
                    return None
                raise _exists(self.output)  # a stream cannot be read again
        self._kept = self._all = Totals(**done["totals"])
        return self._summary()

    def _check_part(self, partial: Partial, path: Path, header: Header, reader: Reader) -> None:
        """Compare the part's input with what is read now."""
        first = reader.lines + 1
        same = reader.skip(header.lines) == header.input_sha256 and header.last == reader.ended
        if not same:
            raise InputChanged(
                f"{partial.folder} holds an unfinished run over other text (lines {first} to "
                f"{first + header.lines - 1} differ): delete that folder, or pass --overwrite"
            )
        if header.data_bytes != header.tokens * self.token_bytes or header.first != first - 1:
            raise InputError(f"{path} is damaged: delete its folder to begin anew")

    def _windows(self, reader: Reader, *, early: bool) -> Iterator[Window]:
        """Yield windows of lines, each read and split while the one before is computed if `early`.

        Not from a stream: reading it may wait for ever, which would keep an interrupted run alive.
        """

        def read() -> Window:
            return reader.window(self.options.window, self.split, multiple=self.options.rows)

        if not early:
            while not reader.ended:
                yield read()
        elif not reader.ended:
            with ThreadPoolExecutor(1, "torchelmo-read") as pool:
                window = read()
                while not window.last:
                    following = pool.submit(read)
                    yield window
                    window = following.result()
                yield window

    def _embed(self, partial: Partial, window: Window, carry: Carry) -> Header:
        part = PartWriter(partial, self._all.parts, window, self.token_bytes)
        asked = self.options.layers, self.options.dtype
        encoder = self._encoder_of(self._all.parts)
        pieces: Iterator[tuple[int, Vectors]]
        if self.options.state == "carry":
            pieces = carry.embed(encoder, window.sentences, *asked)
        else:
            pieces = embed_reset(
                encoder, window.sentences, *asked, batch_tokens=self.options.batch_tokens
            )
        tokens = 0
        try:
            with threads.serial():
                for number, vectors in pieces:  # the next batches are computed meanwhile
                    part.write(number, vectors)
                    tokens += len(window.sentences[number])
                    self._report("embed", self._all, tokens, part.header)
            part.finish(carry.state if self.options.state == "carry" else None)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            longest = max(range(len(window.sentences)), key=lambda i: len(window.sentences[i]))
            raise InputError(
                f"memory ran out; line {window.first + longest + 1} has "
                f"{len(window.sentences[longest]):,} tokens: split lines that are so long"
            ) from None
        finally:
            part.close()
        return part.header

    def _encoder_of(self, number: int) -> Encoder:
        """Return what computes a window, given that it was asked for those before it."""
        if number % EPOCH == 0:
            self._encoder = new_encoder(self.elmo)
        return self._encoder

    def _join(self, partial: Partial, digest: str) -> None:
        """Write the output from the parts, under a temporary name, and rename it."""
        options, joined = self.options, Totals()
        needed = self._output_bytes(self._all.lines, self._all.tokens, self._all.text_bytes)
        check_space(partial.folder, needed, str(self.output))
        path = partial.temporary(self.output.name)
        writer: Writer = writer_class(self.output)(path, options.dtype, index=options.index)
        with writer:
            for part, header in partial.parts():
                tokens = 0
                for line, words, vectors in read_sentences(part, self.shape, options.dtype):
                    writer.write(line, words, vectors)
                    tokens += len(words)
                    self._report("join", joined, tokens, header)
                joined.add(header)
            writer.finish()
        with path.open("r+b") as file:
            sync(file)
        note = {
            "facts": {**self.facts, "index": options.index},
            "input_sha256": digest,
            "output": _identity(path),
            "totals": dataclasses.asdict(self._all),
        }
        partial.write_json(DONE, note)
        os.replace(path, self.output)
        sync_folder(self.output.parent)

    def _output_bytes(self, lines: int, tokens: int, text: int) -> int:
        """Estimate the size of the output."""
        kind = writer_class(self.output)
        vectors = int(tokens * self.token_bytes * kind.growth)
        return vectors + lines * kind.line_bytes + text

    def _report(self, phase: Phase, before: Totals, tokens: int, header: Header) -> None:
        """Tell how far the work is, at most ten times a second."""
        now = time.monotonic()
        if self._progress is None or now - self._shown < 0.1:
            return
        self._shown = now
        share = tokens / max(header.tokens, 1)
        self._progress(
            Progress(
                phase,
                tokens=before.tokens + tokens,
                done=before.input_bytes + int(share * header.input_bytes),
                total=self.found.size if self.found else None,
                kept=self._kept,
            )
        )

    def _summary(self) -> Summary:
        seconds = time.perf_counter() - self._started
        fresh = self._all.tokens - self._kept.tokens
        return Summary(
            output=str(self.output),
            lines=self._all.lines,
            tokens=self._all.tokens,
            blank=self._all.blank,
            kept=self._kept.lines,
            seconds=round(seconds, 3),
            tokens_per_second=round(fresh / seconds, 1),
            bytes=self.output.stat().st_size,
        )


def _identity(path: Path) -> list[int] | None:
    """Return what stays the same of a file when it is renamed."""
    with contextlib.suppress(OSError):
        facts = path.stat()
        return [facts.st_size, facts.st_mtime_ns]
    return None
