"""simple_elmo's interface: the originals' numbers, and none of its defects."""

import json
import shutil
import zipfile

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import numpy_elmo
from torchelmo import scoring
from torchelmo.elmo import Elmo
from torchelmo.errors import InputError
from torchelmo.integrations.simple_elmo_api import ElmoModel
from torchelmo.nn.lstm import State

pytestmark = pytest.mark.filterwarnings("ignore:.*unused options")

CLOSE = {"atol": 2e-6, "rtol": 1e-5}


@pytest.fixture(scope="module")
def sentences(fixtures):
    return json.loads((fixtures / "sentences.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def expected(fixtures):
    with h5py.File(fixtures / "plain" / "expected.hdf5") as file:
        yield {
            state: [file[f"{state}/{i}"][...] for i in range(13)] for state in ("carry", "reset")
        }


@pytest.fixture(scope="module")
def model(fixtures):
    """The state of the fixtures is carried through batches of 3."""
    model = ElmoModel(device="cpu")
    assert model.load(str(fixtures / "plain"), max_batch_size=3) == "The model is now loaded."
    return model


def reduce(values, layers):
    return {"all": values, "top": values[-1], "average": values.mean(axis=0)}[layers]


# Vectors


@pytest.mark.parametrize("state", ["carry", "reset"])
@pytest.mark.parametrize("layers", ["all", "top", "average"])
def test_vectors_equal_the_reference(model, sentences, expected, state, layers):
    found = model.get_elmo_vectors(sentences, layers=layers, state=state)
    longest = max(map(len, sentences))
    shape = (13, 3, longest, 12) if layers == "all" else (13, longest, 12)
    assert found.shape == shape and found.dtype == np.float32
    for vectors, words, values in zip(found, sentences, expected[state], strict=True):
        inside, outside = np.split(vectors, [len(words)], axis=-2)
        np.testing.assert_allclose(inside, reduce(values, layers), **CLOSE)
        assert not outside.any()


def test_carry_is_the_default_and_starts_anew_with_each_call(model, sentences, expected):
    for _ in range(2):
        found = model.get_elmo_vectors(sentences, layers="all")
        last = len(sentences[12])
        np.testing.assert_allclose(found[12, :, :last], expected["carry"][12], **CLOSE)


def test_one_batch_from_zero_is_the_same_in_both_states(model, sentences):
    carried = model.get_elmo_vectors(sentences[:3])
    np.testing.assert_allclose(
        carried, model.get_elmo_vectors(sentences[:3], state="reset"), **CLOSE
    )


@pytest.mark.parametrize("state", ["carry", "reset"])
def test_warmup_changes_nothing(model, sentences, state):
    cold = model.get_elmo_vectors(sentences, warmup=False, state=state)
    warm = model.get_elmo_vectors(sentences, warmup=True, state=state)
    np.testing.assert_allclose(warm, cold, **CLOSE)
    averages = model.get_elmo_vector_average(sentences, warmup=False, state=state)
    warm = model.get_elmo_vector_average(sentences, state=state)
    np.testing.assert_allclose(warm, averages, **CLOSE)


def test_a_session_carries_state_from_call_to_call(model, sentences, expected):
    session = State()
    found = [
        model.get_elmo_vectors(sentences[start : start + 3], layers="all", session=session)
        for start in range(0, 13, 3)
    ]
    vectors = [values for batch in found for values in batch]
    for values, words, wanted in zip(vectors, sentences, expected["carry"], strict=True):
        np.testing.assert_allclose(values[:, : len(words)], wanted, **CLOSE)
    with pytest.raises(InputError, match=r"torchelmo\.State"):
        model.get_elmo_vectors(sentences, session=object())


def test_a_session_warms_up_on_purpose(fixtures, model, sentences):
    """What simple_elmo's own warm-up did: the first batch is run, and then run again."""
    session = State()
    model.get_elmo_vectors(sentences[:3], session=session)
    found = model.get_elmo_vectors(sentences, layers="all", session=session)
    reference, state = numpy_elmo.read_folder(fixtures / "plain"), numpy_elmo.State()
    numpy_elmo.run(reference, sentences[:3], state)
    batches = numpy_elmo.run_batches(reference, sentences, 3, state)
    wanted = [values for batch in batches for values in batch.layers]
    for values, words, expected_values in zip(found, sentences, wanted, strict=True):
        np.testing.assert_allclose(values[:, : len(words)], expected_values, **CLOSE)


def test_inference_of_the_original_program(shared):
    """All layers of four batches of 3, 3, 1 and 4 rows, state carried."""
    folder = shared / "fixtures/bilm-tf/tests/fixtures/model"
    model = ElmoModel(device="cpu")
    model._elmo = Elmo.from_pretrained(
        options=folder / "options.json", weights=folder / "lm_weights.hdf5", device="cpu"
    )
    model.vector_size, model.n_layers = 32, 3
    session = State()
    with h5py.File(shared / "fixtures/tf-generated/inference_bilm.hdf5") as file:
        for number in range(4):
            group = file[f"batch{number}"]
            batch = json.loads(group.attrs["sentences"])
            found = model.get_elmo_vectors(batch, layers="all", session=session)
            mask = group["mask"][...].astype(bool)[:, None, :, None]
            np.testing.assert_allclose(found, group["lm_embeddings"][...] * mask, atol=2e-6)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_reset_depends_on_the_sentence_alone(model, sentences, data):
    chosen = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=8))
    together = model.get_elmo_vectors([sentences[i] for i in chosen], state="reset")
    averages = model.get_elmo_vector_average([sentences[i] for i in chosen], state="reset")
    for i, vectors, average in zip(chosen, together, averages, strict=True):
        alone = model.get_elmo_vectors([sentences[i]], state="reset")[0]
        np.testing.assert_allclose(vectors[: len(sentences[i])], alone, **CLOSE)
        np.testing.assert_allclose(
            average, model.get_elmo_vector_average([sentences[i]], state="reset")[0], **CLOSE
        )


