"""What a short training is judged by: bits per character of held-out text, and probes of sense.

Bits per character of models with other words compare only if unknown words are paid for: a model
that calls every fourth word <UNK> predicts little. Three parts are added up:

1. the model's own bits: <UNK> as <UNK>, the mean of both directions;
2. bits to spell each unknown word: letters in threes, learned from the training words outside the
   vocabulary, and backed off to an alphabet that all variants share;
3. bits to say where spaces stand, given the tokens: a figure of the list (`spacing`), by variant.

Text that a tokeniser cut where it is installed is read where it is not (`Cut`): lines in which
\\x1f, which is white space to Python, marks borders of tokens without a space.
"""

from __future__ import annotations

import lzma
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from torchelmo.analysis.embedders import ModelEmbedder
from torchelmo.analysis.homographs import Homographs
from torchelmo.analysis.results import Values, run
from torchelmo.analysis.wic import Wic
from torchelmo.apps.cli.perplexity import read
from torchelmo.elmo import Elmo
from torchelmo.perplexity import WordText, text_perplexity
from torchelmo.pretrain.corpus import Corpus
from torchelmo.scoring import perplexity
from torchelmo.text.vocabulary import Vocabulary
from torchelmo.text.words import Token, Tokenizer

BORDER = "\x1f"
ORDER = 3  # letters that the speller sees together
SPELT = 200_000  # words that it learns from, at most


def mark(text: str, tokenizer: Tokenizer) -> str:
    """Mark the borders that have no space.

    >>> from torchelmo.text.words import get_tokenizer
    >>> mark("Herons wade.", get_tokenizer("words"))
    'Herons wade\\x1f.'
    """
    parts, at = [], 0
    for token in tokenizer(text):
        parts += [text[at : token.start] or BORDER * bool(at), token.text]
        at = token.end
    return "".join(parts) + text[at:]


class Cut:
    """A tokeniser that looks up how another one cut a text elsewhere."""

    def __init__(self, lines: Iterable[str], name: str, version: str) -> None:
        """Take marked lines; a text that none of them spells is a KeyError."""
        self.name, self.version = name, version
        self.texts = {line.replace(BORDER, ""): line for line in lines}

    @classmethod
    def read(cls, path: Path, name: str, version: str) -> Cut:
        """Read marked lines, packed or not."""
        opened = lzma.open if path.suffix == ".xz" else open
        with opened(path, "rt", encoding="utf-8", newline="\n") as file:
            return cls((line.removesuffix("\n") for line in file), name, version)

    def __call__(self, text: str) -> list[Token]:
        tokens, borders = [], 0
        for match in re.finditer(rf"[^\s{BORDER}]+|{BORDER}", self.texts[text]):
            if match[0] == BORDER:
                borders += 1
            else:
                tokens.append(Token(match[0], match.start() - borders, match.end() - borders))
        return tokens

    def words(self, text: str) -> list[str]:
        """Return the tokens' texts."""
        return self.texts[text].split()


class Speller:
    """Bits to spell a word: Witten-Bell interpolation of letters in threes down to all alike."""

    def __init__(self, words: Iterable[str], alphabet: int) -> None:
        """Learn from words; `alphabet` is how many letters there are, known or not."""
        self.letters = alphabet + 1  # and the end of a word
        self.counts: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()  # by what stands before
        self.kinds: Counter[str] = Counter()
        for word in words:
            for gram in self._grams(word):
                if not self.counts[gram]:
                    self.kinds[gram[:-1]] += 1
                self.counts[gram] += 1
                self.totals[gram[:-1]] += 1

    def __call__(self, word: str) -> float:
        bits, share = 0.0, 1 / self.letters
        for gram in self._grams(word):  # for each letter from the shortest gram to the longest
            share = share if len(gram) > 1 else 1 / self.letters
            total, kinds = self.totals[gram[:-1]], self.kinds[gram[:-1]]
            if total:
                share = (self.counts[gram] + kinds * share) / (total + kinds)
            if len(gram) == ORDER:
                bits -= math.log2(share)
        return bits

    @staticmethod
    def _grams(word: str) -> Iterable[str]:
        letters = "\x02" * (ORDER - 1) + word + "\x03"
        for end in range(ORDER, len(letters) + 1):
            for size in range(1, ORDER + 1):
                yield letters[end - size : end]


def outside(corpus: Corpus) -> list[str]:
    """Return words of the training text that the vocabulary lacks, evenly chosen."""
    with (corpus.folder / "words.txt").open(encoding="utf-8", newline="\n") as file:
        words = [line[:-1] for n, line in enumerate(file) if n >= corpus.vocabulary_size]
    return words[:: max(len(words) // SPELT, 1)]


def spelling(text: WordText, vocabulary: Vocabulary, speller: Speller) -> float:
    """Return the bits that all unknown words of a text take."""
    numbers, often = vocabulary.ids(text.table), Counter(text.tokens.tolist())
    return sum(
        often[n + 2] * speller(word)  # a text's numbers begin after the boundaries
        for n, word in enumerate(text.table)
        if numbers[n] == vocabulary.unknown
    )


def texts(
    elmo: Elmo, files: Mapping[str, Path], speller: Speller, spacing: Mapping[str, float]
) -> Values:
    """Return how well a model predicts raw texts, by name, read on and on and from a cold start."""
    assert elmo.softmax is not None and elmo.vocabulary is not None
    parts, out = (elmo.encoder, elmo.softmax, elmo.vocabulary), {}
    for name, path in files.items():
        text = read(path, elmo.tokenizer, blank=False)
        table, tokens, ends = text.table, text.tokens, text.sentences
        sentences = [[table[i - 2] for i in tokens[begin:end]] for begin, end in pairwise(ends)]
        warm, cold = text_perplexity(*parts, text), perplexity(*parts, sentences)
        added = spelling(text, elmo.vocabulary, speller) / warm.characters
        found: Values = {
            "characters": warm.characters,
            "words": warm.words,
            "tokens": warm.tokens,
            "sentences": warm.sentences,
            "unknown_percent": 100 * warm.unknown / (warm.tokens - warm.sentences),
            "spelling": added,
            "spacing": spacing.get(name, 0.0),
        }
        for kind, score in (("warm", warm), ("cold", cold)):
            # Both in characters of the same raw text.
            bits = score.bits_per_character * score.characters / warm.characters
            found[kind] = {
                "perplexity": score.perplexity,
                "forward": score.forward,
                "backward": score.backward,
                "bits_per_character": bits,
                "bits_per_character_spelt": bits + added + found["spacing"],
            }
        out[name] = found
    return out


def probes(elmo: Elmo, files: Mapping[str, Path], most: int | None = None) -> Values:
    """Return WiC and homographs by layer, test parts left alone; `most` cuts them short."""
    out, embedder = {}, ModelEmbedder(elmo)
    for name, path in files.items():
        probe: Wic | Homographs
        if name == "wic":
            wic = Wic.read(path, dev=True)
            probe = Wic(wic.name, wic.tune[:most], wic.count[:most], wic.part)
        else:
            probe = Homographs(Homographs.read(path, dev=True).examples[:most])
        out[name] = {**run(probe, embedder), "data": probe.describe()}
    return out


def unknown_by_size(ids: Sequence[int], sizes: Sequence[int]) -> dict[str, float]:
    """Return the share of words outside other vocabularies: ids are ranks, whatever the size.

    >>> unknown_by_size([3, 4, 2500, 3999], [3000, 4000])
    {'3000': 25.0, '4000': 0.0}
    """
    return {
        str(size): round(100 * sum(one >= size for one in ids) / max(len(ids), 1), 2)
        for size in sizes
    }
