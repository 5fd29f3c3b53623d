"""AllenNLP's own test cases, on our fixtures and on AllenNLP's where they are."""

import io
import json

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from reference import numpy_elmo
from torchelmo.errors import InputError
from torchelmo.formats import bilm_tf
from torchelmo.formats.state_dict import read_file
from torchelmo.integrations.allennlp_api import Elmo, ElmoEmbedder, _ElmoBiLm, batch_to_ids

pytestmark = pytest.mark.filterwarnings("ignore:.*unused options")

CLOSE = {"atol": 2e-6, "rtol": 1e-5}
PADDING = [261] * 50
TWO = [["The", "sentence", "."], ["ELMo", "helps", "disambiguate", "ELMo", "from", "Elmo", "."]]


@pytest.fixture(scope="module")
def sentences(fixtures):
    return json.loads((fixtures / "sentences.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def files(fixtures):
    return fixtures / "plain" / "options.json", fixtures / "plain" / "weights.hdf5"


@pytest.fixture(scope="module")
def expected(fixtures):
    with h5py.File(fixtures / "plain" / "expected.hdf5") as file:
        yield file


@pytest.fixture(scope="module")
def theirs(shared):
    return shared / "fixtures/allennlp/test_fixtures/elmo"


def their_files(theirs):
    return theirs / "options.json", theirs / "lm_weights.hdf5"


def their_sentences(theirs):
    """30 sentences and their top layers: batch i is the i-th sentence of each of three rows."""
    rows = json.loads((theirs / "sentences.json").read_text(encoding="utf-8"))
    rows = [[words.split() if isinstance(words, str) else words for words in row] for row in rows]
    tops = []
    for number in range(len(rows)):
        with h5py.File(theirs / f"lm_embeddings_{number}.hdf5") as file:
            values = [file[str(i)][...] for i in range(len(rows[number]))]
        tops.append([np.concatenate(pair, axis=-1) for pair in values])
    return list(zip(*rows, strict=True)), list(zip(*tops, strict=True))


def batches(items, size=3):
    return [items[start : start + size] for start in range(0, len(items), size)]


# Character ids


def row(*characters):
    return [*characters, *PADDING][:50]


def test_boundary_words_have_rows_of_their_own():
    begin, end, unknown = batch_to_ids([["<S>", "</S>", "<UNK>"]])[0].tolist()
    assert begin == row(259, 257, 260)
    assert end == row(259, 258, 260)
    assert unknown == row(259, *(c + 1 for c in b"<UNK>"), 260)


def test_characters_are_bytes():
    ids = batch_to_ids([[chr(256) + "t"]])
    assert ids.tolist() == [[row(259, 197, 129, 117, 260)]]
    assert ids.dtype == torch.int64


def test_padding_is_zero():
    ids = batch_to_ids([["Second", "."], ["One", "more", "word"], []])
    assert ids.shape == (3, 3, 50)
    assert ids[0].tolist() == [
        row(259, 84, 102, 100, 112, 111, 101, 260),
        row(259, 47, 260),
        [0] * 50,
    ]
    assert not ids[2].any()


def test_words_are_cut_at_48_bytes():
    ids = batch_to_ids([["b" * 48, "c" * 49, "d" * 60]])[0]
    assert (ids[:, 49] == 260).all() and (ids[:, 0] == 259).all()
    assert ids[:, 1:49].tolist() == [[ord(c) + 1] * 48 for c in "bcd"]


def test_added_tokens():
    ids = batch_to_ids([["<first>", "x"]], tokens_to_add={"<first>": 1, "absent": 2})
    assert ids[0].tolist() == [row(259, 2, 260), row(259, 121, 260)]
    with pytest.raises(InputError, match="261"):
        batch_to_ids([["<first>"]], tokens_to_add={"<first>": 261})


def test_batches_without_words():
    assert batch_to_ids([[]]).shape == (1, 0, 50)
    assert batch_to_ids([]).shape == (0, 0, 50)
    with pytest.raises(InputError, match="list of words"):
        batch_to_ids(["one raw text"])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.text(max_size=60), max_size=4), min_size=1, max_size=3))
def test_ids_equal_the_reference(batch):
    ids = batch_to_ids(batch)
    longest = max(map(len, batch))
    assert ids.shape == (len(batch), longest, 50)
    for found, words in zip(ids.tolist(), batch, strict=True):
        rows = [(numpy_elmo.character_row(word) + 1).tolist() for word in words]
        assert found == rows + [[0] * 50] * (longest - len(words))


