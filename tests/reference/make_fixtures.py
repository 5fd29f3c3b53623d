"""Writes `tests/fixtures`: tiny models with the outputs the numpy reference gives for them.

    python -m tests.reference.make_fixtures        # from the repository root

Weights are drawn uniformly from numpy's legacy generator, whose stream is frozen, so the same
files come out with every numpy. Scales are large enough for clips and gates to matter; tests check
that.
"""

import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

from . import many_langs, numpy_elmo
from .numpy_elmo import DIRECTIONS, Array, Model, State

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
ROWS = 3  # batch size of the carried runs: 13 sentences make a last batch of one row
MIX_WEIGHTS = [0.3, -0.5, 0.8]
MIX_GAMMA = 1.3
MIX_L2 = 0.01

SENTENCES: list[list[str]] = [
    "The river bank was steep and muddy .".split(),
    "She went to the bank because the bank near the park had closed .".split(),
    ["Quiet"],
    ["Crème", "brûlée", "à", "Zürich", ",", "naïve", "e\u0301te\u0301", "Ångström"],
    [],
    "나는 어제 바닷가에서 오랜 친구를 만났다 .".split(),
    ["東京", "の", "駅", "で", "新しい", "本", "を", "買った", "。"],
    ["Ship", "it", "🚀", "now", "👩‍🔬", "🙂🙂"],
    # 48, 49 and 60 bytes; then 60 and 62 bytes of long characters, the last cut inside one.
    ["tele" * 12, "over" * 12 + "s", "abcde" * 12, "바다" * 10, "km" + "語" * 20, "short"],
    "buffalo buffalo Buffalo BUFFALO buffalo buffalo".split(),
    ["Tags", "<S>", "like", "</S>", "or", "<UNK>", "and", "<bos>", "are", "special"],
    ["don't", "stop", "--", "3.14", "%", "/", "C++", "\\", "end"],
    "After the long rain the old bridge stood alone and nobody came".split(),
]

# Read by the ELMoForManyLangs models only: their dictionaries know U+3000.
IDEOGRAPHIC_SPACE: list[list[str]] = [["駅", "\u3000", "本"], ["東\u3000京"]]

# bilm-tf asks for falling frequency after the three special tokens; the bilm-tf tests themselves
# use a file that starts in another order, so `words` does too.
COMMON_WORDS = (
    "the . bank river buffalo and or was it old 本 친구를 Crème 🚀 stop rain over".split()
)
PLAIN_VOCABULARY = ["<S>", "</S>", "<UNK>", *COMMON_WORDS]
WORDS_VOCABULARY = ["</S>", "<S>", "<UNK>", *COMMON_WORDS]
WORDS_VOCABULARY += ["The", "She", "바닷가에서", "東京", "alone"]

FILTERS = [[1, 4], [2, 6], [3, 10]]
TRAINING_KEYS = {
    "bidirectional": True,
    "dropout": 0.1,
    "all_clip_norm_val": 10.0,
    "n_epochs": 10,
    "n_train_tokens": 1000,
    "batch_size": 3,
    "n_tokens_vocab": len(PLAIN_VOCABULARY),
    "unroll_steps": 20,
    "n_negative_samples_batch": 16,
}


def char_cnn_options(**changes: object) -> dict[str, object]:
    """The `char_cnn` part of an options file; None takes a key out."""
    options: dict[str, object] = {
        "activation": "relu",
        "embedding": {"dim": 4},
        "filters": FILTERS,
        "max_characters_per_token": 50,
        "n_characters": 262,
        "n_highway": 2,
    }
    options |= changes
    return {key: value for key, value in options.items() if value is not None}


