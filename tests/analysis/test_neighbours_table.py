"""The table and its score, on vectors whose neighbours are known."""

import json
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchelmo.analysis import neighbours_table as table
from torchelmo.analysis import senses
from torchelmo.elmo import Elmo
from torchelmo.errors import InputError
from torchelmo.tasks.vectors import StaticVectors
from torchelmo.text.words import Token, get_tokenizer


class Planted:
    """Two layers: in layer 0 a word's vector is its own; in layer 1 marked words point along their
    meaning, with a little noise, and so does `kin` of that meaning."""

    def __init__(self, examples, tokenizer="words"):
        self.examples = {one.text: one for one in examples}
        self.tokenizer = get_tokenizer(tokenizer)
        meanings = dict.fromkeys((one.word, one.sense) for one in examples)
        self.axis = {meaning: n for n, meaning in enumerate(meanings)}
        self.calls = []

    def tokenize(self, text):
        self.calls.append(self.examples[text])
        return self.tokenizer(text)

    def layers(self, sentences):
        random, out = np.random.default_rng(3), []
        width = len(self.axis) + 400
        for words, one in zip(sentences, self.calls, strict=True):
            noise = random.normal(size=(2, len(words), width)).astype(np.float32)
            noise[:, :, : len(self.axis)] *= 0.01
            for place, word in enumerate(words):
                noise[0, place] = np.random.default_rng(list(word.encode())).normal(size=width)
            target = table.locate(self.tokenizer(one.text), one)
            noise[1, target] *= 0.01
            noise[1, target, self.axis[one.word, one.sense]] = 1
            out.append(noise)
        self.calls = []
        return out


@pytest.fixture(scope="module", params=senses.LANGUAGES)
def examples(request):
    return senses.read(request.param)


@pytest.fixture(scope="module")
def report(examples):
    words = StaticVectors.of("fixed", {"bank": [1.0, 2.0], "배를": [2.0, 1.0]})
    return table.build(Planted(examples), examples, static=[words])


def test_planted_senses_score_one(report):
    assert report["layer"] == 1
    assert report["first"] == 1.0
    assert report["mean"]["layer 1"] == 1.0
    assert all(one["columns"]["layer 1"] == 1.0 for one in report["scores"])
    assert 0.25 < report["mean"]["chance"] < 0.5
    assert report["mean"]["chance"] - 0.05 < report["mean"]["layer 0"] < 0.7


def test_the_first_sentence_of_each_sense_asks(report, examples):
    firsts = {}
    for one in examples:
        firsts.setdefault((one.word, one.sense), one.marked())
    asked = {(q["word"], q["sense"]): q["sentence"] for q in report["queries"]}
    assert asked == firsts


def test_nearest_sentences_have_the_sense_and_are_others(report, examples):
    sense = {one.marked(): (one.word, one.sense) for one in examples}
    for asked in report["queries"]:
        found = [one["sentence"] for one in asked["occurrences"]]
        assert len(set(found)) == 2 and asked["sentence"] not in found
        for one in asked["occurrences"]:
            assert sense[one["sentence"]] == (asked["word"], one["sense"])
            assert one["sense"] == asked["sense"] and one["cosine"] > 0.9


def test_other_words_are_others_and_no_punctuation(report):
    for asked in report["queries"]:
        words = [near["word"] for near in asked["words"]]
        assert len(set(words)) == 5 and asked["word"] not in words
        assert all(any(map(str.isalnum, word)) for word in words)
        cosines = [near["cosine"] for near in asked["words"]]
        assert cosines == sorted(cosines, reverse=True)


def test_a_vector_that_is_the_same_everywhere_scores_chance(report):
    # Words without a vector: every occurrence is zeros, and all tie.
    for one in report["scores"]:
        if one["word"] not in ("bank", "배"):
            assert one["columns"]["fixed"] == pytest.approx(one["chance"])


def test_a_report_survives_json(report):
    again = json.loads(json.dumps(report))
    assert again == report and table.to_markdown(again) == table.to_markdown(report)


CAVE = [
    ("bat", "animal", "A *bat* woke."),
    ("bat", "animal", "One *bat* slept."),
    ("bat", "animal", "That *bat* ate."),
    ("bat", "club", "His *bat* broke."),
    ("bat", "club", "Her *bat* cracked."),
]
# In degrees: the third animal lies among the clubs.
ANGLES = {"A": 0, "One": 10, "That": 80, "His": 90, "Her": 85}


class Angles:
    """The marked word stands after the word that gives its angle; the last word is at 0."""

    def tokenize(self, text):
        return get_tokenizer("words")(text)

    def layers(self, sentences):
        out = []
        for words in sentences:
            angles = np.radians([200, ANGLES[words[0]], 0, 0])
            out.append(np.stack([np.cos(angles), np.sin(angles)], axis=1)[None].astype(np.float32))
        return out


@pytest.fixture(scope="module")
def cave():
    return senses.parse([senses.HEADER, *map("\t".join, CAVE)])


