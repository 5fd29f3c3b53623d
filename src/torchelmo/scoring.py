"""What the language models say: probabilities of words, perplexity, the next word, substitutes.

At each position the forward half of the top layer predicts the word to its right, the backward half
the word to its left, both through one softmax over the vocabulary. A sentence of n words is n + 1
predictions in each direction: forward its words and `</S>`, backward `<S>` and its words. A word
that the vocabulary lacks is scored as `<UNK>`, though it is read by its own spelling. Logarithms
are natural.

Every sentence starts from a zero state here. Text that is read on and on, as in training and in
bilm-tf's test program, is scored by `torchelmo.perplexity`.

The softmax is computed in full, a piece of the vocabulary at a time: memory is that of one piece
of its logits, whatever the vocabulary.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchelmo.encoder import Encoder
from torchelmo.errors import InputError
from torchelmo.nn.softmax import AnySoftmax
from torchelmo.text.vocabulary import Vocabulary

Array = npt.NDArray[np.float32]

CPU_PIECE, GPU_PIECE = 1 << 20, 1 << 25  # logits held at a time: 4 MB stay in cache; few launches
ROWS = 1024  # predictions for which the softmax's weights are read once
WINDOW = 1024  # sentences in hand at a time
GAP = "___"


@dataclass(frozen=True)
class SentenceScore:
    """The log probabilities of one sentence of n words, in the order of the text."""

    forward: Array  # (n+1,): w1 ... wn and </S>, each given all before it
    backward: Array  # (n+1,): <S> and w1 ... wn, each given all after it
    unknown: int  # how many of the n words were scored as <UNK>

    @property
    def forward_sum(self) -> float:
        """The log probability of the sentence, read from the left."""
        return float(self.forward.sum(dtype=np.float64))

    @property
    def backward_sum(self) -> float:
        """The log probability of the sentence, read from the right."""
        return float(self.backward.sum(dtype=np.float64))


@dataclass(frozen=True)
class Perplexity:
    """How well both language models predict a text.

    Models with the same tokens and vocabulary are compared by `perplexity`, models with other
    tokens by `bits_per_character` or `perplexity_per_word`: these share out the same nats, the mean
    of the directions, among what the raw text has, however it was tokenised.
    """

    forward: float  # exp of the mean negative log probability of a token
    backward: float
    perplexity: float  # the geometric mean of the two
    tokens: int  # predictions in each direction: the words and one boundary a sentence
    unknown: int  # how many of them were charged as <UNK>
    vocabulary: int
    sentences: int
    words: int  # of the raw text, separated by white space
    characters: int  # code points of the raw text, line breaks not counted
    perplexity_per_word: float
    bits_per_character: float

    @classmethod
    def from_nats(
        cls,
        forward: float,
        backward: float,
        *,
        tokens: int,
        unknown: int,
        vocabulary: int,
        sentences: int,
        words: int,
        characters: int,
        dropped: int = 0,
    ) -> Perplexity:
        """Make one from the negative log probabilities of all tokens, summed for each direction.

        `dropped` tokens of the text that were not read are taken to be as hard as the others.
        """
        both = (forward + backward) / 2
        whole = both * (tokens + dropped) / tokens
        return cls(
            forward=_exp(forward / tokens),
            backward=_exp(backward / tokens),
            perplexity=_exp(both / tokens),
            tokens=tokens,
            unknown=unknown,
            vocabulary=vocabulary,
            sentences=sentences,
            words=words,
            characters=characters,
            perplexity_per_word=_exp(whole / words) if words else math.inf,
            bits_per_character=whole / math.log(2) / characters if characters else math.inf,
        )


class Prediction(NamedTuple):
    """A word and its log probability among the whole vocabulary."""

    word: str
    score: float


class Substitute(NamedTuple):
    """A word for a gap: `score` is `forward` (given the left side) plus `backward` (the right)."""

    word: str
    score: float
    forward: float
    backward: float


def log_probabilities(
    encoder: Encoder,
    softmax: AnySoftmax | None,
    vocabulary: Vocabulary | None,
    sentences: Iterable[Sequence[str]],
    *,
    batch_tokens: int | None = None,
    piece: int | None = None,
) -> list[SentenceScore]:
    """Score sentences, each by itself, and return one score a sentence, in order.

    `batch_tokens` bounds a batch of the biLM, `piece` how many logits are held at a time (None: by
    device); neither changes a score beyond rounding.
    """
    return list(_scores(encoder, softmax, vocabulary, sentences, batch_tokens, piece))


def perplexity(
    encoder: Encoder,
    softmax: AnySoftmax | None,
    vocabulary: Vocabulary | None,
    sentences: Iterable[Sequence[str]],
    *,
    raw: Iterable[str] | None = None,
    batch_tokens: int | None = None,
    piece: int | None = None,
) -> Perplexity:
    """Return the perplexity of sentences, each from a zero state; they may be a long stream.

    `raw` is what the sentences were made of, to count its words and characters; without it they are
    taken to be their words joined by spaces.
    """
    count = words = characters = 0

    def counted(lines: Iterable[Sequence[str]]) -> Iterator[Sequence[str]]:
        nonlocal count, words, characters
        for line in lines:
            count += 1
            words += len(line)
            characters += max(sum(map(len, line)) + len(line) - 1, 0)
            yield line

    forward = backward = 0.0
    tokens = unknown = 0
    for score in _scores(encoder, softmax, vocabulary, counted(sentences), batch_tokens, piece):
        forward, backward = forward - score.forward_sum, backward - score.backward_sum
        tokens, unknown = tokens + len(score.forward), unknown + score.unknown
    if not count:
        raise InputError("no sentence was given: perplexity needs at least one")
    if raw is not None:
        words = characters = 0
        for text in raw:
            words, characters = words + len(text.split()), characters + raw_characters(text)
    return Perplexity.from_nats(
        forward,
        backward,
        tokens=tokens,
        unknown=unknown,
        vocabulary=ready(softmax, vocabulary)[0].vocabulary,
        sentences=count,
        words=words,
        characters=characters,
    )


def raw_characters(text: str) -> int:
    r"""Return how many code points a raw text has, line breaks not counted.

    >>> raw_characters("두 줄\r\nof text\n")
    10
    """
    return len(text) - text.count("\n") - text.count("\r")


def next_words(
    encoder: Encoder,
    softmax: AnySoftmax | None,
    vocabulary: Vocabulary | None,
    words: Sequence[str],
    count: int = 10,
) -> list[Prediction]:
    """Return the likeliest words after the first words of a sentence, best first.

    `</S>` among them says that the sentence may end here; `<S>` and `<UNK>` are left out.
    """
    softmax, vocabulary = ready(softmax, vocabulary)
    forward, _ = top_halves(encoder, words)
    banned = [vocabulary.begin, vocabulary.unknown]
    ids, logs = likeliest(softmax, forward[-2:-1, None], count, banned)
    return [Prediction(vocabulary.word(i), log) for i, log in zip(ids[0], logs[0][0], strict=True)]


def previous_words(
    encoder: Encoder,
    softmax: AnySoftmax | None,
    vocabulary: Vocabulary | None,
    words: Sequence[str],
    count: int = 10,
) -> list[Prediction]:
    """Return the likeliest words before the last words of a sentence, best first.

    `<S>` among them says that the sentence may begin here; `</S>` and `<UNK>` are left out.
    """
    softmax, vocabulary = ready(softmax, vocabulary)
    _, backward = top_halves(encoder, words)
    banned = [vocabulary.end, vocabulary.unknown]
    ids, logs = likeliest(softmax, backward[1:2, None], count, banned)
    return [Prediction(vocabulary.word(i), log) for i, log in zip(ids[0], logs[0][0], strict=True)]


def substitutes(
    encoder: Encoder,
    softmax: AnySoftmax | None,
    vocabulary: Vocabulary | None,
    words: Sequence[str],
    position: int,
    count: int = 10,
) -> list[Substitute]:
    """Return the words that fit best at a position, whatever stands there now, best first.

    The forward model knows the left side alone and the backward model the right side alone; their
    log probabilities are added. `<S>`, `</S>` and `<UNK>` are left out.
    """
    softmax, vocabulary = ready(softmax, vocabulary)
    if not 0 <= position < len(words):
        raise InputError(f"position {position} was given for a sentence of {len(words)} words")
    forward, backward = top_halves(encoder, words)
    # Row 0 is <S>: the gap is row position + 1, and neither of its neighbours has read it.
    sides = torch.stack([forward[position], backward[position + 2]])  # (2, P)
    banned = [vocabulary.begin, vocabulary.end, vocabulary.unknown]
    ids, logs = likeliest(softmax, sides[None], count, banned)
    return [
        Substitute(vocabulary.word(i), left + right, left, right)
        for i, left, right in zip(ids[0], *logs[0], strict=True)
    ]


def around_gap(sentence: str | Sequence[str]) -> tuple[str | list[str], str | list[str]]:
    """Return what stands before and after the one gap, `___`, of a text or of a list of words.

    >>> around_gap("He has a ___ for music")
    ('He has a ', ' for music')
    """
    if isinstance(sentence, str):
        parts: list[str] | list[list[str]] = re.split(f"{GAP}_*", sentence)
    else:
        places = [-1, *(i for i, w in enumerate(sentence) if w == GAP), len(sentence)]
        parts = [list(sentence[a + 1 : b]) for a, b in itertools.pairwise(places)]
    if len(parts) != 2:
        raise InputError(
            f"the sentence {sentence!r} has {len(parts) - 1} gaps: write {GAP} where the word "
            "goes, once, or give its position"
        )
    return parts[0], parts[1]


def ready(
    softmax: AnySoftmax | None, vocabulary: Vocabulary | None
) -> tuple[AnySoftmax, Vocabulary]:
    """Return both, or say which file the model lacks."""
    if softmax is None:
        raise InputError(
            "this model has no softmax, so it cannot score words: give its file "
            "(softmax.safetensors in a model's folder, or softmax=, --softmax an hdf5 of "
            "softmax/W and softmax/b)"
        )
    if vocabulary is None:
        raise InputError(
            "this model has no vocabulary, so it cannot score words: give its file "
            "(vocab.txt in a model's folder, or vocabulary=, --vocabulary)"
        )
    vocabulary.require_specials()
    rows = softmax.vocabulary
    if rows != len(vocabulary):
        raise InputError(
            f"the softmax has {rows} rows and the vocabulary {len(vocabulary)} words: "
            "give the two files of one model"
        )
    return softmax, vocabulary


@torch.no_grad()
def likeliest(
    softmax: AnySoftmax,
    hidden: Tensor,
    count: int,
    banned: Sequence[int],
    *,
    piece: int | None = None,
) -> tuple[list[list[int]], list[list[list[float]]]]:
    """Return the best words of each of G questions, best first, without those `banned`.

    A question (of `hidden`, (G, R, P)) is R hidden vectors that judge one word together: the words
    with the largest sum of R log probabilities are taken. Gives ids (G, k) and logs (G, R, k).
    """
    if count < 1:
        raise InputError(f"{count} words were asked for: ask for at least one")
    count = min(count, softmax.vocabulary - len(set(banned)))
    out_ids: list[list[int]] = []
    out_logs: list[list[list[float]]] = []
    for rows in hidden.split(max(ROWS // hidden.shape[1], 1)):
        questions, judges, width = rows.shape
        flat = rows.reshape(-1, width)  # (G*R, P)
        total = flat.new_full((len(flat),), -torch.inf, dtype=torch.float32)  # log of the sum
        best, logs = total.new_empty(questions, 0), total.new_empty(questions, judges, 0)
        ids = torch.empty(questions, 0, dtype=torch.long, device=rows.device)
        for start, flat_logits in softmax.pieces(flat, _piece(flat, piece)):
            total = torch.logaddexp(total, flat_logits.logsumexp(dim=1))
            logits = flat_logits.view(questions, judges, -1)
            sums = logits.sum(dim=1)  # (G, words of this piece)
            inside = [i - start for i in banned if start <= i < start + sums.shape[1]]
            sums[:, inside] = -torch.inf
            values, places = sums.topk(min(count, sums.shape[1]), dim=1)
            theirs = logits.gather(2, places[:, None].expand(-1, judges, -1))
            values, chosen = torch.cat([best, values], dim=1).topk(
                min(count, best.shape[1] + values.shape[1]), dim=1
            )
            best, ids = values, torch.cat([ids, places + start], dim=1).gather(1, chosen)
            logs = torch.cat([logs, theirs], dim=2).gather(
                2, chosen[:, None].expand(-1, judges, -1)
            )
        out_ids += ids.tolist()
        out_logs += (logs - total.view(questions, judges, 1)).tolist()
    return out_ids, out_logs


def top_halves(encoder: Encoder, words: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return the top layer's two halves for one sentence with its boundaries, each (n+2, P)."""
    ((_, layers),) = encoder.run([words], boundaries=True)
    forward, backward = layers.flat[-1].chunk(2, dim=1)
    return forward, backward


