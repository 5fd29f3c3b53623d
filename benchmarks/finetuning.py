"""Continue a model one epoch on the text of tasks; perplexity on held-out text before and after.

    python benchmarks/finetuning.py en-small --tasks TASKS -o results/models
    python benchmarks/finetuning.py en-small --tasks TASKS --tune sst

TASKS holds ner.tar.xz, sst.tar.xz, nli.tar.xz and qa.tar.xz; each text gets a result file:

conll2003               eng.train; held out: eng.testa
sst                     sentences of the training trees; held out: those of the development trees
snli                    SNLI dev and CAD train, each distinct sentence once; held out: a tenth
squadshifts-contexts    paragraphs of SQuADShifts (new-wiki, reddit, amazon); held out: a tenth
squadshifts-questions   its questions; held out: those of the same tenth

A tenth is drawn with a fixed seed, among what belongs together: pairs linked by a common sentence,
paragraphs of one article or product, single posts. Texts are cut to --tokens and --valid-tokens,
documents being taken in shuffled order, so that a run takes minutes on two cores.

Labels and test parts are not read. --tune tries learning rates and dropout with a tenth of a
training text as its held-out part, so that nothing is chosen on what is reported.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import re
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import results
import torch

from torchelmo.elmo import Elmo
from torchelmo.formats import load
from torchelmo.formats.model import Model
from torchelmo.perplexity import WordText, text_perplexity
from torchelmo.pretrain.finetune import FinetuneOptions, finetune
from torchelmo.text.sentences import split_sentences
from torchelmo.text.words import Tokenizer, get_tokenizer

SEED = 0
HELD_OUT = 10  # one in so many groups
SHIFTS = ("new_wiki", "reddit", "amazon_reviews")
ESCAPES = {"-LRB-": "(", "-RRB-": ")", "``": '"', "''": '"'}
RATE = 1e-3  # an epoch of a task's text is some hundred steps: the library's 3e-4 is slow there
RATES, DROPOUTS = (3e-4, 1e-3, 2e-3, 4e-3), (0.0, 0.1)

Document = list[str]  # lines: tokenised sentences, or raw text


@dataclass(frozen=True)
class Task:
    """The text of a task: what to train on, and what to measure on."""

    about: str
    train: list[Document]
    valid: list[Document]
    raw: bool = False  # not tokenised yet


def conll(tasks: Path, tokenizer: Tokenizer) -> Task:
    """Read the columns of CoNLL-2003; a document begins with -DOCSTART-."""
    parts = []
    for name in ("eng.train", "eng.testa"):
        documents: list[Document] = []
        words: list[str] = []
        for line in [*read(tasks / "ner.tar.xz", f"*/{name}").splitlines(), ""]:
            if line.startswith("-DOCSTART-"):
                documents.append([])
            elif line.strip():
                words.append(line.split()[0])
            elif words:
                documents[-1].append(" ".join(words))
                words = []
        parts.append(documents)
    return Task("CoNLL-2003, train to testa", *parts)


def sst(tasks: Path, tokenizer: Tokenizer) -> Task:
    """Read the leaves of the Stanford Sentiment Treebank's trees."""
    parts = []
    for name in ("train", "dev"):
        trees = read(tasks / "sst.tar.xz", f"sst/{name}.txt").splitlines()
        parts.append([[leaves(tree)] for tree in trees if tree.strip()])
    return Task("SST, train to dev", *parts)


def leaves(tree: str) -> str:
    r"""Return a tree's words, without the escapes of its time.

    >>> leaves("(3 (2 A) (3 (2 -LRB-) (2 read\\/write)))")
    'A ( read/write'
    """
    words = re.findall(r"\(\d ([^()]+)\)", tree)
    return " ".join(ESCAPES.get(word, word.replace("\\", "")) for word in words)


def snli(tasks: Path, tokenizer: Tokenizer) -> Task:
    """Read the pairs of SNLI dev (tokenised) and CAD train (raw); pairs that share a sentence, and
    all that these share one with, stay together.
    """
    archive = tasks / "nli.tar.xz"
    sides = [read(archive, f"*/snli/s{n}.dev").splitlines() for n in (1, 2)]
    pairs = [tuple(side.strip() for side in pair) for pair in zip(*sides, strict=True)]
    rows = read(archive, "*/cad_snli/train.tsv").splitlines()[1:]
    pairs += [
        tuple(" ".join(tokenizer.words(side)) for side in row.split("\t")[:2]) for row in rows
    ]
    groups = linked(pairs)
    return Task("SNLI dev and CAD train, a tenth of the linked pairs held out", *parted(groups))


