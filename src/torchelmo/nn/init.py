"""Random starting values that cost nothing where there is nothing to fill."""

from torch import Tensor, nn


def normal_(tensor: Tensor, std: float) -> None:
    """Fill with normal values; a tensor without memory is left alone.

    Networks are built on the meta device to learn their shapes, and there torch would import its
    whole compiler for this one call: a second of every first load.
    """
    if not tensor.is_meta:
        nn.init.normal_(tensor, std=std)
