"""Several processes do what one does: the same losses, and each goes on from the other's files."""

import sys

import pytest
import torch

from pretrain.tiny import CPU, tiny_recipe
from torchelmo.pretrain.processes import Processes

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="no fork there"),
    pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed"),
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="no gloo"),
]

EXACT = tiny_recipe(
    train={"dropout": 0.0, "softmax": "full", "steps": 20, "learning_rate": 0.2},
    watch={"log": 1, "validate": 10, "checkpoint": 10},
)


def curve(found):
    """Losses of all steps, then perplexities."""
    losses = [loss for _, loss, validation in found["losses"] if validation is None]
    return [*losses, *(seen["perplexity"] for *_, seen in found["losses"] if seen is not None)]


def close(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert abs(one - other) <= 1e-5 * max(abs(other), 1)


@pytest.fixture(scope="module")
def alone(corpus, tmp_path_factory):
    """What one process gives for the exact recipe."""
    from pretrain import children

    return children.finished(EXACT, corpus, tmp_path_factory.mktemp("alone") / "run")


def test_two_processes_are_as_one(corpus, tmp_path, alone):
    from pretrain import children

    found = children.together(EXACT, corpus, tmp_path / "two", 2)
    assert found["step"] == 20
    assert len(curve(found)) == 22
    close(curve(found), curve(alone))
    assert abs(found["sum"] - alone["sum"]) <= 1e-5 * max(abs(alone["sum"]), 1)


@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2)])
def test_another_number_goes_on(corpus, tmp_path, alone, first, second):
    from pretrain import children

    def run(world, **options):
        if world == 1:
            return children.finished(EXACT, corpus, tmp_path / "run", **options)
        return children.together(EXACT, corpus, tmp_path / "run", world, **options)

    begun = run(first, stop=10)
    assert begun["step"] == 10
    ended = run(second)
    assert (ended["first"], ended["step"]) == (10, 20)
    losses, perplexities = curve(alone)[:20], curve(alone)[20:]
    close(curve(begun), [*losses[:10], perplexities[0]])
    close(curve(ended), [*losses[10:], perplexities[1]])


def test_two_go_on_bit_for_bit(corpus, tmp_path):
    """With all that is random, and with steps of several batches."""
    from pretrain import children

    recipe = tiny_recipe(train={"steps": 14, "accumulate": 2}, watch={"log": 4, "validate": 7})
    whole = children.together(recipe, corpus, tmp_path / "whole", 2)
    assert children.together(recipe, corpus, tmp_path / "run", 2, stop=10)["step"] == 10
    found = children.together(recipe, corpus, tmp_path / "run", 2)
    assert (found["first"], found["step"]) == (10, 14)
    assert found["digest"] == whole["digest"]
    assert children.files(tmp_path / "run")[1] == children.files(tmp_path / "whole")[1]


def test_alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    one = Processes.join(CPU)
    assert one == Processes(0, 1) and one.first
    value = torch.tensor([1.0, 2.0])
    assert one.gather(value) is value and one.mean(value) is value
    assert one.any(True) is True and one.any(False) is False
    assert one.tell("x") == "x" and one.gather_states(value) == [value]
    model = torch.nn.Linear(2, 2)
    assert one.wrap(model) is model
    one.wait()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")  # torchrun with one process
    assert Processes.join(CPU) == Processes(0, 1)


def test_shares():
    rows = list(range(12))
    for world in (1, 2, 3, 4):
        assert [
            row for rank in range(world) for row in rows[Processes(rank, world).share(12)]
        ] == rows
