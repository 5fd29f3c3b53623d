"""LSTM layers with projection, and the state that a caller may carry from batch to batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchelmo.config import LstmConfig
from torchelmo.ops import reference


class LstmLayer(nn.Module):
    """One layer of one direction.

    Stored as bilm-tf stores it, but for torch's order of gates (input, forget, candidate, output):
    the forget bias of 1 is added at run time, so that files read and written again keep every bit.
    """

    def __init__(self, config: LstmConfig) -> None:
        super().__init__()
        cells, width = config.cells, config.projection
        self.config = config
        self.input_weight = nn.Parameter(torch.empty(4 * cells, width))
        self.recurrent_weight = nn.Parameter(torch.empty(4 * cells, width))
        self.bias = nn.Parameter(torch.zeros(4 * cells))
        self.projection_weight = nn.Parameter(torch.empty(width, cells)) if config.project else None
        # Glorot over the whole matrix that bilm-tf holds: 2P inputs, 4H outputs.
        bound = (6 / (2 * width + 4 * cells)) ** 0.5
        nn.init.uniform_(self.input_weight, -bound, bound)
        nn.init.uniform_(self.recurrent_weight, -bound, bound)
        if self.projection_weight is not None:
            nn.init.xavier_uniform_(self.projection_weight)

    def weights(self) -> reference.LstmWeights:
        """Return the weights as `ops` takes them, the forget bias added."""
        bias: Tensor = self.bias
        if self.config.forget_bias:
            cells = self.config.cells
            add = torch.zeros_like(bias)
            add[cells : 2 * cells] = self.config.forget_bias
            bias = bias + add
        return reference.LstmWeights(
            self.input_weight, self.recurrent_weight, bias, self.projection_weight
        )


class State:
    """What the LSTMs remember between batches, one row a batch row; empty (zero) at the start.

    Pass the same object to successive calls to carry state as the original programs did: row r of a
    batch goes on from what row r of the batch before left, and rows beyond the batch are kept.
    """

    def __init__(self) -> None:
        self._rows: dict[str, tuple[Tensor, Tensor]] = {}  # "forward.0" -> h (R, P), c (R, H)

    @property
    def rows(self) -> int:
        """How many batch rows have been seen."""
        return max((h.shape[0] for h, _ in self._rows.values()), default=0)

    def reset(self) -> None:
        """Forget everything."""
        self._rows = {}

    def copy(self) -> State:
        """Return a state that goes on from here apart from this one."""
        twin = State()
        twin._rows = dict(self._rows)  # the tensors are replaced, never changed
        return twin

    def become(self, other: State) -> None:
        """Take over what another state remembers."""
        self._rows = dict(other._rows)

    def get(self, name: str, first: int, rows: int, like: Tensor, cells: int) -> list[Tensor]:
        """Return h (rows, P) and c (rows, H) of a layer such as "forward.0", zero where unseen."""
        out = [like.new_zeros(rows, like.shape[1]), like.new_zeros(rows, cells)]
        for new, old in zip(out, self._rows.get(name, ()), strict=False):
            seen = old[first : first + rows].to(new)
            new[: seen.shape[0]] = seen
        return out

    def put(self, name: str, first: int, h: Tensor, c: Tensor) -> None:
        """Keep the final h and c of batch rows `first`, `first + 1`, ..."""
        old = self._rows.get(name, (h[:0], c[:0]))
        grown = []
        for kept, new in zip(old, (h.detach(), c.detach()), strict=True):
            rows = max(kept.shape[0], first + new.shape[0])
            buffer = new.new_zeros(rows, new.shape[1])
            buffer[: kept.shape[0]] = kept
            buffer[first : first + new.shape[0]] = new
            grown.append(buffer)
        self._rows[name] = (grown[0], grown[1])

    def tensors(self) -> dict[str, Tensor]:
        """Return everything as named tensors, for saving."""
        return {
            f"{name}.{part}": tensor
            for name, pair in self._rows.items()
            for part, tensor in zip("hc", pair, strict=True)
        }

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> State:
        """Make a state from what `tensors` gave."""
        state = cls()
        names = {name.rpartition(".")[0] for name in tensors}
        state._rows = {name: (tensors[f"{name}.h"], tensors[f"{name}.c"]) for name in names}
        return state
