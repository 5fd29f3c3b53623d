"""How a word is spelt: one row of character ids a word.

A row of length C is: begin-word, at most C-2 symbols, end-word, then padding. The boundary tokens
`<S>` and `</S>` have a mark of their own in place of symbols. Id 0 means "no token"; a character's
id is its embedding row plus one.

Three schemes. `bytes` is the originals' (UTF-8 bytes 0..255, then marks: ids 1..261), in which a
word of over 48 bytes is cut, perhaps inside a character: 16 characters of Korean or Chinese.
`codepoints` has a row for each Unicode code point of an alphabet, `jamo` the same after Hangul
syllables are taken apart into their letters (conjoining jamo). Symbols outside the alphabet share
one row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from torchelmo.config import BEGIN, END, CharacterConfig
from torchelmo.errors import InputError

Ids = npt.NDArray[np.uint16]

MAX_WORD = 1_000_000  # characters; longer "words" are binary data or text without spaces


class Characters:
    """Spells words as rows of ids.

    >>> Characters(CharacterConfig(max_characters=5)).encode(["th", "<S>"]).tolist()
    [[259, 117, 105, 260, 261], [259, 257, 260, 261, 261]]
    """

    def __init__(
        self,
        config: CharacterConfig,
        alphabet: Sequence[str] = (),
        boundaries: tuple[str, str] = (BEGIN, END),
    ) -> None:
        """Take the config and, unless the scheme is `bytes`, its alphabet of single symbols."""
        if config.scheme != "bytes" and len(alphabet) != config.symbols:
            raise InputError(
                f"the {config.scheme} scheme has {config.symbols} symbols, "
                f"the alphabet given has {len(alphabet)}"
            )
        self.scheme = config.scheme
        self.max_characters = config.max_characters
        self.alphabet = tuple(alphabet)
        self.boundaries = boundaries
        first = config.symbols + 1
        self.begin_sentence, self.end_sentence = first, first + 1
        self.begin_word, self.end_word, self.padding = first + 2, first + 3, first + 4
        self.unknown = first + 5  # not used by `bytes`
        if config.scheme != "bytes":
            self._ids = np.full(0x110000, self.unknown, dtype=np.uint16)
            for number, symbol in enumerate(alphabet):
                if len(symbol) != 1:
                    raise InputError(f"alphabet entry {number + 1} is {symbol!r}, not one symbol")
                self._ids[ord(symbol)] = number + 1

    def encode(self, words: Sequence[str], *, escape_boundaries: bool = False) -> Ids:
        """Return one row a word, (n, C); words like `<S>` are boundaries unless escaped."""
        room = self.max_characters - 2
        spelt = self._spell(words, room)
        unit = 1 if self.scheme == "bytes" else 4
        lengths = np.fromiter(map(len, spelt), dtype=np.int64, count=len(words)) // unit
        rows = np.full((len(words), self.max_characters), self.padding, dtype=np.uint16)
        if not words:
            return rows
        column = np.arange(self.max_characters)
        inside = (column >= 1) & (column <= lengths[:, None])
        rows[inside] = self._numbers(b"".join(spelt))
        rows[:, 0] = self.begin_word
        rows[np.arange(len(words)), lengths + 1] = self.end_word
        if not escape_boundaries:
            for number, word in enumerate(words):
                if word in self.boundaries:
                    rows[number] = self.boundary(end=word == self.boundaries[1])
        return rows

    def boundary(self, *, end: bool) -> Ids:
        """Return the row of `<S>`, or of `</S>`."""
        row = np.full(self.max_characters, self.padding, dtype=np.uint16)
        row[:3] = self.begin_word, self.end_sentence if end else self.begin_sentence, self.end_word
        return row

    def decode(self, row: Ids) -> str:
        """Return the word of a row, as far as it was not cut; unknown symbols become U+FFFD.

        >>> spell = Characters(CharacterConfig())
        >>> spell.decode(spell.encode(["gift"])[0])
        'gift'
        """
        ids = [int(i) for i in row[1:]]
        ids = ids[: ids.index(self.end_word)] if self.end_word in ids else ids
        if ids == [self.begin_sentence]:
            return self.boundaries[0]
        if ids == [self.end_sentence]:
            return self.boundaries[1]
        if self.scheme == "bytes":
            return bytes(i - 1 for i in ids if i <= 256).decode("utf-8", errors="ignore")
        text = "".join(self.alphabet[i - 1] if i <= len(self.alphabet) else "\ufffd" for i in ids)
        return _compose(text) if self.scheme == "jamo" else text

    def lengths(self, rows: Ids) -> npt.NDArray[np.int64]:
        """Return how many ids of each row are not padding, (n,)."""
        counts: npt.NDArray[np.int64] = (rows != self.padding).sum(axis=1)
        return counts

    def _spell(self, words: Sequence[str], room: int) -> list[bytes]:
        """Return the bytes of words, or their code points, four bytes each."""
        longest = max(words, key=len, default="")
        if len(longest) > MAX_WORD:
            raise InputError(
                f"a token of {len(longest):,} characters starts with {longest[:20]!r}: the limit "
                f"is {MAX_WORD:,}, split the text into words first"
            )
        # A code point is at least one symbol in every scheme.
        if self.scheme == "bytes":
            return [word[:room].encode("utf-8", "ignore")[:room] for word in words]
        letters = _hangul_letters() if self.scheme == "jamo" else {}
        return [
            word[:room].translate(letters).encode("utf-32-le", "ignore")[: 4 * room]
            for word in words
        ]

    def _numbers(self, spelt: bytes) -> Ids:
        if self.scheme == "bytes":
            return np.frombuffer(spelt, dtype=np.uint8).astype(np.uint16) + np.uint16(1)
        found: Ids = self._ids[np.frombuffer(spelt, dtype="<u4")]
        return found


def build_alphabet(words: Iterable[str], scheme: str, *, max_size: int = 65_000) -> list[str]:
    """Collect the symbols of words, the most frequent first.

    >>> build_alphabet(["각", "가"], "jamo") == ["\u1100", "\u1161", "\u11a8"]
    True
    """
    counts: dict[str, int] = {}
    for word in words:
        for symbol in word.translate(_hangul_letters()) if scheme == "jamo" else word:
            counts[symbol] = counts.get(symbol, 0) + 1
    return sorted(counts, key=lambda symbol: (-counts[symbol], symbol))[:max_size]


@cache
def _hangul_letters() -> dict[int, str]:
    """Map each of the 11,172 syllables to its two or three conjoining letters."""
    table = {}
    for number in range(11_172):
        lead, rest = divmod(number, 588)
        vowel, tail = divmod(rest, 28)
        letters = chr(0x1100 + lead) + chr(0x1161 + vowel)
        table[0xAC00 + number] = letters + chr(0x11A7 + tail) if tail else letters
    return table


def _compose(text: str) -> str:
    """Put conjoining letters together into syllables; leave all else as it is."""
    out: list[str] = []
    for char in text:
        point, last = ord(char), ord(out[-1]) if out else 0
        if 0x1161 <= point <= 0x1175 and 0x1100 <= last <= 0x1112:
            out[-1] = chr(0xAC00 + (last - 0x1100) * 588 + (point - 0x1161) * 28)
        elif 0x11A8 <= point <= 0x11C2 and 0xAC00 <= last <= 0xD7A3 and (last - 0xAC00) % 28 == 0:
            out[-1] = chr(last + point - 0x11A7)
        else:
            out.append(char)
    return "".join(out)
