"""The mix: gamma * sum_j softmax(w)_j h_j, learned by a task over a frozen biLM.

Layer normalisation is over a whole batch: one mean and one variance a layer, no gain. bilm-tf takes
them over the words alone (`"tf"`), AllenNLP over the words and the two boundaries of each sentence
(`"allennlp"`); the results differ by some percent, so the choice has a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from torchelmo.errors import InputError
from torchelmo.nn.output import Layers

LayerNorm = Literal["tf", "allennlp"]
EPSILON = {"tf": 1e-12, "allennlp": 1e-13}


class ScalarMix(nn.Module):
    """Mixes L+1 layers into one.

    Args:
        n_layers: L+1.
        kind: "learned" weights; "average"; "top" (gamma alone is learned); or a layer's number.
        weights: pre-softmax weights to start from (with `kind="learned"`).
        gamma: the scale to start from.
        trainable: False fixes the weights and gamma.
        layer_norm: None, "tf" or "allennlp".
        dropout: applied to the mix while training.
    """

    def __init__(
        self,
        n_layers: int,
        *,
        kind: Literal["learned", "average", "top"] | int = "learned",
        weights: Sequence[float] | None = None,
        gamma: float = 1.0,
        trainable: bool = True,
        layer_norm: LayerNorm | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if weights is not None and len(weights) != n_layers:
            raise InputError(f"{len(weights)} mix weights were given for {n_layers} layers")
        if weights is not None and kind != "learned":
            raise InputError(f"mix weights were given together with kind={kind!r}")
        if isinstance(kind, int) and not -n_layers <= kind < n_layers:
            raise InputError(f"layer {kind} of a model with layers 0 to {n_layers - 1}")
        if kind not in ("learned", "average", "top") and not isinstance(kind, int):
            raise InputError(
                f"a mix is 'learned', 'average', 'top' or a layer's number, not {kind!r}"
            )
        if layer_norm not in (None, "tf", "allennlp"):
            raise InputError(f"layer_norm is None, 'tf' or 'allennlp', not {layer_norm!r}")
        self.n_layers, self.kind, self.layer_norm = n_layers, kind, layer_norm
        self.dropout = nn.Dropout(dropout)
        self.weights: nn.Parameter | None = None
        if kind == "learned":
            initial = torch.tensor(weights if weights is not None else [0.0] * n_layers)
            self.weights = nn.Parameter(initial, requires_grad=trainable)
        self.gamma = nn.Parameter(torch.tensor([gamma]), requires_grad=trainable)

    def shares(self) -> Tensor:
        """s_j, how much of each layer is in the mix, (L+1,)."""
        if self.weights is not None:
            return torch.softmax(self.weights, dim=0)
        if self.kind == "average":
            return self.gamma.new_full((self.n_layers,), 1 / self.n_layers)
        layer = self.n_layers - 1 if self.kind == "top" else int(self.kind)
        return torch.nn.functional.one_hot(
            torch.tensor(layer % self.n_layers, device=self.gamma.device), self.n_layers
        ).to(self.gamma)

    def penalty(self) -> Tensor:
        """Sum of w^2 over the raw weights, never over gamma; zero where none are learned."""
        return self.gamma.new_zeros(()) if self.weights is None else self.weights.square().sum()

    def forward(self, layers: Layers) -> Tensor:
        """Return the mix without padding, (N, D), with dropout while training."""
        dropped: Tensor = self.dropout(self.mix(layers))
        return dropped

    def mix(self, layers: Layers) -> Tensor:
        """Return the mix without padding, (N, D); boundaries, if there, are kept."""
        if len(layers) != self.n_layers:
            raise InputError(f"this mix is for {self.n_layers} layers, {len(layers)} were given")
        values = layers.flat
        if self.layer_norm is not None:
            counted = values
            if self.layer_norm == "tf" and layers.boundaries:
                counted = values[:, layers.inner()]
            variance, mean = torch.var_mean(counted, dim=(1, 2), correction=0, keepdim=True)
            epsilon = EPSILON[self.layer_norm] if values.dtype != torch.float16 else 1e-4
            values = (values - mean) * torch.rsqrt(variance + epsilon)
        shares = self.shares().to(values.dtype)
        return torch.einsum("l,lnd->nd", shares, values) * self.gamma.to(values.dtype)
