"""A table over files of our own: entities, with and without a tiny biLM, two seeds."""

from bulk.tiny import tiny_model
from tasks.small import tagged, write_columns
from torchelmo.formats import native

RECIPE = """
task = "ner"

[characters]
dim = 8
filters = 16

[elmo]
model = "MODEL"
where = "both"
dropout = 0.2

[network]
cells = [8]
dropout = 0.3

[train]
epochs = 5
batch = 4
learning_rate = 0.02
halve_after = 0
ema = 0.9
"""
TABLE = """
[conditions]
baseline = ["elmo.where=none"]
elmo = []

[tasks.names]
task = "ner"
recipe = "names.toml"
train = ["one.txt", "two.txt"]
valid = "valid.txt"
test = "test.txt"
seeds = [1, 2]
about = "ten sentences"
paper = { baseline = 90.15, elmo = 92.22 }
"""


def write_table(home):
    """Write table, recipe, data and biLM into a folder; return the table's path."""
    native.write(tiny_model(), home / "tiny")
    examples = tagged()
    parts = {"one": examples[:4], "two": examples[4:8], "valid": examples[:6], "test": examples}
    (home / "data").mkdir()
    for name, part in parts.items():
        write_columns(home / "data" / f"{name}.txt", part)
    recipe = RECIPE.replace("MODEL", (home / "tiny").as_posix())
    (home / "names.toml").write_text(recipe, encoding="utf-8")
    (home / "table.toml").write_text(TABLE, encoding="utf-8")
    return home / "table.toml"


def lasting(value):
    """A result without what differs between two runs that are alike."""
    if isinstance(value, dict):
        passing = ("seconds", "seconds_all", "date", "commit")
        return {k: lasting(v) for k, v in value.items() if k not in passing}
    return [lasting(v) for v in value] if isinstance(value, list) else value
