"""A node's event log on its own disk, used to diagnose failed rounds.

Each process of a node (such as an agent, worker or keeper) appends JSON lines to its own
file. Each line is a single write, so a killed process leaves complete lines; lines truncated by a
power failure are skipped. A full file is rotated and one old file kept, so a log takes at most
twice `most_bytes`. On a full disk, events are dropped and counted; logging never fails. Events
identify peers by libp2p ids, and contain no addresses, messages or secrets.

`manyhands support-bundle` collects a volunteer's logs; `manyhands replay` merges several logs.
"""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, Union

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

FOLDER = "events"  # folder name, in a device's data directory or a run's directory
SUFFIX, OLDER_SUFFIX = ".jsonl", ".older.jsonl"
MOST_BYTES = 4_000_000  # size at which to rotate a file
MOST_LINE_BYTES = 64_000
SHORT_ID = 8  # number of characters of an id to show
MOST_PEERS = 256  # maximum number of group members in one event
MOST_CHARS = 300
MOST_ID_CHARS = 128
MOST_NUMBER = 2**62
TAKEN = "taken"  # outcome of a download that was used


def _shown(text: object, most_chars: int = MOST_CHARS) -> object:
    """Reduce text to one short line without addresses or control characters; keep other types."""
    if not isinstance(text, str):
        return text
    return _ADDRESS.sub("<address>", "".join(char if char.isprintable() else " " for char in text[:most_chars]))


def _bounded(number: object) -> object:
    """Clamp a number to [0, `MOST_NUMBER`], so that peers' numbers cannot make an event invalid."""
    if isinstance(number, bool) or not isinstance(number, int | float):
        return number
    return 0 if math.isnan(number) else min(max(number, 0), MOST_NUMBER)


def _whole(number: object) -> object:
    bounded = _bounded(number)
    return int(bounded) if isinstance(bounded, float) else bounded


def _cut(items: object) -> object:
    return items[:MOST_PEERS] if isinstance(items, list | tuple) else items


_Words = Annotated[str, BeforeValidator(lambda text: _shown(text))]
_Id = Annotated[str, BeforeValidator(lambda text: _shown(text, MOST_ID_CHARS))]
_ADDRESS = re.compile(r"/(?:ip[46]|dns[46]?)/[^/\s]+|\b\d{1,3}(?:\.\d{1,3}){3}\b|\[[0-9a-fA-F:]*:[0-9a-fA-F:.]*\]")
Who = Callable[[str], str]  # returns the display name for a libp2p id
RoundOutcome = Literal["averaged", "too few samples", "failed"]
_Count = Annotated[int, BeforeValidator(_whole)]
_Number = Annotated[float, BeforeValidator(_bounded)]


class AnyEvent(BaseModel, ABC):
    """The base class of events; it ignores fields added by newer versions.

    Long texts and lists are cut and numbers clamped, so that other peers' data is always valid.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    @abstractmethod
    def told(self, who: Who) -> str:
        """Describe the event in one line."""


class ProcessStarted(AnyEvent):
    """A process of the node has started."""

    kind: Literal["started"] = "started"
    software: _Id
    role: _Id
    peer: _Id  # libp2p id of the node

    def told(self, who: Who) -> str:
        return f"started: {self.role}, peer {who(self.peer)}, version {self.software}"


class ProcessEnded(AnyEvent):
    """A process of the node has ended; `cause` is the reason."""

    kind: Literal["ended"] = "ended"
    cause: _Words

    def told(self, _who: Who) -> str:
        return f"ended: {self.cause}"


class ChildStarted(AnyEvent):
    """A child process has started."""

    kind: Literal["child started"] = "child started"
    child: _Id
    pid: _Count

    def told(self, _who: Who) -> str:
        return f"started the {self.child} (process {self.pid})"


class ChildEnded(AnyEvent):
    """A child process has ended."""

    kind: Literal["child ended"] = "child ended"
    child: _Id
    cause: _Words

    def told(self, _who: Who) -> str:
        return f"the {self.child} ended: {self.cause}"


class SessionChanged(AnyEvent):
    """The connection to the coordinator has been established or lost."""

    kind: Literal["session"] = "session"
    up: bool

    def told(self, _who: Who) -> str:
        return "connected to the coordinator" if self.up else "the coordinator is unreachable"


class LimitsHeld(AnyEvent):
    """The volunteer's limits have paused training or, if `cause` is empty, allow training again."""

    kind: Literal["limits"] = "limits"
    cause: _Words

    def told(self, _who: Who) -> str:
        return f"limits: {self.cause or 'training may go on'}"


