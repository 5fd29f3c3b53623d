"""The command: a result in words and as JSON, and refusals."""

import json

from pretrain.tiny import toy_text


def test_continue_a_model(run, fixtures, tmp_path):
    (tmp_path / "text.txt").write_text(toy_text(80), encoding="utf-8")
    options = "--lines", "--batch", "4", "--learning-rate", "0.01", "--device", "cpu"
    result = run("finetune", fixtures / "plain", "text.txt", "-o", "out", *options, "--json")
    assert result.code == 0, result.err
    facts = json.loads(result.out)
    assert facts["after"]["perplexity"] < facts["before"]["perplexity"]
    assert "all layers, step" in result.err
    said = run("finetune", fixtures / "plain", "text.txt", "-o", "out", *options)
    assert said.code == 0 and "perplexity before" in said.out
    assert run("embed", "text.txt", "-o", "v.npz", "--model", facts["output"]).code == 0


def test_refusals(run, fixtures, tmp_path):
    (tmp_path / "text.txt").write_text("a\n", encoding="utf-8")
    line = run("finetune", fixtures / "plain", "nope.txt", "-o", "out").sentence
    assert "there is no file nope.txt" in line
    line = run("finetune", "nothing-here", "text.txt", "-o", "out").sentence
    assert "there is no model 'nothing-here'" in line
    assert not (tmp_path / "out").exists()
