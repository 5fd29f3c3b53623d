import gzip
import io
import json
import lzma
import os
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchelmo.config import TokenizerConfig
from torchelmo.errors import InputError, MissingExtra
from torchelmo.pretrain import prepare as module
from torchelmo.pretrain.corpus import Corpus
from torchelmo.pretrain.prepare import PrepareOptions, prepare
from torchelmo.text.characters import Characters

PLAIN = PrepareOptions(tokenizer="whitespace", sentences="lines", valid_share=0.0)
DOCUMENTS = """\
The kiln cooled overnight. By noon the cups were dry.
Nobody touched them.

"Is it raining?" she asked. It was.

The cups broke. The kiln did not.
"""


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def sentences(corpus, split):
    """The text of a split, as documents of sentences of words."""
    words, part = corpus.words, getattr(corpus, split)
    lines = [
        [words[i] for i in part.tokens[a:b]]
        for a, b in zip(part.sentences[:-1], part.sentences[1:], strict=True)
    ]
    return [lines[a:b] for a, b in zip(part.documents[:-1], part.documents[1:], strict=True)]


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def made(tmp_path, text, options=PLAIN, **more):
    report = prepare([write(tmp_path / "in.txt", text)], tmp_path / "out", options, **more)
    return report, Corpus.open(tmp_path / "out")


def test_ids_and_offsets_by_hand(tmp_path):
    report, corpus = made(tmp_path, "b a a\nc b a\n\na d\n")
    assert corpus.words == ["<S>", "</S>", "<UNK>", "a", "b", "c", "d"]
    assert corpus.vocabulary == corpus.words
    assert corpus.train.tokens.tolist() == [4, 3, 3, 5, 4, 3, 3, 6]
    assert corpus.train.sentences.tolist() == [0, 3, 6, 8]
    assert corpus.train.documents.tolist() == [0, 2, 3]
    assert [corpus.valid.n_tokens, corpus.valid.n_sentences, corpus.valid.n_documents] == [0, 0, 0]
    assert corpus.characters.shape == (7, 50)
    assert np.array_equal(corpus.characters, Characters(corpus.config).encode(corpus.words))
    assert (report.types, report.vocabulary, report.coverage) == (7, 7, 100.0)
    assert (report.train.words, report.train.characters) == (8, 13)
    assert (
        contents(tmp_path / "out")["train.tokens"]
        == np.array([4, 3, 3, 5, 4, 3, 3, 6], dtype="<i4").tobytes()
    )


def test_coverage_by_hand(tmp_path):
    report, corpus = made(tmp_path, "b a a\nc b a <UNK>\n\na d\n", replace(PLAIN, vocab_size=5))
    assert corpus.vocabulary == ["<S>", "</S>", "<UNK>", "a", "b"]
    assert corpus.words == ["<S>", "</S>", "<UNK>", "a", "b", "c", "d"]
    assert corpus.train.tokens.tolist() == [4, 3, 3, 5, 4, 3, 2, 3, 6]
    assert (report.train.tokens, report.train.unknown) == (9, 3)  # c, d and <UNK> itself
    assert report.coverage == 66.6667
    _, corpus = made(tmp_path, "b a a\nc b a\n\na d\n", replace(PLAIN, min_count=2), overwrite=True)
    assert corpus.vocabulary_size == 5


def test_raw_text_is_split_into_sentences_and_words(tmp_path):
    report, corpus = made(tmp_path, DOCUMENTS, PrepareOptions(valid_share=0))
    assert sentences(corpus, "train") == [
        [
            "The kiln cooled overnight .".split(),
            "By noon the cups were dry .".split(),
            "Nobody touched them .".split(),
        ],
        [['"', "Is", "it", "raining", "?", '"', "she", "asked", "."], ["It", "was", "."]],
        ["The cups broke .".split(), "The kiln did not .".split()],
    ]
    assert report.train.words == 27
    assert corpus.tokenizer.name == "words"


