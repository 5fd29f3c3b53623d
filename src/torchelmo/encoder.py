"""From lists of words to layers: distinct words spelt and computed once, sentences batched by
length.

The vector of a word before context depends on its spelling alone, so the character CNN runs once
per distinct word and the result is kept in a cache of bounded size. Batches are filled up to a
token budget; a batch that does not fit in memory is halved and tried again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, repeat

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchelmo.errors import InputError
from torchelmo.nn import gpu, prepared
from torchelmo.nn.bilm import BiLM
from torchelmo.nn.lstm import State
from torchelmo.nn.output import Layers
from torchelmo.nn.packing import with_boundaries
from torchelmo.ops import threads
from torchelmo.text.batching import WordTable, by_tokens
from torchelmo.text.characters import Characters, Ids
from torchelmo.text.vocabulary import Vocabulary

BLOCK = 128  # words a character CNN call: enough to fill the matrix products, small in memory
GPU_BLOCK, FILLED = 8192, 256  # ... on a GPU, and of what they are a multiple there
SPELLINGS = (8, 12, 16, 24)  # words are grouped by length, so that short ones cost less
CPU_CACHE_BYTES, GPU_CACHE_BYTES = 32 << 20, 512 << 20
CPU_BATCH_TOKENS = 2048  # larger gains little and costs memory
# Numbers of a layer's output in a batch: fewer tokens where the vectors are wide.
CPU_BATCH_NUMBERS, GPU_BATCH_NUMBERS = 5 << 17, 1 << 25
AHEAD_TOKENS = 1 << 17  # of a GPU's text: words are looked up while it computes those before

Numbers = npt.NDArray[np.int64]  # the words of a sentence


@dataclass(frozen=True)
class Batch:
    """Sentences as the network takes them: `<S>`, `</S>`, distinct words, and what stands where."""

    characters: Tensor | None  # (U, C) ids
    words: Tensor | None  # (U,) rows of the word table
    index: Tensor  # (B, T+2): which of the U stands at each position
    lengths: tuple[int, ...]  # words of each sentence, boundaries not counted

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on another device."""

        def move(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device)

        moved = replace(self, characters=move(self.characters), words=move(self.words))
        return replace(moved, index=self.index.to(device))


