"""Distinct words to ids: the vocabulary, the words outside it, the alphabet, the spelling table.

Ids are by falling count in the training text, equal counts by code point, which the sampled softmax
and the adaptive one need. Words that only the validation text has come last; they are read by
their spelling like any other, but can be no targets.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from torchelmo.config import CharacterConfig
from torchelmo.errors import InputError
from torchelmo.formats import files
from torchelmo.pretrain.merge import BLOCK, Longs, Words
from torchelmo.pretrain.workers import Workers
from torchelmo.text.characters import Characters
from torchelmo.text.vocabulary import SPECIALS, Vocabulary

SENTINEL = "!!!MAXTERMID"  # a line that readers of vocabulary files skip: it can be no target
POINTS = 0x110000


@dataclass(frozen=True)
class Numbering:
    """Which id each word has."""

    vocabulary: list[str]  # the targets
    outside: Longs  # places of all other words, by id
    ids: npt.NDArray[np.int32]  # of the word at each place

    @property
    def types(self) -> int:
        """How many ids there are."""
        return len(self.vocabulary) + len(self.outside)


def number_words(
    words: Words, counts: Longs, *, size: int, min_count: int, given: Sequence[str] | None = None
) -> Numbering:
    """Give ids by falling `counts`; the vocabulary is `given`, or cut by size and count."""
    order = np.argsort(-counts, kind="stable")  # places are in the order of words
    inside = np.zeros(len(words), dtype=np.bool_)
    ids = np.empty(len(words), dtype=np.int32)
    if given is None:
        for number, special in enumerate(SPECIALS):
            place = words.place(special)
            if place is not None:
                inside[place], ids[place] = True, number
        allowed = ~inside & (counts >= max(min_count, 1))
        sentinel = words.place(SENTINEL)
        if sentinel is not None:
            allowed[sentinel] = False
        chosen = order[allowed[order]][: size - len(SPECIALS)]
        inside[chosen] = True
        ids[chosen] = np.arange(len(SPECIALS), len(SPECIALS) + len(chosen))
        vocabulary = [*SPECIALS]
        for at in range(0, len(chosen), BLOCK):
            vocabulary += _split(words.text(chosen[at : at + BLOCK]))
    else:
        vocabulary = list(given)
        known = {word.encode("utf-8"): number for number, word in enumerate(vocabulary)}
        for first, text in words.blocks():
            for place, word in enumerate(text.split(b"\n")[:-1], start=first):
                number = known.get(word, -1)
                if number >= 0:
                    inside[place], ids[place] = True, number
    outside = order[~inside[order]]
    ids[outside] = np.arange(len(vocabulary), len(vocabulary) + len(outside))
    return Numbering(vocabulary, outside, ids)


def read_vocabulary(path: Path) -> list[str]:
    """Return the words of a file, `<S>`, `</S>` and `<UNK>` first, then in the file's order."""
    found = Vocabulary.from_lines(files.read_lines(path))
    try:
        found.require_specials()
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    bad = next((word for word in found.words if word.split() != [word]), None)
    if bad is not None:
        raise InputError(
            f"{path} has the word {bad!r}, expected one word a line and no line without"
        )
    return list(dict.fromkeys([*SPECIALS, *found.words]))


def build_alphabet(
    words: Words, counts: Longs, *, scheme: str, size: int, min_count: int
) -> list[str]:
    """Return the symbols that come at least `min_count` times, the most frequent first."""
    found = np.zeros(POINTS, dtype=np.float64)  # exact up to 2**53
    for first, text in words.blocks():
        points = np.frombuffer(text.decode("utf-8").encode("utf-32-le"), dtype="<u4")
        ends = points == ord("\n")
        word = np.cumsum(ends) - ends  # which of the block's words a symbol belongs to
        weights = counts[first : first + int(ends.sum())][word]
        found += np.bincount(points, weights=weights, minlength=POINTS)
    found[ord("\n")] = 0
    if scheme == "jamo":
        for point in np.flatnonzero(found[0xAC00:0xD7A4]) + 0xAC00:
            for letter in unicodedata.normalize("NFD", chr(point)):
                found[ord(letter)] += found[point]
        found[0xAC00:0xD7A4] = 0
    order = np.argsort(-found, kind="stable")
    kept = order[found[order] >= max(min_count, 1)][:size]
    if not len(kept):
        raise InputError(f"no symbol of the text comes {min_count} times: use a lower count")
    return [chr(point) for point in kept]


def word_blocks(words: Words, numbering: Numbering) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of words.txt, many at a time, with how many there are."""
    vocabulary, outside = numbering.vocabulary, numbering.outside
    for at in range(0, len(vocabulary), BLOCK):
        lines = vocabulary[at : at + BLOCK]
        yield len(lines), "".join(f"{word}\n" for word in lines).encode("utf-8")
    for at in range(0, len(outside), BLOCK):
        places = outside[at : at + BLOCK]
        yield len(places), words.text(places)


@dataclass(frozen=True)
class SpellTask:
    """Lines of words.txt, and where their rows go."""

    words: str
    start: int  # bytes
    end: int
    table: str
    row: int  # bytes into the table
    config: CharacterConfig
    alphabet: tuple[str, ...]


def write_spelling(
    words: Path,
    sizes: Sequence[tuple[int, int]],
    table: Path,
    config: CharacterConfig,
    alphabet: Sequence[str],
    workers: Workers,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write how each line of `words` is spelt; `sizes` are lines and bytes of its blocks."""
    types = sum(count for count, _ in sizes)
    width = 2 * config.max_characters
    header = {"descr": "<u2", "fortran_order": False, "shape": (types, config.max_characters)}
    with table.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        row = file.tell()
        file.truncate(row + types * width)
    tasks, start = [], 0
    for count, length in sizes:
        end = start + length
        tasks.append(SpellTask(str(words), start, end, str(table), row, config, tuple(alphabet)))
        start, row = end, row + count * width
    for done, _ in enumerate(workers.map(spell, tasks), start=1):
        progress(done, len(tasks))


def spell(task: SpellTask) -> None:
    """Write the rows of some words."""
    with open(task.words, "rb") as file:
        file.seek(task.start)
        words = _split(file.read(task.end - task.start))
    characters = Characters(task.config, task.alphabet)
    step = 1 << 13  # a block at once would take 60 MB
    with open(task.table, "r+b") as file:
        file.seek(task.row)
        for at in range(0, len(words), step):
            file.write(characters.encode(words[at : at + step]).astype("<u2").tobytes())


def _split(text: bytes) -> list[str]:
    return text.decode("utf-8").split("\n")[:-1]
