"""The originals' numbers: bilm-tf's and AllenNLP's own fixtures, and fresh runs of bilm-tf.

Where those are absent the same paths are tested with tests/fixtures (see test_elmo.py).
"""

import json
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch

from torchelmo.config import WordConfig
from torchelmo.elmo import Elmo
from torchelmo.formats.model import Model
from torchelmo.nn.lstm import State
from torchelmo.nn.scalar_mix import ScalarMix
from torchelmo.text.vocabulary import Vocabulary

FOLDERS = {
    "bilm": "fixtures/bilm-tf/tests/fixtures/model",
    "allennlp": "fixtures/allennlp/test_fixtures/elmo",
}
SENTENCES = {"bilm": "lm_embeddings_sentences.json", "allennlp": "sentences.json"}


@pytest.fixture(params=sorted(FOLDERS))
def original(request, shared):
    return request.param, shared / FOLDERS[request.param]


def load(folder, **arguments):
    return Elmo.from_pretrained(
        options=folder / "options.json", weights=folder / "lm_weights.hdf5", **arguments
    )


def test_thirty_sentences_with_carried_state(original):
    name, folder = original
    elmo, state = load(folder), State()
    rows = json.loads((folder / SENTENCES[name]).read_text(encoding="utf-8"))
    stored = [h5py.File(folder / f"lm_embeddings_{row}.hdf5") for row in range(3)]
    for number in range(10):
        layers = elmo.layers([rows[row][number].split() for row in range(3)], state=state)
        for file, array in zip(stored, layers, strict=True):
            expected = np.concatenate(list(file[str(number)][...]), axis=1)
            np.testing.assert_allclose(array[-1], expected, atol=1e-6, rtol=1e-5)


def test_token_vectors_of_allennlps_vocabulary(shared):
    folder = shared / FOLDERS["allennlp"]
    words = (folder / "vocab_test.txt").read_text(encoding="utf-8").split("\n")[:458]
    vectors = load(folder).encoder.vectors(words)[2:]
    with h5py.File(folder / "elmo_token_embeddings.hdf5") as file:
        np.testing.assert_allclose(vectors.numpy(), file["embedding"][...], atol=1e-6)


def test_token_vectors_of_fast_elmo(shared):
    folder = (
        shared / "fixtures/pytorch-fast-elmo/tests/fixtures"
    )  # the same weights, 261 characters
    lines = (folder / "lm_embd.txt").read_text(encoding="utf-8").splitlines()
    table = dict(line.split(" ", 1) for line in lines if len(line.split(" ")) > 2)
    vectors = load(folder).encoder.vectors(list(table))[2:]
    expected = np.array([row.split() for row in table.values()], dtype=np.float64)
    np.testing.assert_allclose(vectors.numpy(), expected, atol=1e-5)


def test_every_number_of_a_fresh_bilm_tf_run(original, shared):
    name, folder = original
    state = State()
    with h5py.File(shared / f"fixtures/tf-generated/inference_{name}.hdf5") as file:
        weights, gamma = file.attrs["W"].tolist(), float(file.attrs["gamma"])
        mixes = {
            "elmo_plain": ScalarMix(3, weights=weights, gamma=gamma),
            "elmo_layer_norm": ScalarMix(3, weights=weights, gamma=gamma, layer_norm="tf"),
            "elmo_top": ScalarMix(3, kind="top", gamma=gamma),
        }
        elmo = load(folder, mixes=list(mixes.values()))
        for number in range(4):
            group = file[f"batch{number}"]
            sentences = json.loads(group.attrs["sentences"])
            with torch.no_grad():
                batch = elmo.batch(sentences)
                out = elmo(batch, state=state)
                tokens = elmo.bilm.token(batch.characters, None)[batch.index]
            mask = group["mask"][...]
            assert (out.mask.numpy() == mask).all()
            assert list(out.layers.lengths) == group["lengths"][...].tolist()
            layers = out.layers.values.transpose(0, 1).numpy()  # (B, L+1, T, D)
            expected = group["lm_embeddings"][...] * mask[:, None, :, None]
            np.testing.assert_allclose(layers, expected, atol=2e-6)
            for mixed, key in zip(out.mixes, mixes, strict=True):
                expected = group[key][...] * mask[..., None]
                np.testing.assert_allclose(mixed.numpy(), expected, atol=2e-6)
            kept = np.arange(tokens.shape[1]) < group["lengths"][...][:, None] + 2
            expected = group["token_embeddings_with_bos_eos"][...]
            np.testing.assert_allclose(tokens.numpy()[kept], expected[kept], atol=2e-6)
        coefficient = float(file.attrs["l2_coef"])
        assert mixes["elmo_plain"].penalty().item() * coefficient == pytest.approx(
            float(file.attrs["reg_loss"]), abs=1e-7
        )
        for key, tensor in state.tensors().items():
            direction, layer, part = key.split(".")
            expected = file[f"final_state/{direction}/layer{layer}/{part}"][...]
            np.testing.assert_allclose(tensor.numpy(), expected[: len(tensor)], atol=2e-6)
            assert not expected[len(tensor) :].any()


