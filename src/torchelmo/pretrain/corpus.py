"""A prepared corpus: a folder of numbered text, opened without reading it into memory.

| file | holds |
|---|---|
| corpus.json | format version, tokeniser, characters, settings, sources, counts, SHA-256 |
| vocab.txt | the targets: `<S>`, `</S>`, `<UNK>`, then words by falling frequency |
| words.txt | every distinct word in order of its id; the first lines are those of vocab.txt |
| characters.npy | (types, C) uint16: how each word is spelt, in order of its id |
| characters.txt | alphabet of the code-point and jamo schemes, one symbol a line as `U+AC00` |
| train.tokens, valid.tokens | int32: ids of all words, sentence after sentence, no boundaries |
| train.sentences, valid.sentences | int64: the first token of each sentence, then the end |
| train.documents, valid.documents | int64: the first sentence of each document, then the end |

Numbers are little-endian. A word is its target if its id is below the size of the vocabulary, else
its target is `<UNK>`; its spelling is in characters.npy either way. bilm-tf reads its text anew for
every run; here it is counted and numbered once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from torchelmo.config import FILTERS, CharacterConfig, Json, TokenizerConfig
from torchelmo.errors import InputError
from torchelmo.formats import files

FORMAT_VERSION = "1.0"
FACTS, VOCABULARY, WORDS = "corpus.json", "vocab.txt", "words.txt"
CHARACTERS, ALPHABET = "characters.npy", "characters.txt"
TRAIN, VALID = "train", "valid"
TOKENS, SENTENCES, DOCUMENTS = "tokens", "sentences", "documents"
KINDS: dict[str, str] = {TOKENS: "<i4", SENTENCES: "<i8", DOCUMENTS: "<i8"}
SPLIT_FILES = tuple(f"{split}.{kind}" for split in (TRAIN, VALID) for kind in KINDS)
FILES = (FACTS, VOCABULARY, WORDS, CHARACTERS, ALPHABET, *SPLIT_FILES)

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Split:
    """Text for training or validation: word ids, and where sentences and documents start."""

    tokens: npt.NDArray[np.int32]
    sentences: npt.NDArray[np.int64]  # offsets into tokens, one more than there are sentences
    documents: npt.NDArray[np.int64]  # offsets into sentences, one more than there are documents

    @property
    def n_tokens(self) -> int:
        """Words, boundaries not counted."""
        return len(self.tokens)

    @property
    def n_sentences(self) -> int:
        """Sentences, each with at least one word."""
        return len(self.sentences) - 1

    @property
    def n_documents(self) -> int:
        """Documents, each with at least one sentence."""
        return len(self.documents) - 1


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus; get one with `Corpus.open(folder)`."""

    folder: Path
    facts: Json  # what corpus.json says
    train: Split
    valid: Split
    config: CharacterConfig  # how words are spelt; its filters are a model's matter
    tokenizer: TokenizerConfig
    alphabet: list[str]
    characters: npt.NDArray[np.uint16]  # (types, C)

    @classmethod
    def open(cls, folder: str | Path) -> Corpus:
        """Map a folder that `prepare` wrote; sizes are compared with what corpus.json says."""
        folder = Path(folder)
        if not (folder / FACTS).is_file():
            raise InputError(
                f"{folder} is no prepared corpus, it has no {FACTS}: make one with "
                "`torchelmo prepare FILE... -o FOLDER`"
            )
        facts = files.read_json(folder / FACTS)
        _check_version(folder, facts)
        try:
            spelling, rules = facts["characters"], facts["tokenizer"]
            scheme, longest = spelling["scheme"], int(spelling["max_characters"])
            config = character_config(scheme, longest, int(spelling["symbols"]))
            tokenizer = TokenizerConfig(name=str(rules["name"]), version=str(rules["version"]))
            types, _ = int(facts["types"]), int(facts["vocabulary"])
            counts = {
                split: {kind: int(facts[split][kind]) for kind in KINDS} for split in (TRAIN, VALID)
            }
            str(facts["sha256"])
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"{folder / FACTS} is not as prepare writes it ({type(error).__name__}: {error}): "
                "prepare the corpus again"
            ) from None
        alphabet = [] if scheme == "bytes" else read_alphabet(folder / ALPHABET)
        if scheme != "bytes" and len(alphabet) != config.symbols:
            raise InputError(
                f"{folder / ALPHABET} has {len(alphabet)} symbols, {FACTS} says {config.symbols}"
            )
        return cls(
            folder,
            facts,
            _open_split(folder, TRAIN, counts[TRAIN]),
            _open_split(folder, VALID, counts[VALID]),
            config,
            tokenizer,
            alphabet,
            _open_characters(folder / CHARACTERS, (types, longest)),
        )

    @property
    def types(self) -> int:
        """Distinct words with a spelling: lines of words.txt, boundaries included."""
        return int(self.facts["types"])

    @property
    def vocabulary_size(self) -> int:
        """V: ids below it are targets, all others are predicted as `<UNK>`."""
        return int(self.facts["vocabulary"])

    @property
    def sha256(self) -> str:
        """The identity of the numbered text: two corpora with the same one train alike."""
        return str(self.facts["sha256"])

    @cached_property
    def vocabulary(self) -> list[str]:
        """The V targets."""
        return self._lines(VOCABULARY, self.vocabulary_size)

    @cached_property
    def words(self) -> list[str]:
        """Every distinct word, by id; some 80 bytes a word in memory."""
        return self._lines(WORDS, self.types)

    def _lines(self, name: str, expected: int) -> list[str]:
        found = files.read_lines(self.folder / name)
        if len(found) != expected:
            raise InputError(
                f"{self.folder / name} has {len(found)} words, {FACTS} says {expected}"
            )
        return found


