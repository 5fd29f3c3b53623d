import json
import math

import pytest
import torch

from tasks.asked import ASKED, HARBOUR, LAKE, quick, squad
from tasks.small import elmo
from torchelmo.errors import InputError
from torchelmo.tasks import questions
from torchelmo.tasks.data import LayerStore
from torchelmo.tasks.encoders import Inputs, collect, make_inputs
from torchelmo.tasks.model import load_task
from torchelmo.tasks.questions import (
    BiAttention,
    Found,
    Questions,
    SelfAttention,
    TriLinear,
    shorten,
    side_by_side,
    spans,
)
from torchelmo.tasks.readers.examples import Answer, Question
from torchelmo.tasks.readers.squad import read_squad
from torchelmo.tasks.recipe import read_recipe
from torchelmo.tasks.trainer import fit


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("squad") / "ours.json"
    path.write_text(json.dumps(squad()), encoding="utf-8")
    return path


def make(spec, examples, store=None):
    """An untrained network."""
    torch.manual_seed(3)
    texts = [words for e in examples for role in Questions.texts(e) for words in role]
    lists = collect(spec, texts, None)
    return Questions(spec, lists, make_inputs(spec, lists, None, store)).eval()


@pytest.fixture(scope="module")
def trained(path):
    return fit(quick(), path, path, bilm=elmo(), device="cpu")


def test_scores_by_hand():
    layer = TriLinear(2)
    for weight, values in zip(
        (layer.first, layer.second, layer.both), ([1, 2], [3, 0], [1, -1]), strict=True
    ):
        weight.data = torch.tensor(values).float()
    one, two = torch.tensor([[[1.0, 1.0], [0.0, 2.0]]]), torch.tensor([[[2.0, 1.0]]])
    # The three terms are 3, 6, 1 for the first word, and 4, 6, -2 for the second.
    assert layer(one, two).tolist() == [[[10.0], [8.0]]]


def test_attention_between_context_and_question_by_hand():
    layer = BiAttention(1)
    layer.scores.first.data, layer.scores.second.data = torch.zeros(1), torch.zeros(1)
    layer.scores.both.data = torch.tensor([math.log(2.0)])
    context = torch.tensor([[[1.0], [2.0], [9.0]]])  # the last is padding
    question = torch.tensor([[[0.0], [1.0], [7.0]]])  # the last is padding
    mask = torch.tensor([[True, True, False]])
    out = layer(context, question, mask, mask)[0]
    # Scores log 2 * [[0, 1], [0, 2]]: shares of the question (1/3, 2/3) and (1/5, 4/5); the best
    # matches log 2 * (1, 2) give the context the weights (1/3, 2/3), its mean is 5/3.
    expected = [[1, 2 / 3, 2 / 3, 5 / 3], [2, 4 / 5, 8 / 5, 10 / 3]]
    torch.testing.assert_close(out[:2], torch.tensor(expected))


def test_attention_of_a_text_to_itself_by_hand(monkeypatch):
    layer = SelfAttention(1)
    layer.scores.first.data, layer.scores.second.data = torch.zeros(1), torch.zeros(1)
    layer.scores.both.data = torch.tensor([math.log(2.0)])
    layer.none.data = torch.zeros(1)
    values = torch.tensor([[[1.0], [2.0], [0.0], [5.0]], [[3.0], [5.0], [5.0], [5.0]]])
    mask = torch.tensor([[True, True, True, False], [True, False, False, False]])
    # exp of the scores: word 1 with 2: 4, with 3: 1, none 1; word 2 with 1: 4, with 3: 1, none 1;
    # word 3 with both and none: 1 each. A single word sees nothing.
    expected = torch.tensor([4 * 2 / 6, 4 * 1 / 6, (1 + 2) / 3])
    out = layer(values, mask)
    torch.testing.assert_close(out[0, :3, 0], expected)
    assert out[1, 0].item() == 0
    out.sum().backward()
    assert torch.isfinite(layer.scores.both.grad).all() and torch.isfinite(layer.none.grad).all()
    monkeypatch.setattr(questions, "ROOM", 16)  # two rows at a time
    with torch.no_grad():
        torch.testing.assert_close(layer(values, mask), out)


