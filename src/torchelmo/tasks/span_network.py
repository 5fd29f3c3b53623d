"""The network over spans of words: which are mentions, and which mean the same.

Behind the biLSTM of `coreference`, one document at a time, so that memory grows with one document's
spans and with the pairs of the kept ones alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from torchelmo.tasks import mentions
from torchelmo.tasks.data import move
from torchelmo.tasks.modules import FeedForward, masked_softmax, precise

BLOCK = 1 << 14  # pairs that are scored at a time


class PairScore(nn.Module):
    """A feed-forward network over [one; two; one * two; features], its first layer in parts."""

    def __init__(self, width: int, features: int, hidden: Sequence[int], dropout: float) -> None:
        super().__init__()
        self.later = nn.Linear(width, hidden[0])
        self.earlier = nn.Linear(width, hidden[0], bias=False)
        self.product = nn.Linear(width, hidden[0], bias=False)
        self.features = nn.Linear(features, hidden[0], bias=False)
        self.dropout = nn.Dropout(dropout)
        self.rest = FeedForward(hidden[0], hidden[1:], dropout=dropout)
        self.top = nn.Linear(hidden[-1], 1)

    def forward(self, spans: Tensor, later: Tensor, earlier: Tensor, features: Tensor) -> Tensor:
        """Score pairs of spans (M, D): numbers (P) of both, features (P, F) -> (P)."""
        one, two = self.later(spans), self.earlier(spans)  # (M, H), far fewer than pairs
        blocks = []
        for rows, columns, facts in zip(
            later.split(BLOCK), earlier.split(BLOCK), features.split(BLOCK), strict=True
        ):
            first = one[rows] + two[columns] + self.features(facts)
            first = first + self.product(spans[rows] * spans[columns])
            blocks.append(precise(self.top, self.rest(self.dropout(first.relu()))).squeeze(1))
        return torch.cat(blocks)


class SpanNetwork(nn.Module):
    """Scores all spans of a document, keeps the best, and scores these with those before them."""

    def __init__(
        self,
        width: int,
        head_width: int,
        genres: int,
        *,
        longest: int,
        share: float,
        antecedents: int,
        hidden: Sequence[int],
        features: int,
        dropout: float,
    ) -> None:
        """Take the widths of words' hidden states and of their vectors, and the options."""
        super().__init__()
        self.longest, self.share, self.most = longest, share, antecedents
        span = 2 * width + head_width + features
        self.attention = nn.Linear(width, 1)
        self.widths = _table(longest, features)
        self.mention = FeedForward(span, hidden, dropout=dropout)
        self.mention_top = nn.Linear(hidden[-1], 1)
        self.distances = _table(len(mentions.BUCKETS) + 1, features)
        self.speakers = _table(2, features)
        self.genres = _table(genres, features)
        self.pair = PairScore(span, 3 * features, hidden, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        hidden: Tensor,
        heads: Tensor,
        lengths: Sequence[int],
        speakers: Sequence[int],
        genre: int | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores of spans (N), numbers of those kept (M), scores of antecedents (M, 1+K).

        Words (W) come as hidden states and vectors, sentences as lengths and numbers of speakers.
        An unknown genre is the mean of those known.
        """
        device = hidden.device
        first, last = mentions.candidates(lengths, self.longest)
        starts, ends = (move(torch.from_numpy(part), device) for part in (first, last))
        spans = self._represent(hidden, heads, starts, ends)
        scores = precise(self.mention_top, self.mention(spans)).squeeze(1)
        most = max(int(self.share * len(hidden)), 1)
        chosen = mentions.prune(first, last, scores.detach().cpu().numpy(), most)
        kept = move(torch.tensor(chosen), device)
        width = 1 + min(self.most, len(chosen) - 1)
        linked = scores.new_full((len(chosen), width), float("-inf"))
        linked[:, 0] = 0
        if width > 1:
            rows, columns = mentions.pairs(len(chosen), self.most)
            spoken = np.repeat(speakers, lengths)[first[chosen]]
            # On the host, which has nothing to do yet, and to the device at once.
            facts = np.stack(
                [
                    rows,
                    rows - columns,
                    columns,
                    mentions.buckets(columns),
                    spoken[rows] == spoken[rows - columns],
                ]
            )
            later, earlier, behind, distance, same = move(torch.from_numpy(facts), device)
            found = self.pair(spans[kept], later, earlier, self._features(distance, same, genre))
            both = scores[kept][later] + scores[kept][earlier]
            linked = linked.index_put((later, behind), found + both)
        return scores, kept, linked

    def _represent(self, hidden: Tensor, heads: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
        """Spans' vectors (N, ...): the first word, the last, the head, the width."""
        places = starts.unsqueeze(1) + torch.arange(self.longest, device=starts.device)
        inside = places < ends.unsqueeze(1)  # (N, longest)
        places = places.clamp(max=len(hidden) - 1)
        weights = masked_softmax(self.attention(hidden).float().squeeze(1)[places], inside)
        head = nn.functional.embedding_bag(places, heads, per_sample_weights=weights, mode="sum")
        width = self.dropout(self.widths(ends - starts - 1))
        return torch.cat([hidden[starts], hidden[ends - 1], head, width], dim=1)

    def _features(self, distances: Tensor, same: Tensor, genre: int | None) -> Tensor:
        """Pairs' features (P, 3 F): group of the distance, whether one speaks, genre."""
        table = self.genres.weight
        found = [
            self.distances(distances),
            self.speakers(same),
            (table.mean(dim=0) if genre is None else table[genre]).expand(len(distances), -1),
        ]
        dropped: Tensor = self.dropout(torch.cat(found, dim=1))
        return dropped


def _table(rows: int, width: int) -> nn.Embedding:
    table = nn.Embedding(rows, width)
    nn.init.xavier_uniform_(table.weight)
    return table
