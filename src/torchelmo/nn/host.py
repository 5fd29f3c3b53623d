"""Layers to host memory: from a GPU in pieces beside its work; an array of its own a sentence."""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchelmo.nn.output import Layers
from torchelmo.ops import threads

Array = npt.NDArray[np.float32]
Sent = tuple[list[int], Layers, torch.cuda.Event | None]  # with an event: on its way
# Results of a GPU go to host memory in pieces. Where they are taken as they come, so much is on its
# way at once (more than a batch: the next one is computed meanwhile); where each sentence gets an
# array, so many pieces, for each of which a thread waits.
HOST_PIECE, HOST_BYTES = 64 << 20, 512 << 20
OWN_PIECE, OWN_PIECES = 16 << 20, 8


def on_host(
    batches: Iterable[tuple[list[int], Layers]],
) -> Iterator[tuple[list[int], Layers]]:
    """Yield batches in host memory; those of a GPU in pieces, each while the next are on their way.

    Its next batch is computed while the last pieces of one are waited for or used.
    """
    begun: deque[Sent] = deque()
    held = 0
    for piece in _sent(batches, HOST_PIECE):
        begun.append(piece)
        held += piece[1].flat.nbytes
        while begun and (held > HOST_BYTES or piece[2] is None):
            held -= begun[0][1].flat.nbytes
            yield _arrived(*begun.popleft())
    while begun:
        yield _arrived(*begun.popleft())


def _sent(batches: Iterable[tuple[list[int], Layers]], size: int) -> Iterator[Sent]:
    """Begin to copy batches of a GPU to host memory, in pieces of so many bytes."""
    for numbers, layers in batches:
        if not layers.flat.is_cuda:
            yield numbers, layers, None
            continue
        tokens = size * layers.flat.shape[1] // max(layers.flat.nbytes, 1)
        for few, part in _pieces(numbers, layers, tokens):
            yield few, *_fetch(part)


def _arrived(
    numbers: list[int], layers: Layers, done: torch.cuda.Event | None
) -> tuple[list[int], Layers]:
    if done is not None:
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
    """Yield batches as arrays of sentences; a GPU's are copied by threads, beside what it does."""
    pieces = _sent(batches, OWN_PIECE)
    begun = deque(itertools.islice(pieces, 1))
    if begun and begun[0][2] is not None:  # threads are for more than one piece
        begun.extend(itertools.islice(pieces, 1))
    most = OWN_PIECES if len(begun) > 1 else 1

    def work() -> Iterator[Callable[[], tuple[list[int], list[Array]]]]:
        while begun:
            yield partial(_own, *begun.popleft())
        for piece in pieces:
            yield partial(_own, *piece)

    yield from threads.ahead(work(), most)


def _own(
    numbers: list[int], layers: Layers, done: torch.cuda.Event | None
) -> tuple[list[int], list[Array]]:
    """Copy each sentence to an array of its own, in host memory."""
    (levels, _, width), dtype = layers.flat.shape, layers.flat.numpy().dtype
    out = [np.empty((levels, count, width), dtype) for count in layers.lengths]
    homes = [torch.from_numpy(home) for home in out]
    _arrived(numbers, layers, done)
    torch.split_with_sizes_copy(layers.flat, list(layers.lengths), dim=1, out=homes)
    return numbers, out
