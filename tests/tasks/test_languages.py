"""The recipes of Korean and Japanese, as people run them: files, training, raw text."""

import json
from dataclasses import replace

import pytest

from bulk.tiny import tiny_model
from torchelmo.config import TokenizerConfig
from torchelmo.elmo import Elmo
from torchelmo.tasks.recipe import read_recipe
from torchelmo.tasks.trainer import fit

QUICK = ["train.batch=5", "train.learning_rate=0.03", "train.patience=none", "data.hold_out=0"]
TAGGER = [*QUICK, "train.epochs=25", "network.cells=[24]", "network.dropout=0", "words.dropout=0"]
KMOU = [
    ("민수 는 부산 에 가 ㄴ다", "B-PER O B-LOC O O O"),
    ("지나 ㄴ 여름 영희 가 오 았 다", "O O O B-PER O O O O"),
    ("한강 물산 은 서울 에 있 다", "B-ORG I-ORG O B-LOC O O O"),
    ("서울 의 비 는 차 ㅂ니다", "B-LOC O O O O O"),
    ("물 이 푸르 ㄴ 부산", "O O O O B-LOC"),
]
JAPANESE = [
    ("森田は東京に住んでいる。", ("人名", "森田"), ("地名", "東京")),
    ("雨が京都に降った。", ("地名", "京都")),
    ("東京の駅で森田と会う。", ("地名", "東京"), ("人名", "森田")),
    ("鈴木は船を描いた。", ("人名", "鈴木")),
    ("猫が眠る。",),
    ("京都から鈴木が来た。", ("地名", "京都"), ("人名", "鈴木")),
]
REVIEWS = [
    ("정말 재미있는 영화", 1),
    ("너무 지루했다", 0),
    ("배우들의 연기가 훌륭하다", 1),
    ("돈이 아깝다", 0),
    ("다시 보고 싶다", 1),
    ("두 번은 못 보겠다", 0),
    ("", 1),
]


def korean():
    pytest.importorskip("kiwipiepy")
    model = tiny_model()
    named = replace(model.config, tokenizer=TokenizerConfig(name="kiwi", version="1"))
    return Elmo(replace(model, config=named))


def test_korean_entities_over_morphemes(tmp_path):
    for part, column in (("words", 0), ("tags", 1)):
        text = "".join(f"{pair[column]}\n" for pair in KMOU)
        (tmp_path / f"train.{part}.txt").write_text(text, encoding="utf-8")
    path = tmp_path / "train.words.txt"
    changes = [*TAGGER, "characters.filters=24"]
    model = fit("kmou", path, path, changes=changes, bilm=korean(), device="cpu")
    assert model.evaluate(path)["f1"] == 100
    assert model.tokenizer_name == "kiwi"
    raw = "지난 여름 영희가 부산에 간다"
    assert model.show(model.parse(raw), model.predict([raw])[0]).startswith("지난 여름 ")
    (tags,) = model.predict([("지난", "여름", "영희", "가", "오", "았", "다")])
    assert tags == ("O", "O", "B-PER", "O", "O", "O", "O")


def test_japanese_entities_from_raw_text(tmp_path):
    pytest.importorskip("fugashi")
    pytest.importorskip("unidic_lite")
    items = []
    for text, *marked in JAPANESE:
        spans = [(label, name, text.index(name)) for label, name in marked]
        found = [{"name": n, "span": [s, s + len(n)], "type": label} for label, n, s in spans]
        items.append({"curid": "1", "text": text, "entities": found})
    path = tmp_path / "ner.json"
    path.write_text(json.dumps(items, ensure_ascii=False), encoding="utf-8")
    changes = [*TAGGER, "words.min_count=1"]
    model = fit("ja-ner", path, path, changes=changes, output=tmp_path / "run", device="cpu")
    assert model.tokenizer_name == "fugashi" and model.inputs.store is None
    assert model.evaluate(path)["f1"] == 100
    raw = "鈴木は東京に住んでいる。"
    (tags,) = model.predict([raw])
    assert model.show(model.parse(raw), tags) == "[人名 鈴木]は[地名 東京]に住んでいる。"


def test_korean_reviews(tmp_path):
    path = tmp_path / "ratings.txt"
    rows = "".join(f"{n}\t{text}\t{label}\n" for n, (text, label) in enumerate(REVIEWS))
    path.write_text(f"id\tdocument\tlabel\n{rows}", encoding="utf-8")
    small = ["network.cells=12", "network.before=12", "network.hidden=[12]", "train.epochs=40"]
    still = [f"{key}=0" for key in ("network.dropout", "network.dropout_input", "elmo.dropout")]
    changes = [*QUICK, *small, *still, "words.dropout=0", "words.min_count=1"]
    changes += ["train.learning_rate=0.01", "train.halve_after=none"]
    model = fit("nsmc", path, path, changes=changes, bilm=korean(), device="cpu")
    assert model.evaluate(path)["accuracy"] == 100
    lines = [model.show(model.parse(text), model.predict([text])[0]) for text, _ in REVIEWS[:2]]
    assert [line.split("\t")[::2] for line in lines] == [["1", REVIEWS[0][0]], ["0", REVIEWS[1][0]]]


def test_the_recipes_say_how_words_are_read():
    kaist, kmou, japanese = (read_recipe(name) for name in ("kaist", "kmou", "ja-ner"))
    assert (kaist.elmo.reads, kaist.data.tokenizer, kaist.elmo.model) == (
        "tokens",
        "words",
        "ko-small",
    )
    assert (kmou.elmo.reads, kmou.data.tokenizer, kmou.data.reader["join"]) == ("words", None, True)
    assert (japanese.bilm, japanese.data.tokenizer) == (None, "fugashi")
