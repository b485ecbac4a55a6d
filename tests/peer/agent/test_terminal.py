"""What the person at the terminal sees."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from peer.agent.terminal import (
    PROGRESS_LINE_EVERY_S,
    DisplayEvent,
    LineDisplay,
    PanelDisplay,
    PanelState,
    describe,
    reduce_state,
    render,
)
from peer.config.phases import PhaseFacts
from peer.control.events import Connected, Standing
from peer.reporting.messages import Failed, Notice, PhaseEntered, Progress, Ready, Stopped
from tests.support.reports import report

START = PanelState(run="demo", member="ada")
PROGRESS = Progress(3, 10, 40, target_batch_size=100, peers=2, samples_per_second=5.0, loss=7.5)
REPORT = report(4, 60, 7.25, group_size=3, group_samples=104, lost_samples=8, lost_reason="out of sync")


@pytest.mark.parametrize(
    ("event", "changes"),
    [
        (Ready("Qm", 3, "cpu (1 thread)"), {"activity": "training", "device": "cpu (1 thread)", "step": 3}),
        (Notice("warning", "look"), {"notice": "look"}),
        (Stopped("enough"), {"activity": "stopped", "notice": "Left the swarm in order: enough."}),
        (Failed("worker", 18, "died"), {"activity": "restarting", "notice": "died"}),
        (Connected(False), {"connected": False}),
        (Standing(500, 1, 4), {"standing": Standing(500, 1, 4)}),
    ],
)
def test_events_change_the_panel(event: DisplayEvent, changes: dict[str, object]) -> None:
    """Each event changes what it tells, and nothing else."""
    assert reduce_state(START, event) == replace(START, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "doing", "progress", "waiting"),
    [
        ("cpu", "training", replace(PROGRESS, stands_by=True), "waiting for a faster line"),
        ("cpu", "training", replace(PROGRESS, paused=True), "paused by the operator"),
        ("", "assisting", replace(PROGRESS, paused=True), "paused by the operator"),
    ],
)
def test_a_peer_says_what_it_waits_for(device: str, doing: str, progress: Progress, waiting: str) -> None:
    """As long as it does; then it goes on with what it did."""
    waits = reduce_state(replace(START, activity=doing, device=device), progress)
    assert waits.activity == waiting
    assert reduce_state(waits, PROGRESS).activity == doing


def test_reports_add_up() -> None:
    """Contributed and lost samples are summed over the stay; a new step begins with an empty batch."""
    state = reduce_state(reduce_state(reduce_state(START, PROGRESS), REPORT), replace(REPORT, step=5))
    assert (state.contributed, state.lost, state.step, state.swarm_samples) == (120, 16, 5, 0)
    assert (state.last_group, state.last_averaging_s) == (3, 0.5)


def test_missing_loss_keeps_the_last_one() -> None:
    """Right after a step there is no loss yet; the last one stays on the panel."""
    state = reduce_state(reduce_state(START, PROGRESS), replace(PROGRESS, loss=None))
    assert state.loss == 7.5


def test_lines_say_what_matters() -> None:
    """A step's line has samples, loss, group and what was lost with its reason."""
    line = describe(REPORT)
    assert line is not None
    for part in ("Step 4", "60 of 104", "7.250", "8 samples lost", "out of sync"):
        assert part in line


def test_that_the_coordinator_is_away_and_back_is_said_once_each() -> None:
    """Its first answer is no news."""
    stream = io.StringIO()
    display = LineDisplay(stream, as_json=False, clock=lambda: 0.0)
    for up in (True, False, False, True, True):
        display.show(Connected(up))
    away, back = stream.getvalue().splitlines()
    assert away == "The coordinator does not answer; training goes on, reports are kept."
    assert back == "The coordinator answers again."


def test_a_pause_is_told_at_once_and_once() -> None:
    """Between two lines of progress, and so is its end."""
    stream = io.StringIO()
    display = LineDisplay(stream, as_json=False, clock=lambda: 0.0)
    for paused in (False, False, True, True, False, False):
        display.show(replace(PROGRESS, paused=paused))
    before, pause, after = stream.getvalue().splitlines()
    assert pause == "The operator has paused the run: waiting."
    assert before == after == describe(PROGRESS)


def test_one_peer_is_one_peer() -> None:
    """A line counts in English."""
    lines = [describe(replace(PROGRESS, peers=number)) or "" for number in (0, 1, 2)]
    assert [line.rpartition(", ")[2] for line in lines] == ["0 peers.", "1 peer.", "2 peers."]


def test_progress_lines_are_rare() -> None:
    """Without a terminal progress is printed only now and then, steps always."""
    now = [0.0]
    stream = io.StringIO()
    display = LineDisplay(stream, as_json=False, clock=lambda: now[0])
    for _ in range(3):
        display.show(PROGRESS)
    display.show(REPORT)
    assert len(stream.getvalue().splitlines()) == 2
    now[0] = PROGRESS_LINE_EVERY_S
    display.show(PROGRESS)
    assert len(stream.getvalue().splitlines()) == 3


