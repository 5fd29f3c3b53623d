"""Who is near whom: nearest words before context, nearest tokens in context, by cosine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Neighbour(NamedTuple):
    """A word and its cosine; in a corpus also the sentence and the position it was found at."""

    word: str
    score: float
    sentence: int | None = None
    position: int | None = None


def nearest(query: Tensor, table: Tensor, count: int) -> list[tuple[int, float]]:
    """Return the rows of `table` (n, D) closest to `query` (D,), with their cosines, best first."""
    scores = torch.nn.functional.cosine_similarity(table, query.unsqueeze(0), dim=1)
    best = torch.topk(scores, min(count, len(table)))
    return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))


def nearest_words(
    query: Tensor, table: Tensor, words: Sequence[str], count: int, *, without: str | None = None
) -> list[Neighbour]:
    """Return the words whose vectors are closest to `query`, except `without`."""
    found = nearest(query, table, count + 1)
    hits = [Neighbour(words[row], score) for row, score in found if words[row] != without]
    return hits[:count]


def nearest_tokens(
    query: Tensor, vectors: Sequence[Tensor], sentences: Sequence[Sequence[str]], count: int
) -> list[Neighbour]:
    """Return the tokens of a corpus whose vectors (T, D) a sentence are closest to `query`."""
    places = [(s, t) for s, words in enumerate(sentences) for t in range(len(words))]
    if not places:
        return []
    hits = []
    for row, score in nearest(query, torch.cat(list(vectors)), count):
        sentence, position = places[row]
        hits.append(Neighbour(sentences[sentence][position], score, sentence, position))
    return hits
