"""Every operation and backend against the reference in float64: cases, and their relative errors.

An error is the norm of the difference over the norm of what is expected, of the result and of every
gradient each by itself; a case has that of its worst tensor. Two things are decided by rounding
where values nearly tie, and are not held against a backend:

- The character CNN's gradients go to the positions that the backend took for the maximum. That the
  values there are the maximum is checked as well.
- Whether a value is beyond a clip. In float32 the cases are such that no value lies so near; in 16
  bits, where clips act, values alone are compared.

What comes back to an operation in the backward pass is such that 16 bits hold it.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchelmo.config import CharacterConfig, ElmoConfig
from torchelmo.ops import lstm, reference, sampled
from torchelmo.ops.backend import has_triton
from torchelmo.ops.chars import char_conv_max, window_rows
from torchelmo.ops.reference import LstmWeights
from torchelmo.ops.sampled import sampled_softmax

Tensors = dict[str, Tensor]
LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}
LIMITS = {"float32": 1e-5, "bf16": 1e-2, "fp16": 1e-2}
NEAR = 2e-6  # a value nearer to a clip than this may be on the other side in float32


class Row(NamedTuple):
    """What one case gave."""

    operation: str
    backend: str
    dtype: str
    case: str
    error: float
    tensor: str  # the worst


class LstmCase(NamedTuple):
    name: str
    sizes: Sequence[int]
    width: int = 48
    cells: int = 80
    project: bool = True
    directions: int = 2
    idle: int = 0  # rows that take no step
    clips: tuple[float | None, float | None] = (None, None)
    resets: float = 0.0  # share of places
    large: bool = False  # a published size


ACTIVE = (0.5, 0.2)  # clips that act on what is drawn here
# Triton compiles a kernel anew for each kind of option, and for widths that 16 does not divide: the
# cases have few combinations of them. No width is a multiple of the kernels' blocks but the large.
TRAINED = (
    LstmCase("one step of one row", [1], clips=ACTIVE, resets=0.5),
    LstmCase("one row", [1] * 7, clips=ACTIVE, resets=0.5),
    LstmCase("one step", [5], clips=ACTIVE, resets=0.5),
    LstmCase("clips active, resets, rows of length 0", [19, 17, 17, 5], idle=3, clips=ACTIVE,
             resets=0.3),
    LstmCase("ragged, resets, rows of length 0", [19, 17, 17, 5, 1], idle=3, clips=(9, 9),
             resets=0.3),
    LstmCase("one direction, no clips", [6, 6, 3], directions=1),
    LstmCase("no projection", [6, 6, 3], project=False, clips=(0.5, None), resets=0.3),
    LstmCase("long", [9] * 20, clips=(3, 3), resets=0.1),
    LstmCase("small", [6, 6, 5, 2], 128, 1024, clips=(3, 3), resets=0.1, large=True),
    LstmCase("original", [6, 6, 5, 2], 512, 4096, clips=(3, 3), resets=0.1, large=True),
)  # fmt: skip
# Widths that blocks divide, so that products and cells are one kernel, and one that they do not.
APPLIED = (
    LstmCase("odd widths, ragged", [19, 17, 2], clips=(3, 3)),
    LstmCase("one step of one row", [1], 64, 128, clips=(3, 3)),
    LstmCase("clips active, ragged", [130, 129, 7], 64, 128, clips=ACTIVE),
    LstmCase("no clips, resets", [130, 129, 7], 64, 128, resets=0.3),
    LstmCase("small", [70, 70, 65, 3], 128, 1024, clips=(3, 3), large=True),
    LstmCase("original", [70, 70, 65, 3], 512, 4096, clips=(3, 3), large=True),
)


def drawn_cases(count: int = 2) -> list[LstmCase]:
    """Return cases of shapes that nobody chose."""
    rng = random.Random(4)
    return [
        LstmCase(
            f"random shapes {number}",
            sorted((rng.randint(2, 40) for _ in range(rng.randint(2, 9))), reverse=True),
            2 * rng.randint(1, 40) + 1,
            2 * rng.randint(1, 150) + 1,
            idle=rng.randint(0, 2),
            clips=ACTIVE,
            resets=0.2,
        )
        for number in range(1, count + 1)
    ]


def chosen(cases: Sequence[Any], quick: bool, part: slice) -> list[Any]:
    """Return a part of the cases, without the published sizes if it must be quick."""
    return [case for case in cases if not (quick and case.large)][part]


def backends() -> list[str]:
    """Return those that are held against the reference."""
    return ["triton", "torch"] if has_triton() else ["torch"]


def low(backend: str, device: torch.device) -> str:
    """Return the lower precision to try: Triton's interpreter cannot multiply in bf16."""
    return "fp16" if backend == "triton" and device.type == "cpu" else "bf16"


