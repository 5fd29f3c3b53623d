"""Package a trained task as a head: float16 weights, attribution and a card.

    torchelmo train pos pos-head --train ... --valid ... -o runs/en-pos
    python scripts/package_head.py runs/en-pos -o src/torchelmo/heads/en-pos \
        --card scripts/cards/heads/en-pos.toml --test en_ewt-ud-test.conllu \
        --result results/heads/en-pos.json

The figures of the card and of the result file are those of the packaged files on --test. A head
goes by the name of a packaged biLM and reads no word vectors, so that it works where the package
is; only sets that may be given on may be among its sources.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import torch
from package_model import EXTRAS, LICENCE, LICENCE_URL, Source, source_line, source_row, table

from torchelmo.config import Json, from_json
from torchelmo.errors import InputError
from torchelmo.formats import files, load, toml
from torchelmo.formats.tensors import write_tensors
from torchelmo.tasks.model import METRICS, WEIGHTS, AnyTask, load_task
from torchelmo.tasks.processes import commit, write_whole
from torchelmo.tasks.recipe import Recipe

LIMIT = 5_000_000  # bytes a head
CARD, ATTRIBUTION = "README.md", "ATTRIBUTION.md"
SUMMARY = ("task", "metric", "best", "seconds", "parameters", "examples", "seed", "device", "torch")


@dataclass(frozen=True, kw_only=True)
class HeadCard:
    """What people write of a head."""

    title: str
    language: str
    about: str
    example: str  # a text to try it with
    data: str  # the set, as a result file names it
    sources: tuple[Source, ...]
    good: tuple[str, ...]
    bad: tuple[str, ...]


def package(
    run: Path,
    out: Path,
    card_file: Path,
    *,
    test: str | None = None,
    result: Path | None = None,
    overwrite: bool = False,
) -> int:
    """Write the head, whole or not at all; return its size in bytes."""
    card = from_json(HeadCard, toml.read(card_file), card_file.name)
    if not card.sources:
        raise InputError(f"{card_file} names no sources: say whose text the head was trained on")
    if result is not None and test is None:
        raise InputError("a result file is of a test part: give --test")
    model = load_task(run, device="cpu")
    check(model.recipe, run)
    trained = model.metrics
    model.metrics = {key: trained[key] for key in SUMMARY if key in trained}
    model.recipe = plain(model.recipe)
    known = {*(f"{name}.txt" for name in model.vocabularies), CARD, ATTRIBUTION, WEIGHTS, METRICS}
    with files.new_folder(
        out, overwrite=overwrite, known={*known, "config.json"}, what="a head"
    ) as folder:
        model.save(folder, overwrite=True)
        write_tensors(folder / WEIGHTS, model.state_dict(), "float16")
        packed = load_task(folder, device="cpu")  # over the packaged biLM, by its name
        scores = {} if test is None else packed.evaluate(test)
        (folder / ATTRIBUTION).write_bytes(attribution(out.name, card).encode("utf-8"))
        text = write_card(out.name, packed, card, trained, scores)
        (folder / CARD).write_bytes(text.encode("utf-8"))
        sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
        if sum(sizes.values()) > LIMIT:
            largest = max(sizes, key=lambda name: sizes[name])
            raise InputError(
                f"the head would take {sum(sizes.values()) / 1e6:.1f} MB, expected at most "
                f"{LIMIT / 1e6:.0f} MB ({largest} has {sizes[largest] / 1e6:.1f}): take a smaller "
                "network"
            )
    if result is not None:
        result.parent.mkdir(parents=True, exist_ok=True)
        facts = result_of(out.name, packed, card, scores)
        write_whole(result, {**facts, "megabytes": round(sum(sizes.values()) / 1e6, 2)})
    return sum(sizes.values())


def check(recipe: Recipe, run: Path) -> None:
    """Refuse a run that would need more than the package."""
    if recipe.vectors is not None:
        raise InputError(
            f"{run} reads the word vectors {recipe.vectors!r}: a head has none, train it with "
            "words=none"
        )
    if recipe.bilm is None:
        raise InputError(f"{run} uses no biLM: a head goes with a packaged one")
    ours = load.packaged()
    if recipe.bilm.model not in ours:
        raise InputError(
            f"{run} was trained over {recipe.bilm.model}, expected a packaged model by its name "
            f"({', '.join(ours) or 'there is none here'})"
        )


def plain(recipe: Recipe) -> Recipe:
    """Return a recipe with nothing of the machine it ran on: names of files, no folders."""

    def last(path: str | None) -> str | None:
        return None if path is None else re.split(r"[/\\:]", path)[-1]

    data = replace(
        recipe.data,
        train=last(recipe.data.train),
        valid=last(recipe.data.valid),
        test=last(recipe.data.test),
    )
    assert recipe.elmo is not None
    return replace(recipe, data=data, elmo=replace(recipe.elmo, keep="memory", folder=None))


def attribution(name: str, card: HeadCard) -> str:
    """Return the text of ATTRIBUTION.md; its first paragraph is what `torchelmo models` shows."""
    sources = ", ".join(source.name for source in card.sources)
    parts = [
        f"# Attribution of {name}",
        f"Weights and lists by the torchelmo contributors, licensed {LICENCE}; trained on "
        f"{sources}.",
        "You may share and change them, also commercially, if you name torchelmo and the sources "
        f"below, link to the licence ({LICENCE_URL}), say what you changed, and give what you make "
        "of them under the same licence. The program itself is under Apache-2.0, and the biLM "
        "below the head has an attribution of its own.",
        "The text itself is not in these files; the lists hold single words and characters of it. "
        "It was taken from:",
        "\n".join(source_line(source) for source in card.sources),
    ]
    return "\n\n".join(parts) + "\n"


def write_card(
    name: str, model: AnyTask, card: HeadCard, trained: Json, scores: dict[str, float]
) -> str:
    """Return the text of README.md."""
    recipe, best = model.recipe, trained.get("best") or {}
    assert recipe.elmo is not None
    extra = EXTRAS.get(model.tokenizer_name)
    needs = f"\nIt needs `pip install 'torchelmo[{extra}]'` for raw text.\n" if extra else ""
    mixes = "; ".join(
        f"{place}: s {' '.join(f'{share:.2f}' for share in mix['s'])}, gamma {mix['gamma']:.2f}"
        for place, mix in model.mixes().items()
    )
    facts = [
        ("task", recipe.task),
        ("biLM", recipe.elmo.model),
        ("parameters of the head", f"{model.parameter_count():,}, float16"),
        ("mix of the biLM's layers", mixes),
    ]
    counts = trained.get("examples", {})
    training = [
        ("examples", ", ".join(f"{part} {count:,}" for part, count in counts.items())),
        ("best epoch", f"{best.get('epoch')} of {len(trained.get('epochs', ()))}"),
        ("time", f"{trained.get('seconds', 0) / 60:.0f} minutes on {trained.get('device')}"),
        ("made with", f"torch {trained.get('torch')}, seed {trained.get('seed')}"),
    ]
    figures = [(label, f"{value:.2f}") for label, value in scores.items()]
    measured = f"{table(figures)}\n\nOn {card.data}, the test part, by these files."
    sources = "\n".join(map(source_row, card.sources))
    return f"""---
