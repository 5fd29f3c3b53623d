"""From tags to spans and back, and the best path or span under constraints.

Tags are read as the CoNLL scorer (conlleval) reads IOB, with the ends of BIOUL and BIOES added: one
function serves all four, and a malformed sequence still gives the spans that would be scored. Spans
are half-open: `words[start:end]`.

The CRF departs from AllenNLP's in nothing that is computed: constraints bind decoding only, the
likelihood sums over all sequences, on a GPU by one kernel (`triton_crf`). Masks are right-padded: a
row's words come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from torchelmo.errors import InputError
from torchelmo.ops.backend import choose

FUSED_TAGS = 64  # that one kernel can hold
SCHEMES = ("IOB1", "IOB2", "BIOUL", "BIOES")
# First word, inner word, last word, single word. IOB1 is IOB2 but for the first word.
_LETTERS = {"IOB1": "BIIB", "IOB2": "BIIB", "BIOUL": "BILU", "BIOES": "BIES"}
_BEGIN, _INSIDE, _END = "BUS", "I", "LEUS"


class Span(NamedTuple):
    """A labelled run of words, `words[start:end]`."""

    label: str
    start: int
    end: int


def split_tag(tag: str) -> tuple[str, str]:
    """Cut a tag into its letter and its label: "B-ORG" -> ("B", "ORG"), "O" -> ("O", "")."""
    letter, _, label = tag.partition("-")
    return letter, label


def to_spans(tags: Sequence[str]) -> list[Span]:
    """Return the spans of a sequence of tags of any scheme, as conlleval finds them.

    >>> [tuple(span) for span in to_spans(["I-ORG", "O", "I-PER", "I-PER", "B-PER"])]
    [('ORG', 0, 1), ('PER', 2, 4), ('PER', 4, 5)]
    """
    spans = []
    start, before, open_label = 0, "O", ""
    for n, tag in enumerate([*tags, "O"]):
        letter, label = split_tag(tag)
        inside = letter != "O"
        goes_on = (
            inside
            and before != "O"
            and label == open_label
            and letter not in _BEGIN
            and before not in _END
        )
        if not goes_on:
            if before != "O":
                spans.append(Span(open_label, start, n))
            start = n
        before, open_label = letter, label
    return spans


def to_tags(spans: Iterable[Span], length: int, scheme: str = "BIOUL") -> list[str]:
    """Write spans that do not overlap as tags.

    >>> to_tags([Span("ORG", 0, 1), Span("PER", 2, 4)], 5, "BIOUL")
    ['U-ORG', 'O', 'B-PER', 'L-PER', 'O']
    """
    first, inner, last, single = tuple(_letters(scheme))
    tags = ["O"] * length
    previous = Span("", -1, -1)
    for span in sorted(spans, key=lambda s: s.start):
        label, start, end = span
        if not max(previous.end, 0) <= start < end <= length:
            raise InputError(
                f"the span {tuple(span)} overlaps another or leaves the {length} words: one tag a "
                "word cannot hold it"
            )
        letters = [single] if end - start == 1 else [first, *inner * (end - start - 2), last]
        if scheme == "IOB1" and (previous.end, previous.label) != (start, label):
            letters[0] = "I"
        tags[start:end] = [f"{letter}-{label}" for letter in letters]
        previous = span
    return tags


def convert(tags: Sequence[str], scheme: str = "BIOUL") -> list[str]:
    """Rewrite tags of any scheme in another: ["I-ORG", "O"] -> ["U-ORG", "O"]."""
    return to_tags(to_spans(tags), len(tags), scheme)


class Constraints(NamedTuple):
    """Which tags may follow which, (K, K) from row to column, and which may begin and end, (K)."""

    follow: Tensor
    begin: Tensor
    end: Tensor


def constraints(tags: Sequence[str], scheme: str = "BIOUL") -> Constraints:
    """Return what a scheme allows among these tags, in their order."""
    _letters(scheme)
    inner = [_may_follow("O", tag, scheme) for tag in tags]
    outer = [_may_follow(tag, "O", scheme) for tag in tags]
    follow = [[_may_follow(one, two, scheme) for two in tags] for one in tags]
    return Constraints(torch.tensor(follow), torch.tensor(inner), torch.tensor(outer))


def _may_follow(one: str, two: str, scheme: str) -> bool:
    """Say whether tag `two` may stand right after `one`; a sentence's edges count as O."""
    (letter, label), (following, next_label) = split_tag(one), split_tag(two)
    same = label == next_label and letter != "O"
    if scheme == "IOB2":
        return following != "I" or same
    if scheme == "IOB1":
        return following != "B" or same
    # A span that was begun must be brought to its end before anything else starts.
    if letter in "BI":
        return same and following in "ILE"
    return following in "OBUS"


