"""ESIM: alignment worked by hand, ten pairs learned by heart, and what is refused."""

import math

import pytest
import torch

from tasks.small import elmo
from torchelmo.errors import InputError
from torchelmo.formats import native
from torchelmo.tasks.entailment import Entailment, align, enhance, pool
from torchelmo.tasks.model import load_task
from torchelmo.tasks.readers.examples import Pair
from torchelmo.tasks.recipe import read_recipe, recipe_from_json
from torchelmo.tasks.trainer import fit

LINES = """
entailment|A girl rows a red boat|A girl is on the water
contradiction|A girl rows a red boat|The girl is asleep at home
neutral|A girl rows a red boat|The girl is rowing to her aunt
entailment|Two cooks chop onions|Some people prepare food
contradiction|Two cooks chop onions|The kitchen is empty
neutral|Two cooks chop onions|The soup is for a wedding
entailment|An old dog sleeps|An animal rests
contradiction|An old dog sleeps|A dog runs after a cart , barking
neutral|An old dog sleeps|The dog belongs to a miller
contradiction|A tram stops|The tram never halts
"""
NETWORK = {"cells": 12, "projection": 12, "composition": 12, "hidden": 12}
STILL = {"dropout_rnn": 0.0, "dropout_attention": 0.0, "dropout": 0.0}


def pairs():
    rows = [line.split("|") for line in LINES.strip().splitlines()]
    return [Pair(tuple(one.split()), tuple(two.split()), label) for label, one, two in rows]


def recipe(*, elmo="both", **train):
    """A recipe without dropout, over a learned table."""
    data = {
        "task": "nli",
        "words": {"vectors": "none", "dim": 12},
        "network": {**NETWORK, **STILL},
        "train": {"epochs": 40, "batch": 5, "patience": "none", "learning_rate": 0.005, **train},
    }
    if elmo:
        data["elmo"] = {"model": "tiny", "where": elmo, "layer_norm": "tf", "dropout": 0.0}
    return recipe_from_json(data, "recipe")


@pytest.fixture(scope="module")
def trained():
    return fit(recipe(), pairs(), pairs(), bilm=elmo(), device="cpu")


def test_alignment_by_hand():
    # One premise of two words, a hypothesis of two and a place of padding that is far from zero.
    first = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])
    second = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]]])
    masks = torch.tensor([[True, True]]), torch.tensor([[True, True, False]])
    to_first, to_second = align(first, second, *masks)
    # Scores: word 1 of the premise 1 and 0, word 2 of it 0 and 2.
    near, far = math.e / (math.e + 1), 1 / (math.e + 1)
    close, off = math.e**2 / (math.e**2 + 1), 1 / (math.e**2 + 1)
    torch.testing.assert_close(to_first, torch.tensor([[[near, far], [off, close]]]))
    expected = torch.tensor([[[near, 2 * far], [off, 2 * close]]])
    torch.testing.assert_close(to_second[:, :2], expected)
    # More padding, of any value, changes nothing.
    wide = torch.cat([second, torch.full((1, 2, 2), -50.0)], dim=1)
    again = align(first, wide, masks[0], torch.tensor([[True, True, False, False, False]]))
    torch.testing.assert_close(again[0], to_first)
    torch.testing.assert_close(again[1][:, :3], to_second)


def test_enhancement_and_pools_by_hand():
    own, other = torch.tensor([[[2.0, -1.0]]]), torch.tensor([[[0.5, 3.0]]])
    assert enhance(own, other).tolist() == [[[2.0, -1.0, 0.5, 3.0, 1.5, -4.0, 1.0, -3.0]]]
    values = torch.tensor([[[-4.0, 1.0], [-2.0, 5.0], [70.0, 70.0]]])
    mask = torch.tensor([[True, True, False]])
    assert pool(values, mask).tolist() == [[-3.0, 3.0, -2.0, 5.0]]


