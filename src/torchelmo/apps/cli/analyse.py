"""`torchelmo analyse`: what a model's layers know."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchelmo.apps.cli import console
from torchelmo.apps.cli.options import Device, Offline
from torchelmo.errors import InputError

if TYPE_CHECKING:
    from torchelmo.analysis.results import Probe, Values
    from torchelmo.elmo import Elmo
    from torchelmo.tasks.vectors import StaticVectors

EXAMPLE = "Example: torchelmo analyse wic MODEL --data wic.tar.xz --vectors glove -o wic.json"


class ProbeName(str, Enum):
    """What is asked of the vectors."""

    wic = "wic"
    wsd = "wsd"
    homographs = "homographs"
    pos = "pos"
    forms = "forms"
    neighbours = "neighbours"


class LanguageName(str, Enum):
    """Whose own examples."""

    en = "en"
    ko = "ko"


class TagsName(str, Enum):
    """Which tags of a treebank."""

    upos = "upos"
    xpos = "xpos"


def analyse(
    probe: Annotated[
        ProbeName,
        typer.Argument(metavar="PROBE", help="Which question."),
    ],
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Folder, .hdf5, archive, name or hub id.")
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="The data: a folder, a .tar.xz, or a file.", show_default=False
        ),
    ] = None,
    language: Annotated[
        LanguageName | None,
        typer.Option(
            help="Of forms and neighbours: our examples. [default: as MODEL's name begins, or en]",
            show_default=False,
        ),
    ] = None,
    dev: Annotated[
        bool, typer.Option("--dev", help="Count development parts; leave test parts alone.")
    ] = False,
    vectors: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Static vectors beside it: glove, or a text file.",
            show_default=False,
        ),
    ] = None,
    tags: Annotated[TagsName, typer.Option(help="Of pos.")] = TagsName.upos,
    seeds: Annotated[int, typer.Option(metavar="N", help="Runs of pos, seeded 1 to N.")] = 1,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="A result file, .json; of neighbours also .md."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    device: Device = None,
    offline: Offline = False,
) -> None:
    """Probe what each layer of MODEL knows, beside what needs no model.

    wic: same sense or not, by cosine (WiC, KoBEST). wsd: nearest sense centroid (SemCor, Raganato's
    ALL). homographs: nearest sense, leave one out. pos: linear tagger (a UD treebank). forms: kin
    of inflected, misspelt, unseen words (our own, or a file). neighbours: twenty ambiguous words,
    and the sentences nearest to each of their meanings (our own sentences, no --data).
    """
    page = probe is ProbeName.neighbours
    if output is not None and output.suffix not in (".json", *[".md"] * page):
        raise InputError(f"{output} does not end in .json" + " or .md" * page)
    if seeds < 1:
        raise InputError(f"--seeds is {seeds}, expected 1 or more")
    numbers = tuple(range(1, seeds + 1))
    own = (language or spoken(model)).value
    asked = None
    if page:
        if data is not None:
            raise InputError("neighbours has its own sentences: give --language, not --data")
    else:
        if data is None and probe is ProbeName.forms:
            data = Path(own)
        if data is None:
            raise InputError(f"{probe.value} needs its data: give --data PATH")
        asked = read(probe, data, dev=dev, tags=tags.value, seeds=numbers)

    from torchelmo.analysis import neighbours_table, results
    from torchelmo.apps.bench import machine, report
    from torchelmo.elmo import Elmo
    from torchelmo.tasks.vectors import StaticVectors

    table = None if vectors is None else StaticVectors.load(vectors)
    console.download(model, offline or None)
    elmo = Elmo.from_pretrained(model, device=device, offline=offline or None)
    if asked is None:
        values, what = look(elmo, own, table)
        metric = neighbours_table.METRIC
    else:
        # Neither a tag nor a word alone is told by its sentence's mean.
        around = probe not in (ProbeName.pos, ProbeName.forms)
        values = ask(probe.value, asked, elmo, table, around)
        what, metric = asked.describe(), asked.metric
    result = results.record(
        values,
        name=f"{output.absolute().parent.name}-{output.stem}"
        if output
        else f"analyse-{probe.value}",
        command=shlex.join(["torchelmo", *sys.argv[1:]]),
        hardware=machine.describe(elmo.device),
        model=report.model_name(Path(model).name, elmo.config),
        data=what,
        metric=metric,
        seeds=numbers if probe is ProbeName.pos else (),
    )
    if output is not None and output.suffix == ".md":
        text = neighbours_table.to_markdown(values["neighbours"])
        results.write_text(f"{result['model']}; {what}\n\n{text}", output)
    elif output is not None:
        results.write(result, output)
    print(json.dumps(result, ensure_ascii=False) if as_json else results.table(result))


def spoken(model: str) -> LanguageName:
    """Return the language that a model's name begins with, English if none.

    >>> spoken("ko-small"), spoken("runs/heron")
    (<LanguageName.ko: 'ko'>, <LanguageName.en: 'en'>)
    """
    first = Path(model).name.partition("-")[0]
    return next((one for one in LanguageName if one.value == first), LanguageName.en)


def ask(name: str, probe: Probe, elmo: Elmo, table: StaticVectors | None, around: bool) -> Values:
    """Put a probe to a model, and to static vectors if there are some."""
    from torchelmo.analysis import results
    from torchelmo.analysis.embedders import Embedder, ModelEmbedder, StaticEmbedder

    static: dict[str, Embedder] = {}
    if table is not None:
        static[table.name] = StaticEmbedder(table, around=around, device=elmo.device)
    with console.bar("token", name) as shown:
        embedder = ModelEmbedder(elmo, None if shown is None else shown.update)
        return results.run(probe, embedder, static)


def look(elmo: Elmo, language: str, table: StaticVectors | None) -> tuple[Values, str]:
    """Return the neighbours of our ambiguous words, and what they were looked for in."""
    from torchelmo.analysis import neighbours_table, senses

    examples = senses.read(language)
    tables = [] if table is None else [table]
    values = neighbours_table.figures(neighbours_table.build(elmo, examples, static=tables))
    words = len({one.word for one in examples})
    meanings = len({(one.word, one.sense) for one in examples})
    return values, (
        f"{language}: {words} words with {meanings} meanings in {len(examples)} sentences"
    )


def read(probe: ProbeName, data: Path, *, dev: bool, tags: str, seeds: tuple[int, ...]) -> Probe:
    """Read the data of a probe."""
    from torchelmo.analysis.forms import Forms
    from torchelmo.analysis.homographs import Homographs
    from torchelmo.analysis.pos import Tags
    from torchelmo.analysis.wic import Wic
    from torchelmo.analysis.wsd import Wsd

    if probe is ProbeName.pos:
        return Tags.read(data, dev=dev, tags=tags, seeds=seeds)
    readers: dict[ProbeName, Callable[..., Probe]] = {
        ProbeName.wic: Wic.read,
        ProbeName.wsd: Wsd.read,
        ProbeName.homographs: Homographs.read,
        ProbeName.forms: Forms.read,
    }
    return readers[probe](data, dev=dev)
