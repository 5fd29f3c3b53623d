import errno
import json
import subprocess
import sys

import h5py
import numpy as np
import pytest

from torchelmo.bulk import hdf5
from torchelmo.bulk.hdf5 import Hdf5, lookup3
from torchelmo.errors import InputError


def write(path, lines, *, index=True):
    with Hdf5(path, "float32", index=index) as writer:
        for line, text in enumerate(lines):
            words = text.split()
            writer.write(line, words, np.full((len(words), 4), line, dtype=np.float32))
        writer.finish()
    return path


LINES = [f"wörd {i % 7} {i}" for i in range(500)] + ["", "wörd 0 0"]


def check(path):
    with h5py.File(path, "r") as file:
        assert len(file) == len(LINES) + 1
        kind = file["sentence_to_index"].dtype
        assert h5py.check_string_dtype(kind) == ("utf-8", None)  # of variable length
        assert file["sentence_to_index"].shape == (1,)
        index = json.loads(file["sentence_to_index"][0])
        assert index == {line: str(number) for number, line in enumerate(LINES)}
        for number in (0, 77, 500, 501):
            found = file[str(number)][...]
            expected = np.full((len(LINES[number].split()), 4), number, dtype=np.float32)
            np.testing.assert_array_equal(found, expected, strict=True)


def test_layout(tmp_path):
    check(write(tmp_path / "a.hdf5", LINES))
    assert [p.name for p in tmp_path.iterdir()] == ["a.hdf5"]


def test_without_index(tmp_path):
    path = write(tmp_path / "a.hdf5", ["a b"], index=False)
    with h5py.File(path, "r") as file:
        assert list(file) == ["0"]


def test_a_long_index_is_appended(tmp_path, monkeypatch):
    monkeypatch.setattr(hdf5, "SHORT", 100)
    path = write(tmp_path / "a.hdf5", LINES)
    check(path)
    with h5py.File(path, "r") as file:
        assert file.id.get_filesize() == path.stat().st_size
    # The file is one the library can go on with.
    with h5py.File(path, "r+") as file:
        file["more"] = np.arange(3)
        text = file["sentence_to_index"][0]
        file["sentence_to_index"][0] = b"[]"
        del file["1"]
    with h5py.File(path, "r+") as file:
        assert file["sentence_to_index"][0] == b"[]"
        assert list(file["more"]) == [0, 1, 2]
        file["sentence_to_index"][0] = text
        file["1"] = np.ones((3, 4), dtype=np.float32)
        del file["more"]
    check(path)


def test_both_ways_of_writing_an_index_store_the_same_object(tmp_path, monkeypatch):
    short = write(tmp_path / "short.hdf5", LINES).read_bytes()
    monkeypatch.setattr(hdf5, "SHORT", 100)
    long = write(tmp_path / "long.hdf5", LINES).read_bytes()

    def heap(data):
        """The object's header and text in the last collection of the global heap."""
        start = data.rindex(b"GCOL")
        size = int.from_bytes(data[start + 24 : start + 32], "little")
        return data[start + 16 : start + 32 + size]

    assert heap(short) == heap(long)


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on file sizes there")
@pytest.mark.parametrize("limit", [0, 100, 50_000, 700_000, 1_200_000])
def test_a_disk_that_fills_up(tmp_path, limit):
    """In a process of its own, as the library has a last word when Python ends."""
    code = f"""
import sys
from pathlib import Path
import numpy as np
from torchelmo.bulk.hdf5 import Hdf5
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    with Hdf5(Path({str(tmp_path / "a.hdf5")!r}), "float32", index=True) as writer:
        for line in range(6000):
            writer.write(line, ["word", str(line)], np.zeros((2, 4), dtype=np.float32))
        writer.finish()
except OSError as error:
    print(error.errno)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) == errno.EFBIG


def test_lookup3_is_the_hash_of_superblocks(tmp_path):
    assert lookup3(b"") == 0xDEADBEEF
    assert lookup3(b"Four score and seven years ago") == 0x17770551
    for number in range(3):
        path = write(tmp_path / f"{number}.hdf5", LINES[: number * 5])
        data = path.read_bytes()
        assert int.from_bytes(data[44:48], "little") == lookup3(data[:44])


def test_an_index_that_hdf5_cannot_hold(tmp_path, monkeypatch):
    monkeypatch.setattr(hdf5, "MAX_TEXT", 10)
    with pytest.raises(InputError, match="--no-index"):
        write(tmp_path / "a.hdf5", LINES)


def test_an_unknown_superblock_is_refused(tmp_path):
    path = tmp_path / "old.hdf5"
    with h5py.File(path, "w", libver="earliest") as file:
        file["a"] = 1
    before = path.read_bytes()
    with path.open("r+b") as file, pytest.raises(OSError, match="superblock is of an unknown"):
        hdf5.append_string(file, 100, None)
    assert path.read_bytes() == before