def test_blank_lines_or_blocks(tmp_path):
    options = replace(PLAIN, block_lines=2)
    _, corpus = made(tmp_path, "a\nb\nc\nd\ne\n", options)
    assert corpus.train.documents.tolist() == [0, 2, 4, 5]
    # blank lines around the text separate nothing, whatever white space they have
    _, corpus = made(tmp_path, "\n \na\nb\nc\n\t\n\n", options, overwrite=True)
    assert corpus.train.documents.tolist() == [0, 2, 3]
    _, corpus = made(tmp_path, "a\nb\nc\n \n\u3000\nd\r\n\r\ne", options, overwrite=True)
    assert corpus.train.documents.tolist() == [0, 3, 4, 5]


def test_documents_end_with_their_file(tmp_path):
    options = replace(PLAIN, block_lines=2)
    a, b = write(tmp_path / "a", "a\nb\nc\n"), write(tmp_path / "b", "d\n\ne\n")
    prepare([a, b], tmp_path / "out", options)
    assert Corpus.open(tmp_path / "out").train.documents.tolist() == [0, 2, 3, 4, 5]


def test_records_are_documents(tmp_path):
    records = [
        {"body": "One line.\nTwo lines? Yes.", "id": 1},
        {"body": " \n", "id": 2},
        {"body": "\n\nOne line.\n\nAgain.", "id": 3},
    ]
    text = "\n".join(map(json.dumps, records)) + "\n\n"
    options = PrepareOptions(valid_share=0, field="body")
    prepare([write(tmp_path / "a.jsonl", text)], tmp_path / "plain", options)
    corpus = Corpus.open(tmp_path / "plain")
    assert sentences(corpus, "train") == [
        [["One", "line", "."], ["Two", "lines", "?"], ["Yes", "."]],
        [["One", "line", "."], ["Again", "."]],
    ]
    packed = write(tmp_path / "a.jsonl.gz", gzip.compress(text.encode()))
    prepare([packed], tmp_path / "packed", options)
    assert Corpus.open(tmp_path / "packed").sha256 == corpus.sha256
    stream = io.BytesIO(text.encode())
    prepare([stream], tmp_path / "stream", replace(options, form="jsonl"))
    assert Corpus.open(tmp_path / "stream").sha256 == corpus.sha256


def test_one_record_is_one_document_even_if_long(tmp_path):
    text = json.dumps({"text": "a\n" * 10})
    prepare([write(tmp_path / "a.jsonl", text)], tmp_path / "out", replace(PLAIN, block_lines=2))
    assert Corpus.open(tmp_path / "out").train.documents.tolist() == [0, 10]


def test_however_text_comes_it_is_the_same(tmp_path):
    text = DOCUMENTS.encode()
    ways = {
        "plain.txt": text,
        "packed.txt.gz": gzip.compress(text),
        "packed.txt.xz": lzma.compress(text),
        "mark.txt": b"\xef\xbb\xbf" + text,
        "dos.txt": text.replace(b"\n", b"\r\n"),
        "folder/deep/text": text,
    }
    found = set()
    for number, (name, data) in enumerate(ways.items()):
        path = write(tmp_path / name, data)
        given = tmp_path / "folder" if name.startswith("folder") else path
        report = prepare([given], tmp_path / str(number), PrepareOptions(valid_share=0.4))
        found.add((report.sha256, report.train, report.valid))
    report = prepare([io.BytesIO(text)], tmp_path / "s", PrepareOptions(valid_share=0.4))
    assert found == {(report.sha256, report.train, report.valid)}
    assert report.valid.tokens > 0


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_workers_and_chunks_leave_no_trace(tmp_path, monkeypatch, share):
    make = np.random.default_rng(0)
    lines = [
        " ".join(f"w{n}" for n in make.zipf(1.3, size=8) if n < 10**6) + "\n" * (1 + (i % 7 == 0))
        for i in range(400)
    ]
    path = write(tmp_path / "in.txt", "\n".join(lines))
    packed = write(tmp_path / "in.gz", gzip.compress(path.read_bytes()[:2000]))
    options = PrepareOptions(characters="codepoints", valid_share=share, vocab_size=40)
    prepare([path, packed], tmp_path / "whole", options)
    expected = contents(tmp_path / "whole")
    monkeypatch.setattr(module, "CHUNK", 500)
    for workers in (1, 2):
        prepare([path, packed], tmp_path / "cut", options, workers=workers, overwrite=True)
        assert contents(tmp_path / "cut") == expected
    # few distinct words a run, few entries a part
    monkeypatch.setattr(module, "MAX_TYPES", 10)
    monkeypatch.setattr("torchelmo.pretrain.shards.BUFFER", 7)
    monkeypatch.setattr("torchelmo.pretrain.shards.SAMPLE", 3)
    monkeypatch.setattr("torchelmo.pretrain.merge.SAMPLE", 3)
    monkeypatch.setattr("torchelmo.pretrain.merge.BLOCK", 5)
    monkeypatch.setattr("torchelmo.pretrain.numbering.BLOCK", 5)
    merge = module.merge_words
    monkeypatch.setattr(module, "merge_words", lambda *a: merge(*a, part_entries=10))
    prepare([path, packed], tmp_path / "cut", options, overwrite=True)
    assert contents(tmp_path / "cut") == expected


