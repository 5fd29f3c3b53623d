"""The LSTM with projection and the character CNN on a CPU, without gradients.

1. Weights are rearranged for the processor once (`packed`).
2. The LSTM's input product takes a few hundred rows at a time, so that its result is still in the
   cache when the steps use it. Where the weights are small or bf16, a step makes one product of
   [x, h] instead, with the gates' activations at its end.
3. The cell state is kept in float32 and as 2c: tanh(c) = 2 sigmoid(2c) - 1, where torch's sigmoid
   takes a sixth of the time of its tanh. The factors of two are exact, and the last one is in the
   projection's weights.
4. State is changed in place; rows that have ended keep their last value, as steps take fewer rows.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from torchelmo.ops import reference
from torchelmo.ops.packed import Precision, Product, give_back, round_up
from torchelmo.ops.reference import LstmWeights

INPUT_ROWS = 256  # of an input product
ROUNDING = 128  # rows at most by which `round_up` goes up
FEW_ROWS = 8  # with fewer, reading the weights is the cost: do it once a batch where possible
SMALL_BYTES = 16 << 20  # weights that stay in the cache, and may be in memory a few times
WINDOWS = 200  # of characters in a product: its result stays in the cache for the maximum


class Lstm:
    """One layer of one direction, its weights prepared."""

    def __init__(self, weights: LstmWeights, precision: Precision = "float32") -> None:
        self.precision = precision
        self.cells, self.width = weights.bias.shape[0] // 4, weights.recurrent.shape[1]
        self._weights, self._lock = weights, threading.Lock()
        self._joined: _Joined | None = None
        self._split: _Split | None = None
        self._projection: Product | None = None
        if weights.projection is not None:
            self._projection = Product(weights.projection * 2, None, precision)

    def __call__(
        self,
        x: Tensor,  # (N, P_in) packed
        sizes: Sequence[int],  # rows at each step, falling
        h: Tensor | None,  # (B, P), None for zero
        c: Tensor | None,  # (B, H)
        cell_clip: float | None = None,
        projection_clip: float | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return packed outputs (N, P) and each row's last h and c, as `reference.lstmp` does."""
        rows = sizes[0] if sizes else 0
        out = x.new_empty(len(x), self.width)
        doubled = x.new_zeros(rows, self.cells) if c is None else c * 2  # (B, H) 2c
        # Products have a rounded number of rows; those behind the step's own mean nothing.
        halves = x.new_zeros(round_up(rows), self.cells)  # tanh(c) * o / 2
        gates = self._form(rows).begin(x, sizes, h)
        start = 0
        for size in sizes:
            i, f, o, candidate, factor = gates.step(size)  # (n, H); candidate * factor is 2g
            cell, half = doubled[:size], halves[:size]
            cell.mul_(f).addcmul_(i, candidate, value=factor)
            if cell_clip is not None:
                cell.clamp_(-2 * cell_clip, 2 * cell_clip)
            torch.sigmoid(cell, out=half).sub_(0.5).mul_(o)
            if self._projection is None:
                y = half * 2
            else:
                m = halves[: round_up(size)].to(self._projection.dtype)
                y = self._projection.of_units(m)[:size]  # (n, P)
                if projection_clip is not None:
                    y.clamp_(-projection_clip, projection_clip)
            out[start : start + size] = y
            gates.h[:size] = y
            start += size
        return out, gates.h[:rows].to(x.dtype), doubled.mul_(0.5)

    def _form(self, rows: int) -> _Joined | _Split:
        """Return the weights in the form that suits so many rows; it is made when first needed."""
        small = self._weights.input.nbytes + self._weights.recurrent.nbytes <= SMALL_BYTES
        joined = self.precision == "bf16" or (
            self.precision == "float32" and small and rows >= FEW_ROWS
        )
        with self._lock:
            known = self._joined if joined else self._split
            if known is not None:
                return known
            if joined:
                known = self._joined = _Joined(self._weights, self.precision)
            else:
                known = self._split = _Split(self._weights, self.precision, packed=small)
            if not small:
                give_back()
            return known


class _Joined:
    """A step is one product of [x, h] for the gates and one for the candidate."""

    def __init__(self, weights: LstmWeights, precision: Precision) -> None:
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        pairs = zip(weights.input.chunk(4), weights.recurrent.chunk(4), strict=True)
        i, f, g, o = (torch.cat([w.to(dtype) for w in pair], dim=1) for pair in pairs)
        i_bias, f_bias, g_bias, o_bias = weights.bias.chunk(4)
        biases = torch.cat([i_bias, f_bias, o_bias])
        self.gates = Product(torch.cat([i, f, o]), biases, precision)  # (3H, P_in + P)
        self.candidate = Product(g, g_bias, precision)
        self.inputs = weights.input.shape[1]

    def begin(self, x: Tensor, sizes: Sequence[int], h: Tensor | None) -> _JoinedRun:
        return _JoinedRun(self, x, sizes, h)


