"""ELMoForManyLangs: parity with the numpy reference, the dictionaries' habits, folders as found."""

import io
import json
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from torchelmo.errors import InputError
from torchelmo.formats import many_langs
from torchelmo.formats.model import Model
from torchelmo.nn.lstm import State
from torchelmo.text.characters import Characters

FOLDERS = ("many_langs", "many_langs_chars")


def token_vectors(model: Model, sentence: list[str]) -> torch.Tensor:
    """Vectors of `<bos>`, the words, `<eos>`, (T+2, P)."""
    tokens = ["<bos>", *sentence, "<eos>"]
    characters = numbers = None
    config = model.config
    if config.characters is not None:
        spell = Characters(config.characters, model.alphabet, config.boundaries)
        characters = torch.from_numpy(spell.encode(tokens).astype(np.int64))
    if model.words is not None:
        rows = {word: row for row, word in enumerate(model.words)}
        room = config.characters.max_characters - 2 if config.characters else None
        numbers = torch.tensor([rows.get(token[:room], rows["<UNK>"]) for token in tokens])
    return model.build().token(characters, numbers)


def layers(model: Model, sentence: list[str], state: State | None = None) -> np.ndarray:
    """(L+1, T, D), for one sentence."""
    with torch.no_grad():
        vectors = token_vectors(model, sentence)
        index = torch.arange(len(vectors)).unsqueeze(0)
        return model.build()(vectors, index, [len(sentence)], state=state).flat.numpy()


@pytest.fixture(params=FOLDERS)
def folder(request, fixtures: Path) -> Path:
    found = fixtures / request.param
    if not (found / "expected.hdf5").exists():
        pytest.skip("the fixtures have not been made")
    return found


class TestParity:
    def test_layers_equal_the_reference(self, folder: Path) -> None:
        model = many_langs.read(folder)
        sentences = json.loads((folder.parent / "sentences.json").read_text(encoding="utf-8"))
        with h5py.File(folder / "expected.hdf5") as expected:
            for number, sentence in enumerate(sentences):
                tokens = token_vectors(model, sentence).detach().numpy()
                np.testing.assert_allclose(tokens, expected[f"tokens/{number}"], atol=2e-6)
                found = layers(model, sentence)
                np.testing.assert_allclose(found, expected[f"reset/{number}"], atol=2e-6)

    def test_the_ideographic_space_is_known(self, folder: Path) -> None:
        model = many_langs.read(folder)
        with h5py.File(folder / "expected.hdf5") as expected:
            group = expected["ideographic_space"]
            for number, sentence in enumerate(json.loads(group.attrs["sentences"])):
                found = layers(model, sentence)
                np.testing.assert_allclose(found, group[str(number)], atol=2e-6)

    def test_config(self, folder: Path) -> None:
        model = many_langs.read(folder)
        path = next(folder.glob("*_architecture.json"))
        architecture = json.loads(path.read_text(encoding="utf-8"))
        token, encoder = architecture["token_embedder"], architecture["encoder"]
        config = model.config
        assert config.characters is not None
        assert config.characters.scheme == "codepoints"
        assert config.characters.filters == tuple(map(tuple, token["filters"]))
        assert config.characters.max_characters == token["max_characters_per_token"]
        assert config.characters.activation == token["activation"]
        assert config.characters.highways == token["n_highway"]
        assert (config.lstm.cell_clip or 0) == (encoder["cell_clip"] or 0)
        assert (config.lstm.projection_clip or 0) == (encoder["proj_clip"] or 0)
        assert (config.lstm.forget_bias, config.lstm.residual) == (0.0, True)
        assert config.boundaries == ("<bos>", "<eos>")
        assert (config.words is not None) == (token["word_dim"] > 0)


# A model of its own for each test: rows of the embeddings are numbered, so that a row's place in
# the file can be read off its values.
CHARACTERS = ["a", "b", "<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>", "ab", "c"]
WORDS = ["<oov>", "<bos>", "<eos>", "<pad>", "cab", "b"]


def dictionary(tokens: list[str]) -> str:
    return "".join(f"{token}\t{row}\n" for row, token in enumerate(tokens))


def numbered(rows: int, width: int) -> torch.Tensor:
    return torch.arange(float(rows)).unsqueeze(1).expand(rows, width).contiguous()


def weights(rows: int = len(CHARACTERS), words: int = len(WORDS)) -> tuple[dict, dict]:
    """A model of one filter, one highway, one layer: P=2, H=3."""
    token = {
        "char_emb_layer.embedding.weight": numbered(rows, 4),
        "word_emb_layer.embedding.weight": numbered(words, 5),
        "convolutions.0.weight": torch.randn(6, 4, 2),
        "convolutions.0.bias": torch.randn(6),
        "highways._layers.0.weight": torch.randn(12, 6),
        "highways._layers.0.bias": torch.randn(12),
        "projection.weight": torch.randn(2, 11),
        "projection.bias": torch.randn(2),
    }
    encoder = {}
    for direction in ("forward", "backward"):
        name = f"{direction}_layer_0"
        encoder[f"{name}.input_linearity.weight"] = torch.randn(12, 2)
        encoder[f"{name}.state_linearity.weight"] = torch.randn(12, 2)
        encoder[f"{name}.state_linearity.bias"] = torch.randn(12)
        encoder[f"{name}.state_projection.weight"] = torch.randn(2, 3)
    return token, encoder


