"""Continue a biLM on text of a domain, and say what it gained.

1. The text is prepared with the model's own words, spelling and vocabulary; the most frequent words
   that the vocabulary lacks may be added to it.
2. A model without its softmax (files of the original programs have none) gets a new one, trained
   first with the biLM frozen.
3. All is trained, one epoch unless asked for more, as the paper did.

Perplexity on a held-out part is measured before and after, over the same vocabulary.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from torchelmo.config import UNKNOWN, Json
from torchelmo.errors import InputError
from torchelmo.formats import files
from torchelmo.formats.model import Model
from torchelmo.pretrain.corpus import Corpus
from torchelmo.pretrain.evaluate import validate
from torchelmo.pretrain.log import Status
from torchelmo.pretrain.loop import Result, Trainer
from torchelmo.pretrain.objective import LanguageModel
from torchelmo.pretrain.prepare import PrepareOptions, prepare
from torchelmo.pretrain.recipe import DataRecipe, ModelRecipe, Recipe, TrainRecipe, WatchRecipe
from torchelmo.text.characters import Characters
from torchelmo.text.vocabulary import SPECIALS, Vocabulary

FULL = 20_000  # words up to which the whole softmax is as quick as a sampled one
Report = Callable[[str, Status], None]  # which phase, and how it stands


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions:
    """How to continue."""

    epochs: float = 1.0
    softmax_epochs: float = 1.0  # of a new softmax, the biLM frozen
    batch: int = 32
    unroll: int = 20
    learning_rate: float = 3e-4
    dropout: float = 0.1
    new_words: int = 0  # words to add to the vocabulary, at most
    vocab_size: int = 100_000  # of a model that has no vocabulary
    valid_share: float = 0.05  # of the documents, where no validation text is given
    sentences_by_line: bool = False  # one sentence a line, parted at white space
    seed: int = 0


@dataclass(frozen=True)
class Finetuned:
    """What came of it."""

    folder: Path  # the model
    before: Json | None  # None: there was no softmax to measure with
    after: Json
    added: int  # words
    result: Result


def finetune(
    model: Model,
    texts: Sequence[Path],
    output: Path,
    options: FinetuneOptions | None = None,
    *,
    valid: Sequence[Path] = (),
    device: torch.device,
    workers: int = 1,
    report: Report = lambda phase, status: None,
    stop: Callable[[], bool] = lambda: False,
) -> Finetuned | None:
    """Continue a model in the folder `output`, which is gone on with if it was stopped.

    Returns None if `stop` ended it early.
    """
    asked = options or FinetuneOptions()
    if model.config.words is not None and model.config.characters is not None:
        raise InputError("a model that reads both words and characters cannot be continued here")
    corpus = _corpus(model, texts, output, asked, valid, workers)
    if corpus.valid.n_sentences == 0:
        raise InputError(
            "nothing was set aside to measure on: give validation text, or more documents"
        )
    start, added = _fit(model, corpus)
    before = None
    if start.softmax is not None:
        before = _measure(start, corpus, device)
    else:
        first = Trainer(
            _recipe(asked, corpus, model, asked.softmax_epochs),
            corpus,
            output / "softmax",
            device=device,
            start=start,
            frozen=True,
        )
        if first(lambda status: report("softmax", status), stop).reason == "stopped":
            return None
        trained = {name: t.detach().cpu() for name, t in first.model.softmax.state_dict().items()}
        start = replace(start, softmax=trained, config=first.config)
    trainer = Trainer(
        _recipe(asked, corpus, model, asked.epochs),
        corpus,
        output / "run",
        device=device,
        start=start,
        notes={"continued_from": model.config.training},
    )
    result = trainer(lambda status: report("all", status), stop)
    if result.reason == "stopped":
        return None
    after = validate(trainer.model, corpus, device)
    return Finetuned(output / "run" / "last", before, after, added, result)


def _corpus(
    model: Model,
    texts: Sequence[Path],
    output: Path,
    asked: FinetuneOptions,
    valid: Sequence[Path],
    workers: int,
) -> Corpus:
    """Return the text numbered for this model, prepared unless an earlier call did so."""
    config, home = model.config, output / "corpus"
    if not (home / "corpus.json").exists():
        output.mkdir(parents=True, exist_ok=True)
        characters = config.characters
        options = PrepareOptions(
            tokenizer="whitespace" if asked.sentences_by_line else config.tokenizer.name,
            sentences="lines" if asked.sentences_by_line else "split",
            characters=characters.scheme if characters else "bytes",
            max_characters=characters.max_characters if characters else 50,
            vocab_size=asked.vocab_size,
            valid_share=asked.valid_share,
            seed=asked.seed,
        )
        vocabulary = None
        if model.vocabulary is not None:
            vocabulary = output / "vocabulary.txt"
            words = _vocabulary(model, texts, asked)
            files.write_lines(vocabulary, words, str.strip)
        prepare(texts, home, options, valid=valid, vocabulary=vocabulary, workers=workers)
    corpus = Corpus.open(home)
    if config.characters is not None and config.characters.scheme != "bytes":
        # The alphabet is the model's, not the text's.
        spell = Characters(config.characters, model.alphabet, config.boundaries)
        table = spell.encode(files.read_lines(home / "words.txt"))
        table[0], table[1] = spell.boundary(end=False), spell.boundary(end=True)
        return replace(
            corpus, characters=table, alphabet=list(model.alphabet), config=config.characters
        )
    return corpus


def _vocabulary(model: Model, texts: Sequence[Path], asked: FinetuneOptions) -> list[str]:
    """Return the specials, the model's words and the new ones."""
    assert model.vocabulary is not None
    old = [word for word in model.vocabulary if word not in SPECIALS]
    if not asked.new_words or model.config.words is not None:
        return [*SPECIALS, *old]
    from torchelmo.text.words import get_tokenizer

    tokenizer = get_tokenizer(
        "whitespace" if asked.sentences_by_line else model.config.tokenizer.name
    )
    known, counts = set(model.vocabulary), Counter[str]()
    for path in texts:
        with path.open(encoding="utf-8") as file:
            for line in file:
                counts.update(word for word in tokenizer.words(line) if word not in known)
    new = sorted(counts, key=lambda word: (-counts[word], word))[: asked.new_words]
    return [*SPECIALS, *old, *new]