license: cc-by-sa-4.0
language: {card.language}
library_name: torchelmo
tags:
- elmo
---

# {card.title}

{card.about.strip()}

```bash
torchelmo predict {name} --text "{card.example}"
```

```python
from torchelmo.tasks.model import load_task

print(load_task("{name}").predict(["{card.example}"]))
```
{needs}
## What it is

{table(facts)}

## Data and licences

| text | by | licence | size |
|---|---|---|---|
{sources}

The weights and the lists are licensed [{LICENCE}]({LICENCE_URL}): see {ATTRIBUTION}.

## Training

{table(training)}

## Figures

{measured if scores else "None were given."}

## Good at

{chr(10).join(f"- {line}" for line in card.good)}

## Bad at

{chr(10).join(f"- {line}" for line in card.bad)}
"""


def result_of(name: str, model: AnyTask, card: HeadCard, scores: dict[str, float]) -> Json:
    """Return what a result file says of the head."""
    assert model.recipe.elmo is not None
    return {
        "name": f"head-{name}",
        "date": date.today().isoformat(),
        "commit": commit(),
        "command": f"torchelmo evaluate {name} TEST",
        "hardware": f"cpu, {torch.get_num_threads()} threads, {platform.machine()}",
        "torch": torch.__version__,
        "model": f"{name} over {model.recipe.elmo.model}",
        "data": card.data,
        "task": model.recipe.task,
        "metric": model.metric,
        "seeds": [model.recipe.train.seed],
        "values": {key: round(value, 4) for key, value in scores.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a folder that `torchelmo train` wrote")
    parser.add_argument("-o", "--output", type=Path, required=True, help=".../heads/NAME")
    parser.add_argument("--card", type=Path, required=True, help="TOML, see scripts/cards/heads")
    parser.add_argument("--test", help="a file to score the head on")
    parser.add_argument("--result", type=Path, help="a file for those figures")
    parser.add_argument("--overwrite", action="store_true", help="replace the packaged head")
    given = parser.parse_args()
    try:
        size = package(
            given.run,
            given.output,
            given.card,
            test=given.test,
            result=given.result,
            overwrite=given.overwrite,
        )
    except InputError as error:
        sys.exit(f"package_head: {error}")
    print(json.dumps({"output": str(given.output), "megabytes": round(size / 1e6, 2)}))


if __name__ == "__main__":
    main()
