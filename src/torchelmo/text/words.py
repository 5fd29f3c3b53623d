"""Raw text to words, with offsets back into it.

A tokeniser turns one string into tokens that are slices of it: `raw[start:end] == text`, in order,
without overlap, and every character that is not white space belongs to exactly one token. White
space is what `str.isspace` says it is.

The default, `words`, is one regular expression applied to each white-space-separated chunk on its
own. Nothing is looked up across a space, so a chunk always gives the same tokens, and those of a
distinct chunk are computed once and remembered. docs/text.md has the rules and a table of examples:
they follow the Penn Treebank for English clitics (`do|n't`) and leave hyphenated words whole. The
originals took pretokenised text only; this file has no counterpart there.

Time is linear in the text: a rule that scans ahead either keeps what it scanned or stops after 64
characters.
"""

import difflib
import functools
import importlib.util
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple, Protocol
from unicodedata import category

import regex

from torchelmo.errors import InputError, MissingExtra

# Followed by a full stop these are one token, stop included. Words that often end a sentence ("no",
# "Sat", "Sun", "Ill", "Mass") are left out: a stop kept inside the last word of a sentence is the
# costlier mistake. Case counts.
ABBREVIATIONS = frozenset(
    """
    Mr Mrs Ms Messrs Mme Mlle Dr Drs Prof Profs St Ste Sr Jr Rev Fr Hon Gen Col Maj Capt Cmdr Lt Sgt
    Cpl Pvt Adm Gov Sen Rep Sens Reps Pres Supt Det Esq
    Inc Ltd Co Corp Cos Bros Mfg Dept Univ Assn Ave Blvd Rd Hwy Mt Mts Ft
    Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Mon Tue Tues Wed Thu Thur Thurs Fri
    Ala Ariz Calif Colo Conn Fla Kan Mich Minn Neb Nev Okla Tenn Tex Va Vt Wis Wyo
    Fig Figs Eq Eqs Sec Ch Vol Vols Nos Eds Vs Cf
    vs etc cf viz approx ca c v p pp vol vols eds dept fig figs al
    """.split()
)

# A remembered chunk costs about 160 bytes, so a tokeniser's memory stays near 20 MB; longer chunks
# (unsegmented scripts, URLs) seldom come twice.
_REMEMBERED_CHUNKS = 131_072
_REMEMBERED_LENGTH = 32


class Token(NamedTuple):
    """A word and where it stands: `raw[start:end] == text`."""

    text: str
    start: int
    end: int


class Tokenizer(Protocol):
    """What every tokeniser offers; `name` and `version` go into a model's config."""

    @property
    def name(self) -> str:
        """What `get_tokenizer` finds it by."""

    @property
    def version(self) -> str:
        """Changes whenever the same text may give other tokens."""

    def __call__(self, text: str) -> list[Token]:
        """Tokens with offsets into `text`."""

    def words(self, text: str) -> list[str]:
        """The tokens' texts alone, by the fastest way."""


_CHUNK = re.compile(r"\S+")  # in `re`, \s is str.isspace; in `regex` it is not


class WhitespaceTokenizer:
    """`str.split`: any run of Unicode white space separates, nothing else does.

    >>> WhitespaceTokenizer().words("It's  here.")
    ["It's", 'here.']
    """

    name = "whitespace"
    version = "1"

    def __call__(self, text: str) -> list[Token]:
        """Tokens with offsets into `text`."""
        return [Token(m[0], m.start(), m.end()) for m in _CHUNK.finditer(text)]

    def words(self, text: str) -> list[str]:
        """The tokens' texts alone."""
        return text.split()

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return get_tokenizer, (self.name,)


class CodepointTokenizer:
    """Each code point that is not white space is a token, for text without spaces between words.

    >>> CodepointTokenizer().words("猫 です")
    ['猫', 'で', 'す']
    """

    name = "codepoints"
    version = "1"

    def __call__(self, text: str) -> list[Token]:
        """Tokens with offsets into `text`."""
        return [Token(c, i, i + 1) for i, c in enumerate(text) if not c.isspace()]

    def words(self, text: str) -> list[str]:
        """The tokens' texts alone."""
        return list("".join(text.split()))

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return get_tokenizer, (self.name,)


class _Memo(dict[str, tuple[str, ...]]):
    """Chunk -> its tokens, filled as chunks are asked for; starts anew when full."""

    def __missing__(self, chunk: str) -> tuple[str, ...]:
        tokens = tuple(_pattern().findall(chunk))
        if len(chunk) <= _REMEMBERED_LENGTH:
            if len(self) >= _REMEMBERED_CHUNKS:
                self.clear()
            self[chunk] = tokens
        return tokens


