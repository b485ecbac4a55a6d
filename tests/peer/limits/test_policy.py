"""What limits and readings come to."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from peer.limits.limits import NO_LIMITS, Limits, parse_windows
from peer.limits.policy import Action, Decision, Readings, decide, unknown_to_polite

NOON = datetime(2026, 6, 1, 12, tzinfo=timezone.utc)
POLITE = Limits(polite=True)
NIGHTLY = Limits(hours=parse_windows(["22:00-07:00", "13:00-14:00"]))


@pytest.mark.parametrize(
    ("limits", "readings", "action", "reason"),
    [
        (NO_LIMITS, Readings(on_battery=True, metered=True, in_use=True, elapsed_s=1e9), Action.GO, ""),
        (POLITE, Readings(), Action.GO, ""),
        (POLITE, Readings(on_battery=False, metered=False, in_use=False), Action.GO, ""),
        (POLITE, Readings(on_battery=True), Action.PAUSE, "this machine runs on its battery"),
        (POLITE, Readings(metered=True), Action.PAUSE, "the network is metered"),
        (POLITE, Readings(in_use=True), Action.PAUSE, "somebody uses this machine"),
        (
            NIGHTLY,
            Readings(),
            Action.PAUSE,
            "it is outside the hours 22:00-07:00, 13:00-14:00; it goes on at 13:00",
        ),
        (Limits(max_hours=2.0), Readings(elapsed_s=7199.0), Action.GO, ""),
        (Limits(max_hours=2.0), Readings(elapsed_s=7200.0), Action.LEAVE, "the hours are over"),
        (Limits(upload_bytes=10**9), Readings(sent_bytes=10**9 - 1, received_bytes=10**10), Action.GO, ""),
        (
            Limits(upload_bytes=10**9),
            Readings(sent_bytes=10**9),
            Action.LEAVE,
            "the 1,000 MB that may be sent are used up",
        ),
        (
            Limits(download_bytes=10**9),
            Readings(received_bytes=10**9),
            Action.LEAVE,
            "the 1,000 MB that may be received are used up",
        ),
        (Limits(memory_bytes=10**9), Readings(memory_bytes=10**9), Action.GO, ""),
        (
            Limits(memory_bytes=10**9),
            Readings(memory_bytes=10**9 + 1),
            Action.SHRINK,
            "the worker uses more than 1 GB of memory",
        ),
        (
            Limits(disk_bytes=2 * 10**9),
            Readings(disk_bytes=3 * 10**9),
            Action.LEAVE,
            "this device's files take more than 2 GB",
        ),
        (NIGHTLY, Readings(taken_back="Azure takes it back"), Action.LEAVE, "Azure takes it back"),
        (Limits(polite=True, max_hours=2.0), Readings(7200.0, on_battery=True), Action.LEAVE, "the hours are over"),
    ],
)
def test_decisions(limits: Limits, readings: Readings, action: Action, reason: str) -> None:
    """Only what was asked for counts, what the system does not tell stops nothing, and leaving goes before pausing."""
    assert decide(NOON, limits, readings) == Decision(action, reason)


def test_what_polite_cannot_see_is_named() -> None:
    """Whoever relies on it learns what it does not know."""
    assert unknown_to_polite(Readings(on_battery=False, in_use=True)) == ("whether its network is metered",)
