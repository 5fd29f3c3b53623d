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
    from torchelmo.analysis.results import Probe

EXAMPLE = "Example: torchelmo analyse wic MODEL --data wic.tar.xz --vectors glove -o wic.json"


class ProbeName(str, Enum):
    """What is asked of the vectors."""

    wic = "wic"
    wsd = "wsd"
    homographs = "homographs"
    pos = "pos"
    forms = "forms"


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
        Path,
        typer.Option(metavar="PATH", help="The data: a folder, a .tar.xz, or a file."),
    ],
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
        Path | None, typer.Option("--output", "-o", metavar="JSON", help="Write a result file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    device: Device = None,
    offline: Offline = False,
) -> None:
    """Probe what each layer of MODEL knows, beside what needs no model.

    wic: same sense or not, by cosine (WiC, KoBEST). wsd: nearest sense centroid (SemCor, Raganato's
    ALL). homographs: nearest sense, leave one out. pos: linear tagger (a UD treebank). forms: kin
    of inflected, misspelt, unseen words (--data en, ko or a file).
    """
    if output is not None and output.suffix != ".json":
        raise InputError(f"{output} does not end in .json")
    if seeds < 1:
        raise InputError(f"--seeds is {seeds}, expected 1 or more")
    numbers = tuple(range(1, seeds + 1))
    asked = read(probe, data, dev=dev, tags=tags.value, seeds=numbers)

    from torchelmo.analysis import results
    from torchelmo.analysis.embedders import Embedder, ModelEmbedder, StaticEmbedder
    from torchelmo.analysis.static import StaticVectors
    from torchelmo.apps.bench import machine, report
    from torchelmo.elmo import Elmo

    table = None if vectors is None else StaticVectors.load(vectors)
    console.download(model, offline or None)
    elmo = Elmo.from_pretrained(model, device=device, offline=offline or None)
    static: dict[str, Embedder] = {}
    if table is not None:
        # Neither a tag nor a word alone is told by its sentence's mean.
        around = probe not in (ProbeName.pos, ProbeName.forms)
        static[table.name] = StaticEmbedder(table, around=around, device=elmo.device)
    with console.bar("token", probe.value) as shown:
        embedder = ModelEmbedder(elmo, None if shown is None else shown.update)
        values = results.run(asked, embedder, static)
    result = results.record(
        values,
        name=f"{output.absolute().parent.name}-{output.stem}"
        if output
        else f"analyse-{probe.value}",
        command=shlex.join(["torchelmo", *sys.argv[1:]]),
        hardware=machine.describe(elmo.device),
        model=report.model_name(Path(model).name, elmo.config),
        data=asked.describe(),
        metric=asked.metric,
        seeds=numbers if probe is ProbeName.pos else (),
    )
    if output is not None:
        results.write(result, output)
    print(json.dumps(result, ensure_ascii=False) if as_json else results.table(result))


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
