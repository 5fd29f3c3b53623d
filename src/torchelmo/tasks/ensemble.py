"""Several trained networks of a task as one, as a rule the same recipe with other seeds.

    ensemble = Ensemble.load(["runs/nli-0", "runs/nli-1", "runs/nli-2"])
    ensemble.evaluate("snli_test.jsonl")

Every network reads a batch, `average` joins their outputs, and the first decodes them once. A task
may say more of its outputs, by a set `log_shares` of the names of those that are log-probabilities,
or by a method `average` of its own where they differ in shape from network to network.

Networks may differ in all but the task, its lists of labels and the tokeniser. Those over one biLM
share the layers of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor

from torchelmo.config import Json
from torchelmo.elmo import Elmo
from torchelmo.errors import InputError
from torchelmo.formats import files
from torchelmo.nn.output import Layers
from torchelmo.tasks import heads
from torchelmo.tasks.data import Batch, LayerStore, group
from torchelmo.tasks.encoders import CHARACTERS, WORDS
from torchelmo.tasks.model import CONFIG, Parsed, TaskModel, load_task
from torchelmo.tasks.pieces import PieceStore
from torchelmo.tasks.readers.examples import Words

E = TypeVar("E")
P = TypeVar("P")
LOG_SHARES = frozenset({"shares"})  # outputs that are log-probabilities, if the task does not say
ROLES = 2  # texts of an example that are prepared apart, at most, as of a pair


@runtime_checkable
class Averaging(Protocol):
    """A task that joins the outputs of several networks in a way of its own."""

    def average(self, outputs: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Return outputs that the task decodes."""


class Ensemble(Generic[E, P]):
    """Predicts and scores as its members do, by the average of their outputs."""

    def __init__(self, members: Sequence[TaskModel[E, P]]) -> None:
        if not members:
            raise InputError("an ensemble has no members: give trained tasks")
        self.members = list(members)
        self.first = self.members[0]
        for number, member in enumerate(self.members, 1):
            _check(number, member, self.first)
            member.eval()

    @classmethod
    def load(
        cls,
        folders: Sequence[str | Path],
        *,
        bilm: str | Path | Elmo | None = None,
        device: str | torch.device | None = None,
    ) -> Ensemble[E, P]:
        """Load folders that `TaskModel.save` wrote, or heads; `bilm` is that of all of them."""
        members: list[TaskModel[E, P]] = []
        stores: list[BatchStore] = []
        for folder in map(heads.find, folders):
            shared = _shared(folder, stores)
            member = load_task(folder, bilm=bilm, device=device, store=shared)
            if shared is None and member.inputs.store is not None:
                stores.append(BatchStore(member.inputs.store))
                member.inputs.store = stores[-1]
            members.append(member)
        return cls(members)

    @property
    def unit(self) -> str:
        """What `parse` takes of a text."""
        return self.first.unit

    def outputs(self, batch: Batch[E]) -> dict[str, Tensor]:
        """Return the members' outputs for a batch of the first, joined."""
        found = [_on(self.first.device, self.first(batch))]
        for member in self.members[1:]:
            own = member.batch(batch.examples, gold=False)
            found.append(_on(self.first.device, member(own)))
        if isinstance(self.first, Averaging):
            return self.first.average(found)
        return average(found, getattr(self.first, "log_shares", LOG_SHARES))

    @torch.no_grad()
    def predict(
        self,
        inputs: Iterable[E | str | Sequence[str]],
        *,
        batch: int = 64,
        progress: Callable[[int], None] | None = None,
    ) -> list[P]:
        """Return a prediction for each example, raw text, or list of words, in order."""
        first = self.first
        examples = [self._example(number, given) for number, given in enumerate(inputs)]
        out: list[P | None] = [None] * len(examples)
        sizes = [first.size(example) for example in examples]
        for numbers in group(sizes, batch, first.recipe.train.batch_tokens):
            made = first.batch([examples[n] for n in numbers], gold=False)
            found = first.decode(made, self.outputs(made))
            for number, prediction in zip(numbers, found, strict=True):
                out[number] = prediction
            if progress is not None:
                progress(len(numbers))
        return cast("list[P]", out)

    def evaluate(self, examples: str | Path | Sequence[E], *, batch: int = 64) -> dict[str, float]:
        """Predict and score examples, or those of a file."""
        first = self.first
        if isinstance(examples, str | Path):
            examples = first.read(first.recipe, examples, tokenizer=first.tokenizer)
        if not examples:
            raise InputError("there are no examples to evaluate")
        return first.score(examples, self.predict(examples, batch=batch))

    def _example(self, number: int, given: E | str | Sequence[str]) -> E:
        if isinstance(given, str):
            example = self.first.parse(given).example
        elif isinstance(given, list | tuple):
            example = self.first.example([tuple(given)])
        else:
            example = cast(E, given)
        if not all(words for role in self.first.texts(example) for words in role):
            raise InputError(f"input {number} has a text without words: leave it out")
        return example

    def parse(self, text: str) -> Parsed[E]:
        """Make an example of raw text, one `unit`."""
        return self.first.parse(text)

    def take(self, words: Sequence[str]) -> Parsed[E]:
        """Make an example of a text whose words are known."""
        return self.first.take(words)

    def parse_file(self, path: str) -> list[Parsed[E]] | None:
        """Make examples of a file that is in the task's own form; None: it is raw text."""
        return self.first.parse_file(path)

    def show(self, parsed: Parsed[E], prediction: P) -> str:
        """Return a prediction for people."""
        return self.first.show(parsed, prediction)

    def describe(self, parsed: Parsed[E], prediction: P) -> Json:
        """Return a prediction for programs."""
        return self.first.describe(parsed, prediction)


