"""`torchelmo pretrain` as torchrun starts it: two processes, and again after one of them dies."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch

from apps.test_pretrain import RECIPE, weights
from bulk.tiny import command
from pretrain.tiny import toy_corpus

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="no gloo there"),
    pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed"),
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="no gloo"),
]

PLAIN = "from torchelmo.apps.cli import main\nmain()\n"
# In its ninth step the second process of the first start kills itself.
DEADLY = f"""
import os, signal
from torch.nn.parallel import DistributedDataParallel

forward, steps = DistributedDataParallel.forward, 0

def counted(*arguments, **options):
    global steps
    steps += 1
    if steps == 9 and (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0"):
        os.kill(os.getpid(), signal.SIGKILL)
    return forward(*arguments, **options)

DistributedDataParallel.forward = counted
{PLAIN}"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with corpus and recipe: 12 steps, checkpoints at 4, 8 and 12."""
    folder = tmp_path_factory.mktemp("torchrun")
    toy_corpus(folder)
    (folder / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    return folder


def launch(home, name, script, *options):
    """Run two processes to their end; return what the first printed, and all of standard error."""
    (home / f"{name}.py").write_text(script, encoding="utf-8")
    _, env = command()
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    line += [*options, f"{name}.py", "pretrain", "recipe.toml", "-o", name, "--device", "cpu"]
    with subprocess.Popen(
        [*line, "--json"],
        cwd=home,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # whoever still waits for the dead
            raise
    assert process.returncode == 0, err
    return json.loads(out), err


@pytest.fixture(scope="module")
def undisturbed(home):
    return launch(home, "whole", PLAIN)


def test_two_processes_share_a_run(home, undisturbed):
    result, said = undisturbed
    assert (result["reason"], result["step"], result["from_step"]) == ("finished", 12, 0)
    # Said once, by the first; the batch of the recipe is that of both.
    assert said.count("12 steps (") == 1 and "of 20 tokens (batch 4 x unroll 5)" in said
    assert "device   cpu, 2 processes, about " in said
    lines = (home / "whole" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [3, 5, 6, 9, 10, 12, 12]


@pytest.mark.verify
def test_a_dead_process_is_replaced_and_nothing_is_lost(home, undisturbed):
    result, said = launch(home, "run", DEADLY, "--max-restarts", "1")
    assert (result["reason"], result["step"], result["from_step"]) == ("finished", 12, 8)
    assert said.count("going on from step 8") == 1
    assert weights(home / "run" / "last") == weights(home / "whole" / "last")
    assert result["best"] == undisturbed[0]["best"]
