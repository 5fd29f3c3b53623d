"""ELMoForManyLangs folders read into the numpy reference.

Its token layer joins a word vector and a character CNN over Unicode characters; its encoder is the
same biLM with skip connections. Two habits of the original are kept: the markers of a word's begin
and end are swapped, and the cut of long words applies before the word is looked up.
"""

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import torch

from .numpy_elmo import (
    DIRECTIONS,
    Array,
    Encoder,
    Filter,
    Gate,
    Highway,
    Ids,
    Lstm,
    Model,
    Sentence,
    relu,
)

BOUNDARIES = ("<bos>", "<eos>")


def read_dictionary(path: Path) -> dict[str, int]:
    """`token TAB id` a line; a line with only an id belongs to U+3000.

    The line's ends are stripped first, so a U+3000 that is written out also leaves only the id.
    """
    ids = {}
    for line in path.read_text(encoding="utf-8").strip("\n").split("\n"):
        fields = line.strip().split("\t")
        token, number = fields if len(fields) == 2 else ("\u3000", fields[0])
        ids[token] = int(number)
    return ids


def read_architecture(folder: Path) -> dict:
    """The json that config.json points to: at that path, or under its last name in the folder."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    path = folder / config["config_path"]
    if not path.exists():
        path = folder / PureWindowsPath(PurePosixPath(config["config_path"]).name).name
    return json.loads(path.read_text(encoding="utf-8"))


def read_state_dict(path: Path) -> dict[str, Array]:
    """A torch state dict as float64 arrays."""
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    return {name: tensor.numpy().astype(np.float64) for name, tensor in tensors.items()}


def character_row(token: str, ids: dict[str, int], max_characters: int) -> Ids:
    """The character ids of a token, (M,): the first marker is `<eow>`, the last `<bow>`."""
    if token in BOUNDARIES:
        inside = [ids[token]]
    else:
        inside = [ids.get(character, ids["<oov>"]) for character in token[: max_characters - 2]]
    row = [ids["<eow>"], *inside, ids["<bow>"]]
    return np.array(row + [ids["<pad>"]] * (max_characters - len(row)), dtype=np.int64)


@dataclass(frozen=True)
class ManyLangsTokens:
    """projection([word vector ; highways(CNN(characters))]); either part may be missing."""

    word_ids: dict[str, int] | None
    word_embedding: Array | None  # (V, word width)
    character_ids: dict[str, int] | None
    character_embedding: Array | None  # (characters, d)
    filters: list[Filter]
    activation: str
    highways: list[Highway]
    projection: tuple[Array, Array]  # (word width + F, P), (P,)
    max_characters: int

    def vectors(self, tokens: Sentence) -> Array:
        """Tokens to (T, P)."""
        parts = []
        if self.word_ids is not None and self.word_embedding is not None:
            unknown = self.word_ids["<oov>"]
            cut = [token[: self.max_characters - 2] for token in tokens]
            parts.append(self.word_embedding[[self.word_ids.get(t, unknown) for t in cut]])
        if self.character_ids is not None and self.character_embedding is not None:
            x = np.stack([self.filtered(token) for token in tokens])  # (T, F)
            for highway in self.highways:
                x = highway(x)
            parts.append(x)
        weight, bias = self.projection
        return np.concatenate(parts, axis=1) @ weight + bias

    def filtered(self, token: str) -> Array:
        """(F,): maxima over all windows, then the activation."""
        assert self.character_ids is not None
        assert self.character_embedding is not None
        row = character_row(token, self.character_ids, self.max_characters)
        characters = self.character_embedding[row]  # (M, d)
        x = np.concatenate([f.largest_response(characters) for f in self.filters])
        return {"relu": relu, "tanh": np.tanh}[self.activation](x)


def highway_from(weight: Array, bias: Array) -> Highway:
    """[transform; gate] of 2F rows, whose gate keeps x: 1 - sigmoid(a) = sigmoid(-a)."""
    n = len(bias) // 2
    return Highway(
        w_transform=weight[:n].T, b_transform=bias[:n], w_carry=-weight[n:].T, b_carry=-bias[n:]
    )


def lstm_from(weights: dict[str, Array], encoder: dict, direction: str, layer: int) -> Lstm:
    """One LSTM: row blocks input, forget, candidate, output; the forget bias is complete."""
    prefix = f"{direction}_layer_{layer}"
    from_input = weights[f"{prefix}.input_linearity.weight"]  # (4H, P)
    from_state = weights[f"{prefix}.state_linearity.weight"]  # (4H, P)
    bias = weights[f"{prefix}.state_linearity.bias"]  # (4H,)
    cells = encoder["dim"]

    def gate(block: int) -> Gate:
        rows = slice(block * cells, (block + 1) * cells)
        return Gate(from_input[rows].T, from_state[rows].T, bias[rows])

    return Lstm(
        input=gate(0),
        forget=gate(1),
        candidate=gate(2),
        output=gate(3),
        projection=weights[f"{prefix}.state_projection.weight"].T,
        # Its encoder takes 0 for no clip.
        cell_clip=encoder["cell_clip"] or None,
        proj_clip=encoder["proj_clip"] or None,
    )


def read_folder(folder: Path) -> Model:
    """The model of an ELMoForManyLangs folder."""
    architecture = read_architecture(folder)
    token = architecture["token_embedder"]
    weights = read_state_dict(folder / "token_embedder.pkl")
    words = token["word_dim"] > 0
    characters = token["char_dim"] > 0
    token_layer = ManyLangsTokens(
        word_ids=read_dictionary(folder / "word.dic") if words else None,
        word_embedding=weights["word_emb_layer.embedding.weight"] if words else None,
        character_ids=read_dictionary(folder / "char.dic") if characters else None,
        character_embedding=weights["char_emb_layer.embedding.weight"] if characters else None,
        filters=[
            Filter(
                weights[f"convolutions.{i}.weight"].transpose(2, 1, 0),  # (n, d, w) -> (w, d, n)
                weights[f"convolutions.{i}.bias"],
            )
            for i in range(len(token["filters"]) if characters else 0)
        ],
        activation=token["activation"],
        highways=[
            highway_from(
                weights[f"highways._layers.{k}.weight"], weights[f"highways._layers.{k}.bias"]
            )
            for k in range(token["n_highway"] if characters else 0)
        ],
        projection=(weights["projection.weight"].T, weights["projection.bias"]),
        max_characters=token["max_characters_per_token"],
    )
    encoder = architecture["encoder"]
    encoder_weights = read_state_dict(folder / "encoder.pkl")
    lstms = {
        direction: [
            lstm_from(encoder_weights, encoder, direction, layer)
            for layer in range(encoder["n_layers"])
        ]
        for direction in DIRECTIONS
    }
    return Model(token_layer, Encoder(lstms, skip_connections=True), BOUNDARIES)
