"""Semantic roles over ten frames written here, in words|tags and in CoNLL-2012's columns."""

import json

import pytest
import torch

from tasks.small import elmo
from torchelmo.errors import InputError
from torchelmo.formats import native
from torchelmo.tasks.data import LayerStore
from torchelmo.tasks.decoding import convert, to_spans
from torchelmo.tasks.model import load_task
from torchelmo.tasks.readers.examples import Frames, Predicate
from torchelmo.tasks.recipe import read_recipe, recipe_from_json
from torchelmo.tasks.roles import Roles, unmark
from torchelmo.tasks.trainer import fit

# A sentence a line, its frames behind it: label first-last (places of words), V is the predicate.
LINES = """
The cat sat on the mat .              | ARG0 0-1, V 2, ARGM-LOC 3-5
Mira gave Tom a red kite yesterday    | ARG0 0, V 1, ARG2 2, ARG1 3-5, ARGM-TMP 6
Tom wants to sell the kite            | ARG0 0, V 1, ARG1 2-5 | ARG0 0, V 3, ARG1 4-5
The kite that Mira bought broke       | ARG1 0-1, R-ARG1 2, ARG0 3, V 4 | ARG1 0-4, V 5
" Rain , " said Tom , " will come "   | ARG1 1, V 4, ARG0 5, C-ARG1 8-9 | ARG1 1, ARGM-MOD 8, V 9
Nobody slept                          | ARG0 0, V 1
They did not eat the bread            | ARG0 0, ARGM-NEG 2, V 3, ARG1 4-5
"""
LIGHT = {"epochs": 1}


def sentences():
    out = []
    for line in LINES.strip().splitlines():
        text, *frames = line.split("|")
        words = tuple(text.split())
        predicates = []
        for frame in frames:
            tags = ["O"] * len(words)
            for argument in frame.split(","):
                label, places = argument.split()
                first, _, last = places.partition("-")
                for n in range(int(first), int(last or first) + 1):
                    tags[n] = f"{'B' if n == int(first) else 'I'}-{label}"
            index = tags.index("B-V")
            predicates.append(Predicate(index, words[index], tuple(tags)))
        out.append(Frames(words, tuple(predicates)))
    return out


def frames():
    return [Frames(s.words, (p,)) for s in sentences() for p in s.predicates]


def write_frames(path, given):
    """OntoNotes' columns."""
    lines = ["#begin document (ours); part 000"]
    for sentence in given:
        cells = [["*"] * len(sentence.words) for _ in sentence.predicates]
        verbs = {p.index: p.lemma for p in sentence.predicates}
        for column, predicate in zip(cells, sentence.predicates, strict=True):
            for label, start, end in to_spans(predicate.tags):
                column[start] = f"({label}*"
                column[end - 1] += ")"
        for n, word in enumerate(sentence.words):
            frame = [verbs[n], f"{verbs[n]}.01"] if n in verbs else ["-", "-"]
            row = ["ours", "0", str(n), word, "X", "*", *frame, "-", "-", "*"]
            lines.append(" ".join([*row, *(column[n] for column in cells), "-"]))
        lines.append("")
    path.write_text("\n".join([*lines, "#end document", ""]), encoding="utf-8")
    return path


def recipe(**sections):
    data = {
        "task": "srl",
        "words": {"vectors": "none", "dim": 12},
        "elmo": {"model": "tiny", "where": "input", "dropout": 0.0},
        "network": {"cells": 24, "layers": 4, "predicate": 8, "dropout": 0.0},
        "train": {
            "epochs": 40,
            "patience": "none",
            "batch": 5,
            "learning_rate": 0.02,
        },
    }
    for name, values in sections.items():
        if values is None:
            data.pop(name, None)
        else:
            data[name] = {**data.get(name, {}), **values}
    return recipe_from_json(data, "recipe")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Two that wait for each other are slower over such small numbers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def trained():
    examples = frames()
    return fit(recipe(), examples, examples, bilm=elmo(), device="cpu")


