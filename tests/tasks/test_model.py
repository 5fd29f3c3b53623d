"""A trained task's folder, and that the protocol fits pairs and documents."""

import json
import shutil

import pytest
import torch

from tasks.small import elmo, labelled, recipe, static, tagged
from torchelmo.errors import InputError
from torchelmo.formats import native
from torchelmo.tasks import encoders
from torchelmo.tasks.data import LayerStore
from torchelmo.tasks.model import TaskModel, load_task, task_class
from torchelmo.tasks.readers.examples import Document, Pair
from torchelmo.tasks.trainer import Trainer, fit

UNSEEN = [("Kiel", "sleeps"), ("Quirin", "met", "Noor"), ("물", "🙂", "Harbour", ",", "zzz")]


@pytest.fixture(scope="module")
def bilm_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bilm") / "tiny"
    native.write(elmo().to_model(), folder)
    return folder


@pytest.fixture(scope="module")
def vectors_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors") / "ours.txt"
    vectors = static()
    lines = [f"{w} {' '.join(map(str, vectors.matrix[n]))}" for w, n in vectors.rows.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def outputs(model, sentences):
    with torch.no_grad():
        return model(model.batch([model.example([words]) for words in sentences], gold=False))


def check_same(model, folder, **options):
    again = load_task(folder, device="cpu", **options)
    sentences = [*(e.words for e in tagged()), *UNSEEN]
    assert again.predict(sentences) == model.predict(sentences)
    one, two = outputs(model, sentences), outputs(again, sentences)
    torch.testing.assert_close(one, two)
    # The layers that the first has kept are of other batches, whose last bits may differ.
    store = model.inputs.store
    model.inputs.store = LayerStore(store.elmo, boundaries=store.boundaries)
    one = outputs(model, sentences)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert again.metrics == json.loads(json.dumps(model.metrics))
    assert again.tokenizer_name == model.tokenizer_name and not again.training
    return again


@pytest.mark.parametrize("words", [{"tuned": True}, {"tuned": False}, {"closed": True}, None])
def test_saved_and_loaded_predictions_are_identical(words, bilm_folder, vectors_file, tmp_path):
    spec = recipe(
        "ner",
        words=words and {"vectors": str(vectors_file), **words},
        elmo={
            "where": "both",
            "model": str(bilm_folder),
            "layer_norm": "none" if words else "allennlp",
        },
        train={"epochs": 2},
    )
    model = fit(spec, tagged(), tagged(), output=tmp_path / "run", device="cpu")
    check_same(model, tmp_path / "run").save(tmp_path / "again")
    check_same(model, tmp_path / "again")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    expected = {"config.json", "model.safetensors", "metrics.json", "tags.txt", "characters.txt"}
    assert names == expected | ({"words.txt"} if words else set())
    config = json.loads((tmp_path / "run/config.json").read_text(encoding="utf-8"))
    assert config["bilm"]["name"] == bilm_folder.resolve().as_posix()


def test_a_classifier_with_a_learned_table(tmp_path):
    words = {"vectors": "none", "dim": 5}
    spec = recipe("labels", elmo=None, words=words, train={"epochs": 2})
    model = fit(spec, labelled(), output=tmp_path / "run", device="cpu")
    texts = ["a cold lake", "lovely"]
    assert load_task(tmp_path / "run", device="cpu").predict(texts) == model.predict(texts)


def test_with_the_bilm_inside_it_loads_anywhere(tmp_path):
    spec = recipe("ner", elmo={"model": "gone"}, train={"epochs": 1})
    model = fit(spec, tagged(), bilm=elmo(), device="cpu")
    model.save(tmp_path / "run", bilm=True)
    shutil.move(tmp_path / "run", tmp_path / "moved")
    check_same(model, tmp_path / "moved")
    model.save(tmp_path / "moved", overwrite=True)
    assert not (tmp_path / "moved/bilm").exists()
    with pytest.raises(InputError, match="there is no model 'gone'"):
        load_task(tmp_path / "moved", device="cpu")
    check_same(model, tmp_path / "moved", bilm=elmo())


def test_another_bilm_is_refused(tmp_path):
    model = fit(recipe("ner", train={"epochs": 1}), tagged(), bilm=elmo(), device="cpu")
    model.save(tmp_path / "run")
    other = elmo()
    torch.nn.init.zeros_(next(other.bilm.parameters()))
    with pytest.raises(InputError, match="over a biLM with other weights"):
        load_task(tmp_path / "run", bilm=other, device="cpu")


def test_other_vectors_are_refused(tmp_path, vectors_file):
    mine = tmp_path / "v.txt"
    shutil.copy(vectors_file, mine)
    spec = recipe("ner", elmo=None, words={"vectors": str(mine)}, train={"epochs": 1})
    fit(spec, tagged(), output=tmp_path / "run", device="cpu")
    mine.write_text("oslo 1 2 3 4 5 6\n", encoding="utf-8")
    with pytest.raises(InputError, match="was trained with other word vectors"):
        load_task(tmp_path / "run", device="cpu")


def test_wrong_folders(tmp_path):
    with pytest.raises(InputError, match="there is no folder"):
        load_task(tmp_path / "gone")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="there is no file"):
        load_task(tmp_path / "empty")
    fit(
        recipe("ner", elmo=None, train={"epochs": 1}),
        tagged(),
        output=tmp_path / "run",
        device="cpu",
    )
    config = tmp_path / "run/config.json"
    good = json.loads(config.read_text(encoding="utf-8"))
    for change, reason in [
        ({"format_version": "2.0"}, "upgrade torchelmo"),
        ({"recipe": {**good["recipe"], "tsk": 1}}, "no key 'tsk', the nearest is 'task'"),
        ({"vocabularies": ["tags"]}, "there is no list 'characters' among tags"),
    ]:
        config.write_text(json.dumps({**good, **change}), encoding="utf-8")
        with pytest.raises(InputError, match=reason):
            load_task(tmp_path / "run", device="cpu")
    config.write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="it is no trained task's"):
        load_task(tmp_path / "run")
    config.write_text(json.dumps(good), encoding="utf-8")
    (tmp_path / "run/tags.txt").write_text("O\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"model\.safetensors"):
        load_task(tmp_path / "run", device="cpu")


def test_a_folder_with_other_files_is_not_replaced(tmp_path):
    model = fit(recipe("ner", elmo=None, train={"epochs": 1}), tagged(), device="cpu")
    model.save(tmp_path / "run")
    (tmp_path / "run/notes.md").touch()
    with pytest.raises(InputError, match=r"'notes.md', which is no file of a task"):
        model.save(tmp_path / "run", overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]


def test_predict_takes_text_words_and_examples_in_order():
    model = fit(recipe("ner", elmo=None), tagged(), device="cpu")
    examples = tagged()
    mixed = [" ".join(examples[0].words), list(examples[1].words), examples[2]]
    assert model.predict(mixed) == [e.tags for e in examples[:3]]
    told = []
    assert model.predict([], progress=told.append) == [] == told
    taken = model.take(("New", "Harbour"))
    assert taken.text == "New Harbour" and [t.start for t in taken.tokens[0]] == [0, 4]


def test_unknown_tasks():
    with pytest.raises(InputError, match="there is no task 'sts', the nearest is 'sst'"):
        task_class("sts")


class Means(TaskModel):
    """The mean of each role's vectors, joined; yes or no. Enough for a pair or a document."""

    metric = "accuracy"

    def __init__(self, recipe, vocabularies, inputs, roles):
        super().__init__(recipe, vocabularies, inputs)
        self.top = torch.nn.Linear(inputs.width * roles, 2)

    @classmethod
    def texts(cls, example):
        if isinstance(example, Document):
            return (example.sentences,)
        return ((example.first,), (example.second,))

    def gold(self, examples):
        yes = [e.label == "yes" if isinstance(e, Pair) else bool(e.clusters) for e in examples]
        return {"yes": torch.tensor(yes).long()}

    def forward(self, batch):
        roles = []
        for texts, counts in zip(batch.texts, batch.counts, strict=True):
            means = self.inputs(texts).sum(1) / texts.mask.sum(1, keepdim=True)
            roles.append(torch.stack([part.mean(0) for part in means.split(counts)]))
        return {"logits": self.top(torch.cat(roles, dim=1))}

    def loss(self, batch, outputs):
        return torch.nn.functional.cross_entropy(outputs["logits"], batch.gold["yes"])

    def decode(self, batch, outputs):
        return outputs["logits"].argmax(1).tolist()

    def score(self, examples, predictions):
        right = torch.tensor(predictions) == self.gold(examples)["yes"]
        return {"accuracy": 100 * right.float().mean().item()}

    read = collect = example = show = describe = None


PAIRS = [
    Pair(("Ivo", "sings"), ("someone", "makes", "music"), "yes"),
    Pair(("Noor", "sleeps", "at", "noon"), ("Noor", "is", "awake"), "no"),
    Pair(("the", "ferry", "left"), ("a", "boat", "left"), "yes"),
]
DOCUMENTS = [
    Document("a", (("Ivo", "sings"), ("He", "is", "loud")), ("", ""), (((0, 1), (2, 3)),)),
    Document("b", (("Rain",), ("Bread", "is", "dark"), ("Noon",)), ("", "", ""), ()),
]


@pytest.mark.parametrize(("examples", "roles"), [(PAIRS, 2), (DOCUMENTS, 1)])
def test_pairs_and_documents_fit_the_protocol(examples, roles):
    spec = recipe("ner", train={"epochs": 30, "batch": 2, "learning_rate": 0.05})
    texts = [words for e in examples for role in Means.texts(e) for words in role]
    torch.manual_seed(0)
    vocabularies = encoders.collect(spec, texts, None)
    inputs = encoders.make_inputs(spec, vocabularies, None, LayerStore(elmo()))
    model = Means(spec, vocabularies, inputs, roles)
    batch = model.batch(examples)
    assert len(batch.texts) == roles
    assert [sum(c) for c in batch.counts] == [len(t.words) for t in batch.texts]
    Trainer(model, examples, examples).run()
    assert model.metrics["best"]["valid"] == {"accuracy": 100.0}
