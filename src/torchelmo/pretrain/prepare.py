"""Raw text to a prepared corpus, on all cores, in bounded memory.

1. The input is read in chunks of whole lines; workers split them into sentences and words, numbered
   within the chunk (shards.py).
2. The distinct words of all chunks are merged on disk (merge.py).
3. Documents are told apart, and some set aside for validation (documents.py).
4. Words get ids by how often the training text has them (numbering.py); the numbers of each shard
   are mapped to ids, and the parts of the two texts written one after another (splits.py).

How many workers there are and where chunks end leaves no trace in the files. The folder appears
whole or not at all. bilm-tf starts from tokenised text and a vocabulary; here they are made.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from torchelmo.config import BEGIN, END, CharacterConfig, Json, TokenizerConfig
from torchelmo.errors import InputError, MissingExtra
from torchelmo.formats import files
from torchelmo.pretrain import corpus as layout
from torchelmo.pretrain import numbering
from torchelmo.pretrain.corpus import TRAIN, VALID
from torchelmo.pretrain.documents import Share, Text
from torchelmo.pretrain.merge import Longs, Words, merge_words
from torchelmo.pretrain.shards import MAX_TYPES, Task, make_shard
from torchelmo.pretrain.sources import Form, Input, find_sources, read_chunks
from torchelmo.pretrain.splits import HashedFile, Piece, SplitReport, SplitWriter
from torchelmo.pretrain.workers import Workers
from torchelmo.text.vocabulary import SPECIALS
from torchelmo.text.words import NAMES, get_tokenizer

CHUNK, MAX_CHUNK = 8 << 20, 32 << 20  # bytes of text for a worker at a time
WORK, LOCK = "work", "lock"  # inside the folder while it is being made


@dataclass(frozen=True, kw_only=True)
class PrepareOptions:
    """How text becomes a corpus; the command line has the same names."""

    tokenizer: str = "words"
    tokenized_by: str | None = None  # of white-space text: who cut it, as "kiwi" or "kiwi VERSION"
    sentences: Literal["split", "lines"] = "split"  # lines: each line is a sentence as it is
    form: Form = "auto"  # of the input: by a file's ending, or all alike
    field: str = "text"  # of a record in a .jsonl file
    block_lines: int = 200  # that stand for a document in a file without blank lines
    characters: Literal["bytes", "codepoints", "jamo"] = "bytes"
    max_characters: int = 50
    alphabet_size: int = 65_000
    alphabet_min_count: int = 2  # so that rare symbols teach a model what an unknown one is
    vocab_size: int = 100_000  # with <S>, </S> and <UNK>
    min_count: int = 1
    valid_share: float = 0.005  # of the documents
    seed: int = 1

    def __post_init__(self) -> None:
        for name, low, high in (
            ("block_lines", 1, 10**9),
            ("max_characters", 3, 10_000),
            ("alphabet_size", 1, 65_000),
            ("alphabet_min_count", 1, 10**9),
            ("vocab_size", len(SPECIALS) + 1, 10**9),
            ("min_count", 1, 10**12),
            ("seed", 0, 2**63 - 1),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise InputError(f"{_shown(name)} is {value:,}, expected {low:,} to {high:,}")
        for name, known in (
            ("sentences", ("split", "lines")),
            ("form", ("auto", "text", "jsonl")),
            ("characters", ("bytes", "codepoints", "jamo")),
        ):
            if getattr(self, name) not in known:
                found = getattr(self, name)
                raise InputError(f"{name} is {found!r}, expected one of {', '.join(known)}")
        if not 0 <= self.valid_share < 1:
            raise InputError(
                f"valid-share is {self.valid_share}, expected a part of the documents: "
                "0 or more, and less than 1"
            )
        if self.tokenized_by is not None and self.tokenizer != "whitespace":
            raise InputError(
                f"tokenized-by is {self.tokenized_by!r}, but the tokeniser is {self.tokenizer!r}, "
                "which would cut the text again: choose the tokeniser 'whitespace'"
            )

    def recorded(self) -> TokenizerConfig:
        """Return the tokeniser that cut the text, which a model of it asks for.

        >>> PrepareOptions(tokenizer="whitespace", tokenized_by="kiwi 1 of May").recorded()
        TokenizerConfig(name='kiwi', version='1 of May')
        """
        name, _, version = (self.tokenized_by or self.tokenizer).partition(" ")
        version = version.strip()
        if name not in NAMES or not version:
            try:
                version = get_tokenizer(name).version
            except MissingExtra:
                if self.tokenized_by is None:
                    raise
                raise InputError(
                    f"the tokeniser {name!r} is not installed here, so that its version is not "
                    f"known: say what cut the text as '{name} VERSION'"
                ) from None
        return TokenizerConfig(name=name, version=version)


class Progress(NamedTuple):
    """How far it is: bytes while reading, then parts of words or words of text."""

    phase: Literal["read", "merge", "write", "spell"]
    done: int
    total: int | None  # None: nobody knows how long standard input is
    tokens: int  # found so far


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was made."""

    output: str
    types: int  # distinct words that have a spelling, <S>, </S> and <UNK> included
    vocabulary: int
    coverage: float  # percent of the training tokens that are in the vocabulary
    train: SplitReport
    valid: SplitReport
    sha256: str
    bytes: int  # of the folder
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Of both texts, from the first byte to the finished folder."""
        return (self.train.tokens + self.valid.tokens) / max(self.seconds, 1e-9)


def prepare(
    inputs: Sequence[Input],
    output: str | Path,
    options: PrepareOptions | None = None,
    *,
    valid: Sequence[Input] = (),
    vocabulary: str | Path | None = None,
    overwrite: bool = False,
    workers: int = 1,
    progress: Callable[[Progress], None] = lambda now: None,
) -> Report:
    """Write a prepared corpus, whole or not at all.

    Args:
        inputs: files, folders or open binary streams, in the order of the text.
        output: the folder to be made.
        options: how to read, cut and spell.
        valid: text for validation; without it a share of the documents is set aside.
        vocabulary: a file with the targets, one a line, instead of the most frequent words.
        overwrite: replace a corpus that is there.
        workers: processes; more than one ask of a script what Python's multiprocessing asks, that
            it starts under `if __name__ == "__main__":`.
        progress: is told how far it is.
    """
    start = time.perf_counter()
    asked = options or PrepareOptions()
    if workers < 1:
        raise InputError(f"workers is {workers}, expected 1 or more")
    asked.recorded()  # a wrong name should not wait
    target = Path(output)
    texts = [
        Text(split, source, asked.block_lines)
        for split, given in ((TRAIN, inputs), (VALID, valid))
        if split == TRAIN or valid
        for source in find_sources(given, form=asked.form, leave_out=target)
    ]
    targets = None if vocabulary is None else numbering.read_vocabulary(Path(vocabulary))
    _remove_stale(target)
    with files.new_folder(
        target, overwrite=overwrite, known=layout.FILES, what="a prepared corpus"
    ) as out:
        with _work_folder(out) as work:
            job = _Job(asked, texts, work, out, progress, share=0.0 if valid else asked.valid_share)
            facts = job.run(targets, workers)
        size = sum(path.stat().st_size for path in out.iterdir())
    return Report(
        output=str(output),
        types=facts["types"],
        vocabulary=facts["vocabulary"],
        coverage=facts["coverage"],
        train=job.counts[TRAIN],
        valid=job.counts[VALID],
        sha256=facts["sha256"],
        bytes=size,
        seconds=round(time.perf_counter() - start, 3),
    )


class _Job:
    """One call of `prepare`, from sources to corpus.json."""

    def __init__(
        self,
        options: PrepareOptions,
        texts: list[Text],
        work: Path,
        out: Path,
        progress: Callable[[Progress], None],
        *,
        share: float,
    ) -> None:
        self.options, self.texts, self.share = options, texts, share
        self.work, self.out = work, out
        self.counts: dict[str, SplitReport] = {}
        self.hashes: dict[str, str] = {}
        self._progress = progress
        self._tokens = 0
        sizes = [text.source.size for text in texts]
        self._size = None if None in sizes else sum(size or 0 for size in sizes)
        self._read_bytes = [0] * len(texts)

    def run(self, targets: Sequence[str] | None, workers: int) -> Json:
        """Write every file of the corpus; return what corpus.json says."""
        small = self._size is not None and self._size < CHUNK // 8
        with Workers(1 if small else workers) as pool:
            for shard in pool.map(make_shard, self._tasks()):
                self.texts[shard.text].add(shard)
                self._tokens += shard.tokens
                self._tell("read", shard.read, self._size)
            self._check_empty()
            runs = [run for text in self.texts for shard in text.shards for run in shard.runs]
            words = merge_words(runs, self.work, pool, lambda *at: self._tell("merge", *at))
            chosen = self._choose()
            counts = words.counts - self._count_valid(words, chosen)
            named = numbering.number_words(
                words,
                counts,
                size=self.options.vocab_size,
                min_count=self.options.min_count,
                given=targets,
            )
            self._warn_of_boundaries(words)
            self._write_splits(words, named, chosen)
            config, alphabet = self._spelling(words, counts)
            self._write_words(words, named, config, alphabet, pool)
        return self._write_facts(named, config, given=targets is not None)

    def _tell(self, phase: Literal["read", "merge", "write", "spell"], *at: int | None) -> None:
        done, total = at
        self._progress(Progress(phase, done or 0, total, self._tokens))

    def _tasks(self) -> Iterator[Task]:
        # Merging costs time and memory by the number of runs: large texts have larger chunks.
        size = min(max(CHUNK, (self._size or 0) // 1000), MAX_CHUNK)
        asked, before = self.options, 0
        for number, text in enumerate(self.texts):
            for part, (chunk, read) in enumerate(read_chunks(text.source, size)):
                self._read_bytes[number] = read
                yield Task(
                    chunk=chunk,
                    text=number,
                    read=before + read,
                    stem=str(self.work / f"{number:06d}-{part:06d}"),
                    tokenizer=asked.tokenizer,
                    split=asked.sentences == "split",
                    field=asked.field if text.source.records else None,
                    max_types=MAX_TYPES,
                )
            before += text.source.size or self._read_bytes[number]

    def _check_empty(self) -> None:
        for split in (TRAIN, VALID):
            mine = [text for text in self.texts if text.split == split]
            if mine and not any(text.lines for text in mine):
                names = ", ".join(text.source.name for text in mine[:3])
                more = f" and {len(mine) - 3} others" if len(mine) > 3 else ""
                raise InputError(f"there is no text in {names}{more}: expected words")

    def _choose(self) -> Share:
        documents = sum(text.documents for text in self.texts if text.split == TRAIN)
        chosen = Share(self.share, self.options.seed, documents)
        if self.share and not chosen.limit:
            found = "1 document is" if documents == 1 else f"{documents} documents are"
            warnings.warn(
                f"nothing is set aside for validation, {found} too few for a share of "
                f"{self.share}: give validation text, a larger share or fewer lines a block",
                stacklevel=4,
            )
        return chosen

    def _pieces(self, chosen: Share) -> Iterator[Piece]:
        """Yield each shard with the lines that are for validation."""
        document = run = 0
        for text in self.texts:
            for shard, lines, starts in text.starts():
                valid = np.full(len(lines), text.split == VALID)
                if text.split == TRAIN:
                    valid = chosen(document + np.cumsum(starts) - 1)
                    document += int(starts.sum())
                yield Piece(shard, run, lines, starts, valid)
                run += len(shard.runs)

    def _count_valid(self, words: Words, chosen: Share) -> Longs:
        """Return how often the validation text has each word."""
        counts: Longs = np.zeros(len(words), dtype=np.int64)
        for piece in self._pieces(chosen):
            cut = piece.cut(VALID)
            if cut is not None:
                places = words.tokens(piece.shard, piece.run)[cut.tokens]
                found, often = np.unique(places, return_counts=True)
                counts[found] += often
        return counts

    def _warn_of_boundaries(self, words: Words) -> None:
        marks = [word for word in (BEGIN, END) if words.place(word) is not None]
        if marks:
            warnings.warn(
                f"the text has the word {' and '.join(marks)}: training adds boundaries to every "
                "sentence, take them out of the text",
                stacklevel=4,
            )

    def _write_splits(self, words: Words, named: numbering.Numbering, chosen: Share) -> None:
        done = 0
        with SplitWriter(self.out, TRAIN) as train, SplitWriter(self.out, VALID) as valid:
            writers = {TRAIN: train, VALID: valid}
            for piece in self._pieces(chosen):
                ids = words.tokens(piece.shard, piece.run, named.ids)
                for split, writer in writers.items():
                    cut = piece.cut(split)
                    if cut is not None:
                        writer.add(cut, ids, len(named.vocabulary))
                done += piece.shard.tokens
                self._tell("write", done, self._tokens)
            for split, writer in writers.items():
                self.counts[split] = writer.finish()
                self.hashes |= writer.hashes()

    def _spelling(self, words: Words, counts: Longs) -> tuple[CharacterConfig, list[str]]:
        asked, alphabet = self.options, list[str]()
        if asked.characters != "bytes":
            alphabet = numbering.build_alphabet(
                words,
                counts,
                scheme=asked.characters,
                size=asked.alphabet_size,
                min_count=asked.alphabet_min_count,
            )
        symbols = len(alphabet) or 256
        config = layout.character_config(asked.characters, asked.max_characters, symbols)
        return config, alphabet

    def _write_words(
        self,
        words: Words,
        named: numbering.Numbering,
        config: CharacterConfig,
        alphabet: list[str],
        pool: Workers,
    ) -> None:
        texts = {layout.VOCABULARY: "".join(f"{word}\n" for word in named.vocabulary)}
        if alphabet:
            texts[layout.ALPHABET] = layout.alphabet_lines(alphabet)
        for name, text in texts.items():
            with HashedFile(self.out / name) as file:
                file.write(text.encode("utf-8"))
            self.hashes[name] = file.hexdigest()
        path, sizes = self.out / layout.WORDS, []
        with HashedFile(path) as file:
            for count, lines in numbering.word_blocks(words, named):
                file.write(lines)
                sizes.append((count, len(lines)))
        self.hashes[path.name] = file.hexdigest()
        numbering.write_spelling(
            path,
            sizes,
            self.out / layout.CHARACTERS,
            config,
            alphabet,
            pool,
            lambda *at: self._tell("spell", *at),
        )

    def _write_facts(
        self, named: numbering.Numbering, config: CharacterConfig, *, given: bool
    ) -> Json:
        train, valid = self.counts[TRAIN], self.counts[VALID]
        tokenizer = self.options.recorded()
        identity = "".join(f"{name} {self.hashes[name]}\n" for name in sorted(self.hashes))
        facts: Json = {
            "format_version": layout.FORMAT_VERSION,
            "tokenizer": {"name": tokenizer.name, "version": tokenizer.version},
            "characters": {
                "scheme": config.scheme,
                "max_characters": config.max_characters,
                "symbols": config.symbols,
            },
            "types": named.types,
            "vocabulary": len(named.vocabulary),
            "coverage": round(100 - train.unknown_percent, 4),
            TRAIN: dataclasses.asdict(train),
            VALID: dataclasses.asdict(valid),
            "settings": {**dataclasses.asdict(self.options), "vocabulary_given": given},
            "sources": [
                {
                    "name": text.source.name,
                    "split": text.split,
                    "bytes": read,
                    "lines": text.lines,
                    "documents": text.documents,
                }
                for text, read in zip(self.texts, self._read_bytes, strict=True)
            ],
            "files": self.hashes,
            "sha256": hashlib.sha256(identity.encode("utf-8")).hexdigest(),
        }
        files.write_json(self.out / layout.FACTS, facts)
        return facts


@contextmanager
def _work_folder(out: Path) -> Iterator[Path]:
    """Give a folder for the shards, and lock `out` for as long as this process lives."""
    work, lock = out / WORK, out / LOCK
    with lock.open("ab") as file:
        files.try_lock(file)
        work.mkdir()
        yield work
        shutil.rmtree(work)
    lock.unlink()


def _remove_stale(target: Path) -> None:
    """Remove what runs that were killed left beside the target; a living one holds its lock."""
    target = Path(os.path.realpath(target))
    for old in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
        try:
            with (old / LOCK).open("r+b") as file:
                dead = files.try_lock(file) is True
        except FileNotFoundError:  # killed as it began or ended
            dead = time.time() - old.stat().st_mtime > 60
        except OSError:
            continue
        if dead:
            shutil.rmtree(old, ignore_errors=True)


def _shown(name: str) -> str:
    return name.replace("_", "-")
