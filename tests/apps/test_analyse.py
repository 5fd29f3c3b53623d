import json
import shutil

import pytest

from analysis.planted import write
from analysis.test_pos import FILES as TREEBANK
from analysis.test_wic import ENGLISH, KOREAN
from analysis.test_wsd import FILES as SENSES


@pytest.fixture
def data(tmp_path):
    homographs = "w\ts\tp\tt\n배\t1\ttrain\t[배]가 고프다\n배\t1\tdev\t[배]가 곯다\n"
    return write(
        tmp_path / "data",
        {
            **{f"wic/{name}": text for name, text in ENGLISH.items()},
            **{f"kobest/{name}": text for name, text in KOREAN.items()},
            **{f"wsd/{name}": text for name, text in SENSES.items()},
            **{f"pos/{name}": text for name, text in TREEBANK.items()},
            "homographs/h.tsv": homographs,
            "vectors.txt": "bank 1 2\nrich 2 1\nfish 0 1\ndog 1 1\n",
        },
    )


def ask(run, probe, model, path, *arguments):
    result = run("analyse", probe, model, "--data", path, "--device", "cpu", *arguments)
    assert result.code == 0, result.err
    return result


@pytest.mark.parametrize(
    ("probe", "path", "figure"),
    [
        ("wic", "wic", "test"),
        ("wic", "kobest", "test"),
        ("wsd", "wsd", "ALL"),
        ("homographs", "homographs", "centroid"),
        ("pos", "pos", "test"),
    ],
)
def test_every_probe_gives_every_layer_and_the_static_vectors(
    run, model_folder, data, probe, path, figure
):
    vectors = data / "vectors.txt"
    result = ask(run, probe, model_folder, data / path, "--vectors", vectors, "--json")
    found = json.loads(result.out)["values"]
    assert {"0", "1", "2", "average"} <= set(found["layers"])
    assert "vectors.txt, word" in found["baselines"]
    for figures in (*found["layers"].values(), *found["baselines"].values()):
        assert 0 <= figures[figure] <= 100


def test_a_result_file_says_how_it_came_about(run, model_folder, data, tmp_path):
    out = tmp_path / "results" / "analysis" / "forms-en.json"
    result = ask(run, "forms", model_folder, "en", "-o", out)
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["name"] == "analysis-forms-en"
    assert found["command"].startswith("torchelmo analyse forms")
    assert found["model"] == "tiny, 12/6" and found["data"] == "forms, en: 20 items"
    assert found["seeds"] == [] and found["hardware"] and found["torch"]
    assert len(found["values"]["layers"]["0"]["cosines"]) == 20
    assert result.out.splitlines()[0] == "tiny, 12/6; forms, en: 20 items"
    assert "layer 0" in result.out and "chance" in result.out


@pytest.mark.parametrize(("language", "word"), [("en", "play"), ("ko", "배")])
def test_neighbours_as_a_result_and_as_a_page(run, model_folder, data, tmp_path, language, word):
    arguments = ["neighbours", model_folder, "--language", language, "--device", "cpu"]
    arguments += ["--vectors", data / "vectors.txt"]
    result = run("analyse", *arguments, "-o", "out/neighbours-xx.json")
    assert result.code == 0, result.err
    found = json.loads((tmp_path / "out/neighbours-xx.json").read_text(encoding="utf-8"))
    assert found["name"] == "out-neighbours-xx"
    assert found["data"].startswith(f"{language}: 20 words with ")
    assert list(found["values"]["layers"]) == ["0", "1", "2"]
    assert list(found["values"]["baselines"]) == ["chance", "vectors.txt"]
    assert len(found["values"]["neighbours"]["scores"]) == 20
    assert "layer 2" in result.out and "chance" in result.out
    assert run("analyse", *arguments, "-o", "page.md").code == 0
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert page.startswith(f"tiny, 12/6; {language}: 20 words") and f"### {word}\n" in page
    assert ("vectors.txt, whatever the sentence" in page) == (language == "en")


def test_our_own_examples_go_by_the_language(run, model_folder, tmp_path):
    found = json.loads(run("analyse", "forms", model_folder, "--language", "ko", "--json").out)
    assert found["data"] == "forms, ko: 20 items"
    shutil.copytree(model_folder, tmp_path / "ko-heron")
    found = json.loads(run("analyse", "forms", "ko-heron", "--json").out)
    assert found["data"] == "forms, ko: 20 items"


def test_development_alone(run, model_folder, data):
    result = ask(run, "pos", model_folder, data / "pos", "--dev", "--tags", "xpos", "--json")
    found = json.loads(result.out)
    assert list(found["values"]["layers"]["0"]) == ["dev", "dev unseen"]
    assert found["data"].startswith("xx, XPOS") and found["seeds"] == [1]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["wic", "M", "--data", "nowhere"], "there is no file or folder nowhere"),
        (["wic", "M", "--data", "data/pos"], "holds no train.data.txt"),
        (["forms", "M", "--data", "en", "-o", "x.txt"], "x.txt does not end in .json"),
        (["pos", "M", "--data", "data/pos", "--seeds", "0"], "--seeds is 0"),
        (["sense", "M", "--data", "en"], "'sense'"),
        (["wic", "M"], "wic needs its data: give --data PATH"),
        (["neighbours", "M", "--data", "en"], "give --language, not --data"),
        (["neighbours", "M", "--language", "ja"], "'ja'"),
        (["neighbours", "M", "-o", "x.txt"], "x.txt does not end in .json or .md"),
        (["wic", "M", "--data", "data/wic", "-o", "x.md"], "x.md does not end in .json"),
        (["forms", "M", "--data", "en", "--vectors", "no.txt"], "there is no file no.txt"),
    ],
)
def test_refusals_are_one_line(run, data, arguments, reason):
    assert reason in run("analyse", *arguments).sentence
