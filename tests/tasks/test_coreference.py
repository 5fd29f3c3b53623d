import dataclasses
from itertools import pairwise

import pytest
import torch

from tasks.small import elmo
from tasks.told import conll, coref_recipe, document, documents
from torchelmo.errors import InputError
from torchelmo.tasks.coreference import Coreference
from torchelmo.tasks.data import LayerStore
from torchelmo.tasks.model import load_task, task_class
from torchelmo.tasks.readers.examples import Document
from torchelmo.tasks.recipe import read_recipe
from torchelmo.tasks.trainer import fit

LIGHT = {"epochs": 1}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads only cost time on tensors this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def trained():
    return fit(coref_recipe(), documents(), documents(), bilm=elmo(), device="cpu")


@pytest.fixture(scope="module")
def untrained():
    """With every part in use and scores that are not small."""
    spec = coref_recipe(
        elmo={"where": "both"}, network={"hidden": [24, 12], "spans": 0.6}, train=LIGHT
    )
    model = fit(spec, documents(), bilm=elmo(), device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    return model


def outputs(model, examples):
    with torch.no_grad():
        return model(model.batch(examples, gold=False))


def test_documents_are_learned_by_heart(trained):
    assert trained.evaluate(documents()) == {
        "f1": 100.0,
        "muc": 100.0,
        "b3": 100.0,
        "ceafe": 100.0,
        "mentions": 100.0,
    }
    assert [sorted(found) for found in trained.predict(documents())] == [
        sorted(d.clusters) for d in documents()
    ]
    losses = [epoch["loss"] for epoch in trained.metrics["epochs"]]
    assert min(losses[-10:]) < 0.1 * losses[0]
    assert trained.metrics["metric"] == "f1" and "mixes" in trained.metrics["best"]


def test_without_elmo():
    spec = coref_recipe(elmo=None, network={"layers": 2, "hidden": [24, 24]}, train={"epochs": 20})
    model = fit(spec, documents(), documents(), device="cpu")
    losses = [epoch["loss"] for epoch in model.metrics["epochs"]]
    assert losses[-1] < 0.5 * losses[0] and model.metrics["best"]["valid"]["f1"] > 40


def test_gradients_reach_the_mixes_and_not_the_bilm():
    bilm = elmo()
    spec = coref_recipe(elmo={"where": "both"}, train=LIGHT)
    model = fit(spec, documents(), bilm=bilm, device="cpu")
    before = [p.clone() for p in bilm.bilm.parameters()]
    model.zero_grad()
    batch = model.batch(documents())
    model.loss(batch, model(batch)).backward()
    for mix in model.inputs.mixes().values():
        assert mix.gamma.grad.abs().item() > 0
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in mix.parameters())
    for name, parameter in model.named_parameters():
        # A shift of all words' attention changes nothing.
        if name != "network.attention.bias":
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
    assert all(p.grad is None for p in bilm.bilm.parameters())
    assert all(map(torch.equal, before, bilm.bilm.parameters()))


def by_hand(model, example):
    """A document's outputs, a span and a pair at a time, as the paper writes them."""
    net = model.network
    (texts,) = model.batch([example]).texts
    inputs = model.inputs(texts)
    hidden = model.inputs.after(model.rnn(inputs, texts.lengths), texts)[texts.mask]
    heads = inputs[texts.mask][:, : model.head_width]
    attention = net.attention(hidden).squeeze(1)
    vectors, scores = {}, {}
    for start, end in model.spans(example):
        shares = attention[start:end].softmax(0)
        head = (shares.unsqueeze(1) * heads[start:end]).sum(0)
        width = net.widths.weight[end - start - 1]
        vectors[start, end] = torch.cat([hidden[start], hidden[end - 1], head, width])
        scores[start, end] = net.mention_top(net.mention(vectors[start, end]))[0]
    speaker = [
        s for words, s in zip(example.sentences, example.speakers, strict=True) for _ in words
    ]
    pair = net.pair
    weights = [pair.later.weight, pair.earlier.weight, pair.product.weight, pair.features.weight]
    first = torch.cat(weights, dim=1)

    def both(later, earlier, between):
        one, two = vectors[later], vectors[earlier]
        group = sum(between >= edge for edge in (2, 3, 4, 5, 8, 16, 32, 64))
        same = int(speaker[later[0]] == speaker[earlier[0]])
        genre = net.genres.weight[model.genres[example.genre]]
        facts = net.distances.weight[group], net.speakers.weight[same], genre
        joined = torch.cat([one, two, one * two, *facts])
        found = pair.top(pair.rest((first @ joined + pair.later.bias).relu()))[0]
        return found + scores[later] + scores[earlier]

    return scores, both