def test_the_constructor_chooses_the_state_of_all_calls(fixtures, sentences, expected):
    model = ElmoModel(state="reset", device="cpu")
    model.load(fixtures / "plain", max_batch_size=3)
    found = model.get_elmo_vectors(sentences, layers="top")
    np.testing.assert_allclose(found[12, :12], expected["reset"][12][-1], **CLOSE)
    found = model.get_elmo_vectors(sentences, layers="top", state="carry")
    np.testing.assert_allclose(found[12, :12], expected["carry"][12][-1], **CLOSE)


# Averages


@pytest.mark.parametrize("state", ["carry", "reset"])
@pytest.mark.parametrize("layers", ["all", "top", "average"])
def test_averages_are_over_the_words_alone(model, sentences, expected, state, layers):
    found = model.get_elmo_vector_average(sentences, layers=layers, state=state)
    assert found.shape == ((13, 3, 12) if layers == "all" else (13, 12))
    for vector, words, values in zip(found, sentences, expected[state], strict=True):
        if not words:
            assert not vector.any()
            continue
        mean = reduce(values, layers).mean(axis=-2)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), **CLOSE)
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)


# Loading


def test_attributes(fixtures):
    model = ElmoModel(device="cpu")
    model.load(fixtures / "three_layers", 16, limit=5)
    assert (model.batch_size, model.vector_size, model.n_layers) == (16, 12, 4)
    assert model.max_chars == 12 and model.vocab is None


@pytest.mark.parametrize("name", ["one_layer", "no_projection", "noskip_tanh", "words"])
def test_models_that_simple_elmo_cannot_load(fixtures, sentences, name):
    model = ElmoModel(state="reset", device="cpu")
    model.load(fixtures / name)
    found = model.get_elmo_vectors(sentences[:1], layers="top")
    with h5py.File(fixtures / name / "expected.hdf5") as file:
        np.testing.assert_allclose(found[0], file["reset/0"][-1], **CLOSE)


def test_a_zip_archive_and_a_folder_with_two_files(fixtures, tmp_path, sentences, model):
    source = fixtures / "plain"
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.write(source / "options.json", "options.json")
        archive.write(source / "weights.hdf5", "model.hdf5")
        archive.write(source / "vocab.txt", "vocab.txt")
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(source / "options.json", folder)
    shutil.copy(source / "weights.hdf5", folder / "model.hdf5")
    shutil.copy(fixtures / "one_layer" / "weights.hdf5", folder / "another.hdf5")
    wanted = model.get_elmo_vectors(sentences, state="reset")
    for path in (tmp_path / "model.zip", folder):
        other = ElmoModel(state="reset", device="cpu")
        other.load(str(path))
        np.testing.assert_allclose(other.get_elmo_vectors(sentences), wanted, **CLOSE)


