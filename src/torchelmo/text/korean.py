"""Korean morphemes by kiwipiepy (the extra `ko`), as slices of the raw text.

Kiwi gives dictionary forms: 했다 is 하 + 었 + 다, where 하 and 었 both come from the syllable 했.
A word vector needs a place in the text, so this tokeniser keeps the surface: morphemes whose spans
share a character become one token (했다 -> 했|다, 아름다운 -> 아름다운), morphemes that left no
trace in the text (the 이 of 뭐야) vanish, and whatever Kiwi skips is a token of its own. Every line
is analysed alone. Text should be in NFC: Kiwi leaves decomposed Hangul unsplit.
"""

import importlib
import threading
from importlib.metadata import version
from typing import Protocol

from torchelmo.errors import MissingExtra
from torchelmo.text.words import Token, get_tokenizer, pieces, surface_tokens


class _Morpheme(Protocol):
    start: int
    len: int


class _Kiwi(Protocol):
    def tokenize(self, text: str) -> list[_Morpheme]: ...


class KiwiTokenizer:
    """`get_tokenizer("kiwi")`; the analyser is loaded on first use.

    >>> KiwiTokenizer().words("학교에 갔어요.")
    ['학교', '에', '갔', '어요', '.']
    """

    name = "kiwi"

    def __init__(self) -> None:
        self._kiwi: _Kiwi | None = None
        self._lock = threading.Lock()

    @property
    def version(self) -> str:
        """Of the rules here, the analyser and its model: the tokens depend on all three."""
        return f"1 kiwipiepy-{version('kiwipiepy')} model-{version('kiwipiepy_model')}"

    def __call__(self, text: str) -> list[Token]:
        """Tokens with offsets into `text`."""
        kiwi = self._kiwi or self._load()
        spans = [
            (offset + m.start, offset + m.start + m.len)
            for offset, piece in pieces(text)
            for m in kiwi.tokenize(piece)
        ]
        return surface_tokens(text, spans)

    def words(self, text: str) -> list[str]:
        """The tokens' texts alone."""
        return [token.text for token in self(text)]

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return get_tokenizer, (self.name,)

    def _load(self) -> _Kiwi:
        with self._lock:
            if self._kiwi is None:
                try:
                    module = importlib.import_module("kiwipiepy")
                except ImportError as e:
                    raise MissingExtra(
                        "Korean tokenisation", package="kiwipiepy", extra="ko"
                    ) from e
                self._kiwi = module.Kiwi(num_workers=1)
            return self._kiwi
