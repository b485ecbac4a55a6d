"""The swarm's progress as the peers' records tell it."""

from __future__ import annotations

import pytest
from hivemind.utils.timed_storage import ValueWithExpiration
from pydantic import ValidationError

from auth.tokens import AccessToken
from peer.progress import KnownPeer, PeerRecord, read_records, view_swarm


def record(step: int = 3, samples: int = 0, *, training: bool = True, rate: float = 1.0) -> PeerRecord:
    """A record with what a test cares about."""
    return PeerRecord(
        token="jwt", step=step, samples=samples, rate=rate, time=1.0, training=training, client_mode=False
    )


def peers(*records: PeerRecord, role: str = "trainer") -> list[KnownPeer]:
    """Trainers (or others) with these records."""
    return [KnownPeer(f"{role}-{index}", role, item) for index, item in enumerate(records)]


def token(role: str = "trainer") -> AccessToken:
    """Any valid token."""
    return AccessToken("alice", "d1", "Qm1", "ssh-rsa AAAA", role, "demo", 0.0, 9.0)  # type: ignore[arg-type]


def test_samples_of_the_current_step_add_up() -> None:
    """Samples of peers at the swarm's step count; those of a peer that lags do not."""
    view = view_swarm([*peers(record(samples=10), record(samples=5), record(step=2, samples=99))])
    assert (view.step, view.samples, view.trainers, view.averaging) == (3, 15, 3, 2)


def test_one_loud_trainer_does_not_set_the_step() -> None:
    """A single claim of an enormous step changes nothing for the others."""
    view = view_swarm(peers(record(step=3), record(step=3), record(step=10**9)))
    assert view.step == 3


def test_most_trainers_set_the_step() -> None:
    """What more than half of the trainers have completed is the swarm's step, even if the keeper is behind."""
    view = view_swarm([*peers(record(step=4), record(step=4), record(step=3)), *peers(record(step=3), role="keeper")])
    assert view.step == 4


def test_keeper_sets_the_step() -> None:
    """The keeper's step is the swarm's, although most trainers have not completed it."""
    view = view_swarm([*peers(record(step=3), record(step=3)), *peers(record(step=4), role="keeper")])
    assert (view.step, view.averaging) == (4, 1)


def test_keeper_is_waited_for_but_contributes_nothing() -> None:
    """The keeper takes part in averaging; it counts neither as a trainer nor for the rate."""
    view = view_swarm([*peers(record(samples=8, rate=2.0)), *peers(record(rate=5.0), role="keeper")])
    assert (view.averaging, view.trainers, view.samples, view.rate) == (2, 1, 8, 2.0)


def test_auxiliary_peer_is_waited_for_and_has_no_say() -> None:
    """It takes part in averaging; neither its samples nor its rate nor its claim of a step count."""
    assistants = peers(record(samples=9, rate=5.0), record(step=7), record(step=7), role="auxiliary")
    view = view_swarm([*peers(record(samples=8, rate=2.0)), *assistants])
    assert (view.step, view.averaging, view.trainers, view.samples, view.rate) == (3, 2, 1, 8, 2.0)


def test_peers_one_step_behind_are_arriving() -> None:
    """Whoever has averaged a step and not taken it yet is seen, keeper and auxiliary peers included; no others are."""
    others = [*peers(record(step=3), role="auxiliary"), *peers(record(step=4), role="keeper")]
    view = view_swarm([*peers(record(step=4), record(step=4), record(step=3), record(step=2)), *others])
    assert (view.step, view.averaging, view.arriving) == (4, 3, 2)


def test_peer_that_has_not_begun_is_not_waited_for() -> None:
    """A joining peer, still downloading state, is not part of the next averaging."""
    view = view_swarm(peers(record(samples=4), record(training=False)))
    assert (view.averaging, view.trainers) == (1, 1)


def test_empty_swarm_is_at_its_beginning() -> None:
    """Without any record there is no step, no sample and no rate."""
    view = view_swarm([])
    assert (view.step, view.samples, view.averaging, view.rate) == (0, 0, 0, 0.0)


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
