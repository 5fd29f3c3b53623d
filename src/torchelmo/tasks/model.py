"""A task: what every one of them gives the trainer and the commands, and its folder on disk.

A new task is one file with one class over `TaskModel` and a line in `TASKS`:

1. `read` takes a file, `texts` says which texts of an example are encoded, by role;
2. `collect` lists the labels, `__init__` makes the network over `inputs`;
3. `gold` makes tensors of what is to be predicted, `forward` named outputs, `loss` and `decode`
   read them (an ensemble averages the outputs of several networks and decodes once);
4. `score` compares predictions with examples, `show` and `describe` are for people and programs.

A trained task is a folder: config.json, model.safetensors (all that was learned; no biLM), a list a
vocabulary, metrics.json, and the biLM's name with a hash of its weights, or the biLM itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from torchelmo.config import Json, nearest
from torchelmo.elmo import Elmo, pick_device
from torchelmo.errors import InputError
from torchelmo.formats import files, native
from torchelmo.formats.tensors import read_tensors, write_tensors
from torchelmo.tasks import heads
from torchelmo.tasks.data import Batch, LayerStore, group
from torchelmo.tasks.encoders import (
    Inputs,
    Vocabularies,
    load_vectors,
    make_inputs,
    vectors_facts,
)
from torchelmo.tasks.pieces import PieceStore, check_reads
from torchelmo.tasks.readers.examples import Words
from torchelmo.tasks.recipe import Recipe, recipe_from_json
from torchelmo.tasks.vectors import StaticVectors
from torchelmo.text.alignment import spread
from torchelmo.text.words import Token, Tokenizer, get_tokenizer

E = TypeVar("E")  # an example
P = TypeVar("P")  # what is predicted for it

FORMAT = "1.0"
CONFIG, WEIGHTS, METRICS, BILM = "config.json", "model.safetensors", "metrics.json", "bilm"
DEFAULT_TOKENIZER = "words"

# Where each task's class is, "module:Class".
TASKS = {
    "ner": "tagger:Tagger",
    "chunk": "tagger:Tagger",
    "pos": "tagger:Tagger",
    "sst": "classifier:Classifier",
    "trec": "classifier:Classifier",
    "cola": "classifier:Classifier",
    "nsmc": "classifier:Classifier",
    "labels": "classifier:Classifier",
    "coref": "coreference:Coreference",
    "qa": "questions:Questions",
    "nli": "entailment:Entailment",
    "srl": "roles:Roles",
}


@dataclass(frozen=True)
class Parsed(Generic[E]):
    """An example that was made of raw text, and where its words stand there."""

    example: E
    text: str
    tokens: tuple[tuple[Token, ...], ...]  # of each text, in the order of `texts`


class TaskModel(nn.Module, ABC, Generic[E, P]):
    """A task's network with what it reads; see the head of this file for what a task writes."""

    unit: ClassVar[Literal["sentence", "line", "document"]] = "line"  # what `parse` takes of a text

    def __init__(self, recipe: Recipe, vocabularies: Vocabularies, inputs: Inputs) -> None:
        super().__init__()
        self.recipe, self.vocabularies, self.inputs = recipe, dict(vocabularies), inputs
        self.tokenizer_name = tokenizer_name(recipe, inputs.store)
        self.metrics: Json = {}  # of the training run
        self._tokenizer: Tokenizer | None = None

    @classmethod
    @abstractmethod
    def read(
        cls,
        recipe: Recipe,
        path: str | Path,
        *,
        tokenizer: Tokenizer | None = None,
        training: bool = False,
    ) -> list[E]:
        """Return the examples of a file.

        The tokeniser is for files of raw text; `training` may give more, as phrases of trees.
        """

    @classmethod
    @abstractmethod
    def texts(cls, example: E) -> tuple[tuple[Words, ...], ...]:
        """Return an example's texts by role.

        A tagged sentence gives ((words,),), a pair ((first,), (second,)), a document (sentences,).
        """

    @classmethod
    @abstractmethod
    def collect(cls, recipe: Recipe, examples: Sequence[E]) -> dict[str, tuple[str, ...]]:
        """Return the lists of labels that the network needs, by name."""

    @property
    @abstractmethod
    def metric(self) -> str:
        """Which of `score`'s figures tells the better model; higher is better."""

    @abstractmethod
    def gold(self, examples: Sequence[E]) -> dict[str, Tensor]:
        """Return what is to be predicted, as `loss` takes it."""

    @abstractmethod
    def forward(self, batch: Batch[E]) -> dict[str, Tensor]:
        """Return the network's outputs, by name."""

    @abstractmethod
    def loss(self, batch: Batch[E], outputs: Mapping[str, Tensor]) -> Tensor:
        """Return the mean loss of the examples."""

    @abstractmethod
    def decode(self, batch: Batch[E], outputs: Mapping[str, Tensor]) -> list[P]:
        """Return a prediction for each example."""

    @abstractmethod
    def score(self, examples: Sequence[E], predictions: Sequence[P]) -> dict[str, float]:
        """Return the task's figures, percentages."""

    @abstractmethod
    def example(self, texts: Sequence[Words]) -> E:
        """Return an example of texts alone, with nothing to predict."""

    @abstractmethod
    def show(self, parsed: Parsed[E], prediction: P) -> str:
        """Return a prediction for people."""

    @abstractmethod
    def describe(self, parsed: Parsed[E], prediction: P) -> Json:
        """Return a prediction for programs."""

    def parse(self, text: str) -> Parsed[E]:
        """Make an example of raw text, one `unit`."""
        tokens = self.tokenizer(text)
        return Parsed(self.example([tuple(t.text for t in tokens)]), text, (tuple(tokens),))

    def take(self, words: Sequence[str]) -> Parsed[E]:
        """Make an example of a text whose words are known."""
        return Parsed(self.example([tuple(words)]), " ".join(words), (tuple(spread(words)),))

    def parse_file(self, path: str) -> list[Parsed[E]] | None:
        """Make examples of a file that is in the task's own form; None: it is raw text."""
        return None

    def size(self, example: E) -> int:
        """How long an example is: batches are made of examples of about one size."""
        return max(len(words) for role in self.texts(example) for words in role)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.parameters()).device

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokeniser of raw text."""
        if self._tokenizer is None:
            self._tokenizer = get_tokenizer(self.tokenizer_name)
        return self._tokenizer

    def batch(self, examples: Sequence[E], *, gold: bool = True) -> Batch[E]:
        """Make a batch on this network's device; without `gold` for prediction."""
        by_role = list(zip(*(self.texts(example) for example in examples), strict=True))
        counts = tuple(tuple(map(len, role)) for role in by_role)
        texts = tuple(
            self.inputs.prepare([words for some in role for words in some]) for role in by_role
        )
        made = Batch(tuple(examples), texts, counts, self.gold(examples) if gold else {})
        return made.to(self.device)

    @torch.no_grad()
    def predict(
        self,
        inputs: Iterable[E | str | Sequence[str]],
        *,
        batch: int = 64,
        progress: Callable[[int], None] | None = None,
    ) -> list[P]:
        """Return a prediction for each example, raw text, or list of words, in order."""
        examples: list[E] = []
        for number, given in enumerate(inputs):
            if isinstance(given, str):
                example = self.parse(given).example
            elif isinstance(given, list | tuple):
                example = self.example([tuple(given)])
            else:
                example = cast(E, given)
            for words in (words for role in self.texts(example) for words in role):
                if not words:
                    raise InputError(f"input {number} has a text without words: leave it out")
            examples.append(example)
        out: list[P | None] = [None] * len(examples)
        before = self.training
        self.eval()
        try:
            tokens = self.recipe.train.batch_tokens
            for numbers in group([self.size(e) for e in examples], batch, tokens):
                made = self.batch([examples[n] for n in numbers], gold=False)
                for number, prediction in zip(numbers, self.decode(made, self(made)), strict=True):
                    out[number] = prediction
                if progress is not None:
                    progress(len(numbers))
        finally:
            self.train(before)
        return cast("list[P]", out)

    def evaluate(self, examples: str | Path | Sequence[E], *, batch: int = 64) -> dict[str, float]:
        """Predict and score examples, or those of a file."""
        if isinstance(examples, str | Path):
            examples = self.read(self.recipe, examples, tokenizer=self.tokenizer)
        if not examples:
            raise InputError("there are no examples to evaluate")
        return self.score(examples, self.predict(examples, batch=batch))

    def parameter_count(self) -> int:
        """How many numbers are learned."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    def mixes(self) -> Json:
        """Return each mix's shares s and gamma: {"input": {"s": [...], "gamma": 1.0}}."""
        return {
            place: {"s": mix.shares().tolist(), "gamma": mix.gamma.item()}
            for place, mix in self.inputs.mixes().items()
        }

    def save(self, folder: str | Path, *, bilm: bool = False, overwrite: bool = False) -> None:
        """Write the task's folder; with `bilm` the biLM goes in as well, so that it needs no other.

        The folder appears whole or not at all.
        """
        target = Path(folder)
        store = self.inputs.store
        config: Json = {
            "format_version": FORMAT,
            "task": self.recipe.task,
            "tokenizer": self.tokenizer_name,
            "vocabularies": sorted(self.vocabularies),
            "vectors": self.inputs.static_facts(),
            "bilm": None,
            "recipe": self.recipe.to_json(),
        }
        if store is not None and self.recipe.elmo is not None:
            name = self.recipe.elmo.model
            if Path(name).exists():
                name = Path(name).resolve().as_posix()
            config["bilm"] = {"name": name, "fingerprint": store.fingerprint}
        with files.new_folder(
            target, overwrite=overwrite, known=_known(target, self.vocabularies), what="a task"
        ) as new:
            for name, words in self.vocabularies.items():
                files.write_lines(new / f"{name}.txt", words, files.strip_ascii)
            write_tensors(new / WEIGHTS, self.state_dict())
            if self.metrics:
                files.write_json(new / METRICS, self.metrics)
            if bilm and store is not None:
                native.write(store.elmo.to_model(), new / BILM)
            files.write_json(new / CONFIG, config)


