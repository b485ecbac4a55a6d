"""The keeper's duties: commands that it passes on and follows, the status that it writes, its own token."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from auth.errors import StorageError
from coordinator.keeper.duties import StatusWriter, renew, steer
from coordinator.keeper.way_chooser import MEASURED_STEPS, WayChooser
from coordinator.ledger.keeper_status import KeeperView, read_swarm_status
from coordinator.ledger.speed import batch_left_s
from coordinator.ledger.steering import Steersman
from coordinator.statistics.swarm_health import read_figures
from coordinator.store.engine import Database
from coordinator.store.models import Step
from peer.averaging.shares import GroupLines
from peer.config.run import RunConfig
from peer.config.steering import Steering
from peer.reporting.metrics import RoundTally
from peer.swarm.swarm import SwarmProgress
from tests.support.keeper_scene import MOVED
from tests.support.ledgers import CONFIG
from tests.support.receipts import key_of, pseudonym_of


@dataclass
class Steered:
    """A swarm and its checkpoints, both made up."""

    step: int = 2
    heard: Steering | None = None  # by the swarm, of its operator
    every_steps: int | None = None  # the checkpoints'
    has_ended: bool = False  # the run
    last_checkpoint: bool = False  # is written
    slow_lines = ()

    def steer(self, steering: Steering) -> None:
        """The swarm's."""
        self.heard = steering

    def write_if_due(self, stopping: bool) -> None:
        """The checkpoints'."""
        self.last_checkpoint = stopping

    def look(self, database: Database, chooser: WayChooser | None = None) -> Steering:
        """Apply the operators' commands; return what the swarm hears."""
        parts: Any = self
        steer(database, parts, parts, chooser or WayChooser(database, CONFIG, [(1000, 1000)], lambda: 0.0))
        assert self.heard is not None
        return self.heard


def test_operators_steer_checkpoints_and_the_swarm(database: Database) -> None:
    """From the step on that they have named."""
    operator = Steersman(database, CONFIG, "os:tester", lambda: 0.0)
    operator.change(5, checkpoint_every=7, target_batch_size=128, confirmed=True)
    operator.pause()
    before, after = Steered(step=4), Steered(step=5)
    for scene in (before, after):
        heard = scene.look(database)
        assert heard.paused
        assert [change.target_batch_size for change in heard.changes] == [128]
        assert not scene.last_checkpoint
    assert (before.every_steps, after.every_steps) == (None, 7)


def test_what_the_keeper_chooses_by_the_groups_lines_is_in_its_beacon(database: Database) -> None:
    """Where the run file leaves the way to average to it, once some steps have been measured."""
    slow = GroupLines((None, 125_000.0, 125_000.0), (True,) * 3, (True, False, False), ())
    chooses = RunConfig.from_mapping({"averaging": {"compression": "auto"}})
    scene, chooser = Steered(), WayChooser(database, chooses, [(1000, 1000)], lambda: 0.0)
    for step in range(MEASURED_STEPS + 1):
        scene.step = step
        chooser.step_taken(slow, 10.0)
        heard = scene.look(database, chooser)
    assert [(change.compression, change.powersgd_rank) for change in heard.changes] == [("float16", 16)]


def test_a_run_that_has_ended_leaves_a_checkpoint_of_its_last_step(database: Database) -> None:
    """Before the keeper itself ends."""
    scene = Steered(has_ended=True)
    scene.look(database)
    assert scene.last_checkpoint


def test_what_the_swarm_does_is_written_for_the_service(database: Database) -> None:
    """Its step and batch, when its own daemon was heard last, its speed by the steps that count, rounds and peers."""
    facts = {"era": 0, "samples": 60, "loss_sum": 0.0, "loss_samples": 0, "devices": 1, "target_batch_size": 64}
    with database.begin() as session:
        session.add_all(Step(step=step, completed_at=10.0 * step - 30.0, **facts) for step in (1, 2))
    progress = SwarmProgress(2, 0, swarm_samples=30, target_batch_size=64, peers=3, samples_per_second=0.0)
    rounds, census = RoundTally().with_failure().with_success(3.0), (("trainer", True, 2),)
    swarm: Any = SimpleNamespace(progress=lambda: progress, addresses=(MOVED,), heard_at=17.0)
    swarm.rounds, swarm.census, swarm.missing_auxiliaries = rounds, census, 2
    StatusWriter(database, swarm, lambda: 4.0).write()
    status = read_swarm_status(database)
    assert status is not None
    speed = status.samples_per_second
    assert 0 < speed < 6.0
    left_s = batch_left_s(30, 64, speed)
    assert status == KeeperView(2, 0, 30, 64, 3, speed, left_s, (MOVED,), updated_at=17.0)
    figures = read_figures(database, since=0.0)
    assert (figures.rounds, figures.census, figures.missing_auxiliaries) == (rounds, census, 2)


@pytest.mark.parametrize(("now", "renewed"), [(3000.0, []), (3001.0, ["a new token"])])
def test_its_token_is_renewed_when_two_thirds_of_its_time_are_over(now: float, renewed: list[str]) -> None:
    """Who was revoked it hears each time."""
    stored: list[str] = []
    key, token = key_of("keeper-1"), SimpleNamespace(run="demo", issued_at=1000.0, expires_at=4000.0)
    credentials: Any = SimpleNamespace(
        device_key=key, access_token=lambda _now: token, store_token=stored.append, store_revocations=stored.append
    )
    grants = {(key.public_key, pseudonym_of("keeper-1", "demo")): SimpleNamespace(token_jwt="a new token")}
    membership: Any = SimpleNamespace(
        grant_keeper=lambda *identity: grants[identity], revocations_jwt=lambda: "the revoked"
    )
    renew(membership, credentials, lambda: now)
    assert stored == [*renewed, "the revoked"]


def test_a_full_disk_of_its_files_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    """It goes on with the list that it has, and says why."""

    def full(_jwt: str) -> None:
        raise StorageError("Cannot write revoked.jwt.")

    credentials: Any = SimpleNamespace(
        access_token=lambda _now: SimpleNamespace(issued_at=0.0, expires_at=99.0), store_revocations=full
    )
    membership: Any = SimpleNamespace(revocations_jwt=lambda: "the revoked")
    renew(membership, credentials, lambda: 1.0)
    assert "token and revocations are not renewed: Cannot write revoked.jwt." in caplog.text
