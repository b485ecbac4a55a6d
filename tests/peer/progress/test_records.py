"""Records of peers are validated alone, newest first, each for its time; the keeper's newest renewed beacon holds."""

from __future__ import annotations

import math
import struct

import pytest
from hivemind.dht.protocol import DHTProtocol
from hivemind.p2p import PeerID
from hivemind.utils.timed_storage import ValueWithExpiration
from pydantic import ValidationError

from auth.swarm.authorizer import MAX_BEACON_BYTES, MAX_RECORD_BYTES, record_subkey, token_subkey
from auth.swarm.hivemind_patches import patch_hivemind
from auth.tokens import AccessToken
from peer.config.steering import MAX_CHANGES, Change, Steering
from peer.progress.fingerprint import MAX_SKETCH_SIZE
from peer.progress.records import (
    MAX_CREDITS,
    MAX_RATE,
    Beacon,
    Course,
    KnownPeer,
    NewestRecords,
    PeerRecord,
    nearest_step,
    read_records,
)
from peer.protocol import MAX_ERA, MAX_STEP
from tests.support.inputs import tuples_in_tuples

SIGNATURE_BYTES = 256


def record(step: int = 3, samples: int = 0, *, training: bool = True, rate: float = 1.0) -> PeerRecord:
    """A record with what a test cares about."""
    return PeerRecord(step=step, samples=samples, rate=rate, time=1.0, training=training, client_mode=False)


def token(peer_id: str = "Qm1") -> AccessToken:
    """A device's valid token."""
    return AccessToken("alice", "d1", peer_id, "ssh-rsa AAAA", "trainer", "demo", 0.0, 9.0, "a" * 64)


@pytest.mark.parametrize(
    "field",
    [
        {"step": -1},
        {"step": 2**41},
        {"samples": -5},
        {"samples": 1.5},
        {"rate": float("nan")},
        {"rate": float("inf")},
        {"rate": -1.0},
        {"time": float("inf")},
        {"training": "yes"},
        {"slow_line": 0.0},
        {"slow_line": float("nan")},
        {"slow_line": 1e11},
        {"surprise": 1},
    ],
)
def test_record_out_of_bounds_is_invalid(field: dict[str, object]) -> None:
    """A record with a value of the wrong type, not finite, out of range or unknown is refused."""
    with pytest.raises(ValidationError):
        PeerRecord.model_validate(record().model_dump() | field)


def test_bad_records_do_not_spoil_good_ones() -> None:
    """Each record is validated alone: garbage, strangers and unsigned ones are dropped."""
    good = record(samples=7).pack()
    owners = [PeerID(bytes([number] * 34)).to_base58() for number in range(1, 7)]
    member, stranger, liar, *others = owners
    entries: dict[object, object] = {
        record_subkey(member): ValueWithExpiration(good, 1.0),
        token_subkey(member): ValueWithExpiration(member, 1.0),
        record_subkey(stranger): ValueWithExpiration(good, 1.0),
        token_subkey(stranger): ValueWithExpiration("no token", 1.0),
        record_subkey(liar): ValueWithExpiration(good, 1.0),
        token_subkey(liar): ValueWithExpiration(member, 1.0),
        b"": ValueWithExpiration(good, 1.0),
        "text": ValueWithExpiration(good, 1.0),
    }
    garbage = ([1, 2], ["x", *good[1:]], 5)
    for other, value in zip(others, garbage, strict=True):
        entries |= {token_subkey(other): ValueWithExpiration(other, 1.0), record_subkey(other): value}
    for other, value in zip(others[:2], garbage, strict=False):
        entries[record_subkey(other)] = ValueWithExpiration(value, 1.0)
    valid = {member, *others}
    found = read_records(entries, lambda jwt: token(jwt) if jwt in valid else None)
    assert [(peer.peer_id, peer.record.samples) for peer in found] == [(member, 7)]


def test_a_record_is_read_as_it_was_packed() -> None:
    """With all that it says, the sketch in 32 bits."""
    course = Course(age_s=1.5, usual_s=20.0, credits={"Qm1": 3})
    said = record(samples=7).model_copy(update={"sketch": (0.5, -1e9), "course": course})
    assert PeerRecord.unpack(DHTProtocol.serializer.loads(DHTProtocol.serializer.dumps(said.pack()))) == said


def test_a_report_to_the_leader_is_read_as_it_was_sent() -> None:
    """It says what the record in the DHT says."""
    said = record(samples=7).model_copy(update={"sketch": (0.5, -1e9), "slow_line": 2e5, "client_mode": True})
    assert PeerRecord.read_report(said.report()) == said


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xc1",
        b"\xff" * 2000,
        record().report()[:-1],
        record().report() + b"more",
        b"\x91" * 2000,
        b"\xc7\x01\x40\xc0",  # hivemind's code of a tuple, of nothing
        tuples_in_tuples(2000),
        DHTProtocol.serializer.dumps({"step": 3}),
        DHTProtocol.serializer.dumps([-1, *record().pack()[1:]]),
        DHTProtocol.serializer.dumps([*record().pack()[:8], b"abc", None]),
    ],
)
def test_what_is_no_report_is_refused(message: bytes) -> None:
    """Whatever MessagePack makes of it."""
    patch_hivemind()  # as before any node
    with pytest.raises(ValueError):  # noqa: PT011 - each kind has its own message
        PeerRecord.read_report(message)


