import pytest

from torchelmo.errors import InputError
from torchelmo.tasks.readers.coref import read_documents, read_splits


def full(rows, gap="\t", empty="-"):
    """OntoNotes' columns with one argument column, of (word, speaker, mentions)."""
    return "\n".join(
        gap.join(
            ["x", "0", str(n), word, "X", "*", "-", "-", "-", speaker, "*", "*", marks or empty]
        )
        for n, (word, speaker, marks) in enumerate(rows)
    )


ONE = [("Mara", "Ann", "(0)|(1"), ("'s", "Ann", ""), ("boat", "Ann", "1)"), ("/.", "Ann", "")]
TWO = [("It", "-", "(1)"), ("is", "-", ""), ("hers", "-", "(0)"), ("today", "-", "(7)")]


def write(tmp_path, text, name="x.v4_gold_conll"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("gap", "empty"), [("\t", "-"), ("    ", "-"), ("\t", ""), ("\t", "_")])
def test_ontonotes_and_litbank(tmp_path, gap, empty):
    text = (
        f"#begin document (bc/cctv/x); part 000\n{full(ONE, gap, empty)}\n\n"
        f"{full(TWO, gap, empty)}\n\n#end document\n"
        f"#begin document (bc/cctv/x); part 001\n{full(TWO, gap, empty)}\n#end document\n"
    )
    first, second = read_documents(write(tmp_path, text))
    assert (first.name, first.genre) == ("bc/cctv/x", "bc")
    assert first.sentences == (("Mara", "'s", "boat", "."), ("It", "is", "hers", "today"))
    assert first.speakers == ("Ann", "")
    assert first.clusters == (((0, 1), (6, 7)), ((0, 3), (4, 5)), ((7, 8),))
    assert first.without_singletons().clusters == first.clusters[:2]
    assert first.words()[4] == "It"
    assert second.name == "bc/cctv/x#1"
    assert second.clusters == (((0, 1),), ((2, 3),), ((3, 4),))


def short(rows):
    return "\n".join(f"{n}\t{word}\t{marks or '_'}" for n, (word, marks) in enumerate(rows))


SHORT = [
    ("Mara", "(2(1)"), ("'s", ""), ("boat", "2)"), ("sank", "(3)"), (".", ""),
    ("", ""),
    ("She", "(1)"), ("saw", ""), ("that", "(3)"), (".", ""),
]  # fmt: skip


def test_ontogum_has_no_sentences_of_its_own(tmp_path):
    text = f"# begin document \n{short(SHORT)}\n# end document\n"
    (document,) = read_documents(write(tmp_path, text, "GUM_news_boat.conll"))
    assert (document.name, document.genre) == ("GUM_news_boat", "news")
    assert document.sentences == (("Mara", "'s", "boat", "sank", "."), ("She", "saw", "that", "."))
    assert document.speakers == ("", "")
    assert document.clusters == (((0, 1), (5, 6)), ((0, 3),), ((3, 4), (7, 8)))


def test_nested_mentions_of_one_cluster(tmp_path):
    rows = [("a", "(1(1"), ("b", "1)"), ("c", "1)")]
    text = f"# begin document \n{short(rows)}\n# end document\n"
    (document,) = read_documents(write(tmp_path, text))
    assert document.clusters == (((0, 2), (0, 3)),)


def test_folders_names_and_masked_documents(tmp_path):
    text = f"# begin document \n{short(SHORT)}\n# end document\n"
    masked = f"# begin document \n{short([('___', '(1)'), ('_', '')])}\n# end document\n"
    broken = f"# begin document \n{short([('a', '1)')])}\n# end document\n"
    write(tmp_path, text, "GUM_news_boat.conll")
    write(tmp_path, text, "GUM_bio_mara.conll")
    write(tmp_path, masked, "GUM_reddit_boat.conll")
    names = [document.name for document in read_documents(tmp_path)]
    assert names == ["GUM_bio_mara", "GUM_news_boat"]
    write(tmp_path, broken, "GUM_bio_wrong.conll")
    (chosen,) = read_documents(tmp_path, names={"GUM_news_boat", "GUM_reddit_boat"})
    assert chosen.name == "GUM_news_boat"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("0\ta\t1)", "line 2: a mention of cluster 1 closes, but none is open"),
        ("0\ta\t_\n1\tb\t(4", "line 3: a mention of cluster 4 is not closed"),
        ("0\ta\tx", "line 2: the mentions 'x', expected some like"),
        ("0\ta", r"line 2: 2 columns, expected 3, or 12 or more"),
        ("0\t\t(1)", "line 2: a mention of a word that is empty"),
        ("# begin document ", "line 2: a document begins before the last one has ended"),
        ("# end document", "line 3: a document ends that has not begun"),
    ],
)
def test_wrong_lines_are_named(tmp_path, body, reason):
    path = write(tmp_path, f"# begin document \n{body}\n# end document\n", "bad.conll")
    with pytest.raises(InputError, match=rf"bad\.conll, {reason}"):
        list(read_documents(path))


def test_documents_need_their_edges(tmp_path):
    with pytest.raises(InputError, match="line 1: a line outside any document"):
        list(read_documents(write(tmp_path, "0\ta\t_\n")))
    with pytest.raises(InputError, match=r"line 2: the document x has no #end document"):
        list(read_documents(write(tmp_path, "# begin document \n0\ta\t_\n", "x.conll")))


def test_splits(tmp_path):
    path = write(tmp_path, "# Splits\n\nText.\n\n## dev\n\n  * A_b\n\n## train\n\n  * C\n  * D\n")
    assert read_splits(path) == {"dev": ("A_b",), "train": ("C", "D")}
    with pytest.raises(InputError, match="line 1: a document before the first heading"):
        read_splits(write(tmp_path, "* A\n"))
