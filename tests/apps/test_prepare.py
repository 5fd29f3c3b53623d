import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from bulk.tiny import command, left_behind
from pretrain.generated import measurable, peak_memory, zipf_text
from torchelmo.pretrain import memory
from torchelmo.pretrain import prepare as library
from torchelmo.pretrain.corpus import Corpus

TEXT = "".join(
    f"The {colour} boat came in. Nobody rowed it.\nIt was {colour}, they said.\n\n"
    for colour in "red blue green grey white black brown gold pink teal".split()
)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_help_fits_a_screen(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = run("prepare", "--help")
    lines = result.out.splitlines()
    assert result.code == 0
    assert len(lines) <= 32
    assert max(map(len, lines)) <= 80
    assert "Example: torchelmo prepare" in lines[-1]


def test_report(run, text, tmp_path):
    result = run("prepare", "in.txt", "-o", "corpus", "--valid-share", "0.2", "--vocab-size", "12")
    assert (result.code, result.err) == (0, "")
    corpus = Corpus.open(tmp_path / "corpus")
    lines = result.out.splitlines()
    assert lines[0].startswith("corpus: 0.0 MB in ")
    train, valid = corpus.facts["train"], corpus.facts["valid"]
    assert lines[1].split()[:3] == ["training", str(train["tokens"]), "tokens"]
    assert lines[2].split()[:3] == ["validation", str(valid["tokens"]), "tokens"]
    assert f"{100 * valid['unknown'] / valid['tokens']:.2f} % unknown" in lines[2]
    assert f"12 of {corpus.types} distinct words, {corpus.facts['coverage']:.2f} %" in lines[3]
    assert left_behind(tmp_path, "in.txt") == ["corpus"]


def test_json(run, text, tmp_path):
    found = json.loads(run("prepare", "in.txt", "-o", "corpus", "--json").out)
    facts = Corpus.open(tmp_path / "corpus").facts
    assert found["train"] == facts["train"]
    assert found["valid"] == facts["valid"]
    assert found["valid"]["documents"] == 1
    assert (found["types"], found["vocabulary"]) == (facts["types"], facts["vocabulary"])
    assert found["sha256"] == facts["sha256"]
    assert found["unknown_valid"] == round(
        100 * facts["valid"]["unknown"] / facts["valid"]["tokens"], 4
    )
    assert found["bytes"] == sum(p.stat().st_size for p in (tmp_path / "corpus").iterdir())


def test_memory_for_training(run, tmp_path, monkeypatch):
    zipf_text(tmp_path / "in.txt", 120_000, types=3_000)
    found = json.loads(run("prepare", "in.txt", "-o", "corpus", "--json").out)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    needed = found["training_memory"]
    assert {name: (facts["device"], facts["batch"]) for name, facts in needed.items()} == {
        "small": (device, 1024),
        "original": (device, 384),
    }
    # Weights and what the optimizer keeps: three numbers a parameter with AdamW, two with Adagrad.
    small = 13_593_296 + found["vocabulary"] * 129
    original = 93_600_848 + found["vocabulary"] * 513
    assert 2e10 > needed["small"]["bytes"] > 3 * 4 * small
    assert 2e10 > needed["original"]["bytes"] > 2 * 4 * original

    def stand_in(config, recipe, vocabulary, *, step, **_):
        assert vocabulary == found["vocabulary"]
        assert config.lstm.cells == {1024: 1024, 384: 4096}[step.sides["forward"].index.shape[1]]
        return SimpleNamespace(total=recipe.train.batch * 10**7)

    monkeypatch.setattr(memory, "estimate", stand_in)
    lines = run("prepare", "in.txt", "-o", "again").out.splitlines()
    assert lines[4] == f"memory      to train on {device}: small 10.2 GB (batch 1024), " + (
        "original 3.8 GB (batch 384)"
    )
    # Filters wider than words are long, and a text that is shorter than a batch: nothing is said.
    short = run("prepare", "in.txt", "-o", "short", "--max-characters", "5")
    assert (short.code, len(short.out.splitlines())) == (0, 4)
    (tmp_path / "tiny.txt").write_text(TEXT, encoding="utf-8")
    assert (
        json.loads(run("prepare", "tiny.txt", "-o", "tiny", "--json").out)["training_memory"] == {}
    )


def test_every_option_arrives(run, text, tmp_path):
    asked = {
        "tokenizer": "whitespace", "sentences": "lines", "form": "text", "field": "body",
        "block_lines": 3, "characters": "codepoints", "max_characters": 9, "alphabet_size": 20,
        "alphabet_min_count": 3, "vocab_size": 9, "min_count": 2, "valid_share": 0.3, "seed": 5,
        "tokenized_by": "words 7",
    }  # fmt: skip
    assert set(asked) == set(library.PrepareOptions.__dataclass_fields__)
    options = [
        part
        for name, value in asked.items()
        for part in ("--" + {"form": "format"}.get(name, name.replace("_", "-")), value)
    ]
    assert run("prepare", "in.txt", "-o", "corpus", "--workers", "1", *options).code == 0
    corpus = Corpus.open(tmp_path / "corpus")
    assert corpus.facts["settings"] == {**asked, "vocabulary_given": False}
    assert corpus.characters.shape[1] == 9


def test_standard_input_is_like_a_file(run, text, tmp_path, monkeypatch):
    run("prepare", "in.txt", "-o", "a")
    stdin = io.TextIOWrapper(io.BytesIO(TEXT.encode()), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", stdin)
    assert run("prepare", "-", "-o", "b").code == 0
    assert Corpus.open(tmp_path / "a").sha256 == Corpus.open(tmp_path / "b").sha256
    assert "given twice" in run("prepare", "-", "-", "-o", "c").sentence


def test_validation_text_and_vocabulary(run, text, tmp_path):
    (tmp_path / "v.txt").write_text("A red boat.\n", encoding="utf-8")
    (tmp_path / "w.txt").write_text("A blue one.\n", encoding="utf-8")
    (tmp_path / "vocab.txt").write_text("<S>\n</S>\n<UNK>\nboat\nred\n", encoding="utf-8")
    arguments = "--valid", "v.txt", "--valid", "w.txt", "--vocabulary", "vocab.txt"
    found = json.loads(run("prepare", "in.txt", "-o", "corpus", *arguments, "--json").out)
    assert (found["valid"]["documents"], found["valid"]["unknown"]) == (2, 6)
    assert Corpus.open(tmp_path / "corpus").vocabulary[3:] == ["boat", "red"]
    both = run("prepare", "in.txt", "-o", "b", "--valid", "v.txt", "--valid-share", "0.1")
    assert "--valid and --valid-share were both given" in both.sentence


def test_warnings_are_one_line(run, tmp_path):
    (tmp_path / "in.txt").write_text("a b\n", encoding="utf-8")
    result = run("prepare", "in.txt", "-o", "corpus")
    assert result.code == 0
    (line,) = result.err.splitlines()
    assert line.startswith("torchelmo: warning: nothing is set aside for validation")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["Missing argument", "FILE"]),
        (["in.txt"], ["--output"]),
        (["nowhere.txt", "-o", "c"], ["no file or folder nowhere.txt"]),
        (["in.txt", "-o", "c", "--tokenizer", "wrods"], ["'wrods'", "did you mean 'words'"]),
        (["in.txt", "-o", "c", "--sentences", "none"], ["'none'", "'split', 'lines'"]),
        (["in.txt", "-o", "c", "--characters", "letters"], ["'letters'", "jamo"]),
        (["in.txt", "-o", "c", "--valid-share", "1"], ["valid-share is 1.0"]),
        (["in.txt", "-o", "c", "--workers", "0"], ["--workers is 0, expected 1 or more"]),
        (["in.txt", "-o", "c", "--vocab-size", "2"], ["vocab-size is 2, expected 4"]),
        (["empty.txt", "-o", "c"], ["there is no text in empty.txt"]),
        (["bad.gz", "-o", "c"], ["bad.gz is not a whole gzip file"]),
        (["bad.jsonl", "-o", "c"], ["line 1 of bad.jsonl has no field 'text'", "'txt'"]),
        (["in.txt", "-o", "c", "--vocabulary", "in.txt"], ["in.txt: the vocabulary has no <S>"]),
        (["in.txt", "-o", "taken"], ["taken exists and is not empty"]),
        (["in.txt", "-o", "taken", "--overwrite"], ["'notes'", "no file of a prepared corpus"]),
        (["in.txt", "-o", "in.txt"], ["in.txt is a file, expected the name of a folder"]),
    ],
)
def test_bad_input_is_one_sentence(run, text, tmp_path, arguments, words):
    (tmp_path / "empty.txt").write_bytes(b"\n")
    (tmp_path / "bad.gz").write_bytes(b"not gzip")
    (tmp_path / "bad.jsonl").write_bytes(b'{"txt": "a"}\n')
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes").write_bytes(b"")
    before = sorted(os.listdir(tmp_path))
    sentence = run("prepare", *arguments).sentence
    for word in words:
        assert word in sentence
    assert sorted(os.listdir(tmp_path)) == before


