"""Swarm time, and how a peer reads the coordinator's clock."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator

import pytest
from hivemind.averaging import control
from hivemind.utils import timed_storage

from auth.clock import ReadClock, follow_coordinator, steady_time, swarm_time
from auth.swarm.hivemind_patches import patch_hivemind
from tests.support.clocks import Clock

HOUR_S = 3600.0


@pytest.fixture
def hour_ahead() -> Iterator[None]:
    """The coordinator's clock is an hour ahead of this machine's."""
    follow_coordinator(time.time() + HOUR_S - steady_time())
    yield
    follow_coordinator(float("nan"))


def test_a_peer_that_was_told_nothing_goes_by_its_own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the keeper does, whose the coordinator's clock is."""
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0)
    assert swarm_time() == 1_800_000_000.0


@pytest.mark.usefixtures("hour_ahead")
def test_whatever_this_machines_clock_is_set_to_swarm_time_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """In hivemind, too, and in processes that are forked."""
    patch_hivemind()
    before = swarm_time()
    assert before - time.time() > HOUR_S / 2
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert before <= swarm_time() < before + HOUR_S
    assert before <= timed_storage.get_dht_time() < before + HOUR_S
    assert before <= control.get_dht_time() < before + HOUR_S
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert before <= pool.apply(swarm_time) < before + HOUR_S


def test_the_message_that_came_quickest_shows_the_clock() -> None:
    """One that was held up changes nothing; a clock that was set is followed, backwards by messages alone."""
    own = Clock()
    own.now = 0.0
    clock = ReadClock(lambda: own.now)
    assert clock.read(1000.0) == 1000.0
    own.now = 10.0
    assert [clock.read(sent) for sent in (1004.0, 1010.2, 0.0, float("inf"))] == [None] * 4
    assert clock.read(1011.0) == 1001.0
    assert clock.read(1070.0) == 1060.0
    assert [clock.read(410.0) for _ in range(8)] == [*[None] * 7, 400.0]