@pytest.mark.parametrize("number", range(6))
def test_scores_are_those_of_the_paper(untrained, number):
    example = documents()[number]
    found = outputs(untrained, [example])
    spans = untrained.spans(example)
    with torch.no_grad():
        scores, both = by_hand(untrained, example)
        expected = torch.stack([scores[span] for span in spans])
        torch.testing.assert_close(found["mentions"], expected)
        kept = [spans[n] for n in found["kept"]]
        assert len(kept) <= 0.6 * len(example.words()) and kept == sorted(kept)
        rows = found["antecedents"]
        for m, later in enumerate(kept):
            assert rows[m, 0] == 0
            for c in range(1, rows.shape[1]):
                if m - c < 0:
                    assert rows[m, c] == -torch.inf
                else:
                    torch.testing.assert_close(rows[m, c], both(later, kept[m - c], c))


def test_other_documents_and_padding_change_nothing(untrained):
    examples = documents()
    together = outputs(untrained, examples)
    spans, kept = 0, 0
    for example in examples:
        alone = outputs(untrained, [example])
        n, m, k = len(alone["mentions"]), len(alone["kept"]), alone["antecedents"].shape[1]
        torch.testing.assert_close(alone["mentions"], together["mentions"][spans : spans + n])
        assert torch.equal(alone["kept"] + spans, together["kept"][kept : kept + m])
        rows = together["antecedents"][kept : kept + m]
        torch.testing.assert_close(alone["antecedents"], rows[:, :k])
        assert (rows[:, k:] == -torch.inf).all()
        spans, kept = spans + n, kept + m
    assert untrained.predict(examples) == [untrained.predict([e])[0] for e in examples]
    longer = dataclasses.replace(
        examples[0],
        sentences=(*examples[0].sentences, ("x",) * 30),
        speakers=(*examples[0].speakers, ""),
    )
    n = len(outputs(untrained, [examples[0]])["mentions"])
    torch.testing.assert_close(
        outputs(untrained, [longer])["mentions"][:n], together["mentions"][:n]
    )


def test_loss_is_the_mean_over_documents(untrained):
    examples = documents()
    with torch.no_grad():

        def loss(some):
            batch = untrained.batch(some)
            return untrained.loss(batch, untrained(batch))

        torch.testing.assert_close(loss(examples), sum(loss([e]) for e in examples) / 6)


def test_telling_mentions_apart_may_be_learned_too():
    models = [
        fit(coref_recipe(elmo=None, network={"mention_loss": weight}, train=LIGHT), documents())
        for weight in (0.0, 0.5)
    ]
    models[1].load_state_dict(models[0].state_dict())
    example = documents()[0]
    gold = {mention for cluster in example.clusters for mention in cluster}
    with torch.no_grad():
        batch = models[0].batch([example])
        found = models[0](batch)
        one, two = (model.loss(batch, found) for model in models)
        signs = [1 if span in gold else -1 for span in models[0].spans(example)]
        told = -(found["mentions"] * torch.tensor(signs)).sigmoid().log().sum()
    torch.testing.assert_close(two - one, 0.5 * told)


def test_clusters_of_a_batch_fall_to_their_documents(untrained):
    examples = documents()[:2]
    batch = untrained.batch(examples, gold=False)
    kept = torch.tensor([0, 4, len(untrained.spans(examples[0])), -1])
    kept[3] = kept[2] + 2
    rows = torch.tensor([[0.0, -9], [0, 1], [0, -torch.inf], [0, 2]])
    one, two = untrained.decode(batch, {"kept": kept, "antecedents": rows})
    spans = [untrained.spans(example) for example in examples]
    assert one == ((spans[0][0], spans[0][4]),) and two == ((spans[1][0], spans[1][2]),)


def test_heads_read_elmo_if_asked_or_if_there_is_nothing_else():
    def head(**sections):
        return fit(coref_recipe(train=LIGHT, **sections), documents(), bilm=elmo()).head_width

    assert head() == 24
    assert head(network={"elmo_in_heads": True}) == 24 + elmo().config.width
    assert head(characters=None) == elmo().config.width