class RoundBegun(AnyEvent):
    """This peer has begun to look for a group to average with."""

    kind: Literal["round begun"] = "round begun"
    era: _Count
    step: _Count  # step that the round is for
    attempt: _Count  # number of the attempt, starting at 1
    samples: _Count  # number of this peer's samples
    required: _Count  # minimum number of peers in the group
    expected: _Count  # number of peers that the group waits for; 0 if unknown

    def told(self, _who: Who) -> str:
        wanted = f"{self.required} peers" + (f", for {self.expected}" if self.expected else "")
        return f"round for step {self.step}, attempt {self.attempt}: {self.samples} samples, waits for {wanted}"


class GroupMet(AnyEvent):
    """A group has begun to average; `shares` are the fractions of values that each peer reduces."""

    kind: Literal["group"] = "group"
    group: _Id
    peers: Annotated[tuple[_Id, ...], BeforeValidator(_cut)]
    shares: Annotated[tuple[_Number, ...], BeforeValidator(_cut)]  # fractions, in the order of `peers`

    def told(self, who: Who) -> str:
        total = sum(self.shares) or 1.0
        parts = (f"{who(peer)} {share / total:.0%}" for peer, share in zip(self.peers, self.shares, strict=False))
        return f"group {self.group[:SHORT_ID]} of {len(self.peers)}: {', '.join(parts)}"


class PartsOfPeer(BaseModel):
    """The parts exchanged between this peer and another member of its group."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    peer: _Id
    returned: _Count  # number of averages returned by the other peer as a reducer
    due: _Count  # number of averages expected from the other peer
    weight: _Number | None = None  # weight claimed by the other peer as a sender
    counted: _Number | None = None  # the portion of that weight included in the average
    is_banned: bool = False  # whether the other peer was banned as a sender


class PartsPassed(AnyEvent):
    """The parts that this peer has received by the end of a group's round."""

    kind: Literal["parts"] = "parts"
    group: _Id
    is_whole: bool
    parts: Annotated[tuple[PartsOfPeer, ...], BeforeValidator(_cut)]

    def told(self, who: Who) -> str:
        lists = {
            "averages lacking from": [
                f"{who(part.peer)} {part.returned} of {part.due}" for part in self.parts if part.returned < part.due
            ],
            "left out as senders": [who(part.peer) for part in self.parts if part.is_banned],
            "weights cut": [
                f"{who(part.peer)} {part.counted:g} of {part.weight:g}"
                for part in self.parts
                if part.counted is not None and part.weight is not None and part.counted < part.weight
            ],
        }
        told = "; ".join(f"{what}: {', '.join(peers)}" for what, peers in lists.items() if peers)
        return f"parts of group {self.group[:SHORT_ID]}: {told or 'all came'}"


class RoundEnded(AnyEvent):
    """A round has ended, with or without averages."""

    kind: Literal["round ended"] = "round ended"
    step: _Count
    outcome: RoundOutcome
    seconds: _Number
    peers: _Count
    samples: _Count
    cause: _Words = ""

    def told(self, _who: Who) -> str:
        told = f"{self.peers} peers, {self.samples} samples" if self.peers else self.cause
        return f"round for step {self.step} after {self.seconds:.1f} s: {self.outcome}, {told}"


class StepTaken(AnyEvent):
    """This peer has completed a step."""

    kind: Literal["step"] = "step"
    era: _Count
    step: _Count
    samples: _Count  # number of this peer's samples in the step
    group_samples: _Count
    peers: _Count

    def told(self, _who: Who) -> str:
        return f"step {self.step}: {self.samples} of {self.group_samples} samples, {self.peers} peers"


class CaughtUp(AnyEvent):
    """This peer has tried to catch up with the swarm, using a missed average or another peer's state."""

    kind: Literal["caught up"] = "caught up"
    way: Literal["average", "state"]
    step: _Count  # this peer's step after the attempt
    seconds: _Number
    lost_samples: _Count
    cause: _Words  # reason why samples were lost

    def told(self, _who: Who) -> str:
        lost = f", {self.lost_samples} samples lost ({self.cause})" if self.lost_samples else ""
        return f"caught up to step {self.step} by the {self.way} after {self.seconds:.1f} s{lost}"


class StoodBy(AnyEvent):
    """This peer is on standby: its connection cannot transfer the gradients within a round."""

    kind: Literal["stood by"] = "stood by"
    step: _Count
    round_s: _Number  # time to transfer the gradients
    lost_samples: _Count

    def told(self, _who: Who) -> str:
        lost = f", {self.lost_samples} samples lost" if self.lost_samples else ""
        return f"stands by after step {self.step}: its line needs {self.round_s:.0f} s for its gradients{lost}"


