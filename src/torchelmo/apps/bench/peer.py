"""Runs another ELMo program in an interpreter that has it: started as a script, by its path.

    PYTHON peer.py allennlp|simple_elmo FOLDER TEXT BATCH THREADS DEVICE

FOLDER holds options.json and weights.hdf5, TEXT a tokenised sentence a line; BATCH is the largest
one that will be asked for. The model is loaded
once; a line of JSON then answers each line of standard input:

    {"batch": 32}               all sentences, sorted by length, so many at a time
    {"batch": 1, "limit": 50}   the first 50, one at a time
    {"vectors": 0}              the layers of a sentence, to see that the same work is done

Imports nothing of torchelmo, which need not be installed there. State is set to zero before each
batch, which both programs would otherwise carry on. Neither keeps vectors of words it has seen.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Sentence = list[str]
Array = Any  # numpy's, which is not needed here by name
NEEDED = {"h5py", "more_itertools", "numpy", "torch"}  # of AllenNLP's libraries, by its ELMo


class Program(NamedTuple):
    """A loaded program: layers (B, L+1, T, D) of sentences, a state of zero, and its version."""

    embed: Callable[[list[Sentence]], Array]
    reset: Callable[[], object]
    version: str


class _Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for libraries that a program imports and does not need for ELMo.

    AllenNLP 2.10 asks for a torch of before 1.13 and libraries of its time. Installed without them
    (`pip install --no-deps`), its ELMo runs on any torch, beside newer ones or none.
    """

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)

        def anything(name: str) -> object:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

        module.__dict__["__getattr__"] = anything
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def load_allennlp(folder: Path, batch: int, threads: int, device: str) -> Program:
    """Load AllenNLP's biLM, used as its ElmoEmbedder did."""
    import torch

    torch.set_num_threads(threads)
    wanted = [x for x in importlib.metadata.requires("allennlp") or [] if "extra ==" not in x]
    names = {re.split(r"[^\w-]", line)[0].replace("-", "_") for line in wanted} - NEEDED
    sys.meta_path.insert(0, _Missing(names))
    # The packages' own __init__ would import every reader and model: entered bare, by their paths.
    spec = importlib.util.find_spec("allennlp")
    if spec is None or spec.origin is None:
        raise ImportError("AllenNLP is not installed in this interpreter")
    home = Path(spec.origin).parent
    for name in ("data", "data.fields", "data.tokenizers", "data.token_indexers", "modules"):
        package = types.ModuleType(f"allennlp.{name}")
        package.__path__ = [str(home.joinpath(*name.split(".")))]
        sys.modules[package.__name__] = package
    # Without its library a path is a path.
    importlib.import_module("allennlp.common.file_utils").__dict__["cached_path"] = str
    for owner, name in (
        ("data.tokenizers.token_class", "Token"),
        ("data.fields.text_field", "TextField"),
    ):
        made = getattr(importlib.import_module(f"allennlp.{owner}"), name)
        setattr(sys.modules[f"allennlp.{owner.rpartition('.')[0]}"], name, made)
    elmo = importlib.import_module("allennlp.modules.elmo")
    util = importlib.import_module("allennlp.nn.util")
    model = elmo._ElmoBiLm(str(folder / "options.json"), str(folder / "weights.hdf5"))
    model.eval().to(device)

    @torch.no_grad()
    def embed(sentences: list[Sentence]) -> Array:
        found = model(elmo.batch_to_ids(sentences).to(device))
        inner = [util.remove_sentence_boundaries(x, found["mask"])[0] for x in found["activations"]]
        return torch.stack(inner, dim=1).cpu().numpy()

    version = f"{importlib.metadata.version('allennlp')} (torch {torch.__version__})"
    return Program(embed, model._elmo_lstm.reset_states, version)


def load_simple_elmo(folder: Path, batch: int, threads: int, device: str) -> Program:
    """Load simple_elmo; its batches go through its own graph, without the padded copy of all."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    if importlib.util.find_spec("tf_keras"):  # newer TensorFlow has the cells it uses there
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
    simple_elmo = importlib.import_module("simple_elmo")
    tensorflow = importlib.import_module("tensorflow")
    tf = tensorflow.compat.v1
    tf.disable_eager_execution()
    model = simple_elmo.ElmoModel()
    model.load(str(folder), max_batch_size=batch)
    options = tf.ConfigProto(
        intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads
    )
    session = tf.Session(config=options)
    session.run(tf.global_variables_initializer())
    # What is not a weight: h and c of each layer and direction.
    states = [v for v in tf.global_variables() if re.search(r"/Variable(_\d+)?$", v.op.name)]
    zero = tf.variables_initializer(states)
    layers = model.sentence_embeddings_op["lm_embeddings"]

    def embed(sentences: list[Sentence]) -> Array:
        ids = model.batcher.batch_sentences(sentences)
        return session.run(layers, feed_dict={model.sentence_character_ids: ids})

    version = f"{importlib.metadata.version('simple_elmo')} (TensorFlow {tensorflow.__version__})"
    return Program(embed, lambda: session.run(zero), version)


def timed(program: Program, sentences: list[Sentence], batch: int) -> dict[str, object]:
    """Return the seconds of all batches, and of each."""
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i])) if batch > 1 else None
    chosen = sentences if order is None else [sentences[i] for i in order]
    each = []
    for start in range(0, len(chosen), batch):
        begin = time.perf_counter()
        program.reset()
        program.embed(chosen[start : start + batch])
        each.append(time.perf_counter() - begin)
    return {"seconds": sum(each), "each": each, "peak_mb": peak()}


def peak() -> float | None:
    """Return the most memory that this process has held, in MB, where the system tells."""
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


LOADERS = {"allennlp": load_allennlp, "simple_elmo": load_simple_elmo}


def main() -> None:
    """Load the program that the arguments name, and answer."""
    name, folder, text, batch, threads, device = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the program prints is no answer
    lines = Path(text).read_text(encoding="utf-8").splitlines()
    sentences = [line.split() for line in lines]
    program = LOADERS[name](Path(folder), int(batch), int(threads), device)
    longest = sorted(sentences, key=len)[-64:]
    timed(program, longest, min(32, int(batch)))  # sets up what a first call does
    answer: dict[str, object] = {"version": program.version}
    while True:
        print(json.dumps(answer), file=answers, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        asked = json.loads(line)
        if "vectors" in asked:
            words = sentences[asked["vectors"]]
            program.reset()
            found = program.embed([words])[0]  # (L+1, T, D)
            answer = {"vectors": [layer[: len(words)].tolist() for layer in found]}
        else:
            answer = timed(program, sentences[: asked.get("limit")], asked["batch"])


if __name__ == "__main__":
    main()