# The biLM


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "noskip_tanh",
        "one_layer",
        "no_projection",
        "no_highway",
        "three_layers",
        "same_width",
    ],
)
@pytest.mark.parametrize("state", ["carry", "reset"])
def test_all_layers_of_every_kind_of_model(fixtures, sentences, name, state):
    folder = fixtures / name
    embedder = ElmoEmbedder(folder / "options.json", folder / "weights.hdf5", state=state)
    found = list(embedder.embed_sentences(sentences, batch_size=3))
    with h5py.File(folder / "expected.hdf5") as file:
        for i, layers in enumerate(found):
            assert layers.dtype == np.float32
            np.testing.assert_allclose(layers, file[f"{state}/{i}"][...], **CLOSE)


def test_their_30_sentences(theirs):
    embedder = ElmoEmbedder(*their_files(theirs))
    inputs, tops = their_sentences(theirs)
    assert len(inputs) == 10
    for batch, expected_tops in zip(inputs, tops, strict=True):
        values, mask = embedder.batch_to_embeddings(batch)
        assert mask.sum(dim=1).tolist() == [len(words) for words in batch]
        for found, words, top in zip(values, batch, expected_tops, strict=True):
            np.testing.assert_allclose(found[2, : len(words)], top, atol=1e-6, rtol=1e-5)


def test_their_30_sentences_in_a_line(theirs):
    inputs, tops = their_sentences(theirs)
    embedder = ElmoEmbedder(*their_files(theirs))
    line = embedder.embed_sentences([words for batch in inputs for words in batch], batch_size=3)
    for found, top in zip(line, (top for batch in tops for top in batch), strict=True):
        np.testing.assert_allclose(found[2], top, atol=1e-6, rtol=1e-5)


def test_inference_of_the_original_program(shared, theirs):
    """All layers of four batches of 3, 3, 1 and 4 rows, state carried."""
    embedder = ElmoEmbedder(*their_files(theirs))
    with h5py.File(shared / "fixtures/tf-generated/inference_allennlp.hdf5") as file:
        for number in range(4):
            group = file[f"batch{number}"]
            batch = json.loads(group.attrs["sentences"])
            np.testing.assert_array_equal(batch_to_ids(batch), inner(group["char_ids"][...], batch))
            values, mask = embedder.batch_to_embeddings(batch)
            np.testing.assert_array_equal(mask, group["mask"][...].astype(bool))
            for found, layers, words in zip(values, group["lm_embeddings"], batch, strict=True):
                np.testing.assert_allclose(
                    found[:, : len(words)], layers[:, : len(words)], atol=2e-6
                )


def inner(ids, batch):
    """Ids without their boundaries."""
    out = np.zeros((len(batch), max(map(len, batch)), ids.shape[2]), dtype=ids.dtype)
    for target, source, words in zip(out, ids, batch, strict=True):
        target[: len(words)] = source[1 : len(words) + 1]
    return out


def test_their_token_vectors(theirs):
    bilm = _ElmoBiLm(*their_files(theirs), state="reset")
    words = (theirs / "vocab_test.txt").read_text(encoding="utf-8").split("\n")
    words = [word.strip() for word in words if word.strip()]
    output = bilm(batch_to_ids([[word] for word in words]))
    with h5py.File(theirs / "elmo_token_embeddings.hdf5") as file:
        expected = file["embedding"][...]
    assert expected.shape == (458, 16) and len(words) == 458
    for half in output["activations"][0].detach().split(16, dim=2):
        np.testing.assert_allclose(half[:, 1], expected, atol=1e-6)
    # The boundaries that the encoder adds are the tokens <S> and </S>.
    first, last = output["activations"][0][0, 0, :16], output["activations"][0][0, 2, :16]
    np.testing.assert_allclose(first, expected[words.index("<S>")], atol=1e-6)
    np.testing.assert_allclose(last, expected[words.index("</S>")], atol=1e-6)


def test_token_vectors_and_boundaries(files, expected, sentences):
    bilm = _ElmoBiLm(*files, state="reset")
    output = bilm(batch_to_ids(sentences))
    assert output["mask"].dtype == torch.bool
    assert output["mask"].sum(dim=1).tolist() == [len(words) + 2 for words in sentences]
    for i, words in enumerate(sentences):
        for half in output["activations"][0][i, : len(words) + 2].split(6, dim=1):
            np.testing.assert_allclose(half, expected[f"tokens/{i}"][...], **CLOSE)
    added = bilm(batch_to_ids([["<S>", "</S>"]]))["activations"][0][0]
    assert torch.equal(added[0], added[1]) and torch.equal(added[2], added[3])


