"""Cut text by a tokeniser here, for trials on a machine that has no such tokeniser.

    python benchmarks/trial_texts.py corpus mix.txt.xz -o ko.marked.txt.xz
    python benchmarks/trial_texts.py corpus wiki.valid.txt -o ko.valid.marked.txt.xz
    python benchmarks/trial_texts.py texts wiki.valid.txt --wic kobest_wic.tar.xz \
        --homographs ko_homograph_probe.tar.xz -o ko.cut.txt.xz

`corpus`: a sentence a line, borders of tokens marked (trial_measures.py), and a blank line after
every 200 lines of the raw text, which has none itself: there documents end. `torchelmo prepare
--tokenizer whitespace --sentences lines --tokenized-by kiwi` makes the corpus of it that
`--tokenizer kiwi` makes of the raw text.
`texts`: every sentence that trials measure, once each, in any order.
"""

from __future__ import annotations

import argparse
import lzma
import multiprocessing
import os
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import trial_measures as measures

from torchelmo.analysis.homographs import Homographs
from torchelmo.analysis.wic import Wic
from torchelmo.pretrain.prepare import PrepareOptions
from torchelmo.text.sentences import split_sentences
from torchelmo.text.words import get_tokenizer


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text, packed or not."""
    with (lzma.open if path.suffix == ".xz" else open)(
        path, "rt", encoding="utf-8", newline="\n"
    ) as file:
        for line in file:
            yield line.rstrip("\r\n")


def blocks(path: Path) -> Iterator[list[str]]:
    """Yield so many lines as `prepare` takes for a document of a text without blank lines."""
    found = lines(path)
    while block := list(islice(found, PrepareOptions().block_lines)):
        yield block


def marked(name: str, block: list[str]) -> str:
    """Return a block's sentences, marked."""
    tokenizer = get_tokenizer(name)
    spans = (span.text for line in block for span in split_sentences(line))
    return "".join(f"{measures.mark(text, tokenizer)}\n" for text in spans if text.strip()) + "\n"


def asked(raw: Path, wic: Path | None, homographs: Path | None) -> Iterator[str]:
    """Yield what is measured: the sentences of a raw text, and of the probes' open parts."""
    for line in lines(raw):
        yield from (span.text for span in split_sentences(line))
    if wic is not None:
        probe = Wic.read(wic, dev=True)
        for pair in (*probe.tune, *probe.count):
            yield from (pair.first.text, pair.second.text)
    if homographs is not None:
        yield from (one.sentence.text for one in Homographs.read(homographs, dev=True).examples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("corpus", "texts"))
    parser.add_argument("raw", type=Path, help="raw text, UTF-8, packed or not")
    parser.add_argument("--tokenizer", default="kiwi")
    parser.add_argument("--wic", type=Path)
    parser.add_argument("--homographs", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help=".xz")
    given = parser.parse_args()
    scratch = given.output.with_name(f"{given.output.name}.tmp")
    with lzma.open(scratch, "wt", encoding="utf-8", newline="\n") as out:
        if given.kind == "texts":
            tokenizer = get_tokenizer(given.tokenizer)
            for text in dict.fromkeys(asked(given.raw, given.wic, given.homographs)):
                out.write(f"{measures.mark(text, tokenizer)}\n")
        else:
            with multiprocessing.get_context("spawn").Pool() as pool:
                out.writelines(pool.imap(partial(marked, given.tokenizer), blocks(given.raw)))
    os.replace(scratch, given.output)


if __name__ == "__main__":
    main()
