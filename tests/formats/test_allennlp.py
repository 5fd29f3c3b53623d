"""AllenNLP's state dicts and archives: equal numbers, sizes from shapes, options where found."""

import io
import json
import tarfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from torchelmo.config import CharacterConfig, ElmoConfig, LstmConfig
from torchelmo.errors import InputError
from torchelmo.formats import allennlp
from torchelmo.nn.bilm import BiLM

PREFIX = "text_field_embedder.token_embedder_elmo._elmo."
CONFIG = ElmoConfig(
    characters=CharacterConfig(dim=3, filters=((1, 4), (2, 5)), highways=2),
    lstm=LstmConfig(cells=6, projection=4, layers=2, forget_bias=0.0),
)
OPTIONS = {
    "lstm": {
        "cell_clip": 2,
        "proj_clip": 1.5,
        "use_skip_connections": True,
        "n_layers": 2,
        "projection_dim": 4,
        "dim": 6,
    },
    "char_cnn": {
        "embedding": {"dim": 3},
        "filters": [[1, 4], [2, 5]],
        "n_highway": 2,
        "n_characters": 262,
        "max_characters_per_token": 30,
        "activation": "tanh",
    },
}


def to_allennlp(bilm: BiLM, prefix: str = "") -> dict[str, torch.Tensor]:
    """Our weights under AllenNLP's names: the mapping written a second time, by hand."""
    ours = bilm.state_dict()
    token, out = f"{prefix}_token_embedder", {}
    embedding = ours["token.characters.embedding"]
    out[f"{token}._char_embedding_weights"] = torch.cat([embedding[:1] * 0, embedding])
    for i in range(2):
        for kind in ("weight", "bias"):
            conv = ours[f"token.characters.convolutions.{i}.{kind}"]
            out[f"{token}.char_conv_{i}.{kind}"] = conv
            highway = f"token.characters.highways.{i}"
            halves = [ours[f"{highway}.transform.{kind}"], -ours[f"{highway}.gate.{kind}"]]
            out[f"{token}._highways._layers.{i}.{kind}"] = torch.cat(halves)
    for kind in ("weight", "bias"):
        out[f"{token}._projection.{kind}"] = ours[f"token.projection.{kind}"]
    for direction in ("forward", "backward"):
        for level in range(2):
            name = f"{prefix}_elmo_lstm.{direction}_layer_{level}"
            layer = f"{direction}_layers.{level}"
            out[f"{name}.input_linearity.weight"] = ours[f"{layer}.input_weight"]
            out[f"{name}.state_linearity.weight"] = ours[f"{layer}.recurrent_weight"]
            out[f"{name}.state_linearity.bias"] = ours[f"{layer}.bias"]
            out[f"{name}.state_projection.weight"] = ours[f"{layer}.projection_weight"]
    return out


def mix(prefix: str, number: int, *values: float, gamma: float) -> dict[str, torch.Tensor]:
    name = f"{prefix}scalar_mix_{number}"
    out = {f"{name}.scalar_parameters.{j}": torch.tensor([v]) for j, v in enumerate(values)}
    return out | {f"{name}.gamma": torch.tensor([gamma])}


