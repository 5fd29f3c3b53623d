import pytest
import torch

from tasks.small import elmo, parts_of_speech, recipe, static, tagged, write_columns
from torchelmo.errors import InputError
from torchelmo.tasks.decoding import convert
from torchelmo.tasks.readers.examples import Tagged
from torchelmo.tasks.tagger import Tagger
from torchelmo.tasks.trainer import fit

LIGHT = {"epochs": 1}


@pytest.fixture(scope="module")
def trained():
    """Entities with word vectors, characters, and ELMo at both ends."""
    examples = tagged()
    spec = recipe("ner", words={"vectors": "ours", "tuned": True}, elmo={"where": "both"})
    return fit(spec, examples, examples, bilm=elmo(), vectors=static(), device="cpu")


def test_ten_sentences_are_learned_by_heart(trained):
    examples = tagged()
    assert trained.evaluate(examples) == {
        "f1": 100.0,
        "precision": 100.0,
        "recall": 100.0,
        "accuracy": 100.0,
    }
    assert trained.predict([e.words for e in examples]) == [e.tags for e in examples]
    losses = [epoch["loss"] for epoch in trained.metrics["epochs"]]
    assert losses[-1] < 0.1 * losses[0]


def test_the_mixes_moved_and_were_logged(trained):
    first, last = (trained.metrics["epochs"][n]["mixes"] for n in (0, -1))
    assert list(last) == ["input", "output"]
    for place in last:
        assert sum(last[place]["s"]) == pytest.approx(1)
        assert last[place]["gamma"] != 1 and last[place] != first[place]
    assert last["input"] != last["output"]


def test_parts_of_speech_by_softmax_and_without_elmo():
    examples = parts_of_speech()
    spec = recipe("pos", elmo=None, network={"crf": False})
    model = fit(spec, examples, examples, device="cpu")
    assert model.crf is None and model.evaluate(examples) == {"accuracy": 100.0}
    assert model.metric == "accuracy" and "mixes" not in model.metrics["best"]
    text = model.show(model.parse("Rain fell on Oslo"), model.predict(["Rain fell on Oslo"])[0])
    assert text == "Rain/NOUN fell/VERB on/ADP Oslo/NOUN"


def test_entities_are_marked_in_the_raw_sentence(trained):
    raw = "Noor  met Greta Holm in New Harbour"
    parsed = trained.parse(raw)
    (tags,) = trained.predict([raw])
    assert trained.show(parsed, tags) == "[PER Noor]  met [PER Greta Holm] in [LOC New Harbour]"
    facts = trained.describe(parsed, tags)
    assert facts["spans"][1] == {"label": "PER", "text": "Greta Holm", "start": 10, "end": 20}
    assert raw[10:20] == "Greta Holm"
    assert trained.show(trained.parse("Rain fell ."), ("O", "O", "O")) == "Rain fell ."


def test_any_scheme_is_read_and_the_whole_of_bioul_is_there():
    gold = tagged()
    iob1 = [Tagged(e.words, tuple(convert(e.tags, "IOB1"))) for e in gold]
    assert Tagger.collect(recipe("ner"), iob1) == Tagger.collect(recipe("ner"), gold)
    assert len(Tagger.collect(recipe("ner"), gold)["tags"]) == 1 + 4 * 3
    model = fit(recipe("ner", elmo=None, train=LIGHT), iob1, device="cpu")
    assert torch.equal(model.gold(iob1)["tags"], model.gold(gold)["tags"])
    assert model.score(iob1, [e.tags for e in gold])["accuracy"] == 100


def test_decoding_is_held_to_the_scheme():
    examples = tagged()
    model = fit(recipe("ner", elmo=None, train=LIGHT), examples, device="cpu")
    batch = model.batch(examples)
    outputs = {**model(batch), "scores": torch.randn(10, 7, 13) * 9}
    for tags in model.decode(batch, outputs):
        assert tuple(convert(tags, "IOB2")) == tags


def test_the_batch_does_not_change_a_sentence():
    examples = tagged()
    model = fit(recipe("ner", elmo={"where": "both"}, train=LIGHT), examples, bilm=elmo())
    with torch.no_grad():
        together = model(model.batch(examples))["scores"]
        for n, example in enumerate(examples):
            alone = model(model.batch([example]))["scores"]
            torch.testing.assert_close(alone[0], together[n, : len(example.words)])


def test_files(tmp_path):
    path = write_columns(tmp_path / "train.txt", tagged())
    assert Tagger.read(recipe("ner"), path) == tagged()
    with pytest.raises(InputError, match=r"data\.reader\.format is 'csv', expected one of columns"):
        Tagger.read(recipe("ner", data={"reader": {"format": "csv"}}), path)


def test_refusals():
    examples = tagged()
    model = fit(recipe("ner", elmo=None, train=LIGHT), examples, device="cpu")
    with pytest.raises(InputError, match="the tag 'U-GOD' is not among"):
        model.gold([Tagged(("Odin",), ("B-GOD",))])
    with pytest.raises(InputError, match="input 1 has a text without words"):
        model.predict(["Oslo", "  "])
    with pytest.raises(InputError, match="network has no key 'cell', the nearest is 'cells'"):
        fit(recipe("ner", elmo=None, network={"cell": 3}), examples, device="cpu")
    with pytest.raises(InputError, match=r"network\.cells is \[\], expected one number"):
        fit(recipe("ner", elmo=None, network={"cells": []}), examples, device="cpu")
