"""What a person, a log and a script see of an examination."""

from __future__ import annotations

import io
import json
import sys

import pytest
from rich.console import Console

from peer.doctor.display import CheckupDisplay, CheckupJsonDisplay, CheckupLineDisplay, open_display
from peer.doctor.stages import Conclusion, StageResult, failed, ok

FINE = StageResult("disk", ok("Room enough.", free_bytes=1))
BAD = StageResult("daemon", failed("It [bold]does not[/bold] start.", "Install again.", log=["panic: no", "exit 2"]))
FIT, UNFIT = Conclusion(True, "All is well.", 12, "a peer"), Conclusion(False, "1 stage failed.")


def play(display: CheckupDisplay, *findings: StageResult, conclusion: Conclusion = FIT) -> None:
    for finding in findings:
        display.begin(finding.stage)
        display.show(finding)
    display.conclude(conclusion)


def test_lines_for_a_log() -> None:
    """Stage, verdict, both sentences, and below them what a program said for itself."""
    stream = io.StringIO()
    play(CheckupLineDisplay(Console(file=stream, width=40)), FINE, BAD)
    assert stream.getvalue().splitlines() == [
        "disk          ok       Room enough.",
        "daemon        failed   It [bold]does not[/bold] start. Install again.",
        "              panic: no",
        "              exit 2",
        "All is well.",
    ]


def test_json_for_scripts() -> None:
    """One object a line, the conclusion last."""
    stream = io.StringIO()
    play(CheckupJsonDisplay(stream), FINE, BAD, conclusion=UNFIT)
    first, second, last = map(json.loads, stream.getvalue().splitlines())
    assert first == {"stage": "disk", "verdict": "ok", "found": "Room enough.", "remedy": "", "data": {"free_bytes": 1}}
    assert second["remedy"] == "Install again."
    assert second["data"]["log"] == ["panic: no", "exit 2"]
    assert last == {"conclusion": {"fit": False, "text": "1 stage failed.", "samples_per_step": None, "joins_as": None}}


def test_a_terminal() -> None:
    """The same with colours; what looks like markup is text."""
    stream = io.StringIO()
    play(CheckupLineDisplay(Console(file=stream, force_terminal=True, width=100)), FINE, BAD)
    text = stream.getvalue()
    assert "\x1b[" in text
    for words in ("examining", "[bold]does not[/bold]", "panic: no", "All is well."):
        assert words in text


def test_a_failure_is_left_to_the_commands_error() -> None:
    """So that the person does not read it twice."""
    stream = io.StringIO()
    play(CheckupLineDisplay(Console(file=stream, width=40)), BAD, conclusion=UNFIT)
    assert UNFIT.text not in stream.getvalue()


@pytest.mark.parametrize(("as_json", "kind"), [(True, CheckupJsonDisplay), (False, CheckupLineDisplay)])
def test_without_a_terminal_there_are_lines(as_json: bool, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one kind or the other."""
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert isinstance(open_display(as_json), kind)
