import dataclasses
import json

import pytest
import torch

from tasks.small import elmo, recipe, tagged, write_columns
from torchelmo.errors import InputError
from torchelmo.tasks import trainer
from torchelmo.tasks.data import LayerStore
from torchelmo.tasks.model import load_task
from torchelmo.tasks.trainer import Ema, Trainer, fit, make_optimizer


def few(**train):
    """Two epochs of the tagger alone, without ELMo unless asked for."""
    return recipe("ner", elmo=None, train={"epochs": 2, **train})


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one, two):
    return all(torch.equal(one[name], two[name]) for name in one)


def without_seconds(metrics):
    if isinstance(metrics, dict):
        return {k: without_seconds(v) for k, v in metrics.items() if k != "seconds"}
    return [without_seconds(v) for v in metrics] if isinstance(metrics, list) else metrics


def test_two_runs_are_identical_and_another_seed_is_not():
    spec = recipe(
        "ner",
        elmo={"where": "both", "dropout": 0.3},
        network={"dropout": 0.3},
        train={"epochs": 2, "ema": 0.9},
    )
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, two = (fit(spec, tagged(), tagged(), bilm=elmo(), device="cpu") for _ in range(2))
    assert same(weights(one), weights(two))
    assert without_seconds(one.metrics) == without_seconds(two.metrics)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), before)
    other = dataclasses.replace(spec, train=dataclasses.replace(spec.train, seed=1))
    assert not same(weights(one), weights(fit(other, tagged(), bilm=elmo(), device="cpu")))


def test_the_callers_random_numbers_are_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fit(few(epochs=1), tagged(), device="cpu")
    assert torch.equal(torch.rand(3), expected)


def scripted(monkeypatch, figures, **train):
    """Run with validation figures that are given, not measured; return model and learning rates."""
    left = iter(figures)
    monkeypatch.setattr(
        "torchelmo.tasks.tagger.Tagger.evaluate", lambda *_, **__: {"f1": next(left)}
    )
    model = fit(few(epochs=len(figures), **train), tagged(), tagged()[:1], device="cpu")
    return model, [epoch["learning_rate"] for epoch in model.metrics["epochs"]]


def test_early_stopping_keeps_the_best_epoch(monkeypatch):
    kept = {}
    monkeypatch.setattr(
        Trainer, "_metrics", lambda self, _: kept.setdefault(len(self.epochs), weights(self.model))
        and {"best": self.best, "epochs": self.epochs},
    )  # fmt: skip
    model, _ = scripted(monkeypatch, [10.0, 30.0, 20.0, 30.0, 5.0, 90.0], patience=3)
    assert len(model.metrics["epochs"]) == 5 and model.metrics["best"]["epoch"] == 2
    assert same(weights(model), kept[2]) and not same(kept[2], kept[5])


def test_the_learning_rate_is_halved_where_nothing_gets_better(monkeypatch):
    figures = [1.0, 2.0, 2.0, 2.0, 2.0, 3.0, 1.0]
    _, at_once = scripted(monkeypatch, figures, halve_after=0, learning_rate=0.8)
    assert at_once == [0.8, 0.8, 0.8, 0.4, 0.2, 0.1, 0.1]
    _, later = scripted(monkeypatch, figures, halve_after=1, learning_rate=0.8)
    assert later == [0.8, 0.8, 0.8, 0.8, 0.4, 0.4, 0.4]


def test_the_learning_rate_decays_by_steps():
    model = fit(few(decay=0.5, decay_steps=2, batch=5, learning_rate=0.01), tagged(), device="cpu")
    assert [e["learning_rate"] for e in model.metrics["epochs"]] == [0.005, 0.0025]


def test_moving_average():
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    ema = Ema(layer, 0.9)
    expected = 0.0
    for step in range(1, 120):
        torch.nn.init.constant_(layer.weight, float(step))
        ema.update()
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
    ema.swap()
    assert layer.weight.item() == pytest.approx(expected, rel=1e-5)
    ema.swap()
    assert layer.weight.item() == 119


def test_weight_decay_is_for_matrices_and_never_for_mixes():
    model = fit(recipe("ner", elmo={"where": "both"}, train={"epochs": 1}), tagged(), bilm=elmo())
    optimizer = make_optimizer(model, dataclasses.replace(model.recipe.train, weight_decay=0.1))
    decayed, free = optimizer.param_groups
    assert decayed["weight_decay"] == 0.1 and free.get("weight_decay", 0) == 0
    assert all(p.dim() > 1 for p in decayed["params"])
    mixes = {id(p) for mix in model.inputs.mixes().values() for p in mix.parameters()}
    assert mixes <= {id(p) for p in free["params"]}


@pytest.mark.parametrize("optimizer", ["adam", "adadelta", "adagrad", "sgd"])
def test_every_optimizer_lowers_the_loss(optimizer):
    rates = {"adam": 0.02, "adadelta": 1.0, "adagrad": 0.05, "sgd": 0.05}
    spec = few(optimizer=optimizer, learning_rate=rates[optimizer], epochs=4, clip_value=1.0)
    losses = [e["loss"] for e in fit(spec, tagged(), device="cpu").metrics["epochs"]]
    assert losses[-1] < losses[0]


