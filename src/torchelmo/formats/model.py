"""What every file format is read into and written from: a config and named tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchelmo.config import ElmoConfig
from torchelmo.errors import InputError
from torchelmo.nn.bilm import BiLM
from torchelmo.nn.softmax import AnySoftmax, make_softmax


@dataclass(frozen=True)
class Model:
    """A biLM as files hold it.

    `tensors` has the names and shapes of `BiLM(config).state_dict()`; `softmax` has `weight` (V, P)
    and `bias` (V,), or those of an `AdaptiveSoftmax` where the config says so.
    """

    config: ElmoConfig
    tensors: Mapping[str, Tensor]
    vocabulary: Sequence[str] | None = None  # targets of the softmax, in order of its rows
    words: Sequence[str] | None = None  # input words, in order of `token.words`
    alphabet: Sequence[str] = ()  # symbols of the code-point and jamo schemes
    softmax: Mapping[str, Tensor] | None = None
    mixes: Mapping[str, Tensor] = field(default_factory=dict)  # "0.weights", "0.gamma", ...
    attribution: str | None = None  # whose text it was trained on, where its licence asks for that

    def build(self) -> BiLM:
        """Make the network around these very tensors."""
        check_shapes(self.tensors, expected_shapes(self.config), "the model")
        with torch.device("meta"):  # no memory is taken for weights that are replaced at once
            bilm = BiLM(self.config)
        bilm.load_state_dict(dict(self.tensors), assign=True)
        return bilm

    def build_softmax(self) -> AnySoftmax | None:
        """Make the softmax around these very tensors, if there are any."""
        if self.softmax is None:
            return None
        rows = self.config.vocabulary
        if rows is None or self.config.adaptive is None:
            rows = self.softmax["weight"].shape[0]
        with torch.device("meta"):
            softmax = make_softmax(self.config, rows)
        shapes = {name: tuple(t.shape) for name, t in softmax.state_dict().items()}
        check_shapes(self.softmax, shapes, "the model's softmax")
        softmax.load_state_dict(dict(self.softmax), assign=True)
        return softmax


def expected_shapes(config: ElmoConfig) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of each tensor of a biLM, without allocating one."""
    with torch.device("meta"):
        return {name: tuple(t.shape) for name, t in BiLM(config).state_dict().items()}


def check_shapes(
    tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]], where: str
) -> None:
    """Raise one sentence for the first tensor that is missing, unknown or of another shape."""
    for name, shape in expected.items():
        if name not in tensors:
            raise InputError(f"{where} lacks the tensor {name!r} of shape {shape}")
        found = tuple(tensors[name].shape)
        if found != shape:
            raise InputError(f"{where} has {name!r} of shape {found}, its config expects {shape}")
    for name in tensors:
        if name not in expected:
            raise InputError(f"{where} has a tensor {name!r} that its config does not know")
