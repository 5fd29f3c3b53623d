"""`make demo`: what a trained ELMo knows of a few sentences, in one screen.

With the packaged en-small: ambiguous words and how alike they are by layer, who is nearest, a gap
filled from both sides; with ko-small a Korean word too.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torchelmo.analysis import senses
from torchelmo.analysis.nearest import unit
from torchelmo.analysis.neighbours_table import embed, locate
from torchelmo.analysis.senses import Example
from torchelmo.elmo import Elmo
from torchelmo.errors import MissingExtra
from torchelmo.formats import load

ENGLISH, KOREAN = "en-small", "ko-small"
Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Trio:
    """A word in a sentence, in one that means something else, and in one that means the same."""

    word: str
    asked: str
    other: str
    same: str


GIFT = Trio(
    "gift",
    "My watch was a birthday *gift*.",
    "He has a *gift* for music.",
    "The scarf was a *gift* from my aunt.",
)
BANK = Trio(
    "bank",
    "She took her savings to the *bank*.",
    "We sat on the *bank* of the river.",
    "The *bank* gave him a loan for the house.",
)
BAE = Trio(
    "배",
    "우리는 *배*를 타고 섬에 갔다.",
    "동생이 달콤한 *배*를 깎아 먹었다.",
    "어부들은 *배*를 몰고 바다로 나갔다.",  # 를 each time: a particle alone changes a vector
)
KNOWN = ("birthday gift", "gift for music")  # what nearly repeats the question finds nothing
GAPS = ("She drank a cup of ___ before breakfast.", "He was born in ___ and studied in London.")


def example(word: str, marked: str) -> Example:
    """Return a sentence whose word stands between asterisks.

    >>> example("gift", "A *gift*!").text
    'A gift!'
    """
    (found,) = senses.parse([senses.HEADER, f"{word}\t-\t{marked}"])
    return found


def vectors(elmo: Elmo, one: Example) -> Array:
    """Return the vectors of a sentence's marked word, (L+1, D), of length one."""
    tokens = elmo.tokenize(one.text)
    (layers,) = elmo.layers([[token.text for token in tokens]])
    return unit(layers[:, locate(tokens, one)])


def compare(elmo: Elmo, trio: Trio) -> list[str]:
    """Return lines: how alike a word is to itself in other sentences, by layer."""
    ask, other, same = (example(trio.word, s) for s in (trio.asked, trio.other, trio.same))
    mine = vectors(elmo, ask)
    names = ["spelling", *(f"layer {n}" for n in range(1, len(mine)))]
    lines = [
        f'How alike is "{trio.word}" in "{ask.text}" and in ...',
        " " * 4 + "".join(f"{name:>10}" for name in names),
    ]
    for one in (other, same):
        cosines = (mine * vectors(elmo, one)).sum(axis=1)
        lines.append(" " * 4 + "".join(f"{c:10.3f}" for c in cosines) + f"   {one.text}")
    return lines


def nearest(elmo: Elmo, trio: Trio, corpus: Sequence[Example], count: int = 3) -> list[str]:
    """Return lines: which tokens of a corpus are nearest to a word, by layer, with what is around
    them; each surrounding once.
    """
    mine, context = vectors(elmo, example(trio.word, trio.other)), embed(elmo, corpus)
    lines = [f'Who is nearest to "{trio.word}" in "{example(trio.word, trio.other).text}"?']
    for layer, query in enumerate(mine):
        scores = context.vectors[layer] @ query
        found: list[str] = []
        for place in np.argsort(-scores, kind="stable"):
            text = around(context.tokens, context.sentence, int(place), 0 if layer == 0 else 2)
            if text not in found:
                found.append(text)
            if len(found) == (2 * count if layer == 0 else count):
                break
        lines.append(f"    {'spelling' if layer == 0 else f'layer {layer}':9}" + "; ".join(found))
    return lines


def around(tokens: Sequence[str], sentence: npt.NDArray[np.int64], place: int, width: int) -> str:
    """Return a token between brackets among its neighbours; without any, the token alone.

    >>> around(["He", "has", "a", "gift", "A", "bat"], np.array([0, 0, 0, 0, 1, 1]), 3, 2)
    'has a [gift]'
    """
    if not width:
        return tokens[place]
    places = range(max(place - width, 0), min(place + width + 1, len(tokens)))
    words = [
        f"[{tokens[i]}]" if i == place else tokens[i]
        for i in places
        if sentence[i] == sentence[place]
    ]
    return " ".join(words)


def fill(elmo: Elmo, sentence: str) -> str:
    """Return a line: the words that fit a gap best, judged from both sides."""
    found = (one.word for one in elmo.substitutes(sentence, count=50))
    words = [word for word in found if any(map(str.isalnum, word))]  # a comma often fits, too
    return f"    {sentence:50} {', '.join(words[:5])}"


def korean() -> list[str]:
    """Return lines about a Korean word, or why there are none."""
    elmo = Elmo.from_pretrained(load.packaged()[KOREAN], device="cpu")
    try:
        lines = compare(elmo, BAE)
    except MissingExtra as error:
        return [f"Korean ({KOREAN}): {error}"]
    title, *rest = lines
    return [
        f"{KOREAN}, from the package. 배 is a boat, then a pear, then a boat again.",
        title,
        *rest,
    ]


def main() -> None:
    """Run the demonstration."""
    # Korean and quotation marks on a console of another code page become "?", not an error.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    elmo = Elmo.from_pretrained(load.packaged()[ENGLISH], device="cpu")
    size = f"{sum(p.numel() for p in elmo.bilm.parameters()) / 1e6:.1f} M parameters"
    print(f"{ENGLISH}, {size}, from the package: nothing is downloaded.\n")
    for trio in (GIFT, BANK):
        print("\n".join(compare(elmo, trio)) + "\n")
    corpus = [one for one in senses.read("en") if not any(known in one.text for known in KNOWN)]
    print("\n".join(nearest(elmo, GIFT, corpus)) + "\n")
    print("Which word fits, judged from the left and from the right?")
    print("\n".join(fill(elmo, sentence) for sentence in GAPS) + "\n")
    print("\n".join(korean()) + "\n")
    print("Your own files:  torchelmo embed sentences.txt -o vectors.hdf5")


if __name__ == "__main__":
    main()
