"""A table of runs: tasks, conditions, seeds, as a TOML file; what of it is done, and what is left.

    [conditions]                     # changes of a recipe, by name; `baseline` and `elmo` compare
    baseline = ["elmo.where=none"]
    elmo = ["elmo.model=en-small"]

    [tasks.ner]                      # becomes NAME.json of the results
    train = "ner.tar.xz:ner/conll2003/eng.train"       # paths below the folder of the data; or
    valid = "ner.tar.xz:ner/conll2003/eng.testa"       # lists of them; valid may be missing where
    test = "ner.tar.xz:ner/conll2003/eng.testb"        # the recipe has data.hold_out
    seeds = [1, 2, 3]
    set = ["train.epochs=40"]        # changes of the recipe in every condition
    about = "CoNLL-2003 English"
    paper = { baseline = 90.15, elmo = 92.22 }

`task` and `recipe` are the table's name of the task unless given, `conditions` all of them,
`metric` the one by which the task chooses its best epoch. "{data}" in a change of `data.reader` is
the folder of the data.

Each run is a process of its own (processes.py) that leaves RESULTS/runs/NAME/CONDITION-SEED.json;
`collect` (comparison.py) makes the comparisons of those.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Literal

from torchelmo.config import Json, from_json, nearest
from torchelmo.errors import InputError, MissingExtra
from torchelmo.formats import files, toml
from torchelmo.tasks.checkpoint import FILE
from torchelmo.tasks.model import task_class
from torchelmo.tasks.recipe import Recipe, packaged_recipes, read_recipe, recipe_from_json

State = Literal["done", "changed", "running", "failed", "stopped", "left", "wrong"]
RUNS = "runs"  # the folder of single runs' results
LOCK, STATUS, ERROR, LOG, MODEL = "lock", "status.json", "error.json", "log.txt", "model"
PARTS = ("train", "valid", "test")


@dataclass(frozen=True, kw_only=True)
class Group:
    """The runs of one task: its data, seeds and conditions."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    seeds: tuple[int, ...]
    valid: tuple[str, ...] = ()
    task: str | None = None
    recipe: str | None = None
    conditions: tuple[str, ...] = ()
    set: tuple[str, ...] = ()
    metric: str | None = None
    about: str = ""
    paper: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """One training run: what it is called, what it reads."""

    group: str
    condition: str
    seed: int
    task: str
    recipe: str  # a name or a file
    changes: tuple[str, ...]
    data: Json  # train, valid, test: lists of paths as the table has them

    @property
    def name(self) -> str:
        """As people write it: "ner/elmo/1"."""
        return f"{self.group}/{self.condition}/{self.seed}"

    @property
    def place(self) -> Path:
        """Where it lies in the folders of work and of results: ner/elmo-1."""
        return Path(self.group) / f"{self.condition}-{self.seed}"

    def read(self) -> Recipe:
        """Return the recipe with its changes; a task that there is not is refused."""
        task_class(self.task)
        return dataclasses.replace(read_recipe(self.recipe, self.changes), task=self.task)


@dataclass(frozen=True)
class Table:
    """What a file says."""

    path: Path
    conditions: dict[str, tuple[str, ...]]
    groups: dict[str, Group]

    def runs(self, only: Sequence[str] = (), changes: Sequence[str] = ()) -> list[Run]:
        """Return the runs, seed by seed so that all conditions come early.

        `only` keeps those of a name or its beginning: "ner", "ner/elmo", "ner/elmo/1".
        """
        found = [
            Run(
                name,
                condition,
                seed,
                group.task or name,
                self._recipe(name, group),
                (*group.set, *self.conditions[condition], *changes, f"train.seed={seed}"),
                {part: list(getattr(group, part)) for part in PARTS},
            )
            for name, group in self.groups.items()
            for seed in group.seeds
            for condition in group.conditions or self.conditions
        ]
        for wanted in only:
            if not any(_matches(run, wanted) for run in found):
                raise InputError(
                    f"{self.path} has no runs {wanted!r}{nearest(wanted, self.groups)}: expected "
                    "TASK, TASK/CONDITION or TASK/CONDITION/SEED"
                )
        return [run for run in found if not only or any(_matches(run, w) for w in only)]

    def _recipe(self, name: str, group: Group) -> str:
        chosen = group.recipe or group.task or name
        beside = self.path.parent / chosen
        return str(beside) if chosen.endswith(".toml") and beside.is_file() else chosen


@dataclass(frozen=True)
class Places:
    """Where a table's runs read and write."""

    data: Path
    work: Path
    results: Path

    def result(self, run: Run) -> Path:
        """The file that a finished run leaves."""
        return self.results / RUNS / run.place.parent / f"{run.place.name}.json"

    def folder(self, run: Run) -> Path:
        """Where a run keeps what it needs to go on, its log, and in the end its model."""
        return self.work / run.place

    def file(self, path: str) -> str:
        """Return a path of the table below the folder of the data."""
        return path if PurePath(path).is_absolute() else str(self.data / path)


@dataclass(frozen=True)
class Standing:
    """How a run stands: its state, and what there is to say of it."""

    run: Run
    state: State
    words: str = ""
    result: Json | None = None


