"""Tables of runs: reading, states, single runs that are broken off, comparisons worked by hand."""

import collections
import json
import statistics
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tasks.tables import TABLE, lasting, write_table
from torchelmo.errors import InputError
from torchelmo.tasks.comparison import arm, collect, error_cut
from torchelmo.tasks.experiment import Places, check, read_table, standing
from torchelmo.tasks.model import load_task
from torchelmo.tasks.processes import Settings, execute


class Cut(Exception):
    """Somebody pulled the plug."""


@pytest.fixture
def table(tmp_path):
    return read_table(write_table(tmp_path))


@pytest.fixture
def places(tmp_path):
    return Places(tmp_path / "data", tmp_path / "work", tmp_path / "results")


def pull_after(epoch):
    def report(now):
        if now.result is not None and now.epoch == epoch:
            raise Cut

    return report


def state(run, places):
    return standing(run, places).state


def test_runs_have_names_and_are_chosen_by_them(table):
    names = [run.name for run in table.runs()]
    assert names == ["names/baseline/1", "names/elmo/1", "names/baseline/2", "names/elmo/2"]
    assert [run.name for run in table.runs(["names/elmo"])] == ["names/elmo/1", "names/elmo/2"]
    assert [run.name for run in table.runs(["names/elmo/2"])] == ["names/elmo/2"]
    recipe = table.runs(["names/elmo/2"], ["train.batch=2"])[0].read()
    assert (recipe.task, recipe.train.seed, recipe.train.batch) == ("ner", 2, 2)
    with pytest.raises(InputError, match="no runs 'name', the nearest is 'names'"):
        table.runs(["name"])


@pytest.mark.parametrize("condition", ["baseline", "elmo"])
def test_a_run_that_is_cut_goes_on_to_the_same_end(table, places, tmp_path, condition):
    (run,) = table.runs([f"names/{condition}/1"])
    whole = Places(places.data, tmp_path / "work2", tmp_path / "results2")
    expected = execute(run, Settings(whole, "cpu"))
    settings = Settings(places, "cpu")
    assert state(run, places) == "left"
    for epoch in (2, 3):
        with pytest.raises(Cut):
            execute(run, settings, pull_after(epoch))
        assert state(run, places) == "stopped"
    seen = []
    found = execute(run, settings, lambda now: seen.append(now.epoch))
    assert set(seen) == {4, 5}, "two epochs were left"
    assert lasting(found) == lasting(expected)
    one, two = (load_file(p.folder(run) / "model/model.safetensors") for p in (whole, places))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert state(run, places) == "done"
    model = load_task(places.folder(run) / "model", device="cpu")
    assert model.evaluate(places.file("test.txt")) == found["test"] == model.metrics["test"]
    assert found["examples"] == {"train": 8, "valid": 6, "test": 10}
    assert set(found["mixes"]) == ({"input", "output"} if condition == "elmo" else set())
    assert sorted(p.name for p in places.folder(run).iterdir()) == ["lock", "model"]
    assert json.loads(places.result(run).read_text(encoding="utf-8")) == json.loads(
        json.dumps(found)
    )


def test_the_test_part_is_scored_once_after_the_best_epoch_is_known(table, places, monkeypatch):
    from torchelmo.tasks.tagger import Tagger

    asked, evaluate = [], Tagger.evaluate

    def counting(self, examples, **options):
        asked.append(len(examples))
        return evaluate(self, examples, **options)

    monkeypatch.setattr(Tagger, "evaluate", counting)
    execute(table.runs(["names/baseline/1"])[0], Settings(places, "cpu"))
    assert asked == [6] * 5 + [10]


def test_a_checkpoint_of_another_recipe_is_not_gone_on_from(table, places):
    settings = Settings(places, "cpu", keep_models=False)
    with pytest.raises(Cut):
        execute(table.runs(["names/baseline/1"])[0], settings, pull_after(2))
    seen = []
    (other,) = table.runs(["names/baseline/1"], ["train.batch=2"])
    execute(other, settings, lambda now: seen.append(now.epoch))
    assert set(seen) == {1, 2, 3, 4, 5}
    (run,) = table.runs(["names/baseline/1"])
    changed = standing(run, places)
    assert changed.state == "changed" and "train.batch 2, not 4" in changed.words


