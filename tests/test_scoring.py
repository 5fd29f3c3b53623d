"""Scores against the numpy reference, the original program, hand-worked sums, and properties."""

import json
import math
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import numpy_elmo
from torchelmo import scoring
from torchelmo.elmo import Elmo
from torchelmo.encoder import Encoder
from torchelmo.errors import InputError
from torchelmo.formats import bilm_tf
from torchelmo.nn.softmax import Softmax
from torchelmo.text.characters import Characters
from torchelmo.text.vocabulary import Vocabulary

SPECIALS = {"<S>", "</S>", "<UNK>"}
MODELS = ["plain", "words"]


def load(folder):
    model = bilm_tf.read(
        folder / "options.json",
        folder / "weights.hdf5",
        vocabulary=folder / "vocab.txt",
        softmax=folder / "softmax.hdf5",
    )
    spelling = model.config.characters and Characters(model.config.characters)
    words = None if model.words is None else Vocabulary(model.words)
    softmax = Softmax(*model.softmax["weight"].shape)
    softmax.load_state_dict(dict(model.softmax))
    return Encoder(model.build(), spelling, words), softmax, Vocabulary(model.vocabulary)


@pytest.fixture(scope="module")
def sentences(fixtures):
    return json.loads((fixtures / "sentences.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module", params=MODELS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def scorer(fixtures, name):
    return load(fixtures / name)


@pytest.fixture(scope="module")
def plain(fixtures):
    return load(fixtures / "plain")


def reference_top(fixtures, name, words):
    """The reference's softmax and the two halves of its top layer, boundaries kept."""
    folder = fixtures / name
    output = numpy_elmo.read_softmax(folder / "softmax.hdf5", folder / "vocab.txt")
    values = numpy_elmo.run(numpy_elmo.read_folder(folder), [words]).with_boundaries[0]
    width = values.shape[2] // 2
    return output, values[-1, :, :width], values[-1, :, width:]


def log_softmax(output, hidden):
    """ln p of every word from one hidden vector, in float64."""
    logits = output.weight @ hidden + output.bias
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


# Log probabilities


def test_log_probabilities_equal_the_reference(fixtures, name, scorer, sentences):
    scores = scoring.log_probabilities(*scorer, sentences)
    assert len(scores) == len(sentences)
    with h5py.File(fixtures / name / "expected.hdf5") as file:
        expected = file["log_probabilities"]
        for i, score in enumerate(scores):
            np.testing.assert_allclose(score.forward, expected[f"forward/{i}"][...], atol=2e-6)
            np.testing.assert_allclose(score.backward, expected[f"backward/{i}"][...], atol=2e-6)
            assert score.forward.dtype == np.float32
            assert len(score.forward) == len(score.backward) == len(sentences[i]) + 1
            assert score.forward_sum == pytest.approx(expected[f"forward/{i}"][...].sum(), abs=1e-5)
            assert score.backward_sum == pytest.approx(
                expected[f"backward/{i}"][...].sum(), abs=1e-5
            )


def test_unknown_words_are_counted_and_scored_as_unknown(plain):
    _, _, vocabulary = plain
    known = [w for w in vocabulary.words if w not in SPECIALS][:2]
    (score,) = scoring.log_probabilities(*plain, [[known[0], "zyzzyva", known[1], "qwxyz"]])
    assert score.unknown == 2
    # The word itself is read by its spelling: another unknown word changes what comes after it.
    (other,) = scoring.log_probabilities(*plain, [[known[0], "abaca", known[1], "qwxyz"]])
    assert score.forward[1] == pytest.approx(other.forward[1], abs=1e-6)
    assert abs(score.forward[2] - other.forward[2]) > 1e-6


def test_a_hand_worked_vocabulary(plain):
    """Logits that do not depend on the context: the softmax's bias alone speaks."""
    encoder, _, _ = plain
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", "tea", "milk"])
    softmax = Softmax(5, encoder.bilm.config.lstm.projection)
    with torch.no_grad():
        softmax.weight.zero_()
        softmax.bias.copy_(torch.tensor([1.0, 2.0, 1.0, 4.0, 2.0]).log())  # p = 1/10 2/10 ...
    (score,) = scoring.log_probabilities(encoder, softmax, vocabulary, [["milk", "tea", "jam"]])
    np.testing.assert_allclose(np.exp(score.forward), [0.2, 0.4, 0.1, 0.2], rtol=1e-5)
    np.testing.assert_allclose(np.exp(score.backward), [0.1, 0.2, 0.4, 0.1], rtol=1e-5)
    assert score.unknown == 1
    found = scoring.perplexity(encoder, softmax, vocabulary, [["milk", "tea", "jam"], []])
    # forward: 0.2 0.4 0.1 0.2 and 0.2 for the empty sentence; backward: the same with 0.1 for <S>
    assert found.forward == pytest.approx((0.2 * 0.4 * 0.1 * 0.2 * 0.2) ** (-1 / 5), rel=1e-5)
    assert found.backward == pytest.approx((0.1 * 0.2 * 0.4 * 0.1 * 0.1) ** (-1 / 5), rel=1e-5)
    assert found.perplexity == pytest.approx(math.sqrt(found.forward * found.backward), rel=1e-9)
    assert (found.tokens, found.unknown, found.sentences) == (5, 1, 2)
    assert (found.vocabulary, found.words, found.characters) == (5, 3, len("milk tea jam"))
    # 2^-bits for each of the 12 characters is the probability of it all
    whole = math.sqrt(0.2 * 0.4 * 0.1 * 0.2 * 0.2 * 0.1 * 0.2 * 0.4 * 0.1 * 0.1)
    assert 2 ** (-12 * found.bits_per_character) == pytest.approx(whole, rel=1e-5)
    assert found.perplexity_per_word**-3 == pytest.approx(whole, rel=1e-5)
    gap = scoring.substitutes(encoder, softmax, vocabulary, ["a", "___", "b"], 1)
    assert [s.word for s in gap] == ["tea", "milk"]
    assert gap[0].score == pytest.approx(2 * math.log(0.4), rel=1e-5)
    after = scoring.next_words(encoder, softmax, vocabulary, [])
    assert after[0].word == "tea"
    assert after[0].score == pytest.approx(math.log(0.4), rel=1e-5)
    assert {p.word for p in after} == {"tea", "milk", "</S>"}
    before = scoring.previous_words(encoder, softmax, vocabulary, [])
    assert {p.word for p in before} == {"tea", "milk", "<S>"}


@pytest.mark.parametrize("piece", [1, 7, 60, 1 << 23])
@pytest.mark.parametrize("batch_tokens", [1, 20, None])
def test_chunks_change_nothing(plain, sentences, piece, batch_tokens):
    whole = scoring.log_probabilities(*plain, sentences)
    parts = scoring.log_probabilities(*plain, sentences, piece=piece, batch_tokens=batch_tokens)
    for a, b in zip(whole, parts, strict=True):
        np.testing.assert_allclose(a.forward, b.forward, atol=2e-6)
        np.testing.assert_allclose(a.backward, b.backward, atol=2e-6)


def test_rows_and_windows_change_nothing(plain, sentences, monkeypatch):
    whole = scoring.log_probabilities(*plain, sentences)
    monkeypatch.setattr(scoring, "ROWS", 3)
    monkeypatch.setattr(scoring, "WINDOW", 2)
    for a, b in zip(whole, scoring.log_probabilities(*plain, sentences), strict=True):
        np.testing.assert_allclose(a.forward, b.forward, atol=2e-6)
        np.testing.assert_allclose(a.backward, b.backward, atol=2e-6)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_order_and_company_change_nothing(plain, sentences, data):
    chosen = data.draw(st.lists(st.integers(0, len(sentences) - 1), min_size=1, max_size=6))
    together = scoring.log_probabilities(*plain, [sentences[i] for i in chosen])
    for i, score in zip(chosen, together, strict=True):
        (alone,) = scoring.log_probabilities(*plain, [sentences[i]])
        np.testing.assert_allclose(score.forward, alone.forward, atol=2e-6)
        np.testing.assert_allclose(score.backward, alone.backward, atol=2e-6)


def test_probabilities_of_all_words_sum_to_one(plain):
    _, _, vocabulary = plain
    sentences = [["the", word] for word in vocabulary.words]
    scores = scoring.log_probabilities(*plain, sentences)
    assert sum(math.exp(score.forward[1]) for score in scores) == pytest.approx(1, abs=1e-5)
    sentences = [[word, "the"] for word in vocabulary.words]
    scores = scoring.log_probabilities(*plain, sentences)
    assert sum(math.exp(score.backward[1]) for score in scores) == pytest.approx(1, abs=1e-5)


# Perplexity


def test_perplexity_is_of_the_reference_sums(fixtures, name, scorer, sentences):
    with h5py.File(fixtures / name / "expected.hdf5") as file:
        sums = {
            side: sum(
                file[f"log_probabilities/{side}/{i}"][...].sum() for i in range(len(sentences))
            )
            for side in ("forward", "backward")
        }
    tokens = sum(len(words) + 1 for words in sentences)
    found = scoring.perplexity(*scorer, iter(sentences))
    assert found.forward == pytest.approx(math.exp(-sums["forward"] / tokens), rel=1e-6)
    assert found.backward == pytest.approx(math.exp(-sums["backward"] / tokens), rel=1e-6)
    mean = math.exp(-(sums["forward"] + sums["backward"]) / (2 * tokens))
    assert found.perplexity == pytest.approx(mean, rel=1e-6)
    assert found.tokens == tokens
    assert found.sentences == len(sentences)
    known = set(scorer[2].words) - {"<UNK>"}
    assert found.unknown == sum(word not in known for words in sentences for word in words)
    assert found.vocabulary == len(scorer[2])
    text = [" ".join(words) for words in sentences]
    assert found.words == sum(map(len, sentences))
    assert found.characters == sum(map(len, text))
    nats = -(sums["forward"] + sums["backward"]) / 2
    assert found.perplexity_per_word == pytest.approx(math.exp(nats / found.words), rel=1e-6)
    bits = nats / math.log(2) / found.characters
    assert found.bits_per_character == pytest.approx(bits, rel=1e-6)


def test_an_impossible_word_has_infinite_perplexity(plain):
    encoder, softmax, vocabulary = plain
    certain = Softmax(*softmax.weight.shape)
    with torch.no_grad():
        certain.weight.zero_()
        certain.bias.fill_(-1e4)
        certain.bias[vocabulary.end] = 0.0
    assert scoring.perplexity(encoder, certain, vocabulary, [["the"]]).forward == math.inf


@pytest.mark.parametrize(
    "variant", ["basic", "clipped", "noskip_tanh", "one_layer", "no_projection"]
)
def test_losses_of_the_original_program(shared, tmp_path, variant):
    """bilm-tf's first training step starts from zero at the head (the tail) of three sentences."""
    renamed = {
        "rnn/": "RNN/",
        "multi_rnn_cell/cell_": "MultiRNNCell/Cell",
        "lstm_cell/": "LSTMCell/",
        "projection/kernel": "W_P_0",
        "/kernel": "/W_0",
        "/bias": "/B",
    }
    with h5py.File(shared / f"fixtures/tf-generated/training_{variant}.hdf5") as file:
        (tmp_path / "options.json").write_text(file.attrs["options"], encoding="utf-8")
        (tmp_path / "vocab.txt").write_text(file.attrs["vocab"], encoding="utf-8")

        def copy(path, item):
            if isinstance(item, h5py.Dataset):
                for old, new in renamed.items():
                    path = path.replace(old, new)
                target = softmax if path.startswith("softmax") else weights
                target[path] = item[...]

        with (
            h5py.File(tmp_path / "weights.hdf5", "w") as weights,
            h5py.File(tmp_path / "softmax.hdf5", "w") as softmax,
        ):
            file["initial/lm"].visititems(copy)
        sentences = [line.split() for line in file.attrs["data"].split("\n")]
        targets = [file[f"batches/0/next_token_id{side}"][...] for side in ("", "_reverse")]
        expected = file["losses_forward_backward"][0]
    scorer = load(tmp_path)
    scores = scoring.log_probabilities(*scorer, sentences)
    encoded = [scorer[2].encode(words) for words in sentences]
    steps = targets[0].shape[1]
    # Both in the order of reading: forward w1 w2 ... </S>, backward wn ... w1 <S>.
    ahead = {tuple(ids[1 : steps + 1]): s.forward for ids, s in zip(encoded, scores, strict=True)}
    behind = {
        tuple(ids[::-1][1 : steps + 1]): s.backward[::-1]
        for ids, s in zip(encoded, scores, strict=True)
    }
    for table, rows, loss in zip((ahead, behind), targets, expected, strict=True):
        found = np.mean([table[tuple(row)][:steps] for row in rows])
        assert -found == pytest.approx(loss, abs=1e-5)


# Predictions


def test_next_and_previous_words_equal_the_reference(fixtures, name, scorer):
    for words in (["The", "river", "bank"], ["the"], []):
        output, forward, backward = reference_top(fixtures, name, words)
        for found, hidden, left_out in (
            (scoring.next_words(*scorer, words, 5), forward[-2], {"<S>", "<UNK>"}),
            (scoring.previous_words(*scorer, words, 5), backward[1], {"</S>", "<UNK>"}),
        ):
            logs = dict(zip(output.vocabulary, log_softmax(output, hidden), strict=True))
            ranked = sorted((w for w in logs if w not in left_out), key=lambda w: -logs[w])[:5]
            assert [p.word for p in found] == ranked
            np.testing.assert_allclose(
                [p.score for p in found], [logs[w] for w in ranked], atol=2e-6
            )


def test_substitutes_equal_the_reference(fixtures, name, scorer):
    words = ["The", "river", "bank", "was", "steep"]
    for position in range(len(words)):
        output, forward, backward = reference_top(fixtures, name, words)
        left = log_softmax(output, forward[position])
        right = log_softmax(output, backward[position + 2])
        table = {
            w: (a + b, a, b)
            for w, a, b in zip(output.vocabulary, left, right, strict=True)
            if w not in SPECIALS
        }
        ranked = sorted(table, key=lambda w: -table[w][0])
        found = scoring.substitutes(*scorer, words, position, count=len(table) + 10)
        assert [s.word for s in found] == ranked
        np.testing.assert_allclose([s[1:] for s in found], [table[w] for w in ranked], atol=4e-6)
        assert [s.word for s in scoring.substitutes(*scorer, words, position, 3)] == ranked[:3]


def test_the_word_in_the_gap_does_not_matter(plain):
    one = scoring.substitutes(*plain, ["The", "river", "bank"], 1)
    other = scoring.substitutes(*plain, ["The", "___", "bank"], 1)
    assert [s.word for s in one] == [s.word for s in other]
    np.testing.assert_allclose([s.score for s in one], [s.score for s in other], atol=1e-6)


@pytest.mark.parametrize("piece", [1, 5, 1 << 23])
def test_likeliest_in_pieces(plain, piece):
    _, softmax, _ = plain
    hidden = torch.randn(7, 2, softmax.weight.shape[1], generator=torch.Generator().manual_seed(1))
    logs = torch.log_softmax(softmax(hidden), dim=-1)  # (G, R, V)
    sums = logs.sum(dim=1)
    sums[:, [0, 4]] = -torch.inf
    ids, found = scoring.likeliest(softmax, hidden, 6, [0, 4], piece=piece)
    assert ids == sums.topk(6, dim=1).indices.tolist()
    expected = logs.gather(2, torch.tensor(ids)[:, None].expand(-1, 2, -1))
    np.testing.assert_allclose(found, expected.detach().numpy(), atol=2e-6)


# Bad input


def test_missing_parts_are_named(plain):
    encoder, softmax, vocabulary = plain
    with pytest.raises(InputError, match=r"no softmax.*softmax\.safetensors"):
        scoring.perplexity(encoder, None, vocabulary, [["a"]])
    with pytest.raises(InputError, match=r"no vocabulary.*vocab\.txt"):
        scoring.next_words(encoder, softmax, None, ["a"])
    with pytest.raises(InputError, match="20 rows and the vocabulary 3 words"):
        scoring.previous_words(encoder, softmax, Vocabulary(["<S>", "</S>", "<UNK>"]), ["a"])
    lacking = Vocabulary([w for w in vocabulary.words if w != "<UNK>"] + ["filler"])
    with pytest.raises(InputError, match="<UNK>"):
        scoring.log_probabilities(encoder, softmax, lacking, [["a"]])


def test_bad_arguments(plain):
    with pytest.raises(InputError, match="position 3 was given for a sentence of 3 words"):
        scoring.substitutes(*plain, ["a", "b", "c"], 3)
    with pytest.raises(InputError, match="position -1"):
        scoring.substitutes(*plain, ["a", "b", "c"], -1)
    with pytest.raises(InputError, match="at least one"):
        scoring.next_words(*plain, ["a"], 0)
    with pytest.raises(InputError, match="no sentence"):
        scoring.perplexity(*plain, [])
    with pytest.raises(InputError, match="list of words"):
        scoring.log_probabilities(*plain, ["one raw text"])
    assert scoring.log_probabilities(*plain, []) == []


# Through Elmo


@pytest.fixture(scope="module")
def elmo(fixtures):
    return Elmo.from_pretrained(fixtures / "plain", device="cpu")


def test_elmo_scores_and_perplexity(elmo, plain, sentences):
    expected = scoring.log_probabilities(*plain, sentences)
    for found, score in zip(elmo.score(sentences), expected, strict=True):
        np.testing.assert_allclose(found.forward, score.forward, atol=1e-6)
    found = scoring.perplexity(*plain, sentences).perplexity
    assert elmo.perplexity(sentences).perplexity == pytest.approx(found, rel=1e-6)
    assert elmo.perplexity("the river bank").tokens == 4  # a string is one sentence
    raw = elmo.perplexity(["the  river\n", "(the bank)"])  # words and characters as written
    assert (raw.words, raw.characters) == (4, 20)
    assert elmo.perplexity(["the river", "the bank"]).sentences == 2


@pytest.mark.parametrize(
    ("sentence", "position"),
    [
        ("the river ___ was steep", None),
        ("the river _____ was steep", None),
        (["the", "river", "___", "was", "steep"], None),
        ("the river bank was steep", 2),
        (["the", "river", "bank", "was", "steep"], 2),
    ],
)
def test_elmo_substitutes(elmo, plain, sentence, position):
    words = ["the", "river", "bank", "was", "steep"]
    expected = scoring.substitutes(*plain, words, 2, 4)
    found = elmo.substitutes(sentence, position, count=4)
    assert [s.word for s in found] == [s.word for s in expected]
    np.testing.assert_allclose([s.score for s in found], [s.score for s in expected], atol=1e-6)


@pytest.mark.parametrize("edge", ["___ was steep .", "the river ___", "___"])
def test_a_gap_at_the_edge(elmo, edge):
    assert len(elmo.substitutes(edge, count=3)) == 3


@pytest.mark.parametrize("sentence", ["no gap here", "___ and ___", ["no", "gap"], ["___", "___"]])
def test_one_gap_is_needed(elmo, sentence):
    with pytest.raises(InputError, match="write ___ where the word goes"):
        elmo.substitutes(sentence)
    with pytest.raises(InputError, match="no softmax"):
        Elmo(replace(elmo.to_model(), softmax=None)).perplexity("a text")