@pytest.fixture(scope="module")
def light():
    return fit(recipe(elmo=None, train=LIGHT), frames(), device="cpu")


def test_ten_frames_are_learned_by_heart(trained):
    examples = frames()
    assert len(examples) == 10
    full = dict.fromkeys(("f1", "precision", "recall", "frames"), 100.0)
    assert trained.evaluate(examples) == full == trained.evaluate(sentences())
    assert trained.predict(examples) == [(e.predicates[0].tags,) for e in examples]
    # Both frames of a sentence at once.
    assert trained.predict(sentences()) == [
        tuple(p.tags for p in s.predicates) for s in sentences()
    ]
    losses = [epoch["loss"] for epoch in trained.metrics["epochs"]]
    assert losses[-1] < 0.1 * losses[0]
    assert trained.metrics["best"]["mixes"]["input"]["gamma"] != 1


def test_adadelta_of_the_recipe_learns():
    examples = frames()
    train = {
        "epochs": 30,
        "optimizer": "adadelta",
        "learning_rate": 1.0,
        "clip_norm": "none",
        "clip_value": 1.0,
    }
    model = fit(recipe(elmo=None, train=train), examples, device="cpu")
    losses = [epoch["loss"] for epoch in model.metrics["epochs"]]
    assert losses[-1] < 0.7 * losses[0]


def test_our_recipe_has_the_papers_values():
    ours = read_recipe("srl")
    assert ours.network == {"cells": 300, "layers": 8, "predicate": 100, "dropout": 0.1}
    train = ours.train
    assert (train.optimizer, train.learning_rate, train.rho) == ("adadelta", 1.0, 0.95)
    assert (train.clip_value, train.clip_norm, train.batch) == (1.0, None, 80)
    assert (train.epochs, train.patience) == (500, 200)
    assert (ours.elmo.where, ours.elmo.penalty, ours.elmo.layer_norm) == ("input", 0.001, None)
    assert ours.words.tuned and ours.characters is None


def test_the_layers_of_a_sentence_are_kept_once():
    examples = frames()
    store = LayerStore(elmo())
    model = fit(recipe(train=LIGHT), examples, store=store, device="cpu")
    assert len(store) == len(sentences()) < len(examples)
    rows = sum(len(s.words) for s in sentences())
    config = store.elmo.config
    assert store.kept == rows * config.n_layers * config.width * 4
    batch = model.batch(sentences())
    assert batch.counts == ((1, 1, 2, 2, 2, 1, 1),) and len(batch.texts[0].words) == 10


def test_gradients_reach_the_mix_and_all_layers_and_not_the_bilm():
    model = fit(recipe(train=LIGHT, elmo={"where": "both"}), frames(), bilm=elmo(), device="cpu")
    model.train()
    batch = model.batch(frames())
    model.loss(batch, model(batch)).backward()
    for mix in model.inputs.mixes().values():
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in mix.parameters())
    assert list(model.inputs.mixes()) == ["input", "output"]
    assert all(p.grad.abs().sum() > 0 for p in model.parameters())
    assert all(p.grad is None for p in model.inputs.store.elmo.bilm.parameters())


def test_the_predicate_asked_about_changes_the_tags(trained):
    wants, sells = trained.predict([frames()[2], frames()[3]])
    assert wants != sells and frames()[2].words == frames()[3].words


def test_padding_and_the_batch_change_nothing():
    model = fit(recipe(train=LIGHT), frames(), bilm=elmo(), device="cpu")
    with torch.no_grad():
        together = model(model.batch(frames()))["scores"]
        for n, example in enumerate(frames()):
            alone = model(model.batch([example]))["scores"]
            torch.testing.assert_close(alone[0], together[n, : len(example.words)])