def test_outputs_at_padding_are_zero(files, sentences):
    output = _ElmoBiLm(*files)(batch_to_ids(sentences))
    for activation in output["activations"]:
        assert activation.shape == (13, max(map(len, sentences)) + 2, 12)
        assert not activation[~output["mask"]].any()


# State


def final_state(expected, direction, layer):
    group = expected[f"final_state/{direction}/layer{layer}"]
    return group["h"][...], group["c"][...]


def test_state_is_kept_by_batch_row(files, expected, sentences):
    elmo = Elmo(*files, 1)
    for batch in batches(sentences):
        elmo(batch_to_ids(batch))
    tensors = elmo._elmo_lstm.state.tensors()
    for direction in ("forward", "backward"):
        for layer in (0, 1):
            h, c = final_state(expected, direction, layer)
            assert (h.shape, c.shape) == ((3, 6), (3, 10))
            np.testing.assert_allclose(tensors[f"{direction}.{layer}.h"], h, **CLOSE)
            np.testing.assert_allclose(tensors[f"{direction}.{layer}.c"], c, **CLOSE)


def test_a_smaller_batch_leaves_the_other_rows(files):
    elmo = Elmo(*files, 1)
    elmo(batch_to_ids([["a"], ["b"], ["c"]]))
    before = elmo._elmo_lstm.state.tensors()
    elmo(batch_to_ids([["d"], ["e"]]))
    for name, tensor in elmo._elmo_lstm.state.tensors().items():
        assert torch.equal(tensor[2], before[name][2])
        assert not torch.equal(tensor[:2], before[name][:2])
    elmo(batch_to_ids([["f"]] * 5))
    assert elmo._elmo_lstm.state.rows == 5


