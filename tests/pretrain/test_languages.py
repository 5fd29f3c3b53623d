"""Japanese and Korean: text without spaces or with particles glued on is prepared and learnt from.

Each case prepares text with the public functions and trains a tiny network. Its validation
perplexity must fall, to clearly below that of one who knows only how often each word comes.
"""

import lzma
import unicodedata

import numpy as np
import pytest

from pretrain.tiny import CPU
from torchelmo.elmo import Elmo
from torchelmo.pretrain.corpus import Corpus
from torchelmo.pretrain.loop import Trainer
from torchelmo.pretrain.prepare import PrepareOptions, prepare
from torchelmo.pretrain.recipe import DataRecipe, ModelRecipe, Recipe, TrainRecipe, WatchRecipe

JAPANESE = """
猫が庭で眠っています。
犬が庭で遊んでいます。
子供が公園で遊んでいます。
先生が学校で本を読んでいます。
母が台所で魚を焼いています。
父が店でパンを買っています。
今日は朝から雨が降っています。
昨日は朝から雪が降っていました。
明日は友達と海へ行きます。
私は毎朝六時に起きます。
弟は毎朝七時に起きます。
姉は毎晩本を読みます。
この町には古い橋があります。
あの町には新しい駅があります。
庭には大きな木があります。
机の上に赤い本があります。
椅子の下に白い猫がいます。
窓の外に小さな鳥がいます。
友達と一緒に駅まで歩きました。
弟と一緒に店まで走りました。
父は静かにお茶を飲みました。
母は静かに手紙を書きました。
先生は大きな声で話しました。
子供は小さな声で歌いました。
この店のパンはとてもおいしいです。
この店の魚はとても新しいです。
あの橋はとても古いです。
雨の日は家で本を読みます。
雪の日は家でお茶を飲みます。
休みの日は公園で遊びます。
私は犬より猫が好きです。
弟は猫より犬が好きです。
母は海より山が好きです。
昨日は友達に手紙を書きました。
昨日は先生に本を借りました。
明日は母と魚を買いに行きます。
"""
KOREAN = """
고양이가 마당에서 자고 있습니다.
강아지가 마당에서 놀고 있습니다.
아이가 공원에서 놀고 있습니다.
선생님이 학교에서 책을 읽고 있습니다.
어머니가 부엌에서 생선을 굽고 있습니다.
아버지가 가게에서 빵을 사고 있습니다.
오늘은 아침부터 비가 내리고 있습니다.
어제는 아침부터 눈이 내리고 있었습니다.
내일은 친구와 바다에 갑니다.
나는 매일 아침 여섯 시에 일어납니다.
동생은 매일 아침 일곱 시에 일어납니다.
누나는 매일 밤 책을 읽습니다.
이 마을에는 오래된 다리가 있습니다.
저 마을에는 새로운 역이 있습니다.
마당에는 커다란 나무가 있습니다.
책상 위에 빨간 책이 있습니다.
의자 아래에 하얀 고양이가 있습니다.
창문 밖에 작은 새가 있습니다.
친구와 함께 역까지 걸었습니다.
동생과 함께 가게까지 뛰었습니다.
아버지는 조용히 차를 마셨습니다.
어머니는 조용히 편지를 썼습니다.
선생님은 큰 목소리로 말했습니다.
아이는 작은 목소리로 노래했습니다.
이 가게의 빵은 아주 맛있습니다.
이 가게의 생선은 아주 싱싱합니다.
저 다리는 아주 오래되었습니다.
비가 오는 날에는 집에서 책을 읽습니다.
눈이 오는 날에는 집에서 차를 마십니다.
쉬는 날에는 공원에서 놉니다.
나는 강아지보다 고양이를 좋아합니다.
동생은 고양이보다 강아지를 좋아합니다.
어머니는 바다보다 산을 좋아합니다.
어제는 친구에게 편지를 썼습니다.
어제는 선생님에게 책을 빌렸습니다.
내일은 어머니와 생선을 사러 갑니다.
"""
# How a text is cut into words, how these are spelt, and what the former needs.
CASES = {
    "ja-fugashi": ("fugashi", "codepoints", ["fugashi", "unidic_lite"]),
    "ja-codepoints": ("codepoints", "codepoints", []),
    "ko-kiwi": ("kiwi", "jamo", ["kiwipiepy"]),
    "ko-whitespace": ("whitespace", "jamo", []),
}
SHARED = {"ja": "data/corpus/ja/aozora.txt.xz", "ko": "data/corpus/ko/mix.txt.xz"}


