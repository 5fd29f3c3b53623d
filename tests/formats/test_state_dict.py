"""Files from anywhere: nothing runs, nothing is written, small files take little memory."""

import gzip
import io
import os
import pickle
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest
import torch

from torchelmo.errors import InputError
from torchelmo.formats import state_dict

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4)}
ZIP = pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])


class Call:
    """Calls a function when unpickled."""

    def __init__(self, function, *args: object) -> None:
        self.call = function, args

    def __reduce__(self):
        return self.call


def saved(value: object, new: bool = True) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=new)
    return buffer.getvalue()


def load(data: bytes) -> dict[str, torch.Tensor]:
    return state_dict.load_tensors(io.BytesIO(data), "x.th")


def member(name: str, data: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data


def tar(*members: tuple[tarfile.TarInfo, bytes], end: bool = True) -> bytes:
    """A tar's bytes; headers may say what they like."""
    out = b""
    for info, data in members:
        out += info.tobuf(tarfile.GNU_FORMAT) + data + b"\0" * (-len(data) % 512)
    return out + b"\0" * (1024 if end else 0)


def read_archive(path: Path, data: bytes) -> tuple[dict[str, torch.Tensor], dict[str, bytes]]:
    path.write_bytes(data)
    return state_dict.read_archive(path, "weights.th", lambda name: name.endswith(".json"))


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in; the test fails if anything but the archive appears in or above it."""
    inner = tmp_path / "deep" / "er"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    yield inner
    files = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")}
    assert files <= {"deep", os.path.join("deep", "er"), os.path.join("deep", "er", "m.tar.gz")}


class TestTensors:
    @ZIP
    def test_round_trip(self, new: bool) -> None:
        found = load(saved(TENSORS, new))
        assert found.keys() == TENSORS.keys()
        assert all(torch.equal(found[name], TENSORS[name]) for name in TENSORS)

    @ZIP
    def test_views_of_one_storage(self, new: bool) -> None:
        base = torch.arange(10.0)
        found = load(saved({"a": base[:4], "b": base[4:], "t": base.view(2, 5).T}, new))
        assert found["b"].tolist() == list(range(4, 10))

    def test_what_is_no_tensor_is_left_out(self) -> None:
        assert load(saved({"a": torch.ones(1), "epoch": 3, 5: torch.ones(1)})).keys() == {"a"}

    def test_read_file(self, tmp_path: Path) -> None:
        torch.save(TENSORS, tmp_path / "a.th")
        assert state_dict.read_file(tmp_path / "a.th").keys() == TENSORS.keys()
        with pytest.raises(InputError, match="there is no file"):
            state_dict.read_file(tmp_path / "b.th")


class TestHostilePickles:
    @ZIP
    @pytest.mark.parametrize("function", [open, os.mkdir, exec], ids=["open", "mkdir", "exec"])
    def test_nothing_is_called(self, tmp_path: Path, new: bool, function) -> None:
        target = tmp_path / "touched"
        args = {
            open: (str(target), "w"),
            os.mkdir: (str(target),),
            exec: (f"open({str(target)!r}, 'w')",),
        }
        data = saved({"a": torch.ones(2), "b": Call(function, *args[function])}, new)
        with pytest.raises(InputError, match=r"asks for .*only tensors are ever loaded"):
            load(data)
        assert not target.exists()

    def test_a_bare_pickle(self, tmp_path: Path) -> None:
        target = tmp_path / "touched"
        with pytest.raises(InputError, match=r"not a file of torch\.save"):
            load(pickle.dumps(Call(open, str(target), "w")))
        assert not target.exists()

    @ZIP
    def test_no_state_dict(self, new: bool) -> None:
        with pytest.raises(InputError, match="holds a list, expected a state dict"):
            load(saved([torch.ones(2)], new))

    @pytest.mark.parametrize("data", [b"", b"PK", b"PK\x03\x04", b"hello", b"\x1f\x8b\x08" * 9])
    def test_other_files(self, data: bytes) -> None:
        with pytest.raises(InputError, match=r"^x\.th is "):
            load(data)

    @ZIP
    def test_cut_anywhere(self, new: bool) -> None:
        whole = saved(TENSORS, new)
        for length in range(0, len(whole), 23):
            with pytest.raises(InputError, match=r"^x\.th (is|asks for) "):
                load(whole[:length])


class TestClaims:
    def test_a_repeated_storage(self) -> None:
        with pytest.raises(InputError, match="over 4 stored bytes"):
            load(saved({"a": torch.ones(1).expand(1 << 40)}))

    def test_a_compressed_zip(self) -> None:
        out = io.BytesIO()
        with (
            zipfile.ZipFile(io.BytesIO(saved({"a": torch.zeros(1 << 20)}))) as source,
            zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target,
        ):
            for name in source.namelist():
                target.writestr(name, source.read(name))
        with pytest.raises(InputError, match="claims to hold"):
            load(out.getvalue())

    def test_a_legacy_storage_that_is_not_stored(self) -> None:
        # One byte of the pickled tuple is the number of elements: make 10 into 250.
        data = saved({"a": torch.arange(10.0)}, new=False)
        marker = data.index(b"K\x0aN")
        changed = data[:marker] + b"K\xfa" + data[marker + 2 :]
        with pytest.raises(InputError, match=r"x\.th"):
            load(changed)

    def test_sparse_tensors(self) -> None:
        with pytest.raises(InputError, match="expected a dense one"):
            load(saved({"a": torch.ones(3, 3).to_sparse()}))


class TestArchives:
    def test_reads_what_is_wanted(self, alone: Path) -> None:
        data = tar(
            member("a/config.json", b"{}"),
            member("weights.th", saved(TENSORS)),
            member("weights.th", b"a second one is not looked at"),
            member("vocabulary/tokens.txt", b"x"),
        )
        tensors, small = read_archive(alone / "m.tar.gz", gzip.compress(data))
        assert tensors.keys() == TENSORS.keys()
        assert small == {"a/config.json": b"{}"}

    @pytest.mark.parametrize("name", ["../../evil", "/tmp/torchelmo-evil", "..\\..\\evil", "con"])
    def test_names_are_never_paths(self, alone: Path, name: str) -> None:
        data = tar(
            member(name, b"x"),
            member("../../evil.json", b"{}"),
            member(f"{name}/weights.th", saved(TENSORS)),
        )
        tensors, small = read_archive(alone / "m.tar.gz", gzip.compress(data))
        assert tensors.keys() == TENSORS.keys()
        assert list(small) == ["../../evil.json"]
        assert not Path("/tmp/torchelmo-evil").exists()

    @pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
    def test_links_are_passed_over(self, alone: Path, kind: bytes) -> None:
        link = member("weights.th", type=kind, linkname="/etc/passwd")
        with pytest.raises(InputError, match=r"holds no file weights\.th"):
            read_archive(alone / "m.tar.gz", gzip.compress(tar(link)))

    @pytest.mark.parametrize("name", ["weights.th", "other"])
    @pytest.mark.parametrize("size", [1 << 33, 1 << 40])
    def test_a_giant_claim(self, alone: Path, name: str, size: int) -> None:
        info, _ = member(name, size=size)
        with pytest.raises(InputError, match="over 20 times its own size"):
            read_archive(alone / "m.tar.gz", gzip.compress(tar((info, b""), end=False)))

    @pytest.mark.parametrize("name", ["weights.th", "other", "config.json"])
    def test_a_gzip_bomb(self, alone: Path, name: str) -> None:
        size = 64 << 20
        info, _ = member(name, size=size)
        squeeze = zlib.compressobj(9, wbits=31)
        data = squeeze.compress(info.tobuf())
        for _ in range(size >> 20):
            data += squeeze.compress(b"\0" * (1 << 20))
        data += squeeze.compress(b"\0" * 1024) + squeeze.flush()
        assert len(data) < 1 << 18
        with pytest.raises(InputError, match="over 20 times its own size"):
            read_archive(alone / "m.tar.gz", data)

    def test_many_small_members_of_a_bomb(self, alone: Path) -> None:
        one = tar(member("x", b"\0" * 4096), end=False)
        with pytest.raises(InputError, match="over 20 times its own size"):
            read_archive(alone / "m.tar.gz", gzip.compress(one * 5000))

    def test_a_claimed_long_header(self, alone: Path) -> None:
        info, _ = member("weights.th", size=1 << 40, type=tarfile.XHDTYPE)
        with pytest.raises(InputError, match=r"damaged|20 times"):
            read_archive(alone / "m.tar.gz", gzip.compress(tar((info, b"8"))))

    def test_a_sparse_member(self, alone: Path) -> None:
        info, _ = member("weights.th", type=tarfile.GNUTYPE_SPARSE)
        header = bytearray(info.tobuf())
        header[386:398], header[398:410] = b"00000000000\0", b"00000000000\0"  # one empty piece
        header[483:495] = b"77777777777\0"  # which is a hole of 8 GiB
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        with pytest.raises(InputError, match=r"20 times|holds no file weights\.th"):
            read_archive(alone / "m.tar.gz", gzip.compress(bytes(header) + b"\0" * 1024))

    def test_cut_anywhere(self, alone: Path) -> None:
        whole = gzip.compress(tar(member("weights.th", saved(TENSORS))))
        for length in range(0, len(whole) - 8, 37):
            with pytest.raises(InputError, match=r"m\.tar\.gz"):
                read_archive(alone / "m.tar.gz", whole[:length])

    def test_a_hostile_pickle_inside(self, alone: Path) -> None:
        target = alone / "touched"
        data = tar(member("weights.th", saved({"a": Call(open, str(target), "w")})))
        with pytest.raises(InputError, match=r"^weights\.th in .* asks for"):
            read_archive(alone / "m.tar.gz", gzip.compress(data))
        assert not target.exists()