def test_reset_states(files):
    elmo = Elmo(*files, 1, dropout=0.0)
    ids = batch_to_ids(TWO)
    first = elmo(ids)["elmo_representations"][0]
    second = elmo(ids)["elmo_representations"][0]
    assert (first - second).abs().max() > 1e-3
    elmo.reset_states()
    assert torch.equal(elmo(ids)["elmo_representations"][0], first)
    # As AllenNLP's users wrote it, and for one row only.
    elmo._elmo_lstm._elmo_lstm.reset_states(torch.tensor([True, False]))
    third = elmo(ids)["elmo_representations"][0]
    torch.testing.assert_close(third[0], first[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(third[1], second[1], atol=1e-6, rtol=0)
    with pytest.raises(InputError, match="state of 2 rows"):
        elmo._elmo_lstm.reset_states(torch.ones(3, dtype=torch.bool))


def test_state_reset_gives_the_same_every_time(files):
    elmo = Elmo(*files, 1, dropout=0.0, state="reset")
    cold = Elmo(*files, 1, dropout=0.0)(batch_to_ids(TWO))["elmo_representations"][0]
    for _ in range(2):
        assert torch.equal(elmo(batch_to_ids(TWO))["elmo_representations"][0], cold)
    carrying = Elmo(*files, 1, dropout=0.0)
    carrying._elmo_lstm._elmo_lstm.stateful = False
    for _ in range(2):
        assert torch.equal(carrying(batch_to_ids(TWO))["elmo_representations"][0], cold)
    with pytest.raises(InputError, match="'carry' or 'reset'"):
        Elmo(*files, 1, state="keep")


def test_state_is_not_saved(files):
    elmo = Elmo(*files, 1, dropout=0.0)
    cold = elmo(batch_to_ids(TWO))["elmo_representations"][0]
    other = Elmo(*files, 1, dropout=0.0)
    other.load_state_dict(elmo.state_dict())
    assert torch.equal(other(batch_to_ids(TWO))["elmo_representations"][0], cold)


def test_an_empty_sentence_moves_the_state_of_its_row(fixtures, files):
    model = numpy_elmo.read_folder(fixtures / "plain")
    state = numpy_elmo.State()
    numpy_elmo.run(model, [["a"], []], state)
    expected = numpy_elmo.run(model, [["b"], ["c"]], state).layers
    embedder = ElmoEmbedder(*files)
    first, empty = embedder.embed_batch([["a"], []])
    assert (first.shape, empty.shape) == ((3, 1, 12), (3, 0, 12))
    for found, layers in zip(embedder.embed_batch([["b"], ["c"]]), expected, strict=True):
        np.testing.assert_allclose(found, layers, **CLOSE)


# Elmo


@pytest.mark.parametrize("keep", [False, True])
def test_shapes(files, keep):
    elmo = Elmo(*files, 2, keep_sentence_boundaries=keep)
    output = elmo(batch_to_ids(TWO))
    steps = 9 if keep else 7
    assert [tuple(r.shape) for r in output["elmo_representations"]] == [(2, steps, 12)] * 2
    assert output["mask"].shape == (2, steps) and output["mask"].dtype == torch.bool
    assert output["mask"].sum(dim=1).tolist() == ([5, 9] if keep else [3, 7])
    assert elmo.get_output_dim() == 12


def test_extra_padding_is_kept(files):
    elmo = Elmo(*files, 1, dropout=0.0, state="reset")
    ids = batch_to_ids(TWO)
    wide = torch.cat([ids, torch.zeros(2, 4, 50, dtype=torch.long)], dim=1)
    narrow, output = elmo(ids), elmo(wide)
    assert output["mask"].shape == (2, 11)
    padded = output["elmo_representations"][0]
    assert torch.equal(padded[:, :7], narrow["elmo_representations"][0])
    assert not padded[:, 7:].any() and not output["mask"][:, 7:].any()


@pytest.mark.parametrize("state", ["carry", "reset"])
@pytest.mark.parametrize("kind", ["plain", "layer_norm_allennlp"])
def test_mixes_equal_the_reference(files, expected, sentences, kind, state):
    mixes = expected["mixes"]
    elmo = Elmo(
        *files,
        2,
        do_layer_norm=kind != "plain",
        dropout=0.0,
        scalar_mix_parameters=mixes.attrs["weights"].tolist(),
        state=state,
    )
    with torch.no_grad():
        elmo.scalar_mix_1.gamma.fill_(float(mixes.attrs["gamma"]))
    # In the file, "reset" is one batch of all sentences: layer norm is over the batch.
    groups = [sentences] if state == "reset" else batches(sentences)
    found = []
    for batch in groups:
        first, second = elmo(batch_to_ids(batch))["elmo_representations"]
        np.testing.assert_allclose(first * float(mixes.attrs["gamma"]), second, atol=1e-6)
        found += [vectors[: len(words)] for vectors, words in zip(second, batch, strict=True)]
    for i, vectors in enumerate(found):
        np.testing.assert_allclose(
            vectors.detach(), mixes[f"{state}/{kind}/{i}"][...], atol=5e-6, rtol=1e-5
        )


def test_fixed_weights_do_not_learn(files):
    fixed = Elmo(*files, 1, dropout=0.0, scalar_mix_parameters=[-9e10, 1, -9e10], state="reset")
    assert not any(p.requires_grad for p in fixed.parameters())
    activations = fixed._elmo_lstm(batch_to_ids(TWO))["activations"]
    (vectors,) = fixed(batch_to_ids(TWO))["elmo_representations"]
    torch.testing.assert_close(vectors[1], activations[1][1, 1:-1])
    learning = Elmo(*files, 2)
    names = {name for name, p in learning.named_parameters() if p.requires_grad}
    assert names == {f"scalar_mix_{i}.{part}" for i in (0, 1) for part in ("weights", "gamma")}
    with pytest.raises(InputError, match="2 mix weights were given for 3 layers"):
        Elmo(*files, 1, scalar_mix_parameters=[0.0, 1.0])


def test_four_dimensions_equal_three_calls(files, sentences):
    ids = batch_to_ids(sentences[:12]).view(4, 3, -1, 50).transpose(0, 1)  # (3, 4, T, 50)
    elmo = Elmo(*files, 2, dropout=0.0)
    together = elmo(ids)
    assert together["mask"].shape == ids.shape[:3]
    for k in range(4):
        elmo.reset_states()
        alone = elmo(ids[:, k])
        assert torch.equal(together["mask"][:, k], alone["mask"])
        for a, b in zip(
            together["elmo_representations"], alone["elmo_representations"], strict=True
        ):
            torch.testing.assert_close(a[:, k], b, atol=1e-6, rtol=1e-5)


def test_four_dimensions_with_boundaries_and_empty_rows(files):
    ids = batch_to_ids([*TWO, [], ["alone"]]).view(2, 2, -1, 50)
    output = Elmo(*files, 1, keep_sentence_boundaries=True)(ids)
    assert output["elmo_representations"][0].shape == (2, 2, 9, 12)
    assert output["mask"].sum(dim=2).tolist() == [[5, 9], [2, 3]]


@pytest.mark.parametrize("requires_grad", [True, False])
def test_gradients(files, requires_grad):
    elmo = Elmo(*files, 2, requires_grad=requires_grad)
    for tensor in elmo(batch_to_ids(TWO))["elmo_representations"]:
        tensor.sum().backward(retain_graph=True)
    for name, parameter in elmo.named_parameters():
        if "scalar_mix" in name or requires_grad:
            assert parameter.requires_grad and parameter.grad is not None, name
        else:
            assert not parameter.requires_grad and parameter.grad is None, name
    # A second batch goes on from a state without a graph.
    elmo(batch_to_ids(TWO))["elmo_representations"][0].sum().backward()


def test_dropout_is_after_the_mix_and_only_in_training(files):
    elmo = Elmo(*files, 1, state="reset")
    kept = elmo.eval()(batch_to_ids(TWO))["elmo_representations"][0]
    torch.manual_seed(0)
    dropped = elmo.train()(batch_to_ids(TWO))["elmo_representations"][0]
    survivors = dropped != 0
    assert 0.3 < survivors[1].float().mean() < 0.7
    torch.testing.assert_close(dropped[survivors], 2 * kept[survivors])


class Outside(nn.Module):
    """A biLM of somebody else: two layers of constants."""

    num_layers = 2

    def get_output_dim(self):
        return 4

    def forward(self, inputs, word_inputs=None):
        count, steps = inputs.shape[:2]
        mask = torch.ones(count, steps + 2, dtype=torch.bool)
        mask[0, -1] = False
        layers = [torch.full((count, steps + 2, 4), value) for value in (1.0, 3.0)]
        return {"activations": layers, "mask": mask}


def test_a_module_in_place_of_files(files):
    elmo = Elmo(None, None, 1, dropout=0.0, module=Outside())
    output = elmo(torch.ones(2, 3, 50, dtype=torch.long))
    assert elmo.get_output_dim() == 4
    assert output["mask"].tolist() == [[True, True, False], [True] * 3]
    assert output["elmo_representations"][0].tolist() == [
        [[2.0] * 4, [2.0] * 4, [0.0] * 4],
        [[2.0] * 4] * 3,
    ]
    ours = Elmo(None, None, 1, dropout=0.0, module=_ElmoBiLm(*files, state="reset"))
    same = Elmo(*files, 1, dropout=0.0, state="reset")
    ids = batch_to_ids(TWO)
    assert torch.equal(*(e(ids)["elmo_representations"][0] for e in (ours, same)))
    with pytest.raises(InputError, match="together with files"):
        Elmo(*files, 1, module=Outside())


# Cached words


VOCABULARY = "@@PADDING@@ The sentence . ELMo helps disambiguate from Elmo".split()


def word_ids(batch, vocabulary):
    longest = max(map(len, batch))
    return torch.tensor(
        [[*(vocabulary.index(w) for w in s), *[0] * (longest - len(s))] for s in batch]
    )


def test_cached_words_equal_uncached(files):
    cached = _ElmoBiLm(*files, vocab_to_cache=VOCABULARY)
    plain = _ElmoBiLm(*files)
    for _ in range(2):  # the state goes on, too
        found = cached(batch_to_ids(TWO), word_ids(TWO, VOCABULARY))
        expected = plain(batch_to_ids(TWO))
        assert torch.equal(found["mask"], expected["mask"])
        for a, b in zip(found["activations"], expected["activations"], strict=True):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_cached_words_are_used_and_not_the_characters(files):
    elmo = Elmo(*files, 1, dropout=0.0, vocab_to_cache=VOCABULARY, state="reset")
    nonsense = torch.ones(2, 7, 50, dtype=torch.long)
    found = elmo(nonsense, word_ids(TWO, VOCABULARY))["elmo_representations"][0]
    expected = elmo(batch_to_ids(TWO))["elmo_representations"][0]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_a_word_outside_the_cache_falls_back_to_characters(files):
    elmo = Elmo(*files, 1, dropout=0.0, vocab_to_cache=VOCABULARY[:3], state="reset")
    words = word_ids(TWO, VOCABULARY)
    found = elmo(batch_to_ids(TWO), words)
    expected = elmo(batch_to_ids(TWO))
    assert torch.equal(found["elmo_representations"][0], expected["elmo_representations"][0])


def test_four_dimensions_with_cache_equal_three(files):
    elmo = Elmo(*files, 1, dropout=0.0, vocab_to_cache=VOCABULARY, state="reset")
    batch = [*TWO, TWO[0][:2], TWO[1][3:]]
    ids, words = batch_to_ids(batch), word_ids(batch, VOCABULARY)
    flat = elmo(ids, words)
    deep = elmo(ids.view(2, 2, 7, 50), words.view(2, 2, 7))
    assert torch.equal(deep["mask"].view(4, 7), flat["mask"])
    a, b = deep["elmo_representations"][0], flat["elmo_representations"][0]
    assert torch.equal(a.view(4, 7, 12), b)


def test_a_cached_vector_without_positive_parts_is_a_word(files):
    bilm = _ElmoBiLm(*files, vocab_to_cache=VOCABULARY)
    bilm._word_embedding.weight.data[1] = -1.0
    mask = bilm(batch_to_ids([["The", "sentence"]]), torch.tensor([[1, 2]]))["mask"]
    assert mask.tolist() == [[True] * 4]


def test_words_without_a_cache_give_a_warning(files):
    elmo = Elmo(*files, 1)
    with pytest.warns(UserWarning, match="no vocab_to_cache"):
        elmo(batch_to_ids(TWO), word_ids(TWO, VOCABULARY))


def test_cached_words_learn_with_the_bilm(files):
    elmo = Elmo(*files, 1, requires_grad=True, vocab_to_cache=VOCABULARY)
    elmo(batch_to_ids(TWO), word_ids(TWO, VOCABULARY))["elmo_representations"][0].sum().backward()
    assert elmo._elmo_lstm._word_embedding.weight.grad is not None
    frozen = Elmo(*files, 1, vocab_to_cache=VOCABULARY)
    assert not frozen._elmo_lstm._word_embedding.weight.requires_grad


# What must not matter


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_order_and_padding_change_nothing(files, sentences, data):
    elmo = Elmo(*files, 1, dropout=0.0, state="reset")
    chosen = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=6))
    batch = [sentences[i] for i in chosen]
    together = elmo(batch_to_ids(batch))["elmo_representations"][0]
    for vectors, words in zip(together, batch, strict=True):
        alone = elmo(batch_to_ids([words]))["elmo_representations"][0][0]
        torch.testing.assert_close(vectors[: len(words)], alone, atol=2e-6, rtol=1e-5)


