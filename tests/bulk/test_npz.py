import json
import zipfile
import zlib

import numpy as np
import pytest

from torchelmo.bulk import npz
from torchelmo.bulk.npz import Npz, StreamingZip
from torchelmo.errors import InputError


def test_more_members_than_sixteen_bits_count(tmp_path):
    path = tmp_path / "many.npz"
    count = 66_000
    with Npz(path, "float16", index=False) as writer:
        for line in range(count):
            writer.write(line, ["x"], np.array([[line % 2048]], dtype=np.float16))
        writer.finish()
    with np.load(path) as file:
        assert len(file.files) == count
        for line in (0, 65_534, 65_535, 65_536, count - 1):
            assert file[str(line)][0, 0] == line % 2048


def test_every_member_is_whole(tmp_path):
    path = tmp_path / "a.npz"
    random = np.random.default_rng(0)
    pieces = [random.standard_normal((3, t, 4)).astype(np.float32) for t in (1, 0, 5)]
    with Npz(path, "float32", index=True) as writer:
        for line, piece in enumerate(pieces):
            writer.write(line, ["wörd"] * piece.shape[1], piece)
        writer.finish()
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["0.npy", "1.npy", "2.npy", "sentence_to_index.npy"]
        assert {i.date_time for i in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    with np.load(path) as file:
        for line, piece in enumerate(pieces):
            np.testing.assert_array_equal(file[str(line)], piece, strict=True)
        assert file["sentence_to_index"].shape == (1,)
        index = json.loads(str(file["sentence_to_index"][0]))
    assert index == {"wörd": "0", "": "1", "wörd wörd wörd wörd wörd": "2"}


def test_zip64_sizes_and_offsets(tmp_path, monkeypatch):
    # The limits are lowered: what is tested is that the wide fields are right, as zipfile reads
    # them whenever the narrow ones say 0xFFFFFFFF.
    path = tmp_path / "wide.zip"
    archive = StreamingZip(path)
    members = {"small": b"abc", "large": b"x" * 1000, "far": b"def"}
    real = npz.struct.pack

    def pack(form, *values):
        return real(form, *(0xFFFFFFFF if v == 500 else v for v in values))

    monkeypatch.setattr(npz, "MAX32", 500)
    monkeypatch.setattr(npz.struct, "pack", pack)
    for name, data in members.items():
        archive.add(name, [data], len(data), zlib.crc32(data))
    archive.finish()
    archive.close()
    monkeypatch.undo()
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None
        assert {name: file.read(name) for name in file.namelist()} == members
        assert file.getinfo("large").extra.startswith(b"\x01\x00\x10\x00")
        assert file.getinfo("far").extra.startswith(b"\x01\x00\x08\x00")
    assert b"PK\x06\x06" in path.read_bytes()


def test_an_index_that_numpy_cannot_hold(tmp_path, monkeypatch):
    monkeypatch.setattr(npz, "MAX_TEXT", 10)
    writer = Npz(tmp_path / "a.npz", "float32", index=True)
    writer.write(0, ["a long sentence"], np.zeros((1, 2), dtype=np.float32))
    with pytest.raises(InputError, match="--no-index"), writer:
        writer.finish()
