import json

from analysis.planted import Planted, same
from torchelmo.analysis import results
from torchelmo.analysis.forms import Forms, Item

ITEMS = [Item("derived", "doggy", "dog", ("tree",))]


def test_layers_beside_baselines():
    values = results.run(
        Forms(ITEMS), Planted(**{"0": same, "average": same}), {"Table": Planted(word=same)}
    )
    assert list(values["layers"]) == ["0", "average"]
    assert list(values["baselines"]) == ["chance", "Table, word"]


def test_the_file_and_the_table(tmp_path):
    values = {
        "layers": {"0": {"tune": 51.0, "test": 50.5, "threshold": 0.98765, "weights": [1]}},
        "baselines": {"majority": {"test": 50.0}},
    }
    result = results.record(
        values,
        name="n",
        command="c",
        hardware="h",
        model="m",
        data="d",
        metric="accuracy",
        seeds=[1],
    )
    path = tmp_path / "a" / "x.json"
    results.write(result, path)
    assert json.loads(path.read_text(encoding="utf-8")) == result
    assert [p.name for p in path.parent.iterdir()] == ["x.json"]
    assert list(result) == [
        *("name", "date", "commit", "command", "hardware", "torch"),
        *("model", "data", "metric", "seeds", "values"),
    ]
    assert results.table(result).splitlines() == [
        "m; d",
        "accuracy",
        "",
        "           tune   test  threshold",
        "layer 0   51.00  50.50     0.9877",
        "majority         50.00",
    ]