def test_json_lines_hold_everything() -> None:
    """For machines each event is one JSON object with its type."""
    stream = io.StringIO()
    display = LineDisplay(stream, as_json=True, clock=lambda: 0.0)
    display.show(REPORT)
    display.show(Connected(True))
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["event"], first["samples"], first["lost_reason"]) == ("StepReport", 60, "out of sync")
    assert second == {"event": "Connected", "up": True}


def test_a_long_notice_is_shown() -> None:
    """In a time that grows with its length alone: for this one, its square would be hours."""
    stream = io.StringIO()
    LineDisplay(stream, as_json=False, clock=lambda: 0.0).show(Notice("warning", "a" * 300_000))
    assert "a" * 300_000 in stream.getvalue()


@pytest.mark.parametrize("as_json", [False, True])
def test_notices_that_repeat_are_counted_once_a_minute(as_json: bool) -> None:
    """In plain and in JSON lines; steps and other news pass between them."""
    now = [0.0]
    stream = io.StringIO()
    display = LineDisplay(stream, as_json=as_json, clock=lambda: now[0])
    for second in range(150):
        now[0] = float(second)
        display.show(Notice("warning", f"a round failed after {second} s"))
        if second == 70:
            display.show(REPORT)
    display.close()
    lines = stream.getvalue().splitlines()
    texts = [json.loads(line).get("text", "Step 4") if as_json else line for line in lines]
    first = [f"a round failed after {second} s" for second in range(5)]
    assert texts[:5] == first
    assert [text.split(":")[0] for text in texts[5:]] == [
        "a round failed after 60 s (the last of 56 more like it)",
        "Step 4",
        "a round failed after 120 s (the last of 60 more like it)",
    ]


def test_a_phase_is_told_when_it_begins_and_stays_on_the_panel() -> None:
    """The line says what the new phase consists in; on the panel it stays when other notices have come."""
    event = PhaseEntered(PhaseFacts(2, 3, 400, 128, 1024, fresh_optimizer=True))
    line = "Phase 2 of 3, from step 400 on: 128 tokens, 1024 samples a step, fresh optimizer."
    assert describe(event) == line
    entered = reduce_state(START, event)
    assert entered.notice == line
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(render(reduce_state(entered, Notice("info", "look"))))
    assert "2 of 3, from step 400 on: 128 tokens, 1024 samples a step" in console.export_text()


def test_the_panel_says_which_device_this_is() -> None:
    """By its number a member finds their own page; before the coordinator has said it, there is none."""
    assert replace(START, device_number=12).who == "ada (device #12)"
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(render(replace(START, device_number=12)))
    assert "demo: ada (device #12), loading the model" in console.export_text()
    assert START.who == "ada"


def test_the_panel_shows_nothing_that_is_not_known_yet() -> None:
    """Before the worker is ready there is neither a device nor a batch."""
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(render(START))
    text = console.export_text()
    assert "0 of 0" not in text
    assert "samples/s" not in text


@pytest.mark.parametrize(("confirmed", "place"), [(0, ""), (320, "; 320 confirmed in all, rank 1 of 3")])
def test_the_panel_tells_this_stays_samples_from_all_that_were_confirmed(confirmed: int, place: str) -> None:
    """The coordinator may not have confirmed the newest yet; who has none has no rank."""
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(render(replace(START, contributed=512, standing=Standing(confirmed, 1, 3))))
    [line] = [line for line in console.export_text().splitlines() if "contributed" in line]
    assert line.strip("│ ").split("contributed")[1].strip() == f"512 samples in this stay{place}"


def test_names_are_not_markup() -> None:
    """A run or member whose name looks like rich's markup is shown as it is spelt."""
    console = Console(width=100, file=io.StringIO(), record=True)
    state = reduce_state(replace(START, member="[red]x[/red]", run="[bold]"), Notice("info", "[link=a]b[/link]"))
    console.print(render(state))
    text = console.export_text()
    assert "[red]x[/red]" in text
    assert "[bold]" in text
    assert "[link=a]b[/link]" in text


def test_panel_follows_events() -> None:
    """The live panel ends with the last state on the screen."""
    file = io.StringIO()
    display = PanelDisplay(START, Console(width=100, file=file, force_terminal=True))
    for event in (Ready("Qm", 3, "cpu"), PROGRESS, REPORT, Standing(560, 2, 5, 12.0, 3 * 86_400)):
        display.show(event)
    display.close()
    text = file.getvalue()
    assert "7.250" in text
    assert "rank 2 of 5" in text
    assert "12 samples/s, about 3 days left" in text
    assert "0 of 100 samples, about 8 s left" in text


def test_a_warning_can_be_copied_from_above_the_panel() -> None:
    """It stands there in one piece, however long it is, and without the panel's frame."""
    file = io.StringIO()
    display = PanelDisplay(START, Console(width=60, file=file, force_terminal=True))
    command = "update when you can: " + "x" * 200 + " && y"
    display.show(Notice("warning", command))
    display.close()
    assert command in file.getvalue()
