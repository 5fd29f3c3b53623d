"""Batches of a task, and the biLM's layers of its texts, computed once.

A batch holds examples of about one length. The layers of a text do not change while a task learns,
so they are kept: in memory as float32 (on the GPU where half of what is free there has room), or on
disk as float16, which rounds them to three digits. What does not fit is computed in every pass.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchelmo.elmo import Elmo
from torchelmo.errors import InputError
from torchelmo.nn.host import apart
from torchelmo.nn.output import Layers
from torchelmo.ops import threads
from torchelmo.tasks.readers.examples import Words

E = TypeVar("E")
Keep = Literal["memory", "disk", "none"]
BLOCK = 4096  # texts whose layers are computed at a time
NOISE = 0.1  # lengths are drawn so much apart before they are sorted


@dataclass(frozen=True)
class Texts:
    """B texts as the encoders take them."""

    words: tuple[Words, ...]
    fields: Mapping[str, Tensor]  # what each encoder prepared
    layers: Layers | None = None  # the biLM's
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Words of each text."""
        return tuple(map(len, self.words))

    @cached_property
    def mask(self) -> Tensor:
        """(B, T), true where there is a word."""
        there = np.arange(max(self.lengths)) < np.array(self.lengths)[:, None]
        return move(torch.from_numpy(there), self.device)

    def to(self, device: torch.device) -> Texts:
        """Return the texts on another device."""
        layers = self.layers
        if layers is not None:
            layers = replace(layers, flat=move(layers.flat, device))
        fields = {name: move(value, device) for name, value in self.fields.items()}
        return replace(self, fields=fields, layers=layers, device=device)


@dataclass(frozen=True)
class Batch(Generic[E]):
    """Examples, their texts by role, and what is to be predicted (empty if that is not known).

    A tagger has one role; a pair or a question has two; a document's sentences are the B texts of
    one role, `counts` says how many each example has.
    """

    examples: tuple[E, ...]
    texts: tuple[Texts, ...]
    counts: tuple[tuple[int, ...], ...]  # texts of each example, by role
    gold: Mapping[str, Tensor]

    def to(self, device: torch.device) -> Batch[E]:
        """Return the batch on another device."""
        texts = tuple(text.to(device) for text in self.texts)
        gold = {name: move(value, device) for name, value in self.gold.items()}
        return replace(self, texts=texts, gold=gold)


