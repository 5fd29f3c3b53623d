"""Downloads from a server on this machine: whole or not at all, checked at each use."""

import hashlib
from pathlib import Path

import pytest

from formats.fake_hub import FakeHub
from torchelmo.errors import InputError
from torchelmo.formats import download
from torchelmo.formats.download import download_url

DATA = bytes(range(256)) * 5000  # more than one block
SUM = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch):
    for name in ("TORCHELMO_OFFLINE", "HF_HUB_OFFLINE", "TORCHELMO_CACHE"):
        monkeypatch.delenv(name, raising=False)
    server = FakeHub()
    server.files["/a/weights.hdf5"] = DATA
    yield server
    server.stop()


def nothing_kept(folder: Path) -> bool:
    return not [path for path in folder.rglob("*") if path.is_file()]


class TestCache:
    def test_download_then_from_the_cache(self, hub: FakeHub, tmp_path: Path) -> None:
        path = download_url(f"{hub.url}/a/weights.hdf5", tmp_path)
        assert path.read_bytes() == DATA
        assert path.name == "weights.hdf5"
        record = path.with_name("weights.hdf5.sha256")
        assert record.read_text(encoding="utf-8") == f"{SUM}  weights.hdf5\n"
        assert sorted(p.name for p in path.parent.iterdir()) == [path.name, record.name]
        hub.stop()
        assert download_url(f"{hub.url}/a/weights.hdf5", tmp_path) == path
        assert len(hub.requests) == 1

    def test_same_name_at_two_addresses(self, hub: FakeHub, tmp_path: Path) -> None:
        hub.files["/b/weights.hdf5"] = b"other"
        first = download_url(f"{hub.url}/a/weights.hdf5", tmp_path)
        second = download_url(f"{hub.url}/b/weights.hdf5", tmp_path)
        assert first != second
        assert (first.read_bytes(), second.read_bytes()) == (DATA, b"other")

    def test_where_it_is_kept(
        self, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TORCHELMO_CACHE", str(tmp_path / "mine"))
        path = download_url(f"{hub.url}/a/weights.hdf5")
        assert (tmp_path / "mine") in path.parents
        monkeypatch.delenv("TORCHELMO_CACHE")
        assert download.cache_folder() == Path("~/.cache/torchelmo").expanduser()

    @pytest.mark.parametrize(
        "path", ["/a%2F..%2F..%2Fevil", "/..%5C..%5Cevil", "/", "/.hidden", "/a b?x=/../y"]
    )
    def test_names_stay_inside(self, hub: FakeHub, tmp_path: Path, path: str) -> None:
        hub.files[path.partition("?")[0].replace(" ", "%20")] = b"x"
        found = download_url(hub.url + path.replace(" ", "%20"), tmp_path / "cache")
        assert found.parent.parent == tmp_path / "cache" / "files"
        assert found.read_bytes() == b"x"
        assert not found.name.startswith(".")

    def test_a_changed_file_is_refused(self, hub: FakeHub, tmp_path: Path) -> None:
        path = download_url(f"{hub.url}/a/weights.hdf5", tmp_path)
        path.write_bytes(DATA[:-1])
        with pytest.raises(InputError, match="changed or damaged, delete it"):
            download_url(f"{hub.url}/a/weights.hdf5", tmp_path)

    def test_a_file_put_there_by_hand_is_held_to_its_sum(
        self, hub: FakeHub, tmp_path: Path
    ) -> None:
        url = f"{hub.url}/a/weights.hdf5"
        path = download_url(url, tmp_path)
        path.with_name("weights.hdf5.sha256").unlink()
        assert download_url(url, tmp_path) == path
        path.write_bytes(b"else")
        with pytest.raises(InputError, match="changed or damaged"):
            download_url(url, tmp_path)

    def test_progress(self, hub: FakeHub, tmp_path: Path) -> None:
        seen: list[tuple[int, int | None]] = []
        url = f"{hub.url}/a/weights.hdf5"
        download_url(url, tmp_path, progress=lambda done, total: seen.append((done, total)))
        assert seen[-1] == (len(DATA), len(DATA))
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)

    def test_redirect(self, hub: FakeHub, tmp_path: Path) -> None:
        hub.redirects["/moved.hdf5"] = f"{hub.url}/a/weights.hdf5"
        assert download_url(f"{hub.url}/moved.hdf5", tmp_path).read_bytes() == DATA


