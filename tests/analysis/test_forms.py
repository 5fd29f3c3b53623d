from pathlib import Path

import pytest

from analysis.planted import Planted, same
from torchelmo.analysis.forms import KINDS, Forms
from torchelmo.errors import InputError


@pytest.mark.parametrize("language", ["en", "ko"])
def test_our_items_are_twenty_and_five_of_a_kind(language):
    probe = Forms.read(Path(language))
    assert [item.kind for item in probe.items] == [kind for kind in KINDS for _ in range(5)]
    assert len({item.form for item in probe.items}) == 20
    for item in probe.items:
        assert len({item.form, item.kin, *item.others}) == 5
        assert item.others[0][0] == item.form[0]  # the look-alike
    assert probe.baselines() == {"chance": {"kin": 25.0}}


def test_kin_by_hand(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text(
        "derived doggy dog dodge tree\nmisspelt freind friend frond\n", encoding="utf-8"
    )
    vectors = {"doggy": [1, 0], "dog": [1, 1], "dodge": [0, 1], "tree": [-1, 0]}
    vectors |= {"freind": [1, 0], "friend": [1, 2], "frond": [2, 1]}
    found = Forms.read(path).measure(Planted(top=lambda _, word: vectors[word], blind=same))
    assert (found["top"]["kin"], found["top"]["derived"], found["top"]["misspelt"]) == (50, 100, 0)
    assert found["top"]["cosines"]["doggy dog"] == [0.707, 0.0, -1.0]
    assert found["blind"]["kin"] == 0.0  # as near is not nearer


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("derived a b c\nderived a b\n", "mine.txt, line 2: expected a kind, a form"),
        ("odd a b c\n", "line 1: the kind 'odd', expected one of inflected"),
        ("", "mine.txt is empty"),
    ],
)
def test_wrong_files_name_the_line(tmp_path, text, reason):
    path = tmp_path / "mine.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=reason):
        Forms.read(path)


def test_neither_a_language_nor_a_file():
    with pytest.raises(InputError, match="no file fr: give one, or en or ko"):
        Forms.read(Path("fr"))
