"""Which DHT requests and records a node takes, and whom a directory admits."""

from __future__ import annotations

import asyncio
import gc
import weakref
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
from auth.keys import AuthorityKey
from auth.swarm.authorizer import (
    MAX_BEACON_BYTES,
    MAX_PEER_ID_BYTES,
    MAX_RECORD_BYTES,
    TRAINING_ROLES,
    MemberTokens,
    PeerRecordValidator,
    RecordKey,
    SwarmAuthorizer,
    key_id,
    owner_of,
    peers_key,
    record_subkey,
    token_subkey,
)
from auth.swarm.directory import PeerDirectory, while_admitted
from auth.tokens import AccessToken, RevocationList, Role, issue_revocations, issue_token
from tests.support.clocks import Clock

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
    token = AccessToken(
        "alice",
        "device-1",
        key.peer_id,
        key.public_key.decode(),
        role,
        RUN,
        NOW,
        NOW + 60,
        key.receipt_key(RUN).pseudonym,
    )
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
def bob(authority: AuthorityKey, tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    """Another member, whom nothing here revokes."""
    return member(tmp_path_factory.mktemp("bob"), authority)


@pytest.fixture(scope="module")
def mallory(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    """Somebody with a token of an authority of her own making."""
    return member(tmp_path_factory.mktemp("mallory"), AuthorityKey.generate())


dumps = DHTProtocol.serializer.dumps


def tokens_of(credentials: Credentials, clock: Clock | None = None, *shown: Credentials) -> MemberTokens:
    """The tokens that a device's node has been shown."""
    tokens = MemberTokens(credentials, clock or Clock(NOW))
    for each in shown:
        tokens.show(each.token_jwt)
    return tokens


def record(
    credentials: Credentials,
    value: Any = "a record",
    key: str = peers_key(RUN),
    owner: Credentials | None = None,
    lasts_s: float = 10,
) -> DHTRecord:
    """A record as the DHT hands it to validators, signed by the device, under its own or another's subkey."""
    own = PeerRecordValidator(credentials, tokens_of(credentials), RUN)
    if owner is not None:
        own._own = dumps(record_subkey(owner.device_key.peer_id))
    subkey = record_subkey((owner or credentials).device_key.peer_id)
    unsigned = DHTRecord(DHTID.generate(source=key).to_bytes(), dumps(subkey), dumps(value), NOW + lasts_s)
    return replace(unsigned, value=own.sign_value(unsigned))


def token_entry(jwt: Any, peer_id: str, expires_at: float = NOW + 60) -> DHTRecord:
    """A token as it lies beside the records."""
    key, subkey = DHTID.generate(source=peers_key(RUN)).to_bytes(), dumps(token_subkey(peer_id))
    return DHTRecord(key, subkey, dumps(jwt), expires_at)


def validator(credentials: Credentials, clock: Clock | None = None, *shown: Credentials) -> CompositeValidator:
    """What a node of the swarm validates records with, when it has been shown these tokens."""
    key, tokens = RecordKey(credentials.device_key.private_der), tokens_of(credentials, clock, *shown)
    return CompositeValidator([RSASignatureValidator(key), PeerRecordValidator(credentials, tokens, RUN)])


def test_members_record_is_taken(alice: Credentials, bob: Credentials) -> None:
    """A record that its owner has signed is valid where the owner's token is known, and stripped of the signature."""
    check, signed = validator(bob, None, alice), record(alice)
    assert check.validate(signed)
    assert check.strip_value(signed) == dumps("a record")


def test_record_of_an_unknown_owner_is_refused(alice: Credentials, bob: Credentials) -> None:
    """Until a node has been shown the owner's token, and from then on it is taken."""
    check = validator(bob)
    assert not check.validate(record(alice))
    assert check.validate(token_entry(alice.token_jwt, alice.device_key.peer_id))
    assert check.validate(record(alice))


def test_expired_members_record_is_refused(alice: Credentials, bob: Credentials) -> None:
    """After the token's time the same record is refused."""
    clock = Clock(NOW)
    check = validator(bob, clock, alice)
    clock.now += 61
    assert not check.validate(record(alice))


def test_record_in_anothers_name_is_refused(alice: Credentials, bob: Credentials) -> None:
    """A member's signature under another's subkey is none: the key that signed is not the token's."""
    assert not validator(bob, None, alice, bob).validate(record(bob, owner=alice))


def test_record_of_another_authority_is_refused(alice: Credentials, mallory: Credentials) -> None:
    """A token that the run's authority did not sign is none."""
    check = validator(alice, None, mallory)
    assert not check.validate(token_entry(mallory.token_jwt, mallory.device_key.peer_id))
    assert not check.validate(record(mallory))


def test_a_token_lies_under_its_owners_subkey_until_it_expires(alice: Credentials, bob: Credentials) -> None:
    """Anybody may store it there, and nobody elsewhere or for longer: a later token takes its place."""
    check, peer_id = validator(bob), alice.device_key.peer_id
    assert check.validate(token_entry(alice.token_jwt, peer_id))
    assert not check.validate(token_entry(alice.token_jwt, peer_id, NOW + 61))
    assert not check.validate(token_entry(alice.token_jwt, bob.device_key.peer_id))


def test_an_older_token_replaces_no_newer_one(authority: AuthorityKey, bob: Credentials, tmp_path: Path) -> None:
    """Whoever shows it again: of two the one counts that expires later."""
    carol = member(tmp_path / "carol", authority)
    older, tokens = carol.token_jwt, tokens_of(bob)
    newer = replace(carol.access_token(NOW), role="auxiliary", expires_at=NOW + 999)
    for jwt in (issue_token(authority, newer), older):
        assert tokens.show(jwt)
    assert tokens.of(carol.device_key.peer_id) == newer


@pytest.mark.parametrize("value", [None, 5, "text", {}, {"token": 5}, [b"x"], [b"x", b"y"], [1, 2], [b"x", b"y", b"z"]])
def test_malformed_record_is_refused(alice: Credentials, value: Any) -> None:
    """A record without a readable signature is refused and raises nothing, as is a token that is none."""
    check = validator(alice, None, alice)
    assert not check.validate(replace(record(alice), value=dumps(value)))
    assert not check.validate(token_entry(value, alice.device_key.peer_id))


@pytest.mark.parametrize("subkey", [None, 5, "text", b"", b"x", b"token ", {}])
def test_an_entry_without_an_owner_is_refused(alice: Credentials, subkey: Any) -> None:
    """Nothing lies under the peers key but tokens and records; no value takes the place of all of them."""
    assert not validator(alice, None, alice).validate(replace(record(alice), subkey=dumps(subkey)))


@pytest.mark.parametrize(("role", "most_bytes"), [("trainer", MAX_RECORD_BYTES), ("keeper", MAX_BEACON_BYTES)])
def test_oversized_record_is_refused(authority: AuthorityKey, tmp_path: Path, role: Role, most_bytes: int) -> None:
    """Nobody can store more than a record needs, and the keeper more than a beacon."""
    sender = member(tmp_path / role, authority, role=role)
    check, spare = validator(sender, None, sender), most_bytes - len(record(sender, "x" * 1000).value)
    assert check.validate(record(sender, "x" * (1000 + spare)))
    assert not check.validate(record(sender, "x" * (1001 + spare)))


def test_unsigned_record_is_refused(alice: Credentials) -> None:
    """The right owner without the owner's signature is not enough, nor is a signature over something else."""
    check, signed = validator(alice, None, alice), record(alice)
    value, signature = DHTProtocol.serializer.loads(signed.value)
    assert not check.validate(replace(signed, value=value))
    assert not check.validate(replace(signed, value=dumps([dumps("another record"), signature])))
    assert not check.validate(replace(signed, expiration_time=NOW + 11))


@pytest.mark.parametrize(
    "key", ["anything", RUN, f"{RUN}_grad_averager.0b", f"{RUN}_state_averager.all_averagers", peers_key("other")]
)
def test_nothing_is_stored_under_other_keys(alice: Credentials, key: str) -> None:
    """A run has one: else each member could fill every node."""
    check = validator(alice, None, alice)
    for value in (True, "a record"):
        assert not check.validate(replace(record(alice, value), key=key_id(key)))
        assert not check.validate(record(alice, value, key))


@pytest.mark.parametrize("role", ["observer", "auxiliary", "keeper"])
def test_every_role_has_a_record(authority: AuthorityKey, alice: Credentials, tmp_path: Path, role: Role) -> None:
    """Also an observer: by its record others know whom they give the state."""
    sender = member(tmp_path / role, authority, role=role)
    assert validator(alice, None, sender).validate(record(sender, True))


def test_revoked_members_record_is_refused(authority: AuthorityKey, alice: Credentials, tmp_path: Path) -> None:
    """As soon as a node knows the revocation, the revoked one's records are refused there."""
    bob = member(tmp_path / "bob", authority)
    check = validator(bob, None, alice)
    assert check.validate(record(alice))
    revoked = RevocationList(RUN, 1, NOW, frozenset({alice.device_key.peer_id}))
    bob.store_revocations(issue_revocations(authority, revoked))
    assert not check.validate(record(alice))


def node_of(credentials: Credentials) -> SwarmAuthorizer:
    """What a device's node checks calls with."""
    return SwarmAuthorizer(tokens_of(credentials), RUN)


def peer(credentials: Credentials) -> PeerID:
    """A device's libp2p identity."""
    return PeerID.from_base58(credentials.device_key.peer_id)


def test_request_of_a_member_is_served(alice: Credentials, bob: Credentials) -> None:
    """Another member's node serves a member that shows its token, and later without it."""
    node, caller, request = node_of(bob), node_of(alice), dht_pb2.PingRequest()
    assert not node.validate_request(dht_pb2.PingRequest(), peer(alice))
    assert caller.sign_request(request, peer(bob))
    assert node.validate_request(request, peer(alice))
    assert node.validate_request(dht_pb2.PingRequest(), peer(alice))


def test_request_of_a_stranger_is_not_served(alice: Credentials, mallory: Credentials) -> None:
    """A request with another authority's token is refused."""
    request = dht_pb2.PingRequest()
    node_of(mallory).sign_request(request, peer(alice))
    assert not node_of(alice).validate_request(request, peer(mallory))


def test_request_with_a_stolen_token_is_not_served(alice: Credentials, bob: Credentials, mallory: Credentials) -> None:
    """Alice's token from Mallory's identity is refused, also where Alice is known."""
    node, request = node_of(bob), dht_pb2.PingRequest()
    node_of(alice).sign_request(request, peer(bob))
    assert not node.validate_request(request, peer(mallory))
    assert not node.validate_request(dht_pb2.PingRequest(), peer(mallory))


def test_an_answer_of_a_stranger_is_not_believed(alice: Credentials, bob: Credentials, mallory: Credentials) -> None:
    """A node that shows no token of its own is none of the swarm's; a member's answer is believed from then on."""
    caller, request = node_of(alice), dht_pb2.PingRequest()
    caller.sign_request(request, peer(bob))
    assert not caller.validate_response(dht_pb2.PingResponse(), request, peer(bob))
    for node, believed in (mallory, False), (bob, True):
        response = dht_pb2.PingResponse()
        node_of(node).sign_response(response, request)
        assert caller.validate_response(response, request, peer(bob)) is believed
    assert caller.validate_response(dht_pb2.PingResponse(), request, peer(bob))


def test_both_ends_show_their_tokens_once(alice: Credentials, bob: Credentials) -> None:
    """Who knows the other's says so, and who was answered need not show its own again."""
    caller, node = node_of(alice), node_of(bob)
    shown = []
    for _ in range(2):
        request, response = dht_pb2.PingRequest(), dht_pb2.PingResponse()
        caller.sign_request(request, peer(bob))
        assert node.validate_request(request, peer(alice))
        node.sign_response(response, request)
        assert caller.validate_response(response, request, peer(bob))
        shown.append((request.auth.client_access_token.signature, response.auth.service_access_token.signature))
    assert shown == [(alice.token_jwt.encode(), bob.token_jwt.encode()), (b"", b"")]


def test_renewed_token_is_shown_with_the_next_request(
    authority: AuthorityKey, bob: Credentials, tmp_path: Path
) -> None:
    """When the agent stores a renewed token, others are shown it without a restart."""
    carol = member(tmp_path / "carol", authority)
    caller, first, second = node_of(carol), dht_pb2.PingRequest(), dht_pb2.PingRequest()
    caller.sign_request(first, peer(bob))
    response = dht_pb2.PingResponse()
    node_of(bob).sign_response(response, first)
    assert caller.validate_response(response, first, peer(bob))
    renewed = issue_token(authority, replace(carol.access_token(NOW), expires_at=NOW + 999))
    carol.store_token(renewed)
    assert caller.sign_request(second, peer(bob))
    assert second.auth.client_access_token.signature == renewed.encode()


def test_an_observer_reads(authority: AuthorityKey, alice: Credentials, tmp_path: Path) -> None:
    """Requests that store nothing are served."""
    watcher = member(tmp_path / "watcher", authority, role="observer")
    request = dht_pb2.FindRequest(keys=[key_id(peers_key(RUN))])
    node_of(watcher).sign_request(request, peer(alice))
    assert node_of(alice).validate_request(request, peer(watcher))


class OneRecord:
    """A DHT that holds the token of one peer of the run."""

    def __init__(self, owner: Credentials) -> None:
        self._record = entries_of(owner)

    async def read(self) -> object:
        return self._record


async def test_a_call_that_began_before_a_revocation_ends_with_it(authority: AuthorityKey, tmp_path: Path) -> None:
    """Of a long answer, or of parts on their way, nothing passes soon after the list has come; the rest is let go."""
    alice, bob = member(tmp_path / "alice", authority), member(tmp_path / "bob", authority)
    timer = Clock(10_000.0)
    directory = PeerDirectory(OneRecord(bob).read, alice, Clock(NOW), timer)
    bob_id, ended = bob.device_key.peer_id, []

    async def messages() -> AsyncIterator[int]:
        try:
            for number in range(5):
                yield number
                timer.now += directory.CHECK_PERIOD_S / 2
                if number == 0:
                    listed = RevocationList(RUN, 1, NOW, frozenset({bob.device_key.peer_id}))
                    alice.store_revocations(issue_revocations(authority, listed))
        finally:
            ended.append(True)

    assert await directory.admits(bob_id, TRAINING_ROLES)
    assert [number async for number in while_admitted(directory, bob_id, TRAINING_ROLES, messages())] == [0, 1]
    assert ended == [True]


def test_a_device_cannot_be_named_at_any_length() -> None:
    """A node remembers names, and long ones take long to be read."""
    with pytest.raises(ValueError, match="too long"):
        owner_of(b"x" * (MAX_PEER_ID_BYTES + 1))


class LookedUp:
    """A DHT that answers look-ups one by one, when the test says so."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[Any]] = []

    def read(self) -> asyncio.Future[Any]:
        self.asked.append(asyncio.get_running_loop().create_future())
        return self.asked[-1]

    async def asked_times(self, times: int) -> None:
        """Wait until that many look-ups have begun."""
        while len(self.asked) < times:  # noqa: ASYNC110 - a fake has no event
            await asyncio.sleep(0.001)


def entries_of(*owners: Credentials) -> dict[Any, Any]:
    """What a look-up finds: the tokens of these devices."""
    return {token_subkey(owner.device_key.peer_id): ValueWithExpiration(owner.token_jwt, NOW + 60) for owner in owners}


def directory_of(dht: LookedUp, credentials: Credentials, timer: Clock | None = None) -> PeerDirectory:
    """A directory that reads from `dht`, with a clock that stands still for the tokens."""
    return PeerDirectory(dht.read, credentials, Clock(NOW), timer or Clock(10_000.0))


async def test_a_clock_set_back_delays_no_lookup(alice: Credentials, bob: Credentials) -> None:
    """When the wall clock is set back by an hour, the next look-up begins all the same, and not an hour later."""
    wall, dht = Clock(NOW + 3.0), LookedUp()
    directory = PeerDirectory(dht.read, alice, wall)
    first = asyncio.create_task(directory.refresh())
    await dht.asked_times(1)
    second = asyncio.create_task(directory.admits(bob.device_key.peer_id, TRAINING_ROLES))
    dht.asked[0].set_result(entries_of())
    await first
    wall.now -= 3600.0
    await dht.asked_times(2)
    dht.asked[1].set_result(entries_of(bob))
    wall.now += 3600.0
    assert await second


async def test_waiting_for_a_lookup_keeps_nobody_from_what_is_known(alice: Credentials, bob: Credentials) -> None:
    """While a stranger waits for the period's end, known peers are admitted at once."""
    dht = LookedUp()
    directory = directory_of(dht, alice)
    bob_id = bob.device_key.peer_id
    stranger = asyncio.create_task(directory.admits(bob_id, TRAINING_ROLES))
    await dht.asked_times(1)
    dht.asked[0].set_result(entries_of(bob))
    assert await stranger
    waiting = asyncio.create_task(directory.refresh())
    assert await directory.admits(bob_id, TRAINING_ROLES)
    waiting.cancel()


async def test_those_who_ask_together_share_one_lookup_and_its_failure(alice: Credentials, bob: Credentials) -> None:
    """A look-up that fails makes nobody a stranger: all who waited for it hear of it, and the next reads again."""
    dht = LookedUp()
    directory = directory_of(dht, alice)
    bob_id = bob.device_key.peer_id
    asking = [asyncio.create_task(directory.admits(bob_id, TRAINING_ROLES)) for _ in range(3)]
    await dht.asked_times(1)
    dht.asked[0].set_exception(ConnectionError("no line"))
    assert [type(result) for result in await asyncio.gather(*asking, return_exceptions=True)] == [ConnectionError] * 3
    again = asyncio.create_task(directory.admits(bob_id, TRAINING_ROLES))
    await dht.asked_times(2)
    dht.asked[1].set_result(entries_of(bob))
    assert await again
    assert len(dht.asked) == 2


async def test_lookups_that_fail_do_not_pile_up(alice: Credentials) -> None:
    """Each is forgotten after the next, however long a line is away."""
    failed = []
    dht = LookedUp()
    directory = directory_of(dht, alice)
    directory.REFRESH_PERIOD_S = 0.0
    for number in range(4):
        reading = asyncio.create_task(directory.refresh())
        await dht.asked_times(number + 1)
        failed.append(weakref.ref(directory._newest))
        dht.asked[number].set_exception(ConnectionError("no line"))
        await asyncio.wait({reading})
        assert isinstance(reading.exception(), ConnectionError)
    del reading
    newest, dht.asked = dht.asked[-1:], []
    gc.collect()
    assert [task() is not None for task in failed] == [False, False, False, True]
    assert newest


async def test_a_caller_that_goes_takes_no_lookup_with_it(alice: Credentials, bob: Credentials) -> None:
    """Whoever began the look-up may be cancelled (its line broke): those who share it get its answer."""
    dht = LookedUp()
    directory = directory_of(dht, alice)
    bob_id = bob.device_key.peer_id
    first, second = (asyncio.create_task(directory.admits(bob_id, TRAINING_ROLES)) for _ in range(2))
    await dht.asked_times(1)
    first.cancel()
    dht.asked[0].set_result(entries_of(bob))
    assert await second
    assert len(dht.asked) == 1


async def test_who_asks_during_a_lookup_gets_a_newer_one(alice: Credentials, bob: Credentials) -> None:
    """A record may have come while the older look-up was under way; the next begins after it and after the period."""
    dht, timer = LookedUp(), Clock(0.0)
    directory = directory_of(dht, alice, timer)
    older = asyncio.create_task(directory.refresh())
    await dht.asked_times(1)
    timer.now += PeerDirectory.REFRESH_PERIOD_S
    newer = asyncio.create_task(directory.admits(bob.device_key.peer_id, TRAINING_ROLES))
    for _ in range(5):  # turns of the event loop
        await asyncio.sleep(0.0)
    assert len(dht.asked) == 1
    dht.asked[0].set_result(entries_of())
    await older
    await dht.asked_times(2)
    dht.asked[1].set_result(entries_of(bob))
    assert await newer


async def test_a_flood_of_strangers_costs_one_lookup_a_period(alice: Credentials, bob: Credentials) -> None:
    """Until the period is over no other look-up begins, however many ask one after another."""
    dht = LookedUp()
    directory = directory_of(dht, alice)
    directory.REFRESH_PERIOD_S = 3600.0
    first = asyncio.create_task(directory.refresh())
    await dht.asked_times(1)
    dht.asked[0].set_result(entries_of())
    await first
    bob_id = bob.device_key.peer_id
    flood = []
    for _ in range(5):
        flood.append(asyncio.create_task(directory.admits(bob_id, TRAINING_ROLES)))
        for _ in range(5):  # turns of the event loop
            await asyncio.sleep(0.0)
    assert len(dht.asked) == 1
    assert not any(task.done() for task in flood)
    for task in flood:
        task.cancel()


async def test_malformed_records_spoil_no_others(alice: Credentials, bob: Credentials) -> None:
    """Values that are no records, of whatever shape, are passed over; the sound one among them is read."""
    found = entries_of(bob)
    bare = token_subkey(alice.device_key.peer_id)
    for value in ("text", None, 5, {"token": 5}, [alice.token_jwt], {}):
        found[bare + repr(value).encode()] = ValueWithExpiration(value, NOW + 10)
    found[bare] = alice.token_jwt  # without a time
    found[record_subkey(alice.device_key.peer_id)] = ValueWithExpiration(alice.token_jwt, NOW + 10)
    found["text"] = ValueWithExpiration(alice.token_jwt, NOW + 10)
    dht = LookedUp()
    directory = directory_of(dht, alice)
    asking = asyncio.create_task(directory.with_role(TRAINING_ROLES))
    await dht.asked_times(1)
    dht.asked[0].set_result(found)
    assert await asking == [bob.device_key.peer_id]


@pytest.mark.parametrize("answer", [None, 5])
async def test_an_empty_answer_forgets_nobody(alice: Credentials, bob: Credentials, answer: Any) -> None:
    """A look-up that finds nothing leaves known tokens known for as long as they are valid."""
    dht, timer = LookedUp(), Clock(0.0)
    directory = directory_of(dht, alice, timer)
    for number, found in enumerate((entries_of(bob), answer)):
        reading = asyncio.create_task(directory.refresh())
        await dht.asked_times(number + 1)
        dht.asked[number].set_result(found)
        await reading
        timer.now += PeerDirectory.REFRESH_PERIOD_S
    token = directory.token_of(bob.device_key.peer_id)
    assert token is not None
    assert token.peer_id == bob.device_key.peer_id
