import pytest

from torchelmo.errors import InputError
from torchelmo.tasks.readers.examples import Frames, Predicate
from torchelmo.tasks.readers.propbank import read_frames

# word, lemma, frame, arguments
ROWS = [
    ("Mara", "-", "-", "(ARG0*)", "(ARG0*)"),
    ("tried", "try", "try.01", "(V*)", "*"),
    ("to", "-", "-", "(ARG1*", "*"),
    ("open", "open", "open.01", "*", "(V*)"),
    ("-LRB-", "-", "-", "*", "*"),
    ("it", "-", "-", "*)", "(ARG1*)"),
]
WORDS = ("Mara", "tried", "to", "open", "(", "it")
FRAMES = Frames(
    WORDS,
    (
        Predicate(1, "try", ("B-ARG0", "B-V", "B-ARG1", "I-ARG1", "I-ARG1", "I-ARG1")),
        Predicate(3, "open", ("B-ARG0", "O", "O", "B-V", "O", "B-ARG1")),
    ),
)


def propbank(rows, gap="\t"):
    return "\n".join(
        gap.join(["doc", "0", str(n), word, "X", "*", lemma, frame, *arguments])
        for n, (word, lemma, frame, *arguments) in enumerate(rows)
    )


def ontonotes(rows):
    return "\n".join(
        "   ".join(
            ["nw/x", "0", str(n), word, "X", "*", lemma, frame, "-", "-", "*", *arguments, "(3)"]
        )
        for n, (word, lemma, frame, *arguments) in enumerate(rows)
    )


def write(tmp_path, text, name="x.gold_conll"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


QUIET = [("Rain", "-", "-"), ("!", "-", "-")]


def test_propbank_columns(tmp_path):
    path = write(tmp_path, propbank(ROWS) + "\n\n" + propbank(QUIET) + "\n")
    assert list(read_frames(path)) == [FRAMES, Frames(("Rain", "!"), ())]


def test_ontonotes_columns(tmp_path):
    text = f"#begin document (nw/x); part 000\n{ontonotes(ROWS)}\n\n{ontonotes(QUIET)}\n\n"
    write(tmp_path, text + "#end document\n", "a.v4_gold_conll")
    write(tmp_path, "not read", "a.v4_auto_conll")
    assert list(read_frames(tmp_path)) == [FRAMES, Frames(("Rain", "!"), ())]


def test_a_column_without_verb_belongs_to_the_frame_of_its_rank(tmp_path):
    rows = [("He", "-", "-", "(ARG0*)"), ("left", "leave", "leave.01", "*")]
    (sentence,) = read_frames(write(tmp_path, propbank(rows)))
    assert sentence.predicates == (Predicate(1, "leave", ("B-ARG0", "O")),)


@pytest.mark.parametrize(
    ("column", "line", "reason"),
    [
        (["(A0*", "*", "(V*)"], 3, r"the argument '\(V\*\)' opens inside another"),
        (["(A0*", "*", "*"], 1, "the argument A0 is not closed"),
        (["*", "*)", "(V*)"], 2, r"the argument '\*\)' closes what is not open"),
        (["*", "(V*)", "x"], 3, r"the argument 'x', expected one like"),
        (["(A(B*))", "*", "(V*)"], 1, "opens inside another"),
    ],
)
def test_wrong_arguments_are_named(tmp_path, column, line, reason):
    rows = [(word, "-", "-", cell) for word, cell in zip("abc", column, strict=True)]
    with pytest.raises(InputError, match=rf"x\.gold_conll, line {line}: .*{reason}"):
        list(read_frames(write(tmp_path, propbank(rows))))


def test_wrong_widths_are_named(tmp_path):
    text = propbank(ROWS).replace("\t(V*)\t*", "\t(V*)")
    with pytest.raises(InputError, match="line 2: 9 columns, expected 10"):
        list(read_frames(write(tmp_path, text)))
    with pytest.raises(InputError, match="line 1: 2 columns, expected at least 8"):
        list(read_frames(write(tmp_path, "a b\n")))
    with pytest.raises(InputError, match="line 1: argument column 1 belongs to no predicate"):
        list(read_frames(write(tmp_path, propbank([("a", "-", "-", "*")]))))
