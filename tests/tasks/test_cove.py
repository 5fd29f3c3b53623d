"""CoVe as an input: against torch's own LSTM over the same vectors."""

import numpy as np
import pytest
import torch

from tasks.small import recipe, tagged
from torchelmo.errors import InputError
from torchelmo.tasks import encoders
from torchelmo.tasks.model import load_task
from torchelmo.tasks.recipe import read_recipe
from torchelmo.tasks.trainer import fit
from torchelmo.tasks.vectors import StaticVectors

SENTENCES = [("Greta", "paints"), ("Rain", "fell", "on", "zzz"), ("Oslo",)]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the LSTM's weights and vectors of 300 dimensions."""
    folder = tmp_path_factory.mktemp("cove")
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(300, 300, num_layers=2, bidirectional=True, batch_first=True)
    torch.save(lstm.state_dict(), folder / "MT-LSTM.pth")
    words = sorted({word.lower() for example in tagged() for word in example.words})
    values = np.random.default_rng(0).normal(size=(len(words), 300)).round(3)
    lines = (f"{w} {' '.join(map(str, row))}\n" for w, row in zip(words, values, strict=True))
    (folder / "glove.txt").write_text("".join(lines), encoding="utf-8")
    return folder


def spec(home, **sections):
    cove = {"weights": str(home / "MT-LSTM.pth"), "vectors": str(home / "glove.txt")}
    none = {"elmo": None, "characters": None}
    return recipe("ner", **{**none, "cove": cove, **sections})


def make(chosen):
    vectors = encoders.load_vectors(chosen)
    texts = [example.words for example in tagged()]
    return vectors, encoders.make_inputs(
        chosen, encoders.collect(chosen, texts, vectors), vectors, None
    )


def by_hand(home, vectors, words):
    lstm = torch.nn.LSTM(300, 300, num_layers=2, bidirectional=True, batch_first=True)
    lstm.load_state_dict(torch.load(home / "MT-LSTM.pth", weights_only=True))
    rows = [vectors.find(word) for word in words]
    static = np.stack([np.zeros(300) if row is None else vectors.matrix[row] for row in rows])
    static = torch.from_numpy(static).float()
    with torch.no_grad():
        return static, lstm(static.unsqueeze(0))[0][0]  # (T, 300), (T, 600)


def test_it_is_torchs_lstm_over_the_vectors(home):
    vectors, inputs = make(spec(home))
    assert inputs.width == 600
    out = inputs(inputs.prepare(SENTENCES))
    for b, words in enumerate(SENTENCES):
        _, expected = by_hand(home, vectors, words)
        torch.testing.assert_close(out[b, : len(words)], expected, rtol=1e-4, atol=1e-5)
        assert not out[b, len(words) :].any()
    assert not any(p.requires_grad for p in inputs.parameters())


@pytest.mark.parametrize("tuned", [False, True])
def test_beside_the_vectors_that_it_reads(home, tuned):
    words = {"vectors": str(home / "glove.txt"), "tuned": tuned}
    cove = {"weights": str(home / "MT-LSTM.pth")}
    vectors, inputs = make(spec(home, words=words, cove=cove))
    # The file's vectors go through the LSTM, also where those beside it learn.
    if tuned:
        torch.nn.init.zeros_(inputs.encoders["words"].table)
    out = inputs(inputs.prepare(SENTENCES))
    assert inputs.width == 900
    static, expected = by_hand(home, vectors, SENTENCES[0])
    torch.testing.assert_close(out[0, :2, 300:], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(out[0, :2, :300], torch.zeros(2, 300) if tuned else static)


@pytest.mark.parametrize("own", [None, {"vectors": "none", "dim": 4}])
def test_from_training_to_a_folder_that_needs_no_weights_file(home, tmp_path, own):
    sections = {} if own is None else {"words": own}
    chosen = spec(home, train={"epochs": 2}, **sections)
    before = torch.load(home / "MT-LSTM.pth", weights_only=True)
    model = fit(chosen, tagged(), tagged(), output=tmp_path / "run", device="cpu")
    lstm = model.inputs.encoders["cove"].rnn.lstm.state_dict()
    assert all(torch.equal(lstm[name], value) for name, value in before.items())
    assert model.parameter_count() < 300_000
    moved = home / "MT-LSTM.pth"
    moved.rename(home / "away.pth")
    try:
        loaded = load_task(tmp_path / "run", device="cpu")
    finally:
        (home / "away.pth").rename(moved)
    assert loaded.predict(tagged()) == model.predict(tagged())
    other = StaticVectors.load(str(home / "glove.txt"))
    assert encoders.vectors_facts(other) == loaded.inputs.encoders["cove"].facts


def test_refusals(home):
    with pytest.raises(InputError, match=r"CoVe reads one file .* not none"):
        spec(home, cove={"weights": "w.pth"})
    with pytest.raises(InputError, match=r"not .*glove.txt and a.txt"):
        spec(home, words={"vectors": "a.txt"})
    with pytest.raises(InputError, match=r"there is no file gone.pth: CoVe's weights"):
        make(spec(home, cove={"weights": "gone.pth", "vectors": str(home / "glove.txt")}))
    with pytest.raises(InputError, match=r"there is no file gone.txt"):
        make(spec(home, cove={"weights": "w", "vectors": "gone.txt"}))
    with pytest.raises(InputError, match=r"recipe\.cove is incomplete: .* 'weights'"):
        spec(home, cove={"vectors": "a.txt"})
    small = StaticVectors.of("small.txt", {"a": [1.0, 2.0]})
    chosen = spec(home)
    for vectors, given in ((small, r"small.txt with 2"), (None, "none")):
        with pytest.raises(InputError, match=rf"of 300 dimensions \(GloVe 840B\) and .* {given}:"):
            encoders.make_inputs(chosen, {}, vectors, None)
    named = read_recipe("sst", ["cove.weights=w.pth", "elmo=none"])
    assert named.cove.weights == "w.pth" and named.vectors == "glove"