class WordTokenizer:
    """The default for raw text: words, numbers and punctuation of any script.

    >>> WordTokenizer().words("She doesn't owe $1,234.5, e.g. to Mr. Lee.")
    ['She', 'does', "n't", 'owe', '$', '1,234.5', ',', 'e.g.', 'to', 'Mr.', 'Lee', '.']
    """

    name = "words"
    version = "1"

    def __init__(self) -> None:
        self._memo = _Memo()

    def __call__(self, text: str) -> list[Token]:
        """Tokens with offsets into `text`."""
        tokens = []
        for chunk in _CHUNK.finditer(text):
            end = chunk.start()
            for word in self._memo[chunk[0]]:  # they tile the chunk
                start, end = end, end + len(word)
                tokens.append(Token(word, start, end))
        return tokens

    def words(self, text: str) -> list[str]:
        """The tokens' texts alone."""
        return list(chain.from_iterable(map(self._memo.__getitem__, text.split())))

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return get_tokenizer, (self.name,)


@functools.cache
def _pattern() -> "regex.Pattern[str]":
    """The rules of `words`, tried in this order at each place of a chunk; compiled on first use."""
    # A character of a word. Han and kana have rules of their own; the zero-width space separates.
    kana_marks = r"ー\uff70\uff9e\uff9f"
    not_word = rf"[\p{{Han}}\p{{Hiragana}}\p{{Katakana}}{kana_marks}\u200b]"
    w = rf"[[\p{{L}}\p{{M}}\p{{N}}\p{{Cf}}_]--{not_word}]"
    cased = r"[\p{Lu}\p{Ll}]"
    clitic = rf"(?:[sS]|[mM]|[dD]|[rR][eE]|[vV][eE]|[lL][lL])(?!{w})"
    not_in_word = rf"(?<!{w})"
    # What may stand inside a word, between two of its characters.
    joiner = rf"""(?:
          [-‐‑]
        | ['’](?!{clitic})
        | (?<=\p{{Nd}})[.,:/٫٬](?=\p{{Nd}})
        | (?<={cased}|\p{{Nd}})\.(?=\p{{Ll}})
        | (?<=\p{{Lu}})&(?=\p{{Lu}})
        | (?<=[lL])·(?=[lL])
        | (?<=\p{{Hebrew}})"(?=\p{{Hebrew}})
    )"""
    word = rf"{w}++(?:{joiner}{w}++)*+"
    url_plain = r"[A-Za-z0-9\-_~/#%&+=@$*|^]"
    url_stop = r"[.,;:!?'()\[\]]"  # part of a URL only when more of it follows
    emoji = r"\p{Extended_Pictographic}[\p{M}\p{Emoji_Modifier}\U000e0020-\U000e007f]*+"
    verbs = """
        ai are ca could dare did do does had has have is may might must need ought sha should used
        was were wo would
    """.split()
    rules = [
        # The commonest cases, where the later rules would say the same: three times as fast.
        r"[A-Za-z]++(?![^,;?!\")\]])",
        r"[가-힣]{2,}+(?![^.,;:?!\")\]])",
        r"[,?!\"()\]\p{Han}、。「」](?!\p{M})",
        r"(?:(?i:https?|ftp)://|(?i:www)\.)"
        rf"(?:{url_plain}|\({url_plain}++\)|{url_stop}++(?={url_plain}))++",
        r"[A-Za-z0-9][A-Za-z0-9._%+\-]{0,63}+"
        r"@[A-Za-z0-9][A-Za-z0-9\-]{0,62}+(?:\.[A-Za-z0-9][A-Za-z0-9\-]{0,62}+)++",
        r"\p{Regional_Indicator}{2}",
        rf"{emoji}(?:\u200d{emoji})*+",
        rf"{not_in_word}(?:[:;=]-?[()\[\]DPpOo/\\|*](?![/]|{w})|<3(?!{w}))",
        rf"(?<![^\p{{L}}\p{{M}}\p{{N}}_.)\]])['’]{clitic}",
        rf"[nN]['’][tT](?!{w})",
        rf"(?i:{'|'.join(verbs)})(?=[nN]['’][tT](?!{w}))",
        rf"{not_in_word}['’](?:(?i:tis|twas|em|til)|\p{{Nd}}{{2}}s?)(?!{w})",
        r"(?:Ph\.D|[BM]\.Sc|D\.Phil)\.",
        # U.S. / e.g. / J.R.R., also before a hyphen; in J.R.Ewing it gives back the E, no more
        rf"{cased}(?:\.{cased})+(?!{w})(?:\.(?!\.))?(?:-{w}++)*+",
        rf"(?:{'|'.join(sorted(ABBREVIATIONS, key=len, reverse=True))}|(?!I)\p{{Lu}})\.(?!\.)",
        rf"{not_in_word}[@#][\p{{L}}_][\p{{L}}\p{{M}}\p{{N}}_]*+",
        rf"(?:(?<![^(\[])[-+−]\.?|(?<![^(\[$€£¥])\.)(?=\p{{Nd}}){word}",
        word,
        r"\p{Hiragana}[\p{Hiragana}ー\p{M}]*+",
        rf"[\p{{Katakana}}{kana_marks}][\p{{Katakana}}{kana_marks}\p{{M}}]*+",
        r"``|''",
        "|".join(rf"{regex.escape(c)}{{2,}}+" for c in "-=*~#+^<>|/\\.…—–―"),
        r"(?s:.)\p{M}*+",  # Han, punctuation, symbols: one by one
    ]
    return regex.compile("(?V1x)" + "\n|".join(rules))