def error(found: Tensors, wanted: Tensors) -> tuple[float, str]:
    """Return the largest relative error of any tensor, and its name."""
    assert found.keys() == wanted.keys()
    errors = {}
    for name, value in wanted.items():
        size = value.norm().item()
        apart = (found[name].double() - value).norm().item()
        errors[name] = apart / size if size else apart
        if math.isnan(errors[name]):
            errors[name] = math.inf
    worst = max(errors, key=lambda name: errors[name])
    return errors[worst], worst


def drawer(seed: int, device: torch.device) -> Any:
    """Return a function that draws normal float64 values of a shape."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device)

    return draw


def rounded(tensor: Tensor) -> Tensor:
    """Return what 16 bits hold of a tensor."""
    return tensor.bfloat16().double()


def autocast(dtype: str, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, LOW.get(dtype, torch.bfloat16), enabled=dtype in LOW)


class Clamps(TorchFunctionMode):
    """Sees how near to a clip any value comes, and whether one is beyond."""

    def __init__(self) -> None:
        super().__init__()
        self.nearest, self.acted = math.inf, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.clamp and len(args) == 3 and args[0].numel():
            ratio = args[0].detach().abs() / args[2]
            self.nearest = min(self.nearest, (ratio - 1).abs().min().item())
            self.acted |= bool((ratio > 1).any())
        return func(*args, **(kwargs or {}))


class LstmInputs(NamedTuple):
    x: Tensor
    weights: list[LstmWeights]
    h: Tensor
    c: Tensor
    resets: Tensor | None
    upstream: tuple[Tensor, Tensor, Tensor]


def lstm_inputs(case: LstmCase, seed: int, device: torch.device) -> LstmInputs:
    draw = drawer(seed, device)
    ways, width, cells = case.directions, case.width, case.cells
    count, batch, out = sum(case.sizes), case.sizes[0] + case.idle, width if case.project else cells
    weights = [
        LstmWeights(
            draw(4 * cells, width) / math.sqrt(width),
            draw(4 * cells, out) / math.sqrt(out),
            draw(4 * cells) / 2,
            draw(out, cells) / math.sqrt(cells) if case.project else None,
        )
        for _ in range(ways)
    ]
    marks = draw(ways, count) < math.sqrt(2) * torch.erfinv(torch.tensor(2 * case.resets - 1))
    return LstmInputs(
        draw(ways, count, width),
        weights,
        draw(ways, batch, out) / 2,
        draw(ways, batch, cells) / 2,
        marks if case.resets else None,
        (
            rounded(draw(ways, count, out)),
            rounded(draw(ways, batch, out)),
            rounded(draw(ways, batch, cells)),
        ),
    )


def run_lstm(
    case: LstmCase, made: LstmInputs, backend: str, dtype: str, *, saving: bool = True
) -> Tensors:
    """Return results and, where wanted, all gradients."""
    wide = torch.float64 if dtype == "float64" else torch.float32

    def leaf(tensor: Tensor | None) -> Any:
        return None if tensor is None else tensor.to(wide, copy=True).requires_grad_(saving)

    x, h, c = leaf(made.x), leaf(made.h), leaf(made.c)
    weights = [LstmWeights(*map(leaf, one)) for one in made.weights]
    with torch.set_grad_enabled(saving), autocast(dtype, x.device):
        if saving or made.resets is not None or backend == "reference":
            results = lstm.lstmp(
                x, case.sizes, weights, h, c, *case.clips, made.resets, backend=backend
            )
        else:
            prepared = lstm.prepare(weights, LOW.get(dtype, wide), backend=backend)
            y, last = lstm.infer(x, case.sizes, prepared, h, c, *case.clips, backend=backend)
            results = y, last, c
    found = dict(zip(("outputs", "last h", "last c"), results, strict=True))
    if not saving:
        return found
    total = torch.stack(
        [(r.double() * u).sum() for r, u in zip(results, made.upstream, strict=True)]
    ).sum()
    leaves = {"x": x, "h": h, "c": c}
    for number, one in enumerate(weights):
        own = {f"{name} {number}": w for name, w in one._asdict().items() if w is not None}
        leaves.update(own)
    grads = torch.autograd.grad(total, list(leaves.values()))
    return found | {f"gradient of {k}": g for k, g in zip(leaves, grads, strict=True)}


def lstm_expected(
    case: LstmCase, device: torch.device, *, saving: bool
) -> tuple[LstmInputs, Tensors, bool]:
    """Draw a case in which no value is too near to a clip; return what the reference gives."""
    for seed in range(100):
        made = lstm_inputs(case, seed, device)
        with Clamps() as clamps:
            wanted = run_lstm(case, made, "reference", "float64", saving=saving)
        if clamps.nearest > NEAR or not saving:
            if case.clips == ACTIVE:
                assert clamps.acted, f"no clip acts in {case}"
            return made, wanted, clamps.acted
    raise AssertionError(f"a value is near to a clip in every draw of {case}")


def trained_lstm(
    device: torch.device, quick: bool, dtypes: Sequence[str], part: slice
) -> Iterator[Row]:
    """Yield the LSTM with its gradients."""
    for case in chosen((*TRAINED, *drawn_cases()), quick, part):
        made, wanted, acted = lstm_expected(case, device, saving=True)
        values = {name: t for name, t in wanted.items() if not name.startswith("gradient")}
        for backend in backends():
            for dtype in dtypes:
                dtype = low(backend, device) if dtype == "low" else dtype
                found = run_lstm(case, made, backend, dtype)
                if acted and dtype in LOW:
                    worst = error({name: found[name] for name in values}, values)
                else:
                    worst = error(found, wanted)
                yield Row("lstm", backend, dtype, case.name, *worst)


def applied_lstm(
    device: torch.device, quick: bool, dtypes: Sequence[str], part: slice
) -> Iterator[Row]:
    """Yield the LSTM without gradients, which is computed in other ways."""
    for case in chosen(APPLIED, quick, part):
        made, wanted, _ = lstm_expected(case, device, saving=False)
        for backend in backends():
            for dtype in dtypes:
                if dtype == "bf16" and low(backend, device) != "bf16":
                    continue
                found = run_lstm(case, made, backend, dtype, saving=False)
                yield Row("lstm, no gradients", backend, dtype, case.name, *error(found, wanted))


class CharCase(NamedTuple):
    name: str
    spelt: Sequence[int]
    filters: Sequence[tuple[int, int]] = ((1, 3), (2, 5), (4, 6))  # width, count
    characters: int = 9
    depth: int = 16
    symbols: int = 262
    spare: int = 0  # rows of the buffer that no word takes
    large: bool = False


PUBLISHED = ElmoConfig.preset("original").characters or CharacterConfig()
WORDS = [1 + (7 * n) % 17 for n in range(60)]
CHARS = (
    CharCase("one word of one character", [1]),
    CharCase("one word without padding", [9]),
    CharCase("all lengths, rows to spare", [3, 9, 1, 8, 5, 2, 7, 4, 6], spare=700),
    CharCase("as wide as the word", [4, 6, 1], ((6, 2),), characters=6),
    CharCase("odd depth and counts", [3, 9, 1, 8], ((3, 2), (1, 7), (7, 3)), depth=5, symbols=11),
    CharCase(
        "small and original", [*WORDS, 50, 49], PUBLISHED.filters, 50, PUBLISHED.dim, large=True
    ),
)


def chars(device: torch.device, quick: bool, dtypes: Sequence[str], part: slice) -> Iterator[Row]:
    """Yield the character CNN with its maximum."""
    for case in chosen(CHARS, quick, part):
        draw = drawer(1, device)
        spelt = torch.tensor(case.spelt)
        ids = torch.randint(
            case.symbols - 1,
            (len(spelt), case.characters),
            generator=torch.Generator().manual_seed(2),
        )
        ids = ids.masked_fill(torch.arange(case.characters) >= spelt[:, None], case.symbols - 1)
        ids = ids.to(device)
        leaves = {"embedding": draw(case.symbols, case.depth)}
        for number, (width, count) in enumerate(case.filters):
            leaves[f"filter {number}"] = draw(count, case.depth, width)
            leaves[f"bias {number}"] = draw(count)
        exact = {name: tensor.requires_grad_() for name, tensor in leaves.items()}
        upstream = rounded(draw(len(ids), sum(count for _, count in case.filters)))
        rows = window_rows(spelt, case.characters) + case.spare
        for backend in backends():
            for dtype in dtypes:
                dtype = low(backend, device) if dtype == "low" else dtype
                mine = {name: t.detach().float().requires_grad_() for name, t in leaves.items()}
                with autocast(dtype, device):
                    out = char_conv_max(
                        ids, spelt.to(device), *filters(mine), rows=rows, backend=backend
                    )
                places = out.grad_fn.saved_tensors[-1].long()  # type: ignore[union-attr]
                grads = torch.autograd.grad(out, list(mine.values()), upstream.to(out.dtype))
                most, taken = at_places(ids, exact, places)
                wanted = torch.autograd.grad(taken, list(exact.values()), upstream)
                names = [f"gradient of {name}" for name in mine]
                worst = error(
                    {"values": out, "values at the maxima": taken}
                    | dict(zip(names, grads, strict=True)),
                    {"values": most, "values at the maxima": most}
                    | dict(zip(names, wanted, strict=True)),
                )
                yield Row("character CNN", backend, dtype, case.name, *worst)


def filters(leaves: Tensors) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    table, *rest = leaves.values()
    return table, list(zip(rest[::2], rest[1::2], strict=True))


def at_places(ids: Tensor, leaves: Tensors, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return the reference's maxima (n, F), and the values at the positions given (n, F)."""
    table, pairs = filters(leaves)
    embedded = F.embedding(ids, table)
    taken, start = [], 0
    for weight, bias in pairs:
        own = places[:, start : start + len(bias)]
        windows = embedded.unfold(1, weight.shape[2], 1).flatten(2)
        z = windows @ weight.flatten(1).t()  # (n, positions, count)
        taken.append(z.gather(1, own.unsqueeze(1)).squeeze(1) + bias)
        start += len(bias)
    with torch.no_grad():
        most = reference.char_conv_max(embedded, pairs)
    return most, torch.cat(taken, dim=1)


