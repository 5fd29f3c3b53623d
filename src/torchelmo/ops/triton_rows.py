"""Sentences to rows of a step, and rows back to sentences, as Triton kernels.

A segment is some steps of some rows, (S, R), row r of which is sentence r of a table, from the left
in the first direction and from the right in the second. Rows go on beyond the ends of their
sentences, and there are more of them than sentences: what is read there is of no consequence, and
nothing of it is written.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 8, 128  # of a program


class Sentences(NamedTuple):
    """Sentences on the device, the longest first."""

    words: Tensor  # (N,) int32: the vector of word n is number 2 + n, those of boundaries 0 and 1
    table: Tensor  # (3, B) int32: where each begins there, how many words it has, its first output
    boundaries: bool  # whether `<S>` and `</S>` are in the output


class Segment(NamedTuple):
    """Steps `begin` to `begin + steps` of the sentences from `first` on."""

    first: int
    sentences: int
    begin: int
    steps: int
    rows: int  # one a sentence, and some to fill up


@triton.jit
def _places(table, total, first, count, begin, rows, steps, d, block, EDGE: tl.constexpr, BR: tl.constexpr):  # fmt: skip  # noqa: E501
    """Return for a block of rows: which there are, the place in `words`, and the output or -1."""
    m = block * BR + tl.arange(0, BR)
    rank, time = m % rows, begin + m // rows
    there = m < rows * steps
    sentence = first + tl.minimum(rank, count - 1)
    start = tl.load(table + sentence)
    last = tl.load(table + total + sentence) + 1  # the place of </S>
    target = tl.load(table + 2 * total + sentence)
    place = tl.where(d == 0, time, last - time)
    shown = there & (rank < count) & (place >= EDGE) & (place <= last - EDGE)
    # -2 and -1 are the boundaries, whose vectors come before those of words.
    read = tl.where(place <= 0, -2, tl.where(place >= last, -1, start + place - 1))
    return m, there, read, tl.where(shown, target + place - EDGE, -1)


VARYING = ("total", "first", "count", "begin", "rows", "steps")


@triton.jit(do_not_specialize=VARYING)
def _read(
    vectors, words, table, x, flat, total, first, count, begin, rows, steps, width,
    EDGE: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    d = tl.program_id(1).to(tl.int64)
    m, there, read, out = _places(
        table, total, first, count, begin, rows, steps, d, tl.program_id(0), EDGE, BR
    )
    word = tl.load(words + read, there & (read >= 0), 0)
    row = (2 + tl.where(read < 0, read, word)).to(tl.int64)
    wide = (d * rows * steps + m).to(tl.int64)
    out = out.to(tl.int64)
    for start in range(0, width, BC):
        column = (start + tl.arange(0, BC))[None, :]
        ok = column < width
        value = tl.load(vectors + row[:, None] * width + column, there[:, None] & ok, 0.0)
        tl.store(x + wide[:, None] * width + column, value.to(x.dtype.element_ty), there[:, None] & ok)  # fmt: skip  # noqa: E501
        home = flat + (2 * out[:, None] + d) * width + column
        tl.store(home, value.to(tl.float32), (out >= 0)[:, None] & ok)


@triton.jit(do_not_specialize=(*VARYING, "tokens"))
def _write(
    y, flat, table, total, first, count, begin, rows, steps, width, tokens,
    EDGE: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    d = tl.program_id(1).to(tl.int64)
    level = tl.program_id(2).to(tl.int64)
    m, _there, _read, out = _places(
        table, total, first, count, begin, rows, steps, d, tl.program_id(0), EDGE, BR
    )
    shown = (out >= 0)[:, None]
    wide = ((2 * level + d) * rows * steps + m).to(tl.int64)
    target = 2 * ((level + 1) * tokens + out.to(tl.int64)) + d
    for start in range(0, width, BC):
        column = (start + tl.arange(0, BC))[None, :]
        ok = shown & (column < width)
        value = tl.load(y + wide[:, None] * width + column, ok, 0.0)
        tl.store(flat + target[:, None] * width + column, value.to(tl.float32), ok)


def read(vectors: Tensor, sentences: Sentences, part: Segment, x: Tensor, flat: Tensor) -> None:
    """Put a segment's vectors in `x`, (2, S * R, P), and those of words in layer 0 of `flat`."""
    width = vectors.shape[1]
    grid = (triton.cdiv(part.steps * part.rows, ROWS), 2)
    _read[grid](
        vectors, sentences.words, sentences.table, x, flat, sentences.table.shape[1], part.first,
        part.sentences, part.begin, part.rows, part.steps, width,
        EDGE=0 if sentences.boundaries else 1, BR=ROWS, BC=COLUMNS,
    )  # fmt: skip


def write(y: Tensor, sentences: Sentences, part: Segment, flat: Tensor) -> None:
    """Put what the layers made, (L, 2, S * R, P), in the layers above 0 of `flat`, (L+1, N, 2P)."""
    levels, width = len(y), y.shape[-1]
    grid = (triton.cdiv(part.steps * part.rows, ROWS), 2, levels)
    _write[grid](
        y, flat, sentences.table, sentences.table.shape[1], part.first, part.sentences, part.begin,
        part.rows, part.steps, width, flat.shape[1],
        EDGE=0 if sentences.boundaries else 1, BR=ROWS, BC=COLUMNS,
    )  # fmt: skip