# The analysers are C and C++: NUL ends their strings and a lone surrogate is no character to them.
_UNREADABLE = re.compile("[\0\ud800-\udfff]")


def pieces(text: str, limit: int = 1000) -> Iterator[tuple[int, str]]:
    """(offset, piece) of the lines of `text`, for a morphological analyser.

    A piece has at most `limit` characters, because the analysers' time grows with the square of an
    unbroken run; a longer line is cut after its last space or 。 within the limit. What an analyser
    cannot read is replaced by U+FFFD, one for one.
    """
    offset = 0
    for line in _UNREADABLE.sub("\ufffd", text).splitlines(keepends=True):
        start = 0
        while start < len(line):
            end = start + limit
            if end < len(line):
                end = max(line.rfind(" ", start, end), line.rfind("。", start, end)) + 1 or end
            yield offset + start, line[start:end]
            start = end
        offset += len(line)


def surface_tokens(text: str, spans: Iterable[tuple[int, int]]) -> list[Token]:
    """Tokens that tile `text`, from an analyser's (start, end) spans.

    Spans that share a character become one token, empty ones vanish, what no span covers is kept,
    and no token holds white space. A combining mark, a skin tone and the parts of a joined emoji
    stay with what they follow.

    >>> [token.text for token in surface_tokens("했다 !", [(0, 1), (0, 1), (1, 2)])]
    ['했', '다', '!']
    """
    tokens = []
    for low, high in _tiles(text, spans):
        tokens += [Token(m[0], m.start(), m.end()) for m in _CHUNK.finditer(text, low, high)]
    return tokens


def _tiles(text: str, spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    low = high = 0  # the tile being grown
    for start, end in sorted(spans):
        if start >= end:
            continue
        if start > high or (start == high and not _continues(text, start)):
            yield low, high
            yield high, start
            low = start
        high = max(high, end)
    yield low, high
    yield high, len(text)


def _continues(text: str, i: int) -> bool:
    c = text[i]
    return (
        category(c).startswith("M")
        or c == "\u200d"
        or "\U0001f3fb" <= c <= "\U0001f3ff"
        or text[i - 1 : i] == "\u200d"
    )


_EXTRAS = {
    "kiwi": ("Korean tokenisation", ("kiwipiepy",), "ko"),
    "fugashi": ("Japanese tokenisation", ("fugashi", "unidic_lite"), "ja"),
}
NAMES = ("words", "whitespace", "codepoints", "kiwi", "fugashi")


@functools.cache
def get_tokenizer(name: str) -> Tokenizer:
    """The tokeniser of that name, one object a process.

    >>> get_tokenizer("words").words("Hi!")
    ['Hi', '!']
    """
    if name == "words":
        return WordTokenizer()
    if name == "whitespace":
        return WhitespaceTokenizer()
    if name == "codepoints":
        return CodepointTokenizer()
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.0)[0]
        raise InputError(
            f"no tokeniser is called {name!r}: did you mean {near!r}? There are {', '.join(NAMES)}."
        )
    what, packages, extra = _EXTRAS[name]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(what, package=package.replace("_", "-"), extra=extra)
    if name == "kiwi":
        from torchelmo.text.korean import KiwiTokenizer

        return KiwiTokenizer()
    from torchelmo.text.japanese import FugashiTokenizer

    return FugashiTokenizer()
