"""Layers to host memory: from a GPU in pieces beside its work; an array of its own a sentence."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchelmo.nn.output import Layers
from torchelmo.ops import threads

Array = npt.NDArray[np.float32]
# Results that go to host memory: in pieces, of which so much is on its way at once (more than a
# batch: the next one is computed meanwhile); and how much more than one thread copies from there.
HOST_PIECE, HOST_BYTES, SHARED_BYTES = 64 << 20, 512 << 20, 32 << 20


def on_host(
    batches: Iterable[tuple[list[int], Layers]],
) -> Iterator[tuple[list[int], Layers]]:
    """Yield batches in host memory; those of a GPU in pieces, each while the next are on their way.

    Its next batch is computed while the last pieces of one are waited for or used.
    """
    begun: deque[tuple[list[int], Layers, torch.cuda.Event]] = deque()
    held = 0
    for numbers, layers in batches:
        if not layers.flat.is_cuda:
            yield numbers, layers
            continue
        tokens = HOST_PIECE * layers.flat.shape[1] // max(layers.flat.nbytes, 1)
        for few, part in _pieces(numbers, layers, tokens):
            begun.append((few, *_fetch(part)))
            held += part.flat.nbytes
            while held > HOST_BYTES:
                held -= begun[0][1].flat.nbytes
                yield _arrived(*begun.popleft())
    while begun:
        yield _arrived(*begun.popleft())


def _arrived(
    numbers: list[int], layers: Layers, done: torch.cuda.Event
) -> tuple[list[int], Layers]:
    done.synchronize()
    return numbers, layers


def _pieces(numbers: list[int], layers: Layers, tokens: int) -> Iterator[tuple[list[int], Layers]]:
    """Cut a batch between sentences, into pieces of so many tokens, one sentence at least."""
    if layers.flat.shape[1] <= tokens:
        yield numbers, layers
        return
    ends = np.cumsum(layers.lengths)
    first, start = 0, 0
    while first < len(numbers):
        last = max(int(np.searchsorted(ends, start + tokens, side="right")), first + 1)
        end = int(ends[last - 1])
        part = replace(layers, flat=layers.flat[:, start:end], lengths=layers.lengths[first:last])
        yield numbers[first:last], part
        first, start = last, end


def _fetch(layers: Layers) -> tuple[Layers, torch.cuda.Event]:
    """Begin to copy layers to host memory, beside what the GPU does next."""
    source = layers.flat
    flat = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
    stream = _side_stream(source.device)
    stream.wait_stream(torch.cuda.current_stream(source.device))
    with torch.cuda.stream(stream):
        if source.is_contiguous():
            flat.copy_(source, non_blocking=True)
        else:  # each layer is in one piece
            for home, layer in zip(flat, source, strict=True):
                home.copy_(layer, non_blocking=True)
        done = torch.cuda.Event()
        done.record()
    source.record_stream(stream)
    return replace(layers, flat=flat), done


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def apart(layers: Layers) -> list[Tensor]:
    """Return each sentence's layers in memory of its own, not views that keep the whole batch."""
    return [piece.clone() for piece in layers.split()]


def arrays(
    batches: Iterable[tuple[list[int], Layers]],
) -> Iterator[tuple[list[int], list[Array]]]:
    """Yield batches as arrays of sentences; a GPU's small ones are copied several at a time."""
    numbers: list[int] = []
    waiting: list[Layers] = []
    held = 0
    for few, layers in on_host(batches):
        numbers += few
        waiting.append(layers)
        held += layers.flat.nbytes
        if held >= SHARED_BYTES or not layers.flat.is_pinned():
            yield numbers, _copied(waiting)
            numbers, waiting, held = [], [], 0
    yield numbers, _copied(waiting)


def _copied(batches: Sequence[Layers]) -> list[Array]:
    """Return the arrays of batches in host memory."""
    shared = sum(layers.flat.nbytes for layers in batches) >= SHARED_BYTES
    # One core copies more slowly than a GPU computes.
    count = max(threads.count(), 1) if shared else 1
    size = -(-sum(layers.flat.shape[1] for layers in batches) // count)  # tokens of a part
    out: list[Array] = []
    work = []
    for layers in batches:
        for _, part in _pieces(list(range(len(layers.lengths))), layers, size):
            (levels, _, width), dtype = part.flat.shape, part.flat.numpy().dtype
            own = [np.empty((levels, n, width), dtype) for n in part.lengths]
            work.append(partial(_split, part, own))
            out += own
    threads.run(work)
    return out


def _split(layers: Layers, out: Sequence[Array]) -> None:
    homes = [torch.from_numpy(home) for home in out]
    torch.split_with_sizes_copy(layers.flat, list(layers.lengths), dim=1, out=homes)
