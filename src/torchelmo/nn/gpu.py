"""A biLM's LSTMs on a GPU without gradients: weights prepared once, segments of batches recorded.

Gives what `BiLM.forward` gives, up to rounding. Starting kernels one by one takes longer than small
ones run. So a batch, its sentences sorted by length, is cut into segments: some steps of as many
rows as are not at their end yet, filled up to one of a few shapes. Each shape is recorded as a CUDA
graph when it comes for the second time. The memory of the rows stays where the graphs find it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from torchelmo.nn.lstm import LstmLayer, State
from torchelmo.nn.output import Layers
from torchelmo.nn.packing import Batch, Integers
from torchelmo.ops import backend
from torchelmo.ops.lstm import Prepared, infer, prepare

if TYPE_CHECKING:
    from torchelmo.ops.triton_rows import Segment

SHAPES = 128  # recorded at most
# Steps of a segment: for many rows fewer kinds, as each segment takes the host some time.
STEPS, WIDE_STEPS = (64, 56, 48, 40, 36, 32, 28, 24, 20, 16, 12, 8, 4), (64, 48, 40, 32, 24, 16, 8)
NARROW = 64  # rows
ROWS = (
    *(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512),
    *(640, 768, 896, 1024, 1280, 1536, 1792, 2048),
)
SLACK = 512  # rows times steps that may be read for nothing, or an eighth of the segment
LARGEST = 1 << 14  # rows times steps of a segment


def applies(device: torch.device, dtype: torch.dtype, *, grad: bool | None = None) -> bool:
    """Whether a pass over such vectors, as torch is set now, goes this way."""
    return (
        device.type == "cuda"
        and dtype.itemsize <= 4
        and not (torch.is_grad_enabled() if grad is None else grad)
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
        self._home: _Home | None = None

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
        if state is not None:
            return self._carried(vectors, words, lengths, state, first_row, boundaries)
        counts = np.array(lengths, dtype=np.int64)
        ends = np.cumsum(counts + 2)
        inside = np.ones(len(words), dtype=bool)
        inside[ends - 1] = inside[ends - counts - 2] = False
        inner = send((words[inside] - 2).astype(np.int32), vectors.device)
        return self.flat(vectors, inner, np.cumsum(counts) - counts, counts, boundaries)

    def flat(
        self, vectors: Tensor, words: Tensor, starts: Integers, counts: Integers, boundaries: bool
    ) -> Layers:
        """Contextualise some sentences of a text, each from zero.

        `words` is the text, (N,) int32, of words whose vectors are `vectors[2 + n]`; `starts` and
        `counts` say where in it the sentences are.
        """
        from torchelmo.ops import triton_rows

        kept = counts + 2 if boundaries else counts
        order = np.argsort(-counts, kind="stable")
        rows = starts[order], counts[order], (np.cumsum(kept) - kept)[order]
        table = np.stack(rows).astype(np.int32)
        sentences = triton_rows.Sentences(words, send(table, vectors.device), boundaries)
        width = vectors.shape[1]
        flat = vectors.new_empty(
            self.config.layers + 1, int(kept.sum()), 2 * width, dtype=torch.float32
        )
        steps = counts[order] + (2 if boundaries else 1)
        with self._lock:  # there is one place for the rows' memory
            home = self._enter(vectors)
            for first in range(0, len(steps), ROWS[-1]):
                parts = segments(steps[first : first + ROWS[-1]], first)
                for part in parts:
                    x = home.x(part.steps * part.rows)
                    triton_rows.read(vectors, sentences, part, x, flat)
                    y = home(part.steps, part.rows, fresh=part.begin == 0)
                    triton_rows.write(y, sentences, part, flat)
        return Layers(flat, tuple(kept.tolist()), boundaries)

    def _enter(self, like: Tensor) -> _Home:
        if self._home is None:
            self._home = _Home(self, like)
        if like.is_cuda:
            self._home.follow(torch.cuda.current_stream(like.device))
        return self._home

    def run(
        self, x: Tensor, sizes: Sequence[int], memory: Sequence[tuple[Tensor, Tensor]]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return each layer's outputs and last h; the memory's c becomes the last one."""
        clips = self.config.cell_clip, self.config.projection_clip
        outputs, after = [], []
        for level, (weights, (h, c)) in enumerate(zip(self.weights, memory, strict=True)):
            y, h_last = infer(x, sizes, weights, h, c, *clips)
            x = y + x if level and self.config.residual else y
            outputs.append(x)
            after.append(h_last)
        return outputs, after

    def _carried(
        self,
        vectors: Tensor,
        words: Integers,
        lengths: Sequence[int],
        state: State,
        first_row: int,
        boundaries: bool,
    ) -> Layers:
        """Contextualise a batch whose rows' memory comes from a state and goes back to it."""
        batch = Batch(words, lengths, whole=True, boundaries=boundaries)
        sent = [batch.tokens(), *batch.places(0), *batch.places(1)]
        numbers = send(np.concatenate(sent).astype(np.int32), vectors.device)
        tokens, read, where, read_back, where_back = numbers.split([len(part) for part in sent])
        width = vectors.shape[1]
        flat = vectors.new_empty(self.config.layers + 1, batch.rows, 2 * width, dtype=torch.float32)
        token = vectors.index_select(0, tokens)
        flat[0, :, :width] = token
        flat[0, :, width:] = token
        reading = torch.cat([read, read_back])
        x = vectors.index_select(0, reading).view(2, -1, width).to(self.dtype)
        memory = self._start(state, first_row, batch, x)
        outputs, after = self.run(x, batch.sizes, memory)
        for level, y in enumerate(outputs, 1):
            flat[level, :, :width] = y[0].index_select(0, where)
            flat[level, :, width:] = y[1].index_select(0, where_back)
        inverse = torch.from_numpy(np.argsort(batch.order)).to(x.device)
        for level, (h, (_, c)) in enumerate(zip(after, memory, strict=True)):
            for d, name in enumerate(("forward", "backward")):
                state.put(f"{name}.{level}", first_row, h[d][inverse].float(), c[d][inverse])
        return Layers(flat, batch.lengths, boundaries)

    def _start(
        self, state: State, first_row: int, batch: Batch, like: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        rows = len(batch.order)
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


_Shape = tuple[int, int, bool]  # steps, rows, and whether rows start from zero


class _Home:
    """Where segments are computed: inputs, outputs and the rows' memory, at fixed places."""

    def __init__(self, stacks: Stacks, like: Tensor) -> None:
        config = stacks.config
        self._run, self._levels, self._width = stacks.run, config.layers, config.projection
        self._x = like.new_empty(2 * LARGEST * self._width, dtype=stacks.dtype)
        self._y = like.new_empty(config.layers * len(self._x), dtype=stacks.dtype)
        rows = ROWS[-1]
        self._memory = [
            (
                like.new_empty(2, rows, config.projection, dtype=stacks.dtype),
                like.new_empty(2, rows, config.cells, dtype=torch.float32),
            )
            for _ in range(config.layers)
        ]
        self._graphs: OrderedDict[_Shape, torch.cuda.CUDAGraph | None] = OrderedDict()
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None

    def follow(self, stream: torch.cuda.Stream) -> None:
        """Let a stream wait for the one that was here before."""
        if self._stream is not None and self._stream != stream:
            stream.wait_stream(self._stream)
        self._stream = stream

    def x(self, count: int) -> Tensor:
        """Return the place of inputs, (2, S * R, P)."""
        return self._x[: 2 * count * self._width].view(2, count, self._width)

    def __call__(self, steps: int, rows: int, *, fresh: bool) -> Tensor:
        """Go on with rows, or start fresh ones; return the place of outputs, (L, 2, S * R, P)."""
        shape = steps, rows, fresh
        graph = self._graphs.get(shape)
        if graph is not None:
            self._graphs.move_to_end(shape)
            graph.replay()
        elif shape in self._graphs and self._x.is_cuda:
            self._graphs[shape] = graph = self._record(shape)
            graph.replay()
        else:
            self._graphs[shape] = None
            self._compute(shape)
            while len(self._graphs) > SHAPES:
                self._graphs.popitem(last=False)
        return self._outputs(steps * rows)

    def _outputs(self, count: int) -> Tensor:
        y = self._y[: 2 * self._levels * count * self._width]
        return y.view(self._levels, 2, count, self._width)

    def _compute(self, shape: _Shape) -> None:
        steps, rows, fresh = shape
        memory = [(h[:, :rows], c[:, :rows]) for h, c in self._memory]
        if fresh:
            for tensor in chain.from_iterable(memory):
                tensor.zero_()
        outputs, after = self._run(self.x(steps * rows), [rows] * steps, memory)
        for (h, _), last in zip(memory, after, strict=True):
            h.copy_(last)
        torch.stack(outputs, out=self._outputs(steps * rows))

    def _record(self, shape: _Shape) -> torch.cuda.CUDAGraph:
        torch.cuda.synchronize()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            self._compute(shape)
        return graph


def segments(steps: Integers, first: int = 0) -> list[Segment]:
    """Cut rows of so many steps, the longest first, into segments of the shapes that are recorded.

    >>> segments(np.array([20, 9, 3]))
    [Segment(first=0, sentences=3, begin=0, steps=20, rows=4)]
    """
    from torchelmo.ops.triton_rows import Segment

    found, begin, longest = [], 0, int(steps[0])
    falling = -steps
    while begin < longest:
        count = int(np.searchsorted(falling, -begin, side="left"))
        rows = next(size for size in ROWS if size >= count)
        left = steps[:count] - begin
        steps_of = STEPS if rows <= NARROW else WIDE_STEPS
        most = min(left[0] + steps_of[-1] - 1, LARGEST // rows)
        lengths = np.array([length for length in steps_of if length <= most])
        work = np.minimum(left[:, None], lengths).sum(axis=0)
        fitting = lengths * rows - work <= np.maximum(work // 8, SLACK)
        length = int(lengths[fitting.argmax()] if fitting.any() else lengths[-1])
        found.append(Segment(first, count, begin, length, rows))
        begin += length
    return found


def send(numbers: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Return numbers on the device, without waiting for it."""
    sent = torch.from_numpy(numbers)
    return sent.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else sent


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
