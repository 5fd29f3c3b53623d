import json

import pytest

from torchelmo.errors import InputError
from torchelmo.tasks.readers.examples import Pair
from torchelmo.tasks.readers.pairs import read_pairs

FIRST, SECOND = "A dog isn't barking.", "It's quiet."
WORDS = (("A", "dog", "is", "n't", "barking", "."), ("It", "'s", "quiet", "."))
PAIR = Pair(*WORDS, "entailment")


def write(path, text):
    path.write_bytes(text.encode())
    return path


def test_jsonl_leaves_out_pairs_without_label_or_words(tmp_path):
    rows = [
        {"sentence1": FIRST, "sentence2": SECOND, "gold_label": "entailment", "pairID": "x1"},
        {"sentence1": FIRST, "sentence2": SECOND, "gold_label": "-"},
        {"sentence1": FIRST, "sentence2": " ", "gold_label": "neutral"},
    ]
    text = "\n".join(json.dumps(row) for row in rows)
    assert list(read_pairs(write(tmp_path / "snli_1.0_train.jsonl", text))) == [PAIR]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cad.tsv", f"sentence1\tsentence2\tgold_label\n{FIRST}\t{SECOND}\tentailment\n"),
        # SNLI's own table: the label first, the annotators' labels last, not always all.
        (
            "snli_1.0_dev.txt",
            "gold_label\tsentence1_parse\tsentence1\tsentence2\tlabel1\tlabel2\n"
            f"entailment\t(x)\t{FIRST}\t{SECOND}\tentailment\n-\t(x)\tA\tB\tneutral\tneutral\n",
        ),
        (
            "SICK_train.txt",
            "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\r\n"
            f"1\t{FIRST}\t{SECOND}\t4.5\tENTAILMENT\r\n",
        ),
        ("mnli.csv", f'premise,hypothesis,label\n"{FIRST}",{SECOND},entailment\n'),
    ],
)
def test_tables(tmp_path, name, text):
    assert list(read_pairs(write(tmp_path / name, text))) == [PAIR]


def test_csv_with_quotes_commas_and_line_breaks(tmp_path):
    text = 'premise,hypothesis,label\n"He said ""no"",\nthen left",He left,neutral\n'
    pair = next(read_pairs(write(tmp_path / "m.csv", text)))
    assert pair.first == ("He", "said", '"', "no", '"', ",", "then", "left")


def test_parallel_files_are_tokenised_already(tmp_path):
    path = write(tmp_path / "s1.dev", "A dog isn't barking .\nA\n")
    write(tmp_path / "s2.dev", "Quiet .\nB\n")
    write(tmp_path / "labels.dev", "neutral\ncontradiction\n")
    first = Pair(("A", "dog", "isn't", "barking", "."), ("Quiet", "."), "neutral")
    assert list(read_pairs(path)) == [first, Pair(("A",), ("B",), "contradiction")]
    write(tmp_path / "labels.dev", "neutral\n")
    with pytest.raises(InputError, match=r"labels\.dev, line 2: the file ends here"):
        list(read_pairs(path))


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.jsonl", "{}\n", "line 1: expected an object with sentence1, sentence2, gold_label"),
        ("a.jsonl", "\n{oops\n", "line 2: not JSON"),
        ("a.jsonl", "[]\n", "line 1: expected an object"),
        ("a.tsv", "one\ttwo\n", "line 1: the header lacks the columns of a known set"),
        ("a.tsv", "", "line 1: the header lacks"),
        (
            "a.tsv",
            "sentence1\tsentence2\tgold_label\nA\tB\tmaybe\n",
            "line 2: the label 'maybe', expected entailment, neutral, contradiction or -",
        ),
        ("a.tsv", "sentence1\tsentence2\tgold_label\nA\tB\n", "line 2: 2 columns, expected 3"),
        ("a.csv", 'premise,hypothesis,label\nA,"B,neutral\n', "line 2: unexpected end of data"),
    ],
)
def test_wrong_lines_are_named(tmp_path, name, text, reason):
    with pytest.raises(InputError, match=rf"{name}, {reason}"):
        list(read_pairs(write(tmp_path / name, text)))
