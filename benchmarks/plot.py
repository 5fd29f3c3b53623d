"""Draw a result of `torchelmo bench` again, as its --plot does.

python benchmarks/plot.py results/speed/cpu-small.json -o docs/images/cpu-small.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from torchelmo.apps.bench import report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    report.draw(json.loads(arguments.result.read_text(encoding="utf-8")), arguments.output)


if __name__ == "__main__":
    main()
