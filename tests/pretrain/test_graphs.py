"""Steps padded to a size: nothing that is learnt changes by it; on a GPU, graphs give the same."""

import pytest
import torch

from pretrain.tiny import CPU, tiny_recipe, trainer
from torchelmo.pretrain import graphs
from torchelmo.pretrain.feed import Feed


@pytest.mark.parametrize("model", [{}, {"words": True}], ids=["characters", "words"])
def test_padding_changes_no_loss_and_no_gradient(corpus, tmp_path, monkeypatch, model):
    monkeypatch.setattr(graphs, "WORDS", 100)
    monkeypatch.setattr(graphs, "WINDOWS", 300)
    made = trainer(tiny_recipe(model=model, train={"dropout": 0.0}), corpus, tmp_path)
    batches = Feed(corpus, made.recipe, CPU)()
    for fed in (next(batches), next(batches)):
        found = []
        for step in (fed.step, graphs.padded(fed.step)):
            made.model.zero_grad()
            losses, _ = made.model(step, made.memory)
            sum(losses.values()).backward()
            grads = {name: p.grad for name, p in made.model.named_parameters()}
            found.append((losses, grads))
        table = graphs.padded(fed.step)
        size = table.words if table.characters is None else table.characters
        assert len(size) % 100 == 0
        assert table.ragged is None or table.ragged.windows % 300 == 0
        torch.testing.assert_close(*found, atol=1e-6, rtol=1e-5)
    batches.close()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_recorded_steps_are_the_plain_ones(corpus, tmp_path):
    device = torch.device("cuda")
    weights = []
    for recorded in (True, False):
        recipe = tiny_recipe(train={"steps": 12, "precision": "bf16", "dropout": 0.1})
        made = trainer(recipe, corpus, tmp_path / str(recorded), device=device)
        if not recorded:
            made._update = lambda made=made: (
                lambda steps: made._learn(made.model, [graphs.padded(steps[0])])
            )
        made()
        weights.append({k: v.cpu() for k, v in made.model.state_dict().items()})
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name
