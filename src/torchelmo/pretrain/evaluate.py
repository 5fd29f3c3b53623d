"""Validation inside the training loop: perplexity of the held-out text, by the full softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchelmo.config import Json
from torchelmo.nn.bilm import Direction
from torchelmo.perplexity import stream_scores
from torchelmo.pretrain.corpus import Corpus, Split
from torchelmo.pretrain.objective import LanguageModel
from torchelmo.pretrain.streams import BEGIN_ID, END_ID, UNKNOWN_ID


@torch.no_grad()
def validate(
    model: LanguageModel,
    corpus: Corpus,
    device: torch.device,
    directions: Sequence[Direction] = ("forward", "backward"),
    *,
    limit: int | None = None,
) -> Json:
    """Return perplexities on the validation text, or on its first `limit` tokens.

    `perplexity` is the geometric mean of the directions that are asked for.
    """
    text = corpus.valid if limit is None else first_tokens(corpus.valid, limit)
    vocabulary = corpus.vocabulary_size
    training = model.training
    model.eval()

    def vectors(words: npt.NDArray[np.int64]) -> Tensor:
        known: Tensor
        if model.bilm.config.words is not None:
            known = model.bilm.token(None, torch.from_numpy(targets(words)).to(device))
            return known
        rows = torch.from_numpy(corpus.characters[words].astype(np.int64)).to(device)
        known = model.bilm.token(rows, None)
        return known

    def targets(words: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.where(words < vocabulary, words, UNKNOWN_ID)

    found = stream_scores(
        model.bilm,
        model.softmax,
        text,
        vectors=vectors,
        begin=BEGIN_ID,
        end=END_ID,
        targets=targets,
        unknown=UNKNOWN_ID,
        directions=directions,
    )
    model.train(training)
    nats: dict[str, float] = {name: getattr(found, name) / found.tokens for name in directions}
    nats["perplexity"] = sum(nats.values()) / len(nats)
    # A model that has gone astray may be beyond what a float holds.
    return {**{name: math.exp(min(n, 700)) for name, n in nats.items()}, "tokens": found.tokens}


def first_tokens(text: Split, limit: int) -> Split:
    """Return the first sentences of a text, up to a number of tokens and at least one."""
    count = max(int(np.searchsorted(text.sentences, limit, side="right")) - 1, 1)
    sentences = text.sentences[: count + 1]
    return Split(text.tokens[: sentences[-1]], sentences, np.array([0, count]))