def test_ten_questions_are_learned_by_heart(trained, path):
    assert trained.evaluate(path) == {"f1": 100.0, "em": 100.0}
    found = trained.predict([f"{question}\t{context}" for context, question, _ in ASKED])
    assert [one.text for one in found] == [answer for _, _, answer in ASKED]
    assert all(0.1 < one.score <= 1 for one in found)
    losses = [epoch["loss"] for epoch in trained.metrics["epochs"]]
    assert losses[-1] < 0.5 * losses[0]
    assert list(trained.metrics["best"]["mixes"]) == ["input", "output"]


def test_shown_and_described(trained):
    parsed = trained.parse(f"What do skaters drink?\t{LAKE}")
    (found,) = trained.predict([parsed.example])
    answer, score, question = trained.show(parsed, found).split("\t")
    assert (answer, question) == ("hot apple juice", "What do skaters drink?")
    assert float(score) == pytest.approx(found.score, abs=1e-3)
    told = trained.describe(parsed, found)
    assert LAKE[told["start"] : told["end"]] == told["answer"] == answer and "id" not in told


def test_files_in_squads_form_are_parsed_whole(trained, path):
    parsed = trained.parse_file(str(path))
    assert [one.example.id for one in parsed] == [f"q{n}" for n in range(10)]
    assert trained.parse_file("lines.txt") is None
    raw = trained.parse(f"{ASKED[5][1]}\t{HARBOUR}")
    assert parsed[5].example.words == raw.example.words and parsed[5].tokens[1] == raw.tokens[1]
    assert trained.describe(parsed[5], Found("well", 3, 4, 0.5))["id"] == "q5"


def test_the_batch_does_not_change_a_question(path):
    examples = [
        Question("one", ("Who", "?"), "Ivo", ("Ivo",), ((0, 3),), ()),
        *read_squad(path),
    ]
    model = make(quick(characters={"dim": 4, "filters": 5}), examples, LayerStore(elmo()))
    with torch.no_grad():
        together = model(model.batch(examples, gold=False))
        for n, example in enumerate(examples):
            alone = model(model.batch([example], gold=False))
            for name, values in alone.items():
                length = len(example.words)
                torch.testing.assert_close(values[0], together[name][n, :length])
                assert (together[name][n, length:] == -math.inf).all()
                assert values.exp().sum().item() == pytest.approx(1, abs=1e-5)


def test_spans_are_decoded_through_the_model(path):
    examples = list(read_squad(path))[:2]
    model = make(quick(elmo=None, network={"span": 3}), examples)
    batch = model.batch(examples, gold=False)
    shape = len(examples), max(len(e.words) for e in examples)
    start, end = torch.full(shape, -9.0), torch.full(shape, -9.0)
    start[0, 0], end[0, 1] = -0.1, -0.2
    start[1, 0] = end[1, 5] = -0.1  # six words, too many: the next best begins here or ends there
    end[1, 2] = -1.0
    first, second = model.decode(batch, {"start": start, "end": end})
    assert first[:3] == ("Greta Holm", 0, 2) and first.score == pytest.approx(math.exp(-0.3))
    assert second[:3] == ("Greta Holm built", 0, 3)
    assert model.score(examples, [first, second]) == {"f1": 50.0, "em": 50.0}


def test_the_loss_is_of_all_answers(path):
    examples = list(read_squad(path))[:2]
    kiel = Answer("Kiel", HARBOUR.index("Kiel"))
    several = Question(
        **{
            **{name: getattr(examples[0], name) for name in Question.__slots__},
            "answers": (*examples[0].answers, kiel, kiel),
        }
    )
    assert spans(several) == [(0, 2), (7, 8)]
    model = make(quick(elmo=None), examples)
    batch = model.batch([several, examples[1]])
    assert batch.gold["real"].tolist() == [[True, True], [True, False]]
    assert batch.gold["end"][0].tolist() == [1, 7]
    outputs = model(batch)
    start, end = outputs["start"].exp(), outputs["end"].exp()
    (albatross,) = spans(examples[1])
    likely = (
        start[0, 0] * end[0, 1] + start[0, 7] * end[0, 7],
        start[1, albatross[0]] * end[1, albatross[1] - 1],
    )
    expected = -(likely[0].log() + likely[1].log()) / 2
    torch.testing.assert_close(model.loss(batch, outputs), expected)


