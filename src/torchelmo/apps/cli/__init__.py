"""`torchelmo COMMAND`: a thin shell over plain functions, a file a command.

Errors that a user can cause are one line on standard error, with exit code 2 and no traceback.
Commands import what they need when they run, so that `--help` is there at once.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Annotated

import typer

from torchelmo import __version__
from torchelmo.apps.cli import (
    analyse,
    bench,
    console,
    convert,
    embed,
    evaluate,
    experiment,
    finetune,
    models,
    perplexity,
    predict,
    prepare,
    pretrain,
    train,
)
from torchelmo.errors import InputError, MissingExtra

app = typer.Typer(
    help="ELMo: deep contextual word vectors.",
    epilog="Example: torchelmo embed sentences.txt -o vectors.hdf5 --model FOLDER",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("embed", epilog=embed.EXAMPLE)(embed.embed)
app.command("convert", epilog=convert.EXAMPLE)(convert.convert)
app.command("perplexity", epilog=perplexity.EXAMPLE)(perplexity.perplexity)
app.command("prepare", epilog=prepare.EXAMPLE)(prepare.prepare)
app.command("pretrain", epilog=pretrain.EXAMPLE)(pretrain.pretrain)
app.command("finetune", epilog=finetune.EXAMPLE)(finetune.finetune)
app.command("train", epilog=train.EXAMPLE)(train.train)
app.command("evaluate", epilog=evaluate.EXAMPLE)(evaluate.evaluate)
app.command("predict", epilog=predict.EXAMPLE)(predict.predict)
app.command("experiment", epilog=experiment.EXAMPLE)(experiment.experiment)
app.command("analyse", epilog=analyse.EXAMPLE)(analyse.analyse)
app.command("bench", epilog=bench.EXAMPLE)(bench.bench)
app.command("models", epilog=models.EXAMPLE)(models.models)

# What is wrong with the arguments; typer's own copy of this class has moved between versions.
UsageError = typer.BadParameter.__mro__[1]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"torchelmo {__version__}")
        raise typer.Exit


@app.callback()
def _app(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Run the command that the arguments name, and exit."""
    with warnings.catch_warnings():
        warnings.showwarning = console.show_warning
        code = _run()
    sys.exit(code)


def _run() -> int:
    try:
        result = app(standalone_mode=False, prog_name="torchelmo")
        sys.stdout.flush()
    except console.Interrupted as stop:
        return console.fail(str(stop), 130)
    except (KeyboardInterrupt, typer.Abort):
        return console.fail("interrupted", 130)
    except (InputError, MissingExtra) as error:
        return console.fail(str(error))
    except BrokenPipeError:
        # Whoever read the output has gone, as `head` does; Python must not complain at exit.
        sys.stdout = None
        return 141
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return console.fail(f"{where}{error.strerror or error}")
    except Exception as error:
        if not isinstance(error, UsageError):
            raise
        say: Callable[[], str] = getattr(error, "format_message", error.__str__)
        path = getattr(getattr(error, "ctx", None), "command_path", "torchelmo")
        return console.fail(f"{say().rstrip('.')} (see `{path} --help`)")
    if result == 130:
        return console.fail("interrupted", 130)
    return result if isinstance(result, int) else 0