def test_many_words_in_blocks(files):
    """More distinct words than one call of the character CNN takes."""
    words = [f"{'x' * (i % 50)}{i}" for i in range(300)]
    elmo = Elmo(*files, 1, dropout=0.0, state="reset")
    together = elmo(batch_to_ids([words]))["elmo_representations"][0]
    bilm = _ElmoBiLm(*files, state="reset")
    alone = torch.cat([bilm(batch_to_ids([[w]]))["activations"][0][:, 1] for w in words[::37]])
    found = bilm(batch_to_ids([words]))["activations"][0][0, 1:-1][::37]
    torch.testing.assert_close(found, alone, atol=1e-6, rtol=1e-5)
    assert together.shape == (1, 300, 12)


# State dicts


class Tagger(nn.Module):
    """Tags each word by its ELMo vector, brought to 20 numbers."""

    def __init__(self, *files):
        super().__init__()
        self.elmo = Elmo(*files, 1, dropout=0.0, state="reset")
        self.projection = nn.Linear(self.elmo.get_output_dim(), 20)
        self.tags = nn.Linear(20, 2)

    def forward(self, batch):
        output = self.elmo(batch_to_ids(batch))
        return self.tags(torch.tanh(self.projection(output["elmo_representations"][0]))), output


def test_a_tagger_trains_saves_and_loads(files, tmp_path):
    torch.manual_seed(0)
    tagger = Tagger(*files)
    wanted = torch.tensor([[0, 1, 0, 0, 0, 0, 0], [1, 0, 0, 1, 0, 1, 0]])
    optimiser = torch.optim.Adam([p for p in tagger.parameters() if p.requires_grad], lr=0.05)
    losses = []
    for _ in range(30):
        logits, output = tagger(TWO)
        loss = nn.functional.cross_entropy(logits[output["mask"]], wanted[output["mask"]])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    torch.save(tagger.state_dict(), tmp_path / "tagger.pt")
    other = Tagger(*files)
    other.load_state_dict(torch.load(tmp_path / "tagger.pt", weights_only=True))
    assert torch.equal(other(TWO)[0], tagger(TWO)[0])


