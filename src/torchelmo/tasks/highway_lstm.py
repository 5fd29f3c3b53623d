"""The deep LSTM of He et al. (2017): directions that alternate, highways, recurrent dropout.

Layer l reads the outputs x of the layer below, the even ones from left to right, the odd ones from
right to left, and has one direction:

    g = tanh(...), i, f, o, r = sigmoid(...)          each of W x_t + U h_{t-1} + b
    c_t = f c_{t-1} + i g
    h_t = z (r (o tanh c_t) + (1 - r) W_p x_t + b_p)  z: dropout, one mask a text and layer

h_t, dropout and highway included, goes both to the next step and to the layer above.

No library has this cell in one kernel, so the steps are a loop. All that can be is outside it: the
products with x, the gradient of U. Texts are packed, longest first, so no step computes padding,
and a text read from the right begins at its own last word. A step is one product and about seven
small operations, six on the way back; on a GPU one kernel takes their place (`triton_highway`).
Under autocast steps are float32 on a CPU; on a GPU cells are, and products are in 16 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from torchelmo.ops import threads
from torchelmo.ops.backend import choose
from torchelmo.tasks.data import move
from torchelmo.tasks.packing import pack, unpack

RECURRENT, ALL = 5, 6  # g i f o r depend on the step before, the highway's W_p x does not
FORGET = 2
SMALL = 1 << 22  # multiplications of a step on a CPU, about 0.1 ms, that are not worth two threads


class Way(NamedTuple):
    """One direction through packed texts of S steps and N words."""

    sizes: tuple[int, ...]  # texts that have a word at each step, from the left
    order: tuple[int, ...]  # the steps, in the order they are read
    before: Tensor  # (N) the packed row of the word read before, 0 if there is none
    inner: Tensor  # (N, 1) whether there is one

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each step's rows begin."""
        return (0, *accumulate(self.sizes[:-1]))

    def shared(self, number: int) -> int:
        """How many texts have a word both at the `number`th step read and at the one before."""
        if number == 0:
            return 0
        return min(self.sizes[self.order[number]], self.sizes[self.order[number - 1]])


def ways(sizes: Sequence[int], device: torch.device) -> tuple[Way, Way]:
    """Return the two directions through packed texts: from the left, from the right.

    >>> left, right = ways([2, 1], torch.device("cpu"))  # a text of two words and one of one
    >>> left.inner.flatten().tolist(), right.before.tolist()
    ([False, False, True], [2, 0, 0])
    """
    counts = torch.tensor(sizes)
    row = torch.arange(int(counts.sum()))
    step = torch.repeat_interleave(torch.arange(len(sizes)), counts)
    place = row - (counts.cumsum(0) - counts)[step]  # which text of its step
    nothing = torch.zeros(1, dtype=torch.long)
    made = []
    for earlier, shift in (
        (torch.cat([nothing, counts[:-1]]), -torch.cat([nothing, counts[:-1]])),
        (torch.cat([counts[1:], nothing]), counts),
    ):
        inner = place < earlier[step]
        before = torch.where(inner, row + shift[step], 0)
        made.append((move(before, device), move(inner.unsqueeze(1), device)))
    forward = tuple(range(len(sizes)))
    return (
        Way(tuple(sizes), forward, *made[0]),
        Way(tuple(sizes), forward[::-1], *made[1]),
    )


