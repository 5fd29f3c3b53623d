"""The real sets, read whole: as many examples as they are known to hold."""

import pytest

from torchelmo.tasks.readers.columns import read_columns, read_kmou
from torchelmo.tasks.readers.conllu import read_conllu
from torchelmo.tasks.readers.coref import read_documents, read_splits
from torchelmo.tasks.readers.entities import read_entities
from torchelmo.tasks.readers.lines import read_cola, read_nsmc, read_trec
from torchelmo.tasks.readers.pairs import read_pairs
from torchelmo.tasks.readers.propbank import read_frames
from torchelmo.tasks.readers.source import open_source
from torchelmo.tasks.readers.squad import read_squad
from torchelmo.tasks.readers.trees import read_trees
from torchelmo.text.words import get_tokenizer


@pytest.fixture(scope="session")
def sets(shared):
    folder = shared / "data" / "tasks"
    if not folder.is_dir():
        pytest.skip("the sets (../shared/data/tasks) are not here")
    return folder


def count(examples):
    return sum(1 for _ in examples)


@pytest.mark.parametrize(
    ("part", "expected"), [("train", 14_987), ("testa", 3_466), ("testb", 3_684)]
)
def test_conll_2003(sets, part, expected):
    path = f"{sets}/en/ner.tar.xz:ner/conll2003/eng.{part}"
    documents = open_source(path).data.count(b"-DOCSTART-")
    assert count(read_columns(path)) + documents == expected


@pytest.mark.parametrize(
    ("read", "path", "expected"),
    [
        (read_columns, "en/chunk.tar.xz:chunk/conll2000/conll2000.zip:conll2000/train.txt", 8_936),
        (read_columns, "en/chunk.tar.xz:chunk/conll2000/conll2000.zip:conll2000/test.txt", 2_012),
        (read_trees, "en/sst.tar.xz:sst/train.txt", 8_544),
        (read_trees, "en/sst.tar.xz:sst/dev.txt", 1_101),
        (read_trees, "en/sst.tar.xz:sst/test.txt", 2_210),
        (read_pairs, "en/nli.tar.xz:nli/snli/s1.dev", 9_842),
        (read_pairs, "en/nli.tar.xz:nli/snli/s1.test", 9_824),
        (read_pairs, "en/nli.tar.xz:nli/cad_snli/train.tsv", 8_330),
        (read_pairs, "en/nli.tar.xz:nli/cad_snli/dev.tsv", 1_000),
        (read_pairs, "en/nli.tar.xz:nli/mnli_dev_matched+mismatched.csv", 19_647),
        (read_pairs, "en/nli.tar.xz:nli/sick/SICK_train.txt", 4_500),
        (read_pairs, "en/nli.tar.xz:nli/sick/SICK_trial.txt", 500),
        (read_pairs, "en/nli.tar.xz:nli/sick/SICK_test_annotated.txt", 4_927),
        (read_squad, "en/qa.tar.xz:qa/dev-v1.1.rebuilt.json", 10_570),
        (read_conllu, "en/pos.tar.xz:pos/ud_english_ewt/en_ewt-ud-train.conllu", 12_544),
        (read_conllu, "en/pos.tar.xz:pos/ud_english_ewt/en_ewt-ud-dev.conllu", 2_001),
        (read_conllu, "en/pos.tar.xz:pos/ud_english_ewt/en_ewt-ud-test.conllu", 2_077),
        (read_trec, "en/cls.tar.xz:cls/trec/train_5500.label", 5_452),
        (read_trec, "en/cls.tar.xz:cls/trec/test_500.label", 500),
        (read_cola, "en/cls.tar.xz:cls/cola/in_domain_train.tsv", 8_551),
        (read_kmou, "ko/kmou_ner.tar.xz:kmou_ner/train.words.txt", 15_978),
        (read_kmou, "ko/kmou_ner.tar.xz:kmou_ner/testa.words.txt", 2_662),
        (read_kmou, "ko/kmou_ner.tar.xz:kmou_ner/testb.words.txt", 5_324),
        (read_conllu, "ko/ud_korean_kaist.tar.xz:ud_korean_kaist/ko_kaist-ud-train.conllu", 23_010),
        (read_conllu, "ko/ud_korean_kaist.tar.xz:ud_korean_kaist/ko_kaist-ud-dev.conllu", 2_066),
        (read_conllu, "ko/ud_korean_kaist.tar.xz:ud_korean_kaist/ko_kaist-ud-test.conllu", 2_287),
        (read_entities, "ko/ja_ner_wikipedia.tar.xz:ja_ner_wikipedia/ner.json", 5_343),
    ],
)
def test_counts(sets, read, path, expected):
    assert count(read(sets / path)) == expected


@pytest.mark.parametrize(("part", "expected"), [("train", 150_000), ("test", 50_000)])
def test_nsmc(sets, part, expected):
    path = sets / f"ko/nsmc.tar.xz:nsmc/ratings_{part}.txt"
    assert count(read_nsmc(path, tokenizer=get_tokenizer("whitespace"))) == expected


def test_squad_shifts(sets):
    names = ("new_wiki", "reddit", "amazon_reviews")
    paths = [f"{sets}/en/qa.tar.xz:qa/{name}_v1.0.json" for name in names]
    quick = get_tokenizer("whitespace")
    assert sum(count(read_squad(p, tokenizer=quick, cut=False)) for p in paths) == 27_626


@pytest.mark.parametrize(
    ("part", "sentences", "predicates"),
    [("train", 12_464, 40_118), ("dev", 1_965, 4_947), ("test", 2_054, 4_785)],
)
def test_propbank(sets, part, sentences, predicates):
    found = list(read_frames(f"{sets}/en/srl.tar.xz:srl/ewt.{part}.gold_conll"))
    assert len(found) == sentences
    assert sum(len(frames.predicates) for frames in found) == predicates


def test_ontogum(sets):
    folder = f"{sets}/en/coref.tar.xz:coref/ontogum"
    splits = read_splits(f"{folder}/splits.md")
    parts = {part: set(splits[part]) for part in ("train", "dev", "test")}
    assert [len(names) for names in parts.values()] == [191, 32, 32]
    wanted = set().union(*parts.values())
    found = {d.name for d in read_documents(f"{folder}/coref/ontogum/conll", names=wanted)}
    masked = wanted - found
    assert len(masked) == 18
    assert all("_reddit_" in name for name in masked)


def test_litbank(sets):
    found = list(read_documents(f"{sets}/en/coref.tar.xz:coref/litbank/coref/conll"))
    assert len(found) == 100
    assert sum(len(cluster) for d in found for cluster in d.clusters) == 29_103
