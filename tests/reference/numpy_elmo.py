"""bilm-tf's ELMo in plain float64 numpy: one token, one sentence, one time step at a time.

There is no padding anywhere: a batch is a list of sentences of different lengths, and batch rows
matter only for the carried state. Where bilm-tf and AllenNLP disagree (layer norm of the mix) both
are here.

Departure from bilm-tf: the tokens `<S>` and `</S>` always get their boundary rows, as in AllenNLP,
whether or not a vocabulary file lists them.

Shapes: B batch, T tokens, M characters of a token, d character width, F filters, D vector width
(2 x P), L LSTM layers, P projection, H cells, V vocabulary.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import h5py
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ids = NDArray[np.int64]
Sentence = Sequence[str]

BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = 256, 257, 258, 259, 260
FORWARD, BACKWARD = "forward", "backward"
DIRECTIONS = (FORWARD, BACKWARD)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def relu(x: Array) -> Array:
    """max(x, 0)."""
    return np.maximum(x, 0.0)


def clip(x: Array, limit: float | None) -> Array:
    """Values limited to +-limit; None limits nothing."""
    return x if limit is None else np.clip(x, -limit, limit)


# Characters and words


def character_row(token: str, max_characters: int = 50) -> Ids:
    """The stored ids of a token, 0...260.

    "hi" with 6 characters -> 258 104 105 259 260 260.
    """
    if token == "<S>":
        inside = [BEGIN_SENTENCE]
    elif token == "</S>":
        inside = [END_SENTENCE]
    else:
        # The cut counts bytes, so it may fall inside a character.
        inside = list(token.encode("utf-8", "ignore")[: max_characters - 2])
    ids = [BEGIN_WORD, *inside, END_WORD]
    return np.array(ids + [PADDING] * (max_characters - len(ids)), dtype=np.int64)


def character_ids(sentences: Sequence[Sentence], max_characters: int = 50) -> Ids:
    """The prediction input of a batch, (B, T+2, M): with boundaries, ids + 1, 0 for no token."""
    longest = max(len(sentence) for sentence in sentences)
    batch = np.zeros((len(sentences), longest + 2, max_characters), dtype=np.int64)
    for row, sentence in enumerate(sentences):
        for position, token in enumerate(["<S>", *sentence, "</S>"]):
            batch[row, position] = character_row(token, max_characters) + 1
    return batch


def read_vocabulary(path: Path) -> list[str]:
    """One token a line, stripped; the sentinel line !!!MAXTERMID is no token."""
    lines = path.read_text(encoding="utf-8").split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.strip() for line in lines if line.strip() != "!!!MAXTERMID"]


# Token layers


class TokenLayer(Protocol):
    """Gives each token its vector without context."""

    def vectors(self, tokens: Sentence) -> Array:
        """Tokens to (T, P)."""
        ...


@dataclass(frozen=True)
class Highway:
    """y = g relu(x W_t + b_t) + (1 - g) x with g = sigmoid(x W_carry + b_carry).

    What the files call "carry" weighs the transformed part.
    """

    w_transform: Array  # (F, F)
    b_transform: Array
    w_carry: Array  # (F, F)
    b_carry: Array

    def __call__(self, x: Array) -> Array:
        gate = sigmoid(x @ self.w_carry + self.b_carry)
        return gate * relu(x @ self.w_transform + self.b_transform) + (1.0 - gate) * x


@dataclass(frozen=True)
class Filter:
    """One convolution width: a window of `width` characters to n values."""

    weight: Array  # (width, d, n)
    bias: Array  # (n,)

    def largest_response(self, characters: Array) -> Array:
        """(M, d) -> (n,): the largest response over all M - width + 1 windows, padding included."""
        width = self.weight.shape[0]
        responses = [
            np.einsum("wd,wdn->n", characters[start : start + width], self.weight) + self.bias
            for start in range(len(characters) - width + 1)
        ]
        return np.max(responses, axis=0)


@dataclass(frozen=True)
class CharCnn:
    """Characters to a token vector: look-up, filters, highways, projection."""

    embedding: Array  # (262, d), row 0 zero
    filters: list[Filter]
    activation: str
    highways: list[Highway]
    projection: tuple[Array, Array] | None  # (F, P), (P,)
    max_characters: int

    def filtered(self, token: str) -> Array:
        """(F,): the filters' maxima, and only then the activation."""
        characters = self.embedding[character_row(token, self.max_characters) + 1]  # (M, d)
        x = np.concatenate([f.largest_response(characters) for f in self.filters])
        return {"relu": relu, "tanh": np.tanh}[self.activation](x)

    def vectors(self, tokens: Sentence) -> Array:
        """Tokens to (T, P)."""
        x = np.stack([self.filtered(token) for token in tokens])  # (T, F)
        for highway in self.highways:
            x = highway(x)
        if self.projection is not None:
            weight, bias = self.projection
            x = x @ weight + bias  # (T, P)
        return x