def architecture(**changes: object) -> dict:
    token = {
        "name": "cnn",
        "activation": "tanh",
        "filters": [[2, 6]],
        "n_highway": 1,
        "word_dim": 5,
        "char_dim": 4,
        "max_characters_per_token": 20,
    }
    encoder = {
        "name": "elmo",
        "projection_dim": 2,
        "cell_clip": 5,
        "proj_clip": 0,
        "dim": 3,
        "n_layers": 1,
    }
    for part in (token, encoder):
        part.update({key: value for key, value in changes.items() if key in part})
    return {"token_embedder": token, "encoder": encoder, "dropout": 0.1}


@pytest.fixture
def own(tmp_path: Path) -> Path:
    token, encoder = weights()
    torch.save(token, tmp_path / "token_embedder.pkl")
    torch.save(encoder, tmp_path / "encoder.pkl")
    (tmp_path / "char.dic").write_text(dictionary(CHARACTERS), encoding="utf-8")
    (tmp_path / "word.dic").write_text(dictionary(WORDS), encoding="utf-8")
    config = {"config_path": "/srv/train/configs/arch.json", "seed": 1}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "arch.json").write_text(json.dumps(architecture()), encoding="utf-8")
    return tmp_path


class TestRows:
    def test_alphabet_and_marks_take_their_rows(self, own: Path) -> None:
        model = many_langs.read(own)
        assert list(model.alphabet) == ["a", "b", "c"]  # "ab" can never be looked up
        rows = model.tensors["token.characters.embedding"][:, 0].tolist()
        at = CHARACTERS.index
        marks = [at(m) for m in ("<bos>", "<eos>", "<eow>", "<bow>", "<pad>", "<oov>")]
        assert rows == [at("a"), at("b"), at("c"), *marks]

    def test_words_keep_their_order(self, own: Path) -> None:
        model = many_langs.read(own)
        assert model.words == ["<UNK>", "<bos>", "<eos>", "<pad>", "cab", "b"]
        assert model.tensors["token.words"][:, 0].tolist() == [0, 1, 2, 3, 4, 5]

    def test_dictionary_lines_in_any_order(self, own: Path) -> None:
        lines = dictionary(WORDS).splitlines(keepends=True)
        (own / "word.dic").write_text("".join(reversed(lines)), encoding="utf-8")
        assert many_langs.read(own).words == ["<UNK>", "<bos>", "<eos>", "<pad>", "cab", "b"]

    def test_a_word_that_looks_like_unknown_gives_way(self, own: Path) -> None:
        words = [*WORDS[:4], "<UNK>", "b"]
        (own / "word.dic").write_text(dictionary(words), encoding="utf-8")
        model = many_langs.read(own)
        assert model.words == ["<UNK>", "<bos>", "<eos>", "<pad>", "b"]
        assert model.tensors["token.words"][:, 0].tolist() == [0, 1, 2, 3, 5]
        model.build()

    @pytest.mark.parametrize("line", ["\u3000\t1", "1", "\t1", " \t1"])
    def test_white_space_is_the_ideographic_space(self, own: Path, line: str) -> None:
        text = dictionary(CHARACTERS).replace("b\t1\n", f"{line}\n", 1)
        (own / "char.dic").write_text(text, encoding="utf-8")
        assert list(many_langs.read(own).alphabet) == ["a", "\u3000", "c"]

    def test_highway_halves_and_bias(self, own: Path) -> None:
        token = torch.load(own / "token_embedder.pkl", weights_only=True)
        encoder = torch.load(own / "encoder.pkl", weights_only=True)
        tensors = many_langs.read(own).tensors
        stacked = token["highways._layers.0.weight"]
        highway = "token.characters.highways.0"
        assert torch.equal(tensors[f"{highway}.transform.weight"], stacked[:6])
        assert torch.equal(tensors[f"{highway}.gate.weight"], -stacked[6:])
        bias = encoder["forward_layer_0.state_linearity.bias"]
        assert torch.equal(tensors["forward_layers.0.bias"], bias)