def as_allennlp(elmo):
    """The state dict that AllenNLP would save for the same weights."""
    out = {}
    for name, t in elmo._elmo_lstm.bilm.state_dict().items():
        parts = name.split(".")
        inner = "_elmo_lstm._token_embedder."
        if parts[0] == "token" and parts[1] == "projection":
            out[f"{inner}_projection.{parts[2]}"] = t
        elif parts[0] == "token" and parts[2] == "embedding":
            out[f"{inner}_char_embedding_weights"] = torch.cat([torch.zeros(1, t.shape[1]), t])
        elif parts[0] == "token" and parts[2] == "convolutions":
            out[f"{inner}char_conv_{parts[3]}.{parts[4]}"] = t
        elif parts[0] == "token" and parts[4] == "transform":
            gate = elmo._elmo_lstm.bilm.state_dict()[name.replace("transform", "gate")]
            out[f"{inner}_highways._layers.{parts[3]}.{parts[5]}"] = torch.cat([t, -gate])
        elif parts[0] != "token":
            theirs = {
                "input_weight": "input_linearity.weight",
                "recurrent_weight": "state_linearity.weight",
                "bias": "state_linearity.bias",
                "projection_weight": "state_projection.weight",
            }[parts[2]]
            if parts[2] == "bias":
                t = t.clone()
                t[len(t) // 4 : len(t) // 2] += 1
            direction = parts[0].removesuffix("_layers")
            out[f"_elmo_lstm._elmo_lstm.{direction}_layer_{parts[1]}.{theirs}"] = t
    return out


def test_a_state_dict_of_allennlp(files):
    source = Elmo(*files, 2, dropout=0.0, state="reset")
    with torch.no_grad():
        source.scalar_mix_0.weights.copy_(torch.tensor([0.5, -1.0, 2.0]))
        source.scalar_mix_1.gamma.fill_(3.0)
    saved = as_allennlp(source)
    for i in (0, 1):
        mix = source.get_submodule(f"scalar_mix_{i}")
        saved[f"scalar_mix_{i}.gamma"] = mix.gamma.detach()
        for j in range(3):
            saved[f"scalar_mix_{i}.scalar_parameters.{j}"] = mix.weights[j : j + 1].detach()
    outer = nn.ModuleDict({"embedder": Elmo(*files, 2, dropout=0.0, state="reset")})
    with torch.no_grad():
        for parameter in outer.parameters():
            parameter.fill_(0.1)
    outer.load_state_dict({f"embedder.{name}": t for name, t in saved.items()})
    ids = batch_to_ids(TWO)
    expected = source(ids)["elmo_representations"]
    for a, b in zip(outer["embedder"](ids)["elmo_representations"], expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_their_tagger(shared, theirs):
    """A GRU tagger that AllenNLP trained over the fixture's biLM: its ELMo part loads."""
    path = shared / "fixtures/allennlp/test_fixtures/simple_tagger_with_elmo/serialization/best.th"
    tensors = read_file(path)
    (start,) = {
        name.partition("_elmo_lstm.")[0] for name in tensors if "_char_embedding_weights" in name
    }
    own = {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}
    elmo = Elmo(*their_files(theirs), 1, dropout=0.0, state="reset")
    fresh = elmo(batch_to_ids(TWO))["elmo_representations"][0]
    elmo.load_state_dict(own)
    assert own["scalar_mix_0.gamma"].item() == elmo.scalar_mix_0.gamma.item()
    # The biLM was frozen: with the mix put back, the vectors are those of the fixture's files.
    with torch.no_grad():
        elmo.scalar_mix_0.weights.zero_()
        elmo.scalar_mix_0.gamma.fill_(1.0)
    loaded = elmo(batch_to_ids(TWO))["elmo_representations"][0]
    torch.testing.assert_close(loaded, fresh, atol=1e-5, rtol=1e-5)


# The embedder and its files


def test_embedder_gives_empty_arrays_of_the_right_width(files):
    embedder = ElmoEmbedder(*files)
    assert embedder.embed_sentence([]).shape == (3, 0, 12)
    shapes = [layers.shape for layers in embedder.embed_batch([[], ["a", "word"], []])]
    assert shapes == [(3, 0, 12), (3, 2, 12), (3, 0, 12)]
    assert embedder.embed_batch([]) == []
    assert list(embedder.embed_sentences([])) == []
    values, mask = embedder.batch_to_embeddings(TWO)
    assert values.shape == (2, 3, 7, 12)
    assert mask.tolist() == [[True] * 3 + [False] * 4, [True] * 7]


def dump(files, text, path, **options):
    ElmoEmbedder(*files).embed_file(io.StringIO(text), path, **options)
    with h5py.File(path) as file:
        return {key: file[key][...] for key in file if isinstance(file[key], h5py.Dataset)}


def test_files_of_all_top_and_average(files, tmp_path):
    text = "Michael went to the store to buy some eggs .\n"
    layers = ElmoEmbedder(*files).embed_sentence(text.split())
    for kind, expected in (("all", layers), ("top", layers[-1]), ("average", layers.mean(axis=0))):
        found = dump(files, text, tmp_path / "out.hdf5", output_format=kind)
        assert set(found) == {"0", "sentence_to_index"}
        np.testing.assert_allclose(found["0"], expected, rtol=1e-4, atol=1e-6)
        assert found["sentence_to_index"].shape == (1,)
        assert json.loads(found["sentence_to_index"][0]) == {text.strip(): "0"}
    assert [path.name for path in tmp_path.iterdir()] == ["out.hdf5"]


def test_files_of_several_sentences(files, tmp_path):
    lines = ["Tea or coffee ?", "Either / or", "한국어 문장 .", "Tea or coffee ?"]
    found = dump(files, "\n".join(lines), tmp_path / "out.hdf5", batch_size=2)
    assert set(found) == {"0", "1", "2", "3", "sentence_to_index"}
    index = json.loads(found["sentence_to_index"][0])
    assert index == {lines[0]: "3", lines[1]: "1", lines[2]: "2"}  # the later of two counts
    expected = ElmoEmbedder(*files).embed_sentences([line.split() for line in lines], 2)
    for i, layers in enumerate(expected):
        np.testing.assert_allclose(found[str(i)], layers, atol=1e-6)
    found = dump(files, "\n".join(lines), tmp_path / "out.hdf5", forget_sentences=True)
    assert set(found) == {"0", "1", "2", "3"}


def test_files_by_sentence(files, tmp_path):
    lines = ["Tea or coffee ?", "Neither of them"]
    found = dump(files, "\n".join(lines), tmp_path / "out.hdf5", use_sentence_keys=True)
    assert set(found) == set(lines)
    with pytest.raises(InputError, match="comes twice"):
        dump(files, "a b\na b\n", tmp_path / "two.hdf5", use_sentence_keys=True)
    with pytest.raises(InputError, match=r"empty lines, at \[1\]"):
        dump(files, "a b\n\nc\n", tmp_path / "two.hdf5")
    with pytest.raises(InputError, match="all, top or average"):
        dump(files, "a b\n", tmp_path / "two.hdf5", output_format="middle")
    assert not (tmp_path / "two.hdf5").exists()


# Other models, bad input


def test_a_model_of_other_width(fixtures):
    folder = fixtures / "three_layers"
    elmo = Elmo(folder / "options.json", folder / "weights.hdf5", 1)
    with pytest.raises(InputError, match="max_characters=12"):
        elmo(batch_to_ids(TWO))
    assert elmo(batch_to_ids(TWO, max_characters=12))["elmo_representations"][0].shape == (2, 7, 12)


def test_a_folder_in_place_of_two_files(fixtures, files):
    elmo = Elmo(fixtures / "plain", None, 1, dropout=0.0)
    same = Elmo(*files, 1, dropout=0.0)
    ids = batch_to_ids(TWO)
    assert torch.equal(*(e(ids)["elmo_representations"][0] for e in (elmo, same)))


def test_models_that_do_not_read_bytes_are_refused(fixtures):
    with pytest.raises(InputError, match="takes words as bytes"):
        Elmo(fixtures / "words", None, 1)


def test_published_addresses_go_by_name(monkeypatch, files):
    asked = []

    def load(name=None, **files_given):
        asked.append((name, files_given))
        return bilm_tf.read(*files)

    monkeypatch.setattr("torchelmo.formats.load.load", load)
    kind = "2x1024_128_2048cnn_1xhighway"
    for host in (
        "https://s3-us-west-2.amazonaws.com/allennlp/models",
        "https://allennlp.s3.amazonaws.com/models",
    ):
        base = f"{host}/elmo/{kind}/elmo_{kind}"
        Elmo(f"{base}_options.json", f"{base}_weights.hdf5", 1)
    ElmoEmbedder()
    elsewhere = "https://example.org/options.json", "https://example.org/weights.hdf5"
    Elmo(*elsewhere, 1)
    assert asked == [
        ("ai2-small", {}),
        ("ai2-small", {}),
        ("ai2-original", {}),
        (None, {"options": elsewhere[0], "weights": elsewhere[1]}),
    ]


def test_bad_ids(files):
    elmo = Elmo(*files, 1)
    ids = batch_to_ids(TWO)
    gap = ids.clone()
    gap[1, 2] = 0
    with pytest.raises(InputError, match="padding goes on the right"):
        elmo(gap)
    for value in (262, -1, 0):
        wrong = ids.clone()
        wrong[0, 0, 3] = value
        with pytest.raises(InputError, match="expected 1 to 261"):
            elmo(wrong)
    with pytest.raises(InputError, match=r"\(B, T, 50\)"):
        elmo(ids.float())
    with pytest.raises(InputError, match=r"\(B, T, 50\)"):
        elmo(ids[0])
