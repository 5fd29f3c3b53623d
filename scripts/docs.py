"""Fill the tables in README.md and docs/ from the files in results/.

    python scripts/docs.py            # rewrite the pages
    python scripts/docs.py --check    # fail if a page is stale

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; NAME is a function below or in
docs_models.py or docs_tasks.py.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import docs_models
import docs_tasks

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(<!-- table: ([a-z_]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def result(name: str) -> dict:
    """Return the result file `results/NAME.json`."""
    return json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))


def parity() -> str:
    """Largest difference from each program, by size of model."""
    rows = [
        "| same weights, same sentences | AllenNLP 2.10.1 | simple_elmo 0.9.2 (TensorFlow) |",
        "|---|---|---|",
    ]
    for size in ("small", "original"):
        found = result(f"parity/{size}")
        worst = [max(found["values"][p]["max_abs_by_layer"]) for p in ("allennlp", "simple_elmo")]
        cells = " | ".join(f"{x:.1e}" for x in worst)
        rows.append(f"| {size} ({found['model'].split(', ')[1]}), {found['data']} | {cells} |")
    return "\n".join(rows) + "\n"


def prepare() -> str:
    """Speed and memory of `torchelmo prepare`."""
    speed, memory = result("pretrain/prepare"), result("pretrain/prepare_memory")
    fast, held = speed["values"], memory["values"]
    return "\n".join(
        [
            "| `torchelmo prepare` | measured |",
            "|---|---|",
            f"| {speed['data']}, {speed['hardware']} | {fast['seconds']:.0f} s "
            f"({fast['words_per_second']:,} words a second) |",
            f"| {held['tokens']:,} tokens, {held['types']:,} distinct (2 GB of made-up text) | "
            f"at most {held['peak_mb']:,.0f} MB of memory, all processes together |",
            "",
        ]
    )


def training() -> str:
    """Training runs on one GPU: speed and the perplexity they ended with."""
    found = [result(f"pretrain/{name}-h200") for name in ("small", "original")]

    def row(name: str, value: Callable[[dict], str]) -> str:
        return f"| {name} | " + " | ".join(map(value, found)) + " |"

    def final(one: dict, text: str | None = None) -> dict:
        return one["values"]["also"][text] if text else one["values"]["final"]

    def per_character(one: dict, text: str | None = None) -> str:
        return f"{final(one, text)['bits_per_character']:.3f}"

    return "\n".join(
        [
            row("", lambda one: one["model"]),
            "|---|---|---|",
            row("machine", lambda one: one["hardware"]),
            row("text", lambda one: one["data"]),
            row(
                "tokens read in each direction",
                lambda one: f"{one['values']['curve'][-1]['tokens'] / 1e6:,.0f} M",
            ),
            row(
                "tokens a second, whole step (median)",
                lambda one: f"{one['values']['tokens_per_second']['median']:,}",
            ),
            row(
                "perplexity, forward / backward",
                lambda one: f"{final(one)['forward']:.1f} / {final(one)['backward']:.1f}",
            ),
            row("unknown", lambda one: f"{final(one)['unknown'] / final(one)['tokens']:.1%}"),
            row("bits per character", per_character),
            row(
                "bits per character, books (another kind of text)",
                lambda one: per_character(one, "books.valid"),
            ),
            "",
        ]
    )


def kernels() -> str:
    """Errors of each operation against float64, and losses; nothing until they are measured."""
    if not (ROOT / "results" / "speed" / "kernels.json").exists():
        return ""
    whole = result("speed/kernels")
    found, curve = whole["values"], whole["values"]["curve"]
    rows = [
        f"| {whole['hardware']} | precision | cases | Triton | torch |",
        "|---|---|---|---|---|",
    ]
    for operation, dtypes in found["worst"].items():
        for dtype, errors in dtypes.items():
            cases = {
                row["case"]
                for row in found["operations"]
                if (row["operation"], row["dtype"]) == (operation, dtype)
            }
            cells = [
                f"{errors[name]:.1e}" if name in errors else "" for name in ("triton", "torch")
            ]
            rows.append(f"| {operation} | {dtype} | {len(cases)} | {' | '.join(cells)} |")
    steps = f"{curve['steps']:,} training steps in bf16, means of {curve['every']}"
    near, seeds = (
        f"{curve[name]['mean']:.4f} ({curve[name]['largest']:.4f})"
        for name in ("from_reference", "between_seeds")
    )
    return "\n".join(
        [
            *rows,
            "",
            f"| {steps} | mean (largest) difference of the loss, nats |",
            "|---|---|",
            f"| Triton and reference, same seed | {near} |",
            f"| Triton with two seeds | {seeds} |",
            "| Triton twice, same seed | "
            + ("0, all weights equal bit for bit |" if curve["identical"] else "not equal |"),
            "",
        ]
    )


def packaged() -> str:
    """The models in the package, from their cards."""
    rows = []
    for card in sorted((ROOT / "src" / "torchelmo" / "weights").glob("*/README.md")):
        text = card.read_text(encoding="utf-8")
        title = re.search(r"^# (.+)$", text, re.MULTILINE)
        size = sum(path.stat().st_size for path in card.parent.iterdir()) / 1e6
        link = f"../{card.relative_to(ROOT).as_posix()}"
        rows.append(
            f"| [{card.parent.name}]({link}) | {title[1] if title else ''} | {size:.0f} MB |"
        )
    if not rows:
        return "No model is packaged yet.\n"
    return "\n".join(["| name | what | size |", "|---|---|---|", *rows, ""])


def cpu() -> str:
    """Embedding on a CPU, beside other programs."""
    found = result("speed/cpu")
    names = {
        "float32": "torchelmo",
        "bf16": "torchelmo, bf16",
        "int8": "torchelmo, int8",
        "simple_elmo": "simple_elmo 0.9.2 (TensorFlow 2.15)",
        "allennlp": "AllenNLP 2.10.1",
    }
    rows = [
        f"| {found['hardware']}; {found['data']} | tokens/s, new words | words seen before | "
        "one sentence, ms | peak memory, MB | smallest cosine |",
        "|---|---|---|---|---|---|",
    ]
    for size in ("small", "original"):
        values = found["values"][size]
        for kind, name in names.items():
            one = values[kind]
            times = values["ratios"].get(kind)
            cells = [f"{one['cold']:,.0f}", f"{one['seen']:,.0f}" if "seen" in one else ""]
            if times:
                cells = [f"{c} ({times[k]:.1f}x)" for c, k in zip(cells, times, strict=True)]
            cells += [f"{one['ms_a_sentence']:.1f}", f"{one['peak_mb']:,.0f}"]
            cells.append(f"{one['cosine']:.5f}" if "cosine" in one else "")
            rows.append(f"| {size}: {name} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def gpu() -> str:
    """The LSTMs alone and training steps on a GPU."""
    found = result("speed/gpu")
    values, sizes = found["values"], ("small", "original")
    rows = [f"| {found['hardware']}, bf16, tokens a second | small | original |", "|---|---|---|"]
    names = {
        "forward": "both LSTM stacks, forward, with clips",
        "cuDNN forward": "cuDNN's, which do not clip",
        "forward and backward": "both stacks, forward and backward, with clips",
        "cuDNN forward and backward": "cuDNN's, which do not clip",
    }
    for key, name in names.items():
        cells = (f"{values[size]['lstm'][key]:,.0f}" for size in sizes)
        rows.append(f"| {name} | {' | '.join(cells)} |")
    cells = (f"{values[size]['train']['median']:,.0f}" for size in sizes)
    rows.append(f"| whole training step (median of 25 steps) | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def gpu_embedding() -> str:
    """Embedding on a GPU, by place and batch."""
    found = result("speed/gpu-embedding")
    kinds = [
        ("layers on the device, words seen before", {"to": "device"}),
        ("... no word seen before", {"to": "device", "words": "unseen"}),
        ("arrays in host memory, one call", {"to": "host"}),
        ("... by batches of 256 sentences", {"to": "host", "batch": "256 sentences"}),
        ("... by batches of 32 sentences", {"to": "host", "batch": "32 sentences"}),
        ("... a call for each 256 sentences", {"to": "host", "call": "256 sentences"}),
        ("... a call for each 32 sentences", {"to": "host", "call": "32 sentences"}),
    ]
    columns = [(size, kind) for size in ("small", "original") for kind in ("float32", "bf16")]
    named = " | ".join(f"{size}, {kind}" for size, kind in columns)
    rows = [f"| {found['hardware']}, tokens a second | {named} |", "|---|" + "---|" * len(columns)]

    def cell(size: str, precision: str, wanted: dict) -> str:
        asked = {"precision": precision, **wanted}
        keys = ("precision", "to", "words", "batch", "call")
        for row in found["values"][size]["embed"]:
            own = {key: row[key] for key in keys if key in row}
            if own == asked and "tokens_per_second" in row:
                return f"{row['tokens_per_second']:,.0f}"
        raise KeyError(asked)

    for name, wanted in kinds:
        rows.append(f"| {name} | {' | '.join(cell(*one, wanted) for one in columns)} |")

    def single(size: str, precision: str, key: str) -> float:
        rows = found["values"][size]["embed"]
        return next(r[key] for r in rows if r["precision"] == precision and key in r)

    cells = (f"{single(*one, 'median_ms'):.1f}" for one in columns)
    rows.append(f"| one sentence, ms | {' | '.join(cells)} |")
    cells = (f"{single(*one, 'least_cosine_to_float32'):.5f}" for one in columns)
    rows.append(f"| smallest cosine to float32 | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def gpu_limits() -> str:
    """What the GPU can do at most, and what of it is reached."""
    found = result("speed/gpu-embedding")["values"]
    limits = found["limits"]

    def best(size: str, precision: str) -> float:
        rows = found[size]["embed"]
        return max(r["tflops"] for r in rows if r["precision"] == precision and "tflops" in r)

    rows = ["| TFLOP/s | a large product | small, embedding | original, embedding |"]
    rows.append("|---|---|---|---|")
    for kind in ("float32", "bf16"):
        cells = [f"{limits[kind] / 1e3:.0f}", *(f"{best(n, kind):.0f}" for n in SIZES)]
        rows.append(f"| {kind} | {' | '.join(cells)} |")
    rows.append(f"| float32 by one tf32 product | {limits['tf32'] / 1e3:.0f} | | |")
    return "\n".join(rows) + "\n"


def gpu_steps() -> str:
    """A step of both stacks by number of rows, beside its least."""
    found = result("speed/gpu-steps")["values"]
    columns = [(size, kind) for size in SIZES for kind in ("float32", "bf16")]
    named = " | ".join(f"{size}, {kind}" for size, kind in columns)
    rows = [f"| rows | {named} |", "|---|" + "---|" * len(columns)]
    cells = {
        (size, row["precision"], row["rows"]): row for size in SIZES for row in found[size]["steps"]
    }
    for count in sorted({key[2] for key in cells}):
        one = [cells[(*column, count)] for column in columns]
        told = (f"{c['microseconds']:,.0f} ({1e6 * count / c['microseconds']:,.0f})" for c in one)
        rows.append(f"| {count:,} | {' | '.join(told)} |")
    least = (f"{cells[(*column, 1)]['weights_read']:.0f}" for column in columns)
    rows.append(f"| reading the weights once takes | {' | '.join(least)} |")
    return "\n".join(rows) + "\n"


def gpu_busy() -> str:
    """What takes the time of small batches that go to host memory, and what the GPU would allow."""
    found = result("speed/gpu-embedding")["values"]
    each = found["text"]["tokens"] / found["text"]["sentences"]
    rows = ["| milliseconds a batch | all | kernels | copies | tokens/s, were kernels all |"]
    rows.append("|---|---|---|---|---|")
    rows += [
        f"| {size}, {row['precision']}, {row['sentences']} sentences | {row['wall']:.1f} | "
        f"{row['kernels']:.1f} | {row['copies']:.1f} | "
        f"{1e3 * each * row['sentences'] / row['kernels']:,.0f} |"
        for size in SIZES
        for row in found[size]["busy"]
    ]
    return "\n".join(rows) + "\n"


def gpu_scale() -> str:
    """Cost of a token by size of text."""
    found = result("speed/gpu")["values"]["small"]["scale"]
    rows = ["| tokens | distinct words | microseconds a token | process, MB | device, MB |"]
    rows.append("|---|---|---|---|---|")
    rows += [
        f"| {row['tokens']:,} | {row['distinct']:,} | {row['microseconds_per_token']:.2f} | "
        f"{row['process_mb']:,.0f} | {row['device_mb']:,.0f} |"
        for row in found
    ]
    return "\n".join(rows) + "\n"


SIZES = ("small", "original")
TABLES: dict[str, Callable[[], str]] = {
    "cpu": cpu,
    "finetuning": docs_models.finetuning,
    "gpu": gpu,
    "gpu_busy": gpu_busy,
    "gpu_embedding": gpu_embedding,
    "gpu_limits": gpu_limits,
    "gpu_scale": gpu_scale,
    "gpu_steps": gpu_steps,
    "heads": docs_tasks.heads,
    "kernels": kernels,
    "loading": docs_models.loading,
    "models": docs_models.models,
    "neighbours": docs_models.neighbours,
    "packaged": packaged,
    "parity": parity,
    "prepare": prepare,
    "tasks": docs_tasks.tasks,
    "tasks_brief": docs_tasks.brief,
    "training": training,
    "trials": docs_models.trials,
}


def main() -> None:
    stale = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        old = page.read_text(encoding="utf-8")
        new = BLOCK.sub(lambda match: match[1] + TABLES[match[2]]() + match[3], old)
        if new != old:
            stale.append(page.relative_to(ROOT).as_posix())
            if "--check" not in sys.argv:
                page.write_text(new, encoding="utf-8")
    if stale and "--check" in sys.argv:
        sys.exit(f"stale, run python scripts/docs.py: {', '.join(stale)}")


if __name__ == "__main__":
    main()