OPTIONS: dict[str, dict] = {
    "plain": {
        "lstm": {
            "cell_clip": 1.2,
            "use_skip_connections": True,
            "n_layers": 2,
            "proj_clip": 0.8,
            "projection_dim": 6,
            "dim": 10,
        },
        "char_cnn": char_cnn_options(projection_after_highway=True),
        "reverse": False,
    },
    "noskip_tanh": TRAINING_KEYS
    | {
        "lstm": {
            "cell_clip": 1,
            "use_skip_connections": False,
            "n_layers": 2,
            "proj_clip": None,
            "projection_dim": 5,
            "dim": 12,
        },
        "char_cnn": char_cnn_options(activation="tanh", n_characters=261, n_highway=1),
    },
    "one_layer": TRAINING_KEYS
    | {
        # n_layers is left out: 1 is its default. cell_clip is left out: no clip.
        "lstm": {"use_skip_connections": True, "proj_clip": 0.7, "projection_dim": 6, "dim": 9},
        "char_cnn": char_cnn_options(n_characters=261, n_highway=1),
    },
    "no_projection": {
        "lstm": {
            # proj_clip is below what the layers reach, and must have no effect.
            "cell_clip": 1.2,
            "use_skip_connections": True,
            "n_layers": 2,
            "proj_clip": 0.3,
            "projection_dim": 8,
            "dim": 8,
        },
        "char_cnn": char_cnn_options(n_characters=261, n_highway=1),
    },
    "no_highway": {
        "lstm": {
            "cell_clip": 3,
            "use_skip_connections": True,
            "n_layers": 2,
            "proj_clip": 3,
            "projection_dim": 6,
            "dim": 10,
        },
        "char_cnn": char_cnn_options(n_highway=None),
    },
    "three_layers": {
        "lstm": {"use_skip_connections": True, "n_layers": 3, "projection_dim": 6, "dim": 10},
        "char_cnn": char_cnn_options(max_characters_per_token=12, n_highway=1),
    },
    "same_width": {
        "lstm": {
            "cell_clip": None,
            "use_skip_connections": True,
            "n_layers": 2,
            "proj_clip": None,
            "projection_dim": 9,
            "dim": 13,
        },
        "char_cnn": char_cnn_options(filters=[[1, 2], [2, 3], [4, 4]], n_characters=261),
        "projection_after_highway": True,
    },
    "words": TRAINING_KEYS
    | {
        "n_tokens_vocab": len(WORDS_VOCABULARY),
        "share_embedding_softmax": False,
        "lstm": {
            "cell_clip": 1.2,
            "use_skip_connections": True,
            "n_layers": 2,
            "proj_clip": 0.8,
            "projection_dim": 7,
            "dim": 11,
        },
    },
}
VOCABULARIES = {"plain": PLAIN_VOCABULARY, "words": WORDS_VOCABULARY}
MANY_LANGS = ("many_langs", "many_langs_chars")
SEEDS = {name: 2018 + number for number, name in enumerate([*OPTIONS, *MANY_LANGS])}

Draw = Callable[..., NDArray[np.float32]]


def drawer(name: str) -> Draw:
    """draw(*shape, scale, centre=0): uniform float32 of centre +- scale."""
    random = np.random.RandomState(SEEDS[name])

    def draw(*shape: int, scale: float, centre: float = 0.0) -> NDArray[np.float32]:
        return random.uniform(centre - scale, centre + scale, shape).astype(np.float32)

    return draw


# bilm-tf models


def bilm_weights(options: dict, draw: Draw, n_words: int) -> dict[str, NDArray[np.float32]]:
    """The datasets of a weights file."""
    lstm = options["lstm"]
    cells, width = lstm["dim"], lstm["projection_dim"]
    weights = {}
    if "char_cnn" in options:
        char_cnn = options["char_cnn"]
        d = char_cnn["embedding"]["dim"]
        weights["char_embed"] = draw(261, d, scale=1.0)
        for i, (w, n) in enumerate(char_cnn["filters"]):
            # A low bias, for some of the maxima to stay below zero; tanh must not saturate.
            tanh = char_cnn["activation"] == "tanh"
            scale = (1.5 if tanh else 4.0) / np.sqrt(w * d)
            weights[f"CNN/W_cnn_{i}"] = draw(1, w, d, n, scale=scale)
            weights[f"CNN/b_cnn_{i}"] = draw(n, scale=0.7, centre=-0.6 if tanh else -1.3)
        n_filters = sum(n for _, n in char_cnn["filters"])
        spread = 2.5 / np.sqrt(n_filters)
        for k in range(char_cnn.get("n_highway", 0)):
            group = f"CNN_high_{k}"
            weights[f"{group}/W_transform"] = draw(n_filters, n_filters, scale=spread)
            weights[f"{group}/b_transform"] = draw(n_filters, scale=0.3)
            weights[f"{group}/W_carry"] = draw(n_filters, n_filters, scale=spread)
            weights[f"{group}/b_carry"] = draw(n_filters, scale=0.5, centre=-0.5)
        if n_filters != width:
            weights["CNN_proj/W_proj"] = draw(n_filters, width, scale=1.5 * spread)
            weights["CNN_proj/b_proj"] = draw(width, scale=0.3)
    else:
        weights["embedding"] = draw(n_words, width, scale=1.5)
    n_layers = lstm.get("n_layers", 1)
    for direction in range(2):
        for layer in range(n_layers):
            cell = "LSTMCell" if n_layers == 1 else f"MultiRNNCell/Cell{layer}/LSTMCell"
            prefix = f"RNN_{direction}/RNN/{cell}"
            weights[f"{prefix}/W_0"] = draw(2 * width, 4 * cells, scale=2.5 / np.sqrt(2 * width))
            weights[f"{prefix}/B"] = draw(4 * cells, scale=0.5)
            if width < cells:
                weights[f"{prefix}/W_P_0"] = draw(cells, width, scale=2.5 / np.sqrt(cells))
    return weights


