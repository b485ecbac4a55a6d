"""Which DHT requests and records a node takes; the averaging RPCs are attacked in tests/system."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import CompositeValidator, DHTRecord
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2
from hivemind.utils.timed_storage import ValueWithExpiration

from auth.credentials import Credentials
from auth.identity import AuthorityKey
from auth.swarm_auth import (
    TRAINING_ROLES,
    PeerDirectory,
    PeerRecordValidator,
    RecordKey,
    SwarmAuthorizer,
    owner_subkey,
    peers_key,
    peers_key_id,
    while_admitted,
)
from auth.tokens import AccessToken, RevocationList, Role, issue_revocations, issue_token
from tests.clocks import Clock

RUN = "demo"
NOW = 1_000.0


def member(
    directory: Path,
    authority: AuthorityKey,
    serial: int = 0,
    revoked: frozenset[str] = frozenset(),
    role: Role = "trainer",
) -> Credentials:
    """A device that joined the run."""
    credentials = Credentials(directory)
    key = credentials.device_key
    token = AccessToken("alice", "device-1", key.peer_id, key.public_key.decode(), role, RUN, NOW, NOW + 60)
    revocations = issue_revocations(authority, RevocationList(RUN, serial, NOW, revoked))
    credentials.store_grant(RUN, authority.public_bytes, issue_token(authority, token), revocations)
    return credentials


@pytest.fixture(scope="module")
def authority() -> AuthorityKey:
    """The run's authority."""
    return AuthorityKey.generate()