def test_a_share_is_set_aside(tmp_path):
    text = "\n\n".join(f"document {n}\nhas its own {n}" for n in range(400))
    report, corpus = made(tmp_path, text, replace(PLAIN, valid_share=0.1))
    found = [sentences(corpus, split) for split in ("train", "valid")]
    assert report.valid.documents == len(found[1])
    assert 20 <= len(found[1]) <= 60
    numbers = [[int(document[0][1]) for document in part] for part in found]
    assert sorted(numbers[0] + numbers[1]) == list(range(400))
    assert [sorted(part) for part in numbers] == numbers  # the order of the text is kept
    assert all(len(document) == 2 for part in found for document in part)
    _, again = made(tmp_path, text, replace(PLAIN, valid_share=0.1), overwrite=True)
    assert again.sha256 == corpus.sha256
    _, other = made(tmp_path, text, replace(PLAIN, valid_share=0.1, seed=2), overwrite=True)
    assert other.sha256 != corpus.sha256


def test_only_the_training_text_makes_the_vocabulary(tmp_path):
    train, valid = write(tmp_path / "t", "b b a\n"), write(tmp_path / "v", "a a a a c b\n")
    report = prepare([train], tmp_path / "out", PLAIN, valid=[valid])
    corpus = Corpus.open(tmp_path / "out")
    assert corpus.vocabulary[3:] == ["b", "a"]
    assert corpus.words[5:] == ["c"]
    assert corpus.valid.tokens.tolist() == [4, 4, 4, 4, 5, 3]
    assert (report.valid.unknown, report.valid.unknown_percent) == (1, 16.6667)
    assert report.coverage == 100.0
    assert [s["split"] for s in corpus.facts["sources"]] == ["train", "valid"]


def test_a_small_corpus_has_no_validation_text_and_says_so(tmp_path):
    with pytest.warns(UserWarning, match=r"nothing is set aside .* 3 documents are too few"):
        report, _ = made(tmp_path, DOCUMENTS, PrepareOptions())
    assert report.valid.documents == 0
    with pytest.warns(UserWarning, match="1 document is too few"):
        made(tmp_path, "a b\n", replace(PLAIN, valid_share=0.9), overwrite=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report, _ = made(tmp_path, DOCUMENTS, PrepareOptions(valid_share=0.99), overwrite=True)
    assert 0 < report.valid.documents < 3  # never all of them
    report, _ = made(tmp_path, "a\n\n" * 10, replace(PLAIN, valid_share=1e-9), overwrite=True)
    assert report.valid.documents == 1  # ten documents can spare one


def test_boundaries_in_the_text(tmp_path):
    with pytest.warns(UserWarning, match=r"the text has the word <S> and </S>"):
        _, corpus = made(tmp_path, "<S> a !!!MAXTERMID !!!MAXTERMID </S>\n")
    assert corpus.train.tokens.tolist() == [0, 3, 4, 4, 1]
    # the sentinel of old vocabulary files would be lost there: it can be no target
    assert corpus.vocabulary == ["<S>", "</S>", "<UNK>", "a"]
    assert corpus.words[4] == "!!!MAXTERMID"


def test_a_given_vocabulary(tmp_path):
    listed = write(tmp_path / "v.txt", "zebra\n</S>\n<S>\nb\n<UNK>\nb\n!!!MAXTERMID\na\n")
    report, corpus = made(tmp_path, "c c c a b c d d\n", vocabulary=listed)
    assert corpus.vocabulary == ["<S>", "</S>", "<UNK>", "zebra", "b", "a"]
    assert corpus.words[6:] == ["c", "d"]
    assert corpus.train.tokens.tolist() == [6, 6, 6, 5, 4, 6, 7, 7]
    assert (report.vocabulary, report.types, report.coverage) == (6, 8, 25.0)
    assert corpus.characters.shape[0] == 8
    assert corpus.facts["settings"]["vocabulary_given"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("<S>\n<UNK>\na\n", r"v\.txt: the vocabulary has no </S>"),
        ("a\nb\n", r"has no <S> and no </S> and no <UNK>"),
        ("<S>\n</S>\n<UNK>\na b\n", r"v\.txt has the word 'a b', expected one word a line"),
        ("<S>\n</S>\n<UNK>\n\na\n", r"v\.txt has the word ''"),
    ],
)
def test_vocabularies_that_cannot_be_used(tmp_path, text, sentence):
    with pytest.raises(InputError, match=sentence):
        made(tmp_path, "a\n", vocabulary=write(tmp_path / "v.txt", text))
    assert not (tmp_path / "out").exists()