def _scores(
    encoder: Encoder,
    softmax: AnySoftmax | None,
    vocabulary: Vocabulary | None,
    sentences: Iterable[Sequence[str]],
    batch_tokens: int | None,
    piece: int | None,
) -> Iterator[SentenceScore]:
    """Score a stream of sentences, a window at a time, in order."""
    softmax, vocabulary = ready(softmax, vocabulary)
    stream = iter(sentences)
    while window := list(itertools.islice(stream, WINDOW)):
        for words in window:
            if isinstance(words, str):
                raise InputError(f"the sentence {words[:40]!r} is a text: give a list of words")
        ids = [vocabulary.encode(words) for words in window]
        scores: list[SentenceScore | None] = [None] * len(window)
        for numbers, layers in encoder.run(window, batch_tokens=batch_tokens, boundaries=True):
            tokens = torch.from_numpy(np.concatenate([ids[i] for i in numbers]).astype(np.int64))
            tokens = tokens.to(layers.flat.device)  # (N,), as the rows of the layers
            ends = torch.tensor(layers.lengths, device=tokens.device).cumsum(0)
            not_end = torch.ones_like(tokens, dtype=torch.bool)
            not_end[ends - 1] = False
            not_begin = not_end.roll(1)  # a sentence begins where the one before ended
            forward, backward = layers.flat[-1].chunk(2, dim=1)
            # Every row but </S> predicts the row after it, every row but <S> the row before.
            ahead = log_softmax(softmax, forward[not_end], tokens[not_begin], piece)
            behind = log_softmax(softmax, backward[not_begin], tokens[not_end], piece)
            sizes = [n - 1 for n in layers.lengths]
            left, right = (side.cpu().split(sizes) for side in (ahead, behind))
            for number, a, b in zip(numbers, left, right, strict=True):
                unknown = int((ids[number] == vocabulary.unknown).sum())
                scores[number] = SentenceScore(a.numpy(), b.numpy(), unknown)
        yield from (score for score in scores if score is not None)


@torch.no_grad()
def log_softmax(
    softmax: AnySoftmax, hidden: Tensor, targets: Tensor, piece: int | None = None
) -> Tensor:
    """Return the log probability of each target, (n,), from hidden vectors (n, P)."""
    out = [hidden.new_empty(0, dtype=torch.float32)]
    for rows, wanted in zip(hidden.split(ROWS), targets.split(ROWS), strict=True):
        out.append(softmax.log_probabilities(rows, wanted, _piece(rows, piece)))
    return torch.cat(out)


def _piece(hidden: Tensor, piece: int | None) -> int:
    if piece is not None:
        return piece
    return CPU_PIECE if hidden.device.type == "cpu" else GPU_PIECE


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
