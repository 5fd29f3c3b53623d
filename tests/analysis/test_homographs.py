import numpy as np
import pytest

from analysis.planted import Planted, same, write
from torchelmo.analysis.homographs import Homographs, by_centroid, by_neighbour
from torchelmo.errors import InputError

HEAD = "word\tsense_id\tsplit\tsentence\n"
ROWS = (
    "배\t1\ttrain\t[배]가 고프다.\n"
    "배\t1\ttest\t점심을 굶어 [배]가 아프다.\n"
    "배\t2\ttrain\t[배]를 타고 바다로 갔다.\n"
    "배\t2\tdev\t바다에 [배]가 떠 있다.\n"
    "배\t2\ttest\t[배]가 바다를 건넌다.\n"
    "눈\t5\ttrain\t[눈]이 내린다.\n"
    "눈\t5\tdev\t겨울에 [눈]이 왔다.\n"
)


def read(tmp_path, text, **options):
    return Homographs.read(write(tmp_path / "probe", {"senses.tsv": text}), **options)


def sense(text, place):
    return [1.0, 0.2] if "바다" in text else [0.2, 1.0]


def test_a_layer_that_parts_the_senses_is_right_about_all(tmp_path):
    probe = read(tmp_path, HEAD + ROWS)
    found = probe.measure(Planted(blind=same, top=sense))
    assert found["top"] == {"centroid": 100.0, "neighbour": 100.0}
    # 3 of 5 and 2 of 2: what the commonest sense gives, and vectors that are all the same.
    assert found["blind"] == {"centroid": 71.43, "neighbour": 71.43}
    assert probe.baselines() == {"majority": found["blind"]}
    assert probe.describe() == "homographs: 2 words, 7 sentences"


def test_test_sentences_can_be_left_out(tmp_path):
    assert len(read(tmp_path, HEAD + ROWS, dev=True).examples) == 5


def test_leaving_one_out_by_hand():
    # On a line of angles: 0 and 10 degrees are sense 0, 30 and 90 sense 1.
    angles = np.radians([0, 10, 30, 90])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    senses = np.array([0, 0, 1, 1])
    # Centroids: 5 and 60 degrees. 0: own 10, other 60. 10: own 0, other 60. 30: own 90, other 5.
    # 90: own 30, other 5.
    assert by_centroid(vectors, senses).tolist() == [0, 0, 0, 1]
    # Nearest: 0 -> 10, 10 -> 0, 30 -> 10, 90 -> 30.
    assert by_neighbour(vectors, senses).tolist() == [0, 0, 0, 1]


def test_a_sense_seen_once_cannot_be_told():
    vectors = np.eye(3, dtype=np.float32)
    assert by_centroid(vectors, np.array([0, 0, 1])).tolist()[2] == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (HEAD + "배\t1\ttrain\n", "senses.tsv, line 2: 3 columns, expected 4"),
        (HEAD + "배\t1\tvalid\t[배]\n", "line 2: the split 'valid', expected one of train"),
        (HEAD + "배\t1\ttrain\t사과\n", "line 2: '배' is not in the sentence"),
        (HEAD, "no sentences with homographs"),
    ],
)
def test_wrong_files_name_the_line(tmp_path, text, reason):
    with pytest.raises(InputError, match=reason):
        read(tmp_path, text)


def test_the_real_file(shared):
    probe = Homographs.read(shared / "data/tasks/ko/ko_homograph_probe.tar.xz")
    assert (len(probe.rows), len(probe.examples)) == (742, 9614)
    assert probe.baselines()["majority"]["centroid"] == 60.32
