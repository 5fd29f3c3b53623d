"""The bidirectional language model: a token layer and two separate stacks of LSTMs.

The forward stack reads `<S> w1 .. wn </S>`, the backward stack the same from the right. They share
the token layer and nothing else; no layer sees the other direction. From the second layer on, a
layer's input is added to its output (after the clip, and not to the recurrent state).

A step whose output nobody sees is left out: without carried state and without boundaries in the
output, the forward stack need not read `</S>` nor the backward stack `<S>`. No number changes by
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from torchelmo.config import ElmoConfig
from torchelmo.nn import gpu, prepared
from torchelmo.nn.char_cnn import TokenLayer
from torchelmo.nn.lstm import LstmLayer, State
from torchelmo.nn.output import Layers
from torchelmo.nn.packing import Integers
from torchelmo.ops.lstm import lstmp
from torchelmo.ops.packed import Precision

Direction = Literal["forward", "backward"]
DIRECTIONS: tuple[Direction, Direction] = ("forward", "backward")
Memory = list[tuple[Tensor, Tensor]]  # h (B, P) and c (B, H) of each layer of one direction


class BiLM(nn.Module):
    """Token vectors in, all layers out."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.config = config
        self.precision: Precision = "float32"  # of products where no gradients are wanted
        self.token = TokenLayer(config)
        count = config.lstm.layers
        self.forward_layers = nn.ModuleList(LstmLayer(config.lstm) for _ in range(count))
        self.backward_layers = nn.ModuleList(LstmLayer(config.lstm) for _ in range(count))

    def forward(
        self,
        vectors: Tensor,
        index: Tensor,
        lengths: Sequence[int],
        *,
        state: State | None = None,
        first_row: int = 0,
        boundaries: bool = False,
    ) -> Layers:
        """Contextualise a batch.

        Args:
            vectors: (U, P), the token layer's vectors of the batch's distinct words.
            index: (B, T+2), which vector stands where: `<S>`, the words, `</S>`, then anything.
            lengths: words of each sentence, boundaries not counted.
            state: carries memory between batches; None starts every sentence from zero.
            first_row: the state's row that belongs to the first sentence.
            boundaries: keep `<S>` and `</S>` in the output.
        """
        if self.is_quick(vectors):
            ends = np.array(lengths, dtype=np.int64)[:, None] + 1
            words = index.cpu().numpy()[np.arange(index.shape[1]) <= ends]
            return self.quick(vectors, words, lengths, state, first_row, boundaries)
        index = index.to(vectors.device)
        whole = boundaries or state is not None
        steps = _Steps(lengths, 2 if whole else 1, index.device)
        rows, times = steps.rows, steps.times
        sentence = torch.arange(steps.total.shape[0], device=index.device)
        last = torch.as_tensor(list(lengths), device=index.device) + 1  # position of </S>

        places = torch.stack([times, last[rows] - times])  # (2, N), from the left and right
        x = vectors[index[rows, places]]  # (2, N, P) packed
        outputs = self._batch(x, steps, state, first_row)
        # where[d, r, p]: the packed row that holds position p of sentence r
        where = index.new_zeros(2, *index.shape)
        side = torch.arange(2, device=index.device).unsqueeze(1)
        where[side, rows, places] = torch.arange(rows.shape[0], device=index.device)

        begin, extra = (0, 2) if boundaries else (1, 0)
        out_lengths = tuple(n + extra for n in lengths)
        place = torch.as_tensor(out_lengths, device=index.device)
        sentence = sentence.repeat_interleave(place)  # (M,) the sentence of each output row
        start = (place.cumsum(0) - place)[sentence]
        position = torch.arange(sentence.shape[0], device=index.device) - start + begin
        token = vectors[index[sentence, position]]  # (M, P)
        layers = [torch.cat([token, token], dim=1)]
        for level in range(len(self.forward_layers)):
            sides = [outputs[level][d, where[d, sentence, position]] for d in (0, 1)]
            layers.append(torch.cat(sides, dim=1))
        return Layers(torch.stack(layers), out_lengths, boundaries)

    def quick(
        self,
        vectors: Tensor,
        words: Integers,
        lengths: Sequence[int],
        state: State | None = None,
        first_row: int = 0,
        boundaries: bool = False,
    ) -> Layers:
        """Do what `forward` does, where `is_quick`, with prepared weights.

        `words` are the vectors that stand in the sentences: `<S>`, the words, `</S>`, one sentence
        after the other.
        """
        run: prepared.Stacks | gpu.Stacks
        if vectors.is_cuda:
            run = self.on_gpu(vectors)
        else:
            run = prepared.stacks(self, self._parts(), self.precision)
        return run(vectors, words, lengths, state, first_row, boundaries)

    def on_gpu(self, vectors: Tensor) -> gpu.Stacks:
        """Return the prepared LSTMs, where `is_quick` and vectors are on a GPU."""
        dtype = vectors.dtype if self.precision == "float32" else torch.bfloat16
        return gpu.stacks(self, self._parts(), dtype)

    def _parts(self) -> list[list[LstmLayer]]:
        return [cast(list[LstmLayer], s) for s in (self.forward_layers, self.backward_layers)]

    @staticmethod
    def is_quick(vectors: Tensor) -> bool:
        """Whether a pass over such vectors, as torch is set now, can use prepared weights."""
        where = vectors.device, vectors.dtype
        return prepared.applies(*where) or gpu.applies(*where)

    def stack(
        self,
        direction: Direction,
        x: Tensor,
        sizes: Sequence[int],
        memory: Memory,
        resets: Tensor | None = None,
        dropout: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[list[Tensor], Memory]:
        """Run one direction over rows of inputs that are in its order of reading already.

        Args:
            direction: which stack.
            x: (N, P) packed: all rows that take step 0, then all that take step 1, and so on, rows
                by falling length. B full rows of T steps are (T, B, P) flattened.
            sizes: how many rows take each step, never rising.
            memory: where the rows start from.
            resets: (N,), true where a row's state is zeroed before the step.
            dropout: applied to the input of every layer; the residual adds that dropped input.

        Returns:
            Each layer's outputs, (N, P), and the memory after the last step, without gradients.
        """
        marks = None if resets is None else resets.unsqueeze(0)
        outputs, (after,) = self.stacks(
            [direction], x.unsqueeze(0), sizes, [memory], marks, dropout
        )
        return [layer[0] for layer in outputs], after

    def stacks(
        self,
        directions: Sequence[Direction],
        x: Tensor,
        sizes: Sequence[int],
        memories: Sequence[Memory],
        resets: Tensor | None = None,
        dropout: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[list[Tensor], list[Memory]]:
        """Run directions side by side: as `stack`, with x (D, N, P) and resets (D, N)."""
        lstm = self.config.lstm
        sides = [
            self.forward_layers if name == "forward" else self.backward_layers
            for name in directions
        ]
        outputs: list[Tensor] = []
        after: list[Memory] = [[] for _ in directions]
        for level in range(lstm.layers):
            x = dropout(x) if dropout else x
            weights = [cast(LstmLayer, layers[level]).weights() for layers in sides]
            h, c = (torch.stack([memory[level][k] for memory in memories]) for k in (0, 1))
            clips = lstm.cell_clip, lstm.projection_clip
            y, h, c = lstmp(x, sizes, weights, h, c, *clips, resets)
            x = y + x if level > 0 and lstm.residual else y
            outputs.append(x)
            for own, h_own, c_own in zip(after, h.detach(), c.detach(), strict=True):
                own.append((h_own, c_own))
        return outputs, after

    def zero_memory(self, rows: int) -> Memory:
        """Return the memory of one direction that has read nothing."""
        like, lstm = next(self.parameters()), self.config.lstm
        return [
            (like.new_zeros(rows, lstm.projection), like.new_zeros(rows, lstm.cells))
            for _ in range(lstm.layers)
        ]

    def _batch(self, x: Tensor, steps: _Steps, state: State | None, first_row: int) -> list[Tensor]:
        """Run both directions over sentences; return each layer's packed outputs (2, N, P)."""
        cells, batch = self.config.lstm.cells, steps.total.shape[0]
        start = state or State()
        memories: list[Memory] = []
        for name in DIRECTIONS:
            memories.append([])
            for level in range(self.config.lstm.layers):
                h, c = start.get(f"{name}.{level}", first_row, batch, x[0], cells)
                memories[-1].append((h[steps.order], c[steps.order]))
        outputs, after = self.stacks(DIRECTIONS, x, steps.sizes, memories)
        if state is not None:
            for name, memory in zip(DIRECTIONS, after, strict=True):
                for level, (h, c) in enumerate(memory):
                    state.put(f"{name}.{level}", first_row, h[steps.inverse], c[steps.inverse])
        return outputs


class _Steps:
    """The packed order of a ragged batch: step by step, longest sentences first."""

    def __init__(self, lengths: Sequence[int], extra: int, device: torch.device) -> None:
        self.total = torch.tensor(list(lengths), dtype=torch.long) + extra  # steps of each row
        order = torch.argsort(self.total, descending=True, stable=True)
        longest = int(self.total.max()) if len(lengths) else 0
        active = torch.arange(longest).unsqueeze(1) < self.total[order]  # (T, B)
        self.sizes: list[int] = active.sum(dim=1).tolist()
        times, sorted_rows = active.nonzero(as_tuple=True)  # (N,), step after step
        self.order = order.to(device)
        self.inverse = torch.argsort(order).to(device)
        self.rows, self.times = order[sorted_rows].to(device), times.to(device)
