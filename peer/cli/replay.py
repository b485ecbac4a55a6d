"""`manyhands replay`: the event logs of several nodes on one timeline.

Logs come from support bundles, device folders and run directories. Clocks, which may differ by
minutes, are aligned by group starts: all peers of a group log these almost simultaneously.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from auth.errors import ConfigError
from peer.reporting.event_log import (
    FOLDER,
    MOST_BYTES,
    SHORT_ID,
    SUFFIX,
    AnyEvent,
    CaughtUp,
    GroupMet,
    ProcessStarted,
    StepTaken,
    read_folder,
    read_lines,
)

app = typer.Typer(pretty_exceptions_enable=False)
MOST_PROCESSES = 16  # maximum number of logs in one archive


@dataclass(frozen=True)
class NodeEvent:
    """An event logged by a node's process, at the Unix time `at`."""

    at: float
    node: str
    process: str
    event: AnyEvent


@dataclass(frozen=True)
class ClockShift:
    """The correction that aligns a node's clock with those of the other nodes."""

    node: str
    seconds: float  # added to the node's logged times
    groups: int  # number of groups shared with other nodes


@app.command("replay", epilog="Example: manyhands replay run/ alice.zip bob.zip --step 42")
def replay(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCE...", help="Archives of `manyhands support-bundle`, devices' folders, or runs' directories."
        ),
    ],
    step: Annotated[
        int | None, typer.Option(min=0, help="Only events from the step before this one until all nodes have taken it.")
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only events of this kind, such as `group`; repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Show the events of several nodes on one timeline: rounds, groups, parts, downloads, restarts with causes."""
    events = [event for name, source in named(sources).items() for event in read_node(name, source)]
    events, shifts = on_one_clock(events)
    who = partial(name_of, names=peers_of(events))
    if step is not None:
        events = around(events, step)
    kinds = set(kind or ())
    shown = [event for event in events if not kinds or event.event.model_dump()["kind"] in kinds]
    if as_json:
        for event in shown:
            typer.echo(json.dumps({"at": event.at, "node": event.node, "process": event.process, **_fields(event)}))
        return
    for shift in shifts:
        typer.echo(f"# {shift.node}: its clock is {_signed(-shift.seconds)}, by {shift.groups} groups in common.")
    width = max((len(f"{event.node} {event.process}") for event in shown), default=0)
    for event in shown:
        moment = datetime.fromtimestamp(event.at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        typer.echo(f"{moment}  {f'{event.node} {event.process}':{width}}  {event.event.told(who)}")
    if not shown:
        typer.echo("No event is left to show.")


def named(sources: Sequence[Path]) -> dict[str, Path]:
    """Give each source a short, unique name."""
    found: dict[str, Path] = {}
    for source in sources:
        stem = source.absolute().stem
        name, number = stem, 1
        while name in found:
            number += 1
            name = f"{stem}-{number}"
        found[name] = source
    return found


def read_node(name: str, source: Path) -> list[NodeEvent]:
    """Read a node's logs. Raises `ConfigError` if there are none or the archive is invalid."""
    logs = _read_bundle(source) if source.is_file() else _read_directory(source)
    if not logs:
        raise ConfigError(
            f"{source} holds no log of events: give an archive of `manyhands support-bundle`, a device's folder or a "
            "run's directory."
        )
    return [
        NodeEvent(line.at, name, process, line.event)
        for process, data in logs.items()
        for line in read_lines(data)
        if line is not None
    ]


def _read_directory(source: Path) -> dict[str, bytes]:
    for folder in source / "data" / FOLDER, source / FOLDER, source:
        if logs := read_folder(folder, 2 * MOST_BYTES):
            return logs
    return {}


def _read_bundle(source: Path) -> dict[str, bytes]:
    """Read the logs in an untrusted archive, limiting their number and size."""
    try:
        with zipfile.ZipFile(source) as bundle:
            names = [name for name in bundle.namelist() if name.startswith(f"{FOLDER}/") and name.endswith(SUFFIX)]
            found = {}
            for name in names[:MOST_PROCESSES]:
                with bundle.open(name) as file:
                    process = Path(name).name.removesuffix(SUFFIX)
                    found["".join(char for char in process[:32] if char.isprintable())] = file.read(2 * MOST_BYTES)
            return found
    except (zipfile.BadZipFile, OSError, RuntimeError) as error:  # the last: encrypted, or an unknown compression
        raise ConfigError(f"{source} cannot be read as an archive: {error}.") from error


def on_one_clock(events: Sequence[NodeEvent]) -> tuple[list[NodeEvent], list[ClockShift]]:
    """Convert times to the clock of the node with the most groups; return (events, clock shifts).

    Events are sorted. A node that shares no group with an aligned node keeps its logged times.
    """
    met: dict[str, dict[str, float]] = {}  # node -> group -> start on the node's clock
    for event in events:
        if isinstance(event.event, GroupMet):
            met.setdefault(event.node, {})[event.event.group] = event.at
    shifts: dict[str, ClockShift] = {}
    known: dict[str, float] = {}  # group -> start on the common clock
    waiting = sorted(met, key=lambda node: -len(met[node]))
    while waiting:
        node = max(waiting, key=lambda node: len(met[node].keys() & known.keys()))
        waiting.remove(node)
        common = met[node].keys() & known.keys()
        seconds = median(known[group] - met[node][group] for group in common) if common else 0.0
        if common:
            shifts[node] = ClockShift(node, seconds, len(common))
        known = {group: at + seconds for group, at in met[node].items()} | known
    moved = [
        replace(event, at=event.at + shifts[event.node].seconds) if event.node in shifts else event for event in events
    ]
    return sorted(moved, key=lambda event: event.at), list(shifts.values())


def around(events: Sequence[NodeEvent], step: int) -> list[NodeEvent]:
    """Return the events between the first completion of `step - 1` and the last of `step`."""
    taken = [(_step_after(event.event), event.at) for event in events]
    begun = [at for after, at in taken if after == step - 1]
    ended = [at for after, at in taken if after == step]
    first, last = min(begun, default=float("-inf")), max(ended, default=float("inf"))
    return [event for event in events if first <= event.at <= last]


def _step_after(event: AnyEvent) -> int | None:
    return event.step if isinstance(event, StepTaken | CaughtUp) else None


def peers_of(events: Iterable[NodeEvent]) -> dict[str, str]:
    """Return the names of nodes with logs, by libp2p id."""
    return {event.event.peer: event.node for event in events if isinstance(event.event, ProcessStarted)}


def name_of(peer: str, names: Mapping[str, str]) -> str:
    """Return the name of a peer's node, or the end of its libp2p id for a node without logs."""
    return names.get(peer, f"…{peer[-SHORT_ID:]}")


def _fields(event: NodeEvent) -> dict[str, object]:
    return event.event.model_dump(mode="json")


def _signed(seconds: float) -> str:
    return f"{abs(seconds):.3f} s {'ahead' if seconds > 0 else 'behind'}"