def test_code_points(tmp_path):
    options = replace(PLAIN, characters="codepoints", alphabet_min_count=1, max_characters=6)
    _, corpus = made(tmp_path, "ab ab 물 b물 漢\n", options)
    assert corpus.alphabet == ["b", "a", "물", "漢"]  # 3, 2, 2, 1
    assert corpus.config.symbols == 4
    spelled = Characters(corpus.config, corpus.alphabet)
    assert np.array_equal(corpus.characters, spelled.encode(corpus.words))
    assert spelled.decode(corpus.characters[3]) == "ab"
    assert (tmp_path / "out" / "characters.txt").read_text() == "U+0062\nU+0061\nU+BB3C\nU+6F22\n"
    _, corpus = made(
        tmp_path, "ab ab 물 b물 漢\n", replace(options, alphabet_min_count=2), overwrite=True
    )
    assert corpus.alphabet == ["b", "a", "물"]
    _, corpus = made(
        tmp_path, "ab ab 물 b물 漢\n", replace(options, alphabet_size=1), overwrite=True
    )
    assert corpus.alphabet == ["b"]
    with pytest.raises(InputError, match="no symbol of the text comes 9 times"):
        made(tmp_path, "ab\n", replace(options, alphabet_min_count=9), overwrite=True)
    assert Corpus.open(tmp_path / "out").alphabet == ["b"]  # the former one is still there


def test_jamo(tmp_path):
    options = replace(PLAIN, characters="jamo", alphabet_min_count=1)
    _, corpus = made(tmp_path, "각 각 가 x\n", options)
    assert corpus.alphabet == ["\u1100", "\u1161", "\u11a8", "x"]  # 3, 3, 2, 1
    spelled = Characters(corpus.config, corpus.alphabet)
    assert np.array_equal(corpus.characters, spelled.encode(corpus.words))
    assert [spelled.decode(row) for row in corpus.characters[3:]] == ["각", "x", "가"]


def test_validation_text_does_not_make_the_alphabet(tmp_path):
    train, valid = write(tmp_path / "t", "aa b\n"), write(tmp_path / "v", "bb cc cc\n")
    options = replace(PLAIN, characters="codepoints", alphabet_min_count=1)
    prepare([train], tmp_path / "out", options, valid=[valid])
    assert Corpus.open(tmp_path / "out").alphabet == ["a", "b"]


def test_korean(tmp_path):
    pytest.importorskip("kiwipiepy")
    options = PrepareOptions(tokenizer="kiwi", characters="jamo", valid_share=0)
    _, corpus = made(tmp_path, "학교에 갔어요. 비가 왔어요.\n", options)
    assert sentences(corpus, "train") == [
        [["학교", "에", "갔", "어요", "."], ["비", "가", "왔", "어요", "."]]
    ]
    assert "kiwipiepy-" in corpus.tokenizer.version