def average(
    outputs: Sequence[Mapping[str, Tensor]], log_shares: frozenset[str] = LOG_SHARES
) -> dict[str, Tensor]:
    """Join the outputs of several networks for one batch.

    Log-probabilities are averaged as probabilities. Other scores are averaged as they are, which is
    the geometric mean of what they are the logarithms of: of a CRF's scores and transitions, of
    whole sequences. Whole numbers have to be the same in all.
    """
    first, joined = outputs[0], dict[str, Tensor]()
    for other in outputs:
        if {n: v.shape for n, v in first.items()} != {n: v.shape for n, v in other.items()}:
            raise InputError("the networks' outputs differ in shape: they do not go together")
    for name, value in first.items():
        values = torch.stack([one[name] for one in outputs])
        if not value.is_floating_point():
            if not bool((values == value).all()):
                raise InputError(f"the networks differ in {name!r}: they do not go together")
            joined[name] = value
        elif name in log_shares:
            joined[name] = values.logsumexp(dim=0) - math.log(len(outputs))
        else:
            joined[name] = values.mean(dim=0)
    return joined


class BatchStore(LayerStore):
    """The layers of the last texts that were asked for, so that each batch is computed once."""

    def __init__(self, store: LayerStore) -> None:
        super().__init__(store.elmo, keep="none", boundaries=store.boundaries)
        self.inner = store
        self._fingerprint = store.fingerprint
        self._last: dict[tuple[Words, ...], Layers] = {}

    def layers(self, texts: Sequence[Words]) -> Layers:
        """Return the layers of a batch of texts."""
        asked = tuple(texts)
        if asked not in self._last:
            while len(self._last) >= ROLES:
                del self._last[next(iter(self._last))]
            self._last[asked] = self.inner.layers(texts)
        return self._last[asked]


def _shared(folder: Path, stores: Sequence[BatchStore]) -> BatchStore | None:
    """Return the store of a biLM that is loaded already, if the folder was trained over it."""
    if not (folder / CONFIG).is_file():
        return None  # which `load_task` says
    config = files.read_json(folder / CONFIG)
    trained = (config.get("bilm") or {}).get("fingerprint")
    options = (config.get("recipe") or {}).get("elmo") or {}
    asked = trained, options.get("layer_norm") == "allennlp", options.get("reads") == "tokens"
    for store in stores:
        if asked == (store.fingerprint, store.boundaries, isinstance(store.inner, PieceStore)):
            return store
    return None


def _check(number: int, member: TaskModel[E, P], first: TaskModel[E, P]) -> None:
    def known(model: TaskModel[E, P]) -> dict[str, tuple[str, ...]]:
        inputs = (WORDS, CHARACTERS)
        return {n: words for n, words in model.vocabularies.items() if n not in inputs}

    if member.recipe.task != first.recipe.task:
        raise InputError(
            f"member {number} of the ensemble is a {member.recipe.task!r}, the first a "
            f"{first.recipe.task!r}: give runs of one task"
        )
    if known(member) != known(first):
        raise InputError(
            f"member {number} of the ensemble has other labels than the first: give runs over the "
            "same training data"
        )
    if member.tokenizer_name != first.tokenizer_name:
        raise InputError(
            f"member {number} of the ensemble has the tokeniser {member.tokenizer_name!r}, the "
            f"first {first.tokenizer_name!r}: give runs of one tokeniser"
        )


def _on(device: torch.device, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.to(device) for name, value in outputs.items()}