class Downloaded(AnyEvent):
    """The download of a state, an average or a checkpoint has ended."""

    kind: Literal["download"] = "download"
    what: Literal["state", "average", "checkpoint"]
    donor: _Id  # sending peer; empty if unknown
    step: _Count
    outcome: _Words  # `TAKEN`, or the reason why the download was not used

    def told(self, who: Who) -> str:
        donor = f" from {who(self.donor)}" if self.donor else ""
        return f"{self.what} of step {self.step}{donor}: {self.outcome}"


class Suspected(AnyEvent):
    """This peer suspects another peer of behavior that is impossible for an honest peer."""

    kind: Literal["suspicion"] = "suspicion"
    peer: _Id
    suspicion: _Id
    step: _Count
    detail: _Words

    def told(self, who: Who) -> str:
        return f"suspects {who(self.peer)} of {self.suspicion}: {self.detail}"


class CheckpointWritten(AnyEvent):
    """The keeper has tried to write a checkpoint."""

    kind: Literal["checkpoint"] = "checkpoint"
    step: _Count
    seconds: _Number
    cause: _Words  # reason for a failure to write or publish; empty on success

    def told(self, _who: Who) -> str:
        cause = f": {self.cause}" if self.cause else ""
        return f"checkpoint of step {self.step} in {self.seconds:.1f} s{cause}"


class EventsDropped(AnyEvent):
    """Events were dropped because the disk was full."""

    kind: Literal["dropped"] = "dropped"
    events: _Count

    def told(self, _who: Who) -> str:
        return f"{self.events} events are missing: the disk was full"


Event = Annotated[
    Union[  # noqa: UP007 - pydantic reads it on Python 3.10, too
        ProcessStarted,
        ProcessEnded,
        ChildStarted,
        ChildEnded,
        SessionChanged,
        LimitsHeld,
        RoundBegun,
        GroupMet,
        PartsPassed,
        RoundEnded,
        StepTaken,
        CaughtUp,
        StoodBy,
        Downloaded,
        Suspected,
        CheckpointWritten,
        EventsDropped,
    ],
    Field(discriminator="kind"),
]


class LoggedEvent(BaseModel):
    """A line of an event log."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]  # Unix time by the node's clock
    event: Event


class EventLog:
    """The thread-safe event log of one process; without a folder, it records nothing."""

    def __init__(
        self, folder: Path | None, process: str, clock: Callable[[], float], most_bytes: int = MOST_BYTES
    ) -> None:
        self._folder, self.process, self._clock, self._most_bytes = folder, process, clock, most_bytes
        self._lock = threading.Lock()
        self._dropped = 0

    def of_process(self, process: str) -> EventLog:
        """Return the log of another process of the same node."""
        return EventLog(self._folder, process, self._clock, self._most_bytes)

    def add(self, event: AnyEvent) -> None:
        """Append an event; on a full disk, drop the event and log the number of dropped events later."""
        if self._folder is None:
            return
        with self._lock:
            try:
                if self._dropped:
                    self._append(self._folder, EventsDropped(events=self._dropped))
                    self._dropped = 0
                self._append(self._folder, event)
            except OSError:
                self._dropped += 1

    def _append(self, folder: Path, event: AnyEvent) -> None:
        """Append an event as a line to the file; rotate a full file first."""
        fields = {"at": round(self._clock(), 3), "event": event.model_dump(mode="json")}
        line = json.dumps(fields, separators=(",", ":")).encode() + b"\n"
        path = folder / f"{self.process}{SUFFIX}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size >= self._most_bytes:
            path.replace(folder / f"{self.process}{OLDER_SUFFIX}")
        with open(path, "ab+", buffering=0, opener=_private) as file:
            size = file.seek(0, os.SEEK_END)
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":  # the last line is incomplete
                line = b"\n" + line
            if file.write(line) < len(line):  # the disk had room for only a part of the line
                raise OSError("the disk is full")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


NOWHERE = EventLog(None, "nowhere", time.time)


def read_lines(data: bytes) -> Iterator[LoggedEvent | None]:
    """Parse each line of an untrusted log; yield None for an incomplete or unknown event."""
    for line in data.splitlines():
        if not line:
            continue
        try:
            yield LoggedEvent.model_validate_json(line) if len(line) <= MOST_LINE_BYTES else None
        except ValidationError:
            yield None


def read_folder(folder: Path, most_bytes: int = MOST_BYTES) -> dict[str, bytes]:
    """Return the newest lines of each process's log in the folder, at most `most_bytes` bytes each."""
    found = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        if path.name.endswith(OLDER_SUFFIX):
            continue
        process = path.name.removesuffix(SUFFIX)
        data = b""
        for part in path.with_name(f"{process}{OLDER_SUFFIX}"), path:
            with suppress(OSError):
                data += part.read_bytes()
        newest = data[-most_bytes:]
        found[process] = newest if len(newest) == len(data) else newest.partition(b"\n")[2]
    return found