def test_gradients_reach_the_mixes_and_not_the_bilm(path):
    examples, bilm = list(read_squad(path)), elmo()
    model = make(quick(), examples, LayerStore(bilm)).train()
    batch = model.batch(examples)
    model.loss(batch, model(batch)).backward()
    for mix in model.inputs.mixes().values():
        assert mix.weights.grad.abs().sum() > 0 and mix.gamma.grad.abs().sum() > 0
    assert all(p.grad is None for p in bilm.bilm.parameters())
    assert not any("bilm" in name for name in model.state_dict())
    learned = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert learned == []


def test_saved_and_loaded_predictions_are_identical(path, tmp_path):
    spec = quick(characters={"dim": 4, "filters": 5}, train={"epochs": 2, "batch": 5})
    model = fit(spec, path, output=tmp_path / "run", bilm=elmo(), device="cpu")
    again = load_task(tmp_path / "run", bilm=elmo(), device="cpu")
    asked = [*(f"{q}\t{c}" for c, q, _ in ASKED), "Where is 물?\tIt is 물 here 🙂."]
    assert again.tokenizer_name == model.tokenizer_name
    model.inputs.store = LayerStore(model.inputs.store.elmo)  # kept layers are of other batches
    assert again.predict(asked) == model.predict(asked)
    assert model.predict(asked)[-1].text


def test_long_contexts_are_cut_in_training_alone(path):
    spec = quick(data={"reader": {"longest": 12}})
    short = Questions.read(spec, path, training=True)
    assert [e.id for e in short] == ["q0", "q1", "q2", "q3", "q6", "q7"]
    assert all(len(e.words) == 12 for e in short)
    assert all(e.text(*spans(e)[0]) == ASKED[int(e.id[1:])][2] for e in short)
    assert len(Questions.read(spec, path)) == 10
    example = Questions.read(spec, path)[0]
    assert shorten(example, 500) is example
    assert shorten(example, 2).context == "Greta Holm"


def test_refusals(trained, path):
    for text in ("Who?", "Who?\t ", "\tNoor met it."):
        with pytest.raises(InputError, match="is no question: expected a line with the question"):
            trained.predict([text])
    with pytest.raises(InputError, match="1 text was given, expected a question and its context"):
        trained.predict([["Who", "?"]])
    with pytest.raises(InputError, match="are given as raw text"):
        trained.take(["Who", "?"])
    unknown = trained.parse("Who came?\tNobody came.").example
    with pytest.raises(InputError, match="has no answer among its context's words"):
        trained.gold([unknown])
    words = ("It", "is", "so")
    assert trained.example([("Is", "it", "?"), words]).text(1, 3) == "is so"
    assert [(t.start, t.end) for t in side_by_side(words)] == [(0, 2), (3, 5), (6, 8)]
    for section, reason in (
        ({"network": {"span": 0}}, r"network\.span is 0, expected 1 or more"),
        ({"network": {"cell": 3}}, "no key 'cell', the nearest is 'cells'"),
        ({"data": {"reader": {"longest": 0}}}, r"data\.reader\.longest is 0"),
    ):
        with pytest.raises(InputError, match=reason):
            fit(quick(elmo=None, **section), path, device="cpu")
    with pytest.raises(InputError, match="there are no training examples"):
        fit(quick(elmo=None, data={"reader": {"longest": 1}}), path, device="cpu")


def test_the_papers_choices():
    spec = read_recipe("qa")
    assert (spec.elmo.where, spec.elmo.penalty, spec.elmo.dropout) == ("both", 0.0, 0.5)
    assert spec.elmo.layer_norm is None and not spec.words.tuned
    assert (spec.train.optimizer, spec.train.learning_rate) == ("adadelta", 1.0)
    assert (spec.train.ema, spec.train.batch, spec.train.epochs) == (0.999, 45, 24)
    assert spec.network == {"cells": 90, "width": 180, "dropout": 0.2, "span": 17}
    model = Questions(spec, {}, Inputs({"words": _Zeros()}))
    assert model.encoder.width == 180 and model.span == 17


class _Zeros(torch.nn.Module):
    width = 7
