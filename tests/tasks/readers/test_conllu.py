import pytest

from torchelmo.errors import InputError
from torchelmo.tasks.readers.conllu import read_conllu
from torchelmo.tasks.readers.examples import Tagged


def row(number, form, upos, xpos):
    return "\t".join([number, form, "_", upos, xpos, "_", "_", "_", "_", "_"])


TEXT = "\n".join(
    [
        "# text = We won't pay 1 000",
        row("1", "We", "PRON", "PRP"),
        row("2-3", "won't", "_", "_"),
        row("2", "wo", "AUX", "MD"),
        row("3", "n't", "PART", "RB"),
        row("3.1", "ever", "ADV", "RB"),
        row("4", "pay", "VERB", "VB"),
        row("5", "1 000", "NUM", "CD"),
        "",
        row("1", "Ok", "INTJ", "UH"),
    ]
)


def test_words_of_ranges_count_and_empty_nodes_do_not(tmp_path):
    path = tmp_path / "x.conllu"
    path.write_text(TEXT, encoding="utf-8")
    words = ("We", "wo", "n't", "pay", "1000")
    assert list(read_conllu(path)) == [
        Tagged(words, ("PRON", "AUX", "PART", "VERB", "NUM")),
        Tagged(("Ok",), ("INTJ",)),
    ]
    assert next(read_conllu(path, tags="xpos")).tags == ("PRP", "MD", "RB", "VB", "CD")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("# x\n1\tWe\tPRON\n", "line 2: 3 columns, expected 10 between tabs"),
        (
            row("1", "We", "PRON", "_") + "\n" + row("3", "go", "V", "_"),
            "line 2: word number '3', ",
        ),
        (row("one", "We", "PRON", "_"), "line 1: word number 'one', expected 1"),
        (row("1", " ", "PRON", "_"), "line 1: the form is empty"),
    ],
)
def test_wrong_lines_are_named(tmp_path, text, reason):
    path = tmp_path / "bad.conllu"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=rf"bad\.conllu, {reason}"):
        list(read_conllu(path))


def test_unknown_tags(tmp_path):
    with pytest.raises(InputError, match="'deprel', expected one of upos, xpos"):
        list(read_conllu(tmp_path / "x", tags="deprel"))