def test_a_table_worked_by_hand(cave):
    report = table.build(Angles(), cave, k=1, occurrences=3, words=2)
    (score,) = report["scores"]
    # Nearest: A-One, One-A, That-Her (wrong), His-Her, Her-(That and His tie: half).
    assert score["columns"] == {"layer 0": pytest.approx((1 + 1 + 0 + 1 + 0.5) / 5)}
    # Animals have 2 of 4 others alike, clubs 1 of 4.
    assert score["chance"] == pytest.approx((3 * 2 / 4 + 2 * 1 / 4) / 5)
    assert (score["senses"], score["sentences"], report["first"]) == (2, 5, 1.0)
    animal, club = report["queries"]
    assert [(o["sentence"], o["cosine"]) for o in animal["occurrences"]] == [
        ("One **bat** slept.", round(np.cos(np.radians(10)), 3)),
        ("That **bat** ate.", round(np.cos(np.radians(80)), 3)),
        ("Her **bat** cracked.", round(np.cos(np.radians(85)), 3)),
    ]
    assert animal["words"] == [{"word": "slept", "cosine": 1.0}, {"word": "ate", "cosine": 1.0}]
    assert [o["sense"] for o in club["occurrences"]] == ["club", "animal", "animal"]


def test_markdown_worked_by_hand(cave):
    report = table.build(Angles(), cave, k=1, occurrences=2, words=1)
    assert table.to_markdown(report) == (
        "| of 1 nearest, same meaning | senses | sentences | chance | layer 0 |\n"
        "|---|---|---|---|---|\n"
        "| bat | 2 | 5 | 40.0 | 70.0 |\n"
        "| **mean of words** |  |  | 40.0 | 70.0 |\n"
        "\n"
        "Neighbours in layer 0. In 100% of the queries the nearest sentence has the same meaning; "
        "where one has another, that is said.\n"
        "\n"
        "### bat\n"
        "\n"
        "| in a sentence | nearest sentences | nearest other words |\n"
        "|---|---|---|\n"
        "| *animal*<br>A **bat** woke. | 0.98 One **bat** slept.<br>0.17 That **bat** ate. "
        "| slept |\n"
        "| *club*<br>His **bat** broke. | 1.00 Her **bat** cracked.<br>0.98 That **bat** ate. "
        "(*another sense: animal*) | woke |\n"
    )


def test_static_neighbours_stand_under_the_word(cave):
    vectors = {"Bat": [1.0, 0.0], "bat": [1.0, 0.1], "cave": [1.0, 1.0], "|": [0.0, 1.0]}
    mine = StaticVectors.of("mine", vectors)
    report = table.build(Angles(), cave, k=1, static=[mine])
    near = [(one["word"], one["cosine"]) for one in report["static"]["mine"]["bat"]]
    assert near == [("Bat", 0.995), ("cave", 0.774), ("|", 0.1)]
    assert "### bat\n\nmine, whatever the sentence: Bat, cave, \\|\n\n| in" in table.to_markdown(
        report
    )
    other = StaticVectors.of("other", {"fish": [1.0, 0.0]})
    report = table.build(Angles(), cave, k=1, static=[other])
    assert report["static"] == {"other": {}} and "whatever" not in table.to_markdown(report)


def test_figures_are_those_of_a_probe(cave):
    mine = StaticVectors.of("layer cake", {"bat": [1.0, 0.0]})
    found = table.figures(table.build(Angles(), cave, k=1, static=[mine]))
    assert found["layers"] == {"0": {"same": 70.0}}
    assert found["baselines"] == {"chance": {"same": 40.0}, "layer cake": {"same": 40.0}}
    assert found["neighbours"]["scores"][0]["word"] == "bat"


def test_bad_requests_are_named(cave):
    with pytest.raises(InputError, match="k is 2 and a sense of 'bat' has 2 sentences"):
        table.build(Angles(), cave, k=2)
    with pytest.raises(InputError, match="layers 0 to 0"):
        table.build(Angles(), cave, k=1, layer=1)
    with pytest.raises(InputError, match="at least 1 occurrence"):
        table.build(Angles(), cave, k=1, occurrences=0)
    with pytest.raises(InputError, match="no sentences"):
        table.build(Angles(), [], k=1)


def test_locate():
    one = senses.Example("사과", "apple", "큰 사과를", 2, 4)
    assert table.locate([Token("큰", 0, 1), Token("사과를", 2, 5)], one) == 1
    assert table.locate([Token("큰", 0, 1), Token("사과", 2, 4), Token("를", 4, 5)], one) == 1
    assert table.locate([Token("사", 2, 3), Token("과", 3, 4)], one) == 0
    with pytest.raises(InputError, match="no token"):
        table.locate([Token("큰", 0, 1)], one)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=6), st.data())
def test_expected_share_is_the_mean_over_all_ways_to_break_ties(pairs, data):
    k = data.draw(st.integers(1, len(pairs)))
    cosines = np.array([cosine for cosine, _ in pairs], np.float32)
    same = np.array([flag for _, flag in pairs])
    best = max(sum(cosines[list(chosen)]) for chosen in combinations(range(len(pairs)), k))
    ways = [
        same[list(chosen)].mean()
        for chosen in combinations(range(len(pairs)), k)
        if sum(cosines[list(chosen)]) == best
    ]
    assert table.expected_share(cosines, same, k) == pytest.approx(np.mean(ways))


def test_with_a_model(fixtures, cave):
    folder = fixtures / "plain"
    elmo = Elmo.from_pretrained(
        options=folder / "options.json", weights=folder / "weights.hdf5", device="cpu"
    )
    report = table.build(elmo, cave, k=1, layer=2)
    assert list(report["mean"]) == ["chance", "layer 0", "layer 1", "layer 2"]
    # Before context every "bat" is the same vector.
    assert report["mean"]["layer 0"] == pytest.approx(report["mean"]["chance"])
    assert table.build(elmo, cave, k=1, layer=2) == report
    assert report["layer"] == 2 and all(q["occurrences"] for q in report["queries"])
