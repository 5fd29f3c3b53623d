"""A head that comes with the package: predict and evaluate take it by its name."""

import json

import pytest

from bulk.tiny import tiny_model
from tasks.small import recipe, tagged, write_columns
from torchelmo.formats import load, native
from torchelmo.tasks.trainer import fit


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    home = tmp_path / "package"
    native.write(tiny_model(), home / "weights/heron-small")
    monkeypatch.setattr(load.importlib.resources, "files", lambda _: home)
    monkeypatch.setenv("TORCHELMO_OFFLINE", "1")
    spec = recipe("ner", elmo={"model": "heron-small"})
    fit(spec, tagged(), tagged(), output=home / "heads/en-ner", device="cpu")


def test_by_name_or_task(run, packaged, tmp_path):
    for name in ("en-ner", "ner"):
        result = run("predict", name, "--text", "Greta Holm sings in Oslo", "--device", "cpu")
        assert result.code == 0 and "[PER Greta Holm]" in result.out, result.err
    write_columns(tmp_path / "test.txt", tagged())
    assert json.loads(run("evaluate", "en-ner", "test.txt", "--json").out)["f1"] == 100
    assert (
        "a packaged head, the nearest is 'en-ner'"
        in run("predict", "en-nerr", "--text", "Oslo").sentence
    )
