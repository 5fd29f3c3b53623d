"""The LSTM with projection and the character CNN on a CPU, without gradients.

1. Weights are rearranged for the processor once (`packed`).
2. The LSTM's input product takes a few hundred rows at a time, so that its result is still in the
   cache when the steps use it. Where the weights are small or bf16, a step makes one product of
   [x, h] instead, with the gates' activations at its end.
   Where it is not, words that come several times in a batch are multiplied once in the first layer.
3. The cell state is kept in float32 and as 2c: tanh(c) = 2 sigmoid(2c) - 1, where torch's sigmoid
   takes a sixth of the time of its tanh. The factors of two are exact, and the last one is in the
   projection's weights.
4. State is changed in place; rows that have ended keep their last value, as steps take fewer rows.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torchelmo.ops import reference
from torchelmo.ops.packed import (
    PLAIN,
    Precision,
    Product,
    block,
    filled,
    give_back,
    product,
    product_and,
    round_up,
)
from torchelmo.ops.reference import LstmWeights

INPUT_ROWS = 256  # of an input product
ONCE_ROWS = 512  # different inputs of a batch whose products are kept
LEAST_ROWS = 4  # of a product, where a batch has more: the few steps of fewer are filled up
FEW_ROWS = 8  # with fewer, reading the weights is the cost: do it once a batch where possible
SMALL_BYTES = 16 << 20  # weights that stay in the cache, and may be in memory a few times
LEAST_WINDOWS, WINDOWS = 32, 192  # in a product: its result stays in the cache for the maximum


class Lstm:
    """One layer of one direction, its weights prepared."""

    def __init__(self, weights: LstmWeights, precision: Precision = "float32") -> None:
        self.precision = precision
        self.small = weights.input.nbytes + weights.recurrent.nbytes <= SMALL_BYTES
        self.cells, self.width = weights.bias.shape[0] // 4, weights.recurrent.shape[1]
        self._weights, self._loop = weights, _compiled()
        self._joined: _Form | None = None
        self._split: _Form | None = None
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
        index: Tensor | None = None,  # (N,), if x (U, P_in) holds each different input once
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return packed outputs (N, P) and each row's last h and c, as `reference.lstmp` does."""
        rows = sizes[0] if sizes else 0
        form = self._form(rows)
        if index is not None and (form.joined or len(x) > min(0.8 * len(index), ONCE_ROWS)):
            x, index = x[index], None
        first, second, last = form.first, form.second, self._projection
        inputs = x.shape[1] if form.joined else 0
        least = LEAST_ROWS if rows >= FEW_ROWS else 1
        if not self.small or self.precision == "int8":  # rounding to bytes takes several operations
            least = 0
        behind = max((_behind(size, least) for size in sizes), default=0)
        both = torch.zeros(rows + behind, inputs + self.width, dtype=second.dtype)
        if h is not None:
            both[:rows, inputs:] = h
        doubled = x.new_zeros(rows, self.cells) if c is None else c * 2  # (B, H) 2c
        plain = not form.joined and first.kind == PLAIN
        most = len(x) if index is not None else min(max(INPUT_ROWS, rows), len(x)) + behind
        index = x.new_empty(0, dtype=torch.int64) if index is None else F.pad(index, (0, behind))
        out = self._loop(
            x,
            list(sizes),
            index,
            both,
            doubled,
            _scratch(most if plain else 0, first.rows),
            form.joined,
            least,
            [first.kind, second.kind, -1 if last is None else last.kind],
            first.parts,
            second.parts,
            [] if last is None else last.parts,
            float("inf") if cell_clip is None else cell_clip,
            float("inf") if projection_clip is None else projection_clip,
            INPUT_ROWS,
        )
        return out, both[:rows, inputs:].to(x.dtype), doubled.mul_(0.5)

    def _form(self, rows: int) -> _Form:
        """Return the weights in the form that suits so many rows; it is made when first needed."""
        w, small = self._weights, self.small
        joined = self.precision == "bf16" or (
            self.precision == "float32" and small and rows >= FEW_ROWS
        )
        with _PREPARING:  # one at a time: each takes memory for a while
            known = self._joined if joined else self._split
            if known is not None:
                return known
            if joined:
                known = self._joined = _join(w, self.precision)
            else:
                # The input's product has many rows: there, packing gains a tenth of all the time.
                known = self._split = _Form(
                    joined=False,
                    first=Product(w.input, w.bias, self.precision, packed=small),
                    second=Product(w.recurrent, None, self.precision),
                )
            if not small:
                give_back()
            return known


class _Form(NamedTuple):
    """The weights of a step: of [x, h] for gates and candidate, or of x and of h."""

    joined: bool
    first: Product  # gates i, f, o (3H, P_in + P), or all of x (4H, P_in)
    second: Product  # candidate (H, P_in + P), or all of h (4H, P)


def _join(weights: LstmWeights, precision: Precision) -> _Form:
    """Put the weights of x beside those of h, and the gates i, f, o below each other."""
    cells, inputs = weights.bias.shape[0] // 4, weights.input.shape[1]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    products = []
    for gates in ((0, 1, 3), (2,)):
        both = torch.empty(len(gates), cells, inputs + weights.recurrent.shape[1], dtype=dtype)
        for place, gate in enumerate(gates):
            both[place, :, :inputs] = weights.input[gate * cells : (gate + 1) * cells]
            both[place, :, inputs:] = weights.recurrent[gate * cells : (gate + 1) * cells]
        bias = torch.cat([weights.bias.chunk(4)[gate] for gate in gates])
        products.append(Product(both.flatten(0, 1), bias, precision))
    return _Form(True, *products)


