"""A whole training step as one CUDA graph: one launch in place of thousands.

A graph has fixed shapes, and steps have as many distinct words as they happen to have. So the
table of words is padded up to one of a few sizes, and each size has a graph of its own. The first
step of a size runs in the ordinary way and is then recorded; later ones are copied to where it
lay, and replayed. What a step computes depends on that step alone, not on which came before, so a
run that goes on computes the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from torchelmo.pretrain.objective import Negatives, Ragged, Side, Step

WORDS, WINDOWS = 512, 8192  # sizes are multiples of these


def padded(step: Step) -> Step:
    """Return a step with its words, and their windows of characters, up to the next size."""
    table = step.words if step.characters is None else step.characters
    assert table is not None
    count = len(table)
    size = _up(count, WORDS)
    ragged = None
    if step.characters is not None:
        longest = step.characters.shape[1]
        spelt = np.ones(size, dtype=np.int32)
        spelt[:count] = step.spelt
        windows = int(np.minimum(spelt, longest - 1).sum()) + size
        ragged = Ragged(_send(spelt, table), _up(windows, WINDOWS))
    return replace(
        step,
        characters=_grown(step.characters, size),
        words=_grown(step.words, size),
        ragged=ragged,
        sides={name: _open(side) for name, side in step.sides.items()},
    )


class Recorder:
    """Runs `work` on steps, from graphs where it can."""

    def __init__(self, work: Callable[[Step], None], generator: torch.Generator) -> None:
        """Take what a step does, on tensors that stay where they are, and dropout's generator."""
        self._work, self._generator = work, generator
        self._graphs: dict[tuple[int, int], tuple[Step, torch.cuda.CUDAGraph]] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._held = 0  # bytes of the pool, which all recordings share

    def __call__(self, step: Step) -> None:
        """Run a step."""
        step = padded(step)
        size = _size(step)
        if size in self._graphs:
            home, graph = self._graphs[size]
            _copy(step, home)
            graph.replay()
            return
        self._make_room()
        self._work(step)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # what the step took: the recording takes as much of its own
        before = torch.cuda.memory_reserved()
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        # Only this thread is held to what a recording allows: batches are made in another.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            self._work(step)
        self._graphs[size] = step, graph
        self._held += torch.cuda.memory_reserved() - before

    def _make_room(self) -> None:
        """Forget all recordings if their memory is needed for a step that runs without one."""
        free, _ = torch.cuda.mem_get_info()
        if self._graphs and free < 1.1 * self._held:
            self._graphs, self._held = {}, 0
            self._pool = torch.cuda.graph_pool_handle()
            torch.cuda.empty_cache()


def _size(step: Step) -> tuple[int, int]:
    if step.ragged is not None:
        return len(step.ragged.spelt), step.ragged.windows
    assert step.words is not None
    return len(step.words), 0


def _copy(step: Step, home: Step) -> None:
    for new, old in zip(_tensors(step), _tensors(home), strict=True):
        old.copy_(new, non_blocking=True)


def _tensors(step: Step) -> list[Tensor]:
    found = [step.characters, step.words, step.ragged.spelt if step.ragged else None]
    for side in step.sides.values():
        found += [side.index, side.targets, side.resets]
        if side.negatives is not None:
            assert isinstance(side.negatives.tries, Tensor)
            found += [side.negatives.ids, side.negatives.log_expected, side.negatives.tries]
    return [tensor for tensor in found if tensor is not None]


def _grown(table: Tensor | None, size: int) -> Tensor | None:
    """Repeat the first row of a table until it has `size` rows."""
    if table is None:
        return None
    return torch.cat([table, table[:1].expand(size - len(table), *table.shape[1:])])


def _open(side: Side) -> Side:
    """Return a side whose count of draws is a tensor, so that a recording reads it."""
    drawn = side.negatives
    if drawn is None or isinstance(drawn.tries, Tensor):
        return side
    tries = torch.full((), float(drawn.tries), dtype=torch.float64, device=drawn.ids.device)
    return replace(side, negatives=Negatives(drawn.ids, drawn.log_expected, tries))


def _send(array: np.ndarray[tuple[int], np.dtype[np.int32]], like: Tensor) -> Tensor:
    tensor = torch.from_numpy(array)
    if like.is_cuda:
        tensor = tensor.pin_memory()
    return tensor.to(like.device, non_blocking=True)


def _up(value: int, unit: int) -> int:
    """Round up.

    >>> _up(1, 512), _up(512, 512), _up(513, 512)
    (512, 512, 1024)
    """
    return -(-value // unit) * unit
