"""Operators' commands, as the keeper passes them on to the swarm and follows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coordinator.keeper.steering import steer
from coordinator.keeper.way_chooser import MEASURED_STEPS, WayChooser
from coordinator.ledger.steering import Steersman
from coordinator.store.engine import Database
from peer.averaging.shares import GroupLines
from peer.config.run import RunConfig
from peer.config.steering import Steering
from tests.support.ledgers import CONFIG


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
