"""A biLM on a CPU without gradients: weights prepared once, directions in threads of their own.

Gives what `BiLM.forward` and `TokenLayer.forward` give, up to rounding (or up to the precision that
was asked for). What is prepared is kept apart from the network, and made anew when its parameters
have changed, so that copying, saving and training a network know nothing of it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchelmo.nn.char_cnn import CharCnn, TokenLayer
from torchelmo.nn.highway import Highway
from torchelmo.nn.lstm import LstmLayer, State
from torchelmo.nn.output import Layers
from torchelmo.nn.packing import Batch, Integers
from torchelmo.ops import backend, cpu, threads
from torchelmo.ops.packed import Precision, Product, block, give_back, has_bf16, round_up

WIDE_TOKENS = 128  # a batch of so many leaves much free memory, where there are many cells
LEAST_WORDS = 8  # at a time: fewer are filled up
HIGHWAY_BYTES = 48 << 20  # more is not kept twice: many words are computed at a time anyway


def applies(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a pass over such weights, as torch is set now, goes this way."""
    return (
        device.type == "cpu"
        and dtype == torch.float32
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and backend.choose(device) == "torch"
    )


class Stacks:
    """Both directions' LSTMs."""

    def __init__(self, stacks: Sequence[Sequence[LstmLayer]], precision: Precision) -> None:
        self.config = stacks[0][0].config
        self.wide = stacks[0][0].recurrent_weight.nbytes > cpu.SMALL_BYTES
        self.layers = [[cpu.Lstm(layer.weights(), precision) for layer in s] for s in stacks]

    def __call__(
        self,
        vectors: Tensor,
        words: Integers,
        lengths: Sequence[int],
        state: State | None,
        first_row: int,
        boundaries: bool,
    ) -> Layers:
        """Contextualise a batch, as `BiLM.quick`."""
        whole = boundaries or state is not None
        batch = Batch(words, lengths, whole=whole, boundaries=boundaries)
        memories = [self._start(d, state, first_row, batch, vectors) for d in (0, 1)]
        levels, width = self.config.layers, vectors.shape[1]
        flat = vectors.new_empty(levels + 1, batch.rows, 2 * width)

        def direction(d: int) -> list[tuple[Tensor, Tensor]]:
            half = flat[:, :, d * width : (d + 1) * width]
            half[0] = vectors.index_select(0, torch.from_numpy(batch.tokens()))
            read, place = batch.places(d)
            once, again = np.unique(read, return_inverse=True)
            x, where = vectors.index_select(0, torch.from_numpy(once)), torch.from_numpy(place)
            index: Tensor | None = torch.from_numpy(again)
            after = []
            for level, (layer, (h, c)) in enumerate(
                zip(self.layers[d], memories[d], strict=True), 1
            ):
                clips = self.config.cell_clip, self.config.projection_clip
                y, h_last, c_last = layer(x, batch.sizes, h, c, *clips, index)
                index = None
                x = y.add_(x) if level > 1 and self.config.residual else y
                half[level] = x.index_select(0, where)
                after.append((h_last, c_last))
            return after

        after = threads.run([lambda: direction(0), lambda: direction(1)])
        if self.wide and batch.rows >= WIDE_TOKENS:
            give_back()
        if state is not None:
            inverse = torch.from_numpy(np.argsort(batch.order))
            for name, layers in zip(("forward", "backward"), after, strict=True):
                for level, (h, c) in enumerate(layers):
                    state.put(f"{name}.{level}", first_row, h[inverse], c[inverse])
        return Layers(flat, batch.lengths, boundaries)

    def _start(
        self, direction: int, state: State | None, first_row: int, batch: Batch, like: Tensor
    ) -> list[tuple[Tensor | None, Tensor | None]]:
        if state is None:
            return [(None, None)] * self.config.layers
        order, name = torch.from_numpy(batch.order), ("forward", "backward")[direction]
        out: list[tuple[Tensor | None, Tensor | None]] = []
        for level in range(self.config.layers):
            cells, rows = self.config.cells, len(batch.order)
            h, c = state.get(f"{name}.{level}", first_row, rows, like, cells)
            out.append((h[order], c[order]))
        return out


