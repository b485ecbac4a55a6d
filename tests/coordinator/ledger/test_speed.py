"""How fast the run goes: samples of counted steps over the time that passed, and how long the rest takes at that."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.ledger.keeper_status import KeeperView
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.speed import (
    LEAST_STEPS,
    WINDOW_S,
    Done,
    batch_left_s,
    run_speed,
    speed_of,
    time_left_s,
    total_steps,
)
from coordinator.ledger.steering import Helm, Orders
from coordinator.store.engine import Database
from peer.config.run import RunConfig
from tests.support.clocks import Clock
from tests.support.ledgers import CONFIG, deliver
from tests.support.reports import report

NOW = 10_000.0


def steps(count: int, every_s: float, samples: int = 100, ended: float = NOW) -> list[Done]:
    """So many steps, one after the other, the last of them now."""
    return [Done(samples, ended - every_s * number) for number in reversed(range(count))]


def test_it_is_samples_over_time() -> None:
    """Of two members' halves of each step it is the sum of what both have trained a second."""
    assert speed_of(steps(10, every_s=20.0), NOW) == pytest.approx(5.0)
    assert speed_of(steps(4, every_s=3600.0), NOW) == pytest.approx(100 / 3600)


def test_the_step_under_way_is_no_wait_until_it_takes_longer_than_the_others() -> None:
    """The figure does not sink and leap with each step."""
    found = steps(10, every_s=20.0)
    assert speed_of(found, NOW + 20) == pytest.approx(5.0)
    assert speed_of(found, NOW + 40) == pytest.approx(900 / 200)
    assert speed_of(found, NOW + 10 * WINDOW_S) < 0.5


def test_only_the_newest_steps_count() -> None:
    """Those of the last minutes; where these are few, so many as there must be."""
    slow, quick = steps(50, every_s=100.0, ended=NOW - WINDOW_S), steps(30, every_s=10.0)
    assert speed_of([*slow, *quick], NOW) == pytest.approx(10.0, rel=0.1)
    assert speed_of([*slow, *quick[:1]], quick[0].completed_at) == speed_of(
        [*slow[-LEAST_STEPS:], *quick[:1]], quick[0].completed_at
    )


@pytest.mark.parametrize("found", [[], steps(1, 20.0), steps(5, every_s=0.0)])
def test_before_two_steps_nothing_is_known(found: list[Done]) -> None:
    """The first one has no beginning."""
    assert speed_of(found, NOW) == 0.0


@pytest.mark.usefixtures("members")
def test_what_devices_claim_of_their_speed_changes_nothing(database: Database) -> None:
    """Nor what nobody believes of it yet: a newcomer's step counts as it was averaged in."""
    clock = Clock()
    ledger = Ledger(database, CONFIG, clock)
    assert run_speed(database, clock.now) == 0.0
    for step in (1, 2, 3):
        clock.now += 10
        for device, speed in (("ada-1", 0.001), ("bob-1", 1e6)):
            verdict = deliver(ledger, device, None, step, report(step, samples=40, samples_per_second=speed), clock.now)
            assert verdict.accepted
    assert run_speed(database, clock.now) == pytest.approx(8.0)


def test_the_batch_is_full_at_the_runs_speed() -> None:
    """Without a speed nobody knows when."""
    assert batch_left_s(40, 100, 6.0) == 10.0
    assert batch_left_s(140, 100, 6.0) == 0.0
    assert batch_left_s(40, 100, 0.0) is None


def run_of(**sections: Any) -> RunConfig:
    return RunConfig.from_mapping(
        {"schedule": {"warmup_steps": 2, "total_steps": 100}, "averaging": {"target_batch_size": 10}, **sections}
    )


def view(step: int, accumulated: int = 0, speed: float = 2.0) -> KeeperView:
    return KeeperView(step, 0, accumulated, 10, 2, speed, None, (), NOW)


def test_the_time_left_is_for_all_steps_to_come() -> None:
    """What has accumulated towards the next is done already."""
    assert time_left_s(run_of(), Helm(), view(0)) == 500.0
    assert time_left_s(run_of(), Helm(), view(90, accumulated=4)) == 48.0
    assert time_left_s(run_of(), Helm(), view(100, accumulated=4)) == 0.0
    assert time_left_s(run_of(), Helm(), view(0, speed=0.0)) is None
    assert time_left_s(run_of(), Helm(), None) is None


def test_each_phase_has_its_batch() -> None:
    """The last one's schedule ends the run."""
    phases = [{"from_step": 50, "target_batch_size": 20, "total_steps": 150}]
    assert time_left_s(run_of(phases=phases), Helm(), view(40)) == (10 * 10 + 100 * 20) / 2.0


def test_what_operators_say_counts() -> None:
    """Another batch from a step on, and an earlier or a later end."""
    helm = Helm(orders=(Orders(from_step=80, target_batch_size=30),), last_step=90)
    assert time_left_s(run_of(), helm, view(70)) == (10 * 10 + 10 * 30) / 2.0
    assert time_left_s(run_of(), Helm(last_step=200), view(100)) == 500.0


def test_the_whole_run_ends_where_its_last_phase_or_an_operator_says() -> None:
    """A phase later than the last order, and the reverse, change nothing about that."""
    phases = [{"from_step": 50, "total_steps": 150}]
    assert total_steps(run_of(), Helm()) == 100
    assert total_steps(run_of(phases=phases), Helm(orders=(Orders(from_step=80),))) == 150
    assert total_steps(run_of(phases=phases), Helm(last_step=90)) == 90