def test_progress_on_a_terminal(run, text, monkeypatch):
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: True, raising=False)
    monkeypatch.setattr(library, "CHUNK", 100)
    result = run("prepare", "in.txt", "-o", "corpus", "--workers", "1")
    assert result.code == 0
    assert "words" in result.err


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on file sizes there")
def test_a_full_disk(tmp_path):
    """Files may grow to 30 KB, less than the spelling table needs."""
    import resource

    text = zipf_text(tmp_path / "in.txt", 100_000, types=5_000)
    line, env = command("prepare", text, "-o", tmp_path / "corpus", "--workers", "2")

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))

    done = subprocess.run(
        line, env=env, preexec_fn=limit, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    (sentence,) = done.stderr.splitlines()
    assert "corpus cannot be written: File too large" in sentence
    assert left_behind(tmp_path, "in.txt") == []


@pytest.mark.skipif(not measurable, reason="memory is read from /proc")
def test_killed_runs_leave_no_process_and_the_next_removes_the_rest(tmp_path):
    text = zipf_text(tmp_path / "in.txt", 12_000_000, types=50_000)
    line, env = command("prepare", text, "-o", tmp_path / "corpus", "--workers", "2")
    for seed in range(2):
        with subprocess.Popen(line, env=env, stderr=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + 60
            while not list(tmp_path.glob(".corpus.*.partial/work/*.tokens")):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(random.Random(seed).random() / 4)
            family = _descendants(process.pid)
            os.kill(process.pid, signal.SIGKILL)
        while any(map(_alive, family)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert len(left_behind(tmp_path, "in.txt")) == 1
    small = tmp_path / "small.txt"
    small.write_text(TEXT, encoding="utf-8")
    line, env = command("prepare", small, "-o", tmp_path / "corpus")
    subprocess.run(line, env=env, check=True, stdout=subprocess.DEVNULL)
    assert left_behind(tmp_path, "in.txt", "small.txt") == ["corpus"]


def _descendants(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
        children = [int(child) for child in file.read().split()]
    return children + [grand for child in children for grand in _descendants(child)]


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not measurable, reason="memory is read from /proc")
def test_memory_does_not_grow_with_the_text(tmp_path):
    """With chunks of 1 MB: ten of them have all buffers in use, forty take no more."""
    peaks = []
    for size in (10_000_000, 40_000_000):
        text = zipf_text(tmp_path / f"{size}.txt", size, types=20_000)
        line, env = command("prepare", text, "-o", tmp_path / f"{size}", "--workers", "1")
        small = "from torchelmo.pretrain import prepare as p; p.CHUNK = 1 << 20"
        # Without the estimate for training, which comes after it all and needs torch.
        quiet = "from torchelmo.apps.cli import prepare as q; q.RECIPES = ()"
        line[2] = f"{small}; {quiet}; {line[2]}"
        peaks.append(peak_memory(line, env=env)[1])
    assert peaks[1] - peaks[0] < 10e6
