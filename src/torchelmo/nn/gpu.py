"""A biLM's LSTMs on a GPU without gradients: weights prepared once, small batches recorded.

Gives what `BiLM.forward` gives, up to rounding. A batch of few tokens is not work enough for a GPU:
starting its kernels one by one takes longer than they run. So rows are filled up to one of a few
shapes, and each shape is recorded as a CUDA graph when it comes for the second time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from torchelmo.nn.lstm import LstmLayer, State
from torchelmo.nn.output import Layers
from torchelmo.nn.packing import Batch, Integers
from torchelmo.ops import backend
from torchelmo.ops.lstm import Prepared, infer, prepare

RECORDED_TOKENS = 16_384  # larger batches keep a GPU busy as they are
SHAPES = 64  # recorded at most
STEPS, ROWS = 8, (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def applies(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a pass over such vectors, as torch is set now, goes this way."""
    return (
        device.type == "cuda"
        and dtype.itemsize <= 4
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cuda")
        and backend.choose(device) == "triton"
    )


class Stacks:
    """Both directions' LSTMs, computing in one dtype."""

    def __init__(self, stacks: Sequence[Sequence[LstmLayer]], dtype: torch.dtype) -> None:
        self.config, self.dtype = stacks[0][0].config, dtype
        with torch.no_grad():
            self.weights: list[Prepared] = [
                prepare([layer.weights() for layer in pair], dtype)
                for pair in zip(*stacks, strict=True)
            ]
        self._lock = threading.Lock()
        self._shapes: OrderedDict[tuple[int, int], _Recording | None] = OrderedDict()
        self._pool: Any = None

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
        longest, rows = max(lengths, default=0) + (2 if whole else 1), len(lengths)
        shape = _shape(longest, rows)
        # Rows of very different lengths would mostly be filled up.
        total = sum(lengths) + rows * (2 if whole else 1)
        small = state is None and shape is not None and shape[0] * shape[1] <= 3 * total + 512
        if small and shape is not None and shape[0] * shape[1] <= RECORDED_TOKENS:
            batch = Batch(words, lengths, whole=whole, boundaries=boundaries, shape=shape)
        else:
            batch, shape = Batch(words, lengths, whole=whole, boundaries=boundaries), None
        sent = [batch.tokens(), *batch.places(0), *batch.places(1)]
        sizes = [len(part) for part in sent]
        numbers = torch.from_numpy(np.concatenate(sent).astype(np.int32))
        if vectors.is_cuda:
            numbers = numbers.pin_memory().to(vectors.device, non_blocking=True)
        tokens, read, where, read_back, where_back = numbers.split(sizes)
        width = vectors.shape[1]
        flat = vectors.new_empty(self.config.layers + 1, batch.rows, 2 * width, dtype=torch.float32)
        token = vectors.index_select(0, tokens)
        flat[0, :, :width] = token
        flat[0, :, width:] = token
        reading = torch.cat([read, read_back])
        x = vectors.index_select(0, reading).view(2, -1, width).to(self.dtype)

        def put(outputs: Sequence[Tensor]) -> None:
            for level, y in enumerate(outputs, 1):
                flat[level, :, :width] = y[0].index_select(0, where)
                flat[level, :, width:] = y[1].index_select(0, where_back)

        if shape is not None:
            with self._lock:  # a recording has one place for its inputs and outputs
                put(self._recorded(shape, x))
        else:
            outputs, after = self._run(x, batch.sizes, self._start(state, first_row, batch, x))
            put(outputs)
            if state is not None:
                self._keep(state, first_row, batch, after)
        return Layers(flat, batch.lengths, boundaries)

    def _run(
        self, x: Tensor, sizes: Sequence[int], memory: Sequence[tuple[Tensor, Tensor]]
    ) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
        clips = self.config.cell_clip, self.config.projection_clip
        outputs, after = [], []
        for level, (weights, (h, c)) in enumerate(zip(self.weights, memory, strict=True)):
            y, h_last, c_last = infer(x, sizes, weights, h, c, *clips)
            x = y + x if level and self.config.residual else y
            outputs.append(x)
            after.append((h_last, c_last))
        return outputs, after

    def _zero(self, rows: int, like: Tensor) -> list[tuple[Tensor, Tensor]]:
        config = self.config
        return [
            (
                like.new_zeros(2, rows, config.projection),
                like.new_zeros(2, rows, config.cells, dtype=torch.float32),
            )
            for _ in range(config.layers)
        ]

    def _start(
        self, state: State | None, first_row: int, batch: Batch, like: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        rows = len(batch.order)
        if state is None:
            return self._zero(rows, like)
        order = torch.from_numpy(batch.order).to(like.device)
        out = []
        for level in range(self.config.layers):
            pairs = [
                state.get(f"{name}.{level}", first_row, rows, like[0].float(), self.config.cells)
                for name in ("forward", "backward")
            ]
            h, c = (torch.stack([pair[k][order] for pair in pairs]) for k in (0, 1))
            out.append((h, c))
        return out

    def _keep(
        self,
        state: State,
        first_row: int,
        batch: Batch,
        after: Sequence[tuple[Tensor, Tensor]],
    ) -> None:
        inverse = torch.from_numpy(np.argsort(batch.order)).to(after[0][0].device)
        for level, (h, c) in enumerate(after):
            for d, name in enumerate(("forward", "backward")):
                state.put(f"{name}.{level}", first_row, h[d][inverse].float(), c[d][inverse])

    def _recorded(self, shape: tuple[int, int], x: Tensor) -> list[Tensor]:
        """Run full rows, from a recording if there is one; a shape's second coming makes it."""
        steps, rows = shape
        sizes = [rows] * steps
        known = shape in self._shapes
        found = self._shapes.get(shape)
        if found is None:
            outputs, _ = self._run(x, sizes, self._zero(rows, x))
            if known:
                self._shapes[shape] = self._record(sizes, x)
            else:
                self._shapes[shape] = None
                while len(self._shapes) > SHAPES:
                    self._shapes.popitem(last=False)
            return outputs
        self._shapes.move_to_end(shape)
        return found(x)

    def _record(self, sizes: list[int], x: Tensor) -> _Recording:
        home = x.clone()
        torch.cuda.synchronize()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            outputs, _ = self._run(home, sizes, self._zero(sizes[0], home))
        return _Recording(graph, home, outputs)


class _Recording:
    """The LSTMs over rows of one shape."""

    def __init__(self, graph: torch.cuda.CUDAGraph, home: Tensor, outputs: list[Tensor]) -> None:
        self.graph, self.home, self.outputs = graph, home, outputs

    def __call__(self, x: Tensor) -> list[Tensor]:
        self.home.copy_(x)
        self.graph.replay()
        return self.outputs


def _shape(steps: int, rows: int) -> tuple[int, int] | None:
    """Return the next shape that is recorded, (steps, rows), or None if it is beyond all.

    >>> _shape(5, 3), _shape(9, 513)
    ((8, 4), None)
    """
    fitting = next((size for size in ROWS if size >= rows), None)
    return None if fitting is None else (-(-steps // STEPS) * STEPS, fitting)


_LOCK = threading.Lock()
_KNOWN: WeakKeyDictionary[nn.Module, tuple[tuple[object, ...], Stacks]] = WeakKeyDictionary()


def stacks(key: nn.Module, parts: Sequence[Sequence[LstmLayer]], dtype: torch.dtype) -> Stacks:
    """Return the prepared LSTMs of a network, made anew when its parameters have changed."""
    parameters = [p for part in parts for layer in part for p in layer.parameters()]
    now = (dtype, *((p.data_ptr(), p._version, p.dtype) for p in parameters))
    with _LOCK:
        known = _KNOWN.get(key)
        if known is None or known[0] != now:
            _KNOWN.pop(key, None)
            known = now, Stacks(parts, dtype)
            _KNOWN[key] = known
        return known[1]
