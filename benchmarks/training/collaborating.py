"""The ways in which collaboration.py trains one model: in a plain process, and by volunteers with the real commands.

Each way takes the run's text, tokenizer, model, optimizer and schedule from the run file, and goes on until a number of
samples is in steps.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path

import torch
from pyarrow import parquet
from transformers import PreTrainedModel

from benchmarks.support.network import HostPlan, Network
from benchmarks.support.served_run import ServedRun
from coordinator.checkpoints.manifest import stored_steps
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.presence import read_swarm_status
from coordinator.statistics.history import TABLES, write_parquet
from coordinator.store.engine import Database, open_engine
from peer.backends.choice import choose_backend
from peer.backends.hardware import find_device
from peer.config.run import RunConfig
from peer.data.batching.batches import open_batches
from peer.data.tokenization.tokenizers import load_special_ids, load_tokenizer
from peer.models.build import build_model
from peer.models.optimizers import build_optimizer, build_scheduler, parameter_groups
from tests.support.commands import Command
from tests.support.waiting import wait_until

POLL_S = 1.0
STEP_PATIENCE_S = 900.0  # without a step the run counts as stuck
NAMES = ("ada", "grace", "joan")
VISITOR = "joan"  # who comes and goes
LEAVES, RETURNS, DIES, IS_BACK = 0.2, 0.4, 0.6, 0.8  # of all samples, when the visitor does so
COORDINATOR_LINE = HostPlan("serve", 200.0)
HOME_LINES = (  # Mbit/s up and down; the last home is behind a router that takes no connections
    HostPlan("ada", 20.0, down_mbit_per_second=100.0),
    HostPlan("grace", 10.0, down_mbit_per_second=50.0),
    HostPlan("joan", 10.0, "nat", down_mbit_per_second=40.0),
)
Event = tuple[float, Callable[[], None]]  # the share of all samples at which it happens, what happens


@dataclass(frozen=True)
class Trained:
    """A run that has ended."""

    samples: Mapping[int, int]  # step -> samples in all steps up to it
    checkpoints: Mapping[int, Path]  # step -> its folder, which transformers loads


def train_alone(config: RunConfig, tokenizer: Path, samples: int, folder: Path) -> Trained:
    """Train in this process, with batches of the target size."""
    batch = config.averaging.target_batch_size
    return _train_alone(config, tokenizer, [batch] * -(-samples // batch), folder)


def train_as(way: str, config: RunConfig, tokenizer: Path, samples: int, folder: Path) -> Trained:
    """Train in this process, with as many samples in each step as the volunteers had who trained in this way."""
    del samples  # those of the other run
    history = folder.with_name(f"{way}-{config.run.seed}") / "steps.parquet"
    if not history.exists():
        raise RuntimeError(f"{history} is not there: train `{way}` with this seed first")
    steps = parquet.read_table(history).sort_by("step")
    return _train_alone(config, tokenizer, steps["samples"].to_pylist(), folder)


def _train_alone(config: RunConfig, tokenizer: Path, batches: Sequence[int], folder: Path) -> Trained:
    """Train on microbatches of one stream: their mean gradient, the optimizer's step, and no swarm.

    A batch is the whole number of microbatches that is nearest. All is computed on the device that `manyhands join`
    would take.
    """
    special, microbatch = load_special_ids(tokenizer), config.data.microbatch_size
    model = build_model(config, load_tokenizer(tokenizer).get_vocab_size(), special)
    optimizer = build_optimizer(config, parameter_groups(model, config))
    scheduler, backend = (
        build_scheduler(config, optimizer),
        choose_backend(find_device("auto"), "auto", config, model)(1),
    )
    checkpoints, samples = dict[int, Path](), dict[int, int]()
    with (
        tempfile.TemporaryDirectory() as scratch,
        open_batches(config, tokenizer, Path(scratch), 1, microbatch) as stream,
    ):
        for step, batch in enumerate(batches, 1):
            taken = microbatch * max(1, round(batch / microbatch))
            for _ in range(taken // microbatch):
                backend.accumulate(next(stream))
            backend.collect()
            torch._foreach_div_([weights.grad for weights in model.parameters() if weights.grad is not None], taken)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=False)
            backend.synchronize()
            samples[step] = samples.get(step - 1, 0) + taken
            if step % config.checkpoints.every_steps == 0 or step == len(batches):
                checkpoints[step] = save(model, tokenizer, folder / f"step-{step:08}")
    return Trained(samples, checkpoints)


def save(model: PreTrainedModel, tokenizer: Path, folder: Path) -> Path:
    """Save the model with its tokenizer, as transformers loads it."""
    model.save_pretrained(folder)
    shutil.copytree(tokenizer, folder, dirs_exist_ok=True)
    return folder


@dataclass
class Volunteers:
    """The volunteers of a served run, of whom each may leave, die and return."""

    run: ServedRun
    commands: dict[str, Command] = field(default_factory=dict)

    def come(self, name: str) -> None:
        """Join, by an invite the first time."""
        known = self.run.state_dir(name).exists()
        self.commands[name] = self.run.start_volunteer(name, "" if known else self.run.invite(name))

    def leave(self, name: str) -> None:
        """Leave in order."""
        self.commands[name].terminate()
        del self.commands[name]

    def die(self, name: str) -> None:
        """Die as by a power cut."""
        self.commands.pop(name).kill()

    def kill(self) -> None:
        """End all at once."""
        for command in self.commands.values():
            command.kill()

    def require_all(self) -> None:
        """Raise `RuntimeError` if one has ended that was not told to."""
        for name, command in self.commands.items():
            if command.process.poll() is not None:
                raise RuntimeError(f"{name} has ended: {self.run.log(name).read_text()[-2000:]}")


def train_together(config: RunConfig, tokenizer: Path, samples: int, folder: Path) -> Trained:
    """Train by three volunteers on this machine, one of whom leaves, returns, is killed, and returns."""
    people = Volunteers(ServedRun(folder))
    events: Sequence[Event] = (
        (LEAVES, partial(people.leave, VISITOR)),
        (RETURNS, partial(people.come, VISITOR)),
        (DIES, partial(people.die, VISITOR)),
        (IS_BACK, partial(people.come, VISITOR)),
    )
    return _train(people, with_tokenizer(config, tokenizer), samples, events)


def train_at_homes(config: RunConfig, tokenizer: Path, samples: int, folder: Path) -> Trained:
    """Train by three volunteers behind home lines, one of which takes no connections. Needs root, as network.py."""
    with Network([COORDINATOR_LINE, *HOME_LINES]) as hosts, hosts["serve"].entered():
        return _train(Volunteers(ServedRun(folder, hosts)), with_tokenizer(config, tokenizer), samples, ())


def with_tokenizer(config: RunConfig, tokenizer: Path) -> RunConfig:
    """Return the run with a tokenizer that is there already: one for all ways."""
    return RunConfig.from_mapping(config.model_dump(mode="json") | {"tokenizer": {"path": str(tokenizer)}})


def _train(people: Volunteers, config: RunConfig, samples: int, events: Sequence[Event]) -> Trained:
    """Serve the run until so many samples are in steps, while these events happen; keep its history as Parquet."""
    run = people.run
    run.make(config)
    with ExitStack() as stack:
        database = Database(open_engine(run.run.database_url))
        stack.callback(database.engine.dispose)
        ledger, serving = Ledger(database, config), run.start_serving()
        stack.callback(serving.kill)
        stack.callback(people.kill)
        wait_until("the keeper says where the swarm stands", partial(_status, run, serving, database), run.log("serve"))
        for name in NAMES:
            people.come(name)
        waiting, before, moved_at = list(events), 0, time.monotonic()
        while (reached := sum(row.samples for row in ledger.steps())) < samples:
            if reached > before:
                before, moved_at = reached, time.monotonic()
            _require_serving(run, serving)
            if time.monotonic() > moved_at + STEP_PATIENCE_S:
                raise RuntimeError(f"no further step: {run.log('serve').read_text()[-2000:]}")
            while waiting and reached >= waiting[0][0] * samples:
                waiting.pop(0)[1]()
            people.require_all()
            time.sleep(POLL_S)
        for name in list(people.commands):
            people.leave(name)
        serving.terminate()
        for table in TABLES:
            with (run.base / f"{table}.parquet").open("wb") as file:
                write_parquet(database, table, file)
        rows = ledger.steps()
    reached_by = dict(zip([row.step for row in rows], accumulate(row.samples for row in rows), strict=True))
    steps = [step for step in stored_steps(run.run.checkpoints_dir) if step in reached_by]
    return Trained(reached_by, {step: run.run.checkpoint_dir(step) for step in steps})


def _status(run: ServedRun, serving: Command, database: Database) -> object:
    _require_serving(run, serving)
    return read_swarm_status(database)


def _require_serving(run: ServedRun, serving: Command) -> None:
    if serving.process.poll() is not None:
        raise RuntimeError(f"the coordinator has ended: {run.log('serve').read_text()[-2000:]}")
