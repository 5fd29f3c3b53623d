"""The processes that train together, as torchrun starts them; one process alone is the usual case.

The rows of the global batch are divided in order among the processes, so that the same text is read
in the same order by one, two or four of them, and a run can go on with another number.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from torchelmo.errors import InputError

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """This process's number among all."""

    rank: int
    world: int

    @classmethod
    def alone(cls) -> Processes:
        """Return the case of one process."""
        return cls(0, 1)

    @classmethod
    def join(cls, device: torch.device) -> Processes:
        """Join the processes that torchrun started; one alone if it did not."""
        if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls.alone()
        if not dist.is_available():
            raise InputError("torchrun was used, but this torch has no torch.distributed")
        if not dist.is_initialized():
            backend = "nccl" if device.type == "cuda" else "gloo"
            if os.environ.get("GROUP_WORLD_SIZE") == "1":
                _join_attempt(backend)
            else:
                dist.init_process_group(backend)
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def first(self) -> bool:
        """Whether this process writes and reports."""
        return self.rank == 0

    def share(self, batch: int) -> slice:
        """Return the rows of a batch that are this process's."""
        rows = batch // self.world
        return slice(self.rank * rows, (self.rank + 1) * rows)

    def wrap(self, model: nn.Module) -> nn.Module:
        """Let gradients be averaged over all processes."""
        return model if self.world == 1 else DistributedDataParallel(model)

    def quiet(self, model: nn.Module, *, unless: bool) -> contextlib.AbstractContextManager[None]:
        """Return a context in which gradients only add up, `unless` they are to be averaged."""
        if unless or not isinstance(model, DistributedDataParallel):
            return contextlib.nullcontext()
        return model.no_sync()

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes in order."""
        if self.world == 1:
            return rows
        parts = [torch.empty_like(rows) for _ in range(self.world)]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    def gather_states(self, state: Tensor) -> list[Tensor]:
        """Return the random state of each process."""
        if self.world == 1:
            return [state]
        out: list[Tensor | None] = [None] * self.world
        dist.all_gather_object(out, state)
        return [s for s in out if s is not None]

    def mean(self, value: Tensor) -> Tensor:
        """Return the mean of a number over all processes."""
        if self.world > 1:
            value = value.clone()
            dist.all_reduce(value)
            value /= self.world
        return value

    def any(self, value: bool) -> bool:
        """Return whether any process says so."""
        if self.world == 1:
            return value
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        flag = torch.tensor(int(value), device=device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    def tell(self, value: T) -> T:
        """Return the first process's value in all."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box)
        return box[0]

    def wait(self) -> None:
        """Wait for all processes."""
        if self.world > 1:
            dist.barrier()


def _join_attempt(backend: str) -> None:
    """Join the processes of one machine, which torchrun may have started before.

    It restarts them over one store. Names of their own keep them from finding the addresses of
    those that died, for which they would wait for ever. Over several machines the restarts are not
    counted alike, so this is for one alone.
    """
    from torch.distributed.rendezvous import rendezvous

    store, rank, world = next(rendezvous("env://"))
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    own = dist.PrefixStore(f"attempt-{restarts}", store)  # type: ignore[attr-defined]  # unlisted
    dist.init_process_group(backend, store=own, rank=rank, world_size=world)