def test_text_that_was_cut_before(tmp_path, monkeypatch):
    """The corpus names who cut it, with or without that tokeniser here; all else is the same."""
    text = "학교 에 갔 어요 .\n비 가 왔 어요 .\n"
    _, plain = made(tmp_path / "plain", text)
    assert plain.tokenizer == TokenizerConfig(name="whitespace", version="1")
    by = replace(PLAIN, tokenized_by="kiwi 1 kiwipiepy-0.9")
    _, corpus = made(tmp_path / "by", text, by)
    assert corpus.tokenizer == TokenizerConfig(name="kiwi", version="1 kiwipiepy-0.9")
    assert sentences(corpus, "train") == sentences(plain, "train")
    assert corpus.sha256 == plain.sha256
    assert replace(PLAIN, tokenized_by="words").recorded() == TokenizerConfig()

    def missing(name):
        raise MissingExtra("Korean tokenisation", package="kiwipiepy", extra="ko")

    monkeypatch.setattr(module, "get_tokenizer", missing)
    assert by.recorded().name == "kiwi"
    with pytest.raises(InputError, match=r"'kiwi' is not installed here.* as 'kiwi VERSION'"):
        made(tmp_path / "missing", text, replace(PLAIN, tokenized_by="kiwi"))
    with pytest.raises(MissingExtra):
        made(tmp_path / "missing", text, replace(PLAIN, tokenizer="kiwi"))


def test_the_same_by_a_tokeniser_that_is_here(tmp_path):
    pytest.importorskip("kiwipiepy")
    options = PrepareOptions(tokenizer="kiwi", valid_share=0)
    _, whole = made(tmp_path / "whole", "학교에 갔어요. 비가 왔어요.\n", options)
    by = replace(PLAIN, tokenized_by="kiwi")
    _, cut = made(tmp_path / "cut", "학교 에 갔 어요 .\n비 가 왔 어요 .\n", by)
    assert cut.tokenizer == whole.tokenizer
    assert cut.sha256 == whole.sha256


def test_japanese(tmp_path):
    pytest.importorskip("fugashi")
    pytest.importorskip("unidic_lite")
    text = "学校に行きました。雨が降りました。\n"
    _, corpus = made(tmp_path, text, PrepareOptions(tokenizer="fugashi", valid_share=0))
    assert sentences(corpus, "train") == [
        [["学校", "に", "行き", "まし", "た", "。"], ["雨", "が", "降り", "まし", "た", "。"]]
    ]
    options = PrepareOptions(tokenizer="codepoints", characters="codepoints", valid_share=0)
    _, corpus = made(tmp_path, text, options, overwrite=True)
    assert ["".join(sentence) for sentence in sentences(corpus, "train")[0]] == [
        "学校に行きました。",
        "雨が降りました。",
    ]


WORD = st.text(st.characters(exclude_categories=("Cs", "Zs", "Zl", "Zp", "Cc")), min_size=1).filter(
    lambda word: word.split() == [word]
)
TEXT = st.lists(
    st.lists(st.lists(WORD, min_size=1, max_size=4), min_size=1, max_size=3), min_size=2, max_size=8
)