def test_long_documents_are_cut_at_random_in_training_alone():
    examples = documents()
    model = fit(coref_recipe(elmo=None, network={"sentences": 2}, train=LIGHT), examples)
    torch.manual_seed(0)
    model.train()
    cuts = {model.batch(examples[:1]).examples[0].sentences for _ in range(30)}
    whole = examples[0].sentences
    assert cuts == {whole[n : n + 2] for n in range(2)}
    assert model.batch(examples[5:]).examples == (examples[5],)
    assert model.batch(examples, gold=False).examples == tuple(examples)
    model.eval()
    assert model.batch(examples).examples == tuple(examples)


def test_antecedents_are_limited():
    spec = coref_recipe(elmo=None, network={"antecedents": 2}, train=LIGHT)
    model = fit(spec, documents(), device="cpu")
    rows = outputs(model, documents()[:1])["antecedents"]
    assert rows.shape[1] == 3 and (rows[2:] > -torch.inf).all()
    one = Document("x", (("Rain",),), ("",), ())
    assert outputs(model, [one])["antecedents"].tolist() == [[0.0]]
    assert model.predict([one]) == [()]
    model.train()
    batch = model.batch([one])
    loss = model.loss(batch, model(batch))
    loss.backward()
    assert loss.item() == 0 and all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_saved_and_loaded_predictions_are_identical(trained, tmp_path):
    trained.save(tmp_path / "run")
    again = load_task(tmp_path / "run", bilm=elmo(), device="cpu")
    more = [*documents(), document("poem/new", "Quirin saw [1 the boat ] . | It sank .")]
    assert again.predict(more) == trained.predict(more)
    store = trained.inputs.store
    trained.inputs.store = LayerStore(store.elmo, boundaries=store.boundaries)
    one, two = outputs(trained, more), outputs(again, more)
    assert all(torch.equal(one[name], two[name]) for name in one)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        "config.json", "model.safetensors", "metrics.json", "genres.txt", "characters.txt",
    }  # fmt: skip


def test_an_unknown_genre_is_the_mean_of_those_known(trained):
    assert list(trained.genres) == ["tale", "talk"]
    example = documents()[0]
    other = dataclasses.replace(example, name="poem/boat")
    found = outputs(trained, [other])["antecedents"]
    with torch.no_grad():
        kept = trained.network.genres.weight.clone()
        trained.network.genres.weight[0] = kept.mean(0)
        expected = outputs(trained, [example])["antecedents"]
        trained.network.genres.weight.copy_(kept)
    torch.testing.assert_close(found, expected)


def test_averages_of_networks():
    examples = documents()
    nets = [fit(coref_recipe(elmo=None, train={**LIGHT, "seed": n}), examples) for n in range(3)]
    one = nets[0]
    found = [outputs(net, examples) for net in nets]
    same = one.average([found[0], found[0]])
    assert torch.equal(same["kept"], found[0]["kept"])
    k = found[0]["antecedents"].shape[1]
    torch.testing.assert_close(same["antecedents"][:, :k], found[0]["antecedents"].log_softmax(1))
    joined = one.average(found)
    kept = [set(net["kept"].tolist()) for net in found]
    most = sorted(n for n in set.union(*kept) if sum(n in some for some in kept) > 1)
    assert joined["kept"].tolist() == most
    torch.testing.assert_close(joined["antecedents"].exp().sum(1), torch.ones(len(most)))
    # One pair by hand.
    later, earlier = next((b, a) for a, b in pairwise(most) if all({a, b} <= some for some in kept))
    share = 0.0
    for net in found:
        order = net["kept"].tolist()
        row = order.index(later)
        share += net["antecedents"][row].softmax(0)[row - order.index(earlier)] / 3
    torch.testing.assert_close(joined["antecedents"][most.index(later), 1].exp(), share)
    batch = one.batch(examples, gold=False)
    assert len(one.decode(batch, joined)) == len(examples)


def test_singletons_count_if_asked():
    example = document("a", "[1 Mara ] came . | [1 She ] saw [2 a crow ] .")
    linked = (((0, 1), (3, 4)),)
    model = fit(coref_recipe(elmo=None, train=LIGHT), documents())
    assert model.score([example], [linked])["f1"] == 100
    spec = coref_recipe(elmo=None, train=LIGHT, data={"reader": {"singletons": True}})
    assert fit(spec, documents()).score([example], [linked])["f1"] < 100


