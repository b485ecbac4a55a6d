"""The verdict on a run: the first trouble that holds, else its figures."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from coordinator.ledger.keeper_status import KEEPER_SILENT_S, KeeperView
from coordinator.ledger.reading import StepRow
from coordinator.ledger.sessions import RECENT_S
from coordinator.statistics.alarms import AlarmRow
from coordinator.statistics.verdict import (
    DAY_S,
    OVERDUE_S,
    Departures,
    LossChange,
    RunSituation,
    loss_change,
    verdict_of,
)

NOW = 1_800_000_000.0


def steps(count: int, interval_s: float = 90.0, last_at: float = NOW, first: int = 1) -> list[StepRow]:
    """So many steps, the last of them at `last_at`; the loss falls from 8.0 by 0.01 each."""
    return [
        StepRow(
            step=first + index,
            samples=100,
            loss=8.0 - 0.01 * index,
            devices=2,
            completed_at=last_at - (count - 1 - index) * interval_s,
            target_batch_size=100,
        )
        for index in range(count)
    ]


def keeper(peers: int = 12, heard_at: float = NOW) -> KeeperView:
    """The keeper's view of the swarm."""
    return KeeperView(
        step=30,
        era=0,
        samples_accumulated=40,
        target_batch_size=100,
        peers=peers,
        samples_per_second=5.0,
        eta_s=12.0,
        addresses=(),
        updated_at=heard_at,
    )


WELL = RunSituation(now=NOW, keeper=keeper(), steps=steps(30), phase_from_step=0, total_steps=1000)
ALARM = AlarmRow("loss_diverges", 20, "the loss is 9, and was 4", NOW - 50)


def test_a_run_that_goes_well_is_healthy() -> None:
    """Its verdict has the usual interval and the loss's way since it began."""
    verdict = verdict_of(WELL)
    assert (verdict.state, verdict.reason, verdict.since) == ("healthy", "steady", None)
    assert verdict.step_interval_s == 90.0
    assert verdict.loss_change == LossChange(share=pytest.approx(7.73 / 7.98 - 1), over_s=29 * 90.0)


@pytest.mark.parametrize(
    ("changes", "state", "reason", "since"),
    [
        ({"total_steps": 30, "keeper": None, "store_answers": False}, "finished", "finished", NOW),
        ({"store_answers": False, "keeper": None}, "trouble", "store_silent", None),
        ({"keeper": None, "alarms": [ALARM]}, "waiting", "no_keeper", None),
        ({"keeper": keeper(heard_at=NOW - 121), "alarms": [ALARM]}, "trouble", "keeper_silent", NOW - 121),
        ({"alarms": [ALARM], "paused": True}, "trouble", "loss_diverges", NOW - 50),
        ({"alarms": [AlarmRow("devices_starting", 3, "", NOW - 900), ALARM]}, "trouble", "loss_diverges", NOW - 50),
        ({"paused": True, "keeper": keeper(peers=0)}, "waiting", "paused", None),
        ({"keeper": keeper(peers=0)}, "waiting", "no_peers", NOW),
        ({"steps": []}, "waiting", "first_step", None),
        ({"steps": steps(30, last_at=NOW - 451), "recent_devices": 30}, "trouble", "overdue", NOW - 451),
        ({"recent_devices": 30}, "trouble", "left", None),
    ],
)
def test_the_most_fundamental_trouble_is_named(
    changes: dict[str, object], state: str, reason: str, since: float | None
) -> None:
    """Each case holds beside the next ones, and is told before them, with its beginning."""
    verdict = verdict_of(replace(WELL, **changes))  # type: ignore[arg-type]
    assert (verdict.state, verdict.reason, verdict.since) == (state, reason, since)


def test_a_short_silence_is_none() -> None:
    """A keeper that averages says nothing for a while; steps are late only by several times the usual interval."""
    assert verdict_of(replace(WELL, keeper=keeper(heard_at=NOW - KEEPER_SILENT_S))).state == "healthy"
    assert verdict_of(replace(WELL, steps=steps(30, last_at=NOW - 450))).state == "healthy"
    quick = replace(WELL, steps=steps(30, interval_s=1.0, last_at=NOW - OVERDUE_S))
    assert verdict_of(quick).state == "healthy"
    assert verdict_of(replace(WELL, steps=steps(1, last_at=NOW - 9000))).state == "healthy"  # no interval is known


