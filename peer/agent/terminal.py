"""Display of the agent's events: a live panel in a terminal, or lines of text or JSON.

`PanelState` is the displayed state, and `reduce_state` applies an event to it; both are pure.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from peer.config.phases import PhaseFacts
from peer.control.events import Connected, Standing
from peer.limits.events import GuestEvent
from peer.reporting.messages import Failed, Notice, PhaseEntered, Progress, Ready, StepReport, Stopped, WorkerEvent
from peer.runtime.repeats import MOST_WARNINGS, Repeats, counted

REFRESHES_PER_SECOND = 4
UNTOLD = ("receipt",)  # fields omitted from JSON events because they are long and useless to readers
PROGRESS_LINE_EVERY_S = 30.0
MOST_CAUSE_CHARS = 200  # length of the prefix by which repeated notices are recognized
_VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\b\w*\d\w*")  # parts that differ between notices of the same kind
STANDS_BY = "waiting for a faster line"
HELD = "paused by the operator"
CONNECTED = {
    True: "The coordinator answers again.",
    False: "The coordinator does not answer; training goes on, reports are kept.",
}


DisplayEvent = WorkerEvent | Connected | Standing | GuestEvent


@dataclass(frozen=True)
class PanelState:
    """The state shown by the panel."""

    run: str
    member: str
    activity: str = "loading the model and joining the swarm"
    device: str = ""
    phase: PhaseFacts | None = None  # None if the run has no phases
    step: int = 0
    own_samples: int = 0
    swarm_samples: int = 0
    target_batch_size: int = 0
    peers: int = 0
    samples_per_second: float = 0.0
    loss: float | None = None
    last_group: int = 0
    last_averaging_s: float | None = None
    contributed: int = 0  # samples averaged into steps since joining
    averaged_bytes: int = 0  # bytes received from other peers for averaging, since joining
    lost: int = 0
    standing: Standing | None = None
    connected: bool = True
    device_number: int | None = None  # None until the coordinator answers
    used: str = ""  # traffic and energy since joining
    notice: str = ""

    @property
    def who(self) -> str:
        """The member's name, with the device number if known."""
        return self.member if self.device_number is None else f"{self.member} (device #{self.device_number})"


def reduce_state(state: PanelState, event: DisplayEvent) -> PanelState:
    """Return the state after applying an event."""
    match event:
        case Ready():
            return replace(state, activity=_working(event.device), device=event.device, step=event.step)
        case PhaseEntered():
            return replace(state, phase=event.phase, notice=f"Phase {event.phase.line}.")
        case Progress():
            return replace(
                state,
                activity=_going_on(state, event),
                step=event.step,
                own_samples=event.own_samples,
                swarm_samples=event.swarm_samples,
                target_batch_size=event.target_batch_size,
                peers=event.peers,
                samples_per_second=event.samples_per_second,
                loss=_newest(event.loss, state.loss),
            )
        case StepReport():
            return replace(
                state,
                step=event.step,
                own_samples=0,
                swarm_samples=0,
                loss=_newest(event.loss, state.loss),
                last_group=event.group_size,
                last_averaging_s=event.averaging_s,
                contributed=state.contributed + event.samples,
                averaged_bytes=state.averaged_bytes + event.averaged_bytes,
                lost=state.lost + event.lost_samples,
            )
        case Notice():
            return replace(state, notice=event.text)
        case Stopped() | Failed():
            return _ended(state, event)
        case Connected():
            return replace(state, connected=event.up)
        case Standing():
            return replace(state, standing=event)
        case GuestEvent():
            return replace(state, **event.on_panel())


def _ended(state: PanelState, event: Stopped | Failed) -> PanelState:
    if isinstance(event, Failed):
        return replace(state, activity="restarting", notice=event.text)
    if state.activity == "paused":
        return state
    return replace(state, activity="stopped", notice=_farewell(event))


def _farewell(stopped: Stopped) -> str:
    return f"Left the swarm in order: {stopped.reason}."