@dataclass(frozen=True)
class WordTable:
    """Word-id input: a row a vocabulary word, unknown words get the row of `<UNK>`."""

    embedding: Array  # (V+1, P), row 0 zero
    vocabulary: list[str]

    def ids(self, tokens: Sentence) -> Ids:
        """Line number in the vocabulary + 1: 0 means no token."""
        known = {word: line for line, word in enumerate(self.vocabulary)}
        return np.array([known.get(token, known["<UNK>"]) + 1 for token in tokens])

    def vectors(self, tokens: Sentence) -> Array:
        """Tokens to (T, P)."""
        return self.embedding[self.ids(tokens)]


# LSTM


@dataclass(frozen=True)
class Gate:
    """x W_x + h W_h + b before the gate's non-linearity."""

    from_input: Array  # (P, H)
    from_state: Array  # (P, H)
    bias: Array  # (H,)

    def __call__(self, x: Array, h: Array) -> Array:
        return x @ self.from_input + h @ self.from_state + self.bias


@dataclass(frozen=True)
class Lstm:
    """One layer of one direction.

    The forget gate's bias here includes the +1 that no bilm-tf file holds.
    """

    input: Gate
    candidate: Gate
    forget: Gate
    output: Gate
    projection: Array | None  # (H, P)
    cell_clip: float | None
    proj_clip: float | None

    @property
    def cells(self) -> int:
        """H."""
        return len(self.input.bias)

    @property
    def width(self) -> int:
        """P, the width of h."""
        return self.cells if self.projection is None else self.projection.shape[1]

    def step(self, x: Array, c: Array, h: Array) -> tuple[Array, Array]:
        """One token: new c (H,) and h (P,)."""
        c = sigmoid(self.forget(x, h)) * c + sigmoid(self.input(x, h)) * np.tanh(
            self.candidate(x, h)
        )
        c = clip(c, self.cell_clip)
        # `self.output` still reads the old h.
        h = sigmoid(self.output(x, h)) * np.tanh(c)
        if self.projection is not None:
            h = clip(h @ self.projection, self.proj_clip)
        return c, h

    def run(self, inputs: Array, c: Array, h: Array) -> tuple[Array, Array, Array]:
        """(T, P), in reading order -> outputs (T, P), final c, final h."""
        outputs = np.zeros((len(inputs), self.width))
        for t, x in enumerate(inputs):
            c, h = self.step(x, c, h)
            outputs[t] = h
        return outputs, c, h


class State:
    """What the LSTMs remember between batches: (c, h) for each direction, layer and batch row."""

    def __init__(self) -> None:
        self.memory: dict[tuple[str, int, int], tuple[Array, Array]] = {}

    def get(self, direction: str, layer: int, row: int, lstm: Lstm) -> tuple[Array, Array]:
        """(c, h) of a row; zeros for a row that was never used."""
        zeros = (np.zeros(lstm.cells), np.zeros(lstm.width))
        return self.memory.get((direction, layer, row), zeros)

    def set(self, direction: str, layer: int, row: int, c: Array, h: Array) -> None:
        """Keep (c, h) of a row; other rows stay as they are."""
        self.memory[direction, layer, row] = (c, h)

    def stacked(self, direction: str, layer: int) -> tuple[Array, Array]:
        """c (B, H) and h (B, P) of all the rows used so far."""
        rows = sorted(r for d, k, r in self.memory if (d, k) == (direction, layer))
        pairs = [self.memory[direction, layer, row] for row in rows]
        return np.stack([c for c, _ in pairs]), np.stack([h for _, h in pairs])