def steps(
    x: Tensor,  # (N, P_in)
    sizes: list[int],
    index: Tensor,  # (N + rows behind,), each step's rows of x; or empty, if x is in order
    both: Tensor,  # (B, P_in + P) if joined, else (B, P); h is changed in place
    doubled: Tensor,  # (B, H), 2c, changed in place
    room: Tensor,  # for the input's products, (rows, 4H)
    joined: bool,
    least: int,  # rows of a block; 0 if all rows of a step are multiplied at once
    kinds: list[int],
    first: list[Tensor],
    second: list[Tensor],
    projection: list[Tensor],
    cell_clip: float,
    projection_clip: float,
    input_rows: int,
) -> Tensor:
    """Run the LSTM; return its outputs (N, P).

    Products have one of few numbers of rows; those behind the step's own mean nothing.
    """
    cells, inputs = doubled.shape[1], x.shape[1]
    h = both[:, inputs:] if joined else both
    out = torch.empty(sum(sizes), h.shape[1])
    halves = torch.zeros(both.shape[0], cells)  # tanh(c) * o / 2
    ready, once = room, index.shape[0] > 0
    if once:  # inputs that come several times are multiplied once
        ready = input_product(x, x.shape[0], least, room, kinds[0], first)
    at, start, end = 0, 0, 0  # of the step among the rows; of those whose input product is there
    for number in range(len(sizes)):
        size = sizes[number]
        if not joined and not once and at == end:
            start = end
            behind = 0
            for more in sizes[number:]:
                more_behind = max(behind, _behind(more, least))
                if end > start and end + more + more_behind - start > input_rows:
                    break
                end += more
                behind = more_behind
            count = end - start + behind
            ready = input_product(x[start:], count, least, room, kinds[0], first)
        low = 0
        while low < size:
            rows = block(size - low, least) if least > 0 else round_up(size)
            top, high = low + rows, min(low + rows, size)  # of the product, and of what it is for
            if joined:
                both[low:high, :inputs] = x[at + low : at + high]
                gates = product(both[low:top], kinds[0], first, "sigmoid")[: high - low]
                i, f, o = gates.chunk(3, dim=1)
                g = product(both[low:top], kinds[1], second, "tanh")[: high - low]
                factor = 2.0
            else:
                if once:
                    mine = ready.index_select(0, index[at + low : at + top])
                else:
                    mine = ready[at - start + low : at - start + top]
                z = product_and(h[low:top], mine, kinds[1], second)[: high - low]
                i, f, g, o = z.chunk(4, dim=1)
                z[:, : 2 * cells].sigmoid_()
                o.sigmoid_()
                g.mul_(2).sigmoid_().sub_(0.5)  # tanh(g) / 2
                factor = 4.0
            cell = doubled[low:high]
            cell.mul_(f).addcmul_(i, g, value=factor)
            if cell_clip != float("inf"):
                cell.clamp_(-2 * cell_clip, 2 * cell_clip)
            half = halves[low:high]
            torch.sigmoid(cell, out=half)
            half.sub_(0.5).mul_(o)
            if kinds[2] < 0:
                y = half * 2
            else:
                y = product(halves[low:top].to(both.dtype), kinds[2], projection, "none")
                y = y[: high - low]
                if projection_clip != float("inf"):
                    y.clamp_(-projection_clip, projection_clip)
            out[at + low : at + high] = y
            h[low:high] = y
            low = high
        at += size
    return out


def _behind(size: int, least: int) -> int:
    """Return how many rows the products of a step have behind its own."""
    return (filled(size, least) if least > 0 else round_up(size)) - size


def input_product(
    x: Tensor, count: int, least: int, room: Tensor, kind: int, parts: list[Tensor]
) -> Tensor:
    """Return the product of the first `count` rows of x or more, in `room` where that can be."""
    if kind != 0:
        count = round_up(count, 2 if least > 0 else 4)
    x = x[:count]
    if x.shape[0] < count:
        x = torch.cat([x, torch.zeros(count - x.shape[0], x.shape[1])])
    if kind == 0:
        return torch.addmm(parts[1], x, parts[0].t(), out=room[:count])
    return product(x, kind, parts, "none")


def _compiled() -> Callable[..., Tensor]:
    """Return `steps`, compiled where it can be.

    Python runs one thread at a time, and steps of few rows are so short that two directions would
    wait for each other most of the time.
    """
    global _LOOP
    with _COMPILING:
        if _LOOP is None:
            _LOOP = steps
            # What is raised depends on the versions of Python and torch, and is the reason for the
            # warning: TorchScript is not developed any more.
            with contextlib.suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _LOOP = torch.jit.script(steps)
        return _LOOP


_COMPILING, _PREPARING = threading.Lock(), threading.Lock()
_LOOP: Callable[..., Tensor] | None = None


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
        rows: int,  # of the result, at least n
    ) -> Tensor:
        """Compute (n, F), before the activation.

        Windows of padding alone give one value, so each word has one of them. The result has as
        many rows as are asked for, zero behind those of the words.
        """
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
        windows = embedded.new_zeros(round_up(max(count, LEAST_WINDOWS), 2), shape[2])
        windows[:count].view(shape).copy_(
            embedded.as_strided(shape, (characters * depth, depth, 1))
        )
        found = self._product(windows)[:count].view(words, longest + 1, -1)
        torch.amax(found, dim=1, out=out)