def test_a_damaged_checkpoint_is_passed_over(table, places):
    (run,) = table.runs(["names/baseline/1"])
    places.folder(run).mkdir(parents=True)
    (places.folder(run) / "checkpoint.safetensors").write_bytes(b"reeds")
    assert execute(run, Settings(places, "cpu", keep_models=False))["epochs"] == 5


def test_layers_on_disk_are_computed_once(table, places, monkeypatch):
    from torchelmo.tasks.data import LayerStore

    settings = Settings(places, "cpu", share_layers=True)
    one, two = table.runs(["names/elmo"])
    found = execute(one, settings)
    assert found["layers"] == "float16 on disk" and state(one, places) == "done"
    computed, compute = [], LayerStore._compute

    def counting(self, texts, *rest):
        computed.extend(texts)
        return compute(self, texts, *rest)

    monkeypatch.setattr(LayerStore, "_compute", counting)
    execute(two, settings)
    assert 0 < len(computed) <= 2  # the two sentences that the test part alone has
    assert len(list((places.work / "layers").glob("*.npy"))) == 1


def test_examples_of_one_context_are_held_out_together(tmp_path, places):
    from tasks.small import tagged, write_columns
    from torchelmo.tasks.processes import _read

    path = write_table(tmp_path)
    path.write_text(TABLE.replace('valid = "valid.txt"\n', ""), encoding="utf-8")
    write_columns(places.data / "two.txt", [e for e in tagged()[4:] for _ in range(3)])
    (run,) = read_table(path).runs(["names/baseline/1"], ["data.hold_out=0.2"])
    parts = _read(run, run.read(), None, places)
    train, valid = (collections.Counter(parts[part]) for part in ("train", "valid"))
    assert len(train) == 8 and len(valid) == 2 and not set(train) & set(valid)
    assert (train + valid)[tagged()[4]] == 3
    assert _read(run, run.read(), None, places) == parts, "the same for every seed"


def put(places, run, score):
    """Leave a result as a run does."""
    result = {
        "name": run.name, "seed": run.seed, "date": "2020-02-02", "commit": "abc", "torch": "2",
        "hardware": "a reed", "metric": "f1", "test": {"f1": score, "recall": 1.0}, "valid": None,
        "best_epoch": 1, "epochs": 2, "seconds": 3.0, "parameters": 4, "mixes": {},
        "examples": {"train": 8}, "bilm": ["en-small", "77"] if run.condition == "elmo" else None,
        "layers": "float32", "data": run.data, "recipe": run.read().to_json(),
    }  # fmt: skip
    places.result(run).parent.mkdir(parents=True, exist_ok=True)
    places.result(run).write_text(json.dumps(result), encoding="utf-8")


def test_comparisons_by_hand(table, places):
    base, elmo, base2, elmo2 = table.runs()
    put(places, base, 80.0)
    assert collect(table, places) == {}, "one arm is no comparison"
    put(places, elmo, 86.0)
    (path,) = collect(table, places).values()
    one = json.loads(path.read_text(encoding="utf-8"))
    assert path == places.results / "names.json"
    assert one["baseline"] == {"scores": [80.0], "mean": 80.0, "sd": None}
    assert one["elmo"] == {"scores": [86.0], "mean": 86.0, "sd": None}
    assert one["error_cut"] == 30.0  # 6 of 20
    put(places, base2, 83.0)
    put(places, elmo2, 85.0)
    collect(table, places)
    two = json.loads(path.read_text(encoding="utf-8"))
    assert two["baseline"] == {"scores": [80.0, 83.0], "mean": 81.5, "sd": 2.1213}
    assert two["elmo"] == {"scores": [86.0, 85.0], "mean": 85.5, "sd": 0.7071}
    assert two["error_cut"] == 21.62  # 4 of 18.5
    assert two["paper"] == {"baseline": 90.15, "elmo": 92.22}
    assert (two["task"], two["metric"], two["seeds"]) == ("ner", "f1", [1, 2])
    assert (two["model"], two["data"], two["name"]) == ("en-small", "ten sentences", "tasks-names")
    keys = {"name", "date", "commit", "command", "hardware", "torch", "model", "data", "metric"}
    assert keys | {"seeds", "values", "task", "baseline", "elmo", "error_cut", "paper"} == set(two)
    assert not [p for p in places.results.rglob("*") if "partial" in p.name]


