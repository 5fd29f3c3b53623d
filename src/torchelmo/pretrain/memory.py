"""How much memory a training run takes, known before it starts.

A step is run on tensors that have shapes but no memory: forward, backward, and the largest calls of
a validation. What they would allocate and free is counted as it happens, so the estimate follows
the network's code. Autocast passes such tensors by; its casts before matrix products are made here.

On a GPU the step is the padded one, and where it is recorded as a graph (see `graphs`), all that it
needs at its peak stays with the graph: what validation needs comes on top. Not counted is that the
first step of another size runs in the ordinary way, for a moment, beside the graphs that are there.

Counted are the tensors of one process. torch itself takes some 0.3 GB of the machine's memory, and
about as much of a GPU's, beside them.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torchelmo.config import ElmoConfig
from torchelmo.errors import InputError
from torchelmo.nn.bilm import BiLM, Direction
from torchelmo.nn.softmax import make_softmax
from torchelmo.ops.backend import meta_as
from torchelmo.perplexity import STEPS, STREAMS, WORDS
from torchelmo.pretrain.corpus import Corpus
from torchelmo.pretrain.feed import ON_DEVICE, Feed
from torchelmo.pretrain.graphs import padded
from torchelmo.pretrain.objective import Dropout, LanguageModel, Negatives, Side, Step
from torchelmo.pretrain.recipe import Recipe
from torchelmo.scoring import CPU_PIECE, GPU_PIECE, log_softmax

META = torch.device("meta")
LOOK = 6  # steps of a corpus, among which the one with the most distinct words counts
# Distinct words among n running ones, HEAPS * n ** GROWTH, and how they are spelt (length, share):
# as in English Wikipedia.
HEAPS, GROWTH = 2.0, 0.79
SPELT = ((8, 0.5), (12, 0.4), (16, 0.09), (24, 0.01))
# What an allocator holds beyond the tensors that come and go: glibc's heap is full of holes, and
# more tensors lie there in bf16. A CPU's shares are fitted to results/pretrain/memory.json.
HOLES = {"cpu": {"float32": 0.15, "bf16": 0.6}, "cuda": {"float32": 0.05, "bf16": 0.05}}


@dataclass(frozen=True)
class Memory:
    """Bytes that a process holds at the moment when it holds most."""

    parameters: int
    optimizer: int  # what is remembered of each parameter
    token: int  # kept for the backward pass: the character CNN of the distinct words
    lstm: int  # ... the LSTMs of both directions
    softmax: int  # ... the softmax, with the gradients that it makes on the way forward
    gradients: int  # gradients, and what backward pass, optimizer or validation need for a moment
    slack: int  # lost between tensors by the allocator, or withheld from validation by a graph
    table: int  # spellings of the corpus's words, if the device keeps them
    words: int  # distinct words in the step

    @property
    def activations(self) -> int:
        """All that is kept for the backward pass."""
        return self.token + self.lstm + self.softmax

    @property
    def total(self) -> int:
        """All parts together."""
        fixed = self.parameters + self.optimizer + self.table
        return fixed + self.activations + self.gradients + self.slack


def estimate(
    config: ElmoConfig,
    recipe: Recipe,
    vocabulary: int,
    *,
    rows: int | None = None,
    words: int | None = None,
    step: Step | None = None,
    table: int = 0,
    device: str = "cpu",
    world: int = 1,
) -> Memory:
    """Estimate what one of `world` processes takes.

    Args:
        config: the network.
        recipe: the run.
        vocabulary: targets of the softmax.
        rows: of the batch, in this process; all of them divided by the processes if None.
        words: distinct words in a step; as many as English text would have if None.
        step: a real step without memory, in place of `rows` and `words`: see `first_step`.
        table: bytes of the corpus's table of spellings.
        device: its type.
        world: processes that train together.
    """
    cuda = device == "cuda"
    if step is None:
        rows = rows or max(recipe.train.batch // world, 1)
        step = _made_up_step(config, recipe, vocabulary, rows, words)
    distinct = _distinct(step)
    step = padded(step) if cuda else step
    with meta_as(device), _Count() as count:
        with META:
            model = LanguageModel(
                BiLM(config),
                make_softmax(config, vocabulary),
                Dropout(recipe.train.dropout, torch.Generator()),
            ).train()
        if recipe.model.tie and model.bilm.token.words is not None:
            model.softmax.weight = model.bilm.token.words
        if recipe.model.directions == "forward":
            model.bilm.backward_layers.requires_grad_(False)
        parameters = _bytes(model.parameters())
        count.mark_phases(model.bilm)
        kept, peak = _train(count, model, recipe, step)
        validation = _validate(count, model, CPU_PIECE if device == "cpu" else GPU_PIECE)
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients, largest = _bytes(trained), max(_bytes([p]) for p in trained)
    adamw = recipe.train.optimizer == "adamw"
    states = gradients * (2 if adamw else 1)
    # Adagrad makes all its moves at once, AdamW one by one, or on a GPU none.
    update = gradients if not adamw else 0 if cuda else 2 * largest
    peak = max(peak, parameters + gradients + update)
    slack = HOLES.get(device, {}).get(recipe.train.precision, 0.0) * (peak - parameters)
    if cuda and world == 1 and recipe.train.accumulate == 1 and model.softmax.capturable:
        slack += validation
    else:
        files = states if device == "cpu" else 0  # made in memory before they are written
        peak = max(peak, parameters + gradients + max(validation, files))
    if world > 1:
        peak += gradients  # exchanged from a copy
    return Memory(
        parameters=parameters,
        optimizer=states,
        token=kept["token"],
        lstm=kept["lstm"],
        softmax=kept["softmax"],
        gradients=peak - parameters - kept.total(),
        slack=round(slack),
        table=table if device != "cpu" and table <= ON_DEVICE else 0,
        words=distinct,
    )


def first_step(corpus: Corpus, recipe: Recipe, *, rank: int = 0, world: int = 1) -> Step:
    """Return one of a corpus's first steps, the one of the most distinct words, without memory."""
    directions: tuple[Direction, ...] = ("forward", "backward")
    if recipe.model.directions == "forward":
        directions = ("forward",)
    with closing(Feed(corpus, recipe, META, directions, rank=rank, world=world)()) as batches:
        return max((fed.step for fed in islice(batches, LOOK)), key=_distinct)


