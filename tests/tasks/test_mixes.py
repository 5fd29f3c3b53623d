"""What the paper varies about the mix, in training: which layers, and how strongly s is held."""

import pytest

from tasks.small import elmo, recipe, tagged
from torchelmo.tasks.trainer import fit


def mix(**options):
    spec = recipe("ner", characters=None, elmo=options, train={"epochs": 6})
    model = fit(spec, tagged(), bilm=elmo(), device="cpu")
    return model.inputs.mixes()["input"], model.metrics["best"]["mixes"]["input"]


@pytest.mark.parametrize(
    ("kind", "shares"),
    [("average", [1 / 3, 1 / 3, 1 / 3]), ("top", [0, 0, 1]), ("0", [1, 0, 0]), ("1", [0, 1, 0])],
)
def test_fixed_shares_stay_and_gamma_learns(kind, shares):
    made, logged = mix(mix=kind)
    assert logged["s"] == pytest.approx(shares) and logged["gamma"] != 1
    assert [name for name, _ in made.named_parameters()] == ["gamma"]


def test_lambda_holds_the_shares_at_the_average():
    spread = {}
    for penalty in (0.0, 0.1, 10.0):
        _, logged = mix(penalty=penalty)
        spread[penalty] = max(logged["s"]) - min(logged["s"])
    assert spread[0.0] > spread[0.1] > spread[10.0]
    assert spread[10.0] < 0.05 < spread[0.0]
