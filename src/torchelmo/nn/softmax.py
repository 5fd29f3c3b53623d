"""The language model's output layer, shared by both directions: probabilities of the next word.

`Softmax` is the originals': logits = h W^T + b over all words. `AdaptiveSoftmax` (Grave et al.,
2017) parts the vocabulary, which is sorted by falling frequency, at cutoffs. Its head chooses among
the frequent words and the clusters of rarer ones; a cluster chooses among its words from a narrower
vector, and is asked only where it is needed. The product of the two choices sums to 1 over the
vocabulary, as the full softmax does. Words of a cluster have a bias here, unlike torch's
`AdaptiveLogSoftmaxWithLoss`.

Both give the same things to those who score words; a `piece` is how many logits are held at a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchelmo.config import AdaptiveConfig, ElmoConfig
from torchelmo.nn.init import normal_

WHOLE = 1 << 62  # a piece without bound


class Part(NamedTuple):
    """One choice among words or clusters: the vectors (m, p) and targets (m,) that it concerns."""

    softmax: Softmax
    hidden: Tensor
    targets: Tensor  # counted from the softmax's first word
    rows: Tensor | None  # (m,) which of the n vectors these are; None: all


class Softmax(nn.Module):
    """Scores of every vocabulary word; new weights have standard deviation 1/sqrt(P)."""

    capturable = True  # the loss has the same shapes whatever the targets: CUDA graphs can hold it

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, width))
        normal_(self.weight, std=width**-0.5)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    @property
    def vocabulary(self) -> int:
        """V, how many words there are."""
        return self.bias.shape[0]

    def forward(self, hidden: Tensor) -> Tensor:
        """(n, P) to logits (n, V)."""
        return F.linear(hidden, self.weight, self.bias)

    def pieces(self, hidden: Tensor, piece: int) -> Iterator[tuple[int, Tensor]]:
        """Yield float logits of one run of words after another, with the id of its first."""
        return _pieces(hidden, self.weight, self.bias, piece)

    def log_probabilities(self, hidden: Tensor, targets: Tensor, piece: int) -> Tensor:
        """Return the log probability of each target, (n,), from hidden vectors (n, P)."""
        total = hidden.new_full((len(hidden),), -torch.inf, dtype=torch.float32)
        logit = torch.zeros_like(total)
        for start, logits in self.pieces(hidden, piece):
            total = torch.logaddexp(total, logits.logsumexp(dim=1))
            # No boolean index: on a GPU it would wait for every piece.
            place = (targets - start).unsqueeze(1)  # (n, 1)
            inside = place.clamp(0, logits.shape[1] - 1)
            logit = torch.where((place == inside)[:, 0], logits.gather(1, inside)[:, 0], logit)
        return logit - total

    def parts(self, hidden: Tensor, targets: Tensor) -> Iterator[Part]:
        """Yield the one choice there is."""
        yield Part(self, hidden, targets, None)


class AdaptiveSoftmax(nn.Module):
    """A softmax in clusters: the log probability of a rare word is its cluster's plus its own."""

    capturable = False  # how many vectors a cluster sees depends on the targets

    def __init__(self, vocabulary: int, width: int, config: AdaptiveConfig) -> None:
        super().__init__()
        self.vocabulary, self.cutoffs = vocabulary, config.cutoffs
        widths = config.widths(width)
        self.head = Softmax(self.cutoffs[0] + len(self.cutoffs), width)
        self.projections = nn.ParameterList(torch.empty(narrow, width) for narrow in widths)
        for projection in self.projections:
            normal_(projection, std=width**-0.5)
        borders = itertools.pairwise((*self.cutoffs, vocabulary))
        self.tails = nn.ModuleList(
            Softmax(high - low, narrow) for (low, high), narrow in zip(borders, widths, strict=True)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """(n, P) to (n, V), whose softmax is the words' probabilities."""
        return torch.cat([logits for _, logits in self.pieces(hidden, WHOLE)], dim=1)

    def pieces(self, hidden: Tensor, piece: int) -> Iterator[tuple[int, Tensor]]:
        """Yield float logits of one run of words after another, with the id of its first.

        A cluster's words share out its entry in the head. What they are divided by is summed up
        before they are given: the products with a cluster are made twice.
        """
        first, head = self.cutoffs[0], self.head
        yield from _pieces(hidden, head.weight[:first], head.bias[:first], piece)
        entries = F.linear(hidden, head.weight[first:], head.bias[first:]).float()
        for entry, (low, tail, projection) in zip(entries.t(), self._clusters(), strict=True):
            narrow = F.linear(hidden, projection)
            sums = [logits.logsumexp(dim=1) for _, logits in tail.pieces(narrow, piece)]
            share = entry - torch.stack(sums).logsumexp(dim=0)
            for start, logits in tail.pieces(narrow, piece):
                yield low + start, logits + share.unsqueeze(1)

    def log_probabilities(self, hidden: Tensor, targets: Tensor, piece: int) -> Tensor:
        """Return the log probability of each target, (n,), from hidden vectors (n, P)."""
        head, *tails = (
            (part.softmax.log_probabilities(part.hidden, part.targets, piece), part.rows)
            for part in self.parts(hidden, targets)
        )
        total, _ = head
        for logs, rows in tails:
            assert rows is not None
            total = total.index_add(0, rows, logs)
        return total

    def parts(self, hidden: Tensor, targets: Tensor) -> Iterator[Part]:
        """Yield the choices whose log probabilities add up to those of the targets.

        The head's concerns all vectors; a cluster's only those whose targets lie in it, which may
        be none.
        """
        chosen = targets
        for number, (low, _, _) in enumerate(self._clusters()):
            chosen = torch.where(targets >= low, self.cutoffs[0] + number, chosen)
        yield Part(self.head, hidden, chosen, None)
        for low, tail, projection in self._clusters():
            rows = self._rows(targets, low, low + tail.vocabulary)
            narrow = F.linear(hidden.index_select(0, rows), projection)
            yield Part(tail, narrow, targets.index_select(0, rows) - low, rows)

    def _clusters(self) -> Iterator[tuple[int, Softmax, Tensor]]:
        """Yield each cluster's first word, its softmax and its projection (p, P)."""
        tails = cast("list[Softmax]", list(self.tails))
        return zip(self.cutoffs, tails, self.projections, strict=True)

    def _rows(self, targets: Tensor, low: int, high: int) -> Tensor:
        """Return which targets lie among the words from `low` to below `high`."""
        if targets.is_meta:  # no values: as many as by Zipf's law
            share = math.log((high + 1) / (low + 1)) / math.log(self.vocabulary + 1)
            return targets.new_empty(round(len(targets) * share))
        return ((targets >= low) & (targets < high)).nonzero()[:, 0]


AnySoftmax: TypeAlias = Softmax | AdaptiveSoftmax


def make_softmax(config: ElmoConfig, vocabulary: int) -> AnySoftmax:
    """Return a new softmax of the kind that the config says."""
    if config.adaptive is None:
        return Softmax(vocabulary, config.lstm.projection)
    return AdaptiveSoftmax(vocabulary, config.lstm.projection, config.adaptive)


def _pieces(
    hidden: Tensor, weight: Tensor, bias: Tensor, piece: int
) -> Iterator[tuple[int, Tensor]]:
    words = max(piece // max(len(hidden), 1), 1)
    for start in range(0, len(bias), words):
        part = slice(start, start + words)
        yield start, F.linear(hidden, weight[part], bias[part]).float()
