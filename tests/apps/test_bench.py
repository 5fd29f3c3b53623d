import dataclasses
import json
import sys
import textwrap
import xml.etree.ElementTree as ET

import pytest
import torch

from bulk.tiny import tiny_model
from torchelmo.apps.bench import arithmetic, embedding, machine, peer, peers, report, training
from torchelmo.apps.bench.run import PARTS, Plan, full, measure, quick
from torchelmo.apps.bench.text import Text, word
from torchelmo.apps.cli import bench
from torchelmo.config import CharacterConfig, ElmoConfig, LstmConfig, WordConfig
from torchelmo.elmo import Elmo
from torchelmo.errors import InputError
from torchelmo.formats import native

CPU = torch.device("cpu")
TINY = Plan(
    tokens=200,
    batch_tokens=(64, None),
    repeat=2,
    singles=3,
    sizes=(100, 200),
    lengths=(5, 20),
    train=training.Run(batch=4, unroll=5, blocks=2, negatives=16, tokens=400),
    limit_size=32,
)


@pytest.fixture(scope="module")
def values():
    return measure(tiny_model(), TINY, CPU)


@pytest.fixture(scope="module")
def result(values):
    return report.record(
        values, name="x", command="c", model="tiny", data="some", device=CPU, seed=0
    )


