"""The worker's edges, and the loop of a peer that only averages; whole workers train in tests/system."""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from auth.credentials import Credentials
from auth.errors import ConfigError, WorkerError
from auth.keys import AuthorityKey
from coordinator.members.membership import Membership
from coordinator.store.engine import Database
from peer.config.run import RunConfig
from peer.data.tokenization.tokenizers import load_special_ids, load_tokenizer
from peer.gradients.remainders import RemainderFile
from peer.limits.usage import CACHE_FOLDER
from peer.models.build import build_model
from peer.reporting.messages import Failed, KeeperAt, Progress, Ready, StepReport, Stop, Stopped, WorkerPlan
from peer.runtime.processes import LOG_FILE
from peer.swarm.moves import StepOutcome
from peer.swarm.swarm import Swarm, SwarmProgress
from peer.training import worker
from peer.training.bootstrap import StateTaking
from peer.training.worker import ASSIST_POLL_S, REMAINDERS_FILE, Worker, assist, run_worker
from tests.support.small_run import make_small_run
from tests.support.stores import empty_store
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.usefixtures("forked")
KEEPER = "/ip4/192.0.2.7/tcp/31337/p2p/QmKeeper"


def failure_of(plan: WorkerPlan) -> Failed:
    """What a really spawned worker with this plan says."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_worker, args=(plan, theirs, os.getpid()))
    process.start()
    theirs.close()
    try:
        assert ours.poll(PATIENCE_S)
        failed = ours.recv()
    finally:
        process.join(PATIENCE_S)
        process.close()
        ours.close()
    assert isinstance(failed, Failed)
    return failed


def plan_with(directory: Path, run_config_json: str) -> WorkerPlan:
    """A plan that cannot succeed."""
    return WorkerPlan(run_config_json, str(directory), str(directory), str(directory / "data"), ())


def test_mendable_error_keeps_its_exit_code(tmp_path: Path) -> None:
    """A configuration that this version does not know reaches the agent as that error; the trace is in the log only."""
    failed = failure_of(plan_with(tmp_path, '{"run": {"surprise": 1}}'))
    assert (failed.code, failed.exit_code) == (ConfigError.code, ConfigError.exit_code)
    assert "run.surprise" in failed.text
    assert "Traceback" not in failed.text
    assert "Traceback" in (tmp_path / "data" / LOG_FILE).read_text()


def test_missing_tokenizer_is_one_sentence(tmp_path: Path) -> None:
    """A worker whose tokenizer is gone says so instead of dying without a word."""
    failed = failure_of(plan_with(tmp_path, RunConfig().to_json()))
    assert failed.exit_code in {ConfigError.exit_code, WorkerError.exit_code}
    assert failed.text.count("\n") == 0


def membership_of(database: Database, authority: AuthorityKey) -> Membership:
    """Of the small run."""
    return Membership(database, lambda: authority, "small", 3600, time.time)


class JoinedLate:
    """A swarm whose joining lasts until the worker has heard all that its agent says."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.looks_for_it_at: tuple[str, ...] = ()
        self.kept: list[RemainderFile] = []
        self.step, self.has_ended, self.sees_keeper = 0, False, False
        self.state: Any = self

    is_downloading = False

    def join(self, **_parts: object) -> JoinedLate:
        """`Swarm.join`."""
        wait_until("the worker has read its orders", lambda: not self._pipe.poll(0))
        return self

    def keeper_at(self, addresses: tuple[str, ...]) -> None:
        """The swarm's."""
        self.looks_for_it_at = addresses

    def interrupt(self) -> None:
        """The swarm's."""

    def leave(self) -> None:
        """The swarm's."""

    def keep_remainders(self, file: RemainderFile) -> None:
        """The state's."""
        self.kept.append(file)

    def line_is_due(self) -> bool:
        """The swarm's."""
        return False


def plan_of_member(tmp_path: Path) -> WorkerPlan:
    """A plan for a device that was admitted to the small run."""
    run = make_small_run(tmp_path)
    credentials = Credentials(tmp_path / "device")
    with empty_store(tmp_path, "sqlite") as database:
        membership = membership_of(database, run.authority)
        key = credentials.device_key
        pseudonym = key.receipt_key("small").pseudonym
        grant = membership.join(key.public_key, membership.invite("ada")[0], receipt_key=pseudonym)
        revocations = membership.revocations_jwt()
        credentials.store_grant("small", run.authority.public_bytes, grant.token_jwt, revocations)
    return WorkerPlan(
        run.config.to_json(), str(tmp_path / "device"), str(run.tokenizer_dir), str(tmp_path / "data"), (), device="cpu"
    )


