import io
import json
import math
import shutil
import sys

import h5py
import pytest

from torchelmo.apps.cli import perplexity as command
from torchelmo.elmo import Elmo
from torchelmo.perplexity import WordText, text_perplexity
from torchelmo.scoring import Perplexity
from torchelmo.text.characters import MAX_WORD

KEYS = [
    "forward",
    "backward",
    "perplexity",
    "tokens",
    "unknown",
    "vocabulary",
    "sentences",
    "words",
    "characters",
    "perplexity_per_word",
    "bits_per_character",
]
LINES = ["The river bank was steep .", "the bank", "", "a boat on the river . . ."]

pytestmark = pytest.mark.filterwarnings("ignore:.*unused options")


@pytest.fixture(scope="module")
def model(fixtures):
    return fixtures / "plain"


@pytest.fixture(scope="module")
def elmo(model):
    return Elmo.from_pretrained(model, device="cpu")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def expected(elmo, sentences, raw=None, **options):
    text = WordText()
    text.add(sentences, raw)
    return text_perplexity(elmo.encoder, elmo.softmax, elmo.vocabulary, text, **options)


def given(run, *arguments):
    result = run("perplexity", *arguments, "--json", "--device", "cpu")
    assert result.code == 0, result.err
    return Perplexity(**json.loads(result.out)), result


def same(found, wanted):
    for key in KEYS:
        assert getattr(found, key) == pytest.approx(getattr(wanted, key), rel=1e-6), key