class _JoinedRun:
    def __init__(self, form: _Joined, x: Tensor, sizes: Sequence[int], h: Tensor | None) -> None:
        self.form, self.x, self.start = form, x, 0
        rows, dtype = round_up(sizes[0]) if sizes else 0, form.gates.dtype
        self.both = torch.zeros(rows, form.gates.columns, dtype=dtype)  # (B, P_in + P)
        self.h = self.both[:, form.inputs :]
        if h is not None:
            self.h[: len(h)] = h

    def step(self, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
        self.both[:size, : self.form.inputs] = self.x[self.start : self.start + size]
        self.start += size
        both = self.both[: round_up(size)]
        i, f, o = self.form.gates(both, "sigmoid")[:size].chunk(3, dim=1)
        return i, f, o, self.form.candidate(both, "tanh")[:size], 2.0


class _Split:
    """The product of the inputs goes before that of the state; 2g is 4 sigmoid(2z) - 2."""

    def __init__(self, weights: LstmWeights, precision: Precision, *, packed: bool) -> None:
        # The input's product has many rows: there, packing gains a tenth of the whole time.
        self.input = Product(weights.input, weights.bias, precision, packed=packed)
        self.recurrent = Product(weights.recurrent, None, precision)

    def begin(self, x: Tensor, sizes: Sequence[int], h: Tensor | None) -> _SplitRun:
        return _SplitRun(self, x, sizes, h)


class _SplitRun:
    def __init__(self, form: _Split, x: Tensor, sizes: Sequence[int], h: Tensor | None) -> None:
        self.form, self.sizes = form, list(sizes)
        rows = round_up(sizes[0]) if sizes else 0
        room = round_up(min(max(INPUT_ROWS, rows), len(x)) + ROUNDING)
        # Rounded numbers of rows reach behind the last one.
        self.x = F.pad(x, (0, 0, 0, room))
        self.h = x.new_zeros(rows, form.recurrent.columns)
        if h is not None:
            self.h[: len(h)] = h
        self.from_input = x[:0]
        self.at = self.start = self.end = 0  # of the step, and of what is computed, among the rows
        self.number = 0  # of the step

    def step(self, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
        if self.at == self.end:
            self._compute()
        first, rows = self.at - self.start, round_up(size)
        self.at, self.number = self.at + size, self.number + 1
        ready = self.from_input[first : first + rows]
        z = self.form.recurrent.add(self.h[:rows], ready)[:size]  # (n, 4H)
        i, f, g, o = z.chunk(4, dim=1)
        z[:, : 2 * i.shape[1]].sigmoid_()
        return i, f, o.sigmoid_(), g.mul_(2).sigmoid_().sub_(0.5), 4.0

    def _compute(self) -> None:
        """Make the input's product of the next few steps."""
        self.start, behind = self.end, 0
        for more in self.sizes[self.number :]:
            if self.end > self.start and self.end + more - self.start > INPUT_ROWS:
                break
            self.end += more
            behind = max(behind, round_up(more) - more)
        rows = round_up(self.end - self.start + behind)
        x = self.x[self.start : self.start + rows]
        self.from_input = self.form.input(x, out=_scratch(rows, self.form.input.rows))


def _scratch(rows: int, columns: int) -> Tensor:
    """Return memory that this thread uses again and again: large blocks that come and go in many
    sizes leave gaps.
    """
    held: Tensor | None = getattr(_HELD, "memory", None)
    if held is None or held.numel() < rows * columns:
        _HELD.memory = held = torch.empty(rows * columns)
    return held[: rows * columns].view(rows, columns)


_HELD = threading.local()


class CharCnn:
    """Convolutions over characters with the maximum over positions, for a model's filters."""

    def __init__(
        self,
        embedding: Tensor,  # (R, d)
        filters: Sequence[tuple[Tensor, Tensor]],  # (count, d, width) and (count,)
        precision: Precision = "float32",
    ) -> None:
        self._plain = embedding, filters
        depth, self.width = embedding.shape[1], max(weight.shape[2] for weight, _ in filters)
        biases = torch.cat([bias for _, bias in filters])
        # Narrower filters are filled up with zeros: one product for all.
        joined = embedding.new_zeros(len(biases), self.width, depth)
        start = 0
        for weight, bias in filters:
            joined[start : start + len(bias), : weight.shape[2]] = weight.transpose(1, 2)
            start += len(bias)
        self._product = Product(joined.flatten(1), biases, precision)
        self._embedding = embedding.to(self._product.dtype)

    def __call__(
        self,
        ids: Tensor,  # (n, C) rows of the embedding, padding at the end
        spelt: Sequence[int],  # how many of each row are not padding; sort by it to save work
    ) -> Tensor:
        """Compute (n, F), before the activation.

        Windows of padding alone give one value, so each word has one of them. The result has a
        rounded number of rows, zero behind those of the words.
        """
        rows = round_up(len(ids))
        out = torch.zeros(rows, self._product.rows, dtype=self._product.dtype)
        start = 0
        while start < len(ids):
            end, longest = start + 1, spelt[start]
            while end < len(ids):
                more = max(longest, spelt[end])
                if (end + 1 - start) * (more + 1) > WINDOWS:
                    break
                end, longest = end + 1, more
            self._words(ids[start:end], longest, out[start:end])
            start = end
        return out

    def _words(self, ids: Tensor, longest: int, out: Tensor) -> None:
        words, characters = len(ids), longest + self.width
        if characters > ids.shape[1]:  # the last windows of narrower filters would not fit
            embedding, filters = self._plain
            out.copy_(reference.char_conv_max(F.embedding(ids, embedding), filters))
            return
        embedded = F.embedding(ids[:, :characters], self._embedding)  # (n, C, d)
        depth = embedded.shape[2]
        shape, count = (words, longest + 1, self.width * depth), words * (longest + 1)
        windows = embedded.new_zeros(round_up(count), shape[2])
        windows[:count].view(shape).copy_(
            embedded.as_strided(shape, (characters * depth, depth, 1))
        )
        found = self._product(windows)[:count].view(words, longest + 1, -1)
        torch.amax(found, dim=1, out=out)
