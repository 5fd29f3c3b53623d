import pytest

from torchelmo.errors import InputError
from torchelmo.tasks.decoding import Span, to_spans
from torchelmo.tasks.readers.columns import join_finals, read_columns, read_kmou
from torchelmo.tasks.readers.examples import Tagged

NEWS = """-DOCSTART- -X- O O

Mara NNP I-NP I-PER
visits VBZ I-VP O
Port NNP I-NP I-LOC
Ellen NNP I-NP I-LOC

-DOCSTART- -X- O O

Rain NN I-NP O"""
SENTENCES = [
    Tagged(("Mara", "visits", "Port", "Ellen"), ("I-PER", "O", "I-LOC", "I-LOC")),
    Tagged(("Rain",), ("O",)),
]


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("gap", [" ", "\t"])
def test_news_with_documents(tmp_path, mark, end, gap):
    path = tmp_path / "eng.train"
    text = NEWS.replace(" ", gap).replace("\n", end)
    path.write_bytes((mark + text).encode())
    assert list(read_columns(path)) == SENTENCES


def test_another_column(tmp_path):
    path = tmp_path / "eng.train"
    path.write_text(NEWS, encoding="utf-8")
    assert [s.tags for s in read_columns(path, column=1, chunks=False)] == [
        ("NNP", "VBZ", "NNP", "NNP"),
        ("NN",),
    ]
    with pytest.raises(InputError, match="has 4 columns: there is no column 4"):
        list(read_columns(path, column=4))


def test_a_word_may_hold_a_no_break_space(tmp_path):
    path = tmp_path / "a"
    path.write_text("8\u00a01/2 CD O\n", encoding="utf-8")
    assert next(read_columns(path)).words == ("8\u00a01/2",)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a D O\nb N\n", r"line 2: 2 columns, expected 3$"),
        ("a\n", r"line 1: 1 columns, expected a word and a tag at least$"),
        ("a D O\n\nb N X-PER\n", r"line 3: the tag 'X-PER', expected O or a tag like B-PER$"),
        ("a D PER\n", r"line 1: the tag 'PER'"),
    ],
)
def test_wrong_lines_are_named(tmp_path, text, reason):
    path = tmp_path / "bad"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=rf"bad, {reason}"):
        list(read_columns(path))


def kmou(tmp_path, words, tags):
    (tmp_path / "train.words.txt").write_bytes(words.encode())
    (tmp_path / "train.tags.txt").write_bytes(tags.encode())
    return list(read_kmou(tmp_path / "train.words.txt"))


def test_parallel_lines(tmp_path):
    found = kmou(tmp_path, "민수 는 부산 에 가 ㄴ다\r\n비 !\r\n", "B-PER O B-LOC O O O\r\nO O\r\n")
    assert found == [
        Tagged(("민수", "는", "부산", "에", "가", "ㄴ다"), ("B-PER", "O", "B-LOC", "O", "O", "O")),
        Tagged(("비", "!"), ("O", "O")),
    ]


@pytest.mark.parametrize(
    ("words", "tags", "reason"),
    [
        ("비 가\n", "O\n", r"train\.tags\.txt, line 1: 1 tags for 2 words"),
        ("비\n눈\n", "O\n", r"train\.tags\.txt, line 2: the file ends here"),
        ("비\n", "O\nO\n", r"train\.words\.txt, line 2: the file ends here"),
        ("비\n", "PER\n", r"train\.tags\.txt, line 1: the tag 'PER'"),
    ],
)
def test_wrong_parallel_lines_are_named(tmp_path, words, tags, reason):
    with pytest.raises(InputError, match=reason):
        kmou(tmp_path, words, tags)


def test_bare_consonants_go_below_their_syllables(tmp_path):
    words, tags = (
        "지나 ㄴ 해 민수 이 ㄴ가 갑 ㄴ ㄴ ㆍ 비 ㅁ",
        "B-DAT I-DAT I-DAT B-PER O O O O O O B-PER B-PER",
    )
    (plain,) = kmou(tmp_path, f"{words}\n", f"{tags}\n")
    assert plain == Tagged(tuple(words.split()), tuple(tags.split()))
    joined = join_finals(plain)
    assert joined.words == ("지난", "해", "민수", "인가", "갑", "ㄴ", "ㄴ", "ㆍ", "비", "ㅁ")
    assert to_spans(joined.tags) == [
        Span("DAT", 0, 2),
        Span("PER", 2, 3),
        Span("PER", 8, 9),
        Span("PER", 9, 10),
    ]
    assert list(read_kmou(tmp_path / "train.words.txt", join=True)) == [joined]
