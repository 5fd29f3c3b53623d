"""Heads by name, in a package made here."""

import pytest

from bulk.tiny import tiny_model
from tasks.small import recipe, tagged
from torchelmo.errors import InputError
from torchelmo.formats import load, native
from torchelmo.tasks import heads
from torchelmo.tasks.ensemble import Ensemble
from torchelmo.tasks.model import load_task
from torchelmo.tasks.trainer import fit


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A package with a biLM and two heads over it."""
    home = tmp_path_factory.mktemp("package")
    native.write(tiny_model(), home / "weights/heron-small")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load.importlib.resources, "files", lambda _: home)
        for name in ("en-ner", "de-ner"):
            spec = recipe("ner", elmo={"model": "heron-small"})
            fit(spec, tagged(), tagged(), output=home / "heads" / name, device="cpu")
    return home


@pytest.fixture
def packaged(package, monkeypatch):
    monkeypatch.setattr(load.importlib.resources, "files", lambda _: package)
    return package


def test_heads_by_name(packaged):
    assert list(heads.packaged_heads()) == ["de-ner", "en-ner"]
    head = load_task("en-ner", device="cpu")
    assert head.predict([e.words for e in tagged()]) == [e.tags for e in tagged()]
    both = Ensemble.load(["en-ner", packaged / "heads/de-ner"], device="cpu")
    assert both.members[0].inputs.store is both.members[1].inputs.store
    assert both.predict(tagged()) == [e.tags for e in tagged()]


def test_a_folder_comes_before_a_head(packaged, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "en-ner").mkdir()
    assert heads.find("en-ner").resolve() == tmp_path / "en-ner"


def test_a_task_is_the_name_of_its_only_head(packaged, monkeypatch):
    with pytest.raises(InputError, match=r"no folder ner: .* or a packaged head, the nearest is"):
        heads.find("ner")
    (only,) = [path for path in heads.packaged_heads().values() if path.name == "en-ner"]
    monkeypatch.setattr(heads, "packaged_heads", lambda: {"en-ner": only})
    assert heads.find("ner") == only


def test_names_that_are_not_there(packaged, monkeypatch):
    with pytest.raises(InputError, match="a packaged head, the nearest is 'en-ner'"):
        load_task("en-nerr")
    monkeypatch.setattr(heads, "packaged_heads", dict)
    with pytest.raises(
        InputError, match=r"no folder en-ner: expected one that .train. wrote$|wrote"
    ):
        load_task("en-ner")
