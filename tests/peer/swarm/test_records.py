"""Records of peers are validated alone, newest first, each for its time; the keeper's newest renewed beacon holds."""

from __future__ import annotations

import pytest
from hivemind.utils.timed_storage import ValueWithExpiration
from pydantic import ValidationError

from auth.tokens import AccessToken
from peer.swarm.records import (
    Beacon,
    BeaconWatch,
    Course,
    KnownPeer,
    NewestRecords,
    PeerRecord,
    nearest_step,
    read_records,
)


def record(step: int = 3, samples: int = 0, *, training: bool = True, rate: float = 1.0) -> PeerRecord:
    """A record with what a test cares about."""
    return PeerRecord(
        token="jwt", step=step, samples=samples, rate=rate, time=1.0, training=training, client_mode=False
    )


def token(role: str = "trainer") -> AccessToken:
    """Any valid token."""
    return AccessToken("alice", "d1", "Qm1", "ssh-rsa AAAA", role, "demo", 0.0, 9.0)  # type: ignore[arg-type]


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
        {"token": "x" * 5000},
        {"surprise": 1},
    ],
)
def test_record_out_of_bounds_is_invalid(field: dict[str, object]) -> None:
    """A record with a value of the wrong type, not finite, out of range or unknown is refused."""
    with pytest.raises(ValidationError):
        PeerRecord.model_validate(record().model_dump() | field)


def test_bad_records_do_not_spoil_good_ones() -> None:
    """Each record is validated alone: garbage, strangers and unsigned ones are dropped."""
    good = record(samples=7).model_dump()
    records = {
        b"good": ValueWithExpiration(good, 1.0),
        b"garbage": ValueWithExpiration({"step": "x"}, 1.0),
        b"stranger": ValueWithExpiration(good | {"token": "stranger"}, 1.0),
        b"no dictionary": ValueWithExpiration([1, 2], 1.0),
        b"no value": 5,
    }
    found = read_records(records, lambda jwt: token() if jwt == "jwt" else None)
    assert [peer.record.samples for peer in found] == [7]


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


def test_a_beacon_holds_as_long_as_it_is_renewed() -> None:
    """The very same one again is no renewal: a keeper that is gone leaves its last record behind."""
    watch = BeaconWatch(silent_after_s=5.0)
    assert watch.look(beacon(3, time=1.0), now=10.0) == beacon(3, 1.0)
    assert watch.look(beacon(3, time=1.0), now=15.0) == beacon(3, 1.0)
    assert watch.look(beacon(3, time=1.0), now=15.1) is None
    assert watch.look(beacon(3, time=2.0), now=15.2) == beacon(3, 2.0)
    assert watch.look(None, now=16.0) == beacon(3, 2.0)


def test_a_beacon_never_goes_back_but_with_an_era() -> None:
    """An older step is none, so the newer one grows old; steps that were undone come with a new era."""
    watch = BeaconWatch(silent_after_s=5.0)
    watch.look(beacon(8, time=1.0), now=0.0)
    assert watch.look(beacon(7, time=2.0), now=1.0) == beacon(8, 1.0)
    assert watch.look(beacon(7, time=3.0), now=6.0) is None
    assert watch.look(beacon(7, time=4.0, era=1), now=7.0) == beacon(7, 4.0, era=1)


def test_the_swarm_is_at_most_a_step_beyond_the_beacon() -> None:
    """Nor is it behind it; without a beacon it is where most members are."""
    held = beacon(5, 1.0)
    assert [nearest_step(agreed, held, held) for agreed in (0, 5, 6, 7, 10**9)] == [5, 5, 6, 6, 6]
    assert nearest_step(10**9, None, None) == 10**9


def test_a_keeper_that_is_silent_still_marks_how_far_the_swarm_is() -> None:
    """As long as its record lies in the DHT, who is behind it has something to catch up with."""
    assert [nearest_step(agreed, beacon(5, 1.0), None) for agreed in (3, 9)] == [5, 9]