def numbers(value):
    """Every number in nested data."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for one in value for number in numbers(one)]
    return [value] if isinstance(value, int | float) else []


# The text.


def test_the_same_seed_gives_the_same_text():
    text = list(Text(3).sentences(500))
    assert text == list(Text(3).sentences(500))
    assert text != list(Text(4).sentences(500))
    assert sum(map(len, text)) == 500
    assert all(text)


def test_words_come_back_as_often_as_in_english():
    text = Text()
    words = [word for sentence in text.sentences(30_000) for word in sentence]
    assert text.types == len(set(words))
    assert 0.8 < text.types / (2 * 30_000**0.79) < 1.2
    counts = sorted((words.count(w) for w in set(words[:2000])), reverse=True)
    assert counts[0] > 10 * counts[50] > 10
    assert 3 < sum(map(len, words)) / len(words) < 6


def test_a_text_goes_on_where_it_was():
    text = Text()
    list(text.sentences(300))
    assert text.tokens == 300
    list(text.sentences(200))
    assert text.tokens == 500
    assert text.types > 200


def test_ranks_are_different_words():
    assert len({word(rank) for rank in range(1, 50_000)}) == 49_999
    assert len(word(1)) < len(word(10**6))


# Arithmetic.


@pytest.mark.parametrize(
    ("name", "token", "spelling"),
    [
        # 2 directions, 2 layers, 2 x 9 x cells x projection; filters over their windows:
        # 2 x 16 x (32 x 50 + 64 x 49 + 192 x 48 + 512 x 47 + 1280 x 46 + 3072 x 45 + 7168 x 44),
        # highways of 2 x 2048 x 4096, and 2 x 2048 x projection.
        ("small", 9.437184, 17.616896 + 16.777216 + 0.524288),
        ("original", 150.994944, 17.616896 + 2 * 16.777216 + 2.097152),
    ],
)
def test_arithmetic_of_the_published_sizes(name, token, spelling):
    config = ElmoConfig.preset(name)
    assert arithmetic.per_token(config) / 1e6 == pytest.approx(token, abs=1e-9)
    assert arithmetic.per_word(config) / 1e6 == pytest.approx(spelling, abs=1e-9)


def test_arithmetic_of_a_model_worked_by_hand():
    config = ElmoConfig(
        characters=CharacterConfig(dim=4, filters=((1, 3), (2, 5)), highways=1, max_characters=10),
        lstm=LstmConfig(cells=6, projection=2, layers=1),
    )
    assert arithmetic.per_token(config) == 2 * 2 * (24 * 4 + 6 * 2)
    rest = 2 * 8 * 8 + 8 * 2  # highway and projection
    assert arithmetic.per_word(config) == 2 * (10 * 4 * 3 + 9 * 8 * 5 + rest)
    assert arithmetic.per_word(config, 3) == 2 * (4 * 4 * 3 + 4 * 8 * 5 + rest)
    assert arithmetic.per_word(config, 10) == arithmetic.per_word(config)
    # "é" is two bytes, and two marks
    assert arithmetic.of_words(config, {"a", "é"}) == sum(
        arithmetic.per_word(config, n) for n in (3, 4)
    )
    assert arithmetic.per_trained_token(config, 7) == 3 * (432 + 2 * 2 * 2 * 8)


def test_arithmetic_without_characters_or_projection():
    config = ElmoConfig(
        characters=None,
        words=WordConfig(words=9, dim=4),
        token_projection=False,
        lstm=LstmConfig(cells=4, projection=4, layers=1, project=False),
    )
    assert arithmetic.per_token(config) == 2 * 2 * 16 * 8
    assert arithmetic.per_word(config) == 0


# Measuring.


def test_every_part_is_measured(values):
    assert set(values) == {"load", "text", "mflop", "memory", *PARTS} - {"peers"}
    assert values["text"]["tokens"] == 200
    rows = [(r["words"], r["batch_tokens"], r["to"], r["precision"]) for r in values["embed"]]
    assert rows == [
        (words, size, "host", precision)
        for precision, size in (
            ("float32", 64),
            ("float32", None),
            *((kind, None) for kind in embedding.precisions(CPU)[1:]),
        )
        for words in ("cold", "seen")
    ]
    low = [row for row in values["embed"] if row["precision"] != "float32"]
    assert low and all(0.98 < row["cosine"] <= 1.0001 for row in low)
    assert set(values["limits"]) == {"float32", "bf16", "copy"}
    assert set(values["latency"]) == {"cold", "seen"}
    scale = values["scale"]
    assert [row["tokens"] for row in scale["embed"]] == [100, 200]
    assert [row["tokens"] for row in scale["prepare"]] == [100, 200]
    assert [row["words"] for row in scale["sentence"]] == [5, 20]
    (train,) = values["train"]
    assert (train["precision"], train["steps"], train["negatives"]) == ("float32", 2, 16)
    assert all(
        number > 0 for key, part in values.items() if key != "load" for number in numbers(part)
    )


def test_speeds_agree_with_each_other(values):
    for row in [*values["embed"], *values["train"]]:
        assert row["tokens_per_second"] >= row["median"]
        if limit := values["limits"].get(row["precision"]):  # there is none of int8
            assert row["share"] == pytest.approx(row["gflops"] / limit)
    seen = values["embed"][1]
    work = values["mflop"]["per_token"] * seen["tokens_per_second"] / 1e3
    assert seen["gflops"] == pytest.approx(work)


def test_an_embedder_has_seen_no_word_of_the_text():
    text = list(Text().sentences(50))
    elmo = embedding.fresh(tiny_model(), CPU, embedding.Setting(), text)
    words = {word for words in text for word in words}
    assert not words & set(elmo.encoder._cache.slots)


def test_each_precision_is_measured_where_there_are_several(monkeypatch):
    asked = []

    def stand_in(model, **options):
        asked.append(options)
        return Elmo(model)

    monkeypatch.setattr(embedding, "Elmo", stand_in)
    monkeypatch.setattr(embedding, "precisions", lambda device: ("float32", "bf16"))
    text = list(Text().sentences(60))
    rows = embedding.throughput(tiny_model(), text, CPU, batch_tokens=(64, None), repeat=1)
    kinds = [(row["precision"], row["batch_tokens"]) for row in rows[::2]]
    assert kinds == [("float32", 64), ("float32", None), ("bf16", None)]
    assert {"precision": "bf16"} in asked
    assert [row.get("cosine") for row in rows[:4]] == [None] * 4
    assert rows[4]["cosine"] == pytest.approx(1)


def test_windows_hold_the_text_in_order():
    text = list(Text().sentences(300))
    pieces = list(embedding.windows(text, 64))
    assert [words for piece in pieces for words in piece] == text
    assert all(sum(map(len, piece)) >= 64 for piece in pieces[:-1])


def test_parts_that_are_not_asked_for_are_left_out():
    plan = dataclasses.replace(TINY, parts=("latency",))
    asked = []
    values = measure(tiny_model(), plan, CPU, text=[["a", "heron"]], note=asked.append)
    assert asked == ["latency"]
    assert set(values) == {"load", "text", "mflop", "latency"}
    assert values["text"] == {"sentences": 1, "tokens": 2, "distinct": 2}


def test_a_model_of_words_is_trained_too():
    config = ElmoConfig(
        characters=None,
        words=WordConfig(words=30, dim=6),
        token_projection=False,
        lstm=LstmConfig(cells=8, projection=6),
    )
    assert training.training(config, TINY.train, CPU)["tokens_per_second"] > 0


def test_plans():
    for device in (CPU, torch.device("cuda")):
        assert quick(device).tokens < full(device).tokens
        assert len(quick(device).sizes) < len(full(device).sizes)


def test_memory_is_counted():
    machine.reset_peak(CPU)
    before = machine.peak(CPU)
    held = torch.ones(30_000_000)
    after = machine.peak(CPU)
    assert after["process_mb"] >= before["process_mb"] > 10
    assert held.sum() > 0


# What is said of it.


def test_table_and_json_agree(result):
    shown = report.table(result)
    found = json.loads(json.dumps(result))["values"]
    for row in found["embed"]:
        assert report._number(row["tokens_per_second"]) in shown
        assert f"{row.get('share', 0):.0%}" in shown or row["precision"] == "int8"
    assert report._number(found["latency"]["cold"]["median_ms"]) in shown
    assert report._number(found["train"][0]["median"]) in shown
    assert report._number(found["limits"]["copy"]) in shown
    for rows in found["scale"].values():
        assert report._number(rows[1]["microseconds_per_token"]) in shown
    titles = [line for line in shown.splitlines()[3:] if line and not line.startswith(" ")]
    assert len(titles) == len(PARTS) + 1  # memory has a block, scale two; there are no peers


def test_a_result_has_the_fields_of_results(result):
    wanted = "name date commit command hardware torch model data metric seeds values".split()
    assert list(result) == wanted


def test_the_picture_has_a_bar_for_each_speed(result):
    root = ET.fromstring(report.chart(result))
    shown = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    for row in [*result["values"]["embed"], *result["values"]["train"]]:
        assert report._number(row["tokens_per_second"]) in shown
    assert "200" in shown  # the longest text
    assert len(list(root.iter("{http://www.w3.org/2000/svg}circle"))) == 2


# Other programs.

STAND_IN = """
import json, sys
from torchelmo.elmo import Elmo
name, folder, text, batch, threads, device = sys.argv[1:]
lines = open(text, encoding="utf-8").read().splitlines()
elmo = Elmo.from_pretrained(folder, device=device)
answer = {"version": "1 (a stand-in)"}
while True:
    print(json.dumps(answer), flush=True)
    asked = json.loads(sys.stdin.readline() or sys.exit())
    answer = {"seconds": 4.0, "each": [0.5] * asked.get("limit", 1), "peak_mb": 1.0}
    if "vectors" in asked:
        answer = {"vectors": elmo.layers([lines[0].split()])[0].tolist()}