class TestOffline:
    @pytest.mark.parametrize("variable", ["TORCHELMO_OFFLINE", "HF_HUB_OFFLINE", None])
    def test_only_the_cache(
        self, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None
    ) -> None:
        url, offline = f"{hub.url}/a/weights.hdf5", None
        path = download_url(url, tmp_path)
        if variable is None:
            offline = True
        else:
            monkeypatch.setenv(variable, "1")
        assert download_url(url, tmp_path, offline) == path
        with pytest.raises(InputError, match=r"not in the cache .* and the network is off"):
            download_url(f"{hub.url}/b", tmp_path, offline)
        assert len(hub.requests) == 1

    def test_the_argument_wins(
        self, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert download_url(f"{hub.url}/a/weights.hdf5", tmp_path, False).read_bytes() == DATA


class TestFailures:
    def test_wrong_sum(self, hub: FakeHub, tmp_path: Path) -> None:
        url = f"{hub.url}/a/weights.hdf5"
        assert download_url(url, tmp_path / "good", sha256=SUM.upper()).read_bytes() == DATA
        with pytest.raises(InputError, match=f"has the SHA-256 {SUM}, expected 0000"):
            download_url(url, tmp_path / "bad", sha256="0" * 64)
        assert nothing_kept(tmp_path / "bad")

    def test_wrong_sum_in_the_cache(self, hub: FakeHub, tmp_path: Path) -> None:
        url = f"{hub.url}/a/weights.hdf5"
        download_url(url, tmp_path)
        with pytest.raises(InputError, match="expected 0000"):
            download_url(url, tmp_path, sha256="0" * 64)

    def test_truncated(self, hub: FakeHub, tmp_path: Path) -> None:
        hub.faults["weights.hdf5"] = "truncate"
        with pytest.raises(InputError, match="broke off after 640,000 of 1,280,000 bytes"):
            download_url(f"{hub.url}/a/weights.hdf5", tmp_path)
        assert nothing_kept(tmp_path)

    def test_not_there(self, hub: FakeHub, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"answers 404 \(Not Found\)$"):
            download_url(f"{hub.url}/gone", tmp_path)
        assert nothing_kept(tmp_path)

    def test_nobody_answers(self, hub: FakeHub, tmp_path: Path) -> None:
        hub.stop()
        with pytest.raises(InputError, match="cannot be reached"):
            download_url(f"{hub.url}/a/weights.hdf5", tmp_path)
        assert nothing_kept(tmp_path)

    @pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/y", "/etc/passwd", "data:,x"])
    def test_other_schemes(self, tmp_path: Path, url: str) -> None:
        with pytest.raises(InputError, match="expected http or https"):
            download_url(url, tmp_path)

    @pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x"])
    def test_redirects_to_other_schemes(self, hub: FakeHub, tmp_path: Path, target: str) -> None:
        hub.redirects["/a"] = target
        with pytest.raises(InputError, match=r"answers 302|cannot be reached"):
            download_url(f"{hub.url}/a", tmp_path)
        assert nothing_kept(tmp_path)

    def test_no_step_down_from_https(self) -> None:
        request = download.urllib.request.Request("https://example.org/a")
        with pytest.raises(InputError, match="which is not https"):
            download._Redirects().redirect_request(
                request, None, 302, "Found", None, "http://example.org/b"
            )

    def test_folder_that_cannot_be_made(self, hub: FakeHub, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x", encoding="utf-8")
        with pytest.raises(InputError, match="cannot be written"):
            download_url(f"{hub.url}/a/weights.hdf5", tmp_path / "file")