AnyTask = TaskModel[Any, Any]


def tokenizer_name(recipe: Recipe, store: LayerStore | None) -> str:
    """Return who splits raw text: the recipe's choice, the biLM's own, or the default."""
    own = DEFAULT_TOKENIZER if store is None else store.elmo.config.tokenizer.name
    return recipe.data.tokenizer or own


def task_class(name: str) -> type[AnyTask]:
    """Return the class of a task: "ner" -> Tagger."""
    if name not in TASKS:
        raise InputError(f"there is no task {name!r}{nearest(name, TASKS)}")
    module, _, attribute = TASKS[name].partition(":")
    found: type[AnyTask] = getattr(import_module(f"torchelmo.tasks.{module}"), attribute)
    return found


def open_store(
    recipe: Recipe, bilm: str | Path | Elmo | None, device: torch.device
) -> LayerStore | None:
    """Load the biLM that a recipe names, or another; None if the recipe uses none."""
    options = recipe.bilm
    if options is None:
        return None
    if not isinstance(bilm, Elmo):
        bilm = Elmo.from_pretrained(options.model if bilm is None else bilm, device=device)
    check_reads(recipe, bilm)
    kind = PieceStore if options.reads == "tokens" else LayerStore
    return kind(
        bilm.to(device),
        keep=options.keep,
        keep_gb=options.keep_gb,
        folder=options.folder,
        boundaries=options.layer_norm == "allennlp",
    )


