"""Pure functions that decide, from limits and readings, whether to train, pause or leave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from peer.limits.energy_meter import NOT_KNOWN, Energy
from peer.limits.limits import Limits, next_start


class Action(Enum):
    """An action for the agent to take on its worker."""

    GO = "go"
    PAUSE = "pause"  # the worker leaves the swarm; the session with the coordinator continues
    SHRINK = "shrink"  # the worker is restarted with half the microbatch size
    LEAVE = "leave"


@dataclass(frozen=True)
class Decision:
    """An action and the reason for it, worded to follow "because" ("" for GO)."""

    action: Action
    reason: str = ""


def decide(now: datetime, limits: Limits, readings: Readings) -> Decision:
    """Decide on an action at `now`, a time in the machine's local time zone."""
    for reason in _to_leave(limits, readings):
        return Decision(Action.LEAVE, reason)
    for reason in _to_pause(now, limits, readings):
        return Decision(Action.PAUSE, reason)
    if limits.memory_bytes is not None and readings.memory_bytes > limits.memory_bytes:
        return Decision(Action.SHRINK, f"the worker uses more than {limits.memory_bytes / 1e9:,.6g} GB of memory")
    return Decision(Action.GO)


def _to_leave(limits: Limits, readings: Readings) -> Iterator[str]:
    if readings.taken_back:
        yield readings.taken_back
    if limits.max_hours is not None and readings.elapsed_s >= limits.max_hours * 3600:
        yield "the hours are over"
    if limits.upload_bytes is not None and readings.sent_bytes >= limits.upload_bytes:
        yield f"the {limits.upload_bytes / 1e6:,.6g} MB that may be sent are used up"
    if limits.download_bytes is not None and readings.received_bytes >= limits.download_bytes:
        yield f"the {limits.download_bytes / 1e6:,.6g} MB that may be received are used up"
    if limits.disk_bytes is not None and readings.disk_bytes > limits.disk_bytes:
        yield f"this device's files take more than {limits.disk_bytes / 1e9:,.6g} GB"


def _to_pause(now: datetime, limits: Limits, readings: Readings) -> Iterator[str]:
    if limits.hours and not any(window.holds(now.time()) for window in limits.hours):
        hours = ", ".join(map(str, limits.hours))
        yield f"it is outside the hours {hours}; it goes on at {next_start(limits.hours, now):%H:%M}"
    if limits.polite and readings.on_battery:
        yield "this machine runs on its battery"
    if limits.polite and readings.metered:
        yield "the network is metered"
    if limits.polite and readings.in_use:
        yield "somebody uses this machine"


@dataclass(frozen=True)
class Readings:
    """The parts of the machine's state at one moment that the volunteer's limits depend on.

    A value is None if the system does not expose it; such a value never stops training.
    """

    elapsed_s: float = 0.0  # time since joining
    sent_bytes: int = 0
    received_bytes: int = 0
    memory_bytes: int = 0  # memory of the worker and its children
    disk_bytes: int = 0  # size of this device's files, after trimming the cache
    energy: Energy = NOT_KNOWN
    taken_back: str = ""  # reason why the machine will be preempted; "" if it will not
    on_battery: bool | None = None
    metered: bool | None = None
    in_use: bool | None = None  # whether a person or another program uses the machine


def unknown_to_polite(readings: Readings) -> tuple[str, ...]:
    """Return the `--polite` conditions that the system does not expose, worded "whether ..."."""
    questions = {
        "whether it runs on battery": readings.on_battery,
        "whether its network is metered": readings.metered,
        "whether somebody is at the keyboard": readings.in_use,
    }
    return tuple(question for question, answer in questions.items() if answer is None)
