"""The ragged parts of the character CNN in plain torch, on any device; see `chars`.

Word w owns rows `ends[w] - counts[w]` to `ends[w] - 1`. Rows behind the last word's belong to none:
they are zero, and change nothing. Results go to tensors that are given.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def windows(
    ids: Tensor,  # (n, C)
    counts: Tensor,  # (n,)
    ends: Tensor,  # (n,)
    embedding: Tensor,  # (R, d)
    out: Tensor,  # (rows, width * d), written: the embedded characters under the widest filter
    chars: Tensor,  # (rows, width), written: which they are; R behind the word's C characters
) -> None:
    """Lay out the windows of all words."""
    words, characters = ids.shape
    rows, wide = chars.shape
    none = len(embedding)
    row = torch.arange(rows, device=ids.device, dtype=ends.dtype)
    word = torch.searchsorted(ends, row, right=True)  # (rows,), n behind the last word
    used = (word < words).unsqueeze(1)
    word = word.clamp(max=words - 1)
    position = row - (ends - counts)[word]
    column = position.unsqueeze(1) + torch.arange(wide, device=ids.device)  # (rows, width)
    found = ids[word.unsqueeze(1), column.clamp(max=characters - 1)]
    chars.copy_(found.masked_fill(~used | (column >= characters), none))
    table = torch.cat([embedding, embedding.new_zeros(1, embedding.shape[1])]).to(out.dtype)
    out.copy_(F.embedding(chars, table).flatten(1))


def maximum(
    z: Tensor,  # (rows, F)
    counts: Tensor,
    ends: Tensor,
    last: Tensor,  # (F,) the last position that each filter may take
    span: tuple[int, int],  # the least and the greatest of `last`
    bias: Tensor,  # (F,)
    pooled: Tensor,  # (n, F), written
    places: Tensor | None,  # (n, F), written: the first position that has the maximum
) -> None:
    """Take the maximum over each word's rows, and add the bias.

    Position by position; on a CPU, which knows the lengths, among the words that have it.
    """
    order = counts.argsort(descending=True)
    counts, ends = counts[order], ends[order]
    starts = ends - counts
    best = z.new_full(pooled.shape, -torch.inf)
    at = torch.zeros(pooled.shape, dtype=torch.int16, device=z.device)
    for position in range(span[1] + 1):
        some = int((counts > position).sum()) if z.is_cpu else len(counts)
        if not some:
            break
        value = z.index_select(0, (starts[:some] + position).clamp(max=len(z) - 1))
        # NaN is kept, so that it is seen; once it is there nothing is larger.
        better = (value > best[:some]) | value.isnan()
        if not z.is_cpu:
            better &= (position < counts).unsqueeze(1)
        if position > span[0]:
            better &= position <= last
        best[:some] = torch.where(better, value, best[:some])
        at[:some].masked_fill_(better, position)
    best.masked_fill_((ends > len(z)).unsqueeze(1), torch.nan)  # there was no room for the word
    pooled.index_copy_(0, order, (best + bias).to(pooled.dtype))
    if places is not None:
        places.index_copy_(0, order, at.to(places.dtype))


def expand(
    gradient: Tensor,  # (n, F)
    places: Tensor,  # (n, F)
    counts: Tensor,
    ends: Tensor,
    dz: Tensor,  # (rows, F), written
) -> None:
    """Put each gradient in the row whose value was the maximum, zero elsewhere."""
    row = (ends - counts).unsqueeze(1) + places.long()  # (n, F), no two alike in a column
    dz.zero_().scatter_(0, row.clamp(max=len(dz) - 1), gradient)


def embedding_gradient(
    chars: Tensor,  # (rows, width)
    of_windows: Tensor,  # (rows, width * d)
    out: Tensor,  # (R, d), written
) -> None:
    """Sum the gradients of the windows by character, in an order that does not change."""
    symbols, depth = out.shape
    each = of_windows.view(-1, depth).to(out.dtype)
    found = torch.ops.aten.embedding_dense_backward(
        each, chars.flatten().long(), symbols + 1, -1, False
    )
    out.copy_(found[:symbols])