class Words:
    """The token layer."""

    def __init__(self, token: TokenLayer, precision: Precision) -> None:
        # Of the whole network this is the part where errors reach every layer.
        kind: Precision = "bf16" if precision != "float32" and has_bf16() else "float32"
        self.words = token.words
        self.dtype = torch.bfloat16 if kind == "bf16" else torch.float32
        self.characters: cpu.CharCnn | None = None
        self.highways: list[tuple[Product, Product]] = []
        self.small = True  # weights that are multiplied by a block of rows at a time
        if isinstance(net := token.characters, CharCnn):
            filters = [(conv.weight.detach(), conv.bias.detach()) for conv in net.convolutions]  # type: ignore[operator]
            self.characters = cpu.CharCnn(net.embedding.detach(), filters, kind)
            self.activation = net.activation
            size = sum(parameter.nbytes for parameter in net.highways.parameters())
            self.small = size <= cpu.SMALL_BYTES
            for layer in net.highways:
                assert isinstance(layer, Highway)
                pair = (
                    Product(linear.weight, linear.bias, kind, packed=size < HIGHWAY_BYTES)
                    for linear in (layer.transform, layer.gate)
                )
                self.highways.append((next(pair), next(pair)))
        self.projection: Product | None = None
        if (last := token.projection) is not None:
            self.projection = Product(last.weight, last.bias, kind)

    def __call__(
        self, characters: Tensor | None, words: Tensor | None, spelt: Sequence[int]
    ) -> Tensor:
        """Compute (n, P), as `TokenLayer.forward`, of words sorted by how much they spell."""
        if not self.small:
            return self._some(characters, words, spelt, round_up(len(spelt)))
        out, start = [], 0
        while start < len(spelt):
            rows = block(len(spelt) - start, LEAST_WORDS)
            some = slice(start, start + rows)
            ids = [None if of is None else of[some] for of in (characters, words)]
            out.append(self._some(ids[0], ids[1], spelt[some], rows))
            start += rows
        return out[0] if len(out) == 1 else torch.cat(out)

    def _some(
        self, characters: Tensor | None, words: Tensor | None, spelt: Sequence[int], rows: int
    ) -> Tensor:
        parts: list[Tensor] = []
        if self.words is not None and words is not None:
            words = F.pad(words, (0, rows - len(words)))
            parts.append(F.embedding(words, self.words).to(self.dtype))
        if self.characters is not None and characters is not None:
            x = self.characters(characters - 1, spelt, rows)
            x = torch.relu_(x) if self.activation == "relu" else torch.tanh_(x)
            for transform, gate in self.highways:
                # Few words are one part of work: then the two products are done side by side.
                # Both have the same shape: with activations apart, one product is compiled.
                new, share = threads.run([partial(transform, x), partial(gate, x)])
                x = torch.lerp(x, torch.relu_(new), torch.sigmoid_(share))
            parts.append(x)
        vectors = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
        vectors = vectors if self.projection is None else self.projection(vectors)
        return vectors[: len(spelt)].float()


def version(module: nn.Module, *more: object) -> tuple[object, ...]:
    """Return what is another after parameters have changed."""
    return (*more, *((p.data_ptr(), p._version, p.dtype) for p in module.parameters()))


_LOCK = threading.Lock()
_STACKS: WeakKeyDictionary[nn.Module, tuple[tuple[object, ...], Stacks]] = WeakKeyDictionary()
_WORDS: WeakKeyDictionary[nn.Module, tuple[tuple[object, ...], Words]] = WeakKeyDictionary()


def stacks(key: nn.Module, parts: Sequence[Sequence[LstmLayer]], precision: Precision) -> Stacks:
    """Return the prepared LSTMs of a network."""
    now = (precision, *(fact for stack in parts for layer in stack for fact in version(layer)))
    with _LOCK:
        known = _STACKS.get(key)
        if known is None or known[0] != now:
            _STACKS.pop(key, None)  # frees its memory before more is taken
            known = now, Stacks(parts, precision)
            _STACKS[key] = known
        return known[1]


def words(token: TokenLayer, precision: Precision) -> Words:
    """Return the prepared token layer."""
    now = version(token, precision)
    with _LOCK:
        known = _WORDS.get(token)
        if known is None or known[0] != now:
            _WORDS.pop(token, None)
            known = now, Words(token, precision)
            give_back()
            _WORDS[token] = known
        return known[1]
