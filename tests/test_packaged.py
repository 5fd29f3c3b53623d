"""The models in the package as they are: their files, and vectors for text of every kind.

Every test skips while its model is not there.
"""

import functools
import importlib.util
import json
import sys

import numpy as np
import pytest

from torchelmo.apps.cli import main
from torchelmo.elmo import Elmo
from torchelmo.formats import load, native

LIMIT = 45_000_000  # bytes a model
EXTRAS = {"kiwi": "kiwipiepy"}
# A sentence, a word of it, that word misspelt, and one that has nothing to do with it.
TYPOS = {
    "en-small": [
        ("The government will announce a new law .", "government", "goverment", "violin"),
        ("We will receive the letter tomorrow .", "receive", "recieve", "purple"),
        ("It was a beautiful garden with roses .", "beautiful", "beatiful", "seven"),
    ],
    "ko-small": [
        # Nouns alone: the same for a model of eojeol and for one of morphemes.
        ("대한민국 정부 발표 내용", "대한민국", "대한밍국", "냄비"),
        ("서울 지하철 요금 인상", "지하철", "지하첼", "구름"),
    ],
}
PLAIN = {
    "en-small": "The old man walked along the river and thought about his daughter.",
    "ko-small": "할머니는 시장에서 사과를 사서 집으로 돌아왔다.",
}
ODD = [
    "눈 이 내리 는 날 에 배 를 타 았 다 .",
    "القط نائم تحت الشجرة القديمة .",
    "猫 は 木 の 下 で 眠っ て いる 。",
    "Кот спит под старым деревом .",
    "I 😀 love 👩‍👩‍👧‍👦 and 🇰🇷 !",
    "e\u0301tude 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ﬁ ½ ① \u200b \ufeff \U0010ffff",
    "https://example.org/a?b=c&d=%20 :-) <b>bold</b> C++ 3.14e-10 $$$",
    "x" * 5000 + " " + "배" * 2000,
    "<S> </S> <UNK>",
    "a",
]


@functools.cache
def model(name):
    return Elmo.from_pretrained(name, device="cpu")


@pytest.fixture(params=["en-small", "ko-small"])
def name(request):
    if request.param not in load.packaged():
        pytest.skip(f"{request.param} is not in this package")
    return request.param


def plain(name):
    """The words of plain prose, as the model's tokeniser cuts it."""
    elmo = model(name)
    extra = EXTRAS.get(elmo.config.tokenizer.name)
    if extra is not None and importlib.util.find_spec(extra) is None:
        pytest.skip(f"{name} needs {extra} for raw text")
    return elmo.words(PLAIN[name])[0]


def cosine(a, b):
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def largest(name):
    """The length of the longest vector of plain prose, by layer."""
    return np.linalg.norm(model(name).layers([plain(name)])[0], axis=2).max(axis=1)


def test_files(name):
    folder = load.packaged()[name]
    assert sum(path.stat().st_size for path in folder.iterdir()) <= LIMIT
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "softmax.safetensors", "vocab.txt"} <= names
    assert {"README.md", "ATTRIBUTION.md"} <= names
    attribution = (folder / "ATTRIBUTION.md").read_text(encoding="utf-8")
    for said in ("CC BY-SA 4.0", "https://creativecommons.org/licenses/by-sa/4.0/", "Wikipedia"):
        assert said in attribution
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlicense: cc-by-sa-4.0\n") and "ATTRIBUTION.md" in card
    # Nothing of the machine it was made on.
    config = (folder / "config.json").read_text(encoding="utf-8")
    assert '"/' not in config and "C:\\" not in config


def test_the_model_is_whole(name):
    read = native.read(load.packaged()[name])
    assert read.softmax is not None and read.vocabulary is not None
    assert len(read.vocabulary) == len(set(read.vocabulary)) == len(read.softmax["weight"])
    for tensors in (read.tensors, read.softmax):
        assert all(np.isfinite(t.numpy()).all() for t in tensors.values())


