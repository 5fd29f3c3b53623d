"""On a GPU too, a run that was stopped and gone on with ends as one that was left alone, exactly.

Needs torch, numpy, safetensors and regex alone, and runs without pytest as well:

    python tests/gpu/test_resume.py
"""

import json
import sys
import tempfile
from pathlib import Path

import torch

TESTS = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[:0] = [str(TESTS), str(TESTS.parent / "src")]

from pretrain.tiny import toy_corpus  # noqa: E402 - found by the path above
from torchelmo.pretrain import recipe as recipes  # noqa: E402
from torchelmo.pretrain.loop import Trainer  # noqa: E402

try:
    import pytest
except ImportError:
    pytest = None

STEPS, STOP = 30, 17
KINDS = {
    "adamw": {
        "optimizer": "adamw",
        "learning_rate": 3e-3,
        "schedule": "cosine",
        "warmup": 5,
        "clip_norm": 1.0,
        "loss_scale": "one",
    },
    "adagrad": {"optimizer": "adagrad", "learning_rate": 0.2},
    "accumulate": {"optimizer": "adamw", "learning_rate": 3e-3, "accumulate": 2},
    "float32": {"optimizer": "adamw", "learning_rate": 3e-3, "precision": "float32"},
}


def recipe(kind):
    """A tiny model with all that is random: dropout, resets, drawn words, shuffled text."""
    train = {"precision": "bf16", "softmax": "sampled", "negatives": 16, "dropout": 0.1}
    return recipes.Recipe(
        data=recipes.DataRecipe(corpus="corpus", reset_share=0.3),
        model=recipes.ModelRecipe(
            characters={"dim": 8, "filters": [[1, 16], [2, 16], [3, 32]]},
            lstm={"cells": 64, "projection": 32},
        ),
        train=recipes.TrainRecipe(
            batch=8, unroll=10, steps=STEPS, seed=3, **{**train, **KINDS[kind]}
        ),
        watch=recipes.WatchRecipe(validate=10, checkpoint=12, log=4),
    )


def state(trainer):
    """All that a run carries from step to step, by name."""
    found = {name: tensor.detach().cpu() for name, tensor in trainer.model.state_dict().items()}
    for parameter, kept in trainer.optimizer.state.items():
        for key, value in kept.items():
            found[f"{trainer.names[parameter]}.{key}"] = torch.as_tensor(value).cpu()
    for name, levels in trainer.memory.items():
        for level, pair in enumerate(levels):
            for part, tensor in zip("hc", pair, strict=True):
                found[f"{name}.{level}.{part}"] = tensor.detach().cpu()
    for name, place in trainer.positions.items():
        found |= {f"{name}.{key}": torch.from_numpy(array.copy()) for key, array in place.items()}
    found["generator"] = trainer.generator.get_state().cpu()
    return found


def log(run):
    """The lines of the log but for how fast it went."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]
    return [{k: v for k, v in line.items() if k != "tokens_per_second"} for line in lines]


def check(kind, folder, device):
    """Run to the end, and once more with a stop; nothing may differ in one bit."""
    corpus, asked, place = toy_corpus(folder / "toy"), recipe(kind), torch.device(device)
    whole = Trainer(asked, corpus, folder / "whole", device=place)
    assert whole().step == STEPS
    first = Trainer(asked, corpus, folder / "run", device=place)
    result = first(stop=lambda: first.step >= STOP)
    assert (result.reason, result.step) == ("stopped", STOP)
    second = Trainer(asked, corpus, folder / "run", device=place)
    assert second.step == STOP
    assert second().reason == "finished"
    expected, found = state(whole), state(second)
    assert found.keys() == expected.keys()
    different = [name for name, tensor in expected.items() if not torch.equal(tensor, found[name])]
    assert not different, different
    lines = log(folder / "whole")
    assert [line["step"] for line in lines if "loss" in line] == [*range(4, STEPS, 4), STEPS]
    assert log(folder / "run") == lines
    assert lines[0]["loss"] > lines[-2]["loss"]  # it has learnt something


if pytest is not None:

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
    @pytest.mark.parametrize("kind", KINDS)
    def test_going_on_is_exact(kind, tmp_path):
        check(kind, tmp_path, "cuda")


if __name__ == "__main__":
    for name in KINDS:
        with tempfile.TemporaryDirectory() as scratch:
            check(name, Path(scratch), sys.argv[1] if sys.argv[1:] else "cuda")
        print(f"{name}: the same, bit for bit")