@settings(max_examples=40, deadline=None)
@given(TEXT, st.integers(1, 60), st.sampled_from([0.0, 0.4]), st.integers(4, 12))
@pytest.mark.filterwarnings("ignore")
def test_every_word_comes_back(tmp_path_factory, text, chunk, share, size):
    folder = tmp_path_factory.mktemp("corpus")
    lines = "\n\n".join("\n".join(map(" ".join, document)) for document in text)
    options = replace(PLAIN, valid_share=share, vocab_size=size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK", chunk)
        prepare([write(folder / "in.txt", lines)], folder / "out", options)
    corpus = Corpus.open(folder / "out")
    train, valid = sentences(corpus, "train"), sentences(corpus, "valid")
    rest = iter(train)
    found = iter(valid)
    following = (next(rest, None), next(found, None))
    for document in text:  # the two texts, merged again, are the text in order
        if document == following[0]:
            following = (next(rest, None), following[1])
        else:
            assert document == following[1]
            following = (following[0], next(found, None))
    assert following == (None, None)

    (source,) = corpus.facts["sources"]
    assert source["documents"] == len(text) == len(train) + len(valid)

    counts = np.bincount(corpus.train.tokens, minlength=corpus.types)[3:]
    inside, outside = counts[: corpus.vocabulary_size - 3], counts[corpus.vocabulary_size - 3 :]
    words = corpus.words[3:]
    order = [(-n, w) for n, w in zip(counts, words, strict=True)]
    assert order[: len(inside)] == sorted(order[: len(inside)])
    assert order[len(inside) :] == sorted(order[len(inside) :])
    assert len(set(corpus.words)) == corpus.types
    assert corpus.vocabulary == corpus.words[: corpus.vocabulary_size]
    assert corpus.vocabulary_size <= size
    assert inside.min(initial=1) >= 1
    assert not len(outside) or inside.min(initial=10**9) >= outside.max()
    assert corpus.facts["train"]["unknown"] == outside.sum() + (corpus.train.tokens == 2).sum()
    assert np.array_equal(corpus.characters, Characters(corpus.config).encode(corpus.words))


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("in.txt", "", r"there is no text in .*in\.txt: expected words"),
        ("in.txt", " \n\u3000\n\n", r"there is no text in .*in\.txt"),
        ("in.txt", b"fine\nb\xfcse\n", r"line 2 of .*in\.txt is not UTF-8 \(byte 2 of .* 0xfc\)"),
        ("in.txt", "hi\n".encode("utf-16"), r"line 1 of .*in\.txt (looks like UTF-16|has a NUL)"),
        ("in.txt", "fine\n\nze\0ro\n", r"line 3 of .*in\.txt has a NUL byte"),
        (
            "in.gz",
            gzip.compress(b"fine\n" * 99, mtime=0)[:-9],
            r"in\.gz is not a whole gzip file: ",
        ),
        (
            "in.jsonl",
            '{"text": "a"}\n{"txt": "b"}\n',
            r"line 2 of .* no field 'text', the nearest",
        ),
        ("in.jsonl", '{"text": "a"}\n{"text": 3}\n', r"line 2 .* has int in the field 'text'"),
        ("in.jsonl", '{"text": "a"}\n\n["b"]\n', r"line 3 of .*in\.jsonl holds list"),
        ("in.jsonl", '{"text": "a"\n', r"line 1 of .*in\.jsonl is not JSON"),
        ("in.jsonl", '{"text": "\\u0000"}', r"line 1 of .* has a NUL in its text"),
        ("in.jsonl", '{"text": "\\ud83d"}', r"line 1 of .* half of a character"),
        ("in.jsonl", '{"text": " "}\n', r"there is no text in .*in\.jsonl"),
    ],
    ids="empty blank bytes utf16 nul cut field number list json jsonnul half none".split(),
)
@pytest.mark.parametrize("chunk", [7, 1 << 20])
def test_text_that_cannot_be_used(tmp_path, monkeypatch, name, text, sentence, chunk):
    monkeypatch.setattr(module, "CHUNK", chunk)
    path = write(tmp_path / name, text)
    with pytest.raises(InputError, match=sentence) as error:
        prepare([path], tmp_path / "out", PLAIN)
    assert "\n" not in str(error.value)
    assert os.listdir(tmp_path) == [name]


def test_empty_validation_text(tmp_path):
    train, valid = write(tmp_path / "t", "a\n"), write(tmp_path / "v", "\n\n")
    with pytest.raises(InputError, match=r"there is no text in .*v: "):
        prepare([train], tmp_path / "out", PLAIN, valid=[valid])


def test_a_word_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("torchelmo.pretrain.shards.MAX_WORD", 50)
    with pytest.raises(InputError, match=r"line 2 of .*in\.txt has a word of 60 characters"):
        made(tmp_path, "a\n" + "x" * 60 + "\n")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"block_lines": 0}, "block-lines is 0, expected 1 to"),
        ({"vocab_size": 3}, "vocab-size is 3, expected 4 to"),
        ({"valid_share": 1.0}, r"valid-share is 1\.0, expected a part"),
        ({"valid_share": float("nan")}, "valid-share is nan"),
        ({"characters": "letters"}, "characters is 'letters', expected one of bytes, codepoints"),
        ({"max_characters": 2}, "max-characters is 2, expected 3 to"),
        ({"tokenized_by": "kiwi"}, "tokenized-by is 'kiwi', but the tokeniser is 'words'"),
    ],
)
def test_options_that_make_no_sense(options, sentence):
    with pytest.raises(InputError, match=sentence):
        PrepareOptions(**options)