def test_models_shows_it(name, monkeypatch, capsys):
    def shown(*arguments):
        monkeypatch.setattr(sys, "argv", ["torchelmo", "models", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code
        return capsys.readouterr().out

    (entry,) = [one for one in json.loads(shown("--json")) if one["name"] == name]
    assert entry["where"] == "packaged" and entry["licence"] == "cc-by-sa-4.0"
    table = shown().splitlines()
    assert any(line.startswith(f"{name} ") for line in table)
    assert any(line.startswith(f"{name}: Weights and vocabulary by") for line in table)
    assert "Attribution of " + name in shown(name)


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_every_script_gives_finite_vectors_and_context_of_usual_length(name, text):
    (layers,) = model(name).layers([text.split()])
    assert layers.shape == (3, len(text.split()), model(name).config.width)
    assert np.isfinite(layers).all()
    lengths = np.linalg.norm(layers, axis=2)
    assert (lengths > 0).all()
    # Bytes that ko-small has hardly read keep the long vectors they began with, so that its layer 0
    # is long in scripts foreign to it; clips in the LSTMs hold the layers above.
    first = {"ko-small": 20}.get(name, 5)
    assert (lengths.max(axis=1) < [first, 5, 5] * largest(name)).all()


def test_raw_text_of_every_script(name):
    elmo = model(name)
    assert plain(name)
    for text, vectors in zip(ODD, elmo.embed(ODD), strict=True):
        assert len(vectors) == len(elmo.tokenize(text)) > 0
        assert np.isfinite(vectors).all()
    empty, blank = elmo.embed(["", " \n"])
    assert empty.shape == blank.shape == (0, elmo.config.width)


def test_a_typo_is_near_what_was_meant(name):
    for text, word, typo, other in TYPOS[name]:
        words = text.split()
        place = words.index(word)
        changed = [[*words[:place], w, *words[place + 1 :]] for w in (word, typo, other)]
        right, wrong, far = model(name).layers(changed)
        for layer in range(3):
            near = cosine(right[layer, place], wrong[layer, place])
            assert near > cosine(right[layer, place], far[layer, place]), (text, layer)
        # The other words hardly change.
        rest = [cosine(a, b) for a, b in zip(right[2], wrong[2], strict=True)]
        assert np.mean(rest) > 0.8, text


def test_context_changes_a_vector_and_spelling_does_not(name):
    words = plain(name)
    (whole,), (alone,) = model(name).layers([words]), model(name).layers([words[-4:]])
    np.testing.assert_allclose(whole[0, -4:], alone[0], atol=1e-5)
    for layer in (1, 2):
        assert cosine(whole[layer, -4], alone[layer, 0]) < 0.99


def test_a_sentence_of_a_thousand_tokens(name):
    words = plain(name)
    long = (words * 200)[:1000]
    (layers,), (short,) = model(name).layers([long]), model(name).layers([words])
    assert layers.shape[1] == 1000 and np.isfinite(layers).all()
    assert (np.linalg.norm(layers, axis=2).max(axis=1) < 5 * largest(name)).all()
    # A word of the 40th repetition is like itself in the sentence alone, more than other words are.
    begin = 40 * len(words)
    inside = layers[:, begin : begin + len(words)]
    for layer in (1, 2):
        table = [[cosine(a, b) for b in short[layer]] for a in inside[layer]]
        found = np.argmax(table, axis=1)
        same = [words[i] == words[j] for i, j in enumerate(found)]
        assert np.mean(same) > 0.8
    # The forward half has read nothing to the right: the beginning is that of a short sentence.
    half = layers.shape[2] // 2
    (first,) = model(name).layers([long[:50]])
    np.testing.assert_allclose(layers[:, :50, :half], first[:, :, :half], atol=1e-4)


def test_two_runs_are_identical(name):
    texts = [*(text.split() for text in ODD), plain(name)]
    first, other = (Elmo.from_pretrained(name, device="cpu") for _ in range(2))
    runs = [first.layers(texts), other.layers(texts), first.layers(texts)]
    for one, two, again in zip(*runs, strict=True):
        assert np.array_equal(one, two)
        # Words seen before come from a table; they may differ by rounding from those made anew.
        np.testing.assert_allclose(one, again, atol=2e-5)


def test_other_sentences_of_a_batch_do_not_matter(name):
    texts = [*(text.split() for text in ODD), plain(name)]
    together = model(name).layers(texts)
    for words, array in zip(texts, together, strict=True):
        (alone,) = model(name).layers([words])
        np.testing.assert_allclose(array, alone, atol=2e-5)


def test_prose_is_likelier_than_its_words_in_disorder(name):
    words = plain(name)
    right, wrong = model(name).score([words, sorted(words)])
    assert right.forward_sum > wrong.forward_sum and right.backward_sum > wrong.backward_sum
    assert right.unknown <= len(words) // 4