@dataclass(frozen=True)
class Encoder:
    """Two stacks of LSTMs over the same token vectors."""

    lstms: dict[str, list[Lstm]]  # direction -> its layers
    skip_connections: bool

    @property
    def n_layers(self) -> int:
        """L."""
        return len(self.lstms[FORWARD])

    def run_direction(self, direction: str, tokens: Array, row: int, state: State) -> list[Array]:
        """(T, P) -> the L outputs (T, P), all in reading order. Updates the row's state."""
        outputs = []
        inputs = tokens
        for layer, lstm in enumerate(self.lstms[direction]):
            h, *final = lstm.run(inputs, *state.get(direction, layer, row, lstm))
            state.set(direction, layer, row, *final)
            # The residual is added to what the layer gives, never to its recurrent h.
            inputs = h + inputs if self.skip_connections and layer > 0 else h
            outputs.append(inputs)
        return outputs

    def layers(self, tokens: Array, row: int, state: State) -> Array:
        """(T, P) -> (L+1, T, 2P); layer 0 is the tokens given twice."""
        forward = [tokens, *self.run_direction(FORWARD, tokens, row, state)]
        reversed_ = self.run_direction(BACKWARD, tokens[::-1], row, state)
        backward = [tokens, *(output[::-1] for output in reversed_)]
        pairs = zip(forward, backward, strict=True)
        return np.stack([np.concatenate(pair, axis=1) for pair in pairs])


# The model


@dataclass(frozen=True)
class Model:
    """A token layer, an encoder, and the two tokens put around every sentence."""

    token_layer: TokenLayer
    encoder: Encoder
    boundaries: tuple[str, str] = ("<S>", "</S>")