def test_decoding_is_held_to_iob2(light):
    batch = light.batch(frames())
    torch.manual_seed(0)
    scores = torch.randn(10, batch.texts[0].mask.shape[1], len(light.tags)) * 9
    free = [[light.tags[n] for n in row] for row in scores.argmax(2).tolist()]
    assert any(convert(tags, "IOB2") != tags for tags in free)
    for example, (tags,) in zip(frames(), light.decode(batch, {"scores": scores}), strict=True):
        assert len(tags) == len(example.words) and tuple(convert(tags, "IOB2")) == tags


def test_the_loss_is_a_word_s_and_leaves_padding_out(light):
    batch = light.batch(frames()[:3])
    scores = torch.randn(*batch.gold["tags"].shape, len(light.tags))
    rows = [
        scores[n, t].log_softmax(0)[light.ids[tag]]
        for n, example in enumerate(frames()[:3])
        for t, tag in enumerate(example.predicates[0].tags)
    ]
    assert light.loss(batch, {"scores": scores}).item() == pytest.approx(
        -torch.stack(rows).mean().item(), rel=1e-5
    )


def test_lists_of_tags_and_predicates():
    lists = Roles.collect(recipe(), frames())
    assert lists["tags"][:3] == ("O", "B-ARG0", "I-ARG0")
    assert {"I-V", "B-C-ARG1", "I-R-ARG1"} < set(lists["tags"]) and len(lists["tags"]) == 21
    verbs = "bought broke come eat gave said sat sell slept wants"
    assert lists["predicates"] == tuple(verbs.split())
    # "duck" is a predicate in one of its three places.
    duck = [
        Frames(("Duck", "!"), (Predicate(0, "duck", ("B-V", "O")),)),
        Frames(
            ("A", "duck", "saw", "a", "duck"), (Predicate(2, "see", ("O", "O", "B-V", "O", "O")),)
        ),
    ]
    assert Roles.collect(recipe(), duck)["predicates"] == ("saw",)


def test_raw_sentences_with_and_without_marks(trained):
    def show(raw):
        return trained.show(trained.parse(raw), trained.predict([raw])[0])

    assert show("The cat  sat on the mat.") == "[ARG0 The cat]  [V sat] [ARGM-LOC on the mat]."
    assert show("Tom [wants] to sell the kite") == "[ARG0 Tom] [V wants] [ARG1 to sell the kite]"
    assert show("Tom wants to sell the kite").splitlines() == [
        "[ARG0 Tom] [V wants] [ARG1 to sell the kite]",
        "[ARG0 Tom] wants to [V sell] [ARG1 the kite]",
    ]
    assert show("A mat [1] .") == "A mat [1] ."  # no predicate at all
    assert trained.predict(["The mat"]) == [()]
    assert trained.predict([["Nobody", "[slept]"]]) == [(("B-ARG0", "B-V"),)]
    taken = trained.take(["Nobody", "[slept]"])
    assert taken.text == "Nobody slept" and taken.example.predicates[0].index == 1
    assert [tuple(t) for t in taken.tokens[0]] == [("Nobody", 0, 6), ("slept", 7, 12)]


def test_marks():
    assert unmark("The cat [sat] and [slept].") == ("The cat sat and slept.", [8, 16])
    for text in ("", "no mark", "[1] [two words] []", "[[", "a[0]"):
        assert unmark(text) == (text, [])
    assert unmark("[[sat]]") == ("[sat]", [1])
    assert unmark("고양이가 [잤다]") == ("고양이가 잤다", [5])


def test_facts_for_programs(trained):
    raw = "Nobody [slept]"
    (tags,) = trained.predict([raw])
    assert trained.describe(trained.parse(raw), tags) == {
        "text": "Nobody slept",
        "words": ["Nobody", "slept"],
        "frames": [
            {
                "predicate": "slept",
                "index": 1,
                "tags": ("B-ARG0", "B-V"),
                "arguments": [
                    {"label": "ARG0", "text": "Nobody", "start": 0, "end": 6},
                    {"label": "V", "text": "slept", "start": 7, "end": 12},
                ],
            }
        ],
    }


