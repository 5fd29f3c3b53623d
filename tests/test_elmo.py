"""The embedder: values of the numpy reference for every kind of model, and what must not matter."""

import copy
import json
import pickle

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchelmo.elmo import Elmo, pick_device
from torchelmo.errors import InputError
from torchelmo.nn.lstm import State
from torchelmo.nn.scalar_mix import ScalarMix
from torchelmo.ops.packed import has_bf16

MODELS = (
    "plain noskip_tanh one_layer no_projection no_highway three_layers same_width words"
    " many_langs many_langs_chars"
).split()
WORDS = "a gift for you 선물 дар 🎁 to the music of cats , naïve extraordinarily . <S>".split()
SENTENCES = st.lists(st.lists(st.sampled_from(WORDS), max_size=9), max_size=9)


@pytest.fixture(scope="module")
def sentences(fixtures):
    return json.loads((fixtures / "sentences.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def plain(fixtures):
    return Elmo.from_pretrained(fixtures / "plain", device="cpu")


@pytest.fixture(params=MODELS)
def folder(request, fixtures):
    return fixtures / request.param


def test_every_layer_from_a_zero_state(folder, sentences):
    layers = Elmo.from_pretrained(folder).layers(sentences)
    with h5py.File(folder / "expected.hdf5") as file:
        for number, array in enumerate(layers):
            np.testing.assert_allclose(array, file[f"reset/{number}"][...], atol=2e-6)


def test_every_layer_and_state_when_carried(folder, sentences):
    elmo, state = Elmo.from_pretrained(folder), State()
    with h5py.File(folder / "expected.hdf5") as file:
        for start in range(0, len(sentences), 3):
            batch = sentences[start : start + 3]
            for number, array in enumerate(elmo.layers(batch, state=state), start):
                np.testing.assert_allclose(array, file[f"carry/{number}"][...], atol=2e-6)
        for key, tensor in state.tensors().items():
            direction, layer, part = key.split(".")
            expected = file[f"final_state/{direction}/layer{layer}/{part}"][...]
            np.testing.assert_allclose(tensor.numpy(), expected, atol=2e-6, rtol=1e-6)


def test_every_kind_of_model_survives_the_native_folder(folder, sentences, tmp_path):
    elmo = Elmo.from_pretrained(folder)
    elmo.save_pretrained(tmp_path / "native")
    again = Elmo.from_pretrained(tmp_path / "native")
    sentences = [*sentences, ["a\u3000b", "\u3000"]]
    for a, b in zip(again.layers(sentences), elmo.layers(sentences), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["many_langs", "many_langs_chars"])
def test_a_word_of_white_space_in_many_langs(fixtures, name):
    elmo = Elmo.from_pretrained(fixtures / name)
    with h5py.File(fixtures / name / "expected.hdf5") as file:
        group = file["ideographic_space"]
        for number, words in enumerate(json.loads(group.attrs["sentences"])):
            (array,) = elmo.layers([words])
            np.testing.assert_allclose(array, group[str(number)][...], atol=2e-6)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("plain", {}),
        ("layer_norm_bilm_tf", {"layer_norm": "tf"}),
        ("layer_norm_allennlp", {"layer_norm": "allennlp"}),
        ("top", {"kind": "top"}),
    ],
)
def test_mixes_of_the_reference(fixtures, sentences, kind, arguments):
    with h5py.File(fixtures / "plain/expected.hdf5") as file:
        group = file["mixes"]
        weights = None if kind == "top" else group.attrs["weights"].tolist()
        mix = ScalarMix(3, weights=weights, gamma=float(group.attrs["gamma"]), **arguments)
        elmo = Elmo.from_pretrained(fixtures / "plain", mixes=[mix, ScalarMix(3, kind="average")])
        out = elmo(elmo.batch(sentences))
        embedded = elmo.embed(sentences, batch_tokens=10_000)
        for number, words in enumerate(sentences):
            expected = group[f"reset/{kind}/{number}"][...]
            mixed = out.mixes[0][number, : len(words)].detach().numpy()
            np.testing.assert_allclose(mixed, expected, atol=3e-6)
            np.testing.assert_allclose(embedded[number], expected, atol=3e-6)
        if kind != "top":
            penalty = elmo.regularizer(float(group.attrs["l2"])).item()
            assert penalty == pytest.approx(float(group.attrs["regulariser"]), rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(SENTENCES, st.integers(1, 60), st.randoms(use_true_random=False))
def test_batch_size_order_and_company_change_nothing(plain, batch, budget, random):
    expected = [plain.layers([words])[0] for words in batch]
    order = list(range(len(batch)))
    random.shuffle(order)
    shuffled = plain.layers([batch[i] for i in order], batch_tokens=budget)
    for place, number in enumerate(order):
        assert shuffled[place].shape == (3, len(batch[number]), 12)
        np.testing.assert_allclose(shuffled[place], expected[number], atol=2e-6)


@settings(max_examples=15, deadline=None)
@given(SENTENCES, st.integers(1, 40))
def test_the_word_cache_changes_nothing(fixtures, plain, batch, words_that_fit):
    small = copy.copy(plain.encoder)
    small.cache_bytes = words_that_fit * 6 * 4
    small = copy.deepcopy(small)  # a fresh cache of that size
    for _ in range(2):
        for numbers, layers in small.run(batch, batch_tokens=20):
            for number, piece in zip(numbers, layers.split(), strict=True):
                expected = plain.layers([batch[number]])[0]
                np.testing.assert_allclose(piece.numpy(), expected, atol=2e-6)
    assert small._cache.store is None or len(small._cache.store) <= 2 + words_that_fit


@settings(max_examples=15, deadline=None)
@given(SENTENCES, st.integers(1, 40))
def test_carried_rows_do_not_depend_on_the_batch_budget(plain, batch, budget):
    one, many = State(), State()
    for _ in range(2):
        expected = plain.layers(batch, state=one, batch_tokens=10_000)
        found = plain.layers(batch, state=many, batch_tokens=budget)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-6)
    for key, tensor in many.tensors().items():
        torch.testing.assert_close(tensor, one.tensors()[key], atol=2e-6, rtol=1e-5)


