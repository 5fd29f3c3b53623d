"""The numpy reference against the original programs' outputs and hand-worked cases."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from . import many_langs, numpy_elmo
from .numpy_elmo import DIRECTIONS, FORWARD, Array, Model, Softmax, State

# The originals compute in float32.
TOLERANCE = 2e-6
ORIGINALS = {
    "bilm": ("bilm-tf/tests/fixtures/model", "lm_embeddings_sentences.json"),
    "allennlp": ("allennlp/test_fixtures/elmo", "sentences.json"),
}


def original_model(shared: Path, name: str) -> Model:
    folder = shared / "fixtures" / ORIGINALS[name][0]
    return numpy_elmo.read_model(folder / "options.json", folder / "lm_weights.hdf5")


def assert_near(actual: Array, expected: Array, tolerance: float = TOLERANCE) -> None:
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=tolerance)


@pytest.fixture(params=sorted(ORIGINALS))
def original(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_thirty_sentences_with_carried_state(shared: Path, original: str) -> None:
    folder, sentences_name = ORIGINALS[original]
    folder = shared / "fixtures" / folder
    model = original_model(shared, original)
    lists = json.loads((folder / sentences_name).read_text(encoding="utf-8"))
    state = State()
    files = [h5py.File(folder / f"lm_embeddings_{row}.hdf5", "r") for row in range(3)]
    for i in range(10):
        batch = numpy_elmo.run(model, [lists[row][i].split() for row in range(3)], state)
        for row in range(3):
            forward, backward = files[row][str(i)][...]
            expected = np.concatenate([forward, backward], axis=1)
            assert_near(batch.layers[row][-1], expected, 1e-6)


def test_all_layers_and_mixes(shared: Path, original: str) -> None:
    model = original_model(shared, original)
    state = State()
    path = shared / "fixtures" / "tf-generated" / f"inference_{original}.hdf5"
    with h5py.File(path, "r") as file:
        w, gamma = file.attrs["W"], float(file.attrs["gamma"])
        for number in range(4):
            group = file[f"batch{number}"]
            sentences = json.loads(group.attrs["sentences"])
            ids = numpy_elmo.character_ids(sentences)
            np.testing.assert_array_equal(ids, group["char_ids"][...])
            batch = numpy_elmo.run(model, sentences, state)
            mixes = {
                "elmo_plain": numpy_elmo.mix(batch, w, gamma),
                "elmo_layer_norm": numpy_elmo.mix(batch, w, gamma, "bilm-tf"),
                "elmo_top": numpy_elmo.mix_top(batch, gamma),
            }
            lengths = [len(sentence) for sentence in sentences]
            # bilm-tf's `lengths` leave the boundaries out.
            np.testing.assert_array_equal(group["lengths"][...], lengths)
            np.testing.assert_array_equal(group["mask"][...].sum(axis=1), lengths)
            for row, t in enumerate(lengths):
                assert_near(batch.layers[row], group["lm_embeddings"][row, :, :t])
                tokens = group["token_embeddings_with_bos_eos"][row, : t + 2]
                assert_near(batch.tokens[row], tokens)
                for name, values in mixes.items():
                    assert_near(values[row], group[name][row, :t])
        penalty = numpy_elmo.regulariser(w, float(file.attrs["l2_coef"]))
        assert penalty == pytest.approx(float(file.attrs["reg_loss"]), abs=1e-9)
        for direction in DIRECTIONS:
            for layer in range(2):
                c, h = state.stacked(direction, layer)
                final = file[f"final_state/{direction}/layer{layer}"]
                assert_near(c, final["c"][:4])
                assert_near(h, final["h"][:4])
                assert not final["c"][4:].any()


def test_padding_of_the_token_layer(shared: Path, original: str) -> None:
    """At padding bilm-tf leaves the vector of an all-zero character row in layer 0."""
    model = original_model(shared, original)
    assert isinstance(model.token_layer, numpy_elmo.CharCnn)
    cnn = model.token_layer
    characters = np.zeros((50, cnn.embedding.shape[1]))
    x = numpy_elmo.relu(np.concatenate([f.largest_response(characters) for f in cnn.filters]))
    for highway in cnn.highways:
        x = highway(x)
    assert cnn.projection is not None
    x = x @ cnn.projection[0] + cnn.projection[1]
    path = shared / "fixtures" / "tf-generated" / f"inference_{original}.hdf5"
    with h5py.File(path, "r") as file:
        last = file["batch0/token_embeddings_with_bos_eos"][2, -1]
    assert_near(x, last)


def test_one_sentence_at_a_time(shared: Path, original: str) -> None:
    folder = shared / "fixtures" / "tf-generated"
    model = original_model(shared, original)
    lines = (folder / "dump_input.txt").read_text(encoding="utf-8").splitlines()
    state = State()
    with h5py.File(folder / f"dump_bilm_embeddings_{original}.hdf5", "r") as file:
        for number, line in enumerate(lines):
            batch = numpy_elmo.run(model, [line.split()], state)
            assert_near(batch.layers[0], file[str(number)][...])


def test_word_input_from_dumped_tokens(shared: Path, original: str) -> None:
    """Word ids over bilm-tf's dumped token layer give what bilm-tf gave for characters."""
    folder = shared / "fixtures" / "tf-generated"
    model_folder = shared / "fixtures" / ORIGINALS[original][0]
    options = json.loads((model_folder / "options.json").read_text(encoding="utf-8"))
    weights = numpy_elmo.read_weights(model_folder / "lm_weights.hdf5")
    dumped = folder / f"dump_token_embeddings_{original}.hdf5"
    weights |= numpy_elmo.read_weights(dumped)
    vocabulary = numpy_elmo.read_vocabulary(folder / "dump_vocab.txt")
    from_characters = numpy_elmo.model_from(options, weights).token_layer.vectors(vocabulary)
    assert_near(from_characters, weights["embedding"])
    del options["char_cnn"]
    model = numpy_elmo.model_from(options, weights, vocabulary)
    lines = (folder / "dump_input.txt").read_text(encoding="utf-8").splitlines()
    state = State()
    with h5py.File(folder / f"dump_bilm_embeddings_{original}.hdf5", "r") as file:
        for number, line in enumerate(lines):
            batch = numpy_elmo.run(model, [line.split()], state)
            assert_near(batch.layers[0], file[str(number)][...])


