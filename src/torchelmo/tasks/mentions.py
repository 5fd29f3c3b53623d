"""Spans of a document as mentions: which there are, which are kept, and how they are linked.

After Lee et al. (2017), "End-to-end Neural Coreference Resolution". Nothing here is learned.

A kept mention's antecedents are the kept mentions just before it. Their scores are a row: column 0
says that there is none, column c is the mention c places before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchelmo.tasks.readers.examples import Document

Clusters = tuple[tuple[tuple[int, int], ...], ...]
Ints = npt.NDArray[np.int64]
BUCKETS = (2, 3, 4, 5, 8, 16, 32, 64)  # where the next group of distances begins


def candidates(lengths: Sequence[int], longest: int) -> tuple[Ints, Ints]:
    """Return starts and ends of all spans of up to `longest` words within a sentence, in order.

    >>> [s.tolist() for s in candidates([2, 1], 2)]
    [[0, 0, 1, 2], [1, 2, 2, 3]]
    """
    last = np.repeat(np.cumsum(lengths), lengths)  # where each word's sentence ends
    starts, widths = np.meshgrid(np.arange(len(last)), np.arange(1, longest + 1), indexing="ij")
    ends = starts + widths
    inside = ends <= last[:, None]
    return starts[inside], ends[inside]


def prune(starts: Ints, ends: Ints, scores: npt.NDArray[np.float32], most: int) -> list[int]:
    """Return the numbers of the best spans, at most so many, none of which cross; in text order.

    They are taken from the best down, and one that begins inside a span taken before and ends
    outside it, or the other way round, is passed over.
    """
    # Of the spans taken: where the last one that begins at a word ends, and the first one that ends
    # before a word begins. No span crosses another unless these say so.
    latest: dict[int, int] = {}
    earliest: dict[int, int] = {}
    taken: list[int] = []
    for number in np.argsort(-scores, kind="stable").tolist():
        if len(taken) >= most:
            break
        start, end = int(starts[number]), int(ends[number])
        if any(
            latest.get(place, 0) > end or earliest.get(place, start) < start
            for place in range(start + 1, end)
        ):
            continue
        latest[start] = max(latest.get(start, 0), end)
        earliest[end] = min(earliest.get(end, start), start)
        taken.append(number)
    return sorted(taken, key=lambda number: (int(starts[number]), int(ends[number])))


def positions(lengths: Sequence[int], longest: int, starts: Ints, ends: Ints) -> Ints:
    """Return the numbers of spans among the candidates, -1 for those that are none.

    >>> positions([2, 1], 2, np.array([1, 0]), np.array([2, 3])).tolist()
    [2, -1]
    """
    last = np.repeat(np.cumsum(lengths), lengths)
    counts = np.minimum(last - np.arange(len(last)), longest)  # candidates that begin at each word
    first = np.cumsum(counts) - counts
    width = ends - starts
    return np.where(width <= counts[starts], first[starts] + width - 1, -1)


def pairs(count: int, most: int) -> tuple[Ints, Ints]:
    """Return the pairs of `count` mentions and up to `most` before each: numbers, and columns.

    >>> [part.tolist() for part in pairs(3, 2)]
    [[1, 2, 2], [1, 1, 2]]
    """
    columns = np.arange(1, max(min(most, count - 1), 0) + 1)
    rows, places = np.nonzero(columns <= np.arange(count)[:, None])
    return rows, places + 1


def buckets(distances: Ints) -> Ints:
    """Group distances: 1, 2, 3, 4, 5-7, 8-15, 16-31, 32-63, 64 and more."""
    return np.searchsorted(BUCKETS, distances, side="right")


def gold_columns(scores: Tensor, clusters: Tensor) -> Tensor:
    """Return which columns are right, (M, 1+K), for mentions' cluster numbers (M), 0 for none.

    All antecedents of the same cluster; column 0 where there is none.
    """
    count, width = scores.shape
    before = torch.arange(count, device=scores.device).unsqueeze(1) - torch.arange(
        1, width, device=scores.device
    )  # (M, K)
    same = clusters[before.clamp(min=0)] == clusters.unsqueeze(1)
    same &= (clusters > 0).unsqueeze(1) & (scores[:, 1:] > float("-inf"))
    return torch.cat([~same.any(dim=1, keepdim=True), same], dim=1)


def marginal_loss(scores: Tensor, clusters: Tensor) -> Tensor:
    """Return minus the log-probability of the right columns together, summed over the mentions."""
    right = scores.masked_fill(~gold_columns(scores, clusters), float("-inf"))
    return (scores.logsumexp(dim=1) - right.logsumexp(dim=1)).sum()


def link(columns: Sequence[int]) -> list[list[int]]:
    """Join each mention with the antecedent of its column; return groups of two or more.

    >>> link([0, 0, 2, 0, 2])
    [[0, 2, 4]]
    """
    groups: dict[int, list[int]] = {}
    head: list[int] = []  # the first mention of each one's group
    for mention, column in enumerate(columns):
        head.append(head[mention - column] if column else mention)
        groups.setdefault(head[mention], []).append(mention)
    return [group for group in groups.values() if len(group) > 1]


def cut(document: Document, first: int, count: int) -> Document:
    """Return some of a document's sentences, with the mentions in them."""
    before = sum(map(len, document.sentences[:first]))
    sentences = document.sentences[first : first + count]
    after = before + sum(map(len, sentences))
    clusters = (
        tuple((s - before, e - before) for s, e in cluster if before <= s and e <= after)
        for cluster in document.clusters
    )
    speakers = document.speakers[first : first + count]
    return Document(document.name, sentences, speakers, tuple(c for c in clusters if c))
