"""Package a trained model: float16 weights, int8 softmax, attribution and a model card.

    python scripts/package_model.py RUN -o src/torchelmo/weights/en-small \
        --card scripts/cards/en-small.toml --results results/pretrain/en-small.json ...

RUN is a model folder, or a run whose best model is taken. Published figures are those of the
packaged files, so: package, measure what was packaged, package again with the result files. The
files are the same each time; the card is made of the training facts in config.json, the result
files, and what the TOML says of sources, strengths and weaknesses.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from torchelmo.config import Json, from_json
from torchelmo.errors import InputError
from torchelmo.formats import files, native
from torchelmo.formats.model import Model

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LIMIT = 45_000_000  # bytes a model
POINTS = 10  # of the curve that the card shows
LICENCE, LICENCE_URL = "CC BY-SA 4.0", "https://creativecommons.org/licenses/by-sa/4.0/"
EXTRAS = {"kiwi": "ko", "fugashi": "ja"}  # tokenisers that need one


@dataclass(frozen=True, kw_only=True)
class Source:
    """A text that the model was trained on."""

    name: str
    by: str
    licence: str
    url: str = ""
    size: str = ""
    changes: str = ""  # what was done to it


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number of a result file: `value` is a path such as "values.final.bits_per_character"."""

    label: str
    result: str  # the result's name, or its file's without the ending
    value: str
    digits: int = 2


@dataclass(frozen=True, kw_only=True)
class Card:
    """What people write of a model."""

    title: str
    language: str
    about: str
    sources: tuple[Source, ...]
    good: tuple[str, ...]
    bad: tuple[str, ...]
    figures: tuple[Figure, ...] = ()  # none: every number of the result files


def package(
    run: Path,
    out: Path,
    card_file: Path,
    result_files: list[Path],
    *,
    rounded: str = "",
    overwrite: bool = False,
) -> int:
    """Write the packaged model, whole or not at all; return its size in bytes.

    `rounded` says what rounding has cost a model that comes rounded.
    """
    home = run if native.is_native(run) else run / "best"
    if not native.is_native(home):
        raise InputError(f"{run} is neither a model folder nor a run with a best model")
    card = read_card(card_file)
    results = {path.stem: files.read_json(path) for path in result_files}
    model = native.read(home)
    if model.softmax is None or model.vocabulary is None:
        raise InputError(f"{home} has no softmax or no vocabulary: a packaged model has both")
    model = replace(
        model,
        config=replace(model.config, training=without_paths(model.config.training)),
        attribution=attribution(out.name, card),
    )
    with files.new_folder(out, overwrite=overwrite, known=native.FILES) as folder:
        native.write_files(model, folder, weights="float16", softmax="int8", card="")
        sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
        cost = rounding(model, native.read(folder)) or rounded
        text = write_card(out.name, model, cost, card, results, sizes)
        (folder / native.CARD).write_bytes(text.encode("utf-8"))
        sizes[native.CARD] = len(text.encode("utf-8"))
        if sum(sizes.values()) > LIMIT:
            largest = max(sizes, key=lambda name: sizes[name])
            raise InputError(
                f"the model would take {sum(sizes.values()) / 1e6:.1f} MB, expected at most "
                f"{LIMIT / 1e6:.0f} MB ({largest} has {sizes[largest] / 1e6:.1f}): take a smaller "
                "network or vocabulary"
            )
    return sum(sizes.values())


def read_card(path: Path) -> Card:
    """Read the TOML file of a model."""
    text = files.decode(files.read_bytes(path, files.JSON_BYTES), str(path))
    try:
        card = from_json(Card, tomllib.loads(text), path.name)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML: {error}") from None
    if not card.sources:
        raise InputError(f"{path} names no sources: say whose text the model was trained on")
    return card


def without_paths(value: Json) -> Json:
    """Return training facts whose paths are cut to their last name.

    >>> without_paths({"data": {"corpus": "/home/heron/pond"}, "sources": ["reeds/a.txt"]})
    {'data': {'corpus': 'pond'}, 'sources': ['a.txt']}
    """

    def clean(part: object) -> object:
        if isinstance(part, dict):
            return {key: clean(inner) for key, inner in part.items()}
        if isinstance(part, list):
            return [clean(inner) for inner in part]
        if isinstance(part, str) and re.search(r"[/\\]", part):
            return re.split(r"[/\\]", part.rstrip("/\\"))[-1]
        return part

    return {key: clean(inner) for key, inner in value.items()}


