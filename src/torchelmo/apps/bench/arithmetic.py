"""How many floating-point operations a model takes, counted from its config.

A multiplication and an addition are two. Only matrix products are counted: what else there is, the
gates and activations, is below two percent of them.
"""

from __future__ import annotations

from torchelmo.config import ElmoConfig

BACKWARD = 2  # times the forward pass: gradients of inputs and of weights


def per_token(config: ElmoConfig) -> int:
    """Return the operations of both LSTM stacks for one token.

    >>> per_token(ElmoConfig.preset("small")), per_token(ElmoConfig.preset("original"))
    (9437184, 150994944)
    """
    lstm = config.lstm
    gates = 4 * lstm.cells * (lstm.projection + lstm.projection)  # of the input and the recurrence
    projected = lstm.cells * lstm.projection if lstm.project else 0
    return 2 * 2 * lstm.layers * (gates + projected)


def per_word(config: ElmoConfig, spelt: int | None = None) -> int:
    """Return the operations of the token layer for one distinct word.

    All positions are counted, or those that differ: a word of `spelt` characters, its two marks
    among them, has that many windows and one more, which is all padding.

    >>> per_word(ElmoConfig.preset("small")), per_word(ElmoConfig.preset("original"))
    (34918400, 53268480)
    """
    count = 0
    if config.characters is not None:
        characters = config.characters
        for width, filters in characters.filters:
            windows = characters.max_characters - width + 1
            if spelt is not None:
                windows = min(windows, spelt + 1)
            count += windows * width * characters.dim * filters
        count += characters.highways * 2 * characters.n_filters**2  # transform and carry
    if config.token_projection:
        count += config.token_width * config.lstm.projection
    return 2 * count


def of_words(config: ElmoConfig, words: set[str]) -> int:
    """Return the operations of the token layer for words, each at its own length."""
    scheme = config.characters.scheme if config.characters else "bytes"
    lengths = (len(word.encode() if scheme == "bytes" else word) + 2 for word in words)
    return sum(per_word(config, length) for length in lengths)


def per_trained_token(config: ElmoConfig, negatives: int) -> int:
    """Return the operations of a training step for one token, without the token layer.

    Both passes through the LSTMs, and through a softmax over the target and the negatives in each
    direction.
    """
    softmax = 2 * 2 * config.lstm.projection * (negatives + 1)
    return (1 + BACKWARD) * (per_token(config) + softmax)
