"""Suspicions are said once in a while, not at every look, and wait for a session."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.reporting.suspicions import MAX_WAITING, SAME_PAUSE_S, Suspicion, Suspicions, WaitingSuspicions

ONE = Suspicion("Qm1", "mallory", "d4", "step", 7, "claims step 1000000000")


def test_the_same_is_said_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """Another kind or another peer is said at once; the log names the member."""
    said: list[Suspicion] = []
    now = [0.0]
    suspicions = Suspicions(said.append, lambda: now[0])
    for found in (ONE, replace(ONE, step=8), replace(ONE, kind="samples"), replace(ONE, peer_id="Qm2")):
        suspicions.raise_against(found)
    assert [(found.peer_id, found.kind) for found in said] == [("Qm1", "step"), ("Qm1", "samples"), ("Qm2", "step")]
    assert "suspicious: mallory (device d4, peer Qm1) claims step 1000000000 (step 7)" in caplog.text
    now[0] = SAME_PAUSE_S + 1
    suspicions.raise_against(ONE)
    assert len(said) == 4


def test_the_oldest_go_when_nobody_takes_them() -> None:
    """What waits for a session is bounded, and taken once."""
    waiting = WaitingSuspicions()
    for step in range(MAX_WAITING + 5):
        waiting.put(replace(ONE, step=step))
    taken = waiting.take()
    assert (len(taken), taken[0].step) == (MAX_WAITING, 5)
    assert waiting.take() == []
