"""A tiny model as a folder, and the command run in this process."""

import sys
from typing import NamedTuple

import pytest

from bulk.tiny import tiny_model
from torchelmo.apps.cli import main
from torchelmo.formats import native


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def sentence(self):
        """The one line of a refusal."""
        assert self.code == 2, (self.out, self.err)
        assert self.out == ""
        (line,) = self.err.splitlines()
        assert line.startswith("torchelmo: ")
        return line


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    native.write(tiny_model(), folder)
    return folder


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHELMO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["torchelmo", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        shown = capsys.readouterr()
        return Result(stop.value.code, shown.out, shown.err)

    return call