def test_changed_weights_empty_the_cache(fixtures):
    elmo = Elmo.from_pretrained(fixtures / "plain")
    before = elmo.embed([["gift"]])[0]
    with torch.no_grad():
        elmo.bilm.token.projection.bias.add_(1.0)
    assert np.abs(elmo.embed([["gift"]])[0] - before).max() > 0.1


def test_a_batch_that_does_not_fit_is_split(plain, monkeypatch):
    sentences = [["a", "gift"]] * 7 + [["music"]]
    expected, carried = plain.layers(sentences), State()
    moved_on = plain.layers(sentences, state=carried)
    whole = plain.bilm.quick
    sizes = []

    def quick(vectors, words, lengths, *arguments):
        out = whole(vectors, words, lengths, *arguments)  # the state has moved on when it fails
        if len(lengths) > 2:
            raise torch.OutOfMemoryError("out of memory")
        sizes.append(len(lengths))
        return out

    monkeypatch.setattr(plain.bilm, "quick", quick)
    state = State()
    for found, wanted in (
        (plain.layers(sentences), expected),
        (plain.layers(sentences, state=state), moved_on),
    ):
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-6)
    assert max(sizes) <= 2 and sum(sizes) == 16
    for key, tensor in state.tensors().items():
        torch.testing.assert_close(tensor, carried.tensors()[key], atol=2e-6, rtol=1e-5)

    def broken(*_, **__):
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(plain.bilm, "quick", broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        plain.layers(sentences)


def test_raw_text_lists_and_wrong_input(plain):
    raw, listed = (
        plain.embed("A gift, for you."),
        plain.embed([["A", "gift", ",", "for", "you", "."]]),
    )
    np.testing.assert_allclose(raw[0], listed[0], atol=2e-6)
    assert len(plain.embed(["One .", "Two ."])) == 2
    text = "He's gifted."
    assert [text[t.start : t.end] for t in plain.tokenize(text)] == ["He", "'s", "gifted", "."]
    with pytest.raises(InputError, match="sentence 1 holds 3: give a text, or a list of words"):
        plain.embed([["a"], [3]])
    assert plain.layers([]) == [] and plain.embed([]) == []
    assert plain.embed([[]])[0].shape == (0, 12)
    assert isinstance(plain.layers([["a"]], as_tensors=True)[0], torch.Tensor)


def test_sentence_vectors(plain):
    batch = ["A gift for music .", "Music !", ""]
    vectors = plain.encode(batch, batch_size=2)
    words = plain.embed(batch)
    assert vectors.shape == (3, 12)
    np.testing.assert_allclose(vectors[0], words[0].mean(axis=0), atol=1e-6)
    assert not vectors[2].any()
    unit = plain.encode(batch, normalize_embeddings=True, convert_to_tensor=True)
    assert unit[:2].norm(dim=1).tolist() == pytest.approx([1.0, 1.0], abs=1e-6)
    np.testing.assert_allclose(plain.encode(batch[0]), vectors[0], atol=1e-6)


def test_frozen_unless_asked(fixtures):
    batch = [["a", "gift"], ["music"]]
    elmo = Elmo.from_pretrained(fixtures / "plain", mixes=2, dropout=0.3)
    out = elmo.train()(elmo.batch(batch))
    assert len(out.mixes) == 2 and out.mask.tolist() == [[True, True], [True, False]]
    assert not torch.equal(out.mixes[0], out.mixes[1])  # dropout is drawn for each
    (out.mixes[0].sum() + elmo.regularizer(0.1)).backward()
    assert all(p.grad is None for p in elmo.bilm.parameters())
    assert elmo.mixes[0].weights.grad is not None and elmo.mixes[0].gamma.grad is not None
    trained = Elmo.from_pretrained(fixtures / "plain", requires_grad=True)
    trained(trained.batch(batch)).mixes[0].square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in trained.bilm.parameters())
    with torch.inference_mode():
        trained.embed(batch)
    assert not trained.embed(batch, as_tensors=True)[0].requires_grad