def prepared(case, folder, train, valid, vocabulary):
    """The corpus of two texts, or a skip where an extra is not installed."""
    tokenizer, characters, needed = CASES[case]
    for name in needed:
        pytest.importorskip(name)
    for name, text in (("train", train), ("valid", valid)):
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    options = PrepareOptions(
        tokenizer=tokenizer, characters=characters, max_characters=20, vocab_size=vocabulary
    )
    prepare([folder / "train.txt"], folder / "corpus", options, valid=[folder / "valid.txt"])
    return Corpus.open(folder / "corpus")


def perplexities(corpus, run, steps, rate, batch=16):
    """Validation perplexity of a tiny model on its way, first and last."""
    recipe = Recipe(
        data=DataRecipe(corpus="corpus", independent=False, reset_share=0.1),
        model=ModelRecipe(
            characters={"dim": 8, "filters": [[1, 16], [2, 16], [3, 16]]},
            lstm={"cells": 64, "projection": 32},
        ),
        train=TrainRecipe(
            batch=batch,
            unroll=10,
            steps=steps,
            softmax="full",
            optimizer="adamw",
            learning_rate=rate,
            schedule="cosine",
            clip_norm=1.0,
            loss_scale="one",
        ),
        watch=WatchRecipe(validate=max(steps // 4, 1), checkpoint=steps, log=steps),
    )
    found = []
    Trainer(recipe, corpus, run, device=CPU)(
        lambda now: found.append(now.validation["perplexity"]) if now.validation else None
    )
    return found


def frequencies(corpus):
    """The validation perplexity of one who knows how often each word comes, and no more."""
    targets = {}
    for name, split in (("train", corpus.train), ("valid", corpus.valid)):
        words = np.where(split.tokens < corpus.vocabulary_size, split.tokens, 2)  # <UNK>
        targets[name] = np.append(words, [1] * split.n_sentences)  # </S>
    counts = 1 + np.bincount(targets["train"], minlength=corpus.vocabulary_size)
    return float(np.exp(-np.log(counts / counts.sum())[targets["valid"]].mean()))


def script(corpus):
    """The share of the vocabulary that is written in the language's own letters."""
    words = corpus.vocabulary[3:]
    names = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL")
    own = [w for w in words if unicodedata.name(w[0], "").startswith(names)]
    return len(own) / len(words)


@pytest.mark.parametrize("case", CASES)
def test_sentences_of_our_own(case, tmp_path):
    lines = (JAPANESE if case.startswith("ja") else KOREAN).split("\n")[1:-1]
    assert len(lines) == len(set(lines)) == 36
    # Every sixth is held out; most of its words are in the others, which are read eight times over.
    kept = [line for number, line in enumerate(lines) if number % 6 != 5]
    held = [line for number, line in enumerate(lines) if number % 6 == 5]
    corpus = prepared(case, tmp_path, "\n".join(kept * 8), "\n".join(held), 1000)
    assert (corpus.train.n_sentences, corpus.valid.n_sentences) == (240, 6)
    assert script(corpus) > 0.9
    spelt = "".join(kept + held).replace(" ", "")
    words = [corpus.words[number] for number in corpus.train.tokens]
    assert "".join(words) == "".join(kept * 8).replace(" ", "")
    assert set("".join(corpus.words[3:])) == set(spelt)
    found = perplexities(corpus, tmp_path / "run", 60, 1e-2)
    assert len(found) == 4 and corpus.vocabulary_size > found[0]
    assert found[-1] < 0.75 * found[0] and found[-1] < 0.6 * frequencies(corpus)
    (layers,) = Elmo.from_pretrained(tmp_path / "run" / "best").layers([lines[5]])
    assert layers.shape[0] == 3 and layers.shape[2] == 64


@pytest.mark.parametrize("case", CASES)
def test_real_text(case, tmp_path, shared):
    path = shared / SHARED[case[:2]]
    if not path.is_file():
        pytest.skip(f"there is no {path.name}")
    with lzma.open(path, "rt", encoding="utf-8") as file:
        lines = [file.readline() for _ in range(1500)]
    rest = "".join(line for number, line in enumerate(lines) if number % 15)
    corpus = prepared(case, tmp_path, rest, "".join(lines[::15]), 1000)
    assert corpus.train.n_tokens > 15_000 and script(corpus) > 0.9
    found = perplexities(corpus, tmp_path / "run", 160, 1e-2, batch=32)
    assert len(found) == 4 and corpus.vocabulary_size > found[0]
    assert found[-1] < 0.85 * found[0] and found[-1] < 0.95 * frequencies(corpus)