def archive(path: Path, members: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def saved(tensors: dict[str, torch.Tensor]) -> bytes:
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    return buffer.getvalue()


@pytest.fixture
def bilm() -> BiLM:
    torch.manual_seed(1)
    made = BiLM(CONFIG)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return made


@pytest.fixture
def tagger(bilm: BiLM) -> dict[str, torch.Tensor]:
    """A task's model around an ELMo with two mixes."""
    tensors = to_allennlp(bilm, PREFIX + "_elmo_lstm.")
    tensors |= mix(PREFIX, 0, 0.1, 0.2, 0.3, gamma=1.5)
    tensors |= mix(PREFIX, 1, 0.4, 0.5, 0.6, gamma=0.5)
    return tensors | {"encoder._module.weight_ih_l0": torch.zeros(4, 3)}


def assert_same(model, bilm: BiLM) -> None:
    state = bilm.state_dict()
    assert model.tensors.keys() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(model.tensors[name], tensor), name
    model.build()


class TestReading:
    @pytest.mark.parametrize("name", ["best.th", "weights.th", "model_state_epoch_3.th"])
    def test_state_dict(self, tmp_path: Path, tagger, bilm: BiLM, name: str) -> None:
        torch.save(tagger, tmp_path / name)
        for path in (tmp_path / name, tmp_path):
            model = allennlp.read(path)
            assert model.config == CONFIG
            assert_same(model, bilm)

    def test_old_layout_of_torch(self, tmp_path: Path, tagger, bilm: BiLM) -> None:
        path = tmp_path / "best.th"
        torch.save(tagger, path, _use_new_zipfile_serialization=False)
        assert_same(allennlp.read(path), bilm)

    @pytest.mark.parametrize("mode", ["w:gz", "w"])
    @pytest.mark.parametrize("folder", ["", "./", "run/"])
    def test_archive(self, tmp_path: Path, tagger, bilm: BiLM, mode: str, folder: str) -> None:
        members = {
            f"{folder}config.json": b"{}",
            f"{folder}weights.th": saved(tagger),
            f"{folder}vocabulary/labels.txt": b"B\n",
        }
        path = archive(tmp_path / "model.tar.gz", members, mode)
        for given in (path, tmp_path):
            assert_same(allennlp.read(given), bilm)

    def test_without_prefix(self, tmp_path: Path, bilm: BiLM) -> None:
        torch.save(to_allennlp(bilm), tmp_path / "bilm.th")
        model = allennlp.read(tmp_path / "bilm.th")
        assert_same(model, bilm)
        assert model.mixes == {}

    def test_an_elmo_module_alone(self, tagger, bilm: BiLM) -> None:
        tensors = {name.removeprefix(PREFIX): t for name, t in tagger.items()}
        model = allennlp.from_state_dict(tensors)
        assert_same(model, bilm)
        assert sorted(model.mixes) == ["0.gamma", "0.weights", "1.gamma", "1.weights"]

    def test_mixes(self, tagger) -> None:
        mixes = allennlp.from_state_dict(tagger).mixes
        assert mixes["0.weights"].tolist() == pytest.approx([0.1, 0.2, 0.3])
        assert mixes["1.weights"].tolist() == pytest.approx([0.4, 0.5, 0.6])
        assert (mixes["0.gamma"].tolist(), mixes["1.gamma"].tolist()) == ([1.5], [0.5])

    def test_half_precision_becomes_single(self, tagger) -> None:
        half = {name: t.half() for name, t in tagger.items()}
        model = allennlp.from_state_dict(half)
        assert {t.dtype for t in model.tensors.values()} == {torch.float32}

    def test_newest_epoch_of_a_folder(self, tmp_path: Path) -> None:
        for epoch in (9, 10, 2):
            (tmp_path / f"model_state_epoch_{epoch}.th").write_bytes(b"")
        assert allennlp.find(tmp_path) == tmp_path / "model_state_epoch_10.th"


class TestOptions:
    def check(self, model) -> None:
        assert model.config.characters.activation == "tanh"
        assert model.config.characters.max_characters == 30
        assert model.config.lstm.cell_clip == 2.0
        assert model.config.lstm.projection_clip == 1.5
        assert model.config.lstm.forget_bias == 0.0

    def test_inside_the_config(self, tmp_path: Path, tagger) -> None:
        config = {"model": {"embedder": [{"type": "elmo", "options": OPTIONS}]}}
        members = {"config.json": json.dumps(config).encode(), "weights.th": saved(tagger)}
        self.check(allennlp.read(archive(tmp_path / "model.tar.gz", members)))

    def test_file_in_the_archive(self, tmp_path: Path, tagger) -> None:
        other = json.loads(json.dumps(OPTIONS))
        other["lstm"] |= {"dim": 7, "cell_clip": 9}  # of another model
        key = "fta/model.text_field_embedder.token_embedders.elmo.options_file"
        members = {
            "weights.th": saved(tagger),
            key: json.dumps(OPTIONS).encode(),
            "fta/other.options_file": json.dumps(other).encode(),
        }
        self.check(allennlp.read(archive(tmp_path / "model.tar.gz", members)))

    @pytest.mark.parametrize("name", ["options.json", "elmo_options.json"])
    def test_beside_a_state_dict(self, tmp_path: Path, tagger, name: str) -> None:
        torch.save(tagger, tmp_path / "best.th")
        (tmp_path / name).write_text(json.dumps(OPTIONS), encoding="utf-8")
        self.check(allennlp.read(tmp_path / "best.th"))

    def test_broken_texts_are_passed_over(self, tmp_path: Path, tagger) -> None:
        torch.save(tagger, tmp_path / "best.th")
        (tmp_path / "config.json").write_bytes(b"[" * 100_000)
        assert allennlp.read(tmp_path).config == CONFIG


class TestSeveral:
    def test_two_different_are_refused(self, bilm: BiLM) -> None:
        tensors = to_allennlp(bilm, "a._elmo_lstm.")
        other = {name: t + 1 for name, t in to_allennlp(bilm, "b._elmo_lstm.").items()}
        with pytest.raises(InputError, match=r"2 different ELMos, at a\._elmo_lstm\., b\._elmo"):
            allennlp.from_state_dict(tensors | other)

    def test_one_in_two_places(self, tmp_path: Path, bilm: BiLM) -> None:
        tensors = to_allennlp(bilm, "a._elmo_lstm.") | to_allennlp(bilm, "b._elmo_lstm.")
        tensors |= mix("a.", 0, 0.1, 0.2, 0.3, gamma=1.5) | mix("b.", 0, 0, 0, 0, gamma=2.5)
        torch.save(tensors, tmp_path / "best.th")
        model = allennlp.read(tmp_path)
        assert_same(model, bilm)
        assert [float(model.mixes[f"{i}.gamma"]) for i in (0, 1)] == [1.5, 2.5]

    def test_one_mix_under_two_names(self, bilm: BiLM) -> None:
        tensors = to_allennlp(bilm, "a._elmo_lstm.") | to_allennlp(bilm, "b._elmo_lstm.")
        own = mix("a.", 0, 0.1, 0.2, 0.3, gamma=1.5)
        tensors |= own | {name.replace("a.", "b.", 1): t for name, t in own.items()}
        assert len(allennlp.from_state_dict(tensors).mixes) == 2


class TestSentences:
    def test_no_elmo(self, tmp_path: Path) -> None:
        torch.save({"encoder.weight": torch.zeros(2)}, tmp_path / "best.th")
        with pytest.raises(InputError, match="holds 1 tensors but no ELMo"):
            allennlp.read(tmp_path / "best.th")

    def test_folder_without_weights(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="holds no AllenNLP weights"):
            allennlp.read(tmp_path)
        with pytest.raises(InputError, match="there is no file"):
            allennlp.read(tmp_path / "best.th")

    def test_archive_without_weights(self, tmp_path: Path) -> None:
        path = archive(tmp_path / "model.tar.gz", {"config.json": b"{}"})
        with pytest.raises(InputError, match=r"holds no file weights\.th"):
            allennlp.read(path)

    @pytest.mark.parametrize(
        ("name", "value", "sentence"),
        [
            ("_token_embedder._projection.bias", None, "lacks the tensor"),
            ("_elmo_lstm.forward_layer_0.state_projection.weight", None, "lacks the tensor"),
            ("_elmo_lstm.backward_layer_1.input_linearity.weight", None, "lacks the tensor"),
            ("_token_embedder.char_conv_0.weight", None, "filters"),
            ("_token_embedder.char_conv_0.weight", torch.zeros(4, 3), "expected 3 dimensions"),
            ("_token_embedder._projection.weight", torch.zeros(4, 8), r"of shape \(4, 8\)"),
            ("_token_embedder._projection.bias", torch.zeros(4).int(), "expected weights"),
            ("_token_embedder._char_embedding_weights", torch.zeros(200, 3), "expected 262"),
            ("_token_embedder._char_embedding_weights", torch.zeros(()), "expected 2 dimensions"),
        ],
    )
    def test_wrong_tensors(self, bilm: BiLM, name: str, value, sentence: str) -> None:
        tensors = to_allennlp(bilm)
        tensors.pop(name)
        if value is not None:
            tensors[name] = value
        with pytest.raises(InputError, match=sentence):
            allennlp.from_state_dict(tensors)

    def test_wrong_mix(self, bilm: BiLM) -> None:
        tensors = to_allennlp(bilm) | mix("", 0, 0.1, 0.2, gamma=1.0)
        with pytest.raises(InputError, match="a mix scalar_mix_0 that is not of 3 numbers"):
            allennlp.from_state_dict(tensors)

    def test_braces_in_names(self, bilm: BiLM) -> None:
        assert_same(allennlp.from_state_dict(to_allennlp(bilm, "{x}{0.__class__}.")), bilm)


class TestOriginal:
    """AllenNLP's own tagger, whose ELMo is that of its hdf5 file."""

    @pytest.mark.parametrize("name", ["best.th", "model.tar.gz"])
    def test_equals_the_hdf5_weights(self, shared: Path, name: str) -> None:
        folder = shared / "fixtures/allennlp/test_fixtures"
        tagger = folder / "simple_tagger_with_elmo/serialization" / name
        if not tagger.exists():
            pytest.skip("AllenNLP's fixtures are not here")
        model = allennlp.read(tagger)
        found = {name: tensor.numpy() for name, tensor in model.tensors.items()}
        with h5py.File(folder / "elmo/lm_weights.hdf5") as file:
            expected = hdf5_as_ours(file, layers=2, highways=2, filters=5, cells=64, width=16)
        assert found.keys() == expected.keys()
        for key, array in expected.items():
            np.testing.assert_array_equal(found[key], array, err_msg=key)
        assert sorted(model.mixes) == ["0.gamma", "0.weights"]
        assert model.mixes["0.weights"].shape == (3,)
        assert model.config.lstm.forget_bias == 0.0


def hdf5_as_ours(file, *, layers: int, highways: int, filters: int, cells: int, width: int) -> dict:
    """bilm-tf's datasets as our tensors, with the forget bias in the bias."""
    ours = {"token.characters.embedding": file["char_embed"][...]}
    for i in range(filters):
        name = f"token.characters.convolutions.{i}"
        ours[f"{name}.weight"] = file[f"CNN/W_cnn_{i}"][0].transpose(2, 1, 0)
        ours[f"{name}.bias"] = file[f"CNN/b_cnn_{i}"][...]
    for k in range(highways):
        for part, theirs in (("transform", "transform"), ("gate", "carry")):
            name = f"token.characters.highways.{k}.{part}"
            ours[f"{name}.weight"] = file[f"CNN_high_{k}/W_{theirs}"][...].T
            ours[f"{name}.bias"] = file[f"CNN_high_{k}/b_{theirs}"][...]
    ours["token.projection.weight"] = file["CNN_proj/W_proj"][...].T
    ours["token.projection.bias"] = file["CNN_proj/b_proj"][...]
    for side, direction in enumerate(("forward", "backward")):
        for level in range(layers):
            group = file[f"RNN_{side}/RNN/MultiRNNCell/Cell{level}/LSTMCell"]
            name = f"{direction}_layers.{level}"

            def blocks(array: np.ndarray) -> np.ndarray:  # i, g, f, o to i, f, g, o
                return np.concatenate([np.split(array, 4)[b] for b in (0, 2, 1, 3)])

            matrix = blocks(group["W_0"][...].T)
            bias = blocks(group["B"][...])
            bias[cells : 2 * cells] += 1
            ours[f"{name}.input_weight"] = matrix[:, :width]
            ours[f"{name}.recurrent_weight"] = matrix[:, width:]
            ours[f"{name}.bias"] = bias
            ours[f"{name}.projection_weight"] = group["W_P_0"][...].T
    return ours