def test_help_fits_a_screen_and_shows_an_example(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = run("perplexity", "--help")
    lines = result.out.splitlines()
    assert result.code == 0
    assert len(lines) <= 32
    assert max(map(len, lines)) <= 80
    assert "Example: torchelmo perplexity" in lines[-1]
    assert "\n  perplexity " in run("--help").out


def test_json_has_the_documented_keys_and_values(run, model, elmo, file):
    found, result = given(run, model, file)
    assert list(json.loads(result.out)) == KEYS
    assert "\n" not in result.out.rstrip("\n")
    sentences = [line.split() for line in LINES if line]
    same(found, expected(elmo, sentences, "\n".join(LINES)))
    assert (found.sentences, found.words) == (3, 16)
    assert found.characters == sum(map(len, LINES))
    assert found.tokens == 16 + 3


@pytest.mark.parametrize("streams", [1, 2])
def test_streams(run, model, elmo, file, streams):
    sentences = [line.split() for line in LINES if line]
    wanted = expected(elmo, sentences, "\n".join(LINES), streams=streams)
    same(given(run, model, file, "--streams", streams)[0], wanted)


def test_raw_text_is_split_into_sentences_and_words(run, model, elmo, tmp_path):
    raw = "The river bank (steep) was wet. Who fell?\r\n\r\n  It's a boat.\r\n"
    path = tmp_path / "raw.txt"
    path.write_bytes(b"\xef\xbb\xbf" + raw.encode())
    words = ["The river bank (steep) was wet.", "Who fell?", "It's a boat."]
    wanted = expected(elmo, elmo.words(words), raw)
    assert wanted.tokens > len(raw.split()) + 3
    found, _ = given(run, model, path, "--tokenize")
    same(found, wanted)
    assert (found.sentences, found.words) == (3, 11)
    assert found.characters == len(raw.replace("\r\n", ""))


def test_standard_input(run, model, file, monkeypatch):
    wanted, _ = given(run, model, file)
    stream = io.TextIOWrapper(io.BytesIO(file.read_bytes()), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", stream)
    same(given(run, model, "-")[0], wanted)


def test_rows_as_bilm_tf_has_them(run, model, elmo, file):
    """There a blank line is a sentence; the end of the longer row is dropped, and that is said."""
    wanted = expected(
        elmo, [line.split() for line in LINES], "\n".join(LINES), rows="bilm", streams=2
    )
    found, result = given(run, model, file, "--rows", "bilm", "--batch", 2)
    same(found, wanted)
    assert found.sentences == 4
    # rows: 7 and then nothing; 3 + 1 + 9
    assert found.tokens == 2 * 7
    assert "6 of 20 predictions" in result.err
    found, result = given(run, model, file, "--rows", "bilm", "--batch", 1)
    assert found.tokens == 20
    assert result.err == ""


@pytest.mark.parametrize("variant", ["basic", "one_layer"])
def test_the_original_programs_figures(run, shared, tmp_path, variant):
    made = shared / "fixtures/tf-generated"
    with h5py.File(made / f"training_{variant}.hdf5") as source:
        (tmp_path / "o.json").write_text(source.attrs["options"], encoding="utf-8")
        (tmp_path / "v.txt").write_text(source.attrs["vocab"], encoding="utf-8")
        (tmp_path / "t.txt").write_text(source.attrs["data"], encoding="utf-8")
        with h5py.File(tmp_path / "s.hdf5", "w") as softmax:
            source["final/lm"].copy("softmax", softmax)
        figures = {b: float(source.attrs[f"test_perplexity_batch_size_{b}"]) for b in (1, 2)}
    files = ["--options", "o.json", "--vocabulary", "v.txt", "--softmax", "s.hdf5"]
    weights = made / f"dump_weights_{variant}.hdf5"
    for batch, figure in figures.items():
        found, _ = given(run, weights, "t.txt", "--rows", "bilm", "--batch", batch, *files)
        assert found.perplexity == pytest.approx(figure, rel=1e-6)


def test_for_people(run, model, file):
    result = run("perplexity", model, file, "--device", "cpu")
    found, _ = given(run, model, file)
    assert result.code == 0
    assert f"{found.perplexity:,.2f} (forward {found.forward:,.2f}" in result.out
    assert f"{found.unknown} ({found.unknown / found.tokens:.2%}) charged as <UNK>" in result.out
    assert "16 words, 59 characters" in result.out


def test_infinite_is_null():
    found = Perplexity.from_nats(
        2e3, 2e3, tokens=1, unknown=0, vocabulary=5, sentences=1, words=1, characters=9
    )
    assert found.perplexity_per_word == math.inf
    facts = json.loads(command.as_line(found))
    assert facts["perplexity_per_word"] is None
    assert facts["bits_per_character"] == pytest.approx(2e3 / math.log(2) / 9)


# Bad input


@pytest.mark.parametrize(
    ("missing", "word"), [("softmax.hdf5", "softmax.safetensors"), ("vocab.txt", "vocab.txt")]
)
def test_a_model_that_cannot_score(run, model, file, tmp_path, missing, word):
    shutil.copytree(model, tmp_path / "lacking")
    (tmp_path / "lacking" / missing).unlink()
    sentence = run("perplexity", "lacking", file).sentence
    assert "this model has no" in sentence
    assert word in sentence


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "is empty"),
        (b"\n  \n\n", "only blank lines"),
        (b"fine\nna\xefve\n", "line 2 of text.txt is not UTF-8"),
        (b"a\0b\n", "NUL"),
        (b"x" * (MAX_WORD + 1), f"{MAX_WORD + 1:,} characters"),
    ],
)
def test_bad_text(run, model, tmp_path, content, word):
    (tmp_path / "text.txt").write_bytes(content)
    assert word in run("perplexity", model, "text.txt", "--device", "cpu").sentence


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--streams", 0], "--streams is 0"),
        (["--rows", "bilm", "--batch", -1], "--batch is -1"),
        (["--rows", "bilm", "--streams", 4], "give --batch"),
        (["--batch", 4], "--rows bilm"),
        (["--rows", "bilm"], "4 sentences, fewer than the 256 rows"),
        (["--rows", "columns"], "'slices', 'bilm'"),
        (["--device", "abacus"], "abacus"),
    ],
)
def test_bad_arguments(run, model, file, arguments, word):
    assert word in run("perplexity", model, file, *arguments).sentence


def test_bad_paths(run, model, tmp_path):
    assert "no file nowhere.txt" in run("perplexity", model, "nowhere.txt").sentence
    assert "is a folder" in run("perplexity", model, tmp_path).sentence
    (tmp_path / "a.txt").write_text("a\n", encoding="utf-8")
    assert "nowhere" in run("perplexity", "./nowhere", "a.txt", "--offline").sentence
    assert "FILE" in run("perplexity", model).sentence
