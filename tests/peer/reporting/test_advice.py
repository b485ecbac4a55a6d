"""What a volunteer is told whose samples are lost again and again."""

from __future__ import annotations

from typing import Any

import pytest

from peer.reporting.advice import (
    LEAST_KNOWN,
    PAUSE_S,
    SAME_PAUSE_S,
    SILENT_S,
    Adviser,
    Conditions,
    SparingReports,
    advice,
)
from peer.reporting.messages import LostCause, Notice
from peer.runtime.repeats import MOST_WARNINGS, RepeatFilter
from tests.support.clocks import Clock

LATE = LostCause.LATE.value


COUNTED, MISSED, NOTHING = (8, 0, ""), (0, 8, LATE), (0, 0, "")  # attempts at a step


@pytest.mark.parametrize(
    ("cause", "conditions", "says"),
    [
        (LATE, Conditions(step_s=30.0, sample_s=45.0), ["every 30 s", "takes this device 45 s", "assist"]),
        (LATE, Conditions(step_s=30.0, sample_s=1.0, round_s=34.0), ["every 30 s", "this line 34 s", "cable"]),
        (LATE, Conditions(step_s=30.0, sample_s=1.0, round_s=2.0), ["every 30 s", "averaging.delay"]),
        (LostCause.AVERAGING.value, Conditions(), ["rounds of averaging fail", "manyhands doctor"]),
        (LostCause.OUT_OF_SYNC.value, Conditions(), ["computes wrongly"]),
        (LostCause.SLOW_LINE.value, Conditions(round_s=290.0, longest_round_s=60.0), ["290 s", "60 s at most"]),
    ],
)
def test_the_advice_names_what_takes_too_long(cause: str, conditions: Conditions, says: list[str]) -> None:
    """With seconds to compare, and what the volunteer or the operator may do."""
    text = advice(cause, conditions)
    assert text is not None
    assert all(part in text for part in says)


@pytest.mark.parametrize("cause", [LostCause.UNDONE, LostCause.LEFT, LostCause.LATE])
def test_nothing_is_said_of_what_passes_or_is_unknown(cause: LostCause) -> None:
    """A return to a checkpoint, the end, or steps of unknown length."""
    assert advice(cause.value, Conditions()) is None


def test_a_volunteer_is_told_at_once_that_the_line_is_too_slow() -> None:
    """Also where it has lost no samples; once an hour."""
    told: list[Any] = []
    adviser = Adviser(lambda: Conditions(round_s=290.0, longest_round_s=60.0), told.append, Clock())
    for _ in range(2):
        adviser.settled(0, 0, LostCause.SLOW_LINE.value)
    assert [notice.level for notice in told] == ["warning"]


def test_a_volunteer_is_told_when_most_samples_are_lost_and_not_again_at_once() -> None:
    """Not after a single bad step, nor where most of the samples count; each cause once an hour."""
    told: list[Any] = []
    clock = Clock()
    adviser = Adviser(lambda: Conditions(step_s=30.0), told.append, clock)
    for each in (COUNTED, NOTHING, *[MISSED] * (LEAST_KNOWN - 2)):
        adviser.settled(*each)
    assert told == []
    adviser.settled(*MISSED)
    assert [(notice.level, "75%" in notice.text) for notice in told] == [("warning", True)]
    adviser.settled(*MISSED)
    adviser.settled(0, 8, LostCause.AVERAGING.value)
    assert len(told) == 2
    clock.now += SILENT_S
    adviser.settled(*MISSED)
    assert len(told) == 3
    assert all(isinstance(notice, Notice) for notice in told)


def test_a_volunteer_whose_samples_count_is_told_nothing() -> None:
    """Though one step in three is missed."""
    told: list[Notice] = []
    adviser = Adviser(lambda: Conditions(step_s=30.0), told.append, Clock())
    for _ in range(4):
        for each in (COUNTED, COUNTED, MISSED):
            adviser.settled(*each)
    assert told == []


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


def test_the_log_knows_warnings_by_who_reports_them(caplog: pytest.LogCaptureFixture) -> None:
    """A fault that repeats keeps no other one out of the log."""
    report = SparingReports(lambda _: None, lambda: 0.0)
    with caplog.filtering(RepeatFilter(Clock(0.0))):
        for number in range(20):
            report(f"fault {number}")
        report("another fault")
    assert caplog.messages == [*(f"fault {number}" for number in range(MOST_WARNINGS)), "another fault"]


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