def test_accumulated_batches_are_one_step():
    model = fit(few(epochs=1), tagged(), device="cpu")
    spec = dataclasses.replace(
        model.recipe, train=dataclasses.replace(model.recipe.train, batch=5, accumulate=2)
    )
    model.recipe = spec
    run = Trainer(model, tagged(), [])
    run._epoch(1)
    assert run.step == 1


def test_the_folder_always_holds_the_best_epoch(tmp_path):
    seen = []

    def report(now):
        if now.result is not None:
            seen.append(json.loads((tmp_path / "run/metrics.json").read_text(encoding="utf-8")))

    path = write_columns(tmp_path / "train.txt", tagged())
    model = fit(few(epochs=3), path, path, output=tmp_path / "run", report=report, device="cpu")
    assert len(seen[0]["epochs"]) == 1
    final = json.loads((tmp_path / "run/metrics.json").read_text(encoding="utf-8"))
    assert final == json.loads(json.dumps(model.metrics)) and len(final["epochs"]) == 3
    assert final["examples"] == {"train": 10, "valid": 10} and final["parameters"] > 1000
    assert same(weights(load_task(tmp_path / "run", device="cpu")), weights(model))
    with pytest.raises(InputError, match="exists and is not empty"):
        fit(few(), path, output=tmp_path / "run", device="cpu")
    fit(few(epochs=1), path, output=tmp_path / "run", overwrite=True, device="cpu")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file, expected the name of a folder"):
        fit(few(), path, output=tmp_path / "file", device="cpu")


def test_a_run_can_be_stopped():
    asked = []

    def stop():
        asked.append(None)
        return len(asked) == 5

    model = fit(few(epochs=50, batch=5), tagged(), tagged(), stop=stop, device="cpu")
    assert len(model.metrics["epochs"]) == 2 and len(model.predict(["Oslo"])) == 1
    first = fit(few(epochs=50), tagged(), stop=lambda: True, device="cpu")
    assert first.metrics["best"]["loss"] is None


def test_layers_are_computed_once_and_shared(monkeypatch):
    store = LayerStore(elmo())
    spec = recipe("ner", train={"epochs": 2})
    fit(spec, tagged(), tagged(), store=store, device="cpu")
    assert len(store) == 10
    monkeypatch.setattr(store, "_compute", None)
    fit(spec, tagged(), tagged(), store=store, device="cpu")


def test_examples_are_held_out_the_same_way_for_every_seed():
    left, right = trainer.hold_out(range(100), 0.1)
    assert len(right) == 10 and sorted([*left, *right]) == list(range(100))
    assert trainer.hold_out(range(100), 0.1)[1] == right and right != list(range(10))
    assert [len(part) for part in trainer.hold_out("ab", 0.9)] == [1, 1]
    spec = recipe("ner", elmo=None, data={"hold_out": 0.3}, train={"epochs": 1})
    metrics = fit(spec, tagged(), device="cpu").metrics
    assert metrics["examples"] == {"train": 7, "valid": 3} and "valid" in metrics["best"]


def test_layers_that_do_not_fit_are_told_of_and_learned_from():
    spec = recipe("ner", elmo={"keep_gb": 0.0}, train={"epochs": 1})
    with pytest.warns(UserWarning, match="10 texts need more than elmo.keep_gb"):
        without = fit(spec, tagged(), bilm=elmo(), device="cpu")
    kept = fit(recipe("ner", train={"epochs": 1}), tagged(), bilm=elmo(), device="cpu")
    # Other batches of the biLM have other last bits, which Adam's first steps make larger.
    torch.testing.assert_close(weights(without), weights(kept), rtol=0, atol=1e-3)


def test_progress(capsys):
    told = []
    fit(recipe("ner", train={"epochs": 1}), tagged(), bilm=elmo(), report=told.append, device="cpu")
    assert [now.phase for now in told] == ["layers", "train", "train", "train"]
    assert told[-1].result["epoch"] == 1 and told[1].loss is not None
    fit(recipe("ner", train={"epochs": 1}), tagged(), bilm=elmo(), progress=True, device="cpu")
    shown = capsys.readouterr().err
    assert "biLM layers" in shown and "epoch 1" in shown


def test_refusals(tmp_path):
    with pytest.raises(InputError, match="there are no training examples"):
        fit(few(), [], device="cpu")
    with pytest.raises(InputError, match="no file"):
        fit(few(), tmp_path / "gone.txt", device="cpu")
    with pytest.raises(InputError, match="this one is read already"):
        fit(few(), tagged(), changes=["train.batch=1"], device="cpu")
    with pytest.raises(InputError, match="there is no task 'nerr', the nearest is 'ner'"):
        fit(dataclasses.replace(few(), task="nerr"), tagged(), device="cpu")
    with pytest.raises(InputError, match="the loss is nan in epoch 1: lower train"):
        fit(few(learning_rate=1e30, clip_norm="none"), tagged(), device="cpu")


def test_no_example_of_the_library_prints(capsys):
    fit(few(epochs=1), tagged(), device="cpu")
    assert capsys.readouterr() == ("", "")
    assert trainer.LOSS_EVERY > 0