def _newest(loss: float | None, before: float | None) -> float | None:
    return before if loss is None else loss


def _working(device: str) -> str:
    return "training" if device else "assisting"


def _going_on(state: PanelState, progress: Progress) -> str:
    """Return the activity to show after a `Progress` event: paused, on standby, or working."""
    if progress.paused or progress.stands_by:
        return HELD if progress.paused else STANDS_BY
    return _working(state.device) if state.activity in (HELD, STANDS_BY) else state.activity


def describe(event: DisplayEvent) -> str | None:
    """Describe an event in one line of text; return None if it is not shown as a line."""
    match event:
        case Ready():
            doing = f"Training on {event.device}" if event.device else "Averaging for the others"
            return f"{doing} from global step {event.step}."
        case PhaseEntered():
            return f"Phase {event.phase.line}."
        case StepReport():
            loss = "" if event.loss is None else f", loss {event.loss:.3f}"
            lost = f", {event.lost_samples} samples lost ({event.lost_reason})" if event.lost_samples else ""
            return (
                f"Step {event.step}: {event.samples} of {event.group_samples} samples{loss}, "
                f"averaged with {event.group_size - 1} in {event.averaging_s:.1f} s, "
                f"{megabytes(event.averaged_bytes)} of it here{lost}."
            )
        case Progress():
            return _progress_line(event)
        case Notice() | Failed():
            return event.text
        case Stopped():
            return _farewell(event)
        case Connected():
            return CONNECTED[event.up]
        case Standing():
            return None
        case GuestEvent():
            return event.line


def _progress_line(progress: Progress) -> str:
    if progress.paused:
        return "The operator has paused the run: waiting."
    peers = "1 peer" if progress.peers == 1 else f"{progress.peers} peers"
    return (
        f"Towards step {progress.step + 1}: {progress.swarm_samples} of {progress.target_batch_size} samples, "
        f"{progress.samples_per_second:.1f} of them a second from here, {peers}."
    )


def megabytes(size: int) -> str:
    """Format bytes as megabytes (10^6 bytes)."""
    return f"{size / 1e6:,.1f} MB"


def duration(seconds: float) -> str:
    """Format a duration in seconds, minutes, hours or days."""
    for unit, size in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def batch_filling(state: PanelState) -> str:
    """Describe the global batch's progress and the time left; "" if the batch size is unknown."""
    if not state.target_batch_size:
        return ""
    speed = state.standing.samples_per_second if state.standing else 0.0
    left = max(0, state.target_batch_size - state.swarm_samples)
    eta = f", about {duration(left / speed)} left" if speed else ""
    return f"{state.swarm_samples:,} of {state.target_batch_size:,} samples{eta}"


def run_pace(state: PanelState) -> str:
    """Describe the run's speed and the time left; "" until the coordinator has sent both."""
    standing = state.standing
    if standing is None or not standing.samples_per_second:
        return ""
    return f"{standing.samples_per_second:,.3g} samples/s, about {duration(standing.time_left_s)} left"


def batch_line(state: PanelState) -> str:
    """Describe the progress towards the next step in one line; "" if the batch size is unknown."""
    filling = batch_filling(state)
    return f"Towards global step {state.step + 1:,}: {filling}" if filling else ""


class Display(Protocol):
    """The interface of a display for the agent's events."""

    def show(self, event: DisplayEvent) -> None:
        """Show an event."""

    def close(self) -> None:
        """Restore the terminal."""


