"""The stored fixtures are what make_fixtures writes, and notice each part of the model."""

import json
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from . import make_fixtures, many_langs, numpy_elmo
from .numpy_elmo import CharCnn, Lstm, Model, State

NAMES = sorted(make_fixtures.SEEDS)


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rebuilt")
    make_fixtures.build(folder)
    return folder


def read(folder: Path, name: str) -> Model:
    reader = many_langs if name in make_fixtures.MANY_LANGS else numpy_elmo
    return reader.read_folder(folder / name)


def attributes(path: Path) -> dict[str, str]:
    """Every attribute of an hdf5 file as text, by group and name."""
    found = {}
    with h5py.File(path, "r") as file:
        groups = [file, *(item for item in file.values() if isinstance(item, h5py.Group))]
        for group in groups:
            found |= {f"{group.name}@{key}": str(value) for key, value in group.attrs.items()}
    return found


def test_the_same_files_are_there(fixtures: Path, rebuilt: Path) -> None:
    def files(folder: Path) -> set[str]:
        return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}

    assert files(fixtures) - {"README.md"} == files(rebuilt)
    assert sum(path.stat().st_size for path in fixtures.rglob("*")) < 1_500_000


@pytest.mark.parametrize("name", NAMES)
def test_stored_numbers_are_rebuilt(fixtures: Path, rebuilt: Path, name: str) -> None:
    for path in sorted((rebuilt / name).iterdir()):
        stored = fixtures / name / path.name
        if path.suffix == ".hdf5":
            old, new = numpy_elmo.read_weights(stored), numpy_elmo.read_weights(path)
            assert old.keys() == new.keys()
            for key in new:
                np.testing.assert_allclose(old[key], new[key], rtol=1e-9, atol=1e-10)
            assert attributes(stored) == attributes(path)
        elif path.suffix == ".pkl":
            old, new = many_langs.read_state_dict(stored), many_langs.read_state_dict(path)
            assert list(old) == list(new)
            for key in new:
                np.testing.assert_array_equal(old[key], new[key])
        elif path.suffix == ".json":
            assert json.loads(stored.read_bytes()) == json.loads(path.read_bytes())
        else:
            old_text = stored.read_text(encoding="utf-8").splitlines()
            assert old_text == path.read_text(encoding="utf-8").splitlines()


def test_sentences(fixtures: Path) -> None:
    sentences = json.loads((fixtures / "sentences.json").read_text(encoding="utf-8"))
    assert sentences == make_fixtures.SENTENCES
    sizes = {len(token.encode("utf-8")) for sentence in sentences for token in sentence}
    assert {48, 49, 60} <= sizes
    assert {0, 1} <= {len(sentence) for sentence in sentences}
    assert len(sentences) % make_fixtures.ROWS == 1


def test_file_variants(fixtures: Path) -> None:
    names = {
        name: set(numpy_elmo.read_weights(fixtures / name / "weights.hdf5"))
        for name in make_fixtures.OPTIONS
    }
    assert "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_P_0" in names["plain"]
    assert "RNN_1/RNN/LSTMCell/W_0" in names["one_layer"]
    assert not any("MultiRNNCell" in name for name in names["one_layer"])
    assert not any("W_P_0" in name for name in names["no_projection"])
    assert not any("CNN_high" in name for name in names["no_highway"])
    assert not any("CNN_proj" in name for name in names["same_width"])
    assert "RNN_1/RNN/MultiRNNCell/Cell2/LSTMCell/B" in names["three_layers"]
    assert "embedding" in names["words"]
    assert "char_embed" not in names["words"]
    many = torch.load(fixtures / "many_langs" / "token_embedder.pkl", weights_only=True)
    chars = torch.load(fixtures / "many_langs_chars" / "token_embedder.pkl", weights_only=True)
    assert set(many) > set(chars)
    assert set(many) - set(chars) == {
        "word_emb_layer.embedding.weight",
        "highways._layers.1.weight",
        "highways._layers.1.bias",
    }


def difference(model: Model, changed: Model) -> float:
    """The largest change of any value of the carried runs."""
    largest = 0.0
    batches = zip(
        numpy_elmo.run_batches(model, make_fixtures.SENTENCES, make_fixtures.ROWS, State()),
        numpy_elmo.run_batches(changed, make_fixtures.SENTENCES, make_fixtures.ROWS, State()),
        strict=True,
    )
    for one, other in batches:
        for a, b in zip(one.with_boundaries, other.with_boundaries, strict=True):
            largest = max(largest, float(np.abs(a - b).max()))
    return largest


def with_lstms(model: Model, **changes: object) -> Model:
    """The model with fields of all its LSTMs replaced."""

    def changed(lstm: Lstm) -> Lstm:
        return replace(lstm, **changes)

    lstms = {d: [changed(lstm) for lstm in stack] for d, stack in model.encoder.lstms.items()}
    return replace(model, encoder=replace(model.encoder, lstms=lstms))


