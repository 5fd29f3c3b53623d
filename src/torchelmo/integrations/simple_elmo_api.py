"""simple_elmo's `ElmoModel` by its own names: change an import, keep the code; no TensorFlow.

Numbers are those of simple_elmo without warm-up: sentences go in batches of `max_batch_size`, and
batch row r goes on from what row r of the batch before left (`state="carry"`).

Departures from simple_elmo:

* `state="reset"` starts every sentence from zero, so that a sentence has the same vectors in every
  batch and call. It is the better choice for new code.
* `warmup` is taken and does nothing. There it ran the first batch twice, which changed that batch's
  vectors (by up to 2.6) as a side effect. To do so on purpose, pass `session=State()` to two calls.
* Padding is zero; there, the token layer (and so the average of layers) had a vector in padding.
* A sentence's average is over its own words; there, padding was averaged in, so that it depended on
  the other sentences (and `layers="all"` mixed up words and layers).
* `get_elmo_substitutes` predicts each word from the whole sentence on its left (right); there, from
  the one word beside it. `logp` are natural logarithms of probabilities; there, raw logits.
* Arrays are float32. Loading never needs `n_characters` to be changed, and reads any format that
  `torchelmo.Elmo` reads; TensorFlow checkpoints are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchelmo import scoring
from torchelmo.elmo import Elmo
from torchelmo.errors import InputError
from torchelmo.nn.lstm import State
from torchelmo.text.vocabulary import Vocabulary

Array = npt.NDArray[np.float32]
LayerChoice = Literal["average", "top", "all"]
StateChoice = Literal["carry", "reset"]


class Candidates(TypedDict):
    """What one language model would put in a word's place, best first."""

    candidates: list[int]  # numbers in the vocabulary
    candidate_words: list[str]
    logp: list[float]


class WordSubstitutes(TypedDict):
    """A word of a sentence and its substitutes, from the left and from the right."""

    word: str
    forward: Candidates
    backward: Candidates


