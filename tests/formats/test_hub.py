"""Published models and hub ids, against a hub on this machine."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from formats.fake_hub import COMMIT, FakeHub
from torchelmo.errors import InputError
from torchelmo.formats import hub as module
from torchelmo.formats import published
from torchelmo.formats.hub import fetch

WEIGHTS = bytes(range(256)) * 40
FILES = {
    "config.json": json.dumps({"format_version": "1.0", "lstm": {}}).encode(),
    "model.safetensors": WEIGHTS,
    "vocab.txt": b"<S>\n",
    "README.md": b"# a model",
    "encoder.pkl": b"never taken",
    "run.py": b"never taken",
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch):
    for name in ("TORCHELMO_OFFLINE", "HF_HUB_OFFLINE", "TORCHELMO_CACHE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    server = FakeHub()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    server.models["somebody/elmo"] = dict(FILES)
    yield server
    server.stop()


@pytest.fixture
def model(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> published.Published:
    """`ai2-original`, at addresses of this machine."""
    hub.files |= {"/s3/options.json": b"{}", "/s3/weights.hdf5": WEIGHTS}
    hub.files |= {"/s3/softmax.hdf5": b"softmax", "/s3/vocab.txt": b"<S>\n"}
    here = replace(
        published.PUBLISHED["ai2-original"],
        options=f"{hub.url}/s3/options.json",
        weights=f"{hub.url}/s3/weights.hdf5",
        softmax=f"{hub.url}/s3/softmax.hdf5",
        vocabulary=f"{hub.url}/s3/vocab.txt",
        mirrors=(("mirror/elmo", COMMIT), ("other/elmo", COMMIT)),
    )
    monkeypatch.setitem(published.PUBLISHED, "ai2-original", here)
    return here


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


class TestHubIds:
    def test_data_files_and_nothing_else(self, hub: FakeHub, tmp_path: Path) -> None:
        folder = fetch("somebody/elmo", cache_dir=tmp_path)
        kept = ("config.json", "model.safetensors", "vocab.txt", "README.md")
        assert contents(folder) == {name: FILES[name] for name in kept}

    def test_from_the_cache_when_the_hub_is_down(self, hub: FakeHub, tmp_path: Path) -> None:
        folder = fetch("somebody/elmo", cache_dir=tmp_path)
        hub.stop()
        assert fetch("somebody/elmo", cache_dir=tmp_path) == folder

    @pytest.mark.parametrize("how", ["argument", "HF_HUB_OFFLINE", "TORCHELMO_OFFLINE"])
    def test_offline(
        self, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
    ) -> None:
        folder = fetch("somebody/elmo", cache_dir=tmp_path)
        before = len(hub.requests)
        if how != "argument":
            monkeypatch.setenv(how, "true")
        offline = True if how == "argument" else None
        assert fetch("somebody/elmo", cache_dir=tmp_path, offline=offline) == folder
        with pytest.raises(InputError, match="else/elmo is not on this machine and the network"):
            fetch("else/elmo", cache_dir=tmp_path, offline=offline)
        assert len(hub.requests) == before

    def test_a_new_commit_is_seen(self, hub: FakeHub, tmp_path: Path) -> None:
        first = fetch("somebody/elmo", cache_dir=tmp_path)
        assert first.name == COMMIT
        assert fetch("somebody/elmo", revision=COMMIT, cache_dir=tmp_path) == first

    def test_damaged_on_its_way(self, hub: FakeHub, tmp_path: Path) -> None:
        hub.faults = {"model.safetensors": "corrupt", "vocab.txt": "corrupt"}
        with pytest.raises(InputError, match=r"model\.safetensors of the hub model somebody/elmo"):
            fetch("somebody/elmo", cache_dir=tmp_path)
        names = {path.name for path in tmp_path.rglob("*")}
        assert "config.json" in names
        assert not names & {"model.safetensors", "vocab.txt"}
        with pytest.raises(InputError, match=r"is not .*on this machine"):
            fetch("somebody/elmo", cache_dir=tmp_path, offline=True)
        hub.faults = {}
        assert contents(fetch("somebody/elmo", cache_dir=tmp_path))["vocab.txt"] == b"<S>\n"

    def test_where_there_are_no_symbolic_links(
        self, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "huggingface_hub.file_download.are_symlinks_supported", lambda *args, **more: False
        )
        hub.faults = {"model.safetensors": "corrupt"}
        with pytest.raises(InputError, match=r"model\.safetensors of the hub model somebody/elmo"):
            fetch("somebody/elmo", cache_dir=tmp_path)
        assert not list(tmp_path.rglob("model.safetensors"))
        hub.faults = {}
        folder = fetch("somebody/elmo", cache_dir=tmp_path)
        assert not (folder / "model.safetensors").is_symlink()
        assert contents(folder)["model.safetensors"] == WEIGHTS

    def test_truncated(self, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("time.sleep", lambda seconds: None)  # the hub's library tries again
        hub.faults["model.safetensors"] = "truncate"
        with pytest.raises(InputError, match=r"could not be downloaded \(.*--weights"):
            fetch("somebody/elmo", cache_dir=tmp_path)
        assert not [p for p in tmp_path.rglob("model.safetensors") if p.exists()]

    def test_unknown_model(self, hub: FakeHub, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="the hub has no model nobody/elmo, or it is private"):
            fetch("nobody/elmo", cache_dir=tmp_path)

    def test_unknown_revision(self, hub: FakeHub, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="somebody/elmo has no revision 'v9'"):
            fetch("somebody/elmo", revision="v9", cache_dir=tmp_path)

    def test_hub_down(self, hub: FakeHub, tmp_path: Path) -> None:
        hub.stop()
        with pytest.raises(InputError, match=r"could not be downloaded .*--options and --weights"):
            fetch("somebody/elmo", cache_dir=tmp_path)

    def test_only_pickles(self, hub: FakeHub, tmp_path: Path) -> None:
        hub.models["somebody/many"] = {"config.json": b"{}", "encoder.pkl": b"x"}
        with pytest.raises(InputError, match="pickles are not downloaded"):
            fetch("somebody/many", cache_dir=tmp_path)

    @pytest.mark.parametrize("name", ["../../etc", "a/b/c", "a/..", "", "a/", "a b/c"])
    def test_what_is_no_id(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(InputError, match="has the form owner/name"):
            fetch(name, cache_dir=tmp_path)


class TestPublished:
    def test_every_entry_is_whole(self) -> None:
        names = module.published_names()
        assert names[:4] == ["ai2-small", "ai2-medium", "ai2-original", "ai2-5.5b"]
        seen: set[str] = set()
        for name in names:
            model = published.PUBLISHED[name]
            assert model.name == name
            for address in (model.options, model.weights, model.softmax, model.vocabulary):
                assert address is None or address.startswith("https://")
            every = {name.lower(), *(alias.lower() for alias in model.aliases)}
            assert not every & seen
            seen |= every

    def test_other_names(self) -> None:
        for name in ("elmo-original", "2x4096_512_2048cnn_2xhighway", "AI2-Original"):
            assert module.published(name).name == "ai2-original"
        assert module.published("2x4096_512_2048cnn_2xhighway_5.5B").name == "ai2-5.5b"
        assert module.is_published("elmo_2x1024_128_2048cnn_1xhighway")
        assert not module.is_published("en-small")

    def test_nearest_name(self, tmp_path: Path) -> None:
        for name in ("ai2-smal", "ai2_small"):
            with pytest.raises(InputError, match="the nearest is 'ai2-small'"):
                fetch(name, cache_dir=tmp_path)
        with pytest.raises(InputError, match="known are ai2-small, ai2-medium"):
            fetch("zzz", cache_dir=tmp_path)

    def test_no_revisions(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="has no revisions"):
            fetch("ai2-small", revision="main", cache_dir=tmp_path)

    def test_from_the_address(self, hub: FakeHub, model, tmp_path: Path) -> None:
        folder = fetch("ai2-original", cache_dir=tmp_path)
        assert (folder / "options.json").read_bytes() == b"{}"
        assert (folder / "weights.hdf5").read_bytes() == WEIGHTS
        hub.stop()
        assert fetch("elmo-original", cache_dir=tmp_path) == folder
        (folder / "weights.hdf5").write_bytes(b"else")
        with pytest.raises(InputError, match="changed or damaged"):
            fetch("ai2-original", cache_dir=tmp_path)

    def test_from_a_mirror(self, hub: FakeHub, model, tmp_path: Path) -> None:
        hub.models["other/elmo"] = {"options.json": b"{}", "weights.hdf5": WEIGHTS}
        folder = fetch("ai2-original", cache_dir=tmp_path)
        assert contents(folder) == hub.models["other/elmo"]
        assert not [path for _, path in hub.requests if path.startswith("/s3/")]
        hub.stop()
        assert fetch("ai2-original", cache_dir=tmp_path) == folder
        assert fetch("ai2-original", cache_dir=tmp_path, offline=True) == folder

    def test_a_broken_mirror_is_passed_over(self, hub: FakeHub, model, tmp_path: Path) -> None:
        hub.models["mirror/elmo"] = {"options.json": b"{}", "weights.hdf5": WEIGHTS}
        hub.faults[f"resolve/{COMMIT}/weights.hdf5"] = "corrupt"
        folder = fetch("ai2-original", cache_dir=tmp_path)
        assert folder == tmp_path / "published" / "ai2-original"

    def test_nothing_works(self, hub: FakeHub, model, tmp_path: Path) -> None:
        del hub.files["/s3/weights.hdf5"]
        with pytest.raises(InputError) as caught:
            fetch("ai2-original", cache_dir=tmp_path)
        for part in ("mirror/elmo", "other/elmo", "answers 404", "--options and --weights"):
            assert part in str(caught.value)

    def test_offline(self, hub: FakeHub, model, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="ai2-original is not on this machine and the network"):
            fetch("ai2-original", cache_dir=tmp_path, offline=True)
        assert hub.requests == []

    def test_softmax(self, hub: FakeHub, model, tmp_path: Path) -> None:
        softmax, vocabulary = module.fetch_softmax("ai2-original", cache_dir=tmp_path)
        assert (softmax.read_bytes(), vocabulary.read_bytes()) == (b"softmax", b"<S>\n")
        with pytest.raises(InputError, match="no softmax was published for ai2-small"):
            module.fetch_softmax("ai2-small", cache_dir=tmp_path)


class TestCached:
    def test_lists_what_is_here(self, hub: FakeHub, model, tmp_path: Path) -> None:
        assert module.cached(tmp_path) == []
        own = fetch("ai2-original", cache_dir=tmp_path)
        other = fetch("somebody/elmo", cache_dir=tmp_path)
        single = module.download_url(f"{hub.url}/s3/softmax.hdf5", tmp_path)
        hub.models["somebody/bert"] = {"config.json": b"{}", "model.safetensors": b"x"}
        fetch("somebody/bert", cache_dir=tmp_path)
        found = module.cached(tmp_path)
        assert [(c.name, c.path) for c in found] == [
            ("ai2-original", own),
            ("somebody/elmo", other),
            ("softmax.hdf5", single),
        ]
        size = sum(len(FILES[n]) for n in FILES if not n.endswith((".pkl", ".py")))
        assert found[1].size == size
        assert found[2].size == len(b"softmax")


class TestPush:
    def test_data_files(
        self, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The hub's library reads the variable at its import, and some versions go by that.
        for name in ("hf_api.ENDPOINT", "constants.ENDPOINT"):
            monkeypatch.setattr(f"huggingface_hub.{name}", hub.url, raising=False)
        for name, data in FILES.items():
            (tmp_path / name).write_bytes(data)
        (tmp_path / "training.safetensors").write_bytes(b"of the optimizer")
        address = module.push(tmp_path, "me/new", private=True, token="hf_x", commit_message="Hi")
        assert address == f"{hub.url}/me/new"
        [(repo, lines)] = hub.commits
        assert repo == "me/new"
        assert lines[0]["value"]["summary"] == "Hi"
        sent = sorted(line["value"]["path"] for line in lines[1:])
        assert sent == ["README.md", "config.json", "model.safetensors", "vocab.txt"]

    def test_no_model(self, hub: FakeHub, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="is not a model folder"):
            module.push(tmp_path, "me/new")
        assert hub.requests == []

    def test_hub_says_no(self, hub: FakeHub, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_bytes(b"{}")
        hub.faults["/commit/main"] = "403"
        with pytest.raises(InputError, match="me/new could not be written to the hub: "):
            module.push(tmp_path, "me/new", token="hf_x")
