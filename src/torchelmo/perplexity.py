"""Perplexity of running text: sentences read one after another, the state carried between them.

A sentence w1..wn gives n + 1 predictions: read `<S>`, predict w1; ...; read wn, predict `</S>`. The
backward model takes the sentences in the same order, each from its end: read `</S>`, predict wn;
...; read w1, predict `<S>`. All words count, `<UNK>` as `<UNK>`, and the softmax is never sampled.

Two ways to lay the text out in rows, each of which starts from a zero state:

* slices: N contiguous slices of about equal length, cut between sentences, a row each. All of the
  text is read. The default, and what validation during training does.
* bilm: as bilm-tf's test program. A row that has used up its sentence takes the next one of the
  text, rows in order; the reading ends when a row finds none, and what the other rows still have is
  dropped. The result depends on the number of rows.

The text is numbers on disk or in memory; what is computed at a time is a window of all rows, so
memory does not grow with the text.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchelmo.encoder import Encoder
from torchelmo.errors import InputError
from torchelmo.nn.bilm import BiLM, Direction
from torchelmo.nn.softmax import AnySoftmax
from torchelmo.scoring import Perplexity, log_softmax, raw_characters, ready
from torchelmo.text.batching import WordTable
from torchelmo.text.vocabulary import Vocabulary

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.int32]
Rows = Literal["slices", "bilm"]

STREAMS, STEPS = 32, 32
BLOCK = 1 << 16  # predictions whose words are looked up together; a word's vector is made once
WORDS = 1024  # distinct words a call of the token layer
CPU_WINDOW, GPU_WINDOW = 1024, 16_384  # tokens that are read at once


class Text(Protocol):
    """Word numbers of all sentences one after another, and where each sentence begins."""

    @property
    def tokens(self) -> Words:
        """(T,), without boundaries."""
        ...

    @property
    def sentences(self) -> Ints:
        """Offsets into `tokens`, one more than there are sentences."""
        ...


@dataclass(frozen=True)
class StreamScore:
    """What reading a text gave."""

    forward: float  # nats: the negative log probabilities of all predictions, summed
    backward: float
    tokens: int  # predictions in each direction
    unknown: int  # how many of the forward (else backward) ones were charged as <UNK>
    dropped: int = 0  # predictions in each direction that were left out at the end

    def perplexity(
        self, *, vocabulary: int, sentences: int, words: int, characters: int
    ) -> Perplexity:
        """Return the figures of a text of so many sentences, and raw words and characters."""
        return Perplexity.from_nats(
            self.forward,
            self.backward,
            tokens=self.tokens,
            unknown=self.unknown,
            vocabulary=vocabulary,
            sentences=sentences,
            words=words,
            characters=characters,
            dropped=self.dropped,
        )


@torch.no_grad()
def stream_scores(
    bilm: BiLM,
    softmax: AnySoftmax,
    text: Text,
    *,
    vectors: Callable[[Ints], Tensor],
    begin: int,
    end: int,
    targets: Callable[[Ints], Ints],
    unknown: int,
    streams: int = STREAMS,
    steps: int = STEPS,
    rows: Rows = "slices",
    directions: Sequence[Direction] = ("forward", "backward"),
    progress: Callable[[int], None] | None = None,
) -> StreamScore:
    """Read a text from zero states and score every word.

    Args:
        bilm: the language models.
        softmax: their output layer.
        text: what to read.
        vectors: the token layer's vectors (n, P) of distinct word numbers (n,), on the biLM's
            device; asked for at most `WORDS` at a time.
        begin: the word number of `<S>`.
        end: the word number of `</S>`.
        targets: the vocabulary ids of word numbers.
        unknown: the vocabulary id of `<UNK>`.
        streams: rows that are read side by side; a text of fewer sentences has fewer slices.
        steps: words a row and window. Changes memory and speed, nothing else.
        rows: how the text is laid out.
        directions: which of the models to ask; the nats of the other are nan.
        progress: told how many predictions a direction are new, now and then.
    """
    for name, value in (("streams", streams), ("steps", steps)):
        if value < 1:
            raise InputError(f"{name} is {value}, expected 1 or more")
    layout = (_slices if rows == "slices" else _taken)(text.sentences, streams)
    nats: dict[Direction, float] = dict.fromkeys(directions, 0.0)
    memory = {direction: bilm.zero_memory(len(layout.lengths)) for direction in nats}
    tokens = charged = 0
    width = max(BLOCK // (len(layout.lengths) * steps), 1) * steps
    for first in range(0, int(layout.lengths[0]), width):
        sizes, places = layout.block(first, width)
        pairs = {d: _pairs(text, layout, places, begin, end, d == "backward") for d in nats}
        distinct, where = np.unique(
            np.concatenate([read for read, _ in pairs.values()]), return_inverse=True
        )
        table = torch.cat(
            [vectors(distinct[i : i + WORDS]) for i in range(0, len(distinct), WORDS)]
        )
        for direction, inputs in zip(nats, np.split(where, len(nats)), strict=True):
            goals = targets(pairs[direction][1])
            if direction == directions[0]:
                charged += int((goals == unknown).sum())
            index = torch.from_numpy(inputs).to(table.device)
            wanted = torch.from_numpy(np.asarray(goals, dtype=np.int64)).to(table.device)
            logs: list[Tensor] = []
            done = 0
            for step in range(0, len(sizes), steps):
                window = sizes[step : step + steps]
                part = slice(done, done + sum(window))
                outputs, memory[direction] = bilm.stack(
                    direction, table[index[part]], window, memory[direction]
                )
                logs.append(log_softmax(softmax, outputs[-1], wanted[part]))
                done = part.stop
            nats[direction] -= float(torch.cat(logs).cpu().double().sum())
        tokens += len(places)
        if progress is not None:
            progress(len(places))
    dropped = int(layout.ends[-1]) - tokens
    forward, backward = nats.get("forward", math.nan), nats.get("backward", math.nan)
    return StreamScore(forward, backward, tokens, charged, dropped)


class WordText:
    """Sentences of words as numbers, 4 bytes a word, and the size of the raw text.

    The numbers 0 and 1 are `<S>` and `</S>`, words are counted from 2 in order of first sight.
    """

    def __init__(self) -> None:
        self.words = self.characters = 0  # of the raw text
        self._table = WordTable()
        self._tokens, self._offsets = array("i"), array("q", [0])

    def add(self, sentences: Iterable[Sequence[str]], raw: str | None = None) -> None:
        """Add sentences that were made of a raw text; without it, their words joined by spaces."""
        for words in sentences:
            if isinstance(words, str):
                raise InputError(f"the sentence {words[:40]!r} is a text: give a list of words")
            numbers = (self._table.ids(words) + 2).astype(np.int32)
            self._tokens.frombytes(numbers.tobytes())
            self._offsets.append(len(self._tokens))
            if raw is None:
                self._count(" ".join(words))
        if raw is not None:
            self._count(raw)

    @property
    def table(self) -> list[str]:
        """The distinct words; word i has the number i + 2."""
        return list(self._table)

    @property
    def tokens(self) -> Words:
        """The numbers of all words, (T,)."""
        return np.asarray(self._tokens, dtype=np.int32)

    @property
    def sentences(self) -> Ints:
        """Offsets into `tokens`, one more than there are sentences."""
        return np.asarray(self._offsets, dtype=np.int64)

    @property
    def predictions(self) -> int:
        """In each direction: the words and one boundary a sentence."""
        return len(self._tokens) + len(self._offsets) - 1

    def _count(self, raw: str) -> None:
        self.words += len(raw.split())
        self.characters += raw_characters(raw)


def text_perplexity(
    encoder: Encoder,
    softmax: AnySoftmax | None,
    vocabulary: Vocabulary | None,
    text: WordText,
    *,
    streams: int = STREAMS,
    steps: int | None = None,
    rows: Rows = "slices",
    progress: Callable[[int], None] | None = None,
) -> Perplexity:
    """Read a text with a model; return how well it is predicted.

    Arguments as of `stream_scores`, but that `steps` are chosen by device if None.
    """
    softmax, vocabulary = ready(softmax, vocabulary)
    if steps is None:
        window = CPU_WINDOW if encoder.device.type == "cpu" else GPU_WINDOW
        steps = max(window // max(streams, 1), 1)
    if not len(text.tokens):
        raise InputError("the text has no words: perplexity needs at least one")
    table = text.table
    ids = np.concatenate([[vocabulary.begin, vocabulary.end], vocabulary.ids(table)])

    def vectors(numbers: Ints) -> Tensor:
        words = numbers >= 2
        found = encoder.vectors([table[i - 2] for i in numbers[words]])  # <S>, </S>, the words
        return found[torch.from_numpy(np.where(words, np.cumsum(words) + 1, numbers))]

    score = stream_scores(
        encoder.bilm,
        softmax,
        text,
        vectors=vectors,
        begin=0,
        end=1,
        targets=lambda numbers: ids[numbers],
        unknown=vocabulary.unknown,
        streams=streams,
        steps=steps,
        rows=rows,
        progress=progress,
    )
    return score.perplexity(
        vocabulary=len(vocabulary),
        sentences=len(text.sentences) - 1,
        words=text.words,
        characters=text.characters,
    )


@dataclass(frozen=True)
class _Layout:
    """Which sentences each row reads: the predictions of all sentences, in `order`, one after
    another; row r has those from `starts[r]` on, `lengths[r]` of them. Longest rows first.
    """

    order: Ints  # (n,) sentences
    ends: Ints  # (n + 1,) predictions before each of them
    starts: Ints  # (B,)
    lengths: Ints  # (B,)

    def block(self, first: int, width: int) -> tuple[list[int], Ints]:
        """Return how many rows take each of the steps from `first` on, and their predictions."""
        last = min(first + width, int(self.lengths[0]))
        active = np.arange(first, last)[:, None] < self.lengths  # (steps, B)
        step, row = active.nonzero()
        return active.sum(axis=1).tolist(), self.starts[row] + first + step


def _slices(offsets: Ints, streams: int) -> _Layout:
    """Cut the text between sentences into contiguous slices of about equal length."""
    count = _count(offsets)
    streams = min(streams, count)
    ends = np.asarray(offsets) + np.arange(count + 1)
    ends -= ends[0]
    # The border nearest to each ideal cut, moved where two would meet: no slice is empty.
    numbers = np.arange(streams + 1)
    ideal = ends[-1] * numbers / streams
    right = np.searchsorted(ends, ideal)
    nearest = right - (ideal - ends[np.maximum(right - 1, 0)] < ends[right] - ideal)
    apart = np.maximum.accumulate(np.maximum(nearest, 0) - numbers) + numbers
    borders = np.minimum(apart, count - streams + numbers)
    borders[-1] = count
    starts, lengths = ends[borders[:-1]], np.diff(ends[borders])
    longest = np.argsort(-lengths, kind="stable")
    return _Layout(np.arange(count), ends, starts[longest], lengths[longest])


def _taken(offsets: Ints, batch: int) -> _Layout:
    """Let each row that has used up its sentence take the next one, as bilm-tf does."""
    count = _count(offsets)
    if count < batch:
        raise InputError(
            f"the text has {count} sentences, fewer than the {batch} rows of a batch, so that not "
            "one batch is full: ask for fewer rows"
        )
    sizes = np.diff(offsets) + 1
    heap = [(0, row) for row in range(batch)]  # (predictions taken, row): the next to take is first
    rows = np.empty(count, dtype=np.int64)
    for sentence, size in enumerate(sizes.tolist()):
        taken, row = heap[0]
        rows[sentence] = row
        heapq.heapreplace(heap, (taken + size, row))
    full = heap[0][0]  # the step at which a row finds no sentence: it and all after it are dropped
    order = np.argsort(rows, kind="stable")
    ends = np.concatenate([[0], np.cumsum(sizes[order])])
    starts = ends[np.searchsorted(rows[order], np.arange(batch))]
    return _Layout(order, ends, starts, np.full(batch, full))


def _count(offsets: Ints) -> int:
    count = len(offsets) - 1
    if count < 1:
        raise InputError("the text has no sentences: perplexity needs at least one")
    return count


def _pairs(
    text: Text, layout: _Layout, places: Ints, begin: int, end: int, reverse: bool
) -> tuple[Ints, Ints]:
    """Return which word is read and which is predicted at each place."""
    number = np.searchsorted(layout.ends, places, side="right") - 1
    k = places - layout.ends[number]  # the prediction's place in its sentence
    length = layout.ends[number + 1] - layout.ends[number] - 1
    start = np.asarray(text.sentences)[layout.order[number]]
    if reverse:
        begin, end = end, begin
        read, predicted = start + length - k, start + length - 1 - k
    else:
        read, predicted = start + k - 1, start + k
    tokens = text.tokens if len(text.tokens) else np.zeros(1, dtype=np.int32)
    last = len(tokens) - 1  # a boundary has no token: any stands in its place
    inputs = np.where(k == 0, begin, tokens[np.clip(read, 0, last)])
    goals = np.where(k == length, end, tokens[np.clip(predicted, 0, last)])
    return inputs.astype(np.int64), goals.astype(np.int64)
