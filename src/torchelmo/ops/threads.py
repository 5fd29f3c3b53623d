"""Threads for work that falls into parts by itself, such as the two directions of a biLM.

Torch splits each operation among threads that wait for each other after each of them: hundreds of
times for a sentence, and while they wait they keep their cores busy. Where other programs use the
cores too, this makes an LSTM many times as slow as one thread does. Here each part of the work runs
in one thread from beginning to end, and the results do not depend on how many threads there are.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Literal, TypeVar

import torch

T = TypeVar("T")

_COUNT: ContextVar[int | None] = ContextVar("_COUNT", default=None)  # set inside `serial`


def count() -> int:
    """Return how many threads may work at a time, `torch.get_num_threads()` of the caller."""
    return _COUNT.get() or torch.get_num_threads()


@contextmanager
def serial() -> Iterator[None]:
    """Let torch use no other threads for what this one does itself; `run` still does."""
    threads = torch.get_num_threads()
    token = _COUNT.set(count())
    if threads > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if threads > 1:
            torch.set_num_threads(threads)
        _COUNT.reset(token)


def run(parts: Sequence[Callable[[], T]]) -> list[T]:
    """Do independent parts of work that need no gradients; return their results in order.

    >>> run([lambda: 1, lambda: 2])
    [1, 2]
    """
    threads = count()
    if threads == 1 or len(parts) < 2 or getattr(_WORKER, "here", False):
        return [part() for part in parts]
    pool, inference = _pool("run", threads), torch.is_inference_mode_enabled()
    futures = [pool.submit(_part, part, inference) for part in parts]
    return [future.result() for future in futures]


def ahead(parts: Iterable[Callable[[], T]], most: int) -> Iterator[T]:
    """Yield the results of parts in order, with up to `most` of them begun before their turn.

    A part may call `run`, not `ahead`. When the caller stops early, those that were begun end in
    the background.
    """
    if most < 2:
        for part in parts:
            yield part()
        return
    begun: deque[Future[T]] = deque()
    pool, inference = _pool("ahead", most), torch.is_inference_mode_enabled()
    try:
        for part in parts:
            context = copy_context()  # one each: a context can be entered once at a time
            context.run(_COUNT.set, count())
            begun.append(pool.submit(context.run, _part, part, inference))
            if len(begun) == most:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        for future in begun:
            future.cancel()


_WORKER = threading.local()
_LOCK = threading.Lock()
_POOLS: dict[tuple[int, str, int], ThreadPoolExecutor] = {}  # by process, as it may fork


def _pool(name: Literal["run", "ahead"], threads: int) -> ThreadPoolExecutor:
    key = os.getpid(), name, threads
    with _LOCK:
        if key not in _POOLS:
            begin = _begin_worker if name == "run" else _begin
            pool = ThreadPoolExecutor(threads, f"torchelmo-{name}", begin)
            started = threading.Barrier(threads + 1)
            for _ in range(threads):
                pool.submit(started.wait)
            started.wait()
            # `set_num_threads` is for its own thread and those that start later: for the latter
            # take the workers' setting back.
            torch.set_num_threads(torch.get_num_threads())
            _POOLS[key] = pool
        return _POOLS[key]


def _begin_worker() -> None:
    _WORKER.here = True
    _begin()


def _begin() -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # a thread's first use of the number fixes it


def _part(part: Callable[[], T], inference: bool) -> T:
    with torch.inference_mode() if inference else torch.no_grad():  # both belong to a thread
        return part()


def _forked() -> None:
    global _LOCK
    _LOCK = threading.Lock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
