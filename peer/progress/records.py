"""Peers' records in the DHT, validated by owner, bounds and time, and the step beacon.

`peer.progress.tracker` publishes and reads the records, and `peer.progress.view` evaluates them.

The step beacon is the keeper's signed statement of the run's current step, which every peer
follows. It is the keeper's record with a `Course`, signed with the keeper's key; the token proves
the keeper's role. A beacon with an older era or step than a beacon already seen is ignored, and so
is a beacon that the keeper no longer renews.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from hivemind.utils.serializer import MSGPackSerializer
from pydantic import BaseModel, ConfigDict, Field

from auth.swarm.authorizer import read_entries, tokens_in
from auth.tokens import MAX_CLOCK_SKEW_S, AccessToken
from peer.averaging.declarations import MAX_BANDWIDTH
from peer.config.steering import Steering
from peer.progress.fingerprint import MAX_SKETCH_SIZE, Sketch
from peer.protocol import MAX_ERA, MAX_STEP

MAX_CREDITS = 64  # maximum number of devices in the beacon's list of credits
_Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
SketchValue = Annotated[float, Field(ge=-1e15, le=1e15, allow_inf_nan=False)]
MAX_RATE = 1e7  # samples per second
FLOAT_BYTES = 4  # bytes per value of a sketch


class Course(BaseModel):
    """The part of a record that only the keeper fills in."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    age_s: _Seconds  # seconds since the step was completed
    usual_s: _Seconds  # usual duration of a step in seconds; 0: unknown
    credits: Annotated[
        dict[Annotated[str, Field(max_length=128)], Annotated[int, Field(ge=0, le=2**31)]],
        Field(max_length=MAX_CREDITS),
    ]  # peer ID -> largest recent contribution to a step, in samples; only above a newcomer's limit
    steering: Steering = Steering()


@dataclass(frozen=True)
class Beacon:
    """The keeper's statement of the current step and the sketch of its state."""

    step: int
    sketch: Sketch
    time: float  # publication time on the keeper's clock
    course: Course
    era: int = 0  # number of times that the run has returned to a checkpoint


class BeaconWatch:
    """The newest beacon seen, valid while the keeper renews it."""

    def __init__(self, silent_after_s: float) -> None:
        self._silent_after_s = silent_after_s
        self._renewed_at = float("-inf")
        self.newest: Beacon | None = None

    def look(self, beacon: Beacon | None, now: float) -> Beacon | None:
        """Process a beacon just read, if any; return the newest beacon, or None if it is stale."""
        newest = self.newest
        if beacon is not None and (newest is None or _order(beacon) >= _order(newest)):
            if newest is None or beacon.time != newest.time:
                self._renewed_at = now
            self.newest = newest = beacon
        return newest if now - self._renewed_at <= self._silent_after_s else None


def _order(beacon: Beacon) -> tuple[int, int, float]:
    return beacon.era, beacon.step, beacon.time


def nearest_step(agreed: int, seen: Beacon | None, held: Beacon | None, lead: int = 1) -> int:
    """Return the swarm's step: the majority's step, clamped to the beacon's step or the next one.

    `seen` is the beacon now in the DHT, possibly from a keeper that has left. Only `held`, a beacon
    that the keeper still renews, is also an upper bound. `lead`: the steps by which it may be late;
    0 for peers that have taken their step without the keeper, which may have taken another one.
    """
    step = agreed if seen is None else max(agreed, seen.step)
    return step if held is None else min(max(step, held.step), held.step + lead)