class ElmoModel:
    """A model to `load`, then vectors of lists of words."""

    def __init__(
        self, *, state: StateChoice = "carry", device: str | torch.device | None = None
    ) -> None:
        """Choose the state of all calls, and the device (None: cuda, mps or cpu)."""
        _check("state", state, ("carry", "reset"))
        self.state, self.device = state, device
        self.batch_size = 32
        self.vector_size = self.n_layers = 0
        self.max_chars: int | None = None
        self.vocab: Vocabulary | None = None
        self._elmo: Elmo | None = None

    def load(
        self,
        directory: str | Path,
        max_batch_size: int = 32,
        limit: int = 100,
        full: bool = False,
    ) -> str:
        """Load a folder or a zip archive with `options.json` and an hdf5 file, or any other model.

        `limit` is taken and does nothing: every word's spelling is kept. `full` asks for a model
        that can predict words: with `vocab.txt` and a softmax (an hdf5 file so named, or a native
        folder's).
        """
        if max_batch_size < 1:
            raise InputError(f"max_batch_size is {max_batch_size}, expected at least 1")
        folder = Path(directory)
        if not any(folder.glob("*.hdf5")) and (folder / "checkpoint").is_file():
            raise InputError(
                f"{folder} holds a TensorFlow checkpoint, which is not read here: write its "
                "weights to hdf5 with bilm-tf first (dump_weights), its softmax as softmax/W and "
                "softmax/b"
            )
        own = folder / "model.hdf5"  # the name that counts where there are several
        elmo = Elmo.from_pretrained(own if own.is_file() else directory, device=self.device)
        if full:
            scoring.ready(elmo.softmax, elmo.vocabulary)
        config = elmo.config
        self._elmo, self.vocab, self.batch_size = elmo, elmo.vocabulary, max_batch_size
        self.vector_size, self.n_layers = config.width, config.n_layers
        self.max_chars = None if config.characters is None else config.characters.max_characters
        return "The model is now loaded."

    def get_elmo_vectors(
        self,
        texts: Sequence[Sequence[str]],
        warmup: bool = True,
        layers: LayerChoice = "average",
        session: State | None = None,
        *,
        state: StateChoice | None = None,
    ) -> Array:
        """Return vectors of words, (n, longest, D), zero at padding; (n, L+1, longest, D) for all.

        `warmup` does nothing. A `State` as `session` is carried from call to call. `state`
        overrides the model's choice for this call.
        """
        longest = max(map(len, texts), default=0)
        _check("layers", layers, ("average", "top", "all"))
        depth = (self.n_layers,) if layers == "all" else ()
        out = np.zeros((len(texts), *depth, longest, self.vector_size), dtype=np.float32)
        for number, vectors in self._run(texts, layers, session, state):
            out[number, ..., : vectors.shape[-2], :] = vectors.cpu().numpy()
        return out

    def get_elmo_vector_average(
        self,
        texts: Sequence[Sequence[str]],
        warmup: bool = True,
        layers: LayerChoice = "average",
        session: State | None = None,
        *,
        state: StateChoice | None = None,
    ) -> Array:
        """Return the mean of each sentence's word vectors, of length 1: (n, D), or (n, L+1, D).

        With all layers it is the layers together that have length 1, as in simple_elmo. A sentence
        without words gets zeros. The other arguments are those of `get_elmo_vectors`.
        """
        _check("layers", layers, ("average", "top", "all"))
        depth = (self.n_layers,) if layers == "all" else ()
        out = np.zeros((len(texts), *depth, self.vector_size), dtype=np.float32)
        for number, vectors in self._run(texts, layers, session, state):
            if vectors.shape[-2]:
                mean = vectors.mean(dim=-2)
                out[number] = (mean / torch.linalg.vector_norm(mean)).cpu().numpy()
        return out

    def get_elmo_substitutes(
        self,
        data: Sequence[str] | Sequence[Sequence[str]],
        topn: int = 3,
        nodelimiters: bool = True,
    ) -> list[list[WordSubstitutes]]:
        """Return what both language models would put in each word's place, best first.

        A sentence is a string, split on white space, or a list of words. `nodelimiters` leaves out
        `<S>` and `</S>`. Needs a softmax and a vocabulary (`load(..., full=True)`).
        """
        elmo = self._loaded()
        softmax, vocabulary = scoring.ready(elmo.softmax, elmo.vocabulary)
        banned = [vocabulary.begin, vocabulary.end] if nodelimiters else []
        sentences = [s.split() if isinstance(s, str) else list(s) for s in data]
        out: list[list[WordSubstitutes]] = [[] for _ in sentences]
        for numbers, layers in elmo.encoder.run(sentences, boundaries=True):
            for number, top in zip(numbers, layers.split(layers.flat[-1]), strict=True):
                if not sentences[number]:
                    continue
                forward, backward = top.chunk(2, dim=1)  # (n+2, P), row 0 is <S>
                sides = []
                for hidden in (forward[:-2], backward[2:]):
                    ids, logs = scoring.likeliest(softmax, hidden.unsqueeze(1), topn, banned)
                    sides.append(
                        [
                            Candidates(
                                candidates=row,
                                candidate_words=[vocabulary.word(i) for i in row],
                                logp=log[0],
                            )
                            for row, log in zip(ids, logs, strict=True)
                        ]
                    )
                out[number] = [
                    WordSubstitutes(word=word, forward=left, backward=right)
                    for word, left, right in zip(sentences[number], *sides, strict=True)
                ]
        return out

    def _loaded(self) -> Elmo:
        if self._elmo is None:
            raise InputError("no model is loaded: call load(directory) first")
        return self._elmo

    def _run(
        self,
        texts: Sequence[Sequence[str]],
        layers: LayerChoice,
        session: State | None,
        state: StateChoice | None,
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield each sentence's number and vectors, (T, D) or (L+1, T, D)."""
        encoder = self._loaded().encoder
        choice = self.state if state is None else state
        _check("state", choice, ("carry", "reset"))
        if session is not None and not isinstance(session, State):
            raise InputError(
                f"session is a torchelmo.State to carry between calls, or None, not "
                f"{type(session).__name__}"
            )
        for number, words in enumerate(texts):
            if isinstance(words, str):
                raise InputError(f"sentence {number} is a text: give a list of words")
        carried = None
        if choice == "carry":
            carried = State() if session is None else session
        step = self.batch_size if carried is not None else max(len(texts), 1)
        for start in range(0, len(texts), step):
            chunk = texts[start : start + step]
            for numbers, found in encoder.run(chunk, state=carried):
                flat = found.flat
                if layers != "all":
                    flat = flat[-1] if layers == "top" else flat.mean(dim=0)
                for number, vectors in zip(numbers, found.split(flat), strict=True):
                    yield start + number, vectors


def _check(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise InputError(f"{name} is {', '.join(known[:-1])} or {known[-1]}, not {value!r}")