def linked(pairs: Iterable[Sequence[str]]) -> list[Document]:
    """Return the distinct sentences of pairs, those linked by pairs in one document, in order.

    >>> linked([("A dog .", "B"), ("C", "D"), ("a dog.", "E")])
    [['A dog .', 'B', 'E'], ['C', 'D']]
    """
    parent: dict[str, str] = {}
    first: dict[str, str] = {}  # sentences that differ in case and punctuation count as one

    def root(key: str) -> str:
        while parent[key] != key:
            parent[key] = key = parent[parent[key]]
        return key

    for pair in pairs:
        keys = [re.sub(r"\W", "", side.casefold()) for side in pair]
        for key, side in zip(keys, pair, strict=True):
            parent.setdefault(key, key)
            first.setdefault(key, side)
        parent[root(keys[1])] = root(keys[0])
    groups: dict[str, Document] = {}
    for key, side in first.items():
        groups.setdefault(root(key), []).append(side)
    return list(groups.values())


def contexts(tasks: Path, tokenizer: Tokenizer) -> Task:
    """Read the paragraphs of SQuADShifts."""
    groups = shifts(tasks)
    texts = [list(dict.fromkeys(one_line(p["context"]) for p in group)) for group in groups]
    return Task("SQuADShifts, contexts, a tenth held out", *parted(texts), raw=True)


def questions(tasks: Path, tokenizer: Tokenizer) -> Task:
    """Read the questions of SQuADShifts."""
    groups = shifts(tasks)
    texts = [[one_line(qa["question"]) for p in group for qa in p["qas"]] for group in groups]
    return Task("SQuADShifts, questions, a tenth held out", *parted(texts), raw=True)


def shifts(tasks: Path) -> list[list[dict]]:
    """Return the paragraphs by article or product; posts (one entry holds them all) by text."""
    groups: dict[tuple[str, str], list[dict]] = {}
    for name in SHIFTS:
        entries = json.loads(read(tasks / "qa.tar.xz", f"*/{name}_*.json"))["data"]
        for number, entry in enumerate(entries):
            for paragraph in entry["paragraphs"]:
                key = paragraph["context"] if len(entries) == 1 else str(number)
                groups.setdefault((name, key), []).append(paragraph)
    return list(groups.values())


TASKS = {
    "conll2003": conll,
    "sst": sst,
    "snli": snli,
    "squadshifts-contexts": contexts,
    "squadshifts-questions": questions,
}


def read(archive: Path, pattern: str) -> str:
    """Return the text of the one file of an archive that a pattern names."""
    with tarfile.open(archive) as opened:
        for member in opened:
            if member.isfile() and Path(member.name).match(pattern):
                file = opened.extractfile(member)
                assert file is not None
                return file.read().decode("utf-8")
    raise SystemExit(f"{archive} holds no {pattern}")


def one_line(text: str) -> str:
    """Return a text on one line."""
    return " ".join(text.split())


