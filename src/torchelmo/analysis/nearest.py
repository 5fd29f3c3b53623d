"""Nearest by cosine, as the sense probes use it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
# Vectors that are equal up to rounding are equally near: then the earlier candidate is taken, and
# callers put the commoner sense first.
DIGITS = 5


def unit(vectors: Array) -> Array:
    """Return vectors of length 1; zeros stay zeros."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, 1e-12), np.float32)


def cosines(queries: Array, candidates: Array) -> Array:
    """Return the cosines of (n, D) with (m, D), (n, m)."""
    return np.round(unit(queries) @ unit(candidates).T, DIGITS)
