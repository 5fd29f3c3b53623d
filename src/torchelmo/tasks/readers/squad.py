"""Questions in SQuAD v1.1's form: SQuAD itself, SQuADShifts.

Contexts are raw and are tokenised here. Answers are people's, as characters; where words are
coarser than an answer ("12-page" for "12"), the best word span can miss it, so words are also cut
at hyphens, dashes and slashes between letters or digits, as Clark & Gardner (2018) do.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import cast

from torchelmo.errors import InputError
from torchelmo.tasks.readers.examples import Answer, Question
from torchelmo.tasks.readers.source import open_source
from torchelmo.text.words import Token, Tokenizer, get_tokenizer

_Json = dict[str, object]
_JOINT = re.compile(r"(?<=\w)[-‐‑–—−~/](?=\w)")


def read_squad(
    path: str | os.PathLike[str], *, tokenizer: Tokenizer | None = None, cut: bool = True
) -> Iterator[Question]:
    """Read the questions, paragraph by paragraph; with `cut`, words are cut at inner hyphens."""
    source = open_source(path)
    split = tokenizer or get_tokenizer("words")
    try:
        data = json.loads(source.text())
    except json.JSONDecodeError as error:
        raise source.wrong(error.lineno, f"not JSON ({error.msg})") from None
    place = "data"
    try:
        for a, article in enumerate(_list(data, "data")):
            for p, paragraph in enumerate(_list(article, "paragraphs")):
                place = f"data[{a}].paragraphs[{p}]"
                context = _text(paragraph, "context")
                tokens = tokenise(context, split, cut=cut)
                for q, item in enumerate(_list(paragraph, "qas")):
                    place = f"data[{a}].paragraphs[{p}].qas[{q}]"
                    yield _question(item, context, tokens, split, cut)
    except InputError as error:
        raise InputError(f"{source.name}, {place}: {error}") from None


def tokenise(text: str, tokenizer: Tokenizer, *, cut: bool = True) -> list[Token]:
    """Return the tokens, cut at inner hyphens if told.

    >>> [t.text for t in tokenise("a 12-page list", get_tokenizer("words"))]
    ['a', '12', '-', 'page', 'list']
    """
    tokens = tokenizer(text)
    return [part for token in tokens for part in _pieces(token)] if cut else tokens


def _pieces(token: Token) -> Iterator[Token]:
    start = 0
    for joint in _JOINT.finditer(token.text):
        for a, b in ((start, joint.start()), joint.span()):
            yield Token(token.text[a:b], token.start + a, token.start + b)
        start = joint.end()
    yield Token(token.text[start:], token.start + start, token.end)


def _question(
    item: object, context: str, tokens: list[Token], split: Tokenizer, cut: bool
) -> Question:
    words = [token.text for token in tokenise(_text(item, "question"), split, cut=cut)]
    if cast(_Json, item).get("is_impossible"):
        raise InputError("a question without an answer (SQuAD 2.0), expected SQuAD 1.1")
    answers = []
    for entry in _list(item, "answers"):
        answer = Answer(_text(entry, "text"), _number(entry, "answer_start"))
        if not answer.text or context[answer.start : answer.end] != answer.text:
            raise InputError(
                f"the answer {answer.text[:40]!r} does not stand at character {answer.start} of "
                "its context"
            )
        answers.append(answer)
    return Question(
        id=_text(item, "id"),
        question=tuple(words),
        context=context,
        words=tuple(token.text for token in tokens),
        offsets=tuple((token.start, token.end) for token in tokens),
        answers=tuple(answers),
    )


def _get(value: object, key: str) -> object:
    if not isinstance(value, dict) or key not in value:
        raise InputError(f"expected an object with {key!r}")
    return value[key]


def _list(value: object, key: str) -> list[object]:
    found = _get(value, key)
    if not isinstance(found, list):
        raise InputError(f"{key!r} is not a list")
    return found


def _text(value: object, key: str) -> str:
    found = _get(value, key)
    if not isinstance(found, str):
        raise InputError(f"{key!r} is not a text")
    return found


def _number(value: object, key: str) -> int:
    found = _get(value, key)
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise InputError(f"{key!r} is not a place in the context")
    return found