def read_table(path: str | Path) -> Table:
    """Read a table, a file or the name of one of ours, and check every key."""
    file = _find(Path(path))
    data = toml.read(file)
    for key in data:
        if key not in ("conditions", "tasks"):
            raise InputError(f"{file} has no key {key!r}{nearest(key, ('conditions', 'tasks'))}")
    conditions, tasks = data.get("conditions"), data.get("tasks")
    if not isinstance(conditions, dict) or not conditions:
        raise InputError(f"{file} has no conditions: give [conditions] with baseline and elmo")
    if not isinstance(tasks, dict) or not tasks:
        raise InputError(f"{file} has no tasks: give [tasks.NAME] with train, test and seeds")
    for name, changes in conditions.items():
        _check_name(file, name)
        if not isinstance(changes, list) or not all(isinstance(one, str) for one in changes):
            raise InputError(
                f"{file}: conditions.{name} is {changes!r}, expected a list of changes such as "
                '["elmo.where=none"]'
            )
    named = {name: tuple(changes) for name, changes in conditions.items()}
    groups = {name: _group(file, name, values, named) for name, values in tasks.items()}
    return Table(file, named, groups)


def check(runs: Sequence[Run]) -> None:
    """Refuse runs whose task or recipe is wrong, before any of them begins."""
    for run in runs:
        try:
            run.read()
        except InputError as error:
            raise InputError(f"{run.name}: {error}") from None


def standing(run: Run, places: Places) -> Standing:
    """Say whether a run is done, running or left."""
    folder, path = places.folder(run), places.result(run)
    try:
        recipe = run.read()
    except (InputError, MissingExtra) as error:
        return Standing(run, "wrong", str(error))
    result = files.read_json(path) if path.is_file() else None
    difference = "" if result is None else _difference(run, recipe, result)
    if result is not None and not difference:
        return Standing(run, "done", _score(result), result)
    status = _json(folder / STATUS)
    epochs = f"epoch {status.get('epoch', 0)} of {recipe.train.epochs}" if status else ""
    if locked(folder / LOCK):
        return Standing(run, "running", epochs)
    failure = _json(folder / ERROR)
    if failure:
        return Standing(run, "failed", str(failure.get("error", "")))
    if difference:
        return Standing(run, "changed", f"{path} was made with {difference}")
    if (folder / FILE).is_file():
        return Standing(run, "stopped", epochs)
    return Standing(run, "left")


def locked(path: Path) -> bool:
    """Whether a process holds a run's lock."""
    if not path.is_file():
        return False
    with path.open("ab") as file:
        return files.try_lock(file) is False


def same_recipe(recipe: Recipe) -> Json:
    """Return what of a recipe decides the figures: not where files and layers are kept."""
    plain = recipe.to_json()
    for part in PARTS:
        plain["data"].pop(part)
    if recipe.bilm is None:
        plain["elmo"] = None
    else:
        for key in ("keep", "keep_gb", "folder"):
            plain["elmo"].pop(key)
    return plain


def _difference(run: Run, recipe: Recipe, result: Json) -> str:
    """Return in which key a result's run differed: "train.epochs 40, not 20"; "" if in none."""
    if result.get("data") != run.data:
        return "other data"
    try:
        # Read anew: keys that came later then have their default in it.
        before = same_recipe(recipe_from_json(result.get("recipe", {}), "recipe"))
    except InputError:
        return "another recipe"
    now = same_recipe(recipe)
    for section, values in now.items():
        old = before[section]
        if values == old:
            continue
        if isinstance(values, dict) and isinstance(old, dict):
            for key in {**values, **old}:
                if values.get(key) != old.get(key):
                    return f"{section}.{key} {old.get(key)}, not {values.get(key)}"
        return f"another {section}"
    return ""


def _score(result: Json) -> str:
    metric = result["metric"]
    value = result["test"].get(metric)
    epochs = f"epoch {result['best_epoch']} of {result['epochs']}, {result['seconds']:,.0f} s"
    return f"{metric} {value:.2f}, {epochs}" if isinstance(value, float) else epochs


def _group(file: Path, name: str, values: object, conditions: dict[str, tuple[str, ...]]) -> Group:
    where = f"{file}: tasks.{name}"
    _check_name(file, name)
    if isinstance(values, dict):
        values = {
            key: [value] if key in PARTS and isinstance(value, str) else value
            for key, value in values.items()
        }
    group = from_json(Group, values, where)
    if not group.train or not group.test:
        raise InputError(f"{where} has no {'test' if group.train else 'train'} file")
    if not group.seeds or len(set(group.seeds)) != len(group.seeds) or min(group.seeds) < 0:
        raise InputError(
            f"{where}.seeds is {list(group.seeds)}, expected one or more numbers, each once"
        )
    for condition in group.conditions:
        if condition not in conditions:
            raise InputError(
                f"{where}: there is no condition {condition!r}{nearest(condition, conditions)}"
            )
    for key, value in group.paper.items():
        if not isinstance(value, int | float):
            raise InputError(f"{where}.paper.{key} is {value!r}, expected a number")
    return group


def _check_name(file: Path, name: str) -> None:
    """Names become files, on every system."""
    if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
        raise InputError(f"{file}: the name {name!r} has other characters than a-z, 0-9, - and _")


def _find(path: Path) -> Path:
    if path.exists() or path.name != str(path) or path.suffix not in ("", ".toml"):
        return path
    ours = {
        name: found
        for name, found in packaged_recipes().items()
        if "\n[conditions]\n" in found.read_text(encoding="utf-8")
    }
    if path.stem in ours:
        return ours[path.stem]
    raise InputError(f"there is no file and no table {str(path)!r}{nearest(path.stem, ours)}")


def _matches(run: Run, wanted: str) -> bool:
    return f"{run.name}/".startswith(f"{wanted.strip('/')}/")


def _json(path: Path) -> Json:
    """Return what a small file says, nothing if it is not there or not whole."""
    try:
        return files.read_json(path)
    except InputError:
        return {}
