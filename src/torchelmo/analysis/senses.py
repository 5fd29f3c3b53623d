"""Words with several meanings, in sentences: twenty words of English and of Korean.

Each meaning has six to eight sentences, written for this package. `data/senses_en.tsv` and
`data/senses_ko.tsv` hold a line a sentence, three columns apart by tabs: the word, the meaning in
English, the sentence with the word between asterisks. Inflected forms are marked whole (*banks*);
in Korean the noun alone, whatever particle follows (*배*를), so that a tokeniser may cut there
or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files

from torchelmo.errors import InputError

LANGUAGES = ("en", "ko")
HEADER = "word\tsense\tsentence"
_MARKED = re.compile(r"([^*]*)\*([^*]+)\*([^*]*)")


@dataclass(frozen=True)
class Example:
    """A sentence with a word in one of its meanings; the word stands at `text[start:end]`."""

    word: str
    sense: str
    text: str
    start: int
    end: int

    @property
    def surface(self) -> str:
        """The word as it stands in the sentence."""
        return self.text[self.start : self.end]

    def marked(self, mark: str = "**") -> str:
        """Return the sentence with the word between marks.

        >>> Example("bank", "the side of a river", "It burst its banks.", 13, 18).marked()
        'It burst its **banks**.'
        """
        before, after = self.text[: self.start], self.text[self.end :]
        return f"{before}{mark}{self.surface}{mark}{after}"


def read(language: str) -> list[Example]:
    """Return the sentences of a language, "en" or "ko", in the order of the file."""
    if language not in LANGUAGES:
        raise InputError(f"no sentences in {language!r}: there are {' and '.join(LANGUAGES)}")
    file = files("torchelmo.analysis").joinpath("data", f"senses_{language}.tsv")
    return parse(file.read_text(encoding="utf-8").splitlines())


def parse(lines: Iterable[str]) -> list[Example]:
    r"""Return the sentences of lines that begin with the header.

    >>> parse([HEADER, "bank\tthe side of a river\tIt burst its *banks*."])[0].surface
    'banks'
    """
    examples = []
    for number, line in enumerate(lines, start=1):
        if number == 1:
            if line != HEADER:
                raise InputError(f"line 1 is {line!r}: expected the header {HEADER!r}")
            continue
        cells = line.split("\t")
        marked = _MARKED.fullmatch(cells[2]) if len(cells) == 3 and all(cells) else None
        if marked is None:
            raise InputError(
                f"line {number} is {line!r}: expected a word, its sense and a sentence with the "
                "word between asterisks, apart by tabs"
            )
        before, surface, after = marked.groups()
        start = len(before)
        text = before + surface + after
        examples.append(Example(cells[0], cells[1], text, start, start + len(surface)))
    return examples