def test_gradients_reach_the_biLM_rightly(fixtures):
    elmo = Elmo.from_pretrained(fixtures / "plain", requires_grad=True).double()
    batch = elmo.batch([["a", "gift"], ["of", "music", "now"]])
    weight = elmo.bilm.forward_layers[1].recurrent_weight

    def loss():
        return elmo(batch).mixes[0].square().sum()

    (gradient,) = torch.autograd.grad(loss(), weight)
    with torch.no_grad():
        row, column = divmod(int(gradient.abs().argmax()), weight.shape[1])
        weight[row, column] += 1e-6
        above = loss()
        weight[row, column] -= 2e-6
        below = loss()
    assert (above - below).item() / 2e-6 == pytest.approx(gradient[row, column].item(), rel=1e-5)


def test_save_load_copy_and_pickle(fixtures, sentences, tmp_path):
    elmo = Elmo.from_pretrained(fixtures / "plain")
    with torch.no_grad():
        elmo.mixes[0].weights.copy_(torch.tensor([0.5, -1.0, 2.0]))
        elmo.mixes[0].gamma.fill_(0.7)
    expected = elmo.embed(sentences)
    elmo.save_pretrained(tmp_path / "saved")
    again = Elmo.from_pretrained(tmp_path / "saved")
    for other in (again, copy.deepcopy(elmo), pickle.loads(pickle.dumps(elmo))):
        for a, b in zip(other.embed(sentences), expected, strict=True):
            np.testing.assert_array_equal(a, b)
    assert again.vocabulary.words == elmo.vocabulary.words
    assert torch.equal(again.softmax.weight, elmo.softmax.weight)
    with pytest.raises(InputError, match="saved"):
        elmo.save_pretrained(tmp_path / "saved")
    elmo.save_pretrained(tmp_path / "saved", overwrite=True)


def test_neighbours(plain):
    corpus = ["A gift .", "The music of cats ."]
    hits = plain.neighbours("gift", "A gift .", corpus, count=3)
    assert hits[0].word == "gift" and hits[0].score == pytest.approx(1.0, abs=1e-5)
    assert (hits[0].sentence, hits[0].position) == (0, 1) and len(hits) == 3
    by_layer = plain.neighbours("gift", "A gift .", corpus, count=1, layer=0)
    assert by_layer[0].word == "gift"
    words = plain.neighbours(plain.vocabulary.words[5], count=4)
    assert len(words) == 4 and plain.vocabulary.words[5] not in [hit.word for hit in words]
    with pytest.raises(InputError, match="'dog' is not a word of the context"):
        plain.neighbours("dog", "A gift .", corpus)
    with pytest.raises(InputError, match="layers 0 to 2"):
        plain.neighbours("gift", "A gift .", corpus, layer=3)


def test_precisions(fixtures, plain):
    assert plain.bilm.precision == "float32"
    with pytest.raises(InputError, match="precision is 'fp8', expected one of float32, bf16, int8"):
        Elmo.from_pretrained(fixtures / "plain", precision="fp8", device="cpu")
    if not has_bf16():
        pytest.skip("this processor has no bf16")
    quick = Elmo.from_pretrained(fixtures / "plain", precision="bf16", device="cpu")
    for elmo in (quick, copy.deepcopy(quick), pickle.loads(pickle.dumps(quick))):
        found, expected = elmo.embed([["a", "gift"]])[0], plain.embed([["a", "gift"]])[0]
        assert found.dtype == np.float32 and not np.array_equal(found, expected)
        np.testing.assert_allclose(found, expected, atol=0.05)
    quick.requires_grad = True  # with gradients nothing is rounded
    exact = quick(quick.batch([["a", "gift"]])).mixes[0][0].detach().numpy()
    np.testing.assert_allclose(exact, plain.embed([["a", "gift"]])[0], atol=2e-6)


def test_devices():
    assert pick_device("cpu").type == "cpu" and pick_device(None).type in ("cpu", "cuda", "mps")
    with pytest.raises(InputError, match="device 'warp' cannot be used here"):
        pick_device("warp")


def test_training_goes_on_in_several_processes_copies(plain):
    replica = copy.copy(plain)  # what DataParallel does before it swaps the parameters
    out = replica(plain.batch([["a", "gift"]]))
    np.testing.assert_allclose(
        out.mixes[0][0].detach().numpy(), plain.embed([["a", "gift"]])[0], atol=2e-6
    )