"""


def long_enough(seed=0):
    """bilm-tf's files hold models of 50 characters."""
    config = dataclasses.replace(
        tiny_model().config,
        characters=CharacterConfig(dim=4, filters=((1, 4), (2, 6), (3, 8)), highways=1),
    )
    torch.manual_seed(seed)
    bilm = embedding.BiLM(config)
    return embedding.Model(config, bilm.state_dict())


def test_beside_a_peer(tmp_path, monkeypatch):
    script = tmp_path / "stand_in.py"
    script.write_text(textwrap.dedent(STAND_IN), encoding="utf-8")
    monkeypatch.setattr(peer, "__file__", str(script))
    plan = dataclasses.replace(
        TINY,
        parts=("peers",),
        pythons={"allennlp": sys.executable},
        singles=4,
        peer_batches=(2, 8),
    )
    values = measure(long_enough(), plan, CPU)
    ours, other, larger = values["peers"]
    assert (ours["name"], other["name"], larger["name"]) == ("torchelmo", "allennlp", "allennlp")
    assert (other["batch"], larger["batch"]) == (2, 8)
    assert other["version"] == "1 (a stand-in)"
    assert other["tokens_per_second"] == other["median"] == 200 / 4
    assert other["latency"] == {"median_ms": 500.0, "p90_ms": 500.0}
    assert other["times"]["cold"] == pytest.approx(ours["median"] / 50)
    assert other["times"]["seen"] == pytest.approx(ours["seen"]["median"] / 50)
    assert other["times"]["latency"] == pytest.approx(500 / ours["latency"]["median_ms"])
    assert other["difference"] < 1e-6
    shown = report.table(
        report.record(values, name="x", command="", model="m", data="d", device=CPU, seed=0)
    )
    assert "torchelmo, seen" in shown
    assert "x cold" in shown


