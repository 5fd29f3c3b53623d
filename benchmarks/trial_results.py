"""Turn the rows of trials into a result file.

    python benchmarks/trial_results.py ko.jsonl --data "Korean Wikipedia and other text" \
        --commit cce25cb -o results/models/trials-ko.json

Machine and torch are those of the rows; rows that failed are left out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import results

Json = dict[str, Any]
FIGURES = ("perplexity", "bits_per_character", "bits_per_character_spelt")
METRIC = "bits per character of held-out text, unknown words spelt and spaces paid for"
PROBES = {
    "wic": "WiC by layer (accuracy on dev, %, threshold tuned on train)",
    "homographs": "homographs by layer (accuracy, %, nearest centroid)",
}
OPTIONS = ("batch", "unroll", "learning_rate", "dropout", "weight_decay")


def value(row: Json) -> Json:
    """Return what is kept of a row.

    What a trial changed stands in `text`, `characters`, `vocabulary` and `set`.
    """
    trial, corpus, recipe = row["trial"], row["corpus"], row["recipe"]
    return {
        "text": trial["text"],
        "characters": trial["characters"],
        "vocabulary": corpus["vocabulary"],
        "set": trial["set"],
        "train": {
            **{option: recipe["train"][option] for option in OPTIONS},
            "reset_share": recipe["data"]["reset_share"],
        },
        "tokens": row["tokens"],
        "epochs": round(row["epochs"], 2),
        "parameters": row["parameters"],
        "tokenizer": corpus["tokenizer"],
        "valid": {
            name: {
                "unknown_percent": round(one["unknown_percent"], 2),
                "spelling": round(one["spelling"], 4),
                "spacing": round(one["spacing"], 4),
                **{
                    start: {figure: round(one[start][figure], 4) for figure in FIGURES}
                    for start in ("warm", "cold")
                },
            }
            for name, one in row["text"].items()
        },
        "probes": row["probes"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path, help="what benchmarks/trials.py wrote")
    parser.add_argument("--data", required=True, help="what was read")
    parser.add_argument("--commit", help="what the trials ran with; the present one if not said")
    parser.add_argument("-o", "--output", type=Path, required=True)
    asked = parser.parse_args()
    lines = asked.rows.read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if "failed" not in row]
    train = rows[0]["recipe"]["train"]
    results.write(
        asked.output,
        model=f"{rows[0]['recipe']['model']['preset']}, {train['precision']}",
        data=asked.data,
        metric="; ".join([METRIC, *(PROBES[name] for name in rows[0]["probes"])]),
        values={row["name"]: value(row) for row in rows},
        hardware=rows[0]["device"],
        torch_version=rows[0]["torch"],
        commit=asked.commit,
        seeds=sorted({row["recipe"]["train"]["seed"] for row in rows}),
    )


if __name__ == "__main__":
    main()
