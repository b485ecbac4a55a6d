"""The samples that a worker holds when it dies, and what the next one is told."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace

import pytest

from peer.agent.agent import unexplained
from peer.agent.workers import StopRequest, Underway, Workers
from peer.reporting.messages import (
    ClockRead,
    KeeperAt,
    LineMeasured,
    Lost,
    Progress,
    Ready,
    Stopped,
    WorkerMessage,
    WorkerPlan,
)
from tests.support.reports import report
from tests.support.worker_mains import trains_until_stopped

HALF_WAY = Progress(4, 24, 60, 100, 3, 5.0, 8.0, 7.0)


def test_a_dead_worker_loses_what_it_last_said_it_held() -> None:
    """The step is the one that the samples were for."""
    assert after(Ready("Qm", 4, "cpu"), HALF_WAY).lost(False) == Lost(5, {"died": 24})
    assert after(Ready("Qm", 4, "cpu"), HALF_WAY).lost(True) == Lost(5, {"left": 24})


@pytest.mark.parametrize("last", [report(5), Lost(5, {"left": 24}), Stopped("told to stop"), Ready("Qm", 5, "cpu")])
def test_what_is_in_a_step_or_told_is_not_lost_again(last: WorkerMessage) -> None:
    """After a report nothing is held; who leaves in order has told it."""
    assert after(HALF_WAY, last).lost(False) is None
    assert after(last, replace(HALF_WAY, own_samples=0)).lost(False) is None


def after(*messages: WorkerMessage) -> Underway:
    underway = Underway()
    for message in messages:
        underway.hear(message)
    return underway


async def test_the_next_worker_begins_with_what_was_told_last() -> None:
    """Where the keeper is and what the line has, since the plan was made."""
    explain, plan = unexplained, WorkerPlan("{}", "", "", "", ("old",))
    workers = Workers(trains_until_stopped, StopRequest(), asyncio.Queue(), explain, time.time, random.Random(0))
    workers.tell(KeeperAt(("new",)))
    workers.tell(ClockRead(12.5))
    plan = replace(plan, clock_offset_s=12.5)
    assert workers.as_of_now(plan) == replace(plan, initial_peers=("new",))
    workers.tell(LineMeasured(3e6))
    assert workers.as_of_now(plan).place.bandwidth == 3e6