def test_a_peer_that_fails_says_why(tmp_path):
    with pytest.raises(InputError, match=r"--peer allennlp stopped: FileNotFoundError: .*text"):
        peers.Peer("allennlp", sys.executable, tmp_path / "model", tmp_path / "text", 32, "cpu")


def test_a_peer_is_timed_batch_by_batch():
    batches, resets = [], []
    program = peer.Program(batches.append, lambda: resets.append(1), "1")
    text = [["a", "b", "c"], ["a"], ["b", "c"]]
    found = peer.timed(program, text, 2)
    assert batches == [[["a"], ["b", "c"]], [["a", "b", "c"]]]  # by length
    assert len(resets) == len(found["each"]) == 2
    assert found["seconds"] == sum(found["each"])
    peer.timed(program, text, 1)
    assert batches[2:] == [[sentence] for sentence in text]


# The command.


def test_command(run, model_folder, tmp_path):
    only = "embed,latency,scale"
    small = ("--tokens", "150", "--repeat", "1", "--scale", "1e2", "--only", only)
    done = run(
        "bench", "--model", model_folder, *small, "--json", "-o", "speed/a.json", "--plot", "a.svg"
    )
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found == json.loads((tmp_path / "speed/a.json").read_text(encoding="utf-8"))
    assert found["name"] == "speed-a"
    assert found["model"] == "tiny, 12/6"
    assert found["command"].startswith("torchelmo bench --model tiny --tokens 150")
    assert found["data"].startswith("made-up text: ")
    assert set(found["values"]) == {"load", "text", "mflop", "memory", *only.split(",")}
    assert (tmp_path / "a.svg").read_text(encoding="utf-8").startswith("<svg ")
    assert not list(tmp_path.glob("**/*.tmp"))


def test_command_with_a_text_of_ones_own(run, model_folder, tmp_path):
    (tmp_path / "my.txt").write_text("The heron waits\n\nRain again\n", encoding="utf-8")
    done = run("bench", "--model", model_folder, "--text", "my.txt", "--only", "latency")
    assert "my.txt: 2 sentences, 5 tokens, 5 distinct" in done.out
    assert "one sentence at a time" in done.out


def test_parts_are_those_that_are_measured():
    assert bench.parse_parts(",".join(PARTS)) == PARTS


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "embd"], "--only has 'embd', the nearest is 'embed'"),
        (["--scale", "1e3,x"], "--scale is '1e3,x', expected whole numbers"),
        (["--batch-tokens", "0"], "--batch-tokens is '0', expected whole numbers"),
        (["--tokens", "0"], "--tokens is 0, expected 1 or more"),
        (["--text", "no.txt"], "there is no file no.txt"),
        (["-o", "speed.txt"], "speed.txt does not end in .json"),
        (["--plot", "speed.png"], "speed.png does not end in .svg"),
        (["--peer", "allennlp"], "--peer is 'allennlp', expected NAME=PYTHON"),
        (["--peer", "alennlp=python"], "names 'alennlp', the nearest is 'allennlp'"),
        (["--peer", "allennlp=no/python"], "no/python is no program that can be run"),
        (["--device", "abacus"], "device 'abacus' cannot be used here"),
        (["--model", "no-such-model"], "no-such-model"),
    ],
)
def test_bad_input_is_one_sentence(run, arguments, said):
    assert said in run("bench", *arguments, "--offline").sentence


def test_a_folder_is_meant_before_a_size(run, tmp_path):
    native.write(tiny_model(), tmp_path / "small")
    done = run("bench", "--model", "small", "--only", "latency", "--tokens", "50", "--json")
    assert json.loads(done.out)["model"] == "small, 12/6"


def test_help_fits_a_screen(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("bench", "--help").out.splitlines()
    assert len(lines) <= 32
    assert max(map(len, lines)) <= 80
    assert "Example: torchelmo bench" in lines[-1]
