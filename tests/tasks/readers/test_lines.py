import pytest

from torchelmo.errors import InputError
from torchelmo.tasks.readers.examples import Labelled
from torchelmo.tasks.readers.lines import read_cola, read_labelled, read_nsmc, read_trec
from torchelmo.text.words import get_tokenizer


def write(tmp_path, text, encoding="utf-8"):
    path = tmp_path / "file.txt"
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_trec(tmp_path, encoding):
    path = write(tmp_path, "LOC:city Where is the café ?\nNUM:date When ?\r\n", encoding)
    first = ("Where", "is", "the", "café", "?")
    assert list(read_trec(path)) == [Labelled(first, "LOC"), Labelled(("When", "?"), "NUM")]
    assert [x.label for x in read_trec(path, fine=True)] == ["LOC:city", "NUM:date"]


def test_cola(tmp_path):
    path = write(tmp_path, "me24\t1\t\tShe isn't here.\nme24\t0\t*\tHere she isn't not.\n")
    assert list(read_cola(path)) == [
        Labelled(("She", "is", "n't", "here", "."), "1"),
        Labelled(("Here", "she", "is", "n't", "not", "."), "0"),
    ]


def test_nsmc(tmp_path):
    path = write(tmp_path, "id\tdocument\tlabel\r\n1\t정말 좋아요!\t1\r\n2\t\t0\r\n")
    assert list(read_nsmc(path)) == [Labelled(("정말", "좋아요", "!"), "1"), Labelled((), "0")]
    plain = get_tokenizer("whitespace")
    assert next(read_nsmc(path, tokenizer=plain)).words == ("정말", "좋아요!")


def test_plain_table(tmp_path):
    path = write(tmp_path, "\ufeffgood\tA fine day.\n\nbad\tRain.\n")
    assert list(read_labelled(path)) == [
        Labelled(("A", "fine", "day", "."), "good"),
        Labelled(("Rain", "."), "bad"),
    ]


@pytest.mark.parametrize(
    ("read", "text", "reason"),
    [
        (read_trec, "LOC:city Where ?\nWhere ?\n", "line 2: expected a label like LOC:city and"),
        (read_trec, "LOC:city\n", "line 1: expected a label like LOC:city and a question"),
        (read_cola, "me24\t1\tShe.\n", "line 1: 3 columns, expected 4 between tabs"),
        (read_cola, "me24\t2\t\tShe.\n", "line 1: the label '2', expected 0 or 1"),
        (read_nsmc, "id\tdocument\tlabel\n1\t좋아\n", "line 2: 2 columns, expected 3 between tabs"),
        (read_nsmc, "1\t좋아\tlabel\n", "line 1: the label 'label', expected 0 or 1"),
        (read_labelled, "a\tb\tc\n", "line 1: 3 columns, expected 2 between tabs"),
        (read_labelled, "\tsome text\n", "line 1: the label is empty"),
    ],
)
def test_wrong_lines_are_named(tmp_path, read, text, reason):
    with pytest.raises(InputError, match=rf"file\.txt, {reason}"):
        list(read(write(tmp_path, text)))
