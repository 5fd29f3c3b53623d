import numpy as np
import pytest
import torch

from tasks.small import elmo, recipe, static, tagged
from torchelmo.elmo import Elmo
from torchelmo.errors import InputError
from torchelmo.nn.output import Layers
from torchelmo.tasks import encoders
from torchelmo.tasks.data import LayerStore
from torchelmo.tasks.recipe import CharactersRecipe, WordsRecipe
from torchelmo.tasks.vectors import StaticVectors

SENTENCES = [("Greta", "paints"), ("Rain", "fell", "on", "Oslo"), ("zzz",)]


def make(spec, vectors=None, store=None):
    texts = [example.words for example in tagged()]
    return encoders.make_inputs(spec, encoders.collect(spec, texts, vectors), vectors, store)


def words_alone(vectors, texts, **options):
    spec = recipe("ner", elmo=None, characters=None, words={"vectors": "given", **options})
    inputs = make(spec, vectors)
    return inputs, inputs(inputs.prepare(texts))


def test_fixed_vectors_are_those_of_the_file_and_unknown_words_are_zero():
    vectors = static()
    inputs, out = words_alone(vectors, SENTENCES)
    assert inputs.width == 6 and out.shape == (3, 4, 6)
    for b, words in enumerate(SENTENCES):
        for t, word in enumerate(words):
            row = vectors.find(word)
            expected = np.zeros(6) if row is None else vectors.matrix[row]
            np.testing.assert_array_equal(out[b, t].detach(), expected)
    assert not out[0, 2:].any()
    assert not any(p.requires_grad for p in inputs.parameters())


def test_tuned_vectors_learn_and_words_outside_the_data_keep_the_files():
    vectors = StaticVectors.of("v", {"oslo": [1.0, 2.0], "berlin": [3.0, 4.0]})
    inputs, out = words_alone(vectors, [("Oslo", "Berlin", "zzz")], tuned=True)
    assert out.tolist() == [[[1, 2], [3, 4], [0, 0]]]
    out.sum().backward()
    table = inputs.encoders["words"].table
    assert table.grad.tolist() == [[1, 1], [1, 1]]  # unknown, and "oslo"


def test_a_closed_table_knows_the_data_and_the_commonest_words():
    table = {"the": [1.0], "of": [2.0], "oslo": [3.0], "berlin": [4.0]}
    vectors = StaticVectors.of("v", table)
    _, out = words_alone(vectors, [("of", "Oslo", "berlin")], closed=True, common=2)
    assert out.flatten().tolist() == [2, 3, 0]


def test_spelling_prefers_the_word_as_it_is():
    vectors = StaticVectors.of("v", {"Oslo": [1.0], "oslo": [2.0], "Rain": [3.0]})
    _, out = words_alone(vectors, [("Oslo", "oslo", "OSLO", "rain")], tuned=True)
    assert out.flatten().tolist() == [1, 2, 2, 0]


def test_learned_table_by_count():
    spec = WordsRecipe(vectors=None, min_count=2)
    kept = encoders.WordVectors.collect(spec, [("a", "b", "a"), ("c", "b", "b")], None)
    assert kept == ["b", "a"]


def test_the_character_cnn_is_a_convolution_with_the_largest_and_relu():
    torch.manual_seed(0)
    cnn = encoders.WordCharacters(CharactersRecipe(dim=3, filters=5, width=3), "abc")
    inputs = encoders.Inputs({"characters": cnn})
    out = inputs(inputs.prepare([("ab", "c"), ("bzb",)]))
    weight, bias, table = cnn.filters.weight, cnn.filters.bias, cnn.table.weight

    def by_hand(ids):
        padded = torch.cat([torch.zeros(2, 3), table[ids], torch.zeros(2, 3)])
        windows = [padded[i : i + 3] for i in range(len(padded) - 2)]
        return torch.stack([(weight * w.T).sum((1, 2)) + bias for w in windows]).amax(0).relu()

    for (b, t), ids in {(0, 0): [2, 3], (0, 1): [4], (1, 0): [3, 1, 3]}.items():
        torch.testing.assert_close(out[b, t], by_hand(ids))
    assert not out[1, 1].any()


def test_a_words_characters_do_not_depend_on_the_batch():
    spec = recipe("ner", elmo=None)
    inputs = make(spec).eval()
    alone = inputs(inputs.prepare([("Oslo",)]))
    beside = inputs(inputs.prepare([("Oslo",), ("extraordinarily", "long")]))
    torch.testing.assert_close(alone[0, 0], beside[0, 0])