def reference(model, pair):
    """The network's figures for one pair, written out a second time, one text at a time."""

    def lstm(part, values):  # (T, D) -> (T, 2 H), by torch's equations
        sides = []
        for end, order in (("", 1), ("_reverse", -1)):
            weights = dict(part.lstm.named_parameters())
            w, u = weights[f"weight_ih_l0{end}"], weights[f"weight_hh_l0{end}"]
            bias = weights[f"bias_ih_l0{end}"] + weights[f"bias_hh_l0{end}"]
            h = c = torch.zeros(u.shape[1])
            rows = []
            for x in values.flip(0) if order < 0 else values:
                i, f, g, o = (w @ x + u @ h + bias).chunk(4)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
                rows.append(h)
            sides.append(torch.stack(rows[::order]))
        return torch.cat(sides, dim=1)

    def relu(part, values):
        (layer,) = part.layers
        return (values @ layer.weight.T + layer.bias).clamp(min=0)

    texts = [model.inputs.prepare([words]) for words in (pair.first, pair.second)]
    read = [
        torch.cat([lstm(model.encoder, model.inputs(t)[0]), model.inputs.output(t)[0]], dim=1)
        for t in texts
    ]
    pooled = []
    for own, other in (read, read[::-1]):
        found = []
        for word in own:
            weights = torch.stack([(word * far).sum() for far in other]).exp()
            found.append((weights[:, None] * other).sum(0) / weights.sum())
        aligned = torch.stack(found)
        joined = torch.cat([own, aligned, own - aligned, own * aligned], dim=1)
        values = lstm(model.composition, relu(model.projection, joined))
        pooled += [values.mean(0), values.max(0).values]
    hidden = relu(model.hidden, torch.cat(pooled))
    return model.top(hidden).log_softmax(0)


def test_the_network_is_what_the_paper_writes(trained):
    with torch.no_grad():
        outputs = trained(trained.batch(pairs()))["shares"]
        for row, pair in zip(outputs, pairs(), strict=True):
            torch.testing.assert_close(row, reference(trained, pair), atol=1e-4, rtol=1e-4)


def test_ten_pairs_are_learned_by_heart(trained):
    assert trained.evaluate(pairs()) == {"accuracy": 100.0}
    losses = [epoch["loss"] for epoch in trained.metrics["epochs"]]
    assert losses[-1] < 0.2 * losses[0]
    choices = trained.predict(f"{' '.join(e.first)}\t{' '.join(e.second)}" for e in pairs())
    assert [choice.label for choice in choices] == [e.label for e in pairs()]
    for choice in choices:
        assert sum(choice.shares.values()) == pytest.approx(1, abs=1e-5)
        assert choice.shares[choice.label] == max(choice.shares.values())
    assert list(trained.metrics["best"]["mixes"]) == ["input", "output"]
    assert trained.inputs.encoders["elmo"].penalty == 0.001


def test_the_batch_does_not_change_a_pair(trained):
    with torch.no_grad():
        together = trained(trained.batch(pairs()))["shares"]
        for n, pair in enumerate(pairs()):
            torch.testing.assert_close(trained(trained.batch([pair]))["shares"][0], together[n])


def test_gradients_reach_the_mixes_and_not_the_bilm():
    bilm = elmo()
    model = fit(recipe(epochs=1), pairs(), bilm=bilm, device="cpu")
    model.train()
    model.zero_grad()
    batch = model.batch(pairs())
    model.loss(batch, model(batch)).backward()
    assert set(model.inputs.mixes()) == {"input", "output"}
    for mix in model.inputs.mixes().values():
        assert mix.weights.grad.abs().min() > 0 and mix.gamma.grad.abs() > 0
    assert all(parameter.grad is None for parameter in bilm.bilm.parameters())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_dropout_is_where_the_recipe_says():
    base = recipe(elmo=None, epochs=1)
    for name in STILL:
        changed = recipe_from_json(
            {**base.to_json(), "network": {**NETWORK, **STILL, name: 0.5}}, "recipe"
        )
        model = fit(changed, pairs(), device="cpu").train()
        batch = model.batch(pairs())
        with torch.no_grad():
            one, two = model(batch)["shares"], model(batch)["shares"]
            assert not torch.equal(one, two), name
            model.eval()
            assert torch.equal(model(batch)["shares"], model(batch)["shares"])


