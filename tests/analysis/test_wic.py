import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.planted import Planted, pack, same, write
from torchelmo.analysis.files import Text
from torchelmo.analysis.wic import (
    Wic,
    best_threshold,
    marked,
    mixed_cosines,
    read_kobest,
    simplex,
)
from torchelmo.errors import InputError

ENGLISH = {
    "train.data.txt": (
        "bank\tN\t1-3\tThe bank lends money .\tWe opened a bank account .\n"
        "bank\tN\t2-1\tOn the bank grew reeds .\tThe bank lends money .\n"
        "bank\tN\t2-4\tOn the bank grew reeds .\tA heron on the bank .\n"
    ),
    "train.gold.txt": "T\nF\nT\n",
    "dev.data.txt": "bank\tN\t1-2\tThe bank lends money .\tOn the bank grew reeds .\n",
    "dev.gold.txt": "F\n",
    "test.data.txt": (
        "bank\tN\t3-1\tWe opened a bank account .\tThe bank lends money .\n"
        "bank\tN\t4-1\tA heron on the bank .\tThe bank lends money .\n"
    ),
    "test.gold.txt": "T\nF\n",
}
HEAD = "ID\tTarget\tSENTENCE1\tDictionary 1\tLink 1\tSENTENCE2\tDictionary 2\tLink2\tANSWER\n"
KOREAN = {
    "train.tsv": HEAD
    + "1\t배\t[배]가 고파서 밥을 먹었다.\t1\tx\t[배]를 타고 섬에 갔다.\t2\tx\tFalse\n"
    + "2\t배\t항구에 [배]가 많다.\t2\tx\t[배]를 타고 섬에 갔다.\t2\tx\tTRUE\n",
    "dev.tsv": HEAD + "1\t배\t[배]가 아프다.\t1\tx\t큰 [배]가 떠난다.\t2\tx\tFALSE\n",
    "test.tsv": HEAD + "1\t배\t[배]가 아프다.\t1\tx\t[배]가 고프다.\t1\tx\tTrue\n",
}


def sense(text, place):
    return [1.0, 0.1] if "reeds" in text or "heron" in text else [0.1, 1.0]


def test_a_layer_that_parts_the_senses_is_right_about_all(tmp_path):
    folder = write(tmp_path / "wic", ENGLISH)
    probe = Wic.read(pack(folder, tmp_path / "wic.tar.xz"))
    assert (len(probe.tune), len(probe.count), probe.part) == (4, 2, "test")
    assert [p.first.text[a:b] for p in probe.tune for a, b in p.first.places] == ["bank"] * 4
    found = probe.measure(Planted(averaged=True, blind=same, top=sense))
    # All cosines are 1 without context; then the commoner answer is the best there is.
    assert found["blind"]["tune"] == 50.0 and found["blind"]["test"] == 50.0
    assert found["top"]["tune"] == found["top"]["test"] == 100.0
    assert found["mix"]["test"] == 100.0 and found["mix"]["weights"] == [0.0, 1.0]
    assert list(found) == ["blind", "top", "average", "mix"]
    assert probe.baselines() == {"majority": {"test": 50.0}}
    assert probe.describe() == "WiC: 4 pairs of train + dev, 2 of test"


def test_the_test_part_is_left_alone_until_it_is_asked_for(tmp_path):
    files = {name: text for name, text in ENGLISH.items() if not name.startswith("test")}
    probe = Wic.read(write(tmp_path / "wic", files), dev=True)
    assert (len(probe.tune), len(probe.count)) == (3, 1)
    assert probe.measure(Planted(top=sense))["top"]["dev"] == 100.0
    with pytest.raises(InputError, match=r"holds no test.data.txt"):
        Wic.read(tmp_path / "wic")


def test_kobest_has_brackets_and_two_spellings_of_true(tmp_path):
    probe = Wic.read(write(tmp_path / "ko", KOREAN))
    assert [pair.same for pair in (*probe.tune, *probe.count)] == [False, True, False, True]
    first = probe.tune[1].first
    assert first.text == "항구에 배가 많다." and first.places == ((4, 5),)
    assert probe.name == "KoBEST WiC"


def test_targets_without_brackets_or_with_two(tmp_path):
    text = Text("t.tsv", b"")
    assert marked(text, 1, "불을 때니 방바닥이 덥다.", "방").places == ((6, 7),)
    twice = marked(text, 1, "a]b [단]이 뜯어져 [단]이", "단")
    assert (twice.text, twice.places) == ("ab 단이 뜯어져 단이", ((3, 4),))
    with pytest.raises(InputError, match=r"^t.tsv, line 7: '방' is not in the sentence"):
        marked(text, 7, "없다", "방")


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("train.data.txt", "a\tN\t0-0\ta b\n", "train.data.txt, line 1: 4 columns, expected 5"),
        (
            "dev.data.txt",
            "a\tN\t0-2\ta b\ta b\n",
            "dev.data.txt, line 1: word 2 of a sentence of 2",
        ),
        ("dev.data.txt", "a\tN\t0\ta b\ta b\n", "line 1: '0', expected two words' numbers"),
        ("test.gold.txt", "T\nperhaps\n", "test.gold.txt, line 2: the answer 'perhaps'"),
        ("train.gold.txt", "T\n", "line 1: the last answer, but .*train.data.txt has 3 pairs"),
    ],
)
def test_wrong_files_name_the_line(tmp_path, name, text, reason):
    folder = write(tmp_path / "wic", {**ENGLISH, name: text})
    with pytest.raises(InputError, match=reason):
        Wic.read(folder)


def test_wrong_kobest_labels_name_the_line():
    text = Text("dev.tsv", (HEAD + "1\t배\t[배]\t1\tx\t[배]\t1\tx\tmaybe\n").encode())
    with pytest.raises(InputError, match=r"^dev.tsv, line 2: the answer 'maybe'"):
        list(read_kobest(text))


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=12))
def test_no_threshold_does_better(rows):
    scores = np.array([score / 8 for score, _ in rows], np.float32)
    labels = np.array([label for _, label in rows])
    threshold, share = best_threshold(scores, labels)
    assert share == np.mean((scores > threshold) == labels)
    assert all(share >= np.mean((scores > x / 16) == labels) for x in range(-1, 16, 2))


def test_the_cosine_of_a_mix_from_products_alone():
    values = np.random.default_rng(0).normal(size=(3, 2, 5)).astype(np.float32)  # L, two sides, D
    (a, b), weights = values.transpose(1, 0, 2), np.array([0.2, 0.5, 0.3], np.float32)
    products = np.stack([a @ b.T, a @ a.T, b @ b.T])[None]
    x, y = weights @ a, weights @ b
    expected = x @ y / np.linalg.norm(x) / np.linalg.norm(y)
    np.testing.assert_allclose(mixed_cosines(products, weights), [expected], rtol=1e-5)


def test_the_grid_of_weights():
    grid = simplex(3)
    assert len(grid) == 66 and all(abs(w.sum() - 1) < 1e-6 for w in grid)
    assert len(simplex(1)) == 1 and len(simplex(7)) <= 500


def test_the_real_files(shared):
    for name, sizes in (("en/ctx", (5428, 638)), ("ko/kobest_wic", (3318, 610))):
        probe = Wic.read(shared / f"data/tasks/{name}.tar.xz", dev=True)
        assert (len(probe.tune), len(probe.count)) == sizes