def make(
    recipe: Recipe,
    vocabularies: Vocabularies,
    vectors: StaticVectors | None,
    store: LayerStore | None,
    word_width: int | None = None,
    saved: bool = False,
) -> AnyTask:
    """Make an untrained network, on the host; see `make_inputs`."""
    inputs = make_inputs(recipe, vocabularies, vectors, store, word_width, saved)
    return task_class(recipe.task)(recipe, vocabularies, inputs)


def load_task(
    folder: str | Path,
    *,
    bilm: str | Path | Elmo | None = None,
    device: str | torch.device | None = None,
    store: LayerStore | None = None,
) -> AnyTask:
    """Load a folder that `save` wrote, or a packaged head by its name.

    The biLM is `bilm`, or the one in the folder, or the one of the name that the folder holds; one
    with other weights than in training is refused.
    """
    home = heads.find(folder)
    config = files.read_json(home / CONFIG)
    for key in ("format_version", "task", "tokenizer", "vocabularies", "recipe"):
        if key not in config:
            raise InputError(f"{home / CONFIG} has no {key!r}: it is no trained task's")
    major = str(config["format_version"]).partition(".")[0]
    if major.isdigit() and int(major) > int(FORMAT.partition(".")[0]):
        raise InputError(
            f"{home} has format version {config['format_version']}, this torchelmo reads up to "
            f"{FORMAT}: upgrade torchelmo"
        )
    recipe = recipe_from_json(config["recipe"], f"{home / CONFIG}: recipe")
    chosen = pick_device(device)
    vocabularies = {
        str(name): tuple(files.read_lines(home / f"{name}.txt")) for name in config["vocabularies"]
    }
    facts = config.get("vectors") or {}
    vectors = None
    if recipe.cove is not None or (recipe.words is not None and not recipe.words.closed):
        vectors = load_vectors(recipe)
        if vectors is not None and vectors_facts(vectors) != facts:
            raise InputError(
                f"{home} was trained with other word vectors than those of {recipe.vectors!r} "
                "here: install or name the same"
            )
    if recipe.bilm is not None and store is None:
        if bilm is None and (home / BILM).is_dir():
            bilm = home / BILM
        store = open_store(recipe, bilm, chosen)
    if recipe.bilm is not None and store is not None:
        trained = (config.get("bilm") or {}).get("fingerprint")
        if trained != store.fingerprint:
            raise InputError(
                f"{home} was trained over a biLM with other weights than the one given "
                f"({trained}, not {store.fingerprint}): give the one it was trained over"
            )
    with torch.random.fork_rng(devices=[]):  # what is drawn here is not used
        model = make(recipe, vocabularies, vectors, store, facts.get("width"), saved=True)
    model.tokenizer_name = config["tokenizer"]
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    model.load_state_dict(read_tensors(home / WEIGHTS, lambda _: shapes))
    if (home / METRICS).exists():
        model.metrics = files.read_json(home / METRICS)
    return model.to(chosen).eval()


def _known(target: Path, vocabularies: Vocabularies) -> set[str]:
    """Return the names of files that a new version of the folder may take the place of."""
    names = {CONFIG, WEIGHTS, METRICS, BILM, *(f"{name}.txt" for name in vocabularies)}
    if (target / CONFIG).is_file():
        found = files.read_json(target / CONFIG).get("vocabularies")
        names |= {f"{name}.txt" for name in found} if isinstance(found, list) else set()
    return names