def test_saved_and_loaded_predictions_are_identical(tmp_path):
    native.write(elmo().to_model(), tmp_path / "tiny")
    spec = recipe(epochs=2)
    fit(spec, pairs(), pairs(), output=tmp_path / "run", bilm=tmp_path / "tiny", device="cpu")
    one, two = (load_task(tmp_path / "run", device="cpu") for _ in range(2))
    unseen = [*pairs(), Pair(("zzz", "물"), ("Oslo",), "")]
    assert one.predict(unseen) == two.predict(unseen)
    one.save(tmp_path / "again")
    assert load_task(tmp_path / "again", device="cpu").predict(unseen) == one.predict(unseen)
    lines = (tmp_path / "run/labels.txt").read_text(encoding="utf-8").split()
    assert lines == ["contradiction", "entailment", "neutral"]


def test_a_seed_gives_the_same_weights_again():
    one, two = (fit(recipe(epochs=2, seed=5), pairs(), bilm=elmo(), device="cpu") for _ in "ab")
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)


def test_raw_text_shown_and_described(trained):
    raw = "An old dog sleeps.\tAn animal rests."
    parsed = trained.parse(raw)
    first, second = parsed.tokens
    assert [raw[t.start : t.end] for t in second] == ["An", "animal", "rests", "."]
    assert parsed.example.first == tuple(t.text for t in first)
    (choice,) = trained.predict([raw])
    label, share, *rest = trained.show(parsed, choice).split("\t")
    assert label == choice.label and rest == raw.split("\t")
    assert float(share) == pytest.approx(choice.shares[label], abs=5e-4)
    told = trained.describe(parsed, choice)
    assert (told["premise"], told["hypothesis"]) == tuple(raw.split("\t"))
    (again,) = trained.predict([tuple(raw.split("\t"))])
    assert again == choice


def test_files_and_further_ones_in_training(tmp_path):
    for name, some in (("one", pairs()[:4]), ("two", pairs()[4:])):
        rows = "".join(f"{p.label}\t{' '.join(p.first)}\t{' '.join(p.second)}\n" for p in some)
        text = f"gold_label\tsentence1\tsentence2\n-\tRain\tSun\n{rows}"
        (tmp_path / f"{name}.tsv").write_text(text, encoding="utf-8")
    spec = recipe(elmo=None)
    data = {**spec.to_json(), "data": {"reader": {"also": [str(tmp_path / "two.tsv")]}}}
    spec = recipe_from_json(data, "recipe")
    assert Entailment.read(spec, tmp_path / "one.tsv") == pairs()[:4]
    assert Entailment.read(spec, tmp_path / "one.tsv", training=True) == pairs()


def test_refusals(trained):
    for line in ("only one text", "a\tb\tc", "\tb", "a\t "):
        with pytest.raises(InputError, match="expected a premise, one tab, and a hypothesis"):
            trained.predict([line])
    with pytest.raises(InputError, match="a pair is two texts"):
        trained.predict([["A", "girl", "rows"]])
    with pytest.raises(InputError, match="input 1 has a text without words"):
        trained.predict([pairs()[0], Pair(("a",), (), "")])
    with pytest.raises(InputError, match="the label 'maybe' is not among"):
        trained.gold([Pair(("a",), ("b",), "maybe")])
    with pytest.raises(InputError, match="the label 'neutral' alone"):
        fit(recipe(elmo=None), [pairs()[2]], device="cpu")
    for change, reason in (
        ({"hidden": 0}, r"network\.hidden is 0, expected 1 or more"),
        ({"dropout": 1.0}, r"network\.dropout is 1\.0"),
        ({"cels": 3}, "no key 'cels', the nearest is 'cells'"),
    ):
        spec = recipe_from_json(
            {"task": "nli", "words": {"vectors": "none"}, "network": change}, ""
        )
        with pytest.raises(InputError, match=reason):
            fit(spec, pairs(), device="cpu")


def test_our_recipe_is_the_papers():
    ours = read_recipe("nli")
    assert (ours.elmo.where, ours.elmo.layer_norm, ours.elmo.penalty) == ("both", "tf", 0.001)
    train = ours.train
    assert (train.optimizer, train.learning_rate, train.halve_after) == ("adam", 4e-4, 0)
    assert (train.batch, train.clip_norm, train.weight_decay) == (32, 5.0, 1e-4)
    assert not ours.words.tuned
    assert set(ours.network.values()) == {300, 0.5} and ours.elmo.dropout == 0.5
