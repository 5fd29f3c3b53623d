"""Training killed at twenty random moments and gone on with ends like a run that was left alone."""

import sys

import pytest

from pretrain.tiny import tiny_recipe, toy_corpus

pytestmark = [
    pytest.mark.verify,
    pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there"),
]

KINDS = {
    "adagrad": {"train": {"steps": 130}},
    "adamw": {
        "train": {
            "steps": 130,
            "optimizer": "adamw",
            "learning_rate": 0.01,
            "schedule": "cosine",
            "warmup": 10,
            "accumulate": 2,
        },
        "watch": {"keep": 1},
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_twenty_kills(tmp_path, kind):
    from pretrain import children

    corpus = toy_corpus(tmp_path / "toy")
    children.check_kills(tiny_recipe(**KINDS[kind]), corpus, tmp_path, 20, seed=kind)
