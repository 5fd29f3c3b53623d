"""Running text against the numpy reference, the original program, hand-worked sums, properties."""

import itertools
import json
import math

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import numpy_elmo
from torchelmo import perplexity as module
from torchelmo import scoring
from torchelmo.elmo import Elmo
from torchelmo.errors import InputError
from torchelmo.nn.softmax import Softmax
from torchelmo.perplexity import WordText, stream_scores, text_perplexity
from torchelmo.text.vocabulary import Vocabulary

ORIGINALS = ["basic", "clipped", "noskip_tanh", "one_layer", "no_projection"]


def load(folder):
    elmo = Elmo.from_pretrained(folder, device="cpu")
    return elmo.encoder, elmo.softmax, elmo.vocabulary


@pytest.fixture(scope="module")
def sentences(fixtures):
    return json.loads((fixtures / "sentences.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module", params=["plain", "words"])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def plain(fixtures):
    return load(fixtures / "plain")


def text_of(sentences):
    text = WordText()
    text.add(sentences)
    return text


def reference_nats(folder, slices):
    """Sums of negative log probabilities of slices, each read from zero, in float64."""
    model = numpy_elmo.read_folder(folder)
    output = numpy_elmo.read_softmax(folder / "softmax.hdf5", folder / "vocab.txt")
    sums = [0.0, 0.0]
    for part in slices:
        state = numpy_elmo.State()
        for words in part:
            marked = ["<S>", *words, "</S>"]
            for side, direction in enumerate(("forward", "backward")):
                order = marked if direction == "forward" else marked[::-1]
                # What is read last is never read: it is only predicted.
                inputs = model.token_layer.vectors(order[:-1])
                top = model.encoder.run_direction(direction, inputs, 0, state)[-1]
                sums[side] -= output.log_probabilities(top, order[1:]).sum()
    return sums


def slices_of(sentences, streams):
    """The slices, as the layout itself has them."""
    layout = module._slices(text_of(sentences).sentences, streams)
    borders = [*np.searchsorted(layout.ends, np.sort(layout.starts)).tolist(), len(sentences)]
    return [sentences[a:b] for a, b in itertools.pairwise(borders)]


def assert_close(found, expected):
    for key, value in vars(expected).items():
        assert getattr(found, key) == pytest.approx(value, rel=1e-6), key


# Values


@pytest.mark.parametrize("streams", [1, 3])
def test_carried_state_equals_the_reference(fixtures, name, sentences, streams):
    slices = slices_of(sentences, streams)
    assert len(slices) == streams
    forward, backward = reference_nats(fixtures / name, slices)
    found = text_perplexity(*load(fixtures / name), text_of(sentences), streams=streams, steps=7)
    tokens = sum(len(words) + 1 for words in sentences)
    assert found.tokens == tokens
    assert found.forward == pytest.approx(math.exp(forward / tokens), rel=1e-6)
    assert found.backward == pytest.approx(math.exp(backward / tokens), rel=1e-6)
    assert found.perplexity == pytest.approx(math.exp((forward + backward) / 2 / tokens), rel=1e-6)


def test_slices_of_one_sentence_are_sentences_from_zero(plain, sentences):
    alone = scoring.perplexity(*plain, sentences)
    for streams in (len(sentences), 32, 1000):
        assert_close(text_perplexity(*plain, text_of(sentences), streams=streams), alone)


def test_a_hand_worked_vocabulary(plain):
    """Logits that do not depend on the context: the softmax's bias alone speaks."""
    encoder, _, _ = plain
    vocabulary = Vocabulary(["tea", "<UNK>", "</S>", "<S>", "milk"])
    softmax = Softmax(5, encoder.bilm.config.lstm.projection)
    with torch.no_grad():
        softmax.weight.zero_()
        softmax.bias.copy_(torch.tensor([4.0, 1.0, 2.0, 1.0, 2.0]).log())  # p = 4/10 1/10 ...
    text = WordText()
    text.add([["milk", "tea"], []], "milk tea!\r\n")
    text.add([["jam"]], "  jam\n")
    text.add([], "\n")
    found = text_perplexity(encoder, softmax, vocabulary, text, streams=2, steps=2)
    ahead = 0.2 * 0.4 * 0.2 * 0.2 * 0.1 * 0.2  # milk tea </S> </S> <UNK> </S>
    behind = 0.4 * 0.2 * 0.1 * 0.1 * 0.1 * 0.1  # tea milk <S> <S> <UNK> <S>
    assert found.forward == pytest.approx(ahead ** (-1 / 6), rel=1e-5)
    assert found.backward == pytest.approx(behind ** (-1 / 6), rel=1e-5)
    assert found.perplexity == pytest.approx((ahead * behind) ** (-1 / 12), rel=1e-5)
    assert (found.tokens, found.unknown, found.vocabulary) == (6, 1, 5)
    assert (found.sentences, found.words, found.characters) == (3, 3, 9 + 5)
    assert found.perplexity_per_word == pytest.approx((ahead * behind) ** (-1 / 6), rel=1e-5)
    assert found.bits_per_character == pytest.approx(-math.log2(ahead * behind) / 2 / 14, rel=1e-5)


def original(shared, folder, variant):
    """The original program's weights, softmax, vocabulary, test text and figures."""
    made = shared / "fixtures/tf-generated"
    with h5py.File(made / f"training_{variant}.hdf5") as file:
        (folder / "options.json").write_text(file.attrs["options"], encoding="utf-8")
        (folder / "vocab.txt").write_text(file.attrs["vocab"], encoding="utf-8")
        with h5py.File(folder / "softmax.hdf5", "w") as softmax:
            file["final/lm"].copy("softmax", softmax)
        text = file.attrs["data"]
        figures = {b: float(file.attrs[f"test_perplexity_batch_size_{b}"]) for b in (1, 2)}
    elmo = Elmo.from_pretrained(
        options=folder / "options.json",
        weights=made / f"dump_weights_{variant}.hdf5",
        vocabulary=folder / "vocab.txt",
        softmax=folder / "softmax.hdf5",
        device="cpu",
    )
    return (elmo.encoder, elmo.softmax, elmo.vocabulary), text, figures


@pytest.mark.filterwarnings("ignore:.*unused options")
@pytest.mark.parametrize("variant", ORIGINALS)
def test_perplexities_of_the_original_program(shared, tmp_path, variant):
    scorer, lines, figures = original(shared, tmp_path, variant)
    text = text_of([line.split() for line in lines.splitlines()])
    for batch, figure in figures.items():
        found = text_perplexity(*scorer, text, rows="bilm", streams=batch)
        assert found.perplexity == pytest.approx(figure, rel=1e-6)
    # With one row nothing is dropped, and one slice is the same reading.
    whole = text_perplexity(*scorer, text, streams=1)
    assert whole.perplexity == pytest.approx(figures[1], rel=1e-6)
    assert whole.tokens == text.predictions


# Layouts


def lay_out(layout):
    """What each row reads, as (sentence, prediction in it)."""
    rows = []
    for start, length in zip(layout.starts, layout.lengths, strict=True):
        places = np.arange(start, start + length)
        number = np.searchsorted(layout.ends, places, side="right") - 1
        k = places - layout.ends[number]
        rows.append(list(zip(layout.order[number].tolist(), k.tolist(), strict=True)))
    return rows


lengths_of_sentences = st.lists(st.integers(0, 9), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None)
@given(lengths=lengths_of_sentences, streams=st.integers(1, 12))
def test_slices_hold_everything_once_in_order(lengths, streams):
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    rows = lay_out(module._slices(offsets, streams))
    assert len(rows) == min(streams, len(lengths))
    assert all(row[0][1] == 0 for row in rows)  # a slice starts with a sentence
    assert [len(row) for row in rows] == sorted((len(row) for row in rows), reverse=True)
    expected = [(s, k) for s, n in enumerate(lengths) for k in range(n + 1)]
    assert [pair for row in sorted(rows) for pair in row] == expected


def test_slices_are_about_equal():
    offsets = np.arange(0, 10_001, 10)  # a thousand sentences of ten words
    lengths = module._slices(offsets, 32).lengths
    assert lengths.max() - lengths.min() <= 11


@settings(max_examples=60, deadline=None)
@given(lengths=lengths_of_sentences, batch=st.integers(1, 6))
def test_rows_of_the_original_program(lengths, batch):
    """Step by step: each row reads on, or takes the next sentence; no sentence, no batch."""
    left = [(s, n) for s, n in enumerate(lengths)]
    current, expected = [[] for _ in range(batch)], [[] for _ in range(batch)]
    while True:
        column = []
        for row in range(batch):
            if not current[row] and left:
                sentence, n = left.pop(0)
                current[row] = [(sentence, k) for k in range(n + 1)]
            if current[row]:
                column.append(current[row].pop(0))
        if len(column) < batch:
            break
        for row, pair in enumerate(column):
            expected[row].append(pair)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if len(lengths) < batch:
        with pytest.raises(InputError, match=f"{len(lengths)} sentences, fewer than the {batch}"):
            module._taken(offsets, batch)
    else:
        assert lay_out(module._taken(offsets, batch)) == expected


# Properties


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_windows_and_blocks_change_nothing(plain, sentences, data):
    chosen = data.draw(st.lists(st.sampled_from(sentences), min_size=3, max_size=8))
    text = text_of(chosen)
    rows = data.draw(st.sampled_from(["slices", "bilm"]))
    streams = data.draw(st.integers(1, 3))
    whole = text_perplexity(*plain, text, rows=rows, streams=streams, steps=1000)
    steps, block = data.draw(st.integers(1, 9)), data.draw(st.sampled_from([1, 10, 40]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        patch.setattr(module, "WORDS", data.draw(st.sampled_from([1, 5])))
        parts = text_perplexity(*plain, text, rows=rows, streams=streams, steps=steps)
    assert_close(parts, whole)


def test_a_sentence_sees_the_one_before(plain, sentences):
    one = text_perplexity(*plain, text_of(sentences), streams=1)
    other = text_perplexity(*plain, text_of(sentences[::-1]), streams=1)
    assert abs(one.perplexity - other.perplexity) > 1e-4
    assert (one.tokens, one.unknown) == (other.tokens, other.unknown)


def test_any_numbers_and_a_part_of_a_text(plain, sentences):
    """Word numbers are the caller's own; offsets may be those of a part of the sentences."""
    encoder, softmax, vocabulary = plain
    text = text_of(sentences)
    names = ["</S>", *text.table[::-1], "<S>"]
    number = {word: i for i, word in enumerate(names)}

    class Part:
        tokens = np.array([number[text.table[i - 2]] for i in text.tokens], dtype=np.int32)
        sentences = text.sentences[2:9]

    asked = []

    def vectors(ids):
        asked.append(ids)
        rows = {"<S>": 0, "</S>": 1}
        return torch.stack(
            [
                encoder.vectors([])[rows[w]] if w in rows else encoder.vectors([w])[2]
                for w in (names[i] for i in ids)
            ]
        )

    def score_of(**options):
        return stream_scores(
            encoder.bilm,
            softmax,
            Part,
            vectors=vectors,
            begin=len(names) - 1,
            end=0,
            targets=lambda ids: vocabulary.ids(names[i] for i in ids),
            unknown=vocabulary.unknown,
            streams=2,
            **options,
        )

    seen = []
    score = score_of(progress=seen.append)
    expected = text_perplexity(*plain, text_of(sentences[2:8]), streams=2)
    assert math.exp(score.forward / score.tokens) == pytest.approx(expected.forward, rel=1e-6)
    assert math.exp(score.backward / score.tokens) == pytest.approx(expected.backward, rel=1e-6)
    assert (score.tokens, score.unknown) == (expected.tokens, expected.unknown)
    assert score.dropped == 0
    assert sum(seen) == score.tokens
    assert all(len(set(ids.tolist())) == len(ids) for ids in asked)
    for direction, other in (("forward", "backward"), ("backward", "forward")):
        one = score_of(directions=[direction])
        assert getattr(one, direction) == pytest.approx(getattr(score, direction), rel=1e-6)
        assert math.isnan(getattr(one, other))
        assert (one.tokens, one.unknown) == (score.tokens, score.unknown)


def test_dropped_tokens_are_taken_to_be_like_the_others(plain, sentences):
    text = text_of(sentences)
    found = text_perplexity(*plain, text, rows="bilm", streams=3)
    dropped = text.predictions - found.tokens
    assert dropped > 0
    assert found.tokens % 3 == 0
    nats = math.log(found.perplexity) * text.predictions
    assert found.bits_per_character == pytest.approx(nats / math.log(2) / found.characters)
    assert math.log(found.perplexity_per_word) == pytest.approx(nats / found.words)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("rows", ["slices", "bilm"])
def test_on_a_gpu(fixtures, plain, sentences, rows):
    elmo = Elmo.from_pretrained(fixtures / "plain", device="cuda")
    scorer = elmo.encoder, elmo.softmax, elmo.vocabulary
    found = text_perplexity(*scorer, text_of(sentences), rows=rows, streams=3, steps=4)
    expected = text_perplexity(*plain, text_of(sentences), rows=rows, streams=3)
    assert found.perplexity == pytest.approx(expected.perplexity, rel=1e-5)


def test_nothing_is_trained(plain, sentences):
    encoder, softmax, _ = plain
    for part in (encoder.bilm, softmax):
        assert all(p.grad is None for p in part.parameters())
    text_perplexity(*plain, text_of(sentences[:2]))
    for part in (encoder.bilm, softmax):
        assert all(p.grad is None for p in part.parameters())


# Bad input


def test_bad_arguments(plain):
    encoder, _, vocabulary = plain
    text = text_of([["a"], ["b"]])
    with pytest.raises(InputError, match=r"no softmax.*softmax\.safetensors"):
        text_perplexity(encoder, None, vocabulary, text)
    for empty in (WordText(), text_of([[], []])):
        with pytest.raises(InputError, match="no words"):
            text_perplexity(*plain, empty)
    with pytest.raises(InputError, match="streams is 0"):
        text_perplexity(*plain, text, streams=0)
    with pytest.raises(InputError, match="steps is -1"):
        text_perplexity(*plain, text, steps=-1)
    with pytest.raises(InputError, match="2 sentences, fewer than the 3 rows"):
        text_perplexity(*plain, text, rows="bilm", streams=3)
    with pytest.raises(InputError, match="list of words"):
        WordText().add(["a raw text"])