def _letters(scheme: str) -> str:
    if scheme not in _LETTERS:
        raise InputError(f"tag scheme {scheme!r}, expected one of {', '.join(SCHEMES)}")
    return _LETTERS[scheme]


def best_path(
    scores: Tensor,
    mask: Tensor,
    *,
    transitions: Tensor | None = None,
    begin: Tensor | None = None,
    end: Tensor | None = None,
    constraints: Constraints | None = None,
) -> tuple[list[list[int]], Tensor]:
    """Viterbi: return each row's best sequence of tags and its score (B).

    `scores` (B, T, K), `mask` (B, T) true on words; `transitions` (K, K) from row to column,
    `begin` and `end` (K) are added; what the constraints forbid is left out. A row without words
    gives []. With log-probabilities and constraints alone this is the BIO decoding of He et al.
    (2017).
    """
    scores = scores.detach().float()
    batch, length, count = scores.shape
    mask = mask.bool()
    step = _allowed(transitions, constraints and constraints.follow, scores, (count, count))
    first = _allowed(begin, constraints and constraints.begin, scores, (count,))
    last = _allowed(end, constraints and constraints.end, scores, (count,))
    if not length:
        return [[] for _ in range(batch)], scores.new_zeros(batch)

    best = first + scores[:, 0]  # (B, K): the best path that ends here in each tag
    back = []
    for t in range(1, length):
        through = best.unsqueeze(2) + step  # (B, K, K)
        value, came = through.max(dim=1)
        here = mask[:, t].unsqueeze(1)
        best = torch.where(here, value + scores[:, t], best)
        # Padding points at itself, so that the way back runs through it unchanged.
        back.append(torch.where(here, came, torch.arange(count, device=came.device)))
    total, tag = (best + last).max(dim=1)  # (B)
    path = [tag]
    for came in reversed(back):
        path.append(came.gather(1, path[-1].unsqueeze(1)).squeeze(1))
    tags = torch.stack(path[::-1], dim=1).tolist()  # (B, T)
    lengths = mask.sum(dim=1)
    rows = [row[:n] for row, n in zip(tags, lengths.tolist(), strict=True)]
    return rows, torch.where(lengths > 0, total, torch.zeros_like(total))


def _allowed(
    values: Tensor | None, allowed: Tensor | None, like: Tensor, shape: tuple[int, ...]
) -> Tensor:
    out = like.new_zeros(shape) if values is None else values.detach().to(like)
    if allowed is not None:
        out = out.masked_fill(~allowed.to(like.device), float("-inf"))
    return out