class _Steps(torch.autograd.Function):
    """The loop over one layer: products with x (N, 6 H), U (5 H, H), mask (B, H) -> h (N, H)."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's
        products: Tensor,
        weight: Tensor,
        mask: Tensor | None,
        way: Way,
    ) -> Tensor:
        cells = weight.shape[1]
        sizes = list(way.sizes)
        gates = products.new_empty(products.shape[0], RECURRENT * cells)
        cell = products.new_empty(products.shape[0], cells)
        out = torch.empty_like(cell)
        turned = weight.t()
        given = products[:, : RECURRENT * cells].split(sizes)
        carried = products[:, RECURRENT * cells :].split(sizes)
        whole, cs, hs = gates.split(sizes), cell.split(sizes), out.split(sizes)
        gs, is_, fs, os, rs = (part.split(sizes) for part in gates.split(cells, dim=1))
        squashed = gates[:, cells:].split(sizes)
        last = 0
        with _threads(products, weight, sizes):
            for number, t in enumerate(way.order):
                m, n = way.shared(number), sizes[t]
                if m:
                    torch.addmm(
                        _first(given[t], m), _first(hs[last], m), turned, out=_first(whole[t], m)
                    )
                if m < n:
                    whole[t][m:].copy_(given[t][m:])
                gs[t].tanh_()
                squashed[t].sigmoid_()
                torch.mul(gs[t], is_[t], out=cs[t])
                if m:
                    _first(cs[t], m).addcmul_(_first(fs[t], m), _first(cs[last], m))
                torch.lerp(carried[t], cs[t].tanh().mul_(os[t]), rs[t], out=hs[t])
                if mask is not None:
                    hs[t].mul_(mask[:n])
                last = t
        ctx.save_for_backward(products, weight, mask, gates, cell, out, way.before, way.inner)
        ctx.way = way
        return out

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,  # noqa: ANN401 - autograd's
        grad: Tensor,
    ) -> tuple[Tensor, Tensor, None, None]:
        products, weight, mask, gates, cell, out, before, inner = ctx.saved_tensors
        way: Way = ctx.way
        cells, sizes = weight.shape[1], list(way.sizes)
        g, i, f, o, r = gates.split(cells, dim=1)
        carried = products[:, RECURRENT * cells :]
        squashed = cell.tanh()
        # What the gradients of c_t (g i f) and of h_t (o r p) are multiplied with, for all steps.
        factors = torch.stack(
            [
                i * (1 - g * g),
                g * i * (1 - i),
                cell[before] * inner * f * (1 - f),
                squashed * r * o * (1 - o),
                (o * squashed - carried) * r * (1 - r),
                1 - r,
            ],
            dim=1,
        )  # (N, 6, H)
        grad_cell = r * o * (1 - squashed * squashed)  # times that of h_t, for now
        grad_out = grad.clone()
        flat = factors.view(-1, ALL * cells)
        grad_recurrent = flat[:, : RECURRENT * cells]
        steps, hs, cs = grad_recurrent.split(sizes), grad_out.split(sizes), grad_cell.split(sizes)
        lower, upper, fs = factors[:, :3].split(sizes), factors[:, 3:].split(sizes), f.split(sizes)
        later = 0
        with _threads(products, weight, sizes):
            for number in range(len(sizes) - 1, -1, -1):
                t, n = way.order[number], sizes[way.order[number]]
                m = way.shared(number + 1) if number + 1 < len(sizes) else 0
                if m:
                    _first(hs[t], m).addmm_(_first(steps[later], m), weight)
                if mask is not None:
                    hs[t].mul_(mask[:n])
                cs[t].mul_(hs[t])
                if m:
                    _first(cs[t], m).addcmul_(_first(cs[later], m), _first(fs[later], m))
                lower[t].mul_(cs[t].unsqueeze(1))
                upper[t].mul_(hs[t].unsqueeze(1))
                later = t
        grad_weight = grad_recurrent.t() @ (out[before] * inner)
        return flat, grad_weight, None, None


class _FusedSteps(torch.autograd.Function):
    """The same loop with one kernel beside the product of each step."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's
        products: Tensor,
        weight: Tensor,
        mask: Tensor | None,
        way: Way,
    ) -> Tensor:
        from torchelmo.ops import triton_highway

        cells, sizes = weight.shape[1], way.sizes
        weight = weight.to(products.dtype)
        products = products.contiguous()
        gates = products.new_empty(products.shape[0], RECURRENT * cells)
        cell = products.new_empty(products.shape[0], cells, dtype=torch.float32)
        out = products.new_empty(products.shape[0], cells)
        product = products.new_empty(max(sizes), RECURRENT * cells)
        turned, states, starts = weight.t(), out.split(list(sizes)), way.starts
        last = 0
        for number, t in enumerate(way.order):
            known = way.shared(number)
            if known:
                torch.mm(_first(states[last], known), turned, out=_first(product, known))
            triton_highway.step(
                products, product, mask, gates, cell, out, sizes[t], starts[t], starts[last], known
            )
            last = t
        ctx.save_for_backward(products, weight, mask, gates, cell, out, way.before, way.inner)
        ctx.way = way
        return out

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,  # noqa: ANN401 - autograd's
        grad: Tensor,
    ) -> tuple[Tensor, Tensor, None, None]:
        from torchelmo.ops import triton_highway

        products, weight, mask, gates, cell, out, before, inner = ctx.saved_tensors
        way: Way = ctx.way
        cells, sizes, starts = weight.shape[1], way.sizes, way.starts
        grad = grad.contiguous()
        grads = torch.empty_like(products)
        back = products.new_empty(max(sizes), cells)
        grad_cell = torch.empty_like(back, dtype=torch.float32)
        recurrent = grads[:, : RECURRENT * cells]
        parts = recurrent.split(list(sizes))
        known = 0
        for number in range(len(sizes) - 1, -1, -1):
            t = way.order[number]
            earlier = way.shared(number)
            last = way.order[number - 1] if number else t
            triton_highway.step_backward(
                products, gates, cell, mask, grad, back, grad_cell, grads,
                sizes[t], starts[t], starts[last], known, earlier,
            )  # fmt: skip
            if earlier:
                torch.mm(_first(parts[t], earlier), weight, out=_first(back, earlier))
            known = earlier
        grad_weight = recurrent.t() @ (out[before] * inner)
        return grads, grad_weight.float(), None, None


