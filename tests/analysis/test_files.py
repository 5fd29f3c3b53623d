import pytest

from analysis.planted import pack, write
from torchelmo.analysis import files
from torchelmo.analysis.files import Text
from torchelmo.errors import InputError


@pytest.fixture
def folder(tmp_path):
    return write(
        tmp_path / "set", {"a/train.tsv": "x\ty\r\nz\tw\n", "a/note.md": "no", "b.txt": "b"}
    )


def test_a_folder_and_its_archive_read_the_same(folder, tmp_path):
    for path in (folder, pack(folder, tmp_path / "set.tar.xz")):
        found = files.read(path, ["*rain.tsv", "b.txt", "absent"])
        assert sorted(found) == ["*rain.tsv", "b.txt"]
        assert list(found["*rain.tsv"].lines()) == [(1, "x\ty"), (2, "z\tw")]
        assert list(found["*rain.tsv"].columns(2)) == [(1, ["x", "y"]), (2, ["z", "w"])]


def test_a_single_file_stands_for_its_folder(folder):
    assert files.read(folder / "b.txt", ["*.txt"])["*.txt"].data == b"b"


def test_what_is_not_there_is_said(folder):
    with pytest.raises(InputError, match=r"no file or folder .*nowhere"):
        files.read(folder / "nowhere", ["*"])
    with pytest.raises(InputError, match=r"set holds no dev.tsv: expected a probe"):
        files.need(files.read(folder, ["dev.tsv"]), folder, ["dev.tsv"], "a probe")


def test_two_data_sets_at_once_are_refused(folder):
    write(folder, {"c/train.tsv": ""})
    with pytest.raises(InputError, match=r"both a/train.tsv and c/train.tsv"):
        files.read(folder, ["train.tsv"])


def test_a_cut_archive_is_said_to_be_damaged(tmp_path):
    folder = write(tmp_path / "set", {f"{n}.txt": f"{n * n}" * 500 for n in range(50)})
    whole = pack(folder, tmp_path / "set.tar.xz").read_bytes()
    path = tmp_path / "cut.tar.xz"
    path.write_bytes(whole[: len(whole) - 200])
    with pytest.raises(InputError, match=r"cut.tar.xz"):
        files.need(files.read(path, ["49.txt"]), path, ["49.txt"], "a file")


def test_lines_that_are_wrong_are_named():
    text = Text("t.tsv", b"\xef\xbb\xbffine\t1\n\xff\n")
    with pytest.raises(InputError, match=r"^t.tsv, line 2: not UTF-8$"):
        list(text.lines())
    assert next(text.lines()) == (1, "fine\t1")
    with pytest.raises(InputError, match=r"^t.tsv, line 1: 2 columns, expected 3 between tabs$"):
        list(text.columns(3))
