import bz2
import gzip
import io
import lzma
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchelmo.errors import InputError, MissingExtra
from torchelmo.pretrain import sources
from torchelmo.pretrain.sources import Chunk, find_sources, read_chunks

TEXT = "The kiln cooled.\n\nEis läuft über die Scheibe.\n물이 끓는다.\n".encode()


def zstd(data):
    return pytest.importorskip("zstandard").ZstdCompressor().compress(data)


PACK = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress, "zst": zstd}


def whole(source, size=1 << 20):
    return b"".join(chunk.data for chunk, _ in read_chunks(source, size))


def test_folders_are_searched_in_order(tmp_path):
    for name in (
        "b.txt",
        "a/z.txt",
        "a/b.jsonl",
        "a.txt",
        ".hidden",
        ".git/x",
        "c/.tmp",
        "10",
        "9",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x\n", encoding="utf-8")
    found = find_sources([tmp_path])
    names = [source.path.relative_to(tmp_path).as_posix() for source in found]
    assert names == ["10", "9", "a/b.jsonl", "a/z.txt", "a.txt", "b.txt"]
    assert [source.records for source in found] == [False, False, True, False, False, False]
    assert {source.size for source in found} == {2}
    inside = find_sources([tmp_path], leave_out=tmp_path / "a")
    assert [s.path.name for s in inside] == ["10", "9", "a.txt", "b.txt"]


def test_endings_and_format(tmp_path):
    for name in ("a.JSONL.GZ", "b.ndjson", "c.txt.gz", "d.json"):
        (tmp_path / name).write_bytes(b"")
    found = [s.records for s in find_sources([tmp_path])]
    assert found == [True, True, False, False]
    assert all(s.records for s in find_sources([tmp_path], form="jsonl"))
    assert not any(s.records for s in find_sources([tmp_path], form="text"))


def test_the_same_file_twice_is_read_twice(tmp_path):
    (tmp_path / "a").write_bytes(TEXT)
    assert len(find_sources([tmp_path / "a", str(tmp_path / "a")])) == 2


@pytest.mark.parametrize("ending", PACK)
def test_packed_files_are_unpacked(tmp_path, ending):
    path = tmp_path / f"a.txt.{ending}"
    path.write_bytes(PACK[ending](TEXT * 5000))
    (source,) = find_sources([path])
    assert whole(source) == TEXT * 5000
    assert [read for _, read in read_chunks(source, 1 << 12)][-1] == path.stat().st_size
    # several packed pieces one after another are one text, as the packers have it
    path.write_bytes(PACK[ending](TEXT) + PACK[ending](TEXT))
    assert whole(source) == TEXT + TEXT


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("damage", ["cut", "flip", "plain", "empty"])
def test_damaged_files(tmp_path, ending, damage):
    path = tmp_path / f"a.txt.{ending}"
    data = bytearray(PACK[ending](TEXT * 5000))
    if damage == "flip":
        data[0] ^= 255
    path.write_bytes({"cut": data[:-3], "plain": TEXT, "empty": b""}.get(damage, data))
    (source,) = find_sources([path])
    if damage == "empty" and ending == "gz":
        assert whole(source) == b""  # gzip itself takes it for an empty text
        return
    with pytest.raises(InputError, match=rf"a\.txt\.{ending} is not a whole \w+ file: "):
        whole(source)


def test_zstd_without_its_package(tmp_path, monkeypatch):
    (tmp_path / "a.zst").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtra, match=r"zstandard: pip install 'torchelmo\[train\]'"):
        whole(find_sources([tmp_path / "a.zst"])[0])


@given(st.lists(st.text("ab\n\r \x0b", max_size=12), max_size=8), st.integers(1, 30), st.booleans())
def test_chunks_are_whole_lines_wherever_they_end(parts, size, mark):
    data = "\n".join(parts).encode()
    stream = io.BytesIO(sources.BOM * mark + data)
    chunks = [chunk for chunk, _ in read_chunks(find_sources([stream])[0], size)]
    assert b"".join(chunk.data for chunk in chunks) == data
    assert all(chunk.data.endswith(b"\n") for chunk in chunks[:-1])
    before = 1
    for chunk in chunks:
        assert chunk.line == before
        before += chunk.data.count(b"\n")


def test_streams_are_named_and_counted():
    class Slow(io.BytesIO):
        """Gives less than is asked for, as pipes do."""

        name = "<stdin>"

        def read(self, size=-1):
            return super().read(min(size, 3))

    (source,) = find_sources([Slow(b"one\ntwo\n")])
    assert source.name == "standard input"
    assert source.size is None
    assert [read for _, read in read_chunks(source, 100)][-1] == 8
    assert find_sources([io.BytesIO(b"")])[0].name == "the stream"
    found = list(read_chunks(find_sources([Slow(sources.BOM + b"a\n")])[0], 100))
    assert found[0][0] == Chunk("standard input", 1, b"a\n")


def test_what_is_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="no input files were given"):
        find_sources([])
    with pytest.raises(InputError, match=r"there is no file or folder .*nowhere\.txt"):
        find_sources([tmp_path / "nowhere.txt"])
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".hidden").write_bytes(b"x")
    with pytest.raises(InputError, match="empty has no files in it"):
        find_sources([tmp_path / "empty"])
    monkeypatch.setattr(sources, "MAX_LINE", 10)
    (source,) = find_sources([io.BytesIO(b"short\n" + b"x" * 40)])
    with pytest.raises(InputError, match="line 2 of the stream is longer than"):
        list(read_chunks(source, 4))


def test_a_file_that_cannot_be_read(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_bytes(TEXT)
    (source,) = find_sources([tmp_path / "a.txt"])

    def refuse(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(sources.Path, "open", refuse)
    for call in (lambda: whole(source), lambda: find_sources([tmp_path / "a.txt"])):
        with pytest.raises(InputError, match=r"a\.txt cannot be read: Permission denied"):
            call()
