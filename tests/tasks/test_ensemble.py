"""One network is its own ensemble; two are their average, worked by hand."""

import dataclasses
import json

import pytest
import torch

from tasks import small
from tasks.test_entailment import pairs
from tasks.test_entailment import recipe as pair_recipe
from torchelmo.errors import InputError
from torchelmo.formats import native
from torchelmo.tasks.decoding import best_path
from torchelmo.tasks.ensemble import Ensemble, average
from torchelmo.tasks.trainer import fit

SHORT = {"epochs": 2}


def train(task, seed, **sections):
    if task == "nli":
        return fit(pair_recipe(epochs=2, seed=seed), pairs(), bilm=small.elmo(), device="cpu")
    sections["train"] = {**SHORT, "seed": seed}
    examples = small.tagged() if task == "ner" else small.labelled()
    return fit(small.recipe(task, **sections), examples, bilm=small.elmo(), device="cpu")


def examples(task):
    return {"nli": pairs, "ner": small.tagged, "labels": small.labelled}[task]()


@pytest.fixture(scope="module")
def members():
    return {task: [train(task, seed) for seed in (1, 2)] for task in ("nli", "ner", "labels")}


@pytest.mark.parametrize("task", ["nli", "ner", "labels"])
def test_an_ensemble_of_one_is_the_model(task, members):
    model = members[task][0]
    one = Ensemble([model])
    assert one.predict(examples(task)) == model.predict(examples(task))
    assert one.evaluate(examples(task)) == model.evaluate(examples(task))
    twice = Ensemble([model, model]).predict(examples(task))
    if task == "ner":
        assert twice == model.predict(examples(task))
    else:
        for a, b in zip(twice, model.predict(examples(task)), strict=True):
            assert a.shares == pytest.approx(b.shares, abs=1e-6)


@pytest.mark.parametrize("task", ["nli", "labels"])
def test_probabilities_are_averaged(task, members):
    one, two = (model.predict(examples(task)) for model in members[task])
    found = Ensemble(members[task]).predict(examples(task))
    differ = 0
    for a, b, both in zip(one, two, found, strict=True):
        mean = {label: (a.shares[label] + b.shares[label]) / 2 for label in a.shares}
        assert both.shares == pytest.approx(mean, abs=1e-6)
        assert both.label == max(mean, key=mean.__getitem__)
        differ += abs(a.shares[both.label] - b.shares[both.label]) > 1e-3
    assert differ


def test_scores_of_a_crf_are_averaged_as_they_are(members):
    one, two = members["ner"]
    sentences = examples("ner")
    with torch.no_grad():
        batch = one.batch(sentences, gold=False)
        a, b = one(batch), two(two.batch(sentences, gold=False))
        mean = {name: (a[name] + b[name]) / 2 for name in a}
        assert set(mean) == {"scores", "transitions", "begin", "end"}
        joined = Ensemble([one, two]).outputs(batch)
        torch.testing.assert_close(joined, mean)
        paths, _ = best_path(
            mean["scores"],
            batch.texts[0].mask,
            transitions=mean["transitions"],
            begin=mean["begin"],
            end=mean["end"],
            constraints=one.limits,
        )
    assert one.decode(batch, joined) == one.decode(batch, mean)
    assert [len(path) for path in paths] == [len(e.words) for e in sentences]
    in_order = Ensemble([one, two]).predict(sentences)
    assert in_order == one.decode(batch, mean)


def test_average_of_outputs_by_hand():
    one = {"shares": torch.tensor([[0.5, 0.5], [1.0, 0.0]]).log(), "scores": torch.tensor([1.0])}
    two = {"shares": torch.tensor([[0.1, 0.9], [0.2, 0.8]]).log(), "scores": torch.tensor([-3.0])}
    joined = average([one, two])
    torch.testing.assert_close(joined["shares"].exp(), torch.tensor([[0.3, 0.7], [0.6, 0.4]]))
    assert joined["scores"].tolist() == [-1.0]
    whole = {"spans": torch.tensor([1, 2])}
    assert average([whole, whole])["spans"].tolist() == [1, 2]
    with pytest.raises(InputError, match="differ in 'spans'"):
        average([whole, {"spans": torch.tensor([1, 3])}])
    with pytest.raises(InputError, match="differ in shape"):
        average([whole, {"spans": torch.tensor([1])}])
    with pytest.raises(InputError, match="differ in shape"):
        average([whole, one])


def test_loaded_members_share_one_bilm_and_its_layers(tmp_path, monkeypatch):
    native.write(small.elmo().to_model(), tmp_path / "tiny")
    models = []
    for seed in (1, 2):
        spec = pair_recipe(epochs=1, seed=seed)
        folder = tmp_path / f"run-{seed}"
        models.append(fit(spec, pairs(), bilm=tmp_path / "tiny", output=folder, device="cpu"))
    plain = fit(pair_recipe(elmo=None, epochs=1), pairs(), output=tmp_path / "plain", device="cpu")
    folders = [tmp_path / name for name in ("run-1", "run-2", "plain")]
    loaded = Ensemble.load(folders, device="cpu")
    one, two, three = loaded.members
    assert one.inputs.store is two.inputs.store is not None and three.inputs.store is None
    runs = []
    inner = one.inputs.store.inner
    compute = inner._compute
    monkeypatch.setattr(inner, "_compute", lambda *a: runs.append(1) or compute(*a))
    found = loaded.predict(pairs(), batch=len(pairs()))
    assert len(runs) == 2  # premises and hypotheses, once for both members
    expected = Ensemble([*models, plain]).predict(pairs())
    for a, b in zip(found, expected, strict=True):
        assert a.shares == pytest.approx(b.shares, abs=1e-5)
    scores = loaded.evaluate(pairs())
    assert json.loads(json.dumps(scores)) == Ensemble([*models, plain]).evaluate(pairs())


def test_text_goes_in_and_words_for_people_come_out(members):
    both = Ensemble(members["nli"])
    raw = "Two cooks chop onions\tThe kitchen is empty"
    parsed = both.parse(raw)
    (choice,) = both.predict([raw])
    assert both.unit == "line" and both.show(parsed, choice).endswith(raw)
    assert both.describe(parsed, choice)["label"] == choice.label
    assert Ensemble(members["labels"]).take(("so", "long")).text == "so long"


def test_refusals(members, tmp_path):
    with pytest.raises(InputError, match="no members"):
        Ensemble([])
    with pytest.raises(InputError, match="member 2 of the ensemble is a 'ner', the first a 'nli'"):
        Ensemble([members["nli"][0], members["ner"][0]])
    spec = pair_recipe(elmo=None, epochs=1)
    fewer = fit(spec, [p for p in pairs() if p.label != "neutral"], device="cpu")
    with pytest.raises(InputError, match="member 3 of the ensemble has other labels"):
        Ensemble([*members["nli"], fewer])
    data = dataclasses.replace(spec.data, tokenizer="whitespace")
    other = fit(dataclasses.replace(spec, data=data), pairs(), device="cpu")
    with pytest.raises(InputError, match="the tokeniser 'whitespace', the first 'words'"):
        Ensemble([members["nli"][0], other])
    with pytest.raises(InputError, match="there is no folder"):
        Ensemble.load([tmp_path / "gone"])
