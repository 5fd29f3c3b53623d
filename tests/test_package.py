"""The package as its users get it: the wheel, the lazy names, the command."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import h5py
import pytest

import torchelmo
from formats.tiny import random_model, with_targets
from torchelmo.formats import native

ROOT = Path(__file__).resolve().parents[1]
PLAIN = ROOT / "tests" / "fixtures" / "plain"
SCRIPTS = "Scripts" if os.name == "nt" else "bin"
RECIPES = [path for path in (ROOT / "recipes").iterdir() if path.suffix in (".toml", ".py")]
TASK_RECIPES = list((ROOT / "recipes" / "tasks").glob("*.toml"))
WEIGHTS = ROOT / "src" / "torchelmo" / "weights"
HEADS = ROOT / "src" / "torchelmo" / "heads"
WHEEL_LIMIT = 95_000_000  # bytes
HEAVY = ("torch", "h5py", "huggingface_hub", "pyarrow")


def run(*command: object, cwd: Path) -> str:
    """What the command prints; a failure shows both of its streams."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**env, "PYTHONUTF8": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", out, ROOT, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The scripts folder of an environment outside the repository that holds the wheel.

    The dependencies are the ones of the environment the tests run in, reached through a .pth file
    (which Python does not follow into that environment's own .pth files, so that its editable
    torchelmo stays out).
    """
    home = tmp_path_factory.mktemp("outside") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home.parent)
    scripts = home / SCRIPTS
    pip = [sys.executable, "-m", "pip", "--python", scripts / "python"]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=home.parent)
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = Path(run(scripts / "python", "-c", ask, cwd=home.parent).strip())
    ours = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (own / "dependencies.pth").write_text("\n".join(sorted(ours)) + "\n", encoding="utf-8")
    return scripts


@pytest.mark.xdist_group("wheel")
def test_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        licence = next(n for n in names if n.endswith(".dist-info/licenses/LICENSE"))
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
        metadata = archive.read(licence.replace("licenses/LICENSE", "METADATA")).decode()
    assert "License-Expression: Apache-2.0 AND CC-BY-SA-4.0\n" in metadata
    for file in (*WEIGHTS.glob("*/ATTRIBUTION.md"), *HEADS.glob("*/ATTRIBUTION.md")):
        name = file.relative_to(ROOT).as_posix()
        assert f"License-File: {name}\n" in metadata
        assert licence.replace("LICENSE", name) in names
    assert wheel.stat().st_size <= WHEEL_LIMIT
    assert "torchelmo/py.typed" in names
    assert {n.split("/")[0].removesuffix(".dist-info") for n in names} == {
        "torchelmo",
        f"torchelmo-{torchelmo.__version__}",
    }
    assert not [n for n in names if "tests" in n.split("/")]
    source = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src").rglob("*.py")}
    packaged = (*WEIGHTS.glob("*/*"), *HEADS.glob("*/*"))
    source |= {p.relative_to(ROOT / "src").as_posix() for p in packaged}
    assert source <= set(names)
    recipes = {p.relative_to(ROOT).as_posix() for p in (*RECIPES, *TASK_RECIPES)}
    assert "recipes/tasks/ner.toml" in recipes
    assert {f"torchelmo/{path}" for path in recipes} == {
        name for name in names if name.startswith("torchelmo/recipes/")
    }


@pytest.mark.xdist_group("wheel")
def test_the_sources_have_all_that_a_wheel_needs(tmp_path):
    run(
        sys.executable,
        "-m",
        "build",
        "--sdist",
        "--no-isolation",
        "-o",
        tmp_path,
        ROOT,
        cwd=tmp_path,
    )
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {p.relative_to(ROOT).as_posix() for p in (*RECIPES, *TASK_RECIPES)} <= names
    assert {"LICENSE", "README.md", "pyproject.toml", "src/torchelmo/__init__.py"} <= names


def test_the_models_leave_the_wheel_small_enough():
    # Weights hardly compress: what the files take is what the wheel takes.
    package = [p for p in (ROOT / "src").rglob("*") if p.is_file() and p.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in package) <= WHEEL_LIMIT


@pytest.mark.xdist_group("wheel")
def test_models_are_packaged_with_all_their_files(tmp_path):
    """In the sources and, built from them, in the wheel."""
    copy = tmp_path / "copy"
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    shutil.copytree(ROOT / "recipes", copy / "recipes")
    (copy / "src/torchelmo").mkdir(parents=True)
    shutil.copy(ROOT / "src/torchelmo/__init__.py", copy / "src/torchelmo")
    shutil.copy(ROOT / ".gitignore", copy)
    model = copy / "src/torchelmo/weights/heron-small"
    native.write(replace(with_targets(random_model()), attribution="Reeds.\n"), model)
    head = copy / "src/torchelmo/heads/en-herons"
    head.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tags.txt", "README.md", "ATTRIBUTION.md"):
        (head / name).write_text("{}", encoding="utf-8")
    run(sys.executable, "-m", "build", "--no-isolation", "-o", tmp_path, copy, cwd=tmp_path)
    files = {f"torchelmo/weights/heron-small/{path.name}" for path in model.iterdir()}
    assert len(files) == 6 and "torchelmo/weights/heron-small/ATTRIBUTION.md" in files
    files |= {f"torchelmo/heads/en-herons/{path.name}" for path in head.iterdir()}
    (sources,), (wheel,) = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")
    with tarfile.open(sources) as archive:
        assert files <= {name.partition("/src/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as archive:
        assert files <= set(archive.namelist())


@pytest.mark.xdist_group("wheel")
def test_an_installed_package_has_its_recipes(installed, tmp_path):
    ask = "from torchelmo.pretrain.recipe import packaged_recipes as f; print(*f().values())"
    found = [Path(path) for path in run(installed / "python", "-c", ask, cwd=tmp_path).split()]
    assert {path.name for path in found} == {p.name for p in RECIPES if p.suffix == ".toml"}
    assert all(path.is_relative_to(installed.parent) for path in found)
    text = run(installed / "python", "-m", "torchelmo.recipes.tiny_text", cwd=tmp_path)
    assert text == run(sys.executable, ROOT / "recipes" / "tiny_text.py", cwd=tmp_path)


@pytest.mark.xdist_group("wheel")
def test_installed_wheel_embeds_a_file(installed, tmp_path):
    where = run(
        installed / "python", "-c", "import torchelmo; print(torchelmo.__file__)", cwd=tmp_path
    )
    assert Path(where.strip()).is_relative_to(installed.parent)

    command = installed / "torchelmo"
    assert torchelmo.__version__ in run(command, "--version", cwd=tmp_path).split()
    assert "embed" in run(command, "--help", cwd=tmp_path)
    module = run(installed / "python", "-m", "torchelmo", "--version", cwd=tmp_path)
    assert module == run(command, "--version", cwd=tmp_path)

    lines = ["The heron waits", "Rain again , says the tall gardener", "Ünïcode 물 too"]
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    run(command, "embed", "in.txt", "-o", "out.hdf5", "--model", PLAIN, cwd=tmp_path)

    lstm = json.loads((PLAIN / "options.json").read_text(encoding="utf-8"))["lstm"]
    with h5py.File(tmp_path / "out.hdf5", "r") as file:
        assert set(file) == {"0", "1", "2", "sentence_to_index"}
        for number, line in enumerate(lines):
            dataset = file[str(number)]
            tokens = len(line.split())
            assert dataset.shape == (lstm["n_layers"] + 1, tokens, 2 * lstm["projection_dim"])
            assert dataset.dtype == "float32"
        index = json.loads(file["sentence_to_index"][0])
    assert index == {line: str(number) for number, line in enumerate(lines)}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.txt", "out.hdf5"]


@pytest.mark.parametrize(
    "code",
    [
        "import torchelmo; dir(torchelmo)",
        "from torchelmo import InputError",
        "sys.argv = ['torchelmo', '--help']\n"
        "from torchelmo.apps.cli import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code",
    ],
    ids=["import", "light-name", "help"],
)
def test_light_things_import_nothing_heavy(code, tmp_path):
    ask = f"import sys\n{code}\nprint('loaded:', *[m for m in {HEAVY} if m in sys.modules])"
    assert run(sys.executable, "-c", ask, cwd=tmp_path).splitlines()[-1].strip() == "loaded:"


def test_public_names_are_few_and_resolve():
    assert len(torchelmo.__all__) <= 10
    assert dir(torchelmo) == sorted(torchelmo.__all__)
    for name in torchelmo.__all__:
        value = getattr(torchelmo, name)
        if name != "__version__":
            assert value.__name__ == name
            assert getattr(sys.modules[value.__module__], name) is value
    with pytest.raises(AttributeError, match="no attribute 'Embedder'"):
        _ = torchelmo.Embedder


def test_names_stay_unimported_until_used(tmp_path):
    ask = (
        "import sys, torchelmo\n"
        "assert 'torchelmo.nn.scalar_mix' not in sys.modules\n"
        "torchelmo.ScalarMix\n"
        "assert 'torchelmo.nn.scalar_mix' in sys.modules\n"
        "assert 'torchelmo.elmo' not in sys.modules"
    )
    run(sys.executable, "-c", ask, cwd=tmp_path)


def test_version_is_the_metadata():
    assert importlib.metadata.version("torchelmo") == torchelmo.__version__
