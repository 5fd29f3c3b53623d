"""The vocabulary: words and their ids, as bilm-tf reads and writes them.

A vocabulary file has one word a line, and a word's id is its line's number from 0. White space
around a word is dropped, and a blank line is the empty word. The line `!!!MAXTERMID` that some old
files carry is skipped and takes no id. `<S>`, `</S>` and `<UNK>` may stand anywhere. Where a word
comes twice, both lines keep their ids and the word looks up to the last of them, as in bilm-tf:
that is the row its softmax and embeddings were trained in.

Departure from bilm-tf: where it answers -1 (for a word it does not know, in a file without
`<UNK>`), an `InputError` is raised.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from torchelmo.config import BEGIN, END, UNKNOWN
from torchelmo.errors import InputError

SPECIALS = (BEGIN, END, UNKNOWN)
_SENTINEL = "!!!MAXTERMID"


class Vocabulary:
    """Words by id and ids by word.

    >>> v = Vocabulary(["<S>", "</S>", "<UNK>", "the", "."])
    >>> v.encode(["the", "cat", "."])
    array([0, 3, 2, 4, 1], dtype=int32)
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._words = tuple(words)
        self._ids = {word: i for i, word in enumerate(self._words)}  # the last of equals wins

    @classmethod
    def from_lines(cls, lines: Iterable[str]) -> "Vocabulary":
        """Read a vocabulary file's lines: white space around a word is dropped."""
        return cls(word for line in lines if (word := line.strip()) != _SENTINEL)

    @classmethod
    def build(
        cls, counts: Mapping[str, int], min_count: int = 1, max_size: int | None = None
    ) -> "Vocabulary":
        """The three specials, then words by falling count, which the sampled softmax needs.

        Equal counts go by code point. `max_size` counts the specials too. The specials and the
        sentinel line are left out of `counts`; a word that cannot be a line (empty, white space at
        an end, a line break inside) is refused.

        >>> Vocabulary.build({"b": 2, "a": 2, "c": 1, "d": 5}, max_size=6).words
        ('<S>', '</S>', '<UNK>', 'd', 'a', 'b')
        """
        if max_size is not None and max_size < len(SPECIALS):
            raise InputError(
                f"a vocabulary of at most {max_size} words was asked for, "
                "but <S>, </S> and <UNK> alone are 3: ask for more."
            )
        reserved = {*SPECIALS, _SENTINEL}
        kept = [w for w, n in counts.items() if n >= min_count and w not in reserved]
        for word in kept:
            if not word or word != word.strip() or "\n" in word or "\r" in word:
                raise InputError(
                    f"the word {word!r} cannot stand on a line of its own: "
                    "count words without white space around them or line breaks inside."
                )
        kept.sort(key=lambda w: (-counts[w], w))
        room = None if max_size is None else max_size - len(SPECIALS)
        return cls([*SPECIALS, *kept[:room]])

    @property
    def words(self) -> tuple[str, ...]:
        """All words; `words[i]` has the id i."""
        return self._words

    def lines(self) -> Iterator[str]:
        """The lines of the vocabulary file, with their line breaks."""
        return (word + "\n" for word in self._words)

    def __len__(self) -> int:
        return len(self._words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self._words == other._words

    def __hash__(self) -> int:
        return hash(self._words)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} words)"

    @property
    def begin(self) -> int:
        """The id of `<S>`."""
        return self._special(BEGIN)

    @property
    def end(self) -> int:
        """The id of `</S>`."""
        return self._special(END)

    @property
    def unknown(self) -> int:
        """The id of `<UNK>`."""
        return self._special(UNKNOWN)

    def require_specials(self) -> None:
        """Raise unless `<S>`, `</S>` and `<UNK>` are there, as training and scoring need them."""
        missing = [word for word in SPECIALS if word not in self._ids]
        if missing:
            raise InputError(
                f"the vocabulary has no {' and no '.join(missing)}: "
                "it needs <S>, </S> and <UNK>, each on a line of its own, in any place."
            )

    def id(self, word: str) -> int:
        """The id of a word, or of `<UNK>` for one that is not here."""
        found = self._ids.get(word, self._ids.get(UNKNOWN))
        if found is None:
            raise InputError(
                f"the word {word!r} is not in the vocabulary, which has no <UNK> to stand for it: "
                "add <UNK> on a line of its own, in any place."
            )
        return found

    def ids(self, words: Iterable[str]) -> npt.NDArray[np.int32]:
        """The ids of many words: (T,) int32."""
        get, unknown = self._ids.get, self._ids.get(UNKNOWN)
        if unknown is None:
            return np.fromiter((self.id(word) for word in words), dtype=np.int32)
        return np.fromiter((get(word, unknown) for word in words), dtype=np.int32)

    def word(self, index: int) -> str:
        """The word of an id."""
        if not 0 <= index < len(self._words):
            raise InputError(
                f"no word has the id {index}: the vocabulary has the ids 0 to {len(self) - 1}."
            )
        return self._words[index]

    def encode(self, sentence: str | Sequence[str], reverse: bool = False) -> npt.NDArray[np.int32]:
        """A sentence's ids between those of `<S>` and `</S>`: (T + 2,) int32.

        A string is split on white space. With `reverse` the boundaries swap; as in bilm-tf the
        words are then taken to be reversed already: give `wn ... w1`, get `</S> wn ... w1 <S>`.
        """
        first, last = (self.end, self.begin) if reverse else (self.begin, self.end)
        words = sentence.split() if isinstance(sentence, str) else sentence
        encoded = np.empty(len(words) + 2, dtype=np.int32)
        encoded[0], encoded[-1] = first, last
        encoded[1:-1] = self.ids(words)
        return encoded

    def decode(self, ids: Iterable[int]) -> str:
        """The words of ids, boundaries and all, joined by spaces."""
        return " ".join(self.word(int(i)) for i in ids)

    def _special(self, word: str) -> int:
        found = self._ids.get(word)
        if found is None:
            raise InputError(
                f"the vocabulary has no {word}: add it on a line of its own, in any place."
            )
        return found
