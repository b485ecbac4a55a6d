"""Each branch of the decision on a peer's next move, its demands on a group, and the pause between downloads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.swarm.decision import (
    MOST_PAUSE_S,
    REFUSED_PAUSE_S,
    DownloadPause,
    Move,
    Situation,
    decide,
    longest_hold_s,
    samples_at_once,
)
from tests.support.clocks import Clock

READY = Situation(step=4, swarm_step=4, is_full=True)
BEHIND = replace(READY, swarm_step=6)


@pytest.mark.parametrize(
    ("situation", "move"),
    [
        (READY, Move.AVERAGE),
        (replace(BEHIND, is_too_slow=True), Move.STAND_BY),
        (replace(READY, is_full=False), Move.ACCUMULATE),
        (replace(READY, is_full=False, remaining_s=0.9, microbatch_s=2.0, may_hold=True), Move.HOLD),
        (replace(READY, is_full=False, remaining_s=1.0, microbatch_s=2.0, may_hold=True), Move.ACCUMULATE),
        (replace(READY, is_full=False, remaining_s=0.9, microbatch_s=2.0), Move.ACCUMULATE),
        (replace(READY, remaining_s=0.0, microbatch_s=2.0, may_hold=True), Move.AVERAGE),
        (replace(READY, is_held=True), Move.ACCUMULATE),
        (replace(READY, is_leaving=True), Move.ACCUMULATE),
        (replace(READY, may_overlap=True), Move.AVERAGE_BESIDE),
        (replace(READY, may_overlap=True, others_arrive=True), Move.ACCUMULATE),
        (replace(READY, others_arrive=True), Move.AVERAGE),
        (replace(READY, has_drifted=True), Move.DOWNLOAD),
        (replace(READY, is_undone=True), Move.DOWNLOAD),
        (replace(READY, swarm_step=3), Move.AVERAGE),
        (BEHIND, Move.FOLLOW),
        (replace(BEHIND, is_held=True, is_full=False), Move.FOLLOW),
        (replace(BEHIND, can_follow=False), Move.DOWNLOAD),
        (replace(BEHIND, is_undone=True), Move.DOWNLOAD),
        (replace(BEHIND, may_download=False), Move.FOLLOW),
        (replace(BEHIND, may_download=False, can_follow=False), Move.WAIT),
        (replace(READY, may_download=False, has_drifted=True), Move.WAIT),
        (replace(READY, may_download=False, is_undone=True), Move.WAIT),
    ],
)
def test_the_move_fits_the_situation(situation: Situation, move: Move) -> None:
    """The state comes before the batch, and what the operator wants before what the swarm could do."""
    assert decide(situation)[0] is move


def test_downloads_that_bring_no_step_are_further_and_further_apart() -> None:
    """Each takes the donors' lines; a step that was taken with the others ends that."""
    clock = Clock()
    pause, waits = DownloadPause(clock), list[float]()
    for _ in range(7):
        began = clock.now
        while not pause.is_over:
            clock.now += 1.0
        waits.append(clock.now - began)
        pause.begin(20.0)
    assert waits == [0.0, 20.0, 40.0, 80.0, 160.0, MOST_PAUSE_S, MOST_PAUSE_S]
    pause.end()
    assert pause.is_over


def test_a_donor_without_a_place_is_asked_again_soon() -> None:
    """However often it has had none."""
    clock = Clock()
    pause = DownloadPause(clock)
    for _ in range(9):
        pause.begin(None)
        assert not pause.is_over
        clock.now += REFUSED_PAUSE_S
        assert pause.is_over


@pytest.mark.parametrize(
    ("usual_s", "missing", "faster_rate", "seconds"),
    [(100.0, 4, 0.0, 1.5), (100.0, 4, 2.0, 3.5), (100.0, 40, 2.0, 10.0), (2.0, 4, 2.0, 0.2), (0.0, 4, 2.0, 0.0)],
)
def test_the_last_samples_are_waited_for_in_the_order_of_speed(
    usual_s: float, missing: int, faster_rate: float, seconds: float
) -> None:
    """The fastest peer waits only for reports, the others for it; nobody for more than a tenth of a usual step."""
    assert longest_hold_s(usual_s, 0.5, missing, faster_rate) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("rate", "usual_s", "samples"),
    [
        (0.5, 100.0, 10),
        (0.9, 100.0, 20),
        (0.1, 100.0, 2),
        (0.01, 100.0, 1),
        (10.0, 100.0, 20),
        (0.0, 100.0, 20),
        (0.1, 0.0, 20),
    ],
)
def test_a_microbatch_takes_at_most_a_quarter_of_a_step(rate: float, usual_s: float, samples: int) -> None:
    """Halved until it does, down to one sample; whole where the device's speed or the step's length is unknown."""
    assert samples_at_once(20, rate, usual_s) == samples
