"""What a run will do, counted before it starts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchelmo.config import ElmoConfig
from torchelmo.errors import InputError
from torchelmo.nn.bilm import BiLM
from torchelmo.nn.softmax import make_softmax
from torchelmo.pretrain.corpus import Corpus
from torchelmo.pretrain.recipe import Recipe


@dataclass(frozen=True)
class Plan:
    """What a run will do, said before it starts."""

    steps: int
    epochs: float
    tokens_per_step: int  # of one direction, all processes together
    train_pairs: int  # an epoch's predictions in one direction
    parameters: int


def plan(recipe: Recipe, corpus: Corpus, config: ElmoConfig) -> Plan:
    """Count steps and epochs; a corpus that is shorter than one batch is refused."""
    pairs = corpus.train.n_tokens + corpus.train.n_sentences
    train = recipe.train
    per_step = train.batch * train.unroll * train.accumulate
    if corpus.train.n_sentences == 0:
        raise InputError(f"{corpus.folder} has no sentence to train on: prepare more text")
    if pairs < per_step:
        raise InputError(
            f"{corpus.folder} has {pairs:,} words to predict, a step takes {per_step:,} (batch "
            f"{train.batch} x unroll {train.unroll} x accumulate {train.accumulate}): take a "
            "smaller batch or more text"
        )
    steps = train.steps if train.steps is not None else int((train.epochs or 0) * pairs / per_step)
    with torch.device("meta"):
        softmax = make_softmax(config, corpus.vocabulary_size)
        parts = [*BiLM(config).parameters(), *softmax.parameters()]
    count = sum(p.numel() for p in parts)
    if recipe.model.tie:  # one table, counted twice
        count -= corpus.vocabulary_size * config.lstm.projection
    return Plan(max(steps, 1), max(steps, 1) * per_step / pairs, per_step, pairs, count)
