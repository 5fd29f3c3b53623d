import pytest

from torchelmo.errors import InputError
from torchelmo.tasks.readers.examples import Labelled
from torchelmo.tasks.readers.trees import parse, phrases, read_trees

LINE = "(3 (2 It) (3 (3 (2 is) (4 bright)) (2 .)))"


def test_tree_and_phrases():
    tree = parse(LINE)
    assert tree.words() == ("It", "is", "bright", ".")
    assert list(phrases(tree)) == [
        Labelled(("It", "is", "bright", "."), "3"),
        Labelled(("It",), "2"),
        Labelled(("is", "bright", "."), "3"),
        Labelled(("is", "bright"), "3"),
        Labelled(("is",), "2"),
        Labelled(("bright",), "4"),
        Labelled((".",), "2"),
    ]
    assert [len(p.words) for p in phrases(tree, least=3)] == [4, 3]
    assert len(list(phrases(tree, least=9))) == 1  # the sentence itself always


def test_words_with_escapes_and_no_break_spaces():
    tree = parse("(2 (2 -LRB-) (2 (2 8\u00a01\\/2) (2 -RRB-)))")
    assert tree.words() == ("(", "8\u00a01/2", ")")


def test_deep_trees():
    depth = 5000
    tree = parse("(2 (2 a) " * depth + "(2 b)" + ")" * depth)
    assert len(tree.words()) == depth + 1


def test_file(tmp_path):
    path = tmp_path / "train.txt"
    path.write_bytes(("\ufeff" + LINE + "\r\n\r\n(1 (1 no) (2 way))\r\n").encode())
    assert [tree.label for tree in read_trees(path)] == ["3", "1"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("(3 (2 a) (2 b)", "1 brackets are not closed"),
        ("(3 (2 a) (2 b)))", r"text after the tree's end: '\)'"),
        ("(3 (2 a) b)", "a phrase with 1 words and 1 phrases in it"),
        ("(3 (2 a b) (2 c))", "a phrase with 2 words and 0 phrases in it"),
        ("(3 (2) (2 c))", "a phrase with 0 words and 0 phrases in it"),
        ("(3 ( a) (2 c))", "a bracket without a label at character 4"),
        ("words only", "'words' outside any bracket"),
    ],
)
def test_wrong_lines_are_named(tmp_path, line, reason):
    path = tmp_path / "bad.txt"
    path.write_text(f"{LINE}\n{line}\n", encoding="utf-8")
    with pytest.raises(InputError, match=rf"bad\.txt, line 2: {reason}"):
        list(read_trees(path))