class PeerRecord(BaseModel):
    """One peer's record as stored in the DHT; untrusted until validated."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    step: Annotated[int, Field(ge=0, le=MAX_STEP)]  # global steps completed
    samples: Annotated[int, Field(ge=0, le=2**31)]  # samples accumulated towards the next step
    rate: Annotated[float, Field(ge=0, le=MAX_RATE, allow_inf_nan=False)]  # samples per second
    time: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    training: bool  # takes part in averaging: a trainer that accumulates, the keeper, or an auxiliary peer
    client_mode: bool
    era: Annotated[int, Field(ge=0, le=MAX_ERA)] = 0  # number of earlier rewinds to a checkpoint
    slow_line: Annotated[float, Field(gt=0, le=MAX_BANDWIDTH)] | None = None  # bytes/s of a peer on standby
    sketch: Annotated[tuple[SketchValue, ...], Field(max_length=MAX_SKETCH_SIZE, strict=False)] = ()
    course: Course | None = None  # set only by the keeper; makes the record the beacon

    def pack(self) -> list[Any]:
        """Return the field values in order, with the sketch packed in 32 bits per value."""
        fields = self.model_dump() | {"sketch": struct.pack(f">{len(self.sketch)}f", *self.sketch)}
        return list(fields.values())

    def report(self) -> bytes:
        """Return the record as a message to the leader."""
        message: bytes = MSGPackSerializer.dumps(self.pack())
        return message

    @classmethod
    def read_report(cls, message: bytes) -> PeerRecord:
        """Parse a message to the leader. Raises `ValueError` if it is malformed."""
        try:
            return cls.unpack(MSGPackSerializer.loads(message))
        except ValueError:
            raise
        except Exception as error:  # MessagePack's errors have no common base class
            raise ValueError("no report") from error

    @classmethod
    def unpack(cls, values: object) -> PeerRecord:
        """Parse a record from packed values. Raises `ValueError` if they are malformed."""
        if not isinstance(values, list) or len(values) != len(cls.model_fields):
            raise ValueError("no record")
        fields = dict(zip(cls.model_fields, values, strict=True))
        if not isinstance(packed := fields["sketch"], bytes) or len(packed) % FLOAT_BYTES:
            raise ValueError("no sketch")
        sketch = struct.unpack(f">{len(packed) // FLOAT_BYTES}f", packed)
        return cls.model_validate(fields | {"sketch": sketch})


@dataclass(frozen=True)
class KnownPeer:
    """A validated record and its owner, as identified by the owner's token."""

    peer_id: str
    member: str
    device_id: str
    role: str
    record: PeerRecord


def read_records(entries: object, check: Callable[[str], AccessToken | None]) -> list[KnownPeer]:
    """Validate each DHT entry independently; invalid records are dropped."""
    checked = {peer_id: check(jwt) for peer_id, jwt in tokens_in(entries)}
    known = []
    for peer_id, value in read_entries(entries, "record"):
        token = checked.get(peer_id)
        if token is None or token.peer_id != peer_id:
            continue
        try:
            record = PeerRecord.unpack(value)
        except ValueError:
            continue
        known.append(KnownPeer(peer_id, token.member, token.device_id, token.role, record))
    return known


class NewestRecords:
    """The newest record of each device, as protection against replayed older records.

    A record is valid for `lifetime_s` seconds from its timestamp, regardless of its expiration.
    """

    def __init__(self, lifetime_s: float) -> None:
        self._lifetime_s = lifetime_s
        self._newest: dict[str, KnownPeer] = {}

    def take(self, peers: list[KnownPeer], now: float) -> list[KnownPeer]:
        """Add records; return the newest record of each peer in `peers`; `now`: the DHT's time."""
        newest: dict[str, KnownPeer] = {}
        for peer in peers:
            known = max(filter(None, (newest.get(peer.peer_id), self._newest.get(peer.peer_id), peer)), key=_time_of)
            if -MAX_CLOCK_SKEW_S <= now - known.record.time <= self._lifetime_s + MAX_CLOCK_SKEW_S:
                newest[peer.peer_id] = known
        kept = {peer_id: peer for peer_id, peer in self._newest.items() if now - _time_of(peer) <= self._lifetime_s}
        self._newest = kept | newest
        return list(newest.values())


def _time_of(peer: KnownPeer) -> float:
    return peer.record.time