def _fit(model: Model, corpus: Corpus) -> tuple[Model, int]:
    """Return the model with tables in the order of the corpus's vocabulary, and the words added."""
    words = corpus.vocabulary
    if model.vocabulary is None:
        return replace(model, vocabulary=list(words)), 0
    old = Vocabulary(model.vocabulary)
    rows = torch.tensor([old.id(w) if w in old else -1 for w in words])
    added = int((rows < 0).sum())
    # A new word starts where an unknown one was: that is how it was predicted until now.
    unknown = old.id(UNKNOWN) if UNKNOWN in old else 0
    rows = torch.where(rows < 0, unknown, rows)
    config = replace(model.config, vocabulary=len(words))
    changes: dict[str, object] = {"vocabulary": list(words), "config": config}
    if model.softmax is not None and config.adaptive is not None:
        changes["softmax"] = _grow(model.softmax, rows, added, len(config.adaptive.cutoffs) - 1)
    elif model.softmax is not None:
        weight, bias = model.softmax["weight"][rows].clone(), model.softmax["bias"][rows].clone()
        if added:
            new = torch.tensor([w not in old for w in words])
            bias[new] -= math.log(added + 1)  # they share what was the unknown word's
            bias[words.index(UNKNOWN)] -= math.log(added + 1)
        changes["softmax"] = {"weight": weight, "bias": bias}
    if model.config.words is not None:
        tensors = dict(model.tensors)
        tensors["token.words"] = tensors["token.words"][rows].clone()
        changes |= {"tensors": tensors, "words": list(words)}
    return replace(model, **changes), added  # type: ignore[arg-type]  # fields of Model


def _grow(softmax: Mapping[str, Tensor], rows: Tensor, added: int, last: int) -> dict[str, Tensor]:
    """Return an adaptive softmax whose last cluster has so many new words at its end.

    A new word starts as the mean of the cluster: the row of the unknown word is of another width.
    """
    old = len(rows) - added
    if not torch.equal(rows[:old], torch.arange(old)):
        raise InputError(
            "the words of an adaptive softmax cannot change places: its vocabulary must begin with "
            f"{', '.join(SPECIALS)}"
        )
    grown = dict(softmax)
    for name in (f"tails.{last}.weight", f"tails.{last}.bias"):
        mean = grown[name].mean(dim=0, keepdim=True)
        grown[name] = torch.cat([grown[name], mean.repeat(added, *[1] * (mean.dim() - 1))])
    return grown


def _measure(model: Model, corpus: Corpus, device: torch.device) -> Json:
    """Return the perplexity before anything is changed."""
    softmax = model.build_softmax()
    assert softmax is not None
    whole = LanguageModel(model.build().to(device), softmax.to(device))
    return validate(whole, corpus, device)


def _recipe(asked: FinetuneOptions, corpus: Corpus, model: Model, epochs: float) -> Recipe:
    adaptive = model.config.adaptive if model.softmax is not None else None
    kind: Literal["sampled", "full", "adaptive"]
    kind = "sampled" if corpus.vocabulary_size > FULL else "full"
    pairs = corpus.train.n_tokens + corpus.train.n_sentences
    batch = max(min(asked.batch, pairs // asked.unroll), 1)  # a short text has fewer rows
    steps = max(int(epochs * pairs / (batch * asked.unroll)), 1)
    return Recipe(
        data=DataRecipe(corpus=str(corpus.folder), independent=False),
        model=ModelRecipe(preset=None, words=model.config.words is not None),
        train=TrainRecipe(
            batch=batch,
            unroll=asked.unroll,
            epochs=epochs,
            dropout=asked.dropout,
            softmax="adaptive" if adaptive else kind,
            cutoffs=adaptive.cutoffs if adaptive else None,
            div_value=adaptive.div_value if adaptive else TrainRecipe.div_value,
            optimizer="adamw",
            learning_rate=asked.learning_rate,
            schedule="cosine",
            warmup=min(100, steps // 10),
            clip_norm=1.0,
            loss_scale="one",
            seed=asked.seed,
        ),
        watch=WatchRecipe(
            validate=max(steps // 4, 1), checkpoint=max(min(1000, steps // 4), 1), log=20
        ),
    )
