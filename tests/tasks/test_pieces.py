"""Korean and Japanese: words that a biLM reads in tokens of its own."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bulk.tiny import tiny_model
from tasks.small import recipe
from torchelmo.config import TokenizerConfig
from torchelmo.elmo import Elmo
from torchelmo.errors import InputError
from torchelmo.tasks.data import LayerStore
from torchelmo.tasks.ensemble import Ensemble
from torchelmo.tasks.model import load_task, open_store
from torchelmo.tasks.pieces import PieceStore, cut, means
from torchelmo.tasks.readers.examples import Tagged
from torchelmo.tasks.tagger import Tagger
from torchelmo.tasks.trainer import fit
from torchelmo.text.words import get_tokenizer

CPU = torch.device("cpu")
SENTENCES = [("집에", "간다"), ("비가", "온다", "."), ("눈",)]
TAGGED = """
민수가|NOUN 부산에|ADV 간다|VERB .|PUNCT
비가|NOUN 온다|VERB .|PUNCT
영희는|NOUN 학교에|ADV 갔다|VERB .|PUNCT
바다가|NOUN 아주|ADV 푸르다|ADJ .|PUNCT
민수는|NOUN 밥을|NOUN 먹었다|VERB .|PUNCT
"""


def eojeol():
    lines = [[cell.split("|") for cell in line.split()] for line in TAGGED.strip().splitlines()]
    return [Tagged(tuple(w for w, _ in p), tuple(t for _, t in p)) for p in lines]


def elmo(tokenizer):
    model = tiny_model()
    named = replace(model.config, tokenizer=TokenizerConfig(name=tokenizer, version="1"))
    return Elmo(replace(model, config=named))


def test_a_word_is_the_mean_of_its_tokens():
    model = elmo("codepoints")
    store = PieceStore(model)
    layers = store.layers(SENTENCES)
    assert layers.lengths == (2, 3, 1)
    tokens = model.layers([list("".join(words)) for words in SENTENCES])
    expected = [
        tokens[0][:, 0:2].mean(1), tokens[0][:, 2:4].mean(1),
        tokens[1][:, 0:2].mean(1), tokens[1][:, 2:4].mean(1), tokens[1][:, 4],
        tokens[2][:, 0],
    ]  # fmt: skip
    np.testing.assert_allclose(layers.flat, np.stack(expected, axis=1), atol=1e-6)


def test_words_cut_alike_are_kept_apart():
    store = PieceStore(elmo("codepoints"))
    one, two = ("집에", "간다"), ("집", "에간다")
    assert store.add([one, two]) and len(store) == 2
    layers = store.layers([one, two])
    assert layers.lengths == (2, 2)
    assert not torch.allclose(layers.flat[:, 0], layers.flat[:, 2])


def test_boundaries_stay_at_their_places():
    model = elmo("codepoints")
    store, plain = PieceStore(model, boundaries=True), LayerStore(model, boundaries=True)
    layers = store.layers([("집에", "간다")])
    tokens = plain.layers([tuple("집에간다")])
    assert layers.boundaries and layers.lengths == (4,)
    torch.testing.assert_close(layers.flat[:, [0, -1]], tokens.flat[:, [0, -1]])
    torch.testing.assert_close(layers.flat[:, 1], tokens.flat[:, 1:3].mean(1))


def test_layers_on_disk_are_not_taken_for_those_of_whole_words(tmp_path):
    model = elmo("codepoints")
    stores = [kind(model, keep="disk", folder=tmp_path) for kind in (LayerStore, PieceStore)]
    for store in stores:
        store.add(SENTENCES)
    whole, means_of_tokens = (store.layers(SENTENCES).flat for store in stores)
    assert not torch.allclose(whole, means_of_tokens, atol=1e-2)
    exact = PieceStore(model).layers(SENTENCES).flat
    torch.testing.assert_close(means_of_tokens, exact, rtol=1e-2, atol=1e-2)


def test_means():
    values = torch.arange(12.0).view(1, 6, 2)
    found = means(values, [(0, 2), (2, 3), (1, 6)])
    assert found.tolist() == [[[1, 2], [4, 5], [6, 7]]]
    assert means(values, [(3, 4)]).tolist() == [[[6, 7]]]
    assert means(values, []).shape == (1, 0, 2)


def test_an_eojeol_is_its_morphemes():
    pytest.importorskip("kiwipiepy")
    tokens, spans = cut(("학교에", "갔다", "."), get_tokenizer("kiwi"))
    assert tokens == ("학교", "에", "갔", "다", ".") and spans == [(0, 2), (2, 4), (4, 5)]
    with pytest.raises(InputError, match="is white space alone"):
        cut(("비", "\u3000"), get_tokenizer("kiwi"))


@pytest.fixture(scope="module")
def korean():
    """Tags of eojeol over a biLM of morphemes."""
    pytest.importorskip("kiwipiepy")
    spec = recipe("pos", data={"tokenizer": "words"}, elmo={"reads": "tokens"})
    return fit(spec, eojeol(), eojeol(), bilm=elmo("kiwi"), device="cpu")


def test_tags_of_eojeol_from_raw_text(korean):
    assert isinstance(korean.inputs.store, PieceStore)
    assert korean.evaluate(eojeol()) == {"accuracy": 100.0}
    raw = "민수가 부산에 간다."
    (tags,) = korean.predict([raw])
    assert korean.show(korean.parse(raw), tags) == "민수가/NOUN 부산에/ADV 간다/VERB ./PUNCT"


def test_saved_and_loaded_and_averaged_it_is_the_same(korean, tmp_path):
    korean.save(tmp_path / "one")
    texts = [example.words for example in eojeol()]
    found = load_task(tmp_path / "one", bilm=elmo("kiwi"), device="cpu")
    assert isinstance(found.inputs.store, PieceStore)
    both = Ensemble.load([tmp_path / "one"] * 2, bilm=elmo("kiwi"), device="cpu")
    assert both.members[0].inputs.store is both.members[1].inputs.store
    batch = found.batch(eojeol(), gold=False)
    with torch.no_grad():
        torch.testing.assert_close(found(batch)["scores"], korean(batch)["scores"])
        torch.testing.assert_close(both.outputs(batch)["scores"], korean(batch)["scores"])
    assert found.predict(texts) == both.predict(texts) == korean.predict(texts)


def test_what_does_not_go_together_is_refused(tmp_path):
    def opened(tokenizer, **sections):
        return open_store(recipe("pos", **sections), elmo(tokenizer), CPU)

    with pytest.raises(InputError, match=r"those of tiny \('words'\) are words: leave it out"):
        opened("words", elmo={"reads": "tokens"})
    with pytest.raises(InputError, match=r'reads the tokens of .kiwi.: say elmo.reads = "tokens"'):
        opened("kiwi", data={"tokenizer": "words"})
    for reads, kind in (("words", LayerStore), ("tokens", PieceStore)):
        made = opened("codepoints", data={"tokenizer": "words"}, elmo={"reads": reads})
        assert type(made) is kind
    assert type(opened("codepoints")) is LayerStore

    path = tmp_path / "ko.conllu"
    path.write_text("1\t비가\t_\tNOUN\t_\t_\t0\t_\t_\t_\n", encoding="utf-8")
    small = get_tokenizer("codepoints")
    with pytest.raises(InputError, match=r"comes in words and the biLM tiny reads tokens of 'code"):
        Tagger.read(recipe("pos"), path, tokenizer=small)
    for chosen in (recipe("pos", elmo={"reads": "words"}), recipe("pos", elmo=None)):
        assert Tagger.read(chosen, path, tokenizer=small) == [Tagged(("비가",), ("NOUN",))]
    assert Tagger.read(recipe("pos"), path, tokenizer=get_tokenizer("words"))