def check_fits(memory: Memory, device: torch.device, processes: int = 1) -> None:
    """Refuse a run that is larger than the memory of the device that `processes` share."""
    there = available(device)
    if there is None or memory.total * processes <= there:
        return
    fixed = memory.parameters + memory.optimizer + memory.gradients
    each = f" in each of {processes} processes" if processes > 1 else ""
    if memory.activations > fixed:
        change = "train.batch or train.unroll"
        if memory.softmax > memory.activations / 2:
            change = "train.batch or train.negatives"
    else:
        change = "the size of the model, or that of the vocabulary when the corpus is prepared"
    where = "this machine" if device.type == "cpu" else str(device)
    raise InputError(
        f"training needs {gigabytes(memory.total)} of memory{each} ({gigabytes(fixed)} for "
        f"parameters, gradients and optimizer, {gigabytes(memory.activations)} for the step), "
        f"{where} has {gigabytes(there)}: lower {change}"
    )


def gigabytes(size: int) -> str:
    """Return a size as people read it.

    >>> gigabytes(1_234_000_000), gigabytes(56_000_000)
    ('1.2 GB', '56 MB')
    """
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def available(device: torch.device) -> int | None:
    """Return the bytes that a process may use: a GPU's free ones, or those of the machine."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device))
    limits = []
    # Containers have less than their machine.
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits.append(int(Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    if sys.platform != "win32":
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def _train(
    count: _Count, model: LanguageModel, recipe: Recipe, step: Step
) -> tuple[Counter[str], int]:
    """Return what is kept after the forward pass, and the peak until the backward pass ends."""
    kept: Counter[str] = Counter()
    low = recipe.train.precision == "bf16"
    count.peak = count.live.total()
    memory = {
        name: model.bilm.zero_memory(side.index.shape[1]) for name, side in step.sides.items()
    }
    for _ in range(min(recipe.train.accumulate, 2)):  # later ones find gradients that are there
        before = Counter(count.live)
        # Our operations ask whether autocast is on, and turn it off in themselves.
        with _LowPrecision(), torch.autocast("cpu", torch.bfloat16, enabled=low):
            losses, _ = model(step, memory)
            loss = torch.stack(list(losses.values())).mean()
        kept = count.live - before
        count.phase = "backward"
        loss.backward()
        del losses, loss
    return kept, count.peak


def _validate(count: _Count, model: LanguageModel, piece: int) -> int:
    """Return the peak of validation beyond what is held anyway."""
    config, before = model.bilm.config, count.live.total()
    count.peak = before
    words = min(WORDS, model.softmax.vocabulary)
    with torch.no_grad(), META:
        if config.characters is not None:
            longest = config.characters.max_characters
            model.bilm.token(torch.ones(words, longest, dtype=torch.long), None)
        hidden = torch.zeros(STREAMS * STEPS, config.lstm.projection)
        log_softmax(model.softmax, hidden, torch.zeros(len(hidden), dtype=torch.long), piece)
    return count.peak - before


class _Count(TorchDispatchMode):
    """Counts the bytes of all tensors that are made inside it, for as long as each lives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: Counter[str] = Counter()  # by the phase in which they were made
        self.peak = 0
        self.phase = "parameters"
        self._known: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - an operator
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and tensor.is_meta:
                storage = tensor.untyped_storage()
                if storage._cdata not in self._known:
                    self._add(storage)
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        phase, size = self.phase, storage.nbytes()
        self._known.add(storage._cdata)
        self.live[phase] += size
        self.peak = max(self.peak, self.live.total())
        weakref.finalize(storage, self._remove, storage._cdata, phase, size)

    def _remove(self, number: int, phase: str, size: int) -> None:
        self._known.discard(number)
        self.live[phase] -= size

    def mark_phases(self, bilm: BiLM) -> None:
        """Let the network's parts say where a forward pass is."""
        token, stacks = bilm.token.forward, bilm.stacks

        def marked_token(*args: Any, **options: Any) -> Tensor:
            self.phase = "token"
            return token(*args, **options)

        def marked_stacks(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - as the stacks'
            self.phase = "lstm"
            out = stacks(*args, **options)
            self.phase = "softmax"
            return out

        bilm.token.forward = marked_token  # type: ignore[method-assign]
        bilm.stacks = marked_stacks  # type: ignore[method-assign]


class _LowPrecision(TorchFunctionMode):
    """Casts what enters a matrix product to bf16, as autocast does."""

    products = frozenset({F.linear, torch.matmul, Tensor.matmul, Tensor.__matmul__})

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401 - a function of torch
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func in self.products and torch.is_autocast_enabled("cpu"):
            args = [x.to(torch.bfloat16) if isinstance(x, Tensor) else x for x in args]
        return func(*args, **(kwargs or {}))


def _made_up_step(
    config: ElmoConfig, recipe: Recipe, vocabulary: int, rows: int, words: int | None
) -> Step:
    """Return a step of English-like text without memory."""
    train, steps = recipe.train, recipe.train.unroll
    both = recipe.model.directions == "both"
    names: tuple[Direction, ...] = ("forward", "backward") if both else ("forward",)
    if words is None:
        # Directions that read the same sentences from their two ends share many of their words.
        running = rows * steps * (1.0 if not both else 2.0 if recipe.data.independent else 1.6)
        words = max(int(min(HEAPS * running**GROWTH, running)), 1)

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(*shape, dtype=torch.long, device=META)

    sides: dict[Direction, Side] = {}
    for name in names:
        resets = zeros(steps, rows).bool() if recipe.data.reset_share else None
        negatives = None
        if train.softmax == "sampled":
            drawn = min(train.negatives, vocabulary)
            negatives = Negatives(zeros(drawn), zeros(drawn).float(), drawn)
        sides[name] = Side(zeros(steps, rows), zeros(steps, rows), resets, negatives)
    if config.characters is None:
        return Step(None, np.zeros(0, dtype=np.int64), zeros(words), sides)
    longest = config.characters.max_characters
    spelt = [min(n, longest) for n, share in SPELT for _ in range(round(words * share))]
    return Step(zeros(len(spelt), longest), np.array(spelt, dtype=np.int64), None, sides)


def _distinct(step: Step) -> int:
    return len(step.spelt) if step.words is None else len(step.words)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
