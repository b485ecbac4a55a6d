"""What a person is told, at the end, of a stay's samples."""

from __future__ import annotations

from dataclasses import replace

from peer.agent.stay_work import StayWork
from peer.control.events import Standing
from peer.reporting.messages import Lost
from tests.support.reports import report

REPORT = report(4, 2048, lost_samples=16, lost_reason="late", lost={"late": 16})


def test_samples_computed_in_vain_are_told_at_the_end_of_the_stay() -> None:
    """Beside those that were averaged, by cause; what others confirmed meanwhile is the coordinator's count."""
    work = StayWork()
    for event in (Standing(500, 1, 4), REPORT, Lost(5, {"died": 720}), Standing(2000, 1, 4)):
        work = work.after(event)
    assert work.line is None
    assert work.on_panel() == {"lost": 736}
    assert replace(work, at_end=True).line == (
        "Of the 2,784 samples computed in this stay, 2,048 were averaged into steps and 736 were lost "
        "(died 720, late 16); the coordinator has confirmed 1,500 samples of your devices meanwhile."
    )


def test_a_stay_without_losses_or_without_a_coordinator_says_no_more_than_is_known() -> None:
    """A stay in which nothing was computed says nothing."""
    work = replace(StayWork().after(replace(REPORT, lost_samples=0, lost={})), at_end=True)
    assert work.line == "Of the 2,048 samples computed in this stay, 2,048 were averaged into steps and 0 were lost."
    assert replace(StayWork(), at_end=True).line is None