@dataclass(frozen=True)
class Batch:
    """What a model gives for a batch: one (L+1, T+2, D) a sentence, boundaries kept."""

    with_boundaries: list[Array]

    @property
    def layers(self) -> list[Array]:
        """One (L+1, T, D) a sentence."""
        return [values[:, 1:-1] for values in self.with_boundaries]

    @property
    def tokens(self) -> list[Array]:
        """The token layer with boundaries, one (T+2, P) a sentence."""
        return [values[0, :, : values.shape[2] // 2] for values in self.with_boundaries]


def run(model: Model, sentences: Sequence[Sentence], state: State | None = None) -> Batch:
    """One batch: sentence i is batch row i. Without a state every row starts from zero.

    An empty sentence is run as its two boundaries and updates its row's state like any other.
    """
    state = State() if state is None else state
    begin, end = model.boundaries
    values = []
    for row, sentence in enumerate(sentences):
        tokens = model.token_layer.vectors([begin, *sentence, end])  # (T+2, P)
        values.append(model.encoder.layers(tokens, row, state))
    return Batch(values)


def run_batches(
    model: Model, sentences: Sequence[Sentence], size: int, state: State
) -> Iterator[Batch]:
    """Consecutive batches of `size` rows (the last may be smaller) through one carried state."""
    for start in range(0, len(sentences), size):
        yield run(model, sentences[start : start + size], state)


def padded(arrays: Sequence[Array], axis: int) -> Array:
    """Arrays that differ in length along one axis, stacked and filled with zeros."""
    longest = max(array.shape[axis] for array in arrays)
    filled = []
    for array in arrays:
        widths = [(0, 0)] * array.ndim
        widths[axis] = (0, longest - array.shape[axis])
        filled.append(np.pad(array, widths))
    return np.stack(filled)


# Mix


def softmax(w: Array) -> Array:
    """Weights that sum to 1."""
    e = np.exp(w - np.max(w))
    return e / e.sum()


def normalised(layers: list[Array], counted: list[Array], epsilon: float) -> list[Array]:
    """Each layer less one mean, over one deviation, both over all values of `counted`."""
    every = np.concatenate(counted, axis=1)  # (L+1, all tokens, D)
    if every.shape[1] == 0:
        return layers
    mean = every.mean(axis=(1, 2), keepdims=True)
    variance = every.var(axis=(1, 2), keepdims=True)
    return [(values - mean) / np.sqrt(variance + epsilon) for values in layers]


def mix(batch: Batch, w: Array, gamma: float, norm: str | None = None) -> list[Array]:
    """gamma * sum_j softmax(w)_j N(h_j), one (T, D) a sentence.

    norm: None; "bilm-tf" takes the statistics without the boundary tokens, epsilon 1e-12;
    "allennlp" takes them with the boundaries, epsilon 1e-13.
    """
    layers = batch.layers
    if norm == "bilm-tf":
        layers = normalised(layers, layers, 1e-12)
    elif norm == "allennlp":
        layers = normalised(layers, batch.with_boundaries, 1e-13)
    elif norm is not None:
        raise ValueError(norm)
    return [gamma * np.tensordot(softmax(w), values, axes=1) for values in layers]


def mix_top(batch: Batch, gamma: float) -> list[Array]:
    """gamma * h_L, one (T, D) a sentence."""
    return [gamma * values[-1] for values in batch.layers]


def regulariser(w: Array, coefficient: float) -> float:
    """The penalty on the raw w of a mix; gamma takes no part."""
    return float(coefficient * np.sum(w**2))


# Language model


@dataclass(frozen=True)
class Softmax:
    """The output layer both directions share."""

    weight: Array  # (V, P)
    bias: Array  # (V,)
    vocabulary: list[str]

    def log_probabilities(self, outputs: Array, targets: Sentence) -> Array:
        """Top outputs (T, P) and the word each should predict -> ln p of each, (T,)."""
        line = {word: number for number, word in enumerate(self.vocabulary)}
        ids = [line.get(target, line["<UNK>"]) for target in targets]
        logits = outputs @ self.weight.T + self.bias  # (T, V)
        largest = logits.max(axis=1, keepdims=True)
        log_z = np.log(np.exp(logits - largest).sum(axis=1)) + largest[:, 0]
        return logits[np.arange(len(ids)), ids] - log_z


def log_probabilities(
    output: Softmax, values: Array, sentence: Sentence, boundaries: tuple[str, str]
) -> tuple[Array, Array]:
    """ln p of one sentence in both directions, each (T+1,), from its (L+1, T+2, D).

    Forward: w1 ... wT and the end, each from what stands before it. Backward: the beginning and
    w1 ... wT, in text order, each from what stands after it.
    """
    begin, end = boundaries
    width = values.shape[2] // 2
    forward = output.log_probabilities(values[-1, :-1, :width], [*sentence, end])
    backward = output.log_probabilities(values[-1, 1:, width:], [begin, *sentence])
    return forward, backward


# bilm-tf files


def read_weights(path: Path) -> dict[str, Array]:
    """Every dataset of an hdf5 file by its full name, as float64."""
    weights: dict[str, Array] = {}

    def keep(name: str, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(item, h5py.Dataset):
            weights[name] = np.asarray(item[...], dtype=np.float64)

    with h5py.File(path, "r") as file:
        file.visititems(keep)
    return weights


def with_zero_row(table: Array) -> Array:
    """Row 0, "no token", put before a table's rows."""
    return np.concatenate([np.zeros((1, table.shape[1])), table])


def char_cnn_from(options: dict, weights: dict[str, Array]) -> CharCnn:
    """The character token layer of an options file and its weights."""
    char_cnn = options["char_cnn"]
    filters = []
    for i, (width, n) in enumerate(char_cnn["filters"]):
        weight = weights[f"CNN/W_cnn_{i}"][0]  # (width, d, n)
        assert weight.shape == (width, char_cnn["embedding"]["dim"], n)
        filters.append(Filter(weight, weights[f"CNN/b_cnn_{i}"]))
    highways = [
        Highway(
            *(weights[f"CNN_high_{k}/{name}"] for name in ("W_transform", "b_transform")),
            *(weights[f"CNN_high_{k}/{name}"] for name in ("W_carry", "b_carry")),
        )
        for k in range(char_cnn.get("n_highway") or 0)
    ]
    n_filters = sum(n for _, n in char_cnn["filters"])
    projection = None
    if n_filters != options["lstm"]["projection_dim"]:
        projection = (weights["CNN_proj/W_proj"], weights["CNN_proj/b_proj"])
    return CharCnn(
        embedding=with_zero_row(weights["char_embed"]),
        filters=filters,
        activation=char_cnn["activation"],
        highways=highways,
        projection=projection,
        max_characters=char_cnn["max_characters_per_token"],
    )


def lstm_from(options: dict, weights: dict[str, Array], direction: str, layer: int) -> Lstm:
    """One LSTM; a model of one layer has shorter names in its file."""
    lstm = options["lstm"]
    cells, width = lstm["dim"], lstm["projection_dim"]
    cell = "LSTMCell" if lstm.get("n_layers", 1) == 1 else f"MultiRNNCell/Cell{layer}/LSTMCell"
    prefix = f"RNN_{DIRECTIONS.index(direction)}/RNN/{cell}"
    kernel = weights[f"{prefix}/W_0"]  # (2P, 4H): rows x then h, columns i, j, f, o
    bias = weights[f"{prefix}/B"]  # (4H,)
    assert kernel.shape == (2 * width, 4 * cells)

    def gate(block: int, extra_bias: float = 0.0) -> Gate:
        columns = slice(block * cells, (block + 1) * cells)
        return Gate(kernel[:width, columns], kernel[width:, columns], bias[columns] + extra_bias)

    return Lstm(
        input=gate(0),
        candidate=gate(1),
        forget=gate(2, extra_bias=1.0),
        output=gate(3),
        projection=weights[f"{prefix}/W_P_0"] if width < cells else None,
        cell_clip=lstm.get("cell_clip"),
        proj_clip=lstm.get("proj_clip"),
    )


def model_from(
    options: dict, weights: dict[str, Array], vocabulary: list[str] | None = None
) -> Model:
    """A model of parsed options and loaded weights; word-id input needs the vocabulary."""
    token_layer: TokenLayer
    if "char_cnn" in options:
        token_layer = char_cnn_from(options, weights)
    else:
        assert vocabulary is not None
        token_layer = WordTable(with_zero_row(weights["embedding"]), vocabulary)
    n_layers = options["lstm"].get("n_layers", 1)
    lstms = {
        direction: [lstm_from(options, weights, direction, layer) for layer in range(n_layers)]
        for direction in DIRECTIONS
    }
    return Model(token_layer, Encoder(lstms, bool(options["lstm"]["use_skip_connections"])))


def read_model(options: Path, weights: Path, vocabulary: Path | None = None) -> Model:
    """A model of bilm-tf files."""
    return model_from(
        json.loads(options.read_text(encoding="utf-8")),
        read_weights(weights),
        None if vocabulary is None else read_vocabulary(vocabulary),
    )


def read_folder(folder: Path) -> Model:
    """A model of `options.json`, `weights.hdf5` and, where there is one, `vocab.txt`."""
    vocabulary = folder / "vocab.txt"
    return read_model(
        folder / "options.json",
        folder / "weights.hdf5",
        vocabulary if vocabulary.exists() else None,
    )


def read_softmax(path: Path, vocabulary: Path) -> Softmax:
    """The output layer of `softmax/W` and `softmax/b`."""
    weights = read_weights(path)
    return Softmax(weights["softmax/W"], weights["softmax/b"], read_vocabulary(vocabulary))