class Encoder:
    """Spells words and runs a biLM over them, without gradients."""

    def __init__(
        self,
        bilm: BiLM,
        characters: Characters | None,
        words: Vocabulary | None = None,
        *,
        escape_boundaries: bool = False,
        cache_bytes: int | None = None,
    ) -> None:
        """Take the network, how it spells words, and the table of its input words (if any)."""
        if bilm.config.words is not None and words is None:
            raise InputError("this model reads whole words: give its vocabulary file")
        self.bilm, self.characters, self.words = bilm, characters, words
        self.escape_boundaries, self.cache_bytes = escape_boundaries, cache_bytes
        self._cache = _Cache(cache_bytes)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.bilm.parameters()).device

    def batch(self, sentences: Sequence[Sequence[str]]) -> Batch:
        """Spell the distinct words of sentences, for a pass with gradients."""
        table = WordTable()
        numbers = [table.ids(sentence) for sentence in sentences]
        characters, words = self._spell(list(table), boundaries=True)
        lengths = tuple(map(len, sentences))
        return Batch(characters, words, _index(numbers), lengths).to(self.device)

    @torch.no_grad()
    def vectors(self, words: Sequence[str]) -> Tensor:
        """Return the context-free vectors of `<S>`, `</S>` and distinct words, (2 + n, P)."""
        with self._cache.lock:
            store = self._begin()
            found = self._cache.find(words, len(words))
            (absent,), (known,) = (found < 0).nonzero(), (found >= 0).nonzero()
            missing = [words[i] for i in absent.tolist()]
            out = store.new_empty(2 + len(words), store.shape[1])
            out[:2] = store[:2]
            if len(known):
                places, origin = (gpu.send(x + 2, out.device) for x in (known, found[known]))
                out[places] = store[origin]
            if missing:
                fresh = self._compute(missing, boundaries=False)  # (m, P)
                out[gpu.send(absent + 2, out.device)] = fresh
                self._cache.add(missing, fresh)
        return out

    @torch.no_grad()
    def numbers(self, sentences: Sequence[Sequence[str]]) -> tuple[Tensor, Numbers]:
        """Return vectors, and for the words of sentences, one after another, their numbers.

        The vector of number n is `vectors[2 + n]`; the first two are those of `<S>` and `</S>`.
        """
        cache, count = self._cache, sum(map(len, sentences))
        with cache.lock:
            store = self._begin()
            # No list is made: each look at a word is one at another place in memory.
            found = cache.find(chain.from_iterable(sentences), count)
            (absent,) = (found < 0).nonzero()
            if not len(absent):
                return store, found
            words = list(chain.from_iterable(sentences))
            lacking = [words[i] for i in absent.tolist()]
            missing = list(dict.fromkeys(lacking))
            if len(cache.slots) + len(missing) <= cache.room(store):
                store = cache.add(missing, self._compute(missing, boundaries=False))
                found[absent] = cache.find(lacking, len(lacking))
                return store, found
        table = WordTable()  # of these words alone
        numbers = table.ids(words)
        return self.vectors(list(table)), numbers

    def _begin(self) -> Tensor:
        """Return the cache's vectors, of the two boundaries at least."""
        cache = self._cache
        cache.validate(self.bilm)
        if cache.store is None:  # apart, so that their bits do not depend on other words
            cache.store = self._compute((), boundaries=True)
        return cache.store

    def run(
        self,
        sentences: Sequence[Sequence[str]],
        *,
        batch_tokens: int | None = None,
        state: State | None = None,
        boundaries: bool = False,
    ) -> Iterator[tuple[list[int], Layers]]:
        """Yield batches as sentence numbers with their layers, long sentences before short ones.

        With a state, sentence r is batch row r of it, and batches come in order. `batch_tokens`
        bounds the memory of a batch, boundaries counted; None chooses by device.
        """
        if batch_tokens is None:
            fit = min(CPU_BATCH_NUMBERS // self.bilm.config.width, CPU_BATCH_TOKENS)
            if self.device.type != "cpu":
                fit = max(GPU_BATCH_NUMBERS // self.bilm.config.width, 1024)
            batch_tokens = fit
        lengths = list(map(len, sentences))
        if state is None and gpu.applies(self.device, self._dtype, grad=False):
            yield from self._run_gpu(sentences, lengths, batch_tokens, boundaries)
            return
        vectors, running = self.numbers(sentences)
        numbers = [
            running[end - n : end] for n, end in zip(lengths, accumulate(lengths), strict=True)
        ]
        groups = by_tokens(lengths, batch_tokens, in_order=state is not None)

        def part(group: list[int]) -> list[tuple[list[int], Layers]]:
            rows = [numbers[i] for i in group]
            first, done, out = group[0] if state is not None else 0, 0, []
            for layers in self.rows(
                vectors, rows, state=state, first_row=first, boundaries=boundaries
            ):
                out.append((group[done : done + len(layers.lengths)], layers))
                done += len(layers.lengths)
            return out

        # On a CPU batches are independent parts of work, unless they carry a state: some begin
        # while the caller is busy with those before.
        count = threads.count()
        alone = self.device.type != "cpu" or state is not None or min(len(groups), count) < 2
        most = 1 if alone else (count + 3) // 2
        for done in threads.ahead((partial(part, group) for group in groups), most):
            yield from done

    def _run_gpu(
        self,
        sentences: Sequence[Sequence[str]],
        lengths: list[int],
        batch_tokens: int,
        boundaries: bool,
    ) -> Iterator[tuple[list[int], Layers]]:
        """Run on a GPU: a text's words are looked up while it computes those before."""
        all_counts = np.array(lengths, dtype=np.int64)
        ends = np.cumsum(all_counts)
        first = 0
        while first < len(sentences):
            before = int(ends[first - 1]) if first else 0
            last = int(np.searchsorted(ends, before + AHEAD_TOKENS)) + 1
            vectors, numbers = self.numbers(sentences[first:last])
            words = gpu.send(numbers.astype(np.int32), vectors.device)
            run = partial(self.bilm.on_gpu(vectors).flat, vectors, words)
            counts = all_counts[first:last]
            starts = ends[first:last] - counts - before
            for group in by_tokens(lengths[first:last], batch_tokens):
                for chosen, layers in _halved(run, starts, counts, np.array(group), boundaries):
                    yield (first + chosen).tolist(), layers
            first = last

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.bilm.parameters()).dtype

    def rows(
        self,
        vectors: Tensor,
        numbers: Sequence[Numbers],
        *,
        state: State | None = None,
        first_row: int = 0,
        boundaries: bool = False,
    ) -> Iterator[Layers]:
        """Run sentences given as word numbers, `vectors[2 + number]`, as one batch.

        Where that does not fit in memory it is halved, and halved again. A state moves on only when
        a batch is through: in one that fails, some layers have moved on already.
        """
        trial = None if state is None else state.copy()
        lengths = list(map(len, numbers))
        layers: Layers
        try:
            with torch.no_grad():
                if numbers and self.bilm.is_quick(vectors):
                    words = with_boundaries(np.concatenate(numbers), lengths)
                    layers = self.bilm.quick(vectors, words, lengths, trial, first_row, boundaries)
                else:
                    layers = self.bilm(
                        vectors,
                        _index(numbers),
                        lengths,
                        state=trial,
                        first_row=first_row,
                        boundaries=boundaries,
                    )
        except (MemoryError, RuntimeError) as error:
            if len(numbers) < 2 or not out_of_memory(error):
                raise
            layers = None  # type: ignore[assignment]  # leaves the error and its memory behind
        if layers is None:
            half = len(numbers) // 2
            for part, row in ((numbers[:half], first_row), (numbers[half:], first_row + half)):
                yield from self.rows(
                    vectors, part, state=state, first_row=row, boundaries=boundaries
                )
            return
        if state is not None and trial is not None:
            state.become(trial)
        yield layers

    def _spell(
        self, words: Sequence[str], *, boundaries: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return characters (U, C) and numbers (U,) of words, in host memory."""
        characters, numbers = None, None
        if self.characters is not None:
            rows = self._rows(words)
            if boundaries:
                ends = [self.characters.boundary(end=end) for end in (False, True)]
                rows = np.concatenate([np.stack(ends), rows])
            characters = torch.from_numpy(rows.astype(np.int64))
        if self.words is not None:
            # A word that the character scheme cuts was cut in the table of words as well.
            room = self.characters.max_characters - 2 if self.characters else None
            marks = self.bilm.config.boundaries if boundaries else ()
            ids = self.words.ids([*marks, *(w[:room] for w in words)])
            numbers = torch.from_numpy(ids.astype(np.int64))
        return characters, numbers

    def _rows(self, words: Sequence[str]) -> Ids:
        assert self.characters is not None
        return self.characters.encode(words, escape_boundaries=self.escape_boundaries)

    def _compute(self, words: Sequence[str], *, boundaries: bool) -> Tensor:
        """Return vectors of words, the boundaries in front if asked for, in blocks by length."""
        characters, numbers = self._spell(words, boundaries=boundaries)
        token = self.bilm.token
        device = self.device
        if characters is None or self.characters is None:
            vectors: Tensor = token(None, None if numbers is None else numbers.to(device))
            return vectors
        spelt = (characters != self.characters.padding).sum(dim=1)
        parameter = next(token.parameters())
        if prepared.applies(parameter.device, parameter.dtype):
            return self._compute_prepared(characters, numbers, spelt)
        if gpu.applies(parameter.device, parameter.dtype):
            return self._compute_ragged(characters, numbers, spelt)
        width = self.bilm.config.lstm.projection
        out = parameter.new_empty(len(characters), width)
        characters, spelt = characters.to(device), spelt.to(device)
        numbers = None if numbers is None else numbers.to(device)
        shortest = 0
        for longest in (*SPELLINGS, self.characters.max_characters):
            chosen = ((spelt > shortest) & (spelt <= longest)).nonzero().squeeze(1)
            shortest = longest
            for block in chosen.split(BLOCK) if len(chosen) else ():
                picked = None if numbers is None else numbers[block]
                out[block] = token(characters[block], picked, longest)
        return out

    def _compute_prepared(
        self, characters: Tensor, numbers: Tensor | None, spelt: Tensor
    ) -> Tensor:
        layer = prepared.words(self.bilm.token, self.bilm.precision)
        out = torch.empty(len(characters), self.bilm.config.lstm.projection)
        order = spelt.argsort(stable=True)

        def some(block: Tensor) -> None:
            picked = None if numbers is None else numbers[block]
            out[block] = layer(characters[block], picked, spelt[block].tolist())

        size = min(max(-(-len(order) // 2), 32), BLOCK)  # two parts at least, unless very few
        threads.run([partial(some, block) for block in order.split(size) if len(block)])
        return out

    def _compute_ragged(self, characters: Tensor, numbers: Tensor | None, spelt: Tensor) -> Tensor:
        token, low = self.bilm.token, self.bilm.precision != "float32"
        parameter = next(token.parameters())
        # Filled up with words of one character: kernels are compiled and chosen by shape.
        fill = -len(characters) % FILLED
        characters = torch.cat([characters, characters[:1].expand(fill, -1)])
        spelt = torch.cat([spelt, torch.ones_like(spelt[:1]).expand(fill)]).int()
        windows = (spelt.clamp(max=characters.shape[1] - 1) + 1).split(GPU_BLOCK)
        ids, lengths = (gpu.send(part.numpy(), parameter.device) for part in (characters, spelt))
        if numbers is not None:
            numbers = torch.cat([numbers, numbers[:1].expand(fill)])
            numbers = gpu.send(numbers.numpy(), parameter.device)
        parts = []
        with torch.autocast("cuda", torch.bfloat16, enabled=low):
            for number, part in enumerate(windows):
                block = slice(number * GPU_BLOCK, (number + 1) * GPU_BLOCK)
                picked = None if numbers is None else numbers[block]
                rows = int(part.sum())
                rows += -rows % (16 * FILLED)
                parts.append(token(ids[block], picked, spelt=lengths[block], rows=rows))
        return torch.cat(parts)[: len(characters) - fill].to(parameter.dtype)

    def forget(self) -> None:
        """Forget the words that were computed."""
        self._cache = _Cache(self.cache_bytes)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_cache": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._cache = _Cache(self.cache_bytes)


class _Cache:
    """Vectors of words by spelling; emptied when full, or when the weights have changed."""

    def __init__(self, capacity: int | None) -> None:
        self.lock = threading.Lock()
        self.capacity = capacity  # bytes; None: by device
        self.slots: dict[str, int] = {}
        self.store: Tensor | None = None  # (2 + words, P), `<S>` and `</S>` first
        self._version: tuple[object, ...] = ()

    def validate(self, bilm: BiLM) -> None:
        version = prepared.version(bilm.token, bilm.precision)
        if version != self._version:
            self.slots, self.store, self._version = {}, None, version

    def find(self, words: Iterable[str], count: int) -> Numbers:
        """Return the slot of each word, or -1."""
        return np.fromiter(map(self.slots.get, words, repeat(-1)), np.int64, count)

    def room(self, store: Tensor) -> int:
        """Return how many words there may be."""
        capacity = GPU_CACHE_BYTES if store.is_cuda else CPU_CACHE_BYTES
        if self.capacity is not None:
            capacity = self.capacity
        return max(capacity // (store.shape[1] * store.element_size()), 1)

    def add(self, words: Sequence[str], vectors: Tensor) -> Tensor:
        """Keep words that are not there, as many as may be; return the vectors.

        Rows that are there stay as they are: others may be reading them.
        """
        assert self.store is not None
        room = self.room(self.store)
        if len(self.slots) + len(words) > room:
            self.slots, self.store = {}, self.store[:2]
        words, known = words[:room], len(self.slots)
        needed = known + len(words)
        if 2 + needed > len(self.store):
            grown = vectors.new_empty(2 + min(max(needed, 2 * known), room), vectors.shape[1])
            grown[: 2 + known] = self.store[: 2 + known]
            self.store = grown
        self.store[2 + known : 2 + needed] = vectors[: len(words)]
        self.slots.update(zip(words, range(known, needed), strict=True))
        return self.store


@torch.no_grad()
def _halved(
    run: Callable[[Numbers, Numbers, bool], Layers],
    starts: Numbers,
    counts: Numbers,
    group: Numbers,
    boundaries: bool,
) -> Iterator[tuple[Numbers, Layers]]:
    """Run some sentences of a text on a GPU, by halves where all do not fit in memory."""
    layers: Layers | None
    try:
        layers = run(starts[group], counts[group], boundaries)
    except (MemoryError, RuntimeError) as error:
        if len(group) < 2 or not out_of_memory(error):
            raise
        layers = None  # leaves the error and its memory behind
    if layers is not None:
        yield group, layers
        return
    for half in np.array_split(group, 2):
        yield from _halved(run, starts, counts, half, boundaries)


def _index(numbers: Sequence[Numbers]) -> Tensor:
    """Lay out word numbers as (B, T+2) rows of `vectors`: 0 is `<S>`, 1 `</S>`, words from 2."""
    lengths = np.fromiter(map(len, numbers), np.int64, len(numbers))
    columns = np.arange(lengths.max(initial=0) + 2)
    index = np.zeros((len(numbers), len(columns)), dtype=np.int64)
    if len(numbers):
        index[(columns > 0) & (columns <= lengths[:, None])] = np.concatenate(numbers) + 2
        index[np.arange(len(numbers)), lengths + 1] = 1
    return torch.from_numpy(index)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out; torch says it in several ways."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return "out of memory" in str(error) or "allocate memory" in str(error)