def test_an_address_that_is_told_before_the_swarm_is_joined_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper has come, or moved, while the worker started: there it is looked for."""
    plan = plan_of_member(tmp_path)
    agents, workers = multiprocessing.Pipe()
    swarm = JoinedLate(workers)
    monkeypatch.setattr(Swarm, "join", swarm.join)
    told: list[object] = []
    agents.send(KeeperAt((KEEPER,)))
    agents.send(Stop("test"))
    Worker(plan, told.append).run(workers)
    assert swarm.looks_for_it_at == (KEEPER,)
    assert Stopped("told to stop") in told
    assert swarm.kept == []  # it never had a state to which remainders would belong


@pytest.mark.parametrize("has_ended", [False, True])
def test_remainders_are_kept_when_all_else_is_done(
    has_ended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the swarm nor the agent waits for them; once the run has ended they are of no use."""
    plan = plan_of_member(tmp_path)
    agents, workers = multiprocessing.Pipe()
    swarm = JoinedLate(workers)
    swarm.has_ended = has_ended
    monkeypatch.setattr(Swarm, "join", swarm.join)
    monkeypatch.setattr(StateTaking, "run", lambda _taking: True)
    monkeypatch.setattr(Worker, "_prepare_training", lambda *_: lambda *_: None)
    agents.send(Stop("test"))
    told: list[object] = []
    Worker(plan, told.append).run(workers)
    assert [file._path for file in swarm.kept] == [tmp_path / "data" / CACHE_FOLDER / REMAINDERS_FILE] * (not has_ended)
    assert isinstance(told[-1], Stopped)


def test_remainders_are_taken_up_just_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After all that may fail first: the file is deleted when it is read."""
    plan = replace(plan_of_member(tmp_path), microbatch_size=2, compile="off")
    config, tokenizer = RunConfig.from_json(plan.run_config_json), Path(plan.tokenizer_dir)
    vocabulary, special = load_tokenizer(tokenizer).get_vocab_size(), load_special_ids(tokenizer)
    done: list[object] = []
    swarm: Any = SimpleNamespace(step=0, is_held=False, has_ended=False, samples_at_once=lambda size: size)
    swarm.conditions = None
    swarm.state = SimpleNamespace(resume_remainders=lambda _file: done.append("remainders"))
    monkeypatch.setattr(worker, "train", lambda *_: done.append("train"))
    model = build_model(config, vocabulary, special)
    Worker(plan, done.append)._prepare_training(config, model, vocabulary, special)(swarm, "Qm1")
    assert [type(each) if isinstance(each, Ready) else each for each in done] == [Ready, "remainders", "train"]


@dataclass
class Stepping:
    """Has these outcomes one after another, then none."""

    outcomes: list[StepOutcome | None]
    calls: list[str] = field(default_factory=list)

    def begin_training(self) -> None:
        self.calls.append("begin")

    def advance(self) -> StepOutcome | None:
        self.calls.append("advance")
        return self.outcomes.pop(0) if self.outcomes else None

    def progress(self) -> SwarmProgress:
        return SwarmProgress(4, 0, 30, 64, 2, 0.0)


def assisted(outcomes: list[StepOutcome | None], rounds: int) -> tuple[Stepping, list[Progress | StepReport]]:
    swarm, sent, now = Stepping(outcomes), list[Progress | StepReport](), [100.0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    assist(swarm, sent.append, lambda: now[0] >= 100.0 + rounds * ASSIST_POLL_S, lambda: now[0], wait)
    return swarm, sent


def test_an_assistant_reports_each_step_with_what_was_averaged_and_no_samples() -> None:
    """Bytes are credited; there is no loss, no time spent training, and nothing for a step that was only taken over."""
    taken_over = StepOutcome(5, 0, False, 0, None, 1.0)
    averaged = StepOutcome(6, 0, True, 4, 64, 0.25, averaged_bytes=1234)
    swarm, sent = assisted([None, taken_over, averaged], rounds=5)
    [report] = [message for message in sent if isinstance(message, StepReport)]
    assert (report.step, report.samples, report.averaged_bytes, report.group_size) == (6, 0, 1234, 4)
    assert (report.loss, report.elapsed_s, report.samples_per_second, report.lost_samples) == (None, 0.0, 0.0, 0)
    assert swarm.calls == ["begin", *["advance"] * 5]


def test_an_assistant_sends_progress_about_once_a_second() -> None:
    """Though the swarm is asked far more often."""
    _, sent = assisted([], rounds=70)
    assert [type(message) for message in sent] == [Progress] * 3
