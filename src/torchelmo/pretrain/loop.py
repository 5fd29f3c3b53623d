"""The training loop: steps, validation, checkpoints, and going on exactly where it stopped.

    RUN/log.jsonl       a line every so many steps, and one for each validation
    RUN/lock            held while a run is at work: another one in the same folder is refused
    RUN/checkpoints/    see checkpoint.py; a run of another recipe or corpus is refused
    RUN/best/, RUN/last/   native model folders: the best by validation, and the final one

Exact means bit for bit on the same machine: weights, optimizer, LSTM states, dropout's random state
and the streams' positions are saved, and everything else that is drawn depends on the seed and the
step's number alone.
"""

from __future__ import annotations

import contextlib
import json
import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from torchelmo.config import ElmoConfig, Json
from torchelmo.errors import InputError
from torchelmo.formats import native
from torchelmo.formats.model import Model
from torchelmo.nn.bilm import BiLM, Direction, Memory
from torchelmo.nn.softmax import AnySoftmax, make_softmax
from torchelmo.pretrain import checkpoint
from torchelmo.pretrain.corpus import Corpus
from torchelmo.pretrain.evaluate import validate
from torchelmo.pretrain.feed import Feed, Positions
from torchelmo.pretrain.graphs import Recorder, padded
from torchelmo.pretrain.log import Log, Status
from torchelmo.pretrain.objective import Dropout, LanguageModel, Step
from torchelmo.pretrain.optimizers import clip_gradients, learning_rate, make_optimizer, set_rate
from torchelmo.pretrain.plan import plan
from torchelmo.pretrain.processes import Processes
from torchelmo.pretrain.recipe import Recipe
from torchelmo.pretrain.word_vectors import fill_vectors


@dataclass
class Result:
    """How a run ended."""

    step: int
    reason: str  # "finished", "stopped" (by a signal) or "converged" (early stop)
    best: Json | None
    folder: Path


