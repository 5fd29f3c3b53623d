"""The token layer: from spelling (and word number) to a context-free vector.

Characters are looked up, convolved with filters of several widths, the maximum over positions is
taken and then the activation, highway layers mix the result, and a linear layer brings it to the
LSTM's width. Models with a table of word vectors put that vector in front (ELMoForManyLangs), or
have nothing else (bilm-tf's word-input models).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchelmo.config import CharacterConfig, ElmoConfig
from torchelmo.nn.highway import Highway
from torchelmo.nn.init import normal_
from torchelmo.ops import reference
from torchelmo.ops.chars import char_conv_max


class CharCnn(nn.Module):
    """Character ids (n, C) to vectors (n, F). Ids are embedding rows plus one."""

    def __init__(self, config: CharacterConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.padding_id = config.symbols + 5
        self.max_width = max(width for width, _ in config.filters)
        self.embedding = nn.Parameter(torch.empty(config.rows, config.dim).uniform_(-1, 1))
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.dim, count, width) for width, count in config.filters
        )
        for conv in self.convolutions:
            assert isinstance(conv, nn.Conv1d)
            if config.activation == "relu":
                nn.init.uniform_(conv.weight, -0.05, 0.05)
            else:
                normal_(conv.weight, std=(conv.kernel_size[0] * config.dim) ** -0.5)
            nn.init.zeros_(conv.bias)  # type: ignore[arg-type]  # a Conv1d made with a bias
        self.highways = nn.ModuleList(Highway(config.n_filters) for _ in range(config.highways))

    def forward(
        self,
        characters: Tensor,
        length: int | None = None,
        spelt: Tensor | None = None,
        rows: int | None = None,
    ) -> Tensor:
        """Compute (n, F); `length` is the longest spelling among the rows, if the caller knows it.

        All windows of padding give one value, so one of them is enough: columns beyond the longest
        spelling and the widest filter are left out, which changes no number. Where the caller
        knows how many characters each row spells, `spelt` (n,), each row is cut at its own length;
        `rows` is the room for windows, as in `ops.chars.char_conv_max`.
        """
        filters: list[tuple[Tensor, Tensor]] = [
            (conv.weight, conv.bias)  # type: ignore[misc]  # Conv1d made with a bias
            for conv in self.convolutions
        ]
        if spelt is not None:
            pooled = char_conv_max(characters - 1, spelt, self.embedding, filters, rows=rows)
        else:
            if length is not None:
                characters = characters[:, : length + self.max_width]
            embedded = F.embedding(characters - 1, self.embedding)  # (n, C, d)
            pooled = reference.char_conv_max(embedded, filters)
        vectors = torch.relu(pooled) if self.activation == "relu" else torch.tanh(pooled)
        for highway in self.highways:
            vectors = highway(vectors)
        return vectors


class TokenLayer(nn.Module):
    """Distinct words to their context-free vectors (n, P)."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.characters = CharCnn(config.characters) if config.characters else None
        self.words = (
            nn.Parameter(torch.empty(config.words.words, config.words.dim).uniform_(-1, 1))
            if config.words
            else None
        )
        self.projection: nn.Linear | None = None
        if config.token_projection:
            self.projection = nn.Linear(config.token_width, config.lstm.projection)
            normal_(self.projection.weight, std=config.token_width**-0.5)
            nn.init.zeros_(self.projection.bias)

    def forward(
        self,
        characters: Tensor | None,
        words: Tensor | None,
        length: int | None = None,
        spelt: Tensor | None = None,
        rows: int | None = None,
    ) -> Tensor:
        """Take character ids (n, C) and word numbers (n,), each if the model has that input.

        What else is known of the spellings makes it faster, as `CharCnn.forward` explains.
        """
        parts: list[Tensor] = []
        if self.words is not None:
            if words is None:
                raise ValueError("this model reads word numbers, none were given")
            parts.append(F.embedding(words, self.words))
        if self.characters is not None:
            if characters is None:
                raise ValueError("this model reads characters, none were given")
            parts.append(self.characters(characters, length, spelt, rows))
        vectors = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
        return vectors if self.projection is None else self.projection(vectors)