class LineDisplay:
    """A display of text or JSON lines; it prints progress twice a minute, and repeated notices once."""

    def __init__(self, stream: TextIO, as_json: bool, clock: Callable[[], float]) -> None:
        self._stream, self._as_json, self._clock = stream, as_json, clock
        self._progress_at, self._paused = float("-inf"), False
        self._connection = Connected(up=True)  # last printed connection state
        self._repeats = Repeats(clock, MOST_WARNINGS)

    def show(self, event: DisplayEvent) -> None:
        """Print an event as a line; skip frequent progress and repeated notices."""
        if isinstance(event, Progress):
            is_due = self._clock() >= self._progress_at + PROGRESS_LINE_EVERY_S
            if event.paused == self._paused and not (is_due and (self._as_json or not event.paused)):
                return
            self._progress_at, self._paused = self._clock(), event.paused
        if isinstance(event, (Notice, Failed)):
            left_out = self._repeats.take((type(event), _VARIABLE.sub("", event.text)[:MOST_CAUSE_CHARS]))
            if left_out is None:
                return
            event = replace(event, text=counted(event.text, left_out))
        if self._as_json:
            facts = {name: value for name, value in asdict(event).items() if name not in UNTOLD}
            print(json.dumps({"event": type(event).__name__} | facts), file=self._stream, flush=True)
        elif self._is_news(event) and (line := describe(event)) is not None:
            print(line, file=self._stream, flush=True)

    def _is_news(self, event: DisplayEvent) -> bool:
        """Return whether to print an event; `Connected` is printed only if the connection changed."""
        if not isinstance(event, Connected):
            return True
        before, self._connection = self._connection, event
        return event != before

    def close(self) -> None:
        """Do nothing, because printed lines need no cleanup."""


class PanelDisplay:
    """A live panel in the terminal."""

    def __init__(self, state: PanelState, console: Console) -> None:
        self._state = state
        self._live = Live(render(state), console=console, refresh_per_second=REFRESHES_PER_SECOND)
        self._live.start()

    def show(self, event: DisplayEvent) -> None:
        """Update the panel; print warnings above it, unwrapped so that commands can be copied."""
        if isinstance(event, Notice) and event.level != "info":
            self._live.console.print(Text(event.text), soft_wrap=True)
        self._state = reduce_state(self._state, event)
        self._live.update(render(self._state))

    def close(self) -> None:
        """Leave the last panel on the screen, and restore the cursor."""
        self._live.stop()


def render(state: PanelState) -> Panel:
    """Render the panel."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    batch = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=max(1, state.target_batch_size), completed=state.swarm_samples, width=30)
    batch.add_row(bar, batch_filling(state))
    standing = state.standing
    place = ""
    if standing is not None and standing.own_samples:
        place = f"; {standing.own_samples} confirmed in all, rank {standing.rank} of {standing.members}"
    lost = f", {state.lost} lost" if state.lost else ""
    averaging = "" if state.last_averaging_s is None else f"{state.last_group} peers, {state.last_averaging_s:.1f} s"
    phase = state.phase
    machine = f"{state.samples_per_second:.1f} samples/s on {state.device}" if state.device else ""
    rows: list[tuple[str, str | Table]] = [
        ("global step", str(state.step)),
        *([] if phase is None else [("phase", phase.line)]),
        ("global batch", batch),
        ("loss", "" if state.loss is None else f"{state.loss:.3f}"),
        *([("the run", run_pace(state))] if run_pace(state) else []),
        ("this machine", "averages and does not train" if state.activity == "assisting" else machine),
        ("contributed", f"{state.contributed} samples in this stay{lost}{place}"),
        ("averaged here", megabytes(state.averaged_bytes)),
        ("peers", str(state.peers)),
        ("last averaging", averaging),
        *([("used", state.used)] if state.used else []),
        ("coordinator", "connected" if state.connected else "not answering; reports are kept"),
        ("", state.notice),
    ]
    for name, value in rows:
        table.add_row(name, Text(value) if isinstance(value, str) else value)
    return Panel(table, title=Text(f"{state.run}: {state.who}, {state.activity}"), expand=False)


def open_display(state: PanelState, *, panel: bool, as_json: bool, clock: Callable[[], float]) -> Display:
    """Return a panel if requested and if standard output is a terminal, else a line display."""
    if panel and not as_json and sys.stdout.isatty():
        return PanelDisplay(state, Console())
    return LineDisplay(sys.stdout, as_json, clock)