@pytest.fixture(scope="module")
def alice(authority: AuthorityKey, tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    """A member."""
    return member(tmp_path_factory.mktemp("alice"), authority)


@pytest.fixture(scope="module")
def mallory(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    """Somebody with a token of an authority of her own making."""
    return member(tmp_path_factory.mktemp("mallory"), AuthorityKey.generate())


def record(credentials: Credentials, value: Any, key: str = peers_key(RUN)) -> DHTRecord:
    """A record as the DHT hands it to validators, signed by the device."""
    signer = RecordKey(credentials.device_key.private_der)
    unsigned = DHTRecord(
        DHTID.generate(source=key).to_bytes(),
        DHTProtocol.serializer.dumps(owner_subkey(credentials.device_key.public_key)),
        DHTProtocol.serializer.dumps(value),
        NOW + 10,
    )
    return replace(unsigned, value=RSASignatureValidator(signer).sign_value(unsigned))


def validator(credentials: Credentials, clock: Clock | None = None) -> CompositeValidator:
    """What a node of the swarm validates records with."""
    key = RecordKey(credentials.device_key.private_der)
    return CompositeValidator([RSASignatureValidator(key), PeerRecordValidator(credentials, RUN, clock or Clock(NOW))])


def test_members_record_is_taken(alice: Credentials) -> None:
    """A record signed by the key that its token names is valid."""
    assert validator(alice).validate(record(alice, {"token": alice.token_jwt}))


def test_expired_members_record_is_refused(alice: Credentials) -> None:
    """After the token's time the same record is refused."""
    assert not validator(alice, Clock(NOW + 61)).validate(record(alice, {"token": alice.token_jwt}))


def test_record_with_anothers_token_is_refused(alice: Credentials, mallory: Credentials) -> None:
    """A stolen token does not make a record of the thief's valid: the key that signed is not the token's."""
    assert not validator(alice).validate(record(mallory, {"token": alice.token_jwt}))


def test_record_of_another_authority_is_refused(alice: Credentials, mallory: Credentials) -> None:
    """A token that the run's authority did not sign is none."""
    assert not validator(alice).validate(record(mallory, {"token": mallory.token_jwt}))


@pytest.mark.parametrize("value", [None, 5, "text", {}, {"token": 5}, {"token": "x"}, {"token": None}])
def test_malformed_record_is_refused(alice: Credentials, value: Any) -> None:
    """A record without a readable token is refused and raises nothing."""
    assert not validator(alice).validate(record(alice, value))


def test_oversized_record_is_refused(alice: Credentials) -> None:
    """A member cannot store more than a record needs."""
    assert not validator(alice).validate(record(alice, {"token": alice.token_jwt, "filler": "x" * 20_000}))


def test_unsigned_record_is_refused(alice: Credentials) -> None:
    """The right token and owner without the owner's signature are not enough."""
    signed = record(alice, {"token": alice.token_jwt})
    unsigned = replace(signed, value=DHTProtocol.serializer.dumps({"token": alice.token_jwt}))
    assert not validator(alice).validate(unsigned)


def test_other_keys_are_none_of_its_business(alice: Credentials) -> None:
    """Records under other keys (averaging groups) pass; their requests are authorized as a whole."""
    assert validator(alice).validate(record(alice, True, key="demo_grad_averager.0b"))


def test_revoked_members_record_is_refused(authority: AuthorityKey, alice: Credentials, tmp_path: Path) -> None:
    """As soon as a node knows the revocation, the revoked one's records are refused there."""
    bob = member(tmp_path / "bob", authority)
    signed = record(alice, {"token": alice.token_jwt})
    check = validator(bob)
    assert check.validate(signed)
    revoked = RevocationList(RUN, 1, NOW, frozenset({alice.device_key.peer_id}))
    bob.store_revocations(issue_revocations(authority, revoked))
    assert not check.validate(signed)


async def signed_ping(credentials: Credentials) -> dht_pb2.PingRequest:
    """A DHT request of this device."""
    request = dht_pb2.PingRequest()
    await SwarmAuthorizer(credentials, RecordKey(credentials.device_key.private_der), Clock(NOW)).sign_request(
        request, None
    )
    return request


async def test_request_of_a_member_is_served(authority: AuthorityKey, alice: Credentials, tmp_path: Path) -> None:
    """Another member's node accepts a member's request, once."""
    bob = member(tmp_path / "bob", authority)
    node = SwarmAuthorizer(bob, RecordKey(bob.device_key.private_der), Clock(NOW))
    request = await signed_ping(alice)
    replay = dht_pb2.PingRequest.FromString(request.SerializeToString())
    assert await node.validate_request(request)
    assert not await node.validate_request(replay)


async def test_request_of_a_stranger_is_not_served(alice: Credentials, mallory: Credentials) -> None:
    """A request with another authority's token is refused."""
    node = SwarmAuthorizer(alice, RecordKey(alice.device_key.private_der), Clock(NOW))
    assert not await node.validate_request(await signed_ping(mallory))


async def test_request_with_a_stolen_token_is_not_served(alice: Credentials, mallory: Credentials) -> None:
    """Alice's token under Mallory's signature is refused."""
    request = await signed_ping(mallory)
    request.auth.client_access_token.signature = alice.token_jwt.encode()
    node = SwarmAuthorizer(alice, RecordKey(alice.device_key.private_der), Clock(NOW))
    assert not await node.validate_request(request)


async def test_renewed_token_is_used_for_the_next_request(authority: AuthorityKey, tmp_path: Path) -> None:
    """When the agent stores a renewed token, requests carry it without a restart."""
    carol = member(tmp_path / "carol", authority)
    signer = SwarmAuthorizer(carol, RecordKey(carol.device_key.private_der), Clock(NOW))
    first, second = dht_pb2.PingRequest(), dht_pb2.PingRequest()
    await signer.sign_request(first, None)
    renewed = issue_token(authority, replace(carol.access_token(NOW), expires_at=NOW + 999))
    carol.store_token(renewed)
    await signer.sign_request(second, None)
    assert first.auth.client_access_token.signature != second.auth.client_access_token.signature
    assert second.auth.client_access_token.signature == renewed.encode()


@pytest.mark.parametrize(
    ("role", "keys", "served"),
    [
        ("observer", [RUN + "_grad_averager.0b"], False),
        ("observer", [peers_key(RUN), RUN + "_state_averager.all_averagers"], False),
        ("observer", [peers_key(RUN)], True),
        ("auxiliary", [RUN + "_grad_averager.0b"], True),
        ("trainer", [RUN + "_grad_averager.0b"], True),
    ],
)
async def test_an_observer_stores_its_own_record_only(
    authority: AuthorityKey, alice: Credentials, tmp_path: Path, role: Role, keys: list[str], served: bool
) -> None:
    """It cannot declare itself for averaging or as a donor; by its record others know whom they give the state."""
    sender = member(tmp_path / role, authority, role=role)
    request = dht_pb2.StoreRequest(keys=[DHTID.generate(source=key).to_bytes() for key in keys])
    await SwarmAuthorizer(sender, RecordKey(sender.device_key.private_der), Clock(NOW)).sign_request(request, None)
    node = SwarmAuthorizer(alice, RecordKey(alice.device_key.private_der), Clock(NOW))
    assert await node.validate_request(request) is served


async def test_an_observer_reads(authority: AuthorityKey, alice: Credentials, tmp_path: Path) -> None:
    """Requests that store nothing are served."""
    watcher = member(tmp_path / "watcher", authority, role="observer")
    node = SwarmAuthorizer(alice, RecordKey(alice.device_key.private_der), Clock(NOW))
    request = dht_pb2.FindRequest(keys=[peers_key_id(RUN)])
    await SwarmAuthorizer(watcher, RecordKey(watcher.device_key.private_der), Clock(NOW)).sign_request(request, None)
    assert await node.validate_request(request)


class OneRecord:
    """A DHT that holds the record of one peer."""

    def __init__(self, jwt: str) -> None:
        self._record = ValueWithExpiration({b"owner": ValueWithExpiration({"token": jwt}, NOW + 10)}, NOW + 10)

    def get(self, _key: str, **_options: bool) -> asyncio.Future[Any]:
        found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        found.set_result(self._record)
        return found


async def test_a_call_that_began_before_a_revocation_ends_with_it(authority: AuthorityKey, tmp_path: Path) -> None:
    """Of a long answer, or of parts on their way, nothing passes after the list has come; the rest is let go."""
    alice, bob = member(tmp_path / "alice", authority), member(tmp_path / "bob", authority)
    directory = PeerDirectory(OneRecord(bob.token_jwt), alice, RUN, Clock(NOW))  # type: ignore[arg-type]
    bob_id, ended = PeerID.from_base58(bob.device_key.peer_id), []

    async def messages() -> AsyncIterator[int]:
        try:
            for number in range(5):
                yield number
                if number == 1:
                    listed = RevocationList(RUN, 1, NOW, frozenset({bob.device_key.peer_id}))
                    alice.store_revocations(issue_revocations(authority, listed))
        finally:
            ended.append(True)

    assert await directory.admits(bob_id, TRAINING_ROLES)
    assert [number async for number in while_admitted(directory, bob_id, TRAINING_ROLES, messages())] == [0, 1]
    assert ended == [True]
