import gzip
import io
import random
import tarfile
import zipfile

import pytest

from torchelmo.errors import InputError
from torchelmo.tasks.readers.source import beside, open_source, open_sources, plain


def tar(path, files, mode="w:xz"):
    with tarfile.open(path, mode) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def zipped(files):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


def test_lines_without_mark_and_ends(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\xc3\xa9t\xc3\xa9\n\n\xe2\x80\xa8last")
    # A Unicode line separator is a character like any other.
    assert list(open_source(path).lines()) == [(1, "one"), (2, "été"), (3, ""), (4, "\u2028last")]


def test_bytes_that_are_not_utf8_are_placed(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo \xff\n")
    with pytest.raises(InputError, match=r"a\.txt, line 2: not UTF-8$"):
        list(open_source(path).lines())
    with pytest.raises(InputError, match=r"a\.txt, line 2: not UTF-8$"):
        open_source(path).text()


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_member_of_a_tar(tmp_path, mode):
    path = tmp_path / "set.tar"
    tar(path, {"./set/a.txt": b"A", "set/b.txt": b"B"}, mode)
    assert open_source(f"{path}:set/a.txt").data == b"A"
    assert open_source(f"{path}:set/b.txt").name == f"{path}:set/b.txt"


def test_archive_in_an_archive_and_packed_members(tmp_path):
    path = tmp_path / "set.tar.xz"
    inner = zipped({"x/train.txt": b"T", "x/small.jsonl.gz": gzip.compress(b"G")})
    tar(path, {"set/inner.zip": inner})
    assert open_source(f"{path}:set/inner.zip:x/train.txt").data == b"T"
    packed = open_source(f"{path}:set/inner.zip:x/small.jsonl.gz")
    assert (packed.data, packed.suffix) == (b"G", ".jsonl")


def test_folders_are_read_by_name(tmp_path):
    files = {"d/b.conll": b"2", "d/sub/a.conll": b"3", "d/a.conll": b"1", "d/notes.md": b"-"}
    path = tmp_path / "set.tar.xz"
    tar(path, files)
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    for place in (f"{path}:d", f"{path}:d/", tmp_path / "d"):
        assert [s.data for s in open_sources(place, (".conll",))] == [b"1", b"2", b"3"]
    assert [s.stem for s in open_sources(tmp_path / "d", (".md",))] == ["notes"]


def test_what_is_not_there_is_said(tmp_path):
    path = tmp_path / "set.tar.xz"
    tar(path, {"set/a.txt": b"A", "set/b.txt": b"B"})
    with pytest.raises(InputError, match="there is no file nowhere"):
        open_source("nowhere/a.txt")
    with pytest.raises(InputError, match=r"holds no set/c\.txt"):
        open_source(f"{path}:set/c.txt")
    with pytest.raises(InputError, match="is a folder of 2 files: name one of them"):
        open_source(f"{path}:set")
    with pytest.raises(InputError, match=r"holds no file that ends in \.conll"):
        list(open_sources(tmp_path, (".conll",)))


@pytest.mark.parametrize("name", ["a.tar.xz:set/a.txt", "a.gz"])
def test_damaged_archives_are_said(tmp_path, name):
    whole = tmp_path / "whole.tar.xz"
    tar(whole, {"set/a.txt": random.Random(1).randbytes(9000)})
    path = tmp_path / name.split(":")[0]
    data = whole.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=r"is damaged .* fetch it again"):
        open_source(tmp_path / name)


def test_the_file_beside():
    assert beside("x.tar:words/train.words.txt", "words", "tags") == "x.tar:words/train.tags.txt"
    assert beside("s1.dev", "s1.", "s2.") == "s2.dev"
    with pytest.raises(InputError, match="expected a name with 'words'"):
        beside("words/train.txt", "words", "tags")


@pytest.mark.parametrize(
    ("word", "expected"),
    [("-LRB-", "("), ("1\\/2", "1/2"), ("/.", "."), ("/", "/"), ("and/or", "and/or"), ("-", "-")],
)
def test_escapes_are_undone(word, expected):
    assert plain(word) == expected