class Trainer:
    """One run, new or gone on with."""

    def __init__(
        self,
        recipe: Recipe,
        corpus: Corpus,
        run: Path,
        *,
        device: torch.device,
        processes: Processes | None = None,
        start: Model | None = None,
        frozen: bool = False,
        notes: Json | None = None,
    ) -> None:
        """Prepare a run in the folder `run`.

        Args:
            recipe: what to do.
            corpus: what to read.
            run: the run's folder; a run of the same recipe and corpus in it is gone on with.
            device: where to train.
            processes: the processes that share the batch, this one alone if None.
            start: a model to start from instead of random weights.
            frozen: train the softmax alone.
            notes: facts for the model's config and card.
        """
        self.recipe, self.corpus, self.run_folder, self.device = recipe, corpus, run, device
        self.processes = processes or Processes.alone()
        world = self.processes.world
        if recipe.train.batch % world:
            raise InputError(
                f"train.batch ({recipe.train.batch}) rows cannot be divided among {world} processes"
            )
        self.config = self._new_config() if start is None else self._config_of(start)
        self.plan = plan(recipe, corpus, self.config)
        self.notes = dict(notes or {})
        self.attribution = None if start is None else start.attribution
        bilm, softmax = self._network(start)
        self.directions: tuple[Direction, ...] = ("forward", "backward")
        if recipe.model.directions == "forward":
            self.directions = ("forward",)
            bilm.backward_layers.requires_grad_(False)
        self.frozen = frozen
        if frozen:
            bilm.requires_grad_(False)
        rank = self.processes.rank
        self.generator = torch.Generator(device=device).manual_seed(recipe.train.seed + 7919 * rank)
        self.model = LanguageModel(
            bilm.to(device), softmax.to(device), Dropout(recipe.train.dropout, self.generator)
        ).train()
        self.names: dict[Tensor, str] = {p: name for name, p in self.model.named_parameters()}
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(recipe.train, self.parameters)
        self.step = 0
        rows = recipe.train.batch // world
        self.memory: dict[Direction, Memory] = {
            name: bilm.zero_memory(rows) for name in self.directions
        }
        self.positions: Positions | None = None
        self.best: Json | None = None
        self.waited = 0  # validations since the best
        # Since the last line of the log: the sum of losses of so many steps, the largest gradient.
        self.seen, self.counted = torch.zeros((), device=device), 0
        self.strain = torch.zeros((), device=device)
        self.passed_over: list[str] = []  # broken checkpoints
        with checkpoint.alone(run, self.processes):
            self._resume()

    def _new_config(self) -> ElmoConfig:
        config = self.recipe.config(self.corpus.config, self.corpus.vocabulary_size)
        return replace(config, tokenizer=self.corpus.tokenizer)

    def _config_of(self, start: Model) -> ElmoConfig:
        vocabulary = self.corpus.vocabulary_size
        adaptive = self.recipe.adaptive(vocabulary)
        if start.softmax is not None and start.config.adaptive != adaptive:
            kinds = [
                "one softmax for all words" if kind is None else f"clusters from {kind.cutoffs} on"
                for kind in (start.config.adaptive, adaptive)
            ]
            raise InputError(f"the model has {kinds[0]}, the recipe says {kinds[1]}: train.softmax")
        return replace(start.config, vocabulary=vocabulary, adaptive=adaptive)

    def _network(self, start: Model | None) -> tuple[BiLM, AnySoftmax]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.recipe.train.seed)
            bilm = BiLM(self.config)
            if start is not None:  # a copy: the caller's tensors stay as they are
                bilm.load_state_dict(dict(start.tensors))
            softmax = make_softmax(self.config, self.corpus.vocabulary_size)
        if start is not None and start.softmax is not None:
            softmax.load_state_dict(dict(start.softmax))
        model = self.recipe.model
        if model.words and bilm.token.words is not None:
            if model.vectors is not None:
                words = self.corpus.vocabulary
                found = fill_vectors(bilm.token.words, Path(model.vectors), words)
                self.notes["vectors_found"] = found
            if model.tie:
                softmax.weight = bilm.token.words
        return bilm, softmax

    def _facts(self) -> Json:
        recipe = json.loads(json.dumps(self.recipe.to_json()))
        del recipe["data"]["corpus"]  # where it lies; what it is, its sum says
        return {
            "recipe": recipe,
            "frozen": self.frozen,
            "corpus_sha256": self.corpus.sha256,
            "config": json.loads(json.dumps(self.config.to_json())),
        }

    def _resume(self) -> None:
        saved, self.passed_over = checkpoint.load_latest(self.run_folder)
        if saved is None:
            if self.passed_over:
                raise InputError(
                    f"no checkpoint in {self.run_folder} is whole: {self.passed_over[0]}"
                )
            return
        facts = self._facts()
        for name, what in (
            ("corpus_sha256", "corpus"),
            ("config", "network"),
            ("recipe", "recipe"),
            ("frozen", "kind"),
        ):
            if saved.facts.get(name) != facts[name]:
                key = "" if what == "corpus" else difference(saved.facts.get(name), facts[name])
                raise InputError(
                    f"{self.run_folder} holds a run of another {what}{key}: choose another folder, "
                    "or repeat the command of that run"
                )
        if self.processes.first:
            checkpoint.set_aside(self.run_folder, saved.step)
        model = saved.model()
        self.model.bilm.load_state_dict(dict(model.tensors))
        assert model.softmax is not None
        self.model.softmax.load_state_dict(dict(model.softmax))
        checkpoint.restore_optimizer(self.optimizer, self.names, saved.tensors)
        self.step, self.best, self.waited = saved.step, saved.facts["best"], saved.facts["waited"]
        self.positions, tensors = {}, saved.tensors
        for name in self.memory:
            levels = range(self.config.lstm.layers)
            whole = [
                (tensors[f"memory.{name}.{k}.h"], tensors[f"memory.{name}.{k}.c"]) for k in levels
            ]
            mine = self.processes.share(self.recipe.train.batch)
            self.memory[name] = [
                (h[mine].to(self.device), c[mine].to(self.device)) for h, c in whole
            ]
            start = f"stream.{name}."
            self.positions[name] = {
                key.removeprefix(start): t.numpy()
                for key, t in tensors.items()
                if key.startswith(start)
            }
        seen, rank = tensors["seen"], self.processes.rank
        self.seen = seen.mean() if len(seen) != self.processes.world else seen[rank]
        self.seen, self.counted = self.seen.to(self.device), saved.facts["counted"]
        state = tensors.get(f"generator.{rank}.{self.processes.world}")
        if state is not None:
            self.generator.set_state(state)
        else:  # another number of processes: the same seed cannot give the same masks
            self.generator.manual_seed(
                hash((self.recipe.train.seed, self.step, self.processes.rank))
            )

    def save(self) -> None:
        """Write a checkpoint; all processes take part, the first writes."""
        memory = {
            f"memory.{name}.{level}.{part}": self.processes.gather(tensor)
            for name, levels in self.memory.items()
            for level, pair in enumerate(levels)
            for part, tensor in zip("hc", pair, strict=True)
        }
        seen = self.processes.gather(self.seen.reshape(1))
        states = self.processes.gather_states(self.generator.get_state())
        if self.processes.first:
            tensors = {
                **checkpoint.optimizer_tensors(self.optimizer, self.names),
                **memory,
                "seen": seen,
                **{f"generator.{rank}.{len(states)}": state for rank, state in enumerate(states)},
                **{  # a copy: directions that read in one order may share an array
                    f"stream.{name}.{key}": torch.from_numpy(np.array(array))
                    for name, place in (self.positions or {}).items()
                    for key, array in place.items()
                },
            }
            facts = {
                **self._facts(),
                **versions(),
                "best": self.best,
                "waited": self.waited,
                "counted": self.counted,
            }
            checkpoint.save(self.run_folder, self.step, self.to_model(), tensors, facts)
            checkpoint.prune(self.run_folder, self.recipe.watch.keep)
        self.processes.wait()

    def to_model(self) -> Model:
        """Return the network as files hold it, with what is known of its training."""
        training = {
            "steps": self.step,
            "tokens": self.step * self.plan.tokens_per_step,
            "recipe": self.recipe.to_json(),
            "corpus": self.corpus.facts,
            "seed": self.recipe.train.seed,
            "best": self.best,
            **versions(),
            **self.notes,
        }
        return Model(
            config=replace(self.config, training=json.loads(json.dumps(training))),
            tensors=self.model.bilm.state_dict(),
            vocabulary=self.corpus.vocabulary,
            words=self.corpus.vocabulary if self.config.words else None,
            alphabet=self.corpus.alphabet if self.config.characters else (),
            softmax=self.model.softmax.state_dict(),
            attribution=self.attribution,
        )

    def __call__(
        self,
        report: Callable[[Status], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Result:
        """Train to the end, or until `stop` says so; then a checkpoint is saved first."""
        with checkpoint.alone(self.run_folder, self.processes, make=True):
            return self._train(report, stop)

    def _train(self, report: Callable[[Status], None] | None, stop: Callable[[], bool]) -> Result:
        train, watch = self.recipe.train, self.recipe.watch
        feed = Feed(
            self.corpus,
            self.recipe,
            self.device,
            self.directions,
            rank=self.processes.rank,
            world=self.processes.world,
        )
        update = self._update()
        log = Log(self.run_folder, self.step, enabled=self.processes.first)
        batches = feed(self.step * train.accumulate, self.positions)
        began = started = time.perf_counter()
        since = first = self.step
        with contextlib.closing(batches), log:
            while self.step < self.plan.steps and not self._converged():
                rate = learning_rate(train, self.step, self.plan.steps)
                set_rate(self.optimizer, rate)
                fed = [next(batches) for _ in range(train.accumulate)]
                self.positions = fed[-1].positions
                update([one.step for one in fed])
                self.step += 1
                self.counted += 1
                ended = self.step == self.plan.steps
                asked = self.processes.world == 1 or self.step % 10 == 0  # asking waits for all
                asked = asked and self.processes.any(stop())
                logged = self.step % watch.log == 0 or ended
                validated = self.step % watch.validate == 0 or ended
                saved = self.step % watch.checkpoint == 0 or ended or asked
                mean = self._mean_loss() if logged or validated or saved else math.nan
                if logged or asked:
                    now = time.perf_counter()
                    speed = (self.step - since) * self.plan.tokens_per_step / (now - began)
                    left = (self.plan.steps - self.step) * (now - started) / (self.step - first)
                    status = Status(self.step, self.plan, mean, speed, left, rate)
                    if report and self.processes.first:
                        report(status)
                    if logged:  # not where it was stopped: the log is that of an undisturbed run
                        log.write(status)
                        self.seen.zero_()
                        self.strain.zero_()
                        self.counted, since, began = 0, self.step, now
                if validated:
                    pause = time.perf_counter()
                    found = self._validate()
                    if found:
                        status = Status(self.step, self.plan, 0.0, 0.0, 0.0, rate, found)
                        log.write(status)
                        if report and self.processes.first:
                            report(status)
                    began += time.perf_counter() - pause
                    ended = ended or self._converged()
                if saved or ended:
                    self.save()
                if asked and not ended:
                    return Result(self.step, "stopped", self.best, self.run_folder)
        if self.processes.first:
            self._write("last")
        self.processes.wait()
        reason = "finished" if self.step == self.plan.steps else "converged"
        return Result(self.step, reason, self.best, self.run_folder)

    def _update(self) -> Callable[[list[Step]], None]:
        """Return what makes one step of the optimizer from its batches."""
        if self.device.type != "cuda":
            return partial(self._learn, self.processes.wrap(self.model))
        alone = self.processes.world == 1 and self.recipe.train.accumulate == 1
        if not alone or not self.model.softmax.capturable:
            network = self.processes.wrap(self.model)
            return lambda steps: self._learn(network, [padded(step) for step in steps])
        recorder = Recorder(lambda step: self._learn(self.model, [step]), self.generator)
        return lambda steps: recorder(steps[0])

    def _learn(self, network: nn.Module, steps: list[Step]) -> None:
        """Take one step: all that it changes, it changes in place."""
        train, share = self.recipe.train, 1 / len(steps)
        self.optimizer.zero_grad(set_to_none=True)
        for number, step in enumerate(steps, 1):
            with self.processes.quiet(network, unless=number == len(steps)), self._precision():
                losses, after = network(step, self.memory)
                loss = torch.stack(list(losses.values())).mean()
            scale = train.unroll if train.loss_scale == "unroll" else 1
            (loss * (scale * share)).backward()
            self.seen += loss.detach() * share
            for name, memory in after.items():
                for old, new in zip(self.memory[name], memory, strict=True):
                    old[0].copy_(new[0])
                    old[1].copy_(new[1])
        norm = clip_gradients(self.parameters, train.clip_norm)
        torch.maximum(self.strain, norm, out=self.strain)
        self.optimizer.step()

    def _converged(self) -> bool:
        patience = self.recipe.watch.patience
        return patience is not None and self.waited >= patience

    def _mean_loss(self) -> float:
        """Return the mean loss since the last line of the log; without one there is no going on."""
        mean = self.processes.mean(self.seen).item() / max(self.counted, 1)
        for what, value in (("loss", mean), ("gradient", self.strain.item())):
            if not math.isfinite(value):
                raise InputError(
                    f"the {what} is {value} at step {self.step}: lower train.learning_rate or "
                    "train.clip_norm; the last checkpoint is from before"
                )
        return mean

    def _precision(self) -> contextlib.AbstractContextManager[None]:
        if self.recipe.train.precision == "float32":
            return contextlib.nullcontext()
        # Without its cache of cast weights: CUDA graphs must not read what it may drop.
        return torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False)

    def _validate(self) -> Json:
        found: Json = {}
        if self.processes.first and self.corpus.valid.n_sentences:
            limit = self.recipe.watch.validate_tokens
            found = validate(self.model, self.corpus, self.device, self.directions, limit=limit)
            found["step"] = self.step
            if self.best is None or found["perplexity"] < self.best["perplexity"]:
                self.best, self.waited = found, 0
                self._write("best")
            else:
                self.waited += 1
        self.best, self.waited, found = self.processes.tell((self.best, self.waited, found))
        return found

    def _write(self, name: str) -> None:
        native.write(self.to_model(), self.run_folder / name, overwrite=True)


def difference(before: object, now: object, where: str = "") -> str:
    """Name the first key whose value is another.

    >>> difference({"train": {"batch": 8}}, {"train": {"batch": 16}})
    ' (train.batch is 8 there, 16 here)'
    """
    if not isinstance(before, dict) or not isinstance(now, dict):
        return f" ({where} is {before!r} there, {now!r} here)" if before != now else ""
    found = (
        difference(before.get(key), now.get(key), f"{where}.{key}" if where else key)
        for key in {**before, **now}
    )
    return next(filter(None, found), "")


def versions() -> Json:
    """Return what a run was made with."""
    import torchelmo

    return {
        "versions": {
            "torchelmo": torchelmo.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
    }