@pytest.mark.parametrize(
    ("recent", "online", "seen", "state"),
    [
        (3, 1, 1, "trouble"),
        (3, 2, 2, "healthy"),
        (2, 1, 1, "healthy"),  # one may always leave
        (4, 2, 2, "healthy"),
        (40, 20, 20, "healthy"),
        (40, 19, 19, "trouble"),
        (3, 0, 3, "healthy"),  # they train on while the service starts again
        (3, 3, 1, "healthy"),  # the coordinator hears from them
    ],
)
def test_most_devices_of_the_last_minutes_must_still_be_there(recent: int, online: int, seen: int, state: str) -> None:
    """More than half of them, and more than one, must be gone both from the coordinator and from the swarm."""
    run = replace(WELL, keeper=keeper(peers=seen), recent_devices=recent, online_devices=online)
    verdict = verdict_of(run)
    assert verdict.state == state
    assert (verdict.left is not None) == (state == "trouble")


def test_the_devices_that_have_left_are_counted() -> None:
    """The verdict has the numbers of its sentence."""
    verdict = verdict_of(replace(WELL, keeper=keeper(peers=1), recent_devices=3, online_devices=1))
    assert verdict.left == Departures(devices=2, of=3, within_s=RECENT_S)


def test_the_loss_is_compared_with_a_day_ago() -> None:
    """Older steps do not count."""
    longer_ago = with_losses(steps(1000, last_at=NOW - DAY_S - 90), [9.0] * 1000)
    change = loss_change([*longer_ago, *steps(10, interval_s=DAY_S / 10, first=1001)], 0, NOW)
    assert change == LossChange(share=pytest.approx(7.93 / 7.98 - 1), over_s=pytest.approx(0.9 * DAY_S))


def with_losses(rows: Sequence[StepRow], losses: Sequence[float | None]) -> list[StepRow]:
    """The rows with other losses."""
    return [replace(row, loss=loss) for row, loss in zip(rows, losses, strict=True)]


def test_losses_of_another_phase_are_not_compared() -> None:
    """A phase with few steps, and losses that nobody knows, give no trend; unknown ones between others are left out."""
    assert loss_change(steps(30), 25, NOW) is None
    assert loss_change(steps(30), 20, NOW) == LossChange(pytest.approx(7.73 / 7.78 - 1), 9 * 90.0)
    assert loss_change(with_losses(steps(10), [None] * 5 + [7.0] * 5), 0, NOW) is None
    known = loss_change(with_losses(steps(10), [8.0, None, 8.0, None, 8.0, None, 4.0, None, 4.0, None]), 0, NOW)
    assert known == LossChange(-0.5, 9 * 90.0)
    assert loss_change(with_losses(steps(10), [0.0] * 10), 0, NOW) is None


def test_a_loss_that_rises_is_compared_with_its_best() -> None:
    """Not with its beginning, far above; a rise that chance explains is none, nor one that is over."""
    fallen, rising = [9.0 - 0.025 * step for step in range(100)], [6.5 + 0.005 * step for step in range(60)]
    rows = with_losses(steps(160), [*fallen, *rising])
    change = loss_change(rows, 0, NOW)
    assert change is not None
    assert change.share == pytest.approx(6.785 / 6.51 - 1, abs=0.001)
    assert change.best_step == pytest.approx(100, abs=3)
    assert change.over_s == 90.0 * (160 - change.best_step)
    noise = random.Random(1)
    flat = with_losses(steps(160), [loss + noise.gauss(0, 0.1) for loss in [*fallen, *[6.5] * 60]])
    for all_rows in (flat, with_losses(steps(160), [*fallen, *rising[:50], *[6.4] * 10])):
        over = loss_change(all_rows, 0, NOW)
        assert over is not None
        assert over.best_step is None
        assert over.share < -0.2


def test_a_long_day_is_compared_by_medians() -> None:
    """Thousands of steps cost no more than hundreds."""
    values = [9.0 - 0.001 * step for step in range(3000)] + [6.0 + 0.0005 * step for step in range(1000)]
    change = loss_change(with_losses(steps(4000, interval_s=10.0), values), 0, NOW)
    assert change is not None
    assert change.share == pytest.approx(0.5 / 6.0, abs=0.01)
    assert change.best_step == pytest.approx(3000, abs=30)
