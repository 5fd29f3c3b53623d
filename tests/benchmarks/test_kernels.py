"""The check of the kernels: small cases of each operation, and what it says of its findings."""

import json
import math
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def kernels(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import kernels

    yield kernels
    for name in ("kernels", "kernel_checks", "kernel_curve", "results"):
        sys.modules.pop(name, None)


def row(error, dtype="float32", backend="triton"):
    return {
        "operation": "lstm",
        "backend": backend,
        "dtype": dtype,
        "case": "one row",
        "error": error,
        "tensor": "outputs",
    }


def test_a_case_of_each_operation(kernels, monkeypatch, tmp_path, capsys):
    import kernel_checks

    one = {
        name: (*kernel_checks.JOBS[name][:2], slice(1, 2))
        for name in ("lstm-float32-0", "applied-float32", "chars", "sampled")
    }
    monkeypatch.setattr(kernel_checks, "JOBS", one)
    monkeypatch.setattr(kernels, "child", lambda what, given, device: kernels.part(what, given))
    kernels.main(
        ["--quick", "--only", "operations", "-o", str(tmp_path / "speed" / "kernels.json")]
    )
    values = json.loads((tmp_path / "speed" / "kernels.json").read_text(encoding="utf-8"))["values"]
    names = ["lstm", "lstm, no gradients", "character CNN", "sampled softmax"]
    assert list(values["worst"]) == names
    assert all(row["error"] < kernel_checks.LIMITS[row["dtype"]] for row in values["operations"])
    assert all(row["error"] > 0 for row in values["operations"])
    assert "character CNN" in capsys.readouterr().out


def test_an_error_is_that_of_the_worst_tensor(kernels):
    import torch
    from kernel_checks import error

    wanted = {"a": torch.tensor([3.0, 4.0]).double(), "b": torch.zeros(2).double()}
    assert error({"a": torch.tensor([3.0, 4.5]), "b": torch.zeros(2)}, wanted) == (0.1, "a")
    assert error({"a": torch.tensor([3.0, 4.0]), "b": torch.ones(2)}, wanted)[1] == "b"
    assert error({"a": torch.tensor([math.nan, 4.0]), "b": torch.zeros(2)}, wanted)[0] == math.inf


def test_what_is_not_as_it_must_be_is_named(kernels):
    rows = [row(9e-6), row(2e-5), row(9e-3, "bf16"), row(math.inf, "bf16", "torch")]
    curve = {
        "identical": False,
        "from_reference": {"mean": 0.2, "largest": 0.3},
        "between_seeds": {"mean": 0.1, "largest": 0.4},
    }
    found = kernels.misses({"operations": rows, "failed": ["chars"], "curve": curve})
    assert found[0] == (
        "lstm, triton, float32, one row: outputs is off by 2.0e-05, expected less than 1e-05"
    )
    assert len(found) == 5 and "torch, bf16" in found[1] and found[2].startswith("chars did not")
    assert kernels.worst(rows)["lstm"] == {
        "float32": {"triton": 2e-5},
        "bf16": {"triton": 9e-3, "torch": math.inf},
    }
    good = {"identical": True, "from_reference": {"mean": 0.01}, "between_seeds": {"mean": 0.1}}
    assert kernels.misses({"operations": rows[:1], "curve": good}) == []