def attribution(name: str, card: Card) -> str:
    """Return the text of ATTRIBUTION.md; its first paragraph is what `torchelmo models` shows."""
    sources = ", ".join(dict.fromkeys(source.name for source in card.sources))
    parts = [
        f"# Attribution of {name}",
        f"Weights and vocabulary by the torchelmo contributors, licensed {LICENCE}; trained on "
        f"{sources}.",
        f"You may share and change them, also commercially, if you name torchelmo and the sources "
        f"below, link to the licence ({LICENCE_URL}), say what you changed, and give what you make "
        "of them under the same licence. The program itself is under Apache-2.0.",
        "The text itself is not in these files; the vocabulary lists its most frequent words. It "
        "was taken from:",
        "\n".join(source_line(source) for source in card.sources),
    ]
    return "\n\n".join(parts) + "\n"


def source_line(source: Source) -> str:
    """Return a source as a line of ATTRIBUTION.md."""
    said = f"- {source.name}, by {source.by}"
    said += f" ({source.url})" if source.url else ""
    said += f": {source.licence}"
    return said + (f". {source.changes}" if source.changes else "")


def source_row(source: Source) -> str:
    """Return a source as a row of the card's table."""
    name = f"[{source.name}]({source.url})" if source.url else source.name
    return f"| {name} | {source.by} | {source.licence} | {source.size} |"


def write_card(
    name: str,
    model: Model,
    cost: str,
    card: Card,
    results: dict[str, Json],
    sizes: dict[str, int],
) -> str:
    """Return the text of README.md."""
    extra = EXTRAS.get(model.config.tokenizer.name)
    needs = (
        f"\nRaw text is split by an extra package, `pip install 'torchelmo[{extra}]'`; lists of "
        "words need none.\n"
        if extra
        else ""
    )
    facts = native.facts(model, "float16", "int8")
    if cost:
        said = f"{cost} of a value (root mean square); figures are those of the rounded values"
        facts.append(("rounding", said))
    facts.append(
        ("files", ", ".join(f"{n} {s / 1e6:.1f} MB" for n, s in sizes.items() if s >= 50_000))
    )
    sources = map(source_row, card.sources)
    return f"""---
license: cc-by-sa-4.0
language: {card.language}
library_name: torchelmo
pipeline_tag: feature-extraction
tags:
- elmo
- bilm
---

# {card.title}

{card.about.strip()}

```python
from torchelmo import Elmo

elmo = Elmo.from_pretrained("{name}")
```
{needs}
## What it is

{table(facts)}

## Data and licences

| text | by | licence | size |
|---|---|---|---|
{_lines(sources)}

The weights and the vocabulary are licensed [{LICENCE}]({LICENCE_URL}): see {native.ATTRIBUTION}.

## Training

{table(training_facts(model, results))}
{curve(results)}
## Figures

{figures(card, results)}

## Good at

{_lines(f"- {line}" for line in card.good)}

## Bad at

{_lines(f"- {line}" for line in card.bad)}
"""


def rounding(model: Model, packed: Model) -> str:
    """Say how far the packaged values are from those given; nothing if these came rounded.

    A share of a value, as root mean square: "biLM 0.021%, softmax 1.143%".
    """
    assert model.softmax is not None and packed.softmax is not None
    shares = {}
    for part, old, new in (
        ("biLM", model.tensors, packed.tensors),
        ("softmax", model.softmax, packed.softmax),
    ):
        error = sum(float((new[n] - t).double().square().sum()) for n, t in old.items())
        size = sum(float(t.double().square().sum()) for t in old.values())
        shares[part] = math.sqrt(error / size) if size else 0.0
    if not any(shares.values()):
        return ""
    return ", ".join(f"{part} {share:.3%}" for part, share in shares.items())


def training_facts(model: Model, results: dict[str, Json]) -> list[tuple[str, str]]:
    """Return what is known of the run, as name and value."""
    training = model.config.training
    train, data = (_inner(training, "recipe", part) for part in ("train", "data"))
    text, tokens = _inner(training, "corpus", "train"), training.get("tokens")
    found: dict[str, str] = {}
    if "tokens" in text:
        found["text"] = f"{text['tokens']:,} tokens in {text.get('sentences', 0):,} sentences"
        found["text"] += f", vocabulary {len(model.vocabulary or ()):,}"
    if "coverage" in _inner(training, "corpus"):
        found["text"] += f" ({training['corpus']['coverage']:.1f} % of the running text)"
    if tokens:
        # The end of a sentence is read and predicted as a word is.
        epoch = text.get("tokens", 0) + text.get("sentences", 0)
        epochs = f" ({tokens / epoch:.1f} epochs)" if epoch else ""
        found["tokens read in each direction"] = f"{tokens:,}{epochs}, {training['steps']:,} steps"
    if train:
        found["batch"] = f"{train['batch']} rows of {train['unroll']} tokens"
        found["optimizer"] = (
            f"{train['optimizer']}, learning rate {train['learning_rate']}, {train['schedule']}, "
            f"dropout {train['dropout']}, {train['precision']}"
        )
        found["loss"] = f"{train['softmax']} softmax"
        if train["softmax"] == "sampled":
            found["loss"] += f", {train['negatives']:,} negatives"
    if "reset_share" in data:
        found["sentences begun from a zero state"] = f"{data['reset_share']:.0%}"
    for run in _runs(results):
        found["hardware"] = run["hardware"]
        values = run["values"]
        seconds = values.get("seconds")
        speed = _inner(values, "tokens_per_second").get("median")
        if seconds:
            found["time"] = duration(seconds)
        elif speed and tokens:
            found["time"] = f"{duration(tokens / speed)} of training steps"
        if speed:
            found["speed"] = f"{speed:,} tokens a second, median"
    best = _inner(training, "best")
    if "perplexity" in best:
        found["validation perplexity in training"] = f"{best['perplexity']:.2f} (before rounding)"
    if "versions" in training:
        found["made with"] = ", ".join(f"{k} {v}" for k, v in training["versions"].items())
    return list(found.items())


