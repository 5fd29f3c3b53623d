"""Japanese words by MeCab (fugashi with unidic-lite, the extra `ja`), as slices of the raw text.

The tokens are UniDic's short units (行きました -> 行き|まし|た) with the surfaces MeCab leaves as
they are; an ideographic space separates like any other. The dictionary is always unidic-lite, even
where a larger one is installed, so that the same text gives the same tokens everywhere. Every line
is analysed alone. Text should be in NFC: MeCab has no entries for decomposed kana.
"""

import importlib
import os
import threading
from collections.abc import Iterator
from importlib.metadata import version
from typing import Protocol

from torchelmo.errors import MissingExtra
from torchelmo.text.words import Token, get_tokenizer, pieces, surface_tokens


class _Node(Protocol):
    surface: str


class _Tagger(Protocol):
    def __call__(self, text: str) -> list[_Node]: ...


class FugashiTokenizer:
    """`get_tokenizer("fugashi")`; the dictionary is loaded on first use.

    >>> FugashiTokenizer().words("学校に行きました。")
    ['学校', 'に', '行き', 'まし', 'た', '。']
    """

    name = "fugashi"

    def __init__(self) -> None:
        self._tagger: _Tagger | None = None
        self._lock = threading.Lock()

    @property
    def version(self) -> str:
        """Of the rules here, the analyser and its dictionary: the tokens depend on all three."""
        return f"1 fugashi-{version('fugashi')} unidic-lite-{version('unidic-lite')}"

    def __call__(self, text: str) -> list[Token]:
        """Tokens with offsets into `text`."""
        return surface_tokens(text, self._spans(text))

    def words(self, text: str) -> list[str]:
        """The tokens' texts alone."""
        return [token.text for token in self(text)]

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return get_tokenizer, (self.name,)

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        for offset, piece in pieces(text):
            with (
                self._lock
            ):  # a MeCab tagger serves one call at a time, and its nodes die with the next
                surfaces = [node.surface for node in (self._tagger or self._load())(piece)]
            end = 0
            for surface in surfaces:  # in order, with nothing but white space between them
                start = piece.find(surface, end)
                end = start + len(surface)
                yield offset + start, offset + end

    def _load(self) -> _Tagger:
        try:
            fugashi = importlib.import_module("fugashi")
            folder = importlib.import_module("unidic_lite").DICDIR
        except ImportError as e:
            raise MissingExtra(
                "Japanese tokenisation", package="fugashi and unidic-lite", extra="ja"
            ) from e
        tagger: _Tagger = fugashi.GenericTagger(
            f'-r "{os.path.join(folder, "mecabrc")}" -d "{folder}"'
        )
        self._tagger = tagger
        return tagger