def test_token_layer_of_a_vocabulary(shared: Path) -> None:
    folder = shared / "fixtures" / ORIGINALS["allennlp"][0]
    vocabulary = (folder / "vocab_test.txt").read_text(encoding="utf-8").split("\n")[:458]
    with h5py.File(folder / "elmo_token_embeddings.hdf5", "r") as file:
        expected = file["embedding"][...]
    token_layer = original_model(shared, "allennlp").token_layer
    assert_near(token_layer.vectors(vocabulary), expected, 1e-6)


def test_the_two_layer_norms_differ(shared: Path) -> None:
    """They count different tokens; no stored output of AllenNLP's own norm exists to compare."""
    model = original_model(shared, "bilm")
    path = shared / "fixtures" / "tf-generated" / "inference_bilm.hdf5"
    with h5py.File(path, "r") as file:
        sentences = json.loads(file["batch0"].attrs["sentences"])
        w = file.attrs["W"]
    batch = numpy_elmo.run(model, sentences)
    tf = np.concatenate(numpy_elmo.mix(batch, w, 1.0, "bilm-tf"))
    allennlp = np.concatenate(numpy_elmo.mix(batch, w, 1.0, "allennlp"))
    assert 0.01 < np.abs(tf - allennlp).max() < 1.0


def stream_perplexity(model: Model, output: Softmax, sentences: list[list[str]]) -> float:
    """bilm-tf's test at batch 1: both directions read all sentences in order, losing no state.

    A sentence's last token is only ever a target.
    """
    state = State()
    losses = {direction: [] for direction in DIRECTIONS}
    for sentence in sentences:
        for direction in DIRECTIONS:
            tokens = ["<S>", *sentence, "</S>"]
            tokens = tokens if direction == FORWARD else tokens[::-1]
            vectors = model.token_layer.vectors(tokens[:-1])
            top = model.encoder.run_direction(direction, vectors, 0, state)[-1]
            losses[direction].append(-output.log_probabilities(top, tokens[1:]))
    means = [np.concatenate(losses[direction]).mean() for direction in DIRECTIONS]
    return float(np.exp(np.mean(means)))