class SampledCase(NamedTuple):
    name: str
    n: int
    width: int
    vocabulary: int
    drawn: int
    usual: int = 0  # so many rows have one target
    piece: int | None = None  # rows at a time
    large: bool = False


SAMPLED = (
    SampledCase("one row", 1, 24, 30, 5),
    SampledCase("one drawn word, width 1", 37, 1, 50, 1),
    SampledCase("odd sizes", 37, 20, 50, 13),
    SampledCase("a word that fills the batch", 300, 24, 30, 13, usual=290),
    SampledCase("rows in pieces", 200, 24, 30, 13, piece=64),
    SampledCase("more words than a program holds", 9, 24, 12_000, 9_000),
    SampledCase("small", 320, 128, 20_000, 8192, usual=50, large=True),
    SampledCase("original", 320, 512, 20_000, 8192, usual=50, large=True),
)


def sampled_loss(
    device: torch.device, quick: bool, dtypes: Sequence[str], part: slice
) -> Iterator[Row]:
    """Yield the sampled softmax."""
    names = ("loss", "gradient of hidden", "gradient of weight", "gradient of bias")
    for case in chosen(SAMPLED, quick, part):
        draw, generator = drawer(3, device), torch.Generator().manual_seed(4)
        ids = torch.randperm(case.vocabulary, generator=generator)[: case.drawn].to(device)
        targets = torch.randint(case.vocabulary, (case.n,), generator=generator)
        targets[: case.usual] = targets[-1]
        targets = targets[torch.randperm(case.n, generator=generator)].to(device)
        given = [
            draw(case.n, case.width),
            targets,
            draw(case.vocabulary, case.width) / math.sqrt(case.width),
            draw(case.vocabulary),
            ids,
            draw(case.drawn) - 2,
            draw(case.n) - 2,
        ]

        def run(backend: str, dtype: str, given: list[Tensor] = given) -> Tensors:
            wide = torch.float64 if dtype == "float64" else torch.float32
            own = [t.to(wide, copy=True) if t.is_floating_point() else t for t in given]
            leaves = [own[i].requires_grad_() for i in (0, 2, 3)]
            with autocast(dtype, device):
                loss = sampled_softmax(*own, backend=backend)
            grads = torch.autograd.grad(loss, leaves)
            return dict(zip(names, (loss.detach(), *grads), strict=True))

        wanted = run("reference", "float64")
        for backend in backends():
            for dtype in dtypes:
                dtype = low(backend, device) if dtype == "low" else dtype
                with contextlib.ExitStack() as stack:
                    if case.piece:
                        size = case.piece * case.drawn * (4 if dtype == "float32" else 2)
                        pieces = dict.fromkeys(("cpu", "cuda"), size)
                        stack.enter_context(mock.patch.object(sampled, "PIECE", pieces))
                    found = run(backend, dtype)
                yield Row("sampled softmax", backend, dtype, case.name, *error(found, wanted))


# What runs in a process of its own: the operation, its dtypes, and every how many-th case from
# which on.
JOBS: dict[str, tuple[Any, tuple[str, ...], slice]] = {
    **{f"lstm-float32-{i}": (trained_lstm, ("float32",), slice(i, None, 3)) for i in range(3)},
    **{f"lstm-low-{i}": (trained_lstm, ("low",), slice(i, None, 3)) for i in range(3)},
    "applied-float32": (applied_lstm, ("float32",), slice(None)),
    "applied-bf16": (applied_lstm, ("bf16",), slice(None)),
    "applied-fp16": (applied_lstm, ("fp16",), slice(None)),
    "chars": (chars, ("float32", "low"), slice(None)),
    "sampled": (sampled_loss, ("float32", "low"), slice(None)),
}


def check(job: str, device: str, quick: bool) -> list[dict[str, Any]]:
    """Run a job; return its rows."""
    function, dtypes, part = JOBS[job]
    return [row._asdict() for row in function(torch.device(device), quick, dtypes, part)]