def with_cnn(model: Model, **changes: object) -> Model:
    """The model with fields of its character CNN replaced."""
    assert isinstance(model.token_layer, CharCnn)
    return replace(model, token_layer=replace(model.token_layer, **changes))


@pytest.mark.parametrize("name", ["plain", "words", "many_langs", "no_projection", "noskip_tanh"])
def test_cell_clip_acts(fixtures: Path, name: str) -> None:
    model = read(fixtures, name)
    assert difference(model, with_lstms(model, cell_clip=None)) > 0.01


@pytest.mark.parametrize("name", ["plain", "words", "many_langs", "one_layer"])
def test_projection_clip_acts(fixtures: Path, name: str) -> None:
    model = read(fixtures, name)
    assert difference(model, with_lstms(model, proj_clip=None)) > 0.01


def test_projection_clip_is_idle_without_projection(fixtures: Path) -> None:
    model = read(fixtures, "no_projection")
    assert difference(model, with_lstms(model, proj_clip=None)) == 0.0
    tops = [values[1] for values in numpy_elmo.run(model, make_fixtures.SENTENCES).layers]
    limit = model.encoder.lstms["forward"][0].proj_clip
    assert limit is not None
    assert max(np.abs(top).max() for top in tops if top.size) > limit


@pytest.mark.parametrize("name", [name for name in NAMES if name != "one_layer"])
def test_skip_connections_act(fixtures: Path, name: str) -> None:
    model = read(fixtures, name)
    encoder = replace(model.encoder, skip_connections=not model.encoder.skip_connections)
    assert difference(model, replace(model, encoder=encoder)) > 0.1


@pytest.mark.parametrize("name", ["plain", "noskip_tanh", "no_highway", "three_layers"])
def test_characters_act(fixtures: Path, name: str) -> None:
    """Activation, highways and the length of a row all change the numbers."""
    model = read(fixtures, name)
    assert isinstance(model.token_layer, CharCnn)
    cnn = model.token_layer
    other = {"relu": "tanh", "tanh": "relu"}[cnn.activation]
    assert difference(model, with_cnn(model, activation=other)) > 0.05
    if cnn.highways:
        assert difference(model, with_cnn(model, highways=cnn.highways[1:])) > 0.05
    assert difference(model, with_cnn(model, max_characters=cnn.max_characters - 1)) > 0.01


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_not_degenerate(fixtures: Path, name: str) -> None:
    """Tokens differ from each other, carried and reset runs differ, nothing explodes."""
    with h5py.File(fixtures / name / "expected.hdf5", "r") as file:
        numbers = [str(i) for i, s in enumerate(make_fixtures.SENTENCES) if s]
        reset = np.concatenate([file["reset"][i][...] for i in numbers], axis=1)
        carry = np.concatenate([file["carry"][i][...] for i in numbers], axis=1)
    assert np.isfinite(reset).all()
    assert np.abs(reset).max() < 20
    # (L+1, all tokens, D): the spread over tokens, averaged over a layer's values.
    assert (reset.std(axis=1).mean(axis=1) > 0.08).all()
    np.testing.assert_allclose(reset[0], carry[0], rtol=1e-12)
    assert (np.abs(reset - carry)[1:].max(axis=(1, 2)) > 0.1).all()


def test_the_two_layer_norms_differ(fixtures: Path) -> None:
    with h5py.File(fixtures / "plain" / "expected.hdf5", "r") as file:
        group = file["mixes/reset"]
        one, other = group["layer_norm_bilm_tf/0"][...], group["layer_norm_allennlp/0"][...]
        assert np.abs(one - other).max() > 0.01
        assert file["mixes"].attrs["regulariser"] == pytest.approx(0.01 * 0.98)


def test_log_probabilities_are_of_whole_distributions(fixtures: Path) -> None:
    """All words of the vocabulary together have probability 1 at one place."""
    folder = fixtures / "plain"
    model = read(fixtures, "plain")
    output = numpy_elmo.read_softmax(folder / "softmax.hdf5", folder / "vocab.txt")
    top = numpy_elmo.run(model, [["the", "bank"]]).with_boundaries[0][-1, :1, :6]
    words = output.vocabulary
    each = output.log_probabilities(np.repeat(top, len(words), axis=0), words)
    assert np.exp(each).sum() == pytest.approx(1.0)
    with h5py.File(folder / "expected.hdf5", "r") as file:
        assert file["log_probabilities/forward/0"].shape == (9,)
        assert file["log_probabilities/backward/4"].shape == (1,)
        assert file["log_probabilities/forward/0"][...].max() < 0
