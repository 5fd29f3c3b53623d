import pytest
import torch

from tasks.small import elmo, labelled, recipe, write_labels
from torchelmo.errors import InputError
from torchelmo.tasks.classifier import Classifier
from torchelmo.tasks.readers.examples import Labelled
from torchelmo.tasks.trainer import fit

LIGHT = {"epochs": 1}
WORDS = {"vectors": "none", "dim": 16}


@pytest.fixture(scope="module")
def trained():
    """ELMo at both ends beside a learned table."""
    spec = recipe("labels", words=WORDS, characters=None, elmo={"where": "both"})
    return fit(spec, labelled(), labelled(), bilm=elmo(), device="cpu")


def test_ten_texts_are_learned_by_heart(trained):
    assert trained.evaluate(labelled()) == {"accuracy": 100.0}
    choices = trained.predict([" ".join(e.words) for e in labelled()])
    assert [choice.label for choice in choices] == [e.label for e in labelled()]
    for choice in choices:
        assert sum(choice.shares.values()) == pytest.approx(1, abs=1e-5)
        assert choice.shares[choice.label] == max(choice.shares.values())
    assert list(trained.metrics["best"]["mixes"]) == ["input", "output"]


def test_shown_and_described(trained):
    parsed = trained.parse("the songs are lovely")
    (choice,) = trained.predict([parsed.example])
    label, share, text = trained.show(parsed, choice).split("\t")
    assert (label, text) == ("good", "the songs are lovely") and 0.3 < float(share) <= 1
    assert trained.describe(parsed, choice)["label"] == "good"


def test_maxout_and_no_elmo_learn_too():
    spec = recipe("labels", elmo=None, network={"maxout": 2}, train={"epochs": 8})
    losses = [e["loss"] for e in fit(spec, labelled(), device="cpu").metrics["epochs"]]
    assert losses[-1] < losses[0]


def test_the_batch_does_not_change_a_text():
    spec = recipe("labels", elmo={"where": "both"}, train=LIGHT)
    model = fit(spec, labelled(), bilm=elmo(), device="cpu")
    with torch.no_grad():
        together = model(model.batch(labelled()))["shares"]
        for n, example in enumerate(labelled()):
            torch.testing.assert_close(model(model.batch([example]))["shares"][0], together[n])


def test_trees_give_phrases_in_training_alone(tmp_path):
    path = tmp_path / "trees.txt"
    path.write_text("(3 (2 It) (4 (3 works) (2 .)))\n(1 (1 dull) (2 .))\n", encoding="utf-8")
    spec = recipe("sst", data={"reader": {"phrases": 2}})
    assert Classifier.read(spec, path) == [
        Labelled(("It", "works", "."), "3"),
        Labelled(("dull", "."), "1"),
    ]
    training = Classifier.read(spec, path, training=True)
    assert sorted(e.label for e in training) == ["1", "3", "4"]
    assert len(Classifier.read(recipe("sst"), path, training=True)) == 8


def test_two_labels_have_a_correlation_and_empty_texts_are_texts():
    two = [Labelled(e.words, "1" if e.label == "good" else "0") for e in labelled()]
    two.append(Labelled((), "0"))
    model = fit(recipe("cola", elmo=None, train=LIGHT), two, two, device="cpu")
    assert model.metric == "matthews"
    assert list(model.metrics["best"]["valid"]) == ["accuracy", "matthews"]
    assert len(model.predict(two)) == len(model.predict([[], ["a"]])) + 9 == 11


def test_refusals(tmp_path):
    path = write_labels(tmp_path / "one.tsv", labelled()[:1])
    with pytest.raises(InputError, match="the label 'good' alone"):
        fit(recipe("labels", elmo=None), path, device="cpu")
    model = fit(recipe("labels", elmo=None, train=LIGHT), labelled(), device="cpu")
    with pytest.raises(InputError, match="the label 'odd' is not among"):
        model.gold([Labelled(("a",), "odd")])
    with pytest.raises(InputError, match=r"network\.maxout is 0"):
        fit(recipe("labels", elmo=None, network={"maxout": 0}), labelled(), device="cpu")
