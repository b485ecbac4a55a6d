"""Warnings for the volunteer."""

from __future__ import annotations

from peer.reporting.warnings import PAUSE_S, SAME_PAUSE_S, SparingReports


def test_warnings_that_come_thick_and_fast_are_summed_up() -> None:
    """One is told at once, the next after a pause, with the number of those between."""
    told: list[str] = []
    now = [100.0]
    report = SparingReports(told.append, lambda: now[0])
    for number in range(4):
        report(f"fault {number}")
    now[0] += PAUSE_S
    report("fault 4")
    report("fault 5")
    now[0] += PAUSE_S
    report("fault 6")
    assert told == [
        "fault 0",
        "fault 4 (The log has 3 more warnings since the last one.)",
        "fault 6 (The log has 1 more warnings since the last one.)",
    ]


def test_what_stays_wrong_is_not_said_every_minute() -> None:
    """The same warning is told again after an hour, another one at once."""
    told: list[str] = []
    now = [0.0]
    report = SparingReports(told.append, lambda: now[0])
    for text in ("away", "away", "damaged", "away"):
        report(text)
        now[0] += PAUSE_S
    report("away")
    now[0] += SAME_PAUSE_S
    report("away")
    assert [text.split()[0] for text in told] == ["away", "damaged", "away", "away"]
