import subprocess
import sys

import pytest

import torchelmo
from torchelmo.apps import cli
from torchelmo.apps.cli import console

HEAVY = ("torch", "h5py", "huggingface_hub", "pyarrow", "numpy")


@pytest.mark.parametrize("command", ["embed", "convert", "models"])
def test_help_fits_a_screen_and_shows_an_example(run, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = run(command, "--help")
    lines = result.out.splitlines()
    assert result.code == 0
    assert len(lines) <= 32
    assert max(map(len, lines)) <= 80
    assert f"Example: torchelmo {command}" in lines[-1]


def test_top_level(run):
    assert run("--version").out == f"torchelmo {torchelmo.__version__}\n"
    for result in (run("--help"), run("-h"), run()):
        assert result.code == 0
        for command in ("embed", "convert", "models"):
            assert f"\n  {command} " in result.out


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_and_version_import_nothing_heavy(argument):
    code = (
        f"import sys; sys.argv = ['torchelmo', {argument!r}]\n"
        "from torchelmo.apps.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print([m for m in {HEAVY} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["embd"], "'embd'"),
        (["embed"], "FILE"),
        (["embed", "x"], "--output"),
        (["embed", "x", "-o", "y.npz", "--layer", "top"], "--layer"),
        (["embed", "x", "-o", "y.npz", "--state", "keep"], "'reset', 'carry'"),
        (["embed", "x", "-o", "y.npz", "--batch-tokens", "many"], "--batch-tokens"),
        (["convert", "a", "b"], "--to"),
        (["convert", "a", "b", "--to", "onnx"], "onnx"),
    ],
)
def test_wrong_arguments_are_one_line(run, arguments, word):
    sentence = run(*arguments).sentence
    assert word in sentence
    assert "--help`)" in sentence


def failing(monkeypatch, error):
    def stand_in(**_):
        raise error

    monkeypatch.setattr(cli, "app", stand_in)


def test_what_the_system_refuses_is_one_line(run, monkeypatch):
    failing(monkeypatch, PermissionError(13, "Permission denied", "secret.txt"))
    assert run().sentence == "torchelmo: secret.txt: Permission denied"


def test_line_breaks_in_an_error_are_taken_out(run, monkeypatch):
    failing(monkeypatch, torchelmo.InputError("two\n  lines"))
    assert run().sentence == "torchelmo: two lines"


def test_interrupted(run, monkeypatch):
    failing(monkeypatch, KeyboardInterrupt())
    assert run()[::2] == (130, "torchelmo: interrupted\n")
    failing(monkeypatch, console.Interrupted("interrupted: 3 lines kept"))
    assert run()[::2] == (130, "torchelmo: interrupted: 3 lines kept\n")


def test_a_reader_that_went_away_is_no_error(run, monkeypatch):
    failing(monkeypatch, BrokenPipeError())
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    assert run()[::2] == (141, "")


def test_a_mistake_of_ours_is_not_hidden(run, monkeypatch):
    failing(monkeypatch, ZeroDivisionError())
    monkeypatch.setattr(sys, "argv", ["torchelmo"])
    with pytest.raises(ZeroDivisionError):
        cli.main()