def test_other_arguments_that_make_no_sense(tmp_path):
    for options, more, sentence in (
        (
            replace(PLAIN, tokenizer="word"),
            {},
            "no tokeniser is called 'word': did you mean 'words'",
        ),
        (
            replace(PLAIN, tokenized_by="kiwis 2"),
            {},
            "no tokeniser is called 'kiwis': did you mean 'kiwi'",
        ),
        (PLAIN, {"workers": 0}, "workers is 0"),
        (PLAIN, {"vocabulary": tmp_path / "none"}, "there is no file .*none"),
        (PLAIN, {"valid": [tmp_path / "none"]}, "there is no file or folder .*none"),
    ):
        with pytest.raises(InputError, match=sentence):
            made(tmp_path, "a\n", options, **more)
    with pytest.raises(InputError, match="no input files"):
        prepare([], tmp_path / "out")


def test_a_folder_that_is_there(tmp_path):
    made(tmp_path, "a\n")
    with pytest.raises(InputError, match=r"out exists and is not empty"):
        made(tmp_path, "b\n")
    assert Corpus.open(tmp_path / "out").words[3:] == ["a"]
    made(tmp_path, "b\n", overwrite=True)
    assert Corpus.open(tmp_path / "out").words[3:] == ["b"]
    write(tmp_path / "out" / "thesis.tex", "x")
    with pytest.raises(InputError, match=r"'thesis\.tex', which is no file of a prepared corpus"):
        made(tmp_path, "c\n", overwrite=True)


def test_a_corpus_inside_its_input_is_not_input(tmp_path):
    write(tmp_path / "a.txt", "a\n")
    for _ in range(2):
        report = prepare([tmp_path], tmp_path / "out", PLAIN, overwrite=True)
        assert report.train.tokens == 1


def test_what_a_killed_run_left_is_removed(tmp_path):
    dead = tmp_path / ".out.0123abcd.partial"
    write(dead / "lock", "")
    write(dead / "work" / "000000-000000.tokens", "x")
    old = write(tmp_path / ".out.11111111.partial" / "words.txt", "x").parent
    os.utime(old, (0, 0))
    fresh = write(tmp_path / ".out.22222222.partial" / "words.txt", "x").parent
    other = write(tmp_path / ".output.0123abcd.partial" / "lock", "").parent
    living = write(tmp_path / ".out.89abcdef.partial" / "lock", "").parent
    with (living / "lock").open("ab") as file:
        assert module.files.try_lock(file)
        made(tmp_path, "a\n")
        assert living.exists()
    assert not dead.exists()
    assert not old.exists()
    assert other.exists()
    assert fresh.exists()


def test_interrupted(tmp_path):
    def stop(now):
        if now.phase == "write":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made(tmp_path, "a\n", progress=stop)
    assert os.listdir(tmp_path) == ["in.txt"]


def test_a_full_disk(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torchelmo.pretrain.splits.HashedFile.write", full)
    with pytest.raises(InputError, match=r"out cannot be written: No space left on device"):
        made(tmp_path, "a\n")
    assert os.listdir(tmp_path) == ["in.txt"]


def test_progress(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 4)
    seen = []
    path = write(tmp_path / "in.txt", "a b\nc d\ne f\n")
    prepare([path, path], tmp_path / "out", PLAIN, progress=seen.append)
    assert list(dict.fromkeys(now.phase for now in seen)) == ["read", "merge", "write", "spell"]
    read = [now for now in seen if now.phase == "read"]
    assert [now.done for now in read] == [4, 8, 12, 16, 20, 24]
    assert [now.tokens for now in read] == [2, 4, 6, 8, 10, 12]
    assert {now.total for now in read} == {24}
    assert all(now.done <= now.total for now in seen)
    prepare([io.BytesIO(b"a\n")], tmp_path / "s", PLAIN, progress=seen.append)
    assert seen[-4].total is None
