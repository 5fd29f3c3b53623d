"""Draw a training curve as SVG: perplexity on the validation text against tokens read.

python scripts/curve.py results/pretrain/small-h200.json -o docs/images/small-h200.svg
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 320, 56, 16, 34, 44
COLOURS = {"forward": "#3f7cae", "backward": "#4b8f4b"}
TICKS = (40, 50, 60, 70, 80, 100, 120, 150, 200)


def draw(result: dict) -> str:
    """Return the picture; points above the highest tick are left out and counted."""
    curve = result["values"]["curve"]
    last = max(point["tokens"] for point in curve)
    low, high = math.log(TICKS[0]), math.log(TICKS[-1])

    def x(tokens: float) -> float:
        return LEFT + tokens / last * (WIDTH - LEFT - RIGHT)

    def y(perplexity: float) -> float:
        share = (math.log(perplexity) - low) / (high - low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#24303c">',
        f"<title>Validation perplexity against tokens: {result['model']}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20">Validation perplexity, {result["model"]}, '
        f"{result['hardware']}</text>",
    ]
    for tick in TICKS:
        at = y(tick)
        parts.append(
            f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#e3e7ea"/>'
            f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{tick}</text>'
        )
    parts += [
        f'<text x="{x(last * share):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
        f"{last * share / 1e6:,.0f} M</text>"
        for share in (0.25, 0.5, 0.75, 0.98)
    ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">tokens read</text>')
    for place, (name, colour) in enumerate(COLOURS.items()):
        shown = [point for point in curve if point[name] <= TICKS[-1]]
        path = " ".join(f"{x(p['tokens']):.1f},{y(p[name]):.1f}" for p in shown)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
            f'<text x="{WIDTH - RIGHT - 90}" y="{TOP + 18 + 16 * place}" fill="{colour}">'
            f"{name}</text>"
        )
        if len(shown) < len(curve):
            above = len(curve) - len(shown)
            parts.append(
                f'<text x="{LEFT + 8}" y="{TOP + 18 + 16 * place}" fill="{colour}">'
                f"{above} point above {TICKS[-1]}</text>"
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    result = json.loads(arguments.result.read_text(encoding="utf-8"))
    arguments.output.write_text(draw(result), encoding="utf-8")


if __name__ == "__main__":
    main()
