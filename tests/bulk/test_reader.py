import hashlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchelmo.bulk import reader
from torchelmo.bulk.reader import Reader, scan
from torchelmo.errors import InputError


def windows(data, budget=8, split=str.split, **more):
    source = Reader(io.BytesIO(data), "x.txt")
    out = []
    while not source.ended:
        out.append(source.window(budget, split, **more))
    return out


def refused(data, **more):
    with pytest.raises(InputError) as caught:
        windows(data, **more)
    return str(caught.value)


def test_lines_become_words():
    (window,) = windows(b"\xef\xbb\xbfa b\r\n\n \t\nc\xc2\xa0d", budget=100)
    assert window.sentences == [["a", "b"], [], [], ["c", "d"]]  # U+00A0 is white space
    assert (window.first, window.tokens, window.blank, window.last) == (0, 4, 2, True)
    assert window.sha256 == hashlib.sha256(b"a b\r\n\n \t\nc\xc2\xa0d").hexdigest()


def test_other_line_separators_do_not_end_a_line():
    (window,) = windows("a\u2028b\x0bc\x85d\n".encode(), budget=100)
    assert window.sentences == [["a", "b", "c", "d"]]


def test_windows_end_after_the_budget():
    found = windows(b"a b c\nd\n\ne f g h i j k\nl\n", budget=8)
    assert [w.sentences for w in found] == [
        [["a", "b", "c"], ["d"]],
        [[], ["e", "f", "g", "h", "i", "j", "k"]],
        [["l"]],
    ]
    assert [w.first for w in found] == [0, 2, 4]
    assert [w.last for w in found] == [False, False, True]


def test_windows_can_be_multiples_of_rows():
    found = windows(b"a\n" * 11, budget=4, multiple=3)
    assert [len(w.sentences) for w in found] == [3, 3, 3, 2]


def test_few_long_words_make_small_windows(monkeypatch):
    monkeypatch.setattr(reader, "WINDOW_BYTES", 100)
    found = windows((b"x" * 60 + b"\n") * 6, budget=1000)
    assert [len(w.sentences) for w in found] == [2, 2, 2]


@given(
    st.lists(
        st.text(
            st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\ufeff"), max_size=12
        ),
        min_size=1,
    ),
    st.integers(1, 30),
)
def test_windows_hold_all_lines_in_order(lines, budget):
    data = "".join(f"{line}\n" for line in lines).encode()
    found = windows(data, budget=budget)
    assert [s for w in found for s in w.sentences] == [line.split() for line in lines]
    assert sum(w.size for w in found) == len(data)
    assert [w.first for w in found] == [
        sum(len(v.sentences) for v in found[:i]) for i in range(len(found))
    ]


def test_skipping_gives_the_hash_of_a_window():
    data = b"a b\nc\n\nd e f\n"
    (first, *_) = windows(data, budget=5)
    source = Reader(io.BytesIO(data), "x")
    assert source.skip(len(first.sentences)) == first.sha256
    assert source.window(99, str.split).first == len(first.sentences)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"fine\nbad \xff here\n", ["line 2 of x.txt", "is not UTF-8", "byte 5", "0xff"]),
        (b"cut \xe2\x82", ["line 1 of x.txt", "is not UTF-8"]),
        ("über".encode("utf-16"), ["line 1 of x.txt", "looks like UTF-16"]),
        (b"surrogate \xed\xa0\x80\n", ["line 1", "is not UTF-8"]),
        (b"a\nb\0c\n", ["line 2 of x.txt", "NUL byte"]),
        (b"", ["x.txt is empty"]),
        (b"\xef\xbb\xbf", ["x.txt is empty"]),
        (b"a\n\n" + b"x" * 10_000_000 + b" y\n", ["line 3 of x.txt", "10,000,000 characters"]),
    ],
    ids=["byte", "cut", "utf-16", "surrogate", "nul", "empty", "bom", "token"],
)
def test_text_that_cannot_be_used(data, words, tmp_path):
    sentence = refused(data)
    for word in words:
        assert word in sentence
    path = tmp_path / "x.txt"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        scan(path, check_tokens=True)
    assert str(caught.value) == sentence.replace("x.txt", str(path))


def test_a_line_without_end_is_refused_before_it_is_read(monkeypatch):
    monkeypatch.setattr(reader, "MAX_LINE", 1000)

    class Endless(io.RawIOBase):
        given = 0

        def readline(self, size):
            self.given += size
            return b"x" * size

    stream = Endless()
    with pytest.raises(InputError, match="line 1 of x is longer than"):
        Reader(stream, "x")
    assert stream.given <= 1001


def test_scan_counts(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(b"a b\n\nc")
    found = scan(path, check_tokens=True)
    assert (found.lines, found.tokens, found.size) == (3, 3, 6)
