import numpy as np
import pytest
import torch

from analysis.planted import Planted, same, write
from torchelmo.analysis import pos
from torchelmo.analysis.files import Text
from torchelmo.analysis.pos import Tags, fit, predict, read_conllu
from torchelmo.errors import InputError

NUMBERS = {"NOUN": 0, "VERB": 1, "X": 2}


def conllu(*sentences):
    """Sentences as "word/TAG word/TAG"."""
    out = []
    for sentence in sentences:
        out.append("# text = something")
        for number, pair in enumerate(sentence.split(), 1):
            word, tag = pair.split("/")
            out.append(f"{number}\t{word}\t_\t{tag}\t{tag.lower()}{number}\t_\t0\t_\t_\t_")
        out.append("")
    return "\n".join(out) + "\n"


FILES = {
    "xx-ud-train.conllu": conllu(
        "fish/NOUN fish/VERB", "fish/NOUN swim/VERB", "birds/NOUN fly/VERB"
    ),
    "xx-ud-dev.conllu": conllu("fish/NOUN swim/VERB"),
    "xx-ud-test.conllu": conllu("fish/VERB swim/VERB", "newts/NOUN crawl/VERB", "oh/X"),
}


def test_ranges_and_empty_nodes_are_no_words():
    lines = [
        "# text = don't",
        "1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_",
        "1\tdo\tdo\tAUX\tVBP\t_\t0\troot\t_\t_",
        "2\tn't\tnot\tPART\tRB\t_\t1\tadvmod\t_\t_",
        "2.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_",
        "3\t1 000\t1 000\tNUM\tCD\t_\t1\tobj\t_\t_",
    ]
    (sentence,) = read_conllu(Text("x", "\n".join(lines).encode()), "xpos")
    assert sentence.marked.words == ("do", "n't", "1000")
    assert sentence.tags == ("VBP", "RB", "CD")
    assert sentence.marked.places == ((0, 2), (3, 6), (7, 11))


def test_baseline_and_unseen_words_by_hand(tmp_path):
    probe = Tags.read(write(tmp_path / "xx", FILES))
    # fish is NOUN (2 of 3), swim VERB; unseen words get NOUN, the commonest (ties: first met);
    # X is no tag of train. Right: swim, newts.
    assert probe.baselines() == {
        "commonest tag of the word": {
            "dev": 100.0, "dev unseen": 0.0, "test": 40.0, "test unseen": 33.33,
        }
    }  # fmt: skip
    assert probe.describe() == "xx, UPOS: 6 / 2 / 5 words of train / dev / test, 2 tags"


def test_a_layer_that_shows_the_tag_gives_every_known_tag(tmp_path, monkeypatch):
    monkeypatch.setattr(pos, "RATE", 0.1)
    words = ["fish", "rain", "walk", "light", "sound"]
    train = [f"{a}/NOUN {b}/VERB" for a in words for b in words]
    files = {**FILES, "xx-ud-train.conllu": conllu(*train)}
    probe = Tags.read(write(tmp_path / "xx", files), seeds=(1, 2))
    tags = {part: iter([t for s in probe.parts[part] for t in s.tags]) for part in probe.parts}
    parts = iter([tags["train"], tags["dev"], tags["test"]])

    class Oracle(Planted):
        def embed(self, sentences):
            self.tags = next(parts)
            return super().embed(sentences)

    def show(text, place):
        tag = NUMBERS[next(oracle.tags)]
        return [float(tag), float(tag == 1)]

    oracle = Oracle(blind=same, top=show)
    found = probe.measure(oracle)
    assert found["top"]["dev"] == 100.0
    assert found["top"]["test"] == 80.0  # all but X
    assert found["top"]["test sd"] == 0.0
    assert found["blind"]["dev"] == 50.0


def test_test_is_left_alone_in_development(tmp_path):
    files = {name: text for name, text in FILES.items() if "test" not in name}
    found = Tags.read(write(tmp_path / "xx", files), dev=True).measure(Planted(blind=same))
    assert list(found["blind"]) == ["dev", "dev unseen"]


def test_the_classifier_is_the_same_each_time_and_parts_what_a_plane_parts(monkeypatch):
    monkeypatch.setattr(pos, "RATE", 0.05)  # few steps in so little data
    make = torch.Generator().manual_seed(0)
    inputs = torch.randn(1200, 4, generator=make)
    truth = (inputs @ torch.randn(4, 3, generator=make)).argmax(dim=1)
    runs = [fit(inputs[:900], truth[:900], inputs[900:], truth[900:], 3, 7) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    right = (predict(*runs[0], inputs[900:]) == truth[900:]).float().mean()
    assert right > 0.95


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1\tfish\tNOUN\n", "dev.conllu, line 1: 3 columns, expected 10"),
        ("# x\n\none\tf\t_\tX\tX\t_\t_\t_\t_\t_\n", "line 3: the word number 'one'"),
        ("1\t \t_\tX\tX\t_\t_\t_\t_\t_\n", "line 1: a word without letters"),
    ],
)
def test_wrong_files_name_the_line(tmp_path, text, reason):
    with pytest.raises(InputError, match=reason):
        Tags.read(write(tmp_path / "xx", {**FILES, "xx-ud-dev.conllu": text}))


def test_other_tags_are_refused(tmp_path):
    with pytest.raises(InputError, match="tags 'feats', expected one of upos, xpos"):
        Tags.read(tmp_path, tags="feats")


def test_ids_are_by_frequency(tmp_path):
    probe = Tags.read(write(tmp_path / "xx", FILES))
    assert np.array_equal(probe.ids["test"], [1, 1, 0, 1, -1])


def test_the_real_files(shared):
    probe = Tags.read(shared / "data/tasks/ko/ud_korean_kaist.tar.xz", dev=True)
    assert [len(probe.parts[part]) for part in ("train", "dev")] == [23010, 2066]