def write_datasets(path: Path, datasets: dict[str, NDArray], compact: bool = False) -> None:
    """One hdf5 file of full names; `compact` takes hdf5's newer, slightly smaller layout."""
    with h5py.File(path, "w", libver="latest" if compact else None) as file:
        for name, values in datasets.items():
            file.create_dataset(name, data=values)


def write_json(path: Path, value: object) -> None:
    """Indented UTF-8 with a last line end, the same on every system."""
    text = json.dumps(value, ensure_ascii=False, indent=1) + "\n"
    path.write_bytes(text.encode("utf-8"))


def write_bilm(folder: Path, name: str) -> None:
    """options.json, weights.hdf5 and, for some, vocab.txt with softmax.hdf5."""
    options, draw = OPTIONS[name], drawer(name)
    vocabulary = VOCABULARIES.get(name, [])
    write_json(folder / "options.json", options)
    write_datasets(folder / "weights.hdf5", bilm_weights(options, draw, len(vocabulary)))
    if vocabulary:
        text = "".join(f"{word}\n" for word in vocabulary)
        (folder / "vocab.txt").write_bytes(text.encode("utf-8"))
        output = {
            "softmax/W": draw(len(vocabulary), options["lstm"]["projection_dim"], scale=1.0),
            "softmax/b": draw(len(vocabulary), scale=0.5),
        }
        write_datasets(folder / "softmax.hdf5", output)


# ELMoForManyLangs models


def architecture(name: str) -> dict:
    """The architecture file of a model."""
    words = name == "many_langs"
    return {
        "encoder": {
            "name": "elmo",
            "projection_dim": 6,
            "cell_clip": 1.2 if words else 3,
            "proj_clip": 0.8 if words else 3,
            "dim": 10,
            "n_layers": 2,
        },
        "token_embedder": {
            "name": "cnn",
            "activation": "relu" if words else "tanh",
            "filters": [[1, 4], [2, 6], [3, 8]],
            "n_highway": 2 if words else 1,
            "word_dim": 7 if words else 0,
            "char_dim": 5,
            "max_characters_per_token": 50 if words else 12,
        },
        "classifier": {"name": "sampled_softmax", "n_samples": 16},
        "dropout": 0.1,
    }


def dictionaries(name: str) -> tuple[str, str]:
    """char.dic and word.dic. Both have U+3000, in one written out, in the other as a bare id."""
    every = "".join(token for sentence in SENTENCES for token in sentence)
    # Every seventh character is unknown.
    known = [c for number, c in enumerate(sorted(set(every))) if number % 7 != 3]
    characters = [*known[:40], "\u3000", *known[40:]]
    characters += ["<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>"]
    # The long word is the form that is left of "abcde" * 12 once it is cut to 48 characters.
    words = ["<oov>", "<bos>", "<eos>", "<pad>", *COMMON_WORDS[:9], "\u3000", *COMMON_WORDS[9:]]
    words.append(("abcde" * 12)[:48])
    bare = {"many_langs": words, "many_langs_chars": characters}[name]
    files = []
    for tokens in (characters, words):
        lines = [f"{token}\t{number}" for number, token in enumerate(tokens)]
        if tokens is bare:
            lines[tokens.index("\u3000")] = str(tokens.index("\u3000"))
        files.append("".join(f"{line}\n" for line in lines))
    return files[0], files[1]