def character_config(scheme: str, max_characters: int, symbols: int) -> CharacterConfig:
    """Return how words are spelt, with those of the usual filters that fit."""
    if scheme not in ("bytes", "codepoints", "jamo"):
        raise InputError(f"the scheme is {scheme!r}, expected bytes, codepoints or jamo")
    fitting = tuple(pair for pair in FILTERS if pair[0] <= max(max_characters, 1))
    return CharacterConfig(
        scheme=scheme,  # type: ignore[arg-type]  # one of the three, as just checked
        max_characters=max_characters,
        symbols=symbols,
        filters=fitting,
    )


def read_alphabet(path: Path) -> list[str]:
    """Return the symbols that a file lists as code points."""
    symbols = []
    for number, line in enumerate(files.read_lines(path), start=1):
        if not re.fullmatch(r"U\+[0-9A-F]{4,6}", line) or int(line[2:], 16) > 0x10FFFF:
            raise InputError(f"line {number} of {path} is {line!r}, expected one such as 'U+AC00'")
        symbols.append(chr(int(line[2:], 16)))
    return symbols


def alphabet_lines(alphabet: list[str]) -> str:
    """Return the text of the file that `read_alphabet` reads."""
    return "".join(f"U+{ord(symbol):04X}\n" for symbol in alphabet)


def _check_version(folder: Path, facts: Json) -> None:
    version = str(facts.get("format_version", ""))
    major = version.partition(".")[0]
    if not major.isdigit():
        raise InputError(f"{folder / FACTS} has no format_version: prepare the corpus again")
    if int(major) > int(FORMAT_VERSION.partition(".")[0]):
        raise InputError(
            f"{folder} has format version {version}, this torchelmo reads up to {FORMAT_VERSION}: "
            "upgrade torchelmo"
        )


def _open_split(folder: Path, split: str, counts: dict[str, int]) -> Split:
    lengths = {
        TOKENS: counts[TOKENS],
        SENTENCES: counts[SENTENCES] + 1,
        DOCUMENTS: counts[DOCUMENTS] + 1,
    }
    arrays = {
        kind: _map(folder / f"{split}.{kind}", np.dtype(KINDS[kind]), length)
        for kind, length in lengths.items()
    }
    for kind, inside in ((SENTENCES, TOKENS), (DOCUMENTS, SENTENCES)):
        if int(arrays[kind][0]) != 0 or int(arrays[kind][-1]) != counts[inside]:
            raise InputError(
                f"{folder / f'{split}.{kind}'} does not end at the last of the {inside}: "
                "prepare the corpus again"
            )
    return Split(arrays[TOKENS], arrays[SENTENCES], arrays[DOCUMENTS])


def _map(path: Path, kind: np.dtype[Any], length: int) -> Array:
    files.check_file(path)
    size, expected = path.stat().st_size, kind.itemsize * length
    if size != expected:
        raise InputError(
            f"{path} has {size} bytes, {FACTS} says {expected}: it was cut or changed, "
            "prepare the corpus again"
        )
    if length == 0:  # nothing cannot be mapped
        return np.zeros(0, dtype=kind)
    return np.memmap(path, dtype=kind, mode="r")


def _open_characters(path: Path, shape: tuple[int, int]) -> npt.NDArray[np.uint16]:
    files.check_file(path)
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise InputError(f"{path} is not a whole .npy file: {error}") from None
    if found.shape != shape or found.dtype != np.dtype("<u2"):
        raise InputError(
            f"{path} holds {found.dtype} {found.shape}, {FACTS} says uint16 {shape}: "
            "prepare the corpus again"
        )
    characters: npt.NDArray[np.uint16] = found
    return characters
