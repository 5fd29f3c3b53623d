import dataclasses

import numpy as np
import pytest
import torch

from bulk.tiny import tiny_model
from torchelmo.analysis.embedders import AVERAGE, ModelEmbedder, StaticEmbedder, Vectors
from torchelmo.analysis.places import Marked, in_words
from torchelmo.config import TokenizerConfig
from torchelmo.elmo import Elmo
from torchelmo.errors import InputError
from torchelmo.tasks.vectors import StaticVectors

SENTENCES = [
    in_words("A heron waits".split(), [(1, 2)]),
    in_words([], []),
    in_words("Rain again , says the tall gardener of the house".split(), [(8, 10), (0, 1)]),
    Marked("He can't wait.", ((3, 8),)),
]


@pytest.fixture(scope="module")
def elmo():
    return Elmo(tiny_model())


def test_places_are_means_over_their_tokens(elmo):
    done = []
    found = ModelEmbedder(elmo, done.append).embed(SENTENCES)
    one, two = elmo.layers([SENTENCES[0].words, SENTENCES[2].words])
    (raw,) = elmo.layers("He can't wait.")
    expected = [one[:, 1], two[:, 8:10].mean(axis=1), two[:, 0], raw[:, 1:3].mean(axis=1)]
    assert found.values.dtype == np.float16
    assert found.names == ("0", "1", "2")
    np.testing.assert_allclose(found.values, np.stack(expected, axis=1), atol=2e-3)
    assert sum(done) == 3 + 0 + 10 + 5
    layers = dict(found.each())
    assert list(layers) == ["0", "1", "2", AVERAGE]
    np.testing.assert_allclose(layers[AVERAGE], found.values.astype(np.float32).mean(0), rtol=1e-6)


def test_batches_change_nothing(elmo):
    many = [in_words([f"w{n}"] * (n % 7 + 1), [(0, 1), (n % 7, n % 7 + 1)]) for n in range(400)]
    together = ModelEmbedder(elmo).embed(many).values
    alone = [ModelEmbedder(elmo).embed([one]).values for one in many[::97]]
    for one, at in zip(alone, range(0, 400, 97), strict=True):
        np.testing.assert_allclose(one, together[:, 2 * at : 2 * at + 2], atol=1e-3)


def test_a_model_of_smaller_tokens_cuts_the_words_again():
    model = tiny_model()
    config = dataclasses.replace(model.config, tokenizer=TokenizerConfig(name="codepoints"))
    elmo = Elmo(dataclasses.replace(model, config=config))
    found = ModelEmbedder(elmo).embed([in_words(["ab", "c"], [(0, 1), (1, 2)])])
    (layers,) = elmo.layers([["a", "b", "c"]])
    np.testing.assert_allclose(found.values[:, 0], layers[:, :2].mean(axis=1), atol=1e-3)
    np.testing.assert_allclose(found.values[:, 1], layers[:, 2], atol=1e-3)


def test_a_damaged_model_is_refused():
    model = tiny_model()
    elmo = Elmo(model)
    with torch.no_grad():
        next(elmo.bilm.parameters()).fill_(float("nan"))
    with pytest.raises(InputError, match="not finite"):
        ModelEmbedder(elmo).embed(SENTENCES)


def test_static_vectors_of_words_and_of_their_sentences():
    table = StaticVectors.of("mine", {"tall": [2, 0], "the": [0, 4], "Rain": [1, 1]})
    sentence = in_words("Rain on The Tall ship".split(), [(0, 1), (2, 4), (4, 5)])
    found = StaticEmbedder(table).embed([sentence])
    assert found.names == ("word", "sentence")
    assert found.values[0].tolist() == [[1, 1], [1, 2], [0, 0]]
    np.testing.assert_allclose(found.values[1], [[1, 5 / 3]] * 3, atol=1e-3)
    assert [name for name, _ in found.each()] == ["word", "sentence"]
    assert StaticEmbedder(table, around=False).embed([sentence]).names == ("word",)


def test_layers_come_one_by_one_as_float32():
    vectors = Vectors(("x",), np.ones((1, 2, 3), np.float16))
    ((name, layer),) = vectors.each()
    assert name == "x" and layer.dtype == np.float32 and layer.shape == (2, 3)