class _Partition(torch.autograd.Function):
    """The log of the sum over all sequences of tags (B), by one kernel each way."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's
        scores: Tensor,
        lengths: Tensor,
        transitions: Tensor,
        begin: Tensor,
        end: Tensor,
    ) -> Tensor:
        from torchelmo.ops import triton_crf

        scores = scores.contiguous()
        total, before = triton_crf.forward(scores, lengths, transitions, begin, end)
        ctx.save_for_backward(scores, lengths, transitions, end, before, total)
        return total

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,  # noqa: ANN401 - autograd's
        grad: Tensor,
    ) -> tuple[Tensor, None, Tensor, Tensor, Tensor]:
        from torchelmo.ops import triton_crf

        scores, steps, ends = triton_crf.backward(grad.contiguous(), *ctx.saved_tensors)
        return scores, None, steps.sum(dim=0), scores[:, 0].sum(dim=0), ends.sum(dim=0)


class Crf(nn.Module):
    """A linear-chain conditional random field over K tags.

    With `boundaries`, the first and the last tag have weights too (AllenNLP's entities: without).
    """

    transitions: Tensor
    begin: Tensor | None
    end: Tensor | None

    def __init__(
        self, tags: int, *, constraints: Constraints | None = None, boundaries: bool = True
    ) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.empty(tags, tags))  # from row to column
        nn.init.xavier_normal_(self.transitions)
        self.begin = nn.Parameter(torch.randn(tags)) if boundaries else None
        self.end = nn.Parameter(torch.randn(tags)) if boundaries else None
        self.constraints = constraints

    def log_likelihood(self, logits: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """Return log p(tags | logits) of each row: (B, T, K), (B, T), (B, T) -> (B)."""
        logits, mask = logits.float(), mask.bool()
        return self._score(logits, tags, mask) - self._partition(logits, mask)

    def viterbi(self, logits: Tensor, mask: Tensor) -> tuple[list[list[int]], Tensor]:
        """Return each row's best allowed tags and their score, of (B, T, K) and (B, T)."""
        return best_path(
            logits,
            mask,
            transitions=self.transitions,
            begin=self.begin,
            end=self.end,
            constraints=self.constraints,
        )

    def _score(self, logits: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """Return the score of the given tags (B)."""
        tags = tags.masked_fill(~mask, 0)
        words = logits.gather(2, tags.unsqueeze(2)).squeeze(2)  # (B, T)
        score = (words * mask).sum(dim=1)
        steps = self.transitions[tags[:, :-1], tags[:, 1:]]  # (B, T-1)
        score = score + (steps * mask[:, 1:]).sum(dim=1)
        if self.begin is not None and self.end is not None and tags.shape[1]:
            last = tags.gather(1, (mask.sum(dim=1, keepdim=True) - 1).clamp(min=0)).squeeze(1)
            score = score + (self.begin[tags[:, 0]] + self.end[last]) * mask[:, 0]
        return score

    def _partition(self, logits: Tensor, mask: Tensor, backend: str | None = None) -> Tensor:
        """Return the log of the sum over all sequences (B)."""
        batch, length, count = logits.shape
        if not length:
            return logits.new_zeros(batch)
        if choose(logits.device, backend) == "triton" and count <= FUSED_TAGS:
            zeros = logits.new_zeros(count)
            begin = zeros if self.begin is None else self.begin
            end = zeros if self.end is None else self.end
            lengths = mask.sum(dim=1, dtype=torch.int32)
            return _Partition.apply(logits, lengths, self.transitions, begin, end)  # type: ignore[no-untyped-call,no-any-return]
        total = logits[:, 0] if self.begin is None else logits[:, 0] + self.begin  # (B, K)
        for t in range(1, length):
            through = total.unsqueeze(2) + self.transitions  # (B, K, K)
            value = through.logsumexp(dim=1) + logits[:, t]
            total = torch.where(mask[:, t].unsqueeze(1), value, total)
        if self.end is not None:
            total = total + self.end
        return torch.where(mask[:, 0], total.logsumexp(dim=1), logits.new_zeros(batch))


def best_span(
    start: Tensor, end: Tensor, mask: Tensor, *, limit: int = 17
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best span of at most `limit` words: start, end (half-open), score, each (B).

    `start` and `end` (B, T) score a word as the first and as the last of the answer; their sum is
    the span's score. A row without words gives (0, 0, -inf).
    """
    start = start.detach().float().masked_fill(~mask.bool(), float("-inf"))
    end = end.detach().float().masked_fill(~mask.bool(), float("-inf"))
    length = start.shape[1]
    # All spans of one length at a time: `limit` rows of (B, T) instead of (B, T, T).
    by_length = []
    for extra in range(min(limit, length)):
        pad = start.new_full((start.shape[0], extra), float("-inf"))
        by_length.append(start + torch.cat([end[:, extra:], pad], dim=1))
    if not by_length:
        zeros = torch.zeros(start.shape[0], dtype=torch.long, device=start.device)
        return zeros, zeros, start.new_full((start.shape[0],), float("-inf"))
    scores = torch.stack(by_length, dim=1)  # (B, limit, T)
    score, place = scores.flatten(1).max(dim=1)
    first = place % length
    after = first + place // length + 1
    none = score == float("-inf")
    return first.masked_fill(none, 0), after.masked_fill(none, 0), score
