import json

import numpy as np
import pytest

from torchelmo.config import CharacterConfig, TokenizerConfig
from torchelmo.errors import InputError
from torchelmo.pretrain.corpus import FILES, Corpus, character_config
from torchelmo.pretrain.prepare import PrepareOptions, prepare

TEXT = "물 a a\nb a\n\nc 물\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "t").write_text(TEXT, encoding="utf-8")
    (tmp_path / "v").write_text("a d\n", encoding="utf-8")
    options = PrepareOptions(
        tokenizer="whitespace",
        sentences="lines",
        characters="codepoints",
        alphabet_min_count=1,
        max_characters=5,
        vocab_size=5,
    )
    prepare([tmp_path / "t"], tmp_path / "out", options, valid=[tmp_path / "v"])
    return tmp_path / "out"


def change(folder, **facts):
    path = folder / "corpus.json"
    data = {**json.loads(path.read_text(encoding="utf-8")), **facts}
    path.write_text(json.dumps(data), encoding="utf-8")


def test_what_it_gives(folder):
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    corpus = Corpus.open(str(folder))
    assert (corpus.types, corpus.vocabulary_size) == (8, 5)
    assert corpus.vocabulary == ["<S>", "</S>", "<UNK>", "a", "물"]
    assert corpus.words == [*corpus.vocabulary, "b", "c", "d"]
    assert corpus.train.n_tokens == 7


def test_split_counts(folder):
    corpus = Corpus.open(folder)
    train, valid = corpus.train, corpus.valid
    assert (train.n_tokens, train.n_sentences, train.n_documents) == (7, 3, 2)
    assert (valid.n_tokens, valid.n_sentences, valid.n_documents) == (2, 1, 1)
    assert train.tokens.dtype == np.int32
    assert train.sentences.dtype == train.documents.dtype == np.int64
    assert isinstance(train.tokens, np.memmap)
    assert not train.tokens.flags.writeable
    assert corpus.characters.dtype == np.uint16
    assert corpus.alphabet == ["a", "물", "b", "c"]
    assert corpus.config.symbols == 4
    assert corpus.config.max_characters == 5
    assert corpus.tokenizer == TokenizerConfig(name="whitespace", version="1")
    assert corpus.facts["train"]["words"] == 7


def test_spelling_is_that_of_the_usual_model(folder):
    assert character_config("bytes", 50, 256) == CharacterConfig()
    assert character_config("jamo", 5, 70).filters[-1][0] == 5
    with pytest.raises(InputError, match="scheme is 'letters'"):
        character_config("letters", 50, 256)


def test_identity(folder, tmp_path):
    corpus = Corpus.open(folder)
    for name, options in (
        ("same", {}),
        ("vocabulary", {"vocab_size": 6}),
        ("alphabet", {"alphabet_min_count": 2}),
    ):
        chosen = PrepareOptions(**{**corpus_options(corpus), **options})
        prepare([tmp_path / "t"], tmp_path / name, chosen, valid=[tmp_path / "v"])
        assert (Corpus.open(tmp_path / name).sha256 == corpus.sha256) == (name == "same")


def corpus_options(corpus):
    settings = dict(corpus.facts["settings"])
    settings.pop("vocabulary_given")
    return settings


@pytest.mark.parametrize("name", sorted({*FILES} - {"vocab.txt", "words.txt"}))
def test_a_file_that_is_missing(folder, name):
    (folder / name).unlink()
    match = "no prepared corpus" if name == "corpus.json" else f"there is no file .*{name}"
    with pytest.raises(InputError, match=match):
        Corpus.open(folder)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(("s", "npy"))])
def test_a_file_that_was_cut(folder, name):
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:-2])
    with pytest.raises(InputError, match=rf"{name} (has \d+ bytes|is not a whole \.npy)"):
        Corpus.open(folder)


def test_word_lists_that_were_cut(folder):
    corpus = Corpus.open(folder)
    for name in ("vocab.txt", "words.txt"):
        (folder / name).write_text("<S>\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"vocab\.txt has 1 words, corpus\.json says 5"):
        _ = corpus.vocabulary
    with pytest.raises(InputError, match=r"words\.txt has 1 words"):
        _ = corpus.words


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"format_version": "2.0"}, r"has format version 2\.0, this torchelmo reads up to 1\.0"),
        ({"format_version": None}, "has no format_version"),
        ({"types": 9}, r"characters\.npy holds uint16 \(8, 5\), corpus\.json says uint16 \(9, 5\)"),
        ({"types": "many"}, "is not as prepare writes it"),
        ({"train": {}}, "is not as prepare writes it"),
        ({"tokenizer": None}, "is not as prepare writes it"),
        ({"sha256": None, "vocabulary": []}, "is not as prepare writes it"),
        (
            {"characters": {"scheme": "codepoints", "max_characters": 5, "symbols": 7}},
            r"characters\.txt has 4 symbols, corpus\.json says 7",
        ),
        (
            {"characters": {"scheme": "runes", "max_characters": 5, "symbols": 7}},
            "scheme is 'runes'",
        ),
    ],
)
def test_facts_that_do_not_fit(folder, facts, sentence):
    change(folder, **facts)
    with pytest.raises(InputError, match=sentence) as error:
        Corpus.open(folder)
    assert "\n" not in str(error.value)


def test_offsets_that_do_not_fit(folder):
    path = folder / "train.sentences"
    offsets = np.fromfile(path, dtype="<i8")
    offsets[-1] += 1
    path.write_bytes(offsets.tobytes())
    with pytest.raises(InputError, match=r"train\.sentences does not end at the last .* tokens"):
        Corpus.open(folder)


def test_an_alphabet_that_is_none(folder):
    (folder / "characters.txt").write_text("a\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"line 1 of .* is 'a', expected one such as 'U\+AC00'"):
        Corpus.open(folder)


def test_no_folder(tmp_path):
    with pytest.raises(InputError, match=r"no prepared corpus.*torchelmo prepare"):
        Corpus.open(tmp_path / "nowhere")