def parted(groups: list[Document]) -> tuple[list[Document], list[Document]]:
    """Hold out one group in ten, drawn with a fixed seed."""
    order = random.Random(SEED).sample(range(len(groups)), len(groups))
    count = max(len(groups) // HELD_OUT, 1)
    held = sorted(order[:count])
    return [groups[i] for i in sorted(order[count:])], [groups[i] for i in held]


def cut(
    documents: list[Document], limit: int, count: Callable[[str], int]
) -> tuple[list[Document], int]:
    """Return documents in shuffled order up to so many tokens, and how many tokens they have."""
    taken, total = [], 0
    for document in random.Random(SEED).sample(documents, len(documents)):
        if total >= limit:
            break
        taken.append(document)
        total += sum(count(line) for line in document)
    return taken, total


def save(documents: list[Document], path: Path) -> Path:
    """Write documents, a blank line between those of several lines."""
    blank = "\n" if any(len(document) > 1 for document in documents) else ""
    path.write_text(
        blank.join("".join(f"{line}\n" for line in document) for document in documents),
        encoding="utf-8",
    )
    return path


def measure(model: Model | Path, documents: list[Document], tokenizer: Tokenizer | None) -> dict:
    """Return the figures of `torchelmo perplexity`, the text read on and on."""
    elmo = Elmo(model) if isinstance(model, Model) else Elmo.from_pretrained(model, device="cpu")
    text = WordText()
    for line in (line for document in documents for line in document):
        if tokenizer is None:
            text.add([line.split()])
        else:
            text.add([tokenizer.words(span.text) for span in split_sentences(line)], line)
    found = text_perplexity(elmo.encoder, elmo.softmax, elmo.vocabulary, text)
    return dataclasses.asdict(found)


def run(model: Model, task: Task, work: Path, options: FinetuneOptions, device: str) -> dict:
    """Continue the model on a task's text; return both measurements."""
    tokenizer = get_tokenizer(model.config.tokenizer.name) if task.raw else None
    before = measure(model, task.valid, tokenizer)
    begin = time.perf_counter()
    done = finetune(
        model,
        [save(task.train, work / "train.txt")],
        work / "out",
        options,
        valid=[save(task.valid, work / "valid.txt")],
        device=torch.device(device),
    )
    assert done is not None
    seconds = time.perf_counter() - begin
    return {
        "before": before,
        "after": measure(done.folder, task.valid, tokenizer),
        "steps": done.result.step,
        "seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="name or folder; it needs its softmax")
    parser.add_argument("--tasks", type=Path, required=True, help="the folder of the archives")
    parser.add_argument("--only", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--tune", choices=list(TASKS), help="try rates on a training text")
    parser.add_argument("--tokens", type=int, default=250_000, help="to train on, at most")
    parser.add_argument("--valid-tokens", type=int, default=50_000, help="to measure on, at most")
    parser.add_argument("--learning-rate", type=float, default=RATE)
    parser.add_argument("--dropout", type=float, default=FinetuneOptions.dropout)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("-o", "--output", type=Path, default=Path("results/models"))
    arguments = parser.parse_args()
    model = load.load(arguments.model)
    if model.softmax is None:
        raise SystemExit(f"{arguments.model} has no softmax: there is no perplexity before")
    tokenizer = get_tokenizer(model.config.tokenizer.name)
    name = f"{Path(arguments.model).name}, {model.config.lstm.cells}/{model.config.lstm.projection}"
    for corpus in [arguments.tune] if arguments.tune else arguments.only:
        whole = TASKS[corpus](arguments.tasks, tokenizer)

        def count(line: str, raw: bool = whole.raw) -> int:
            return len(tokenizer.words(line)) if raw else len(line.split())

        source = whole.train
        if arguments.tune:
            source, whole_valid = parted(whole.train)
            whole = dataclasses.replace(whole, valid=whole_valid)
        train, tokens = cut(source, arguments.tokens, count)
        valid, _ = cut(whole.valid, arguments.valid_tokens, count)
        task = dataclasses.replace(whole, train=train, valid=valid)
        asked = [(arguments.learning_rate, arguments.dropout)]
        if arguments.tune:
            asked = [(rate, dropout) for rate in RATES for dropout in DROPOUTS]
        for rate, dropout in asked:
            options = FinetuneOptions(
                learning_rate=rate, dropout=dropout, seed=SEED, sentences_by_line=not task.raw
            )
            with tempfile.TemporaryDirectory() as work:
                values = run(model, task, Path(work), options, arguments.device)
            if arguments.tune:
                old, new = (values[when]["perplexity"] for when in ("before", "after"))
                print(f"{corpus}: rate {rate:g}, dropout {dropout:g}: {old:.2f} -> {new:.2f}")
                continue
            kept = sum(len(document) for document in train) / sum(map(len, source))
            values |= {
                "tokens": tokens,
                "share": round(kept, 4),  # of the lines of the training text
                "options": dataclasses.asdict(options),
            }
            results.write(
                arguments.output / f"finetuning-{corpus}.json",
                model=name,
                data=task.about + (f" ({kept:.0%} of the text)" if kept < 1 else ""),
                metric="perplexity and bits per character of held-out text before and after",
                values=values,
            )


if __name__ == "__main__":
    main()