def duration(seconds: float) -> str:
    """Return a time for people.

    >>> duration(250), duration(4000)
    ('4.2 minutes', '1.1 hours')
    """
    return f"{seconds / 60:.1f} minutes" if seconds < 3600 else f"{seconds / 3600:.1f} hours"


def curve(results: dict[str, Json]) -> str:
    """Return a table of validation perplexity against tokens, thinned to a few points."""
    for run in _runs(results):
        points = run["values"]["curve"]
        last = len(points) - 1
        count = min(POINTS, len(points))
        chosen = sorted({round(i * last / max(count - 1, 1)) for i in range(count)})
        rows = [
            f"| {points[i]['tokens'] / 1e6:,.1f} M | {points[i]['forward']:.2f} | "
            f"{points[i]['backward']:.2f} |"
            for i in chosen
        ]
        return f"\n| tokens read | forward perplexity | backward |\n|---|---|---|\n{_lines(rows)}\n"
    return ""


def figures(card: Card, results: dict[str, Json]) -> str:
    """Return the figures that the card asks for, or all there are."""
    rows = []
    named = {str(result.get("name", stem)): result for stem, result in results.items()} | results
    for figure in card.figures:
        if figure.result not in named:
            raise InputError(
                f"{card.title}: the result {figure.result!r} was not given "
                f"(--results has {', '.join(results) or 'none'})"
            )
        result = named[figure.result]
        value: object = result
        for key in figure.value.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{figure.result} has no number {figure.value!r}, but {value!r}")
        rows.append(f"| {figure.label} | {value:,.{figure.digits}f} | {result['data']} |")
    if not card.figures:
        rows = [
            f"| {result['name']}: {path} | {value:,.4g} | {result['data']} |"
            for result in results.values()
            for path, value in _numbers(result["values"])
        ]
    if not rows:
        return "None were given."
    return f"| figure | value | of |\n|---|---|---|\n{_lines(rows)}"


def _numbers(values: object, path: str = "") -> list[tuple[str, float]]:
    """Return the numbers in nested objects; lists and the recipe are left out."""
    if isinstance(values, dict):
        return [
            found
            for key, inner in values.items()
            if key != "recipe"
            for found in _numbers(inner, f"{path} {key}".strip())
        ]
    if isinstance(values, int | float) and not isinstance(values, bool):
        return [(path, float(values))]
    return []


def _runs(results: dict[str, Json]) -> list[Json]:
    """Return the results of trainings, which have a curve."""
    return [r for r in results.values() if _inner(r, "values").get("curve")]


def _inner(data: Json, *keys: str) -> Json:
    """Return an object inside an object, empty if it is not there."""
    for key in keys:
        inner = data.get(key)
        data = inner if isinstance(inner, dict) else {}
    return data


def table(rows: list[tuple[str, str]]) -> str:
    """Return names and values as a table without a head."""
    return "| | |\n|---|---|\n" + _lines(f"| {name} | {value} |" for name, value in rows)


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a model folder, or a run with a best model")
    parser.add_argument("-o", "--output", type=Path, required=True, help=".../weights/NAME")
    parser.add_argument("--card", type=Path, required=True, help="TOML, see scripts/cards")
    parser.add_argument("--results", type=Path, nargs="*", default=[], help="result files")
    parser.add_argument("--rounded", default="", help="what rounding cost, if RUN comes rounded")
    parser.add_argument("--overwrite", action="store_true", help="replace the packaged model")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        size = package(
            arguments.run,
            arguments.output,
            arguments.card,
            arguments.results,
            rounded=arguments.rounded,
            overwrite=arguments.overwrite,
        )
    except InputError as error:
        sys.exit(f"package_model: {error}")
    summary = {"output": str(arguments.output), "megabytes": round(size / 1e6, 2)}
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