def test_bad_models(fixtures, tmp_path):
    model = ElmoModel(device="cpu")
    with pytest.raises(InputError, match="call load"):
        model.get_elmo_vectors([["a"]])
    with pytest.raises(InputError, match="no softmax"):
        model.load(fixtures / "one_layer", full=True)
    with pytest.raises(InputError):
        model.load(tmp_path / "nowhere")
    (tmp_path / "checkpoint").write_text("model_checkpoint_path", encoding="utf-8")
    with pytest.raises(InputError, match="TensorFlow checkpoint, which is not read here"):
        model.load(tmp_path, full=True)
    with pytest.raises(InputError, match="at least 1"):
        model.load(fixtures / "plain", max_batch_size=0)


def test_bad_arguments(model):
    with pytest.raises(InputError, match="layers is average, top or all, not 'first'"):
        model.get_elmo_vectors([["a"]], layers="first")
    with pytest.raises(InputError, match="layers is"):
        model.get_elmo_vector_average([["a"]], layers="first")
    with pytest.raises(InputError, match="state is carry or reset"):
        model.get_elmo_vectors([["a"]], state="keep")
    with pytest.raises(InputError, match="state is carry or reset"):
        ElmoModel(state="keep")
    with pytest.raises(InputError, match="sentence 1 is a text"):
        model.get_elmo_vectors([["a"], "a raw text"])
    assert model.get_elmo_vectors([]).shape == (0, 0, 12)
    assert model.get_elmo_vectors([[]]).shape == (1, 0, 12)
    assert model.get_elmo_vector_average([]).shape == (0, 12)


# Substitutes


def test_substitutes(fixtures):
    model = ElmoModel(device="cpu")
    model.load(fixtures / "plain", full=True)
    assert len(model.vocab) == 20
    sentences = ["The river bank was steep", "", "Quiet"]
    found = model.get_elmo_substitutes(sentences, topn=4)
    assert [len(words) for words in found] == [5, 0, 1]
    split = model.get_elmo_substitutes([s.split() for s in sentences], topn=4)
    assert [w["forward"]["candidates"] for w in split[0]] == [
        w["forward"]["candidates"] for w in found[0]
    ]
    elmo = Elmo.from_pretrained(fixtures / "plain", device="cpu")
    parts = elmo.encoder, elmo.softmax, elmo.vocabulary
    words = sentences[0].split()
    for position, entry in enumerate(found[0]):
        assert entry["word"] == words[position]
        best = scoring.substitutes(*parts, words, position, 100)
        for side, log in (("forward", lambda s: s.forward), ("backward", lambda s: s.backward)):
            scores = {s.word: log(s) for s in best}
            listed = entry[side]
            assert len(listed["candidates"]) == len(listed["logp"]) == 4
            assert listed["candidate_words"] == [model.vocab.word(i) for i in listed["candidates"]]
            assert listed["logp"] == sorted(listed["logp"], reverse=True)
            for word, score in zip(listed["candidate_words"], listed["logp"], strict=True):
                if word != "<UNK>":
                    assert score == pytest.approx(scores[word], abs=4e-6)
            # No better word was left out.
            others = [scores[w] for w in scores if w not in listed["candidate_words"]]
            assert max(others) <= min(listed["logp"]) + 1e-6


def test_delimiters_among_the_substitutes(fixtures):
    model = ElmoModel(device="cpu")
    model.load(fixtures / "plain", full=True)
    for nodelimiters in (True, False):
        (words,) = model.get_elmo_substitutes(["the"], topn=20, nodelimiters=nodelimiters)
        listed = set(words[0]["forward"]["candidate_words"])
        assert ({"<S>", "</S>"} <= listed) is not nodelimiters
        assert len(listed) == (18 if nodelimiters else 20)
    other = ElmoModel(device="cpu")
    other.load(fixtures / "one_layer")
    with pytest.raises(InputError, match="no softmax"):
        other.get_elmo_substitutes(["the"])