def test_bilm_tf_dumps_of_sentences_and_words(original, shared):
    name, folder = original
    data = shared / "fixtures/tf-generated"
    elmo, state = load(folder), State()
    with h5py.File(data / f"dump_bilm_embeddings_{name}.hdf5") as file:
        lines = (data / "dump_input.txt").read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):  # one sentence at a time through row 0
            (array,) = elmo.layers([line.split()], state=state)
            np.testing.assert_allclose(array, file[str(number)][...], atol=2e-6)
    words = (data / "dump_vocab.txt").read_text(encoding="utf-8").split("\n")
    with h5py.File(data / f"dump_token_embeddings_{name}.hdf5") as file:
        expected = file["embedding"][...]
    vectors = elmo.encoder.vectors(words[: len(expected)])[2:]
    np.testing.assert_allclose(vectors.numpy(), expected, atol=2e-6)


def test_a_fourth_row_stays_zero_and_a_third_unchanged(original):
    _, folder = original
    elmo, state = load(folder), State()
    elmo.layers([["a"], ["b"], ["c"]], state=state)
    before = {key: tensor.clone() for key, tensor in state.tensors().items()}
    elmo.layers([["d"], ["e"]], state=state)
    for key, tensor in state.tensors().items():
        assert len(tensor) == 3 and (tensor[2] == before[key][2]).all()
        assert not (tensor[:2] == before[key][:2]).all()


def test_words_through_a_dumped_table_give_the_numbers_of_characters(original, shared):
    """A model whose input is bilm-tf's table of token vectors, instead of characters."""
    name, folder = original
    data = shared / "fixtures/tf-generated"
    with h5py.File(data / f"dump_token_embeddings_{name}.hdf5") as file:
        table = torch.from_numpy(file["embedding"][...])
    words = (data / "dump_vocab.txt").read_text(encoding="utf-8").split("\n")[: len(table)]
    by_characters = load(folder)
    whole = by_characters.to_model()
    tensors = {k: t for k, t in whole.tensors.items() if not k.startswith("token.")}
    config = replace(
        whole.config,
        characters=None,
        words=WordConfig(words=len(table), dim=table.shape[1]),
        token_projection=False,
    )
    by_words = Elmo(Model(config, {**tensors, "token.words": table}, words=words))
    sentences = [words[3:9], words[10:12], words[5:6]]
    for a, b in zip(by_words.layers(sentences), by_characters.layers(sentences), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


def test_a_batch_of_two_sentences_as_bilm_tf_lays_it_out(shared):
    elmo = load(shared / FOLDERS["bilm"])
    batch = elmo.batch([["The", "first", "sentence"], ["Second", "."]])
    ids = batch.characters[batch.index]  # (2, 5, 50); beyond a sentence's end anything may stand
    starts = [[259, 257, 260], [259, 85, 105], [259, 103, 106], [259, 116, 102], [259, 258, 260]]
    assert ids.shape == (2, 5, 50) and ids[0, :, :3].tolist() == starts
    assert ids[1, 2, :4].tolist() == [259, 47, 260, 261] and ids[1, 3, 1] == 258
    assert batch.lengths == (3, 2)


def test_word_numbers_of_two_sentences(shared):
    file = shared / "fixtures/bilm-tf/tests/fixtures/data/vocab_test.txt"
    words = Vocabulary.from_lines(file.read_text(encoding="utf-8").splitlines())
    # bilm-tf's batches hold one more than the line number, and 0 where there is no word.
    assert words.encode(["The", "first", "."]).tolist() == [1, 17, 74, 5, 0]
    assert words.encode(["It", "said"]).tolist() == [1, 66, 20, 0]


@pytest.mark.parametrize("arguments", [{"layer_norm": "tf"}, {}, {"kind": "top"}])
def test_two_mixes_learn_their_own_weights_and_gammas(shared, arguments):
    top = arguments.get("kind") == "top"
    elmo = load(shared / FOLDERS["bilm"], mixes=2, **arguments)
    learned = [p for p in elmo.parameters() if p.requires_grad]
    assert len(learned) == (2 if top else 4)  # the biLM has nothing to train
    with torch.no_grad():
        for mix, weights, gamma in zip(
            elmo.mixes, ([0.1, 0.3, 0.5], [0.2, 0.4, 0.6]), (1.1, 0.88), strict=True
        ):
            mix.gamma.fill_(gamma)
            if not top:
                mix.weights.copy_(torch.tensor(weights))
        out = elmo(elmo.batch([["The", "first", "sentence", "."], ["The", "second"], ["Third"]]))
    layers = out.layers.flat.double().numpy()
    for mixed, weights, gamma in zip(
        out.mixes, ([0.1, 0.3, 0.5], [0.2, 0.4, 0.6]), (1.1, 0.88), strict=True
    ):
        share = np.exp(weights) / np.exp(weights).sum()
        if arguments.get("layer_norm"):
            normed = [(h - h.mean()) / h.std() for h in layers]
        else:
            normed = list(layers)
        expected = layers[-1] if top else np.tensordot(share, normed, axes=1)
        np.testing.assert_allclose(mixed[out.mask].numpy(), gamma * expected, atol=1e-6)
    penalty = elmo.regularizer(1.0).item()
    assert penalty == pytest.approx(0.0 if top else 0.35 + 0.56)