def test_means_and_deviations():
    scores = [90.1, 90.7, 89.2]
    made = arm(scores)
    assert made["mean"] == pytest.approx(sum(scores) / 3, abs=1e-4)
    assert made["sd"] == pytest.approx(statistics.stdev(scores), abs=1e-4)
    assert error_cut(90.15, 92.22) == 21.02  # the paper's 21 %
    assert error_cut(50.0, 40.0) == -20.0
    assert error_cut(100.0, 100.0) is None


def test_a_figure_that_is_not_there(tmp_path, places):
    path = write_table(tmp_path)
    path.write_text(TABLE.replace("seeds", 'metric = "em"\nseeds'), encoding="utf-8")
    table = read_table(path)
    for run in table.runs():
        put(places, run, 80.0)
    with pytest.raises(InputError, match="names/baseline/1 has no figure 'em', it has f1, recall"):
        collect(table, places)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("[conditions]", "[condition]", "no key 'condition', the nearest is 'conditions'"),
        ("elmo = []", "elmo = 3", "conditions.elmo is 3, expected a list of changes"),
        ("elmo = []", 'elmo = "elmo.mix=top"', "expected a list of changes such as"),
        ("[tasks.names]", "[tasks.'a/b']", "the name 'a/b' has other characters than"),
        ("seeds = [1, 2]", "seeds = []", "expected one or more numbers, each once"),
        ("seeds = [1, 2]", "seeds = [1, 1]", "expected one or more numbers, each once"),
        ("seeds = [1, 2]", 'seeds = ["x"]', "tasks.names.seeds"),
        ("seeds = [1, 2]", "", "tasks.names is incomplete"),
        ('test = "test.txt"', "", "tasks.names is incomplete"),
        ('test = "test.txt"', "test = []", "tasks.names has no test file"),
        ("about", "abuot", "no key 'abuot', the nearest is 'about'"),
        ("seeds", 'conditions = ["elmos"]\nseeds', "no condition 'elmos', the nearest is 'elmo'"),
        ("elmo = 92.22", 'elmo = "high"', "paper.elmo is 'high', expected a number"),
        ("[tasks.names]", "[tasks.names", "is not a TOML file"),
        (TABLE[TABLE.index("[tasks") :], "", "has no tasks: give"),
        ('baseline = ["elmo.where=none"]\nelmo = []\n', "", "has no conditions: give"),
    ],
)
def test_wrong_tables_are_refused_in_a_sentence(tmp_path, old, new, reason):
    assert old in TABLE
    path = tmp_path / "table.toml"
    path.write_text(TABLE.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_table(path)
    assert reason in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('task = "ner"', 'task = "nerr"', "names/baseline/1: there is no task 'nerr', the nearest"),
        ("names.toml", "gone", "names/baseline/1: there is no file and no task's recipe 'gone'"),
        ("elmo = []", 'elmo = ["elmo.wher=input"]', "names/elmo/1: .*the nearest is 'where'"),
    ],
)
def test_wrong_runs_are_refused_before_any_begins(tmp_path, places, old, new, reason):
    path = write_table(tmp_path)
    path.write_text(TABLE.replace(old, new, 1), encoding="utf-8")
    table = read_table(path)
    with pytest.raises(InputError, match=reason):
        check(table.runs())
    assert "wrong" in {state(run, places) for run in table.runs()}


def test_tables_that_are_not_there(tmp_path):
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_table(tmp_path / "gone.toml")
    with pytest.raises(InputError, match="no table 'tabel1', the nearest is 'table1'"):
        read_table("tabel1")


def test_the_papers_table():
    table = read_table("table1")
    assert list(table.groups) == ["ner", "sst", "nli", "qa", "srl", "coref"]
    assert all(len(table.groups[name].seeds) >= 3 for name in ("ner", "sst", "nli"))
    figures = {name: tuple(group.paper.values()) for name, group in table.groups.items()}
    assert figures == {
        "ner": (90.15, 92.22), "sst": (51.4, 54.7), "nli": (88.0, 88.7), "qa": (81.1, 85.8),
        "srl": (81.4, 84.6), "coref": (67.2, 70.4),
    }  # fmt: skip
    for run in table.runs(["ner", "sst"]):
        assert (run.read().bilm is None) == (run.condition == "baseline")
    for group in table.groups.values():
        assert not any(Path(path).is_absolute() for path in (*group.train, *group.test))