@pytest.mark.parametrize(
    "variant", ["basic", "clipped", "noskip_tanh", "one_layer", "no_projection"]
)
def test_trained_variants(shared: Path, variant: str) -> None:
    """Files bilm-tf wrote after training, with the perplexity it measured itself."""
    folder = shared / "fixtures" / "tf-generated"
    weights = numpy_elmo.read_weights(folder / f"dump_weights_{variant}.hdf5")
    trained = numpy_elmo.read_weights(folder / f"training_{variant}.hdf5")
    with h5py.File(folder / f"training_{variant}.hdf5", "r") as file:
        options = json.loads(file.attrs["options"])
        vocabulary = file.attrs["vocab"].split()
        sentences = [line.split() for line in file.attrs["data"].splitlines()]
        expected = float(file.attrs["test_perplexity_batch_size_1"])
    np.testing.assert_array_equal(weights["char_embed"], trained["final/lm/char_embed"])
    model = numpy_elmo.model_from(options, weights)
    output = Softmax(trained["final/lm/softmax/W"], trained["final/lm/softmax/b"], vocabulary)
    assert stream_perplexity(model, output, sentences) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("token", "max_characters", "expected"),
    [
        ("th", 5, [258, 116, 104, 259, 260]),
        ("thhhhh", 5, [258, 116, 104, 104, 259]),
        ("\u0100t", 5, [258, 196, 128, 116, 259]),
        ("語語", 6, [258, 232, 170, 158, 232, 259]),
        ("", 4, [258, 259, 260, 260]),
        ("a\ud800b", 5, [258, 97, 98, 259, 260]),
        ("<S>", 5, [258, 256, 259, 260, 260]),
        ("</S>", 5, [258, 257, 259, 260, 260]),
        ("<s>", 5, [258, 60, 115, 62, 259]),
    ],
)
def test_character_row(token: str, max_characters: int, expected: list[int]) -> None:
    assert numpy_elmo.character_row(token, max_characters).tolist() == expected


def test_character_row_keeps_48_bytes() -> None:
    row = numpy_elmo.character_row("b" * 60)
    assert row.tolist() == [258] + [98] * 48 + [259]
    assert numpy_elmo.character_row("b" * 48).tolist() == row.tolist()


def test_lstm_step_by_hand() -> None:
    """One cell, all gates at 0: c = 0.5 c + 0, then h = 0.5 tanh(c), projected and clipped."""
    zero = numpy_elmo.Gate(np.zeros((1, 1)), np.zeros((1, 1)), np.zeros(1))
    lstm = numpy_elmo.Lstm(zero, zero, zero, zero, np.array([[4.0]]), cell_clip=0.5, proj_clip=0.9)
    c, h = lstm.step(np.array([7.0]), np.array([4.0]), np.array([1.0]))
    assert c.tolist() == [0.5]
    assert h.tolist() == [0.9]
    c, h = lstm.step(np.array([7.0]), np.array([0.2]), np.array([1.0]))
    assert c.tolist() == [0.1]
    assert h[0] == pytest.approx(4 * 0.5 * np.tanh(0.1))


def test_mix_by_hand() -> None:
    """Two layers of one sentence of one token, between boundaries."""
    values = np.array([[[9.0, 9.0], [1.0, 3.0], [9.0, 9.0]], [[0.0, 0.0], [5.0, 5.0], [0.0, 0.0]]])
    batch = numpy_elmo.Batch([values])
    w = np.log([1.0, 3.0])
    assert numpy_elmo.mix(batch, w, 2.0)[0].tolist() == [[8.0, 9.0]]
    assert numpy_elmo.mix_top(batch, 2.0)[0].tolist() == [[10.0, 10.0]]
    # Layer 0 has mean 2 and variance 1; layer 1 is constant, so it normalises to 0.
    assert_near(numpy_elmo.mix(batch, w, 1.0, "bilm-tf")[0], np.array([[-0.25, 0.25]]))
    first, second = values[:, 1], np.array([[40 / 6, 40 / 6], [10 / 6, 10 / 6]])
    deviation = np.sqrt((values.reshape(2, 6) ** 2).mean(axis=1) - second[:, 0] ** 2)[:, None]
    expected = np.array([0.25, 0.75]) @ ((first - second) / deviation)
    assert_near(numpy_elmo.mix(batch, w, 1.0, "allennlp")[0], expected[None])


def test_vocabulary_skips_the_sentinel(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("<S>\n !!!MAXTERMID\n</S> \nword\n", encoding="utf-8")
    assert numpy_elmo.read_vocabulary(path) == ["<S>", "</S>", "word"]


def test_many_langs_dictionary(tmp_path: Path) -> None:
    path = tmp_path / "char.dic"
    path.write_text("a\t0\n1\n<oov>\t2\n", encoding="utf-8")
    assert many_langs.read_dictionary(path) == {"a": 0, "\u3000": 1, "<oov>": 2}
    path.write_text("a\t0\n\u3000\t1\n<oov>\t2\n", encoding="utf-8")
    assert many_langs.read_dictionary(path) == {"a": 0, "\u3000": 1, "<oov>": 2}


def test_many_langs_characters_swap_the_markers() -> None:
    names = ["<bos>", "<eos>", "<bow>", "<eow>", "<oov>", "<pad>", "é", "b"]
    ids = {name: number for number, name in enumerate(names)}
    assert many_langs.character_row("éx", ids, 6).tolist() == [3, 6, 4, 2, 5, 5]
    assert many_langs.character_row("bbbbbbb", ids, 6).tolist() == [3, 7, 7, 7, 7, 2]
    assert many_langs.character_row("<eos>", ids, 6).tolist() == [3, 1, 2, 5, 5, 5]
