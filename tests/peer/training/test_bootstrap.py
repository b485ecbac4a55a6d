"""What a worker says and asks for while it cannot have the run's state yet."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

from peer.reporting.messages import CheckpointFetched, CheckpointWanted, KeeperSought, Notice
from peer.swarm.swarm import Swarm
from peer.training.bootstrap import SEEK_AFTER_S, TAKEN, StateTaking
from tests.support.clocks import Clock


@dataclass
class Scene:
    """A swarm that gives a state of `gives_step`, if any, and a stop that lets time pass instead of waiting."""

    lasts_s: float
    keeper_seen_s: tuple[float, float] = (0.0, 0.0)  # from, until
    gives_step: int | None = None
    clock: Clock = field(default_factory=Clock)
    told: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.began = self.clock.now
        gives = self.gives_step is not None
        self.training = SimpleNamespace(optimizer=SimpleNamespace(state_dict=dict))
        self.state, self.averages_held = SimpleNamespace(step=self.gives_step), 6
        self.download = lambda: gives

    @property
    def sees_keeper(self) -> bool:
        """The swarm's."""
        return self.keeper_seen_s[0] <= self.clock.now - self.began < self.keeper_seen_s[1]

    def is_set(self) -> bool:
        """The stop's."""
        return self.clock.now - self.began >= self.lasts_s

    def wait(self, seconds: float) -> bool:
        """The stop's."""
        self.clock.now += seconds
        return self.is_set()

    def run(self) -> list[Any]:
        """What was told, without questions for checkpoints."""

        def tell(message: CheckpointWanted | KeeperSought | Notice) -> None:
            if isinstance(message, CheckpointWanted):
                taking.hear(CheckpointFetched(0, ""))
            else:
                self.told.append(message)

        model, stop = torch.nn.Linear(1, 1), cast(threading.Event, self)
        taking = StateTaking(cast(Swarm, self), model, tell, stop, random.Random(1), self.clock)
        assert taking.run() == (self.gives_step is not None)
        return self.told


def test_who_takes_the_state_from_the_swarm_is_told_so() -> None:
    """As after a checkpoint; the tutorial quotes both sentences."""
    [notice] = Scene(lasts_s=SEEK_AFTER_S, gives_step=27).run()
    assert notice.text == "Took the run's state after step 27 from the swarm."
    tutorial = " ".join((Path(__file__).parents[3] / "docs" / "tutorial.md").read_text(encoding="utf-8").split())
    assert f"`{notice.text}`" in tutorial
    assert f"`{TAKEN.format(step=25, origin='its checkpoint')}`" in tutorial


def test_a_keeper_that_is_not_found_is_asked_for_again_and_again() -> None:
    """Not within the first minute, and once a minute then; nobody is told that it gives its state to others."""
    told = Scene(lasts_s=SEEK_AFTER_S - 5).run()
    assert KeeperSought() not in told
    told = Scene(lasts_s=5 * SEEK_AFTER_S).run()
    assert 3 <= told.count(KeeperSought()) <= 4
    notices = [message.text for message in told if isinstance(message, Notice)]
    assert len(notices) > 3
    assert all("has not been found in the swarm yet" in text for text in notices)


def test_who_waits_for_a_turn_is_told_so_and_asks_for_no_addresses() -> None:
    """The keeper is there and gives its state to others."""
    told = Scene(lasts_s=5 * SEEK_AFTER_S, keeper_seen_s=(0.0, 1e9)).run()
    assert KeeperSought() not in told
    assert all("a few at once" in message.text for message in told)


def test_a_keeper_that_was_seen_is_missed_for_a_minute_first() -> None:
    """However long the wait has lasted before."""
    scene = Scene(lasts_s=3 * SEEK_AFTER_S - 5, keeper_seen_s=(0.0, 2 * SEEK_AFTER_S))
    assert KeeperSought() not in scene.run()


def test_who_is_told_to_stop_while_it_takes_the_state_is_told_nothing_more() -> None:
    """A download that ends because of that is none to wait for."""
    scene = Scene(lasts_s=SEEK_AFTER_S)
    scene.download = lambda: scene.wait(2 * SEEK_AFTER_S) and False
    assert scene.run() == []
