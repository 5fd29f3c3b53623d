"""Turn a finished run's log into a result file: the validation curve against tokens, and the speed.

    torchelmo prepare TEXT --valid VALID -o corpus && torchelmo pretrain RECIPE -o RUN
    torchelmo perplexity RUN/last VALID --tokenize --json > perplexity.json
    python benchmarks/training_run.py RUN/log.jsonl RUN/last/config.json perplexity.json \
        --hardware "NVIDIA H200" --data "what was read" -o results/pretrain/NAME.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log", type=Path)
    parser.add_argument("config", type=Path)
    parser.add_argument("perplexity", type=Path)
    parser.add_argument("--hardware", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--commit", help="what the run was made with; the present one if not said")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="more of `perplexity`")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    lines = [json.loads(line) for line in arguments.log.read_text(encoding="utf-8").splitlines()]
    facts = json.loads(arguments.config.read_text(encoding="utf-8"))
    training = facts.get("training", facts)
    recipe = training["recipe"]
    per_step = training["tokens"] // training["steps"]
    curve = [
        {
            "tokens": line["step"] * per_step,
            **{k: round(line["validation"][k], 3) for k in ("forward", "backward", "perplexity")},
        }
        for line in lines
        if line.get("validation")
    ]
    speeds = [line["tokens_per_second"] for line in lines if line.get("tokens_per_second")]
    results.write(
        arguments.output,
        model=f"{recipe['model']['preset']}, {recipe['train']['precision']}",
        data=arguments.data,
        metric="perplexity of the validation text against tokens of one direction; tokens a second",
        values={
            "recipe": recipe,
            "curve": curve,
            "tokens_per_second": {
                "median": round(statistics.median(speeds)),
                "fastest": round(max(speeds)),
            },
            "final": json.loads(arguments.perplexity.read_text(encoding="utf-8")),
            "also": {
                path.stem: json.loads(path.read_text(encoding="utf-8")) for path in arguments.also
            },
        },
        hardware=arguments.hardware,
        torch_version=training["versions"]["torch"],
        commit=arguments.commit,
    )


if __name__ == "__main__":
    main()
