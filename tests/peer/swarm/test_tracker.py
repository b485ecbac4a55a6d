"""What a peer knows of the swarm's progress when its own state changes; real swarms are in tests/system."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from peer.swarm import tracker as swarm_tracker
from peer.swarm.records import PeerRecord
from peer.swarm.refresh import REPORTS_PER_S, UNKNOWN_S
from peer.swarm.tracker import NOTHING_SEEN, StepTracker
from peer.swarm.view import TrainerPace


@pytest.mark.parametrize(("era", "known"), [(1, (23, 40)), (2, (5, 0))])
def test_a_return_to_a_checkpoint_takes_the_swarms_progress_back(era: int, known: tuple[int, int]) -> None:
    """Otherwise this peer would take itself to be behind, and fetch the very state that was undone."""
    begun: list[int] = []
    tracker = SimpleNamespace(
        era=1,
        global_progress=SimpleNamespace(epoch=23, samples_accumulated=40),
        update_epoch=lambda new_epoch: begun.append(new_epoch),
    )
    StepTracker.begin_step_after(tracker, 5, era)  # type: ignore[arg-type]
    assert (tracker.global_progress.epoch, tracker.global_progress.samples_accumulated) == known
    assert (tracker.era, begun) == (era, [5])


def reporter(
    samples: int = 8,
    published: int = 4,
    stage: object = "stage",
    age_s: float = 0.0,
    remaining_s: float = 10_000.0,
    live: int = 5,
) -> SimpleNamespace:
    """A tracker that has published so many samples so long ago, in a batch that is far from full."""
    return SimpleNamespace(
        should_report_progress=threading.Event(),
        shutdown_triggered=threading.Event(),
        local_progress=SimpleNamespace(samples_accumulated=samples),
        max_refresh_period=3600.0,
        _published=(time.monotonic() - age_s, "stage", published),
        _stage=stage,
        remaining_s=remaining_s,
        view=SimpleNamespace(live=live),
    )


def test_a_peer_that_stands_by_tells_its_line_until_it_trains_again() -> None:
    """Each news is reported at once, the same one again is none, and the others do not wait for the peer."""
    tracker = SimpleNamespace(_slow_line=None, _training=True, should_report_progress=threading.Event())
    reported = []
    for line in (None, 2e5, 2e5, 3e5, None):
        tracker.should_report_progress.clear()
        StepTracker.stand_by(tracker, line)  # type: ignore[arg-type]
        reported.append((tracker.should_report_progress.is_set(), tracker._training, tracker._slow_line))
    told = [(True, False, 2e5), (False, False, 2e5), (True, False, 3e5), (True, False, None)]
    assert reported == [(False, True, None), *told]
    tracker._slow_line, tracker._training = 2e5, True  # it has begun to train, and its line is as slow as before
    StepTracker.stand_by(tracker, 2e5)  # type: ignore[arg-type]
    assert not tracker._training
    tracker._training = True  # it has begun to train, because its line is faster
    StepTracker.stand_by(tracker, None)  # type: ignore[arg-type]
    assert tracker._training


@pytest.mark.parametrize("line", [None, 2e5])
def test_the_line_of_a_peer_that_stands_by_is_in_its_record(line: float | None) -> None:
    """As others read it."""
    tracker = SimpleNamespace(
        local_progress=SimpleNamespace(epoch=3, samples_accumulated=0, samples_per_second=0.0),
        target_batch_size=64,
        era=1,
        client_mode=False,
        _training=False,
        _role="trainer",
        _sketch=(2, ()),
        _slow_line=line,
    )
    record = StepTracker._record(tracker, 1e9)  # type: ignore[arg-type]
    assert PeerRecord.unpack(record.pack()).slow_line == line


class WaitedError(Exception):
    """A report was not due yet."""


def reports_at_once(tracker: SimpleNamespace) -> bool:
    """Whether the tracker publishes without a wait."""

    def wait(timeout: float) -> bool:
        raise WaitedError

    tracker.should_report_progress.wait = wait
    try:
        StepTracker._await_turn(tracker)  # type: ignore[arg-type]
    except WaitedError:
        return False
    return True


def test_mere_samples_are_reported_as_rarely_as_others_look() -> None:
    """They would fill a home line, one report a microbatch; a step, a role or lost samples are told at once."""
    assert not reports_at_once(reporter())
    assert reports_at_once(reporter(age_s=2_600.0))
    assert reports_at_once(reporter(stage="another"))
    assert reports_at_once(reporter(samples=3))
    leaving = reporter()
    leaving.shutdown_triggered.set()
    assert reports_at_once(leaving)


@pytest.mark.parametrize(
    ("now", "missing", "seconds"), [(1000.0, 30, 10.0), (1002.0, 30, 26 / 3), (1020.0, 30, 22 / 3), (1002.0, 3, 0.0)]
)
def test_others_are_expected_to_go_on_as_they_reported(
    now: float, missing: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a few seconds without a report, not for good; this peer's own samples are known."""
    monkeypatch.setattr(swarm_tracker, "swarm_time", lambda: now)
    paces = (TrainerPace("Qm1", 1.0, 990.0), TrainerPace("Qm2", 2.0, 1000.0))
    view = replace(NOTHING_SEEN, step=4, paces=paces)
    tracker = SimpleNamespace(view=view, step=4, own_id="Qm1", missing_samples=missing, max_refresh_period=4.0)
    assert StepTracker.remaining_s.fget(tracker) == pytest.approx(seconds)  # type: ignore[attr-defined]
    tracker.view = replace(view, step=5)
    assert StepTracker.remaining_s.fget(tracker) == float("inf")  # type: ignore[attr-defined]


def test_in_a_crowd_each_reports_more_rarely() -> None:
    """A full batch makes reports no more frequent than all can read: the time between them grows with the swarm."""
    live = 1000 * int(REPORTS_PER_S)
    assert reports_at_once(reporter(remaining_s=0.0, live=live, age_s=1001.0))
    assert not reports_at_once(reporter(remaining_s=0.0, live=live))
    assert not reports_at_once(reporter(remaining_s=0.0, live=10 * live, age_s=1001.0))
    assert reports_at_once(reporter(remaining_s=0.0, live=10 * live, stage="another"))


@pytest.mark.parametrize(
    ("live", "remaining_s", "seconds"),
    [
        (10, 0.0, 0.5),
        (10, 8.0, 2.0),
        (10, float("inf"), UNKNOWN_S),
        (60, 0.0, 1.0),
        (60, 300.0, 6.0),
        (600, 300.0, 10.0),
    ],
)
def test_in_a_crowd_each_looks_more_rarely(live: int, remaining_s: float, seconds: float) -> None:
    """So that what all looks take of a line does not grow with the swarm."""
    tracker = SimpleNamespace(
        _reducing_since=None,
        local_progress=SimpleNamespace(epoch=3),
        min_refresh_period=0.5,
        max_refresh_period=6.0,
    )
    view = SimpleNamespace(step=3, keepers=1, live=live)
    assert StepTracker._next_look_s(tracker, view, remaining_s) == seconds  # type: ignore[arg-type]