def many_langs_weights(
    shape: dict, draw: Draw, n_characters: int, n_words: int
) -> tuple[dict[str, NDArray[np.float32]], dict[str, NDArray[np.float32]]]:
    """The parameters of token_embedder.pkl and encoder.pkl."""
    token, encoder = shape["token_embedder"], shape["encoder"]
    d, word_width = token["char_dim"], token["word_dim"]
    width, cells = encoder["projection_dim"], encoder["dim"]
    tokens = {}
    if word_width:
        tokens["word_emb_layer.embedding.weight"] = draw(n_words, word_width, scale=1.0)
    tokens["char_emb_layer.embedding.weight"] = draw(n_characters, d, scale=1.0)
    for i, (w, n) in enumerate(token["filters"]):
        tanh = token["activation"] == "tanh"
        scale = (1.5 if tanh else 4.0) / np.sqrt(w * d)
        tokens[f"convolutions.{i}.weight"] = draw(n, d, w, scale=scale)
        tokens[f"convolutions.{i}.bias"] = draw(n, scale=0.7, centre=-0.6 if tanh else -1.3)
    n_filters = sum(n for _, n in token["filters"])
    spread = 2.5 / np.sqrt(n_filters)
    for k in range(token["n_highway"]):
        tokens[f"highways._layers.{k}.weight"] = draw(2 * n_filters, n_filters, scale=spread)
        tokens[f"highways._layers.{k}.bias"] = draw(2 * n_filters, scale=0.5)
    tokens["projection.weight"] = draw(width, word_width + n_filters, scale=1.5 * spread)
    tokens["projection.bias"] = draw(width, scale=0.3)
    lstms = {}
    for layer in range(encoder["n_layers"]):
        for direction in DIRECTIONS:
            prefix = f"{direction}_layer_{layer}"
            scale = 2.5 / np.sqrt(2 * width)
            lstms[f"{prefix}.input_linearity.weight"] = draw(4 * cells, width, scale=scale)
            lstms[f"{prefix}.state_linearity.weight"] = draw(4 * cells, width, scale=scale)
            bias = draw(4 * cells, scale=0.5)
            bias[cells : 2 * cells] += 1.0
            lstms[f"{prefix}.state_linearity.bias"] = bias
            lstms[f"{prefix}.state_projection.weight"] = draw(
                width, cells, scale=2.5 / np.sqrt(cells)
            )
    return tokens, lstms


def write_many_langs(folder: Path, name: str) -> None:
    """config.json with a path of another machine, and the files beside it."""
    shape = architecture(name)
    config_name = f"{name}_architecture.json"
    config = {
        "seed": 1,
        "gpu": 0,
        "train_path": "/home/nobody/data/train.raw",
        "valid_path": None,
        "config_path": f"/home/nobody/projects/elmo/configs/{config_name}",
        "word_embedding": None,
        "optimizer": "adam",
        "lr": 0.001,
        "model": "output/tiny",
        "batch_size": 32,
        "max_epoch": 10,
        "max_sent_len": 20,
        "min_count": 3,
    }
    write_json(folder / "config.json", config)
    write_json(folder / config_name, shape)
    characters, words = dictionaries(name)
    (folder / "char.dic").write_bytes(characters.encode("utf-8"))
    (folder / "word.dic").write_bytes(words.encode("utf-8"))
    parts = many_langs_weights(shape, drawer(name), characters.count("\n"), words.count("\n"))
    for file_name, weights in zip(("token_embedder.pkl", "encoder.pkl"), parts, strict=True):
        state = OrderedDict((key, torch.from_numpy(value)) for key, value in weights.items())
        # The published models were saved in torch's old format, so one of ours is too.
        new_format = name != "many_langs"
        torch.save(state, folder / file_name, _use_new_zipfile_serialization=new_format)


# Expected outputs