def test_raw_text_is_shown_with_numbers_and_lists(trained):
    raw = 'Mara  owns a small boat.\n"She paints it every spring." \n'
    parsed = trained.parse(raw)
    assert [len(words) for words in parsed.example.sentences] == [6, 8]
    assert all(raw[t.start : t.end] == t.text for tokens in parsed.tokens for t in tokens)
    clusters = ((0, 1), (7, 8)), ((2, 5), (3, 4), (9, 10))
    assert trained.show(parsed, clusters) == (
        '[1 Mara]  owns [2 a [2 small] boat].\n"[1 She] paints [2 it] every spring."\n\n'
        "1: Mara | She\n2: a small boat | small | it"
    )
    facts = trained.describe(parsed, clusters)
    assert facts["clusters"][0][1] == {"text": "She", "start": 26, "end": 29, "words": [7, 8]}
    assert facts["sentences"][1][1] == "She"
    assert trained.show(parsed, ()).endswith("\n\nno clusters")
    nested = trained.take(("the", "old", "boat"))
    assert trained.show(nested, (((0, 3), (0, 2)),)) == (
        "[1 [1 the old] boat]\n\n1: the old boat | the old"
    )
    assert trained.predict([raw, ("Rain", "fell")])[1:] == [()]


def test_conll_files_are_read_and_shown(trained, tmp_path):
    path = tmp_path / "x.gold_conll"
    path.write_text(conll(documents()), encoding="utf-8")
    assert Coreference.read(coref_recipe(), path) == documents()
    parsed = trained.parse_file(str(path))
    assert [one.example for one in parsed] == documents()
    text = trained.show(parsed[3], documents()[3].clusters[::-1])
    assert text.startswith(
        "# tale/brother\n[1 [2 Mara] 's brother] sings .\n[2 She] wakes [1 him] ."
    )
    (tmp_path / "raw.txt").write_text("Mara came.\n", encoding="utf-8")
    assert trained.parse_file(str(tmp_path / "raw.txt")) is None


def test_parts_of_a_folder_by_a_list(tmp_path):
    for example in documents():
        own = dataclasses.replace(example, name=example.name.replace("/", "_"))
        (tmp_path / f"{own.name}.conll").write_text(conll([own]), encoding="utf-8")
    splits = tmp_path / "splits.md"
    splits.write_text("## train\n * tale_boat\n * talk_dog\n## dev\n * tale_lake\n", "utf-8")
    spec = coref_recipe(data={"reader": {"splits": str(splits)}})
    names = [d.name for d in Coreference.read(spec, f"{tmp_path}#train")]
    assert names == ["tale_boat", "talk_dog"]
    for path, hint in ((tmp_path, "#train"), (f"{tmp_path}#dve", "the nearest is 'dev'")):
        with pytest.raises(InputError, match=f"does not say which part .*{hint}"):
            Coreference.read(spec, path)


def test_wrong_inputs(trained):
    good = documents()[0]
    for change, reason in [
        ({"sentences": ()}, "has no sentences: leave it out"),
        ({"sentences": ((), *good.sentences[1:])}, "has a sentence without words: leave it out"),
        ({"speakers": ("Ann",)}, "has 1 speakers for 3 sentences: give one a sentence"),
    ]:
        with pytest.raises(InputError, match=reason):
            trained.predict([dataclasses.replace(good, **change)])
    for mention in ((3, 3), (-1, 2), (20, 99)):
        with pytest.raises(InputError, match=r"has a mention \(.*\), expected start < end within"):
            trained.batch([dataclasses.replace(good, clusters=((mention,),))])
    with pytest.raises(InputError, match="has no sentences"):
        trained.predict(["  \n"])
    for network, reason in [
        ({"spans": 0}, r"network\.spans is 0.*, expected more than 0"),
        ({"hidden": []}, r"network\.hidden is \[\], expected one number"),
        ({"mention_loss": -1}, r"network\.mention_loss is -1.*, expected 0 or more"),
        ({"longest": 0}, r"network\.longest is 0, expected 1 or more"),
        ({"dropout": 1}, r"network\.dropout is 1.*, expected 0 or more and below 1"),
        ({"width": 3}, "network has no key 'width'"),
    ]:
        with pytest.raises(InputError, match=reason):
            fit(coref_recipe(elmo=None, network=network), documents())


def test_the_recipe_has_the_papers_values():
    spec = read_recipe("coref")
    assert task_class("coref") is Coreference and spec.task == "coref"
    assert spec.elmo.penalty == 0 and spec.elmo.layer_norm is None and spec.elmo.where == "input"
    assert spec.network["dropout_input"] == 0.5 and spec.network["antecedents"] == 250
