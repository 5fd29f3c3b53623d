"""The same function over many tasks: in this process, or in several, results in order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import TypeVar

from torchelmo.errors import InputError

T = TypeVar("T")
R = TypeVar("R")


class Workers:
    """A context with `map`; the processes are spawned, so that threads and devices do no harm."""

    def __init__(self, count: int) -> None:
        """Take the number of processes; one is this process itself."""
        self.count = count
        self._pool: ProcessPoolExecutor | None = None

    def map(self, function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """Yield results in the order of the tasks, few of which are taken ahead."""
        if self._pool is None:
            yield from map(function, tasks)
            return
        waiting: deque[Future[R]] = deque()
        try:
            for task in tasks:
                waiting.append(self._pool.submit(function, task))
                if len(waiting) > self.count + 1:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise InputError(
                f"one of the {self.count} worker processes was killed, most likely for want of "
                "memory: use fewer workers"
            ) from None

    def __enter__(self) -> Workers:
        if self.count > 1:
            self._pool = ProcessPoolExecutor(
                self.count,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def _start() -> None:
    """Leave ^C to the parent, and end with it even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)