@pytest.mark.parametrize(
    ("where", "width", "extra", "places"),
    [
        ("input", 36, 0, ["input"]),
        ("output", 24, 12, ["output"]),
        ("both", 36, 12, ["input", "output"]),
        ("none", 24, 0, []),
    ],
)
def test_where_the_mixes_stand(where, width, extra, places):
    spec = recipe("ner", elmo={"where": where})
    inputs = make(spec, store=LayerStore(elmo()))
    assert (inputs.width, inputs.output_width) == (width, extra)
    assert list(inputs.mixes()) == places
    texts = inputs.prepare(SENTENCES)
    hidden = torch.zeros(3, 4, 5)
    assert inputs(texts).shape == (3, 4, width)
    assert inputs.after(hidden, texts).shape == (3, 4, 5 + extra)
    assert (texts.layers is None) == (where == "none")


@pytest.mark.parametrize("mix", ["average", "top", "0", "-1", 1])
def test_kinds_of_mix(mix):
    spec = recipe("ner", characters=None, elmo={"mix": mix})
    model = elmo()
    inputs = make(spec, store=LayerStore(model)).eval()
    out = inputs(inputs.prepare(SENTENCES))
    layers = model.layers(SENTENCES)
    for b, each in enumerate(layers):
        chosen = {"average": each.mean(0), "top": each[-1]}.get(mix)
        expected = each[int(mix)] if chosen is None else chosen
        np.testing.assert_allclose(out[b, : len(SENTENCES[b])].detach(), expected, atol=1e-6)


@pytest.mark.parametrize("norm", ["tf", "allennlp"])
def test_layer_norm_as_elmo_has_it(norm):
    model = elmo()
    spec = recipe("ner", characters=None, elmo={"layer_norm": norm})
    store = LayerStore(model, boundaries=norm == "allennlp")
    inputs = make(spec, store=store)
    out = inputs(inputs.prepare(SENTENCES))
    normed = Elmo(model.to_model(), layer_norm=norm).eval()
    torch.testing.assert_close(out, normed(normed.batch(SENTENCES)).mixes[0])


@pytest.mark.parametrize("norm", ["tf", "allennlp"])
def test_layer_norm_of_predictions_is_that_of_all_training_texts(norm):
    spec = recipe("ner", characters=None, elmo={"layer_norm": norm})
    store = LayerStore(elmo(), boundaries=norm == "allennlp")
    inputs = make(spec, store=store)
    whole = inputs(inputs.prepare(SENTENCES))
    again = make(spec, store=store)
    for sentence in SENTENCES:
        again(again.prepare([sentence]))
    again.eval()
    torch.testing.assert_close(again(again.prepare(SENTENCES)), whole, rtol=1e-4, atol=1e-5)
    alone = again(again.prepare(SENTENCES[:1]))
    torch.testing.assert_close(alone[0], whole[0, :2], rtol=1e-4, atol=1e-5)


def test_gradients_reach_s_and_gamma_and_not_the_bilm():
    model = elmo()
    before = {name: tensor.clone() for name, tensor in model.bilm.state_dict().items()}
    inputs = make(recipe("ner", elmo={"where": "both", "penalty": 0.5}), store=LayerStore(model))
    texts = inputs.prepare(SENTENCES)
    inputs.after(inputs(texts), texts).square().sum().backward()
    for mix in inputs.mixes().values():
        assert mix.weights.grad.abs().sum() > 0 and mix.gamma.grad.abs().sum() > 0
    assert all(p.grad is None for p in model.bilm.parameters())
    assert not any(name.startswith("bilm") or "elmo.bilm" in name for name in inputs.state_dict())
    after = model.bilm.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_the_penalty_is_lambda_times_the_squared_raw_weights():
    inputs = make(recipe("ner", elmo={"where": "both", "penalty": 0.5}), store=LayerStore(elmo()))
    for value, mix in enumerate(inputs.mixes().values(), 1):
        torch.nn.init.constant_(mix.weights, float(value))
    assert inputs.regularizer().item() == pytest.approx(0.5 * (3 * 1 + 3 * 4))


def test_refusals():
    with pytest.raises(InputError, match="reads nothing"):
        make(recipe("ner", elmo=None, characters=None))
    with pytest.raises(InputError, match="asks for ELMo"):
        make(recipe("ner"))
    contextual = encoders.Contextual(recipe("ner").elmo, 3, 12)
    texts = encoders.Texts((("a",),), {})
    with pytest.raises(InputError, match="the batch has none"):
        contextual(texts)
    with pytest.raises(InputError, match="3 layers, 2 were given"):
        contextual(encoders.Texts((("a",),), {}, Layers(torch.zeros(2, 1, 12), (1,))))