def run_steps(
    products: Tensor, weight: Tensor, mask: Tensor | None, way: Way, backend: str | None = None
) -> Tensor:
    """Read the texts in one direction: products with x (N, 6 H), U (5 H, H), mask (B, H)."""
    if choose(products.device, backend) == "triton":
        return _FusedSteps.apply(products, weight, mask, way)  # type: ignore[no-untyped-call,no-any-return]
    return _Steps.apply(products.to(weight.dtype), weight, mask, way)  # type: ignore[no-untyped-call,no-any-return]


def _threads(values: Tensor, weight: Tensor, sizes: Sequence[int]) -> AbstractContextManager[None]:
    """Keep small steps on a CPU to one thread: several wait for each other at each of them."""
    small = values.device.type == "cpu" and max(sizes) * weight.numel() < SMALL
    return threads.serial() if small else nullcontext()


def _first(rows: Tensor, count: int) -> Tensor:
    """Return the first rows; a view is not made where they are all."""
    return rows if rows.shape[0] == count else rows[:count]


class HighwayLayer(nn.Module):
    """One layer and direction over packed texts: (N, D) -> (N, H).

    Orthonormal weights gate by gate and a forget bias of 1 to begin with.
    """

    def __init__(self, width: int, cells: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.input = nn.Linear(width, ALL * cells)
        self.recurrent = nn.Parameter(torch.empty(RECURRENT * cells, cells))
        with torch.no_grad():
            for weight in (self.input.weight, self.recurrent):
                for gate in weight.split(cells):
                    nn.init.orthogonal_(gate)
            nn.init.zeros_(self.input.bias)
            self.input.bias[FORGET * cells : (FORGET + 1) * cells] = 1.0

    def forward(self, values: Tensor, way: Way) -> Tensor:
        """Read the texts in one direction."""
        products = self.input(values)
        mask = None
        if self.training and self.dropout:
            texts = max(way.sizes)
            mask = self.recurrent.new_empty(texts, self.recurrent.shape[1])
            mask.bernoulli_(1 - self.dropout).div_(1 - self.dropout)
        with torch.autocast(values.device.type, enabled=False):
            return run_steps(products, self.recurrent, mask, way)


class AlternatingLstm(nn.Module):
    """Layers of alternating direction over padded texts: (B, T, D) -> (B, T, H)."""

    def __init__(self, width: int, cells: int, layers: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.width = cells
        self.layers = nn.ModuleList(
            HighwayLayer(cells if layer else width, cells, dropout) for layer in range(layers)
        )

    def forward(self, values: Tensor, lengths: Sequence[int]) -> Tensor:
        """Read texts of these lengths, each 1 or more."""
        packed = pack(values, lengths)
        both = ways(packed.batch_sizes.tolist(), values.device)
        data = packed.data
        for number, layer in enumerate(self.layers):
            data = layer(data, both[number % 2])
        return unpack(data, lengths, values.shape[1])