def move(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device without waiting for it."""
    if tensor.device.type == "cpu" and device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def group(
    sizes: Sequence[int],
    batch: int,
    tokens: int | None = None,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """Return batches of example numbers, each of about one size.

    With a generator the order is drawn; without, it is by size, the largest first. A batch with
    more than `tokens` words, padding counted, is made of fewer examples.

    >>> group([3, 9, 4, 8], 2)
    [[1, 3], [2, 0]]
    """
    keys = torch.tensor(sizes, dtype=torch.float64)
    if generator is not None:
        keys = keys * (1 + NOISE * (2 * torch.rand(len(sizes), generator=generator) - 1))
        # Ties in an order of their own, or equal lengths would stay together in file order.
        shuffled = torch.randperm(len(sizes), generator=generator)
        order = shuffled[keys[shuffled].argsort(descending=True, stable=True)].tolist()
    else:
        order = keys.argsort(descending=True, stable=True).tolist()
    batches: list[list[int]] = []
    widest = 0
    for number in order:
        widest = max(widest, sizes[number])
        full = not batches or len(batches[-1]) >= batch
        if full or (tokens is not None and widest * (len(batches[-1]) + 1) > tokens):
            batches.append([])
            widest = sizes[number]
        batches[-1].append(number)
    if generator is not None:
        batches = [batches[n] for n in torch.randperm(len(batches), generator=generator).tolist()]
    return batches


class LayerStore:
    """A frozen biLM and the layers of the texts that it was given.

    Several runs may share one. With `boundaries`, `<S>` and `</S>` are kept too, as AllenNLP's
    layer normalisation counts them.
    """

    def __init__(
        self,
        elmo: Elmo,
        *,
        keep: Keep = "memory",
        keep_gb: float = 16.0,
        folder: str | Path | None = None,
        boundaries: bool = False,
    ) -> None:
        if keep == "disk" and folder is None:
            raise InputError("layers are to be kept on disk: give a folder for them")
        self.elmo, self.keep, self.boundaries = elmo, keep, boundaries
        self.room = int(keep_gb * (1 << 30))
        self.folder = None if folder is None else Path(folder)
        self.kept = 0  # bytes in memory
        self._texts: dict[Words, Tensor] = {}  # (L+1, T, D) each
        self._disk: dict[Words, tuple[npt.NDArray[np.float16], int, int]] = {}
        self._fingerprint: str | None = None

    def __len__(self) -> int:
        return len(self._texts) + len(self._disk)

    @property
    def fingerprint(self) -> str:
        """A short hash of the biLM's weights."""
        if self._fingerprint is None:
            digest = hashlib.sha256()
            for name, tensor in sorted(self.elmo.bilm.state_dict().items()):
                digest.update(f"{name} {tuple(tensor.shape)}".encode())
                values = tensor.detach().to("cpu", torch.float32).contiguous()
                digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
            self._fingerprint = digest.hexdigest()[:16]
        return self._fingerprint

    def add(self, texts: Iterable[Words], progress: Callable[[int], None] | None = None) -> bool:
        """Compute and keep the layers of texts; False if they do not fit.

        `progress` is told how many texts are done.
        """
        new = [words for words in dict.fromkeys(texts) if words not in self]
        if not new or self.keep == "none":
            return not new
        if self.keep == "disk":
            self._add_to_disk(new, progress)
            return True
        rows = sum(map(len, new)) + (2 * len(new) if self.boundaries else 0)
        size = rows * self.elmo.config.n_layers * self.elmo.config.width * 4
        device = self.elmo.device
        if device.type == "cuda" and size > torch.cuda.mem_get_info(device)[0] // 2:
            device = torch.device("cpu")
        if self.kept + size > self.room and device.type != "cuda":
            return False
        for words, layers in self._compute(new, progress):
            self._texts[words] = layers.to(device)
        self.kept += size
        return True

    def __contains__(self, words: Words) -> bool:
        return words in self._texts or words in self._disk

    def layers(self, texts: Sequence[Words]) -> Layers:
        """Return the layers of a batch of texts, where they are kept."""
        missing = [words for words in dict.fromkeys(texts) if words not in self]
        computed = dict(self._compute(missing)) if missing else {}
        extra = 2 if self.boundaries else 0
        pieces = []
        for words in texts:
            piece = self._texts.get(words)
            if piece is None and words in self._disk:
                rows, start, end = self._disk[words]
                piece = torch.from_numpy(rows[start:end].astype(np.float32)).transpose(0, 1)
            pieces.append(computed[words] if piece is None else piece)
        device = pieces[0].device
        flat = torch.cat([piece.to(device) for piece in pieces], dim=1)  # (L+1, N, D)
        return Layers(flat, tuple(len(words) + extra for words in texts), self.boundaries)

    def _compute(
        self, texts: Sequence[Words], progress: Callable[[int], None] | None = None
    ) -> Iterator[tuple[Words, Tensor]]:
        for start in range(0, len(texts), BLOCK):
            block = texts[start : start + BLOCK]
            with threads.serial():
                for numbers, layers in self.elmo.encoder.run(block, boundaries=self.boundaries):
                    for number, piece in zip(numbers, apart(layers), strict=True):
                        yield block[number], piece
                    if progress is not None:
                        progress(len(numbers))

    def _add_to_disk(
        self, texts: Sequence[Words], progress: Callable[[int], None] | None = None
    ) -> None:
        assert self.folder is not None
        texts = sorted(texts)
        digest = hashlib.sha256(f"{self.fingerprint} {self.boundaries}".encode())
        for words in texts:
            digest.update("\0".join((*words, "\n")).encode("utf-8", "surrogatepass"))
        path = self.folder / f"layers-{digest.hexdigest()[:16]}.npy"
        extra = 2 if self.boundaries else 0
        ends = np.cumsum([len(words) + extra for words in texts]).tolist()
        starts = [0, *ends[:-1]]
        if not path.exists():
            places = dict(zip(texts, starts, strict=True))
            shape = (ends[-1], self.elmo.config.n_layers, self.elmo.config.width)
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
            try:
                out = np.lib.format.open_memmap(partial, "w+", np.float16, shape)
                for words, layers in self._compute(texts, progress):
                    start = places[words]
                    out[start : start + layers.shape[1]] = layers.transpose(0, 1).cpu().numpy()
                out.flush()
                del out
                os.replace(partial, path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    partial.unlink()
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
        for words, start, end in zip(texts, starts, ends, strict=True):
            self._disk[words] = rows, start, end