def mixes(group: str, batch: numpy_elmo.Batch, first: int) -> dict[str, Array]:
    """The four mixes of a batch whose first sentence is number `first`."""
    w = np.array(MIX_WEIGHTS)
    kinds = {
        "plain": numpy_elmo.mix(batch, w, MIX_GAMMA),
        "layer_norm_bilm_tf": numpy_elmo.mix(batch, w, MIX_GAMMA, "bilm-tf"),
        "layer_norm_allennlp": numpy_elmo.mix(batch, w, MIX_GAMMA, "allennlp"),
        "top": numpy_elmo.mix_top(batch, MIX_GAMMA),
    }
    return {
        f"mixes/{group}/{kind}/{first + row}": value
        for kind, values in kinds.items()
        for row, value in enumerate(values)
    }


def outputs(model: Model, with_mixes: bool) -> dict[str, Array]:
    """What every model's expected.hdf5 holds (see tests/fixtures/README.md)."""
    datasets: dict[str, Array] = {}
    reset = numpy_elmo.run(model, SENTENCES)
    for number, (tokens, layers) in enumerate(zip(reset.tokens, reset.layers, strict=True)):
        datasets[f"tokens/{number}"] = tokens
        datasets[f"reset/{number}"] = layers
    if with_mixes:
        datasets |= mixes("reset", reset, 0)
    state = State()
    for batch_number, batch in enumerate(numpy_elmo.run_batches(model, SENTENCES, ROWS, state)):
        first = batch_number * ROWS
        for row, layers in enumerate(batch.layers):
            datasets[f"carry/{first + row}"] = layers
        if with_mixes:
            datasets |= mixes("carry", batch, first)
    for direction in DIRECTIONS:
        for layer in range(model.encoder.n_layers):
            c, h = state.stacked(direction, layer)
            datasets[f"final_state/{direction}/layer{layer}/c"] = c
            datasets[f"final_state/{direction}/layer{layer}/h"] = h
    return datasets


def scores(folder: Path, model: Model) -> dict[str, Array]:
    """ln p of every sentence in both directions, from zero state."""
    output = numpy_elmo.read_softmax(folder / "softmax.hdf5", folder / "vocab.txt")
    values = numpy_elmo.run(model, SENTENCES).with_boundaries
    datasets = {}
    for number, (sentence, layers) in enumerate(zip(SENTENCES, values, strict=True)):
        pair = numpy_elmo.log_probabilities(output, layers, sentence, model.boundaries)
        for direction, array in zip(DIRECTIONS, pair, strict=True):
            datasets[f"log_probabilities/{direction}/{number}"] = array
    return datasets


def write_expected(folder: Path, name: str) -> None:
    """expected.hdf5, computed from the files just written."""
    if name in MANY_LANGS:
        model = many_langs.read_folder(folder)
        datasets = outputs(model, with_mixes=False)
        for number, layers in enumerate(numpy_elmo.run(model, IDEOGRAPHIC_SPACE).layers):
            datasets[f"ideographic_space/{number}"] = layers
    else:
        model = numpy_elmo.read_folder(folder)
        datasets = outputs(model, with_mixes=name == "plain")
        if name in VOCABULARIES:
            datasets |= scores(folder, model)
    write_datasets(folder / "expected.hdf5", datasets, compact=True)
    with h5py.File(folder / "expected.hdf5", "a") as file:
        file.attrs["rows"] = ROWS
        if name in MANY_LANGS:
            file["ideographic_space"].attrs["sentences"] = json.dumps(IDEOGRAPHIC_SPACE)
        if name == "plain":
            group = file["mixes"]
            group.attrs["weights"] = MIX_WEIGHTS
            group.attrs["gamma"] = MIX_GAMMA
            group.attrs["l2"] = MIX_L2
            group.attrs["regulariser"] = numpy_elmo.regulariser(np.array(MIX_WEIGHTS), MIX_L2)


def build(folder: Path) -> None:
    """Write every fixture under a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "sentences.json", SENTENCES)
    for name in SEEDS:
        model = folder / name
        model.mkdir(exist_ok=True)
        if name in MANY_LANGS:
            write_many_langs(model, name)
        else:
            write_bilm(model, name)
        write_expected(model, name)


if __name__ == "__main__":
    build(FIXTURES)
