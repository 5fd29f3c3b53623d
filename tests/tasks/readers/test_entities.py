import json

import pytest

from torchelmo.errors import InputError
from torchelmo.tasks.readers.entities import read_entities
from torchelmo.tasks.readers.examples import Tagged
from torchelmo.text.words import get_tokenizer


def write(tmp_path, data):
    path = tmp_path / "ner.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


def item(text, *marked):
    found = [{"name": text[a:b], "span": [a, b], "type": label} for label, a, b in marked]
    return {"curid": "1", "text": text, "entities": found}


def test_entities_become_tags(tmp_path):
    path = write(tmp_path, [item("森は東京へ。", ("人名", 0, 1), ("地名", 2, 4)), item("雨。")])
    found = list(read_entities(path, tokenizer=get_tokenizer("codepoints")))
    assert found == [
        Tagged(tuple("森は東京へ。"), ("B-人名", "O", "B-地名", "I-地名", "O", "O")),
        Tagged(("雨", "。"), ("O", "O")),
    ]


def test_words_that_entities_touch(tmp_path):
    # Both stand in the first word: the second gets what is left of it.
    path = write(tmp_path, [item("Oslo-based Ann", ("LOC", 0, 4), ("PER", 5, 14))])
    (found,) = read_entities(path, tokenizer=get_tokenizer("whitespace"))
    assert found == Tagged(("Oslo-based", "Ann"), ("B-LOC", "B-PER"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("[{]", "line 1: not JSON"),
        ([{"text": "a"}], "item 0: expected text, and entities"),
        ([item("a"), 3], "item 1: expected text, and entities"),
        (
            [{"text": "ab", "entities": [{"name": "x", "span": [0, 1], "type": "T"}]}],
            "item 0: an entity does not stand at its span",
        ),
    ],
)
def test_wrong_items_are_named(tmp_path, data, reason):
    with pytest.raises(InputError, match=rf"ner\.json, {reason}"):
        list(read_entities(write(tmp_path, data)))
