"""Rounds of averaging: the deadline follows their duration, and some facts outlive a round.

The rounds are real ones, of two peers in processes of their own.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeAlias

import pytest

from benchmarks.swarm.averaging import Plan, hear, swarm_plans, tell
from peer.averaging.deadline import LEAST_KNOWN, LEAST_S, REMEMBERED, RoundDeadline, give_back
from peer.averaging.meetings import LEAST_GRACE_S
from tests.support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")  # by hivemind, for its daemon


class Gradients:
    """Something large that a round holds."""


def test_objects_in_a_circle_are_freed() -> None:
    """A cycle is collected at once, and not only when Python would look for it."""
    gc.disable()
    try:
        gradients = Gradients()
        gradients.round = {"holds": gradients}  # type: ignore[attr-defined]
        held = weakref.ref(gradients)
        del gradients
        assert held() is not None
        give_back()
        assert held() is None
    finally:
        gc.enable()


Peer: TypeAlias = subprocess.Popen[str]


def start(plan: Plan) -> Peer:
    """A peer's process."""
    command = [sys.executable, "-m", "benchmarks.swarm.averaging_peer", json.dumps(asdict(plan))]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextmanager
def started(directory: Path) -> Iterator[tuple[Peer, Peer]]:
    """Two peers that know each other, the second of which fails. They leave at the end."""
    first, second = (
        replace(plan, address="127.0.0.1") for plan in swarm_plans(directory, ("trainer", "trainer"), values=1_000_000)
    )
    with start(first) as peer, start(replace(second, initial_peers=tuple(hear(peer)), fails=True)) as failing:
        hear(failing)
        yield peer, failing
        for process in (peer, failing):
            process.communicate()  # ends its input, upon which it leaves


def run_round(peer: Peer, failing: Peer) -> bool:
    """Let both average once; returns whether that succeeded for the first."""
    for process in (peer, failing):
        tell(process, None)
    answers = [hear(process) for process in (peer, failing)]
    return answers[0] is not None


def held_rounds(peer: Peer) -> int:
    """The number of rounds that the peer has in memory."""
    tell(peer, "rounds")
    return int(hear(peer))


@pytest.mark.usefixtures("forked")
def test_no_round_outlives_its_end(tmp_path: Path) -> None:
    """Neither rounds that succeeded nor those that failed stay in the averager's memory until the next one."""
    with started(tmp_path) as (peer, failing):
        assert False in [run_round(peer, failing) for _ in range(3)]
        wait_until("the peer holds no round", lambda: held_rounds(peer) == 0, poll_s=0.1)


def after(rounds: Sequence[float], most_s: float = 600.0) -> RoundDeadline:
    """The deadline after rounds that took these seconds."""
    deadline = RoundDeadline(most_s)
    for seconds in rounds:
        deadline.succeeded(seconds)
    return deadline


def test_at_first_the_runs_limit_holds() -> None:
    """Nothing is known yet."""
    assert after([2.0] * (LEAST_KNOWN - 1)).seconds == 600.0


def test_it_follows_the_rounds() -> None:
    """Slow lines get more time, and rounds that vary more than rounds that are alike."""
    assert after([30.0] * 10).seconds == pytest.approx(90.0)
    assert after([20.0, 40.0] * 5).seconds > after([30.0] * 10).seconds
    assert after([0.2] * 10).seconds == LEAST_S


def test_one_slow_round_changes_little_and_twenty_change_it() -> None:
    """The median is what counts, of the newest rounds."""
    assert after([30.0] * 10 + [500.0]).seconds == pytest.approx(90.0)
    assert after([30.0] * 10 + [60.0] * REMEMBERED).seconds == pytest.approx(180.0)


def test_failures_double_it_up_to_the_runs_limit() -> None:
    """A line that got slower is given more time, not up."""
    deadline = after([30.0] * 10)
    for expected in (180.0, 360.0, 600.0, 600.0):
        deadline.failed()
        assert deadline.seconds == pytest.approx(expected)
    for _ in range(10_000):
        deadline.failed()
    assert deadline.seconds == 600.0
    deadline.succeeded(30.0)
    assert deadline.seconds == pytest.approx(90.0)


def test_it_never_exceeds_the_runs_limit() -> None:
    """Which the operator sets."""
    assert after([30.0] * 10, most_s=45.0).seconds == 45.0
    assert after([0.1] * 10, most_s=5.0).seconds == 5.0


def test_the_least_is_what_is_measured() -> None:
    """The wait for a group's peers has another least time than a round."""
    deadline = RoundDeadline(15.0, LEAST_GRACE_S)
    for _ in range(LEAST_KNOWN):
        assert deadline.seconds == 15.0
        deadline.succeeded(0.5)
    assert deadline.seconds == LEAST_GRACE_S < LEAST_S
