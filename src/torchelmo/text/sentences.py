"""Raw paragraphs to sentences, by rules, with offsets.

One line is one paragraph: a line break always ends a sentence. Within a line:
1. Candidates are runs of stops (. ! ? … 。 ！ ？ ؟ । ...) with the quotes, brackets and footnote
   marks [1] that close after them.
2. A stop of a script that has its own (。 । ؟) ends the sentence wherever it stands.
3. A Latin stop must have white space after it, except between two letters of Hangul, Han or kana.
4. What follows decides: a small letter goes on with the sentence (unless the whole line has no
   capital), and so does a comma.
5. A single full stop after an abbreviation or an initial ends the sentence only before a word that
   often starts one.

Time is linear: a candidate is judged by at most 24 characters before it and one word after it.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from torchelmo.text.words import ABBREVIATIONS

_WIDE = "。．！？｡؟۔।॥։።။។"
_CANDIDATE = re.compile(
    rf"(?P<stops>[.!?…‼⁇⁈⁉{_WIDE}]+)(?P<closers>[\"'”’»›)\]}}」』】〉》）］｣]*)(?:\[\d{{1,3}}\])*(?P<gap>\s*)"
)
_OPENERS = "\"'“‘„‚«‹([{¿¡「『【〈《（［｢`*_-–—•·"
_CONTINUERS = ",;:)]}.!?…，、；：%"
_LOOKBACK = 24

# Followed by a name: never the end of a sentence.
_TITLES = frozenset(
    """
    Mr Mrs Ms Messrs Mme Mlle Dr Drs Prof Profs St Ste Rev Hon Gen Col Maj Capt Cmdr Lt Sgt Cpl Pvt
    Adm Gov Sen Rep Sens Reps Pres Supt Det Mt Mts Ft Hr Fr Frl Sra Srta Dra Lic Sig Dott Avv
    vs Vs viz cf Cf e.g i.e z.B d.h u.a bzw
    """.split()
)
# Followed by a number: not the end of a sentence; before anything else a full stop is a full stop.
_COUNTED = frozenset(
    """
    No Nos no nos Nr Fig Figs fig figs Eq Eqs Sec Ch Vol Vols vol vols p pp c ca Art Abb approx est
    Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec
    """.split()
)
_MAY_END = ABBREVIATIONS - _TITLES - _COUNTED | frozenset("usw Ph.D B.Sc M.Sc D.Phil".split())
_STARTERS = frozenset(
    """
    The A An In On At As By For From With After Before When While If Since During Although Though
    Because Until Under He She It They We I You His Her Its Their Our My Your This That These Those
    There Here Such But And Or So Yet However Moreover Then Thus Also Both Each Many Most Some Other
    Another One No Not Now What Who Where Why How Is Are Was Were Do Does Did
    """.split()
)
_WORD_BEFORE = re.compile(r"(?:[^\W_]|[.'’])+\Z")
_DATE_BEFORE = re.compile(r"\d{4}\. ?\d{1,2}(?:\. ?\d{1,2})?\Z")
_WORD_AFTER = re.compile(r"[^\W\d_]{1,24}\.?")


class Span(NamedTuple):
    """A sentence and where it stands: `raw[start:end] == text`."""

    text: str
    start: int
    end: int


def split_sentences(text: str) -> list[Span]:
    """Sentences of raw text, without the white space around them; blank lines give none.

    >>> [s.text for s in split_sentences('Mr. Lee left. "Why?" she asked.')]
    ['Mr. Lee left.', '"Why?" she asked.']
    """
    spans = []
    offset = 0
    for line in text.splitlines(keepends=True):
        for start, end in _bounds(line):
            padded = line[start:end]
            sentence = padded.strip()
            if sentence:
                begin = offset + start + len(padded) - len(padded.lstrip())
                spans.append(Span(sentence, begin, begin + len(sentence)))
        offset += len(line)
    return spans


def _bounds(line: str) -> Iterator[tuple[int, int]]:
    """Where the sentences of one line start and end, white space included."""
    cased = any(c.isupper() for c in line)
    start = 0
    for m in _CANDIDATE.finditer(line):
        if m.end() < len(line) and _ends(line, start, m, cased):
            yield start, m.start("gap")
            start = m.end()
    yield start, len(line)


def _ends(line: str, start: int, m: re.Match[str], cased: bool) -> bool:
    """Does the candidate, which is not the line's last, end the sentence begun at `start`?"""
    stops, closers, following = m["stops"], m["closers"], line[m.end()]
    before = line[m.start() - 1] if m.start() > start else ""
    if following in _CONTINUERS or before in ("(", "[", "（"):
        return False
    if stops[-1] in _WIDE:
        if stops == "．" and before.isdigit() and following.isdigit():
            return False
        # 「…。」と言った: the particle after a quotation goes on with the sentence
        return not (closers and "ぁ" <= following <= "ん")
    if not m["gap"]:
        return "…" not in stops and _unspaced(before) and _unspaced(following)

    at = m.end()
    while at < min(len(line), m.end() + 4) and line[at] in _OPENERS:
        at += 1
    first = line[at] if at < len(line) else ""
    if first.islower() and cased:
        return False
    if stops != ".":
        return True

    tail = line[max(start, m.start() - _LOOKBACK) : m.start()]
    found = _WORD_BEFORE.search(tail)
    word = found[0].lstrip("'’.") if found else ""
    if word.replace(".", "").isdigit():
        listed = m.start() - start == len(word) <= 5  # "1. The first item"
        return not (listed or first.isdigit() or _DATE_BEFORE.search(tail))
    if word in _TITLES:
        return False
    if word in _COUNTED:
        return not first.isdigit()
    parts = word.split(".")
    initial = len(word) == 1 and word.isupper() and word != "I"
    dotted = len(parts) > 1 and all(len(part) == 1 and part.isalpha() for part in parts)
    if initial or dotted or word in _MAY_END:
        after = _WORD_AFTER.match(line, at)
        return after is not None and after[0] in _STARTERS
    return True


def _unspaced(c: str) -> bool:
    """Hangul, Han or kana: scripts whose writers often leave no space after a stop."""
    return "가" <= c <= "힣" or "぀" <= c <= "ヿ" or "㐀" <= c <= "鿿"
