"""Tiny models with random weights, and how to run one over sentences."""

import numpy as np
import torch
from hypothesis import strategies as st

from torchelmo.config import (
    BEGIN,
    END,
    UNKNOWN,
    CharacterConfig,
    ElmoConfig,
    LstmConfig,
    WordConfig,
)
from torchelmo.formats.model import Model, expected_shapes
from torchelmo.nn.lstm import State
from torchelmo.text.characters import Characters

WORDS = [BEGIN, END, UNKNOWN, "a", "café", "한국어", "…", "x" * 60]
PLAIN = ElmoConfig(
    characters=CharacterConfig(dim=3, filters=((1, 2), (3, 5)), max_characters=9, highways=1),
    lstm=LstmConfig(cells=6, projection=4),
)


def random_model(config=PLAIN, *, seed=0, **parts):
    """A model whose every tensor is random, biases too."""
    make = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randn(shape, generator=make) for name, shape in expected_shapes(config).items()
    }
    return Model(config, tensors, **parts)


def with_targets(model, words=WORDS):
    """The same model with a softmax over `words`."""
    make = torch.Generator().manual_seed(len(words))
    width = model.config.lstm.projection
    softmax = {
        "weight": torch.randn(len(words), width, generator=make),
        "bias": torch.randn(len(words), generator=make),
    }
    config = ElmoConfig.from_json({**model.config.to_json(), "vocabulary": len(words)})
    return Model(config, model.tensors, vocabulary=list(words), words=model.words, softmax=softmax)


@st.composite
def configs(draw):
    """Configs that bilm-tf's files can hold."""
    cells = draw(st.integers(2, 6))
    width = draw(st.integers(1, cells))
    clips = st.none() | st.sampled_from([0.5, 3.0])
    lstm = LstmConfig(
        cells=cells,
        projection=width,
        layers=draw(st.integers(1, 3)),
        cell_clip=draw(clips),
        projection_clip=draw(clips),
        residual=draw(st.booleans()),
        project=width < cells,
    )
    if draw(st.integers(0, 3)) == 0:
        words = WordConfig(words=len(WORDS), dim=width)
        return ElmoConfig(characters=None, words=words, lstm=lstm, token_projection=False)
    filters = draw(
        st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=3)
    )
    characters = CharacterConfig(
        max_characters=draw(st.integers(4, 12)),
        dim=draw(st.integers(1, 3)),
        filters=tuple(filters),
        activation=draw(st.sampled_from(["relu", "tanh"])),
        highways=draw(st.integers(0, 2)),
    )
    same = characters.n_filters == width and draw(st.booleans())
    return ElmoConfig(characters=characters, lstm=lstm, token_projection=not same)


def equal(a, b):
    """Whether two sets of tensors have the same names, in any order, and the same bits."""
    if a is None or b is None:
        return a is b
    return a.keys() == b.keys() and all(
        np.array_equal(a[name].numpy().view(np.int32), b[name].numpy().view(np.int32)) for name in a
    )


@torch.no_grad()
def run(model, sentences, state=None):
    """All layers of each sentence, (L+1, T, D): the sentences are one batch."""
    bilm, config = model.build(), model.config
    tokens = [BEGIN, END, *dict.fromkeys(word for s in sentences for word in s)]
    if config.words is not None:
        listed = {word: i for i, word in enumerate(model.words)}
        numbers = [listed.get(word, listed[UNKNOWN]) for word in tokens]
        vectors = bilm.token(None, torch.tensor(numbers))
    else:
        spell = Characters(config.characters, model.alphabet)
        vectors = bilm.token(torch.from_numpy(spell.encode(tokens).astype(np.int64)), None)
    place = {word: i for i, word in enumerate(tokens)}
    index = torch.zeros(len(sentences), max(map(len, sentences)) + 2, dtype=torch.long)
    for row, sentence in enumerate(sentences):
        ids = [0, *(place[word] for word in sentence), 1]
        index[row, : len(ids)] = torch.tensor(ids)
    layers = bilm(vectors, index, [len(s) for s in sentences], state=state)
    return [piece.numpy() for piece in layers.split()]


def carried(model, batches):
    """The layers of each batch of sentences, state going from one to the next."""
    state = State()
    return [run(model, batch, state) for batch in batches]