def test_saved_and_loaded_predictions_are_identical(tmp_path):
    native.write(elmo().to_model(), tmp_path / "bilm")
    spec = recipe(elmo={"model": str(tmp_path / "bilm")}, train={"epochs": 2})
    model = fit(spec, frames(), frames(), output=tmp_path / "run", device="cpu")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    lists = {"tags.txt", "predicates.txt", "words.txt"}
    assert names == {"config.json", "model.safetensors", "metrics.json"} | lists
    again = load_task(tmp_path / "run", device="cpu")
    raw = ["Mira [sold] the kite .", "The cat sat .", *sentences()]
    assert again.predict(raw) == model.predict(raw)
    model.inputs.store = LayerStore(model.inputs.store.elmo)
    batches = [m.batch(sentences(), gold=False) for m in (model, again)]
    with torch.no_grad():
        assert torch.equal(model(batches[0])["scores"], again(batches[1])["scores"])


def test_no_known_predicates_and_one_word(tmp_path):
    # Every predicate's word is seldom one, so that the list is empty, and is saved and read so.
    words = ("run", "run", "run")
    examples = [Frames(words, (Predicate(1, "run", ("O", "B-V", "O")),))]
    fit(recipe(elmo=None, train=LIGHT), examples, output=tmp_path / "run", device="cpu")
    model = load_task(tmp_path / "run", device="cpu")
    assert model.known == frozenset() and model.predict(["run"]) == [()]
    assert len(model.predict(["[run]"])[0][0]) == 1


def test_files(tmp_path, light):
    path = write_frames(tmp_path / "x.v4_gold_conll", [*sentences(), Frames(("Rain", "."), ())])
    assert Roles.read(recipe(), path) == frames()
    parsed = light.parse_file(str(path))
    assert [one.example for one in parsed] == [*sentences(), Frames(("Rain", "."), ())]
    assert light.show(parsed[-1], light.predict([parsed[-1].example])[0]) == "Rain ."
    assert light.parse_file("notes.txt") is None


def test_refusals(light):
    with pytest.raises(InputError, match="the tag 'B-ARG9' is not among those of the training"):
        light.gold([Frames(("go",), (Predicate(0, "go", ("B-ARG9",)),))])
    with pytest.raises(InputError, match="a frame has 1 tags and its sentence 2 words: 'go on'"):
        light.gold([Frames(("go", "on"), (Predicate(0, "go", ("B-V",)),))])
    with pytest.raises(InputError, match="the predicate 2 is none of the 2 words of 'go on'"):
        light.predict([Frames(("go", "on"), (Predicate(2, "go", ()),))])
    with pytest.raises(InputError, match="input 1 has a text without words"):
        light.predict(["go", " "])
    with pytest.raises(InputError, match="network has no key 'cell', the nearest is 'cells'"):
        fit(recipe(elmo=None, network={"cell": 3}), frames(), device="cpu")
    with pytest.raises(InputError, match=r"network\.layers is 0, expected 1 or more"):
        fit(recipe(elmo=None, network={"layers": 0}), frames(), device="cpu")
    with pytest.raises(InputError, match=r"network\.dropout is 1\.0"):
        fit(recipe(elmo=None, network={"dropout": 1.0}), frames(), device="cpu")
    with pytest.raises(InputError, match="no training examples"):
        fit(recipe(elmo=None), [], device="cpu")


def test_dropout_is_drawn_in_training_alone():
    spec = recipe(elmo=None, train=LIGHT, network={"dropout": 0.5, "dropout_input": 0.5})
    model = fit(spec, frames(), device="cpu")
    batch = model.batch(frames())
    with torch.no_grad():
        assert torch.equal(model(batch)["scores"], model(batch)["scores"])
        model.train()
        assert not torch.equal(model(batch)["scores"], model(batch)["scores"])


def test_the_same_seed_gives_the_same_weights():
    spec = recipe(elmo=None, train={"epochs": 2}, network={"dropout": 0.2})
    one, two = (fit(spec, frames(), device="cpu").state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert json.dumps(list(one)) == json.dumps(list(two))