@pytest.mark.parametrize("values", [None, {}, [], [1, 2], "text", record().pack()[:-1], [*record().pack(), 1]])
def test_what_is_no_record_is_refused(values: object) -> None:
    """Whatever its type, and with too few or too many values."""
    with pytest.raises(ValueError, match="no record"):
        PeerRecord.unpack(values)


@pytest.mark.parametrize("sketch", ["text", [0.5], b"abc", struct.pack(">f", math.nan), bytes(4 * 65)])
def test_a_record_with_a_bad_sketch_is_refused(sketch: object) -> None:
    """A sketch of another type, torn, not finite or too long."""
    with pytest.raises(ValueError, match="sketch"):
        PeerRecord.unpack([*record().pack()[:8], sketch, None])


def test_the_size_of_a_record() -> None:
    """As it travels, with the longest sketch and its signature: neither a token nor the fields' names are in it."""
    said = record(samples=7).model_copy(update={"sketch": (0.5,) * MAX_SKETCH_SIZE, "rate": 1.25, "time": 1e9})
    value = DHTProtocol.serializer.dumps(said.pack())
    assert len(value) == 29 + 4 * MAX_SKETCH_SIZE
    assert len(DHTProtocol.serializer.dumps([value, bytes(256)])) == len(value) + 263


def test_the_largest_records_are_stored() -> None:
    """Nodes refuse larger ones: the keeper's, which names many and steers, and anybody else's."""
    names = [PeerID(bytes([number, *range(1, 34)])).to_base58() for number in range(MAX_CREDITS)]
    change = Change(
        from_step=MAX_STEP, learning_rate_scale=1 / 3, target_batch_size=2**31, compression="8bit-blockwise"
    )
    course = Course(
        age_s=1e8 / 3,
        usual_s=1e8 / 3,
        credits=dict.fromkeys(names, 2**31),
        steering=Steering(changes=(change.model_copy(update={"powersgd_rank": 32}),) * MAX_CHANGES, last_step=MAX_STEP),
    )
    largest = PeerRecord(
        step=MAX_STEP,
        samples=2**31,
        rate=MAX_RATE / 3,
        time=1e9 / 3,
        training=True,
        client_mode=False,
        era=MAX_ERA,
        slow_line=1 / 3,
        sketch=(1.0,) * MAX_SKETCH_SIZE,
    )
    for said, most_bytes in (
        (largest, MAX_RECORD_BYTES),
        (largest.model_copy(update={"course": course}), MAX_BEACON_BYTES),
    ):
        signed = DHTProtocol.serializer.dumps([DHTProtocol.serializer.dumps(said.pack()), bytes(SIGNATURE_BYTES)])
        assert 1.2 * len(signed) < most_bytes


def test_records_that_are_no_dictionary_are_none() -> None:
    """A key that nobody or somebody else wrote yields no peers."""
    assert read_records(None, lambda jwt: token()) == []
    assert read_records("text", lambda jwt: token()) == []


def known(time: float, samples: int = 0, peer_id: str = "Qm1") -> KnownPeer:
    """A device's record of this time."""
    return KnownPeer(peer_id, "alice", "d1", "trainer", record(samples=samples).model_copy(update={"time": time}))


def test_an_older_record_changes_nothing() -> None:
    """Who stores a device's older record again is answered with the newest one that was seen."""
    newest = NewestRecords(lifetime_s=120.0)
    newest.take([known(1000.0, samples=8)], now=1001.0)
    assert [peer.record.samples for peer in newest.take([known(990.0, samples=30)], now=1002.0)] == [8]
    assert [peer.record.samples for peer in newest.take([known(1003.0, samples=12)], now=1004.0)] == [12]


@pytest.mark.parametrize("time", [700.0, 1100.0])
def test_a_record_counts_for_its_time_only(time: float) -> None:
    """Whatever expiration its owner gave it: one of long ago, or of a time to come, is none."""
    assert NewestRecords(lifetime_s=120.0).take([known(time)], now=1000.0) == []


def test_who_is_gone_is_not_brought_back() -> None:
    """A device without a record is none of the swarm's, although an older record of it is remembered."""
    newest = NewestRecords(lifetime_s=120.0)
    newest.take([known(1000.0)], now=1000.0)
    assert newest.take([known(1001.0, peer_id="Qm2")], now=1001.0) == [known(1001.0, peer_id="Qm2")]


def beacon(step: int, time: float, era: int = 0) -> Beacon:
    """A beacon of that step."""
    return Beacon(step, (), time, Course(age_s=0.0, usual_s=0.0, credits={}), era)


@pytest.mark.parametrize(("lead", "steps"), [(1, [5, 5, 6, 6, 6]), (0, [5, 5, 5, 5, 5])])
def test_the_swarm_is_at_most_so_many_steps_beyond_the_beacon(lead: int, steps: list[int]) -> None:
    """Nor is it behind it; without a beacon that is renewed it is where most members are."""
    held = beacon(5, 1.0)
    assert [nearest_step(agreed, held, held, lead) for agreed in (0, 5, 6, 7, 10**9)] == steps
    assert nearest_step(10**9, held, None, lead) == nearest_step(10**9, None, None, lead) == 10**9


def test_a_keeper_that_is_silent_still_marks_how_far_the_swarm_is() -> None:
    """As long as its record lies in the DHT, who is behind it has something to catch up with."""
    assert [nearest_step(agreed, beacon(5, 1.0), None) for agreed in (3, 9)] == [5, 9]