class TestArchitecture:
    def test_found_by_its_name(self, own: Path) -> None:
        other = json.dumps(architecture(activation="relu"))
        (own / "aaa.json").write_text(other, encoding="utf-8")
        config = many_langs.read(own).config
        assert config.characters is not None
        assert config.characters.activation == "tanh"
        assert config.characters.max_characters == 20
        assert (config.lstm.cell_clip, config.lstm.projection_clip) == (5.0, None)

    @pytest.mark.parametrize("path", [r"C:\models\arch.json", "arch.json", "gone.json", None])
    def test_whatever_the_path_says(self, own: Path, path: str | None) -> None:
        (own / "config.json").write_text(json.dumps({"config_path": path}), encoding="utf-8")
        (own / "aaa.json").write_text("not JSON", encoding="utf-8")
        config = many_langs.read(own).config
        assert config.characters is not None
        assert config.characters.activation == "tanh"

    def test_without_one_it_is_the_published(self, own: Path) -> None:
        (own / "arch.json").unlink()
        (own / "config.json").unlink()
        config = many_langs.read(own).config
        assert config.characters is not None
        assert (config.characters.activation, config.characters.max_characters) == ("relu", 50)
        assert (config.lstm.cell_clip, config.lstm.projection_clip) == (3.0, 3.0)
        assert (config.lstm.cells, config.lstm.projection, config.lstm.layers) == (3, 2, 1)
        assert config.characters.filters == ((2, 6),)

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({"name": "lstm"}, "a token_embedder of the kind 'lstm'"),
            ({"activation": "swish"}, "activation 'swish'"),
            ({"max_characters_per_token": "50"}, "max_characters_per_token '50'"),
            ({"cell_clip": "3"}, "cell_clip '3'"),
        ],
    )
    def test_what_is_not_supported(self, own: Path, change: dict, sentence: str) -> None:
        (own / "arch.json").write_text(json.dumps(architecture(**change)), encoding="utf-8")
        with pytest.raises(InputError, match=sentence):
            many_langs.read(own)

    def test_lstm_encoder_is_seen_without_config(self, own: Path) -> None:
        (own / "arch.json").unlink()
        torch.save({"encoder.weight_ih_l0": torch.zeros(4, 2)}, own / "encoder.pkl")
        with pytest.raises(InputError, match="encoder of the kind 'lstm'"):
            many_langs.read(own)


class TestBothInputsAreOptional:
    def test_characters_alone(self, own: Path) -> None:
        token, _ = weights()
        del token["word_emb_layer.embedding.weight"]
        token["projection.weight"] = torch.randn(2, 6)
        torch.save(token, own / "token_embedder.pkl")
        model = many_langs.read(own)
        assert model.words is None
        assert model.config.words is None
        assert layers(model, ["cab", "x"]).shape == (2, 2, 4)

    def test_words_alone(self, own: Path) -> None:
        token, _ = weights()
        kept = {k: v for k, v in token.items() if k.startswith(("word", "projection"))}
        kept["projection.weight"] = torch.randn(2, 5)
        torch.save(kept, own / "token_embedder.pkl")
        model = many_langs.read(own)
        assert model.config.characters is None
        assert list(model.alphabet) == []
        assert layers(model, ["cab", "x"]).shape == (2, 2, 4)


class Touch:
    """Makes a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


class TestBadFolders:
    def test_missing_files(self, own: Path) -> None:
        (own / "encoder.pkl").unlink()
        with pytest.raises(InputError, match="not a folder of ELMoForManyLangs"):
            many_langs.read(own)

    @pytest.mark.parametrize("name", ["char.dic", "word.dic"])
    def test_missing_dictionary(self, own: Path, name: str) -> None:
        (own / name).unlink()
        with pytest.raises(InputError, match=f"no file .*{name}"):
            many_langs.read(own)

    @pytest.mark.parametrize("row", ["99", "-1", "x", "1" * 5000])
    def test_rows_outside_the_table(self, own: Path, row: str) -> None:
        (own / "word.dic").write_text(dictionary(WORDS) + f"z\t{row}\n", encoding="utf-8")
        with pytest.raises(InputError, match="in line 7"):
            many_langs.read(own)

    @pytest.mark.parametrize("mark", ["<bow>", "<oov>", "<bos>"])
    def test_missing_mark(self, own: Path, mark: str) -> None:
        text = dictionary(CHARACTERS).replace(mark, "zz")
        (own / "char.dic").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=f"lacks the mark {mark}"):
            many_langs.read(own)

    def test_missing_boundary_word(self, own: Path) -> None:
        text = dictionary(WORDS).replace("<eos>", "zz")
        (own / "word.dic").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match="lacks the word <eos>"):
            many_langs.read(own)

    def test_not_utf8(self, own: Path) -> None:
        (own / "char.dic").write_bytes(b"\xff\t0\n")
        with pytest.raises(InputError, match="not UTF-8"):
            many_langs.read(own)

    def test_objects_are_never_unpickled(self, own: Path) -> None:
        target = own / "touched"
        buffer = io.BytesIO()
        torch.save({"x": Touch(target)}, buffer)
        (own / "encoder.pkl").write_bytes(buffer.getvalue())
        with pytest.raises(InputError, match="only tensors are ever loaded"):
            many_langs.read(own)
        (own / "encoder.pkl").write_bytes(pickle.dumps(Touch(target)))
        with pytest.raises(InputError, match=r"not a file of torch\.save"):
            many_langs.read(own)
        assert not target.exists()

    def test_shapes_that_do_not_belong_together(self, own: Path) -> None:
        token, _ = weights()
        token["projection.weight"] = torch.randn(2, 7)
        torch.save(token, own / "token_embedder.pkl")
        with pytest.raises(InputError, match=r"token\.projection\.weight"):
            many_langs.read(own)
