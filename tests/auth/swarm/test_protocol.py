"""What DHT nodes say to each other, byte by byte: the real protocol of several nodes over lines that only count."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import CompositeValidator, DHTRecord
from hivemind.p2p import P2PContext, P2PHandlerError, PeerID
from hivemind.proto import dht_pb2

from auth.credentials import DEVICE_KEY_FILE, Credentials
from auth.files import write_private
from auth.keys import AuthorityKey, encode_key
from auth.swarm.authorizer import (
    MemberTokens,
    PeerRecordValidator,
    SwarmAuthorizer,
    addresses_subkey,
    peers_key,
    record_subkey,
    token_subkey,
)
from auth.swarm.hivemind_patches import SPARE_TIMES, patch_hivemind
from auth.swarm.protocol import KEY_BYTES, MARK_BYTES, MAX_ENTRIES, MAX_KEYS, MemberProtocol, node_id_of
from auth.tokens import AccessToken, RevocationList, issue_revocations, issue_token
from tests.support.receipts import key_of

RUN = "demo"
KEY = DHTID.generate(source=peers_key(RUN))
NEVER = time.time() + 1e4  # of entries: the storage looks at the real clock
SOON = 100.0
dumps, loads = DHTProtocol.serializer.dumps, DHTProtocol.serializer.loads


@dataclass
class Lines:
    """The transport between all nodes of a test: it proves who calls whom, and keeps what was said."""

    handlers: dict[tuple[PeerID, str], Callable[..., Any]] = field(default_factory=dict)
    said: list[tuple[str, Any, Any]] = field(default_factory=list)  # (call, request, answer)

    def last(self, call: str) -> tuple[Any, Any]:
        """The last request of this kind with its answer."""
        return next((request, answer) for name, request, answer in reversed(self.said) if name == call)


class Line:
    """One node's end of the lines, in the place of its p2p daemon."""

    def __init__(self, lines: Lines, peer_id: PeerID) -> None:
        self._lines, self.peer_id = lines, peer_id

    async def add_protobuf_handler(
        self, name: str, handler: Callable[..., Any], _request_type: type[Message], **_options: bool
    ) -> None:
        self._lines.handlers[self.peer_id, name] = handler

    async def call_protobuf_handler(
        self, peer: PeerID, name: str, request: Message, _response_type: type[Message]
    ) -> Message:
        sent = type(request).FromString(request.SerializeToString())
        kept = type(request).FromString(request.SerializeToString())
        try:
            response: Message = await self._lines.handlers[peer, name](sent, P2PContext(name, peer, self.peer_id))
        except Exception as error:
            raise P2PHandlerError(str(error)) from error
        self._lines.said.append((name.rpartition("_")[2], kept, response))
        return type(response).FromString(response.SerializeToString())


@dataclass
class Node:
    """A node of the DHT."""

    credentials: Credentials
    protocol: MemberProtocol

    @property
    def peer_id(self) -> PeerID:
        """Its identity."""
        return PeerID.from_base58(self.credentials.device_key.peer_id)

    @property
    def held(self) -> dict[Any, Any]:
        """What it holds under the peers key."""
        found = self.protocol.storage.get(KEY)
        return {} if found is None else {subkey: item.value for subkey, item in found.value.items()}

    @property
    def subkey(self) -> bytes:
        """That of its record."""
        return record_subkey(self.credentials.device_key.peer_id)

    def signed(self, value: bytes, expires_at: float, subkey: bytes | None = None, key: DHTID = KEY) -> bytes:
        """Its record of these bytes, or another entry."""
        unsigned = DHTRecord(key.to_bytes(), dumps(subkey or self.subkey), value, expires_at)
        return bytes(self.protocol.record_validator.sign_value(unsigned))

    async def report(self, holder: Node, value: object, expires_at: float = NEVER) -> bool:
        """Store its record at another node; whether that took it."""
        return await self.store(holder, self.subkey, self.signed(dumps(value), expires_at), expires_at)

    async def store(self, holder: Node, subkey: object, value: bytes, expires_at: float) -> bool:
        """Store any entry at another node; whether that took it."""
        return await self.protocol.call_store(holder.peer_id, [KEY], [value], expires_at, subkeys=[subkey]) == [True]

    async def look(self, holder: Node) -> Any:
        """Search for the peers' entries at another node."""
        found = await self.protocol.call_find(holder.peer_id, [KEY])
        return None if found is None else found[KEY][0]


class Swarm:
    """Members' nodes, and strangers'."""

    def __init__(self, directory: Path) -> None:
        self.lines = Lines()
        self.authority = AuthorityKey.generate()
        self._directory = directory
        self._known = 0

    def credentials(self, name: str, authority: AuthorityKey | None = None) -> Credentials:
        """A device that has joined, by default the run."""
        credentials, signer = Credentials(self._directory / name), authority or self.authority
        write_private(credentials.directory / DEVICE_KEY_FILE, encode_key(key_of(name).private_der))
        key, now = credentials.device_key, time.time()
        token = AccessToken(
            name,
            "device",
            key.peer_id,
            key.public_key.decode(),
            "trainer",
            RUN,
            now - 1,
            NEVER,
            key.receipt_key(RUN).pseudonym,
        )
        revocations = issue_revocations(signer, RevocationList(RUN, 0, now, frozenset()))
        credentials.store_grant(RUN, signer.public_bytes, issue_token(signer, token), revocations)
        return credentials

    async def node(self, credentials: Credentials, *, client: bool = False) -> Node:
        """Start a node of this device, anew if it had one."""
        tokens = MemberTokens(credentials)
        protocol = await MemberProtocol.create(
            Line(self.lines, PeerID.from_base58(credentials.device_key.peer_id)),
            node_id_of(PeerID.from_base58(credentials.device_key.peer_id)),
            bucket_size=8,
            depth_modulo=5,
            num_replicas=4,
            wait_timeout=300.0,
            client_mode=client,
            record_validator=CompositeValidator([PeerRecordValidator(credentials, tokens, RUN)]),
            authorizer=SwarmAuthorizer(tokens, RUN),
        )
        return Node(credentials, protocol)


@pytest.fixture
def swarm(tmp_path: Path) -> Swarm:
    """No nodes yet."""
    patch_hivemind()
    return Swarm(tmp_path)


async def test_a_look_brings_the_news_only(swarm: Swarm) -> None:
    """All that there is at first, then nothing when nothing has changed, and the changed entries else."""
    holder, reader = [await swarm.node(swarm.credentials(name)) for name in ("holder", "reader")]
    authors = [await swarm.node(swarm.credentials(f"author-{number}")) for number in range(5)]
    for author in authors:
        assert await author.report(holder, 0)
    sizes, news = [], []
    for changed in (authors, [], authors[:1], authors[1:3]):
        if changed != authors:
            for author in changed:
                assert await author.report(holder, 1, NEVER + 1)
        assert await reader.look(holder) is not None
        request, answer = swarm.lines.last("find")
        sizes.append(len(request.keys[0]))
        result = answer.results[0]
        news.append(set(loads(result.value).data) if result.value else set())
    ids = [author.credentials.device_key.peer_id for author in authors]
    members = {holder.credentials.device_key.peer_id, reader.credentials.device_key.peer_id, *ids}
    records = [record_subkey(peer_id) for peer_id in ids]
    assert news == [{*records, *map(token_subkey, members)}, set(), {records[0]}, {records[1], records[2]}]
    assert sizes == [KEY_BYTES, *[KEY_BYTES + MARK_BYTES * (5 + 7)] * 3]
    assert reader.held == holder.held


async def test_a_look_without_news_costs_the_same_whoever_is_asked(swarm: Swarm) -> None:
    """What one node has said no other need say again."""
    first, second, author, reader = [await swarm.node(swarm.credentials(f"node-{number}")) for number in range(4)]
    for holder in (first, second):
        assert await author.report(holder, "here")
        await reader.look(holder)
    assert swarm.lines.last("find")[1].results[0].value
    for holder in (first, second):
        found = await reader.look(holder)
        assert set(found.value.data) == set(reader.held)
        assert not swarm.lines.last("find")[1].results[0].value


async def test_tokens_are_shown_once(swarm: Swarm) -> None:
    """To each node, with the first call and its answer, and again when the node was started anew."""
    holder, caller = [await swarm.node(swarm.credentials(name)) for name in ("holder", "caller")]

    async def shown() -> tuple[bool, bool]:
        await caller.look(holder)
        request, answer = swarm.lines.last("find")
        return bool(request.auth.client_access_token.signature), bool(answer.auth.service_access_token.signature)

    assert [await shown(), await shown()] == [(True, True), (False, False)]
    holder = await swarm.node(holder.credentials)
    assert [await shown(), await shown()] == [(True, False), (False, False)]


async def test_a_clients_token_reaches_others_by_the_node_that_it_calls(swarm: Swarm) -> None:
    """Nobody can call it; who reads its record there learns whose it is."""
    holder, reader = [await swarm.node(swarm.credentials(name)) for name in ("holder", "reader")]
    client = await swarm.node(swarm.credentials("client"), client=True)
    assert await client.report(holder, "here")
    await reader.look(holder)
    peer_id = client.credentials.device_key.peer_id
    assert loads(reader.held[token_subkey(peer_id)]) == client.credentials.token_jwt
    assert record_subkey(peer_id) in reader.held


async def test_a_stranger_gets_nothing_and_is_believed_nothing(swarm: Swarm) -> None:
    """It finds nothing, stores nothing, and what it answers is no answer."""
    member = await swarm.node(swarm.credentials("member"))
    stranger = await swarm.node(swarm.credentials("stranger", AuthorityKey.generate()))
    assert await stranger.look(member) is None
    assert not await stranger.report(member, "here")
    assert await member.look(stranger) is None
    assert await member.protocol.call_ping(stranger.peer_id) is None
    assert set(member.held) <= {token_subkey(member.credentials.device_key.peer_id)}


async def test_a_revoked_member_is_served_no_longer(swarm: Swarm) -> None:
    """By nobody who has heard of it, although its token was known before; its record goes no further either."""
    holder, reader, mallory = [await swarm.node(swarm.credentials(name)) for name in ("holder", "reader", "mallory")]
    assert await mallory.report(holder, "here")
    revoked = RevocationList(RUN, 1, time.time(), frozenset({mallory.credentials.device_key.peer_id}))
    reader.credentials.store_revocations(issue_revocations(swarm.authority, revoked))
    assert await mallory.look(reader) is None
    assert await reader.look(mallory) is None
    assert (await reader.look(holder)) is not None
    assert set(reader.held) == {token_subkey(each.credentials.device_key.peer_id) for each in (holder, reader)}


async def test_a_bad_entry_spoils_no_others(swarm: Swarm) -> None:
    """A holder that adds entries of its own making is believed the others."""
    holder, author, reader = [await swarm.node(swarm.credentials(name)) for name in ("holder", "author", "reader")]
    assert await author.report(holder, "here")
    forged = record_subkey(reader.credentials.device_key.peer_id)
    holder.protocol.storage.store_subkey(
        KEY, forged, holder.held[record_subkey(author.credentials.device_key.peer_id)], NEVER
    )
    await reader.look(holder)
    assert record_subkey(author.credentials.device_key.peer_id) in reader.held
    assert forged not in reader.held


async def test_a_record_may_come_before_its_token(swarm: Swarm) -> None:
    """In whatever order a holder names them, both are taken."""
    holder, author, reader = [await swarm.node(swarm.credentials(name)) for name in ("holder", "author", "reader")]
    assert await author.report(holder, "here")
    entries = holder.protocol.storage.get(KEY).value
    entries.data = dict(sorted(entries.data.items(), key=lambda entry: entry[0].startswith(b"token ")))
    await reader.look(holder)
    assert set(reader.held) == set(holder.held)


async def test_nothing_in_a_cache_hides_what_a_node_holds(swarm: Swarm) -> None:
    """A member that asks to have its record cached until long after the others is served no other way."""
    holder, author, mallory, reader = [await swarm.node(swarm.credentials(f"node-{number}")) for number in range(4)]
    assert await author.report(holder, "here")
    subkey = record_subkey(mallory.credentials.device_key.peer_id)
    unsigned = DHTRecord(KEY.to_bytes(), dumps(subkey), dumps("here"), NEVER + 9)
    signed = mallory.protocol.record_validator.sign_value(unsigned)
    await mallory.protocol.call_store(holder.peer_id, [KEY], [signed], NEVER + 9, subkeys=[subkey], in_cache=True)
    await reader.look(holder)
    assert {record_subkey(each.credentials.device_key.peer_id) for each in (author, mallory)} <= set(reader.held)


@pytest.mark.parametrize("held", [b"", b"x", b"12345", b"1234567"])
async def test_marks_that_are_torn_leave_nothing_out(swarm: Swarm, held: bytes) -> None:
    """Whatever follows a key in a request, it is answered."""
    holder = await swarm.node(swarm.credentials("holder"))
    author = await swarm.node(swarm.credentials("author"))
    assert await author.report(holder, "here")
    request = dht_pb2.FindRequest(keys=[KEY.to_bytes() + held])
    answer = await holder.protocol.rpc_find(request, P2PContext("find", holder.peer_id, author.peer_id))
    assert set(loads(answer.results[0].value).data) == set(holder.held)


async def test_no_node_stores_what_is_not_the_runs(swarm: Swarm) -> None:
    """A member's 400 keys of 16 kB, entries of its own making under the run's key, or a value over all of them."""
    holder, mallory = [await swarm.node(swarm.credentials(name)) for name in ("holder", "mallory")]
    await mallory.look(holder)
    before = [(key, len(item.value)) for key, item in holder.protocol.storage.items()]
    large, expires_at = bytes(16_000), time.time() + SOON
    for number in range(400):
        key = DHTID.generate(source=number)
        stored = await mallory.protocol.call_store(
            holder.peer_id,
            [key],
            [large],
            expires_at,
            subkeys=[b"me" if number % 2 else None],
            in_cache=number % 3 == 0,
        )
        assert stored == [False]
    for subkey in (b"me", 5, None):
        assert not await mallory.store(holder, subkey, dumps(True), expires_at)
    whole = DictionaryDHTValue()
    for number in range(100):
        whole.store(number.to_bytes(2, "big"), large, expires_at)
    assert await mallory.protocol.call_store(holder.peer_id, [KEY], [whole], expires_at) == [False]
    assert [(key, len(item.value)) for key, item in holder.protocol.storage.items()] == before
    assert not holder.protocol.cache


async def test_a_device_has_three_entries_at_a_node_whoever_stores_them(swarm: Swarm) -> None:
    """Its record, its token, and its addresses; stored again they take no more room."""
    holder, author, other = [await swarm.node(swarm.credentials(name)) for name in ("holder", "author", "other")]
    subkey = addresses_subkey(author.credentials.device_key.peer_id)
    for number in range(50):
        ends_at = NEVER + number
        assert await author.report(holder, number, ends_at)
        assert await author.store(holder, subkey, author.signed(dumps([HOME]), ends_at, subkey), ends_at)
    entries = holder.protocol.storage.get(KEY).value
    assert len(entries.data) == 3 + 1  # with the holder's own token
    assert len(entries.expiration_heap) <= 2 * 4 + SPARE_TIMES
    assert len(holder.protocol.storage.expiration_heap) <= 2 + SPARE_TIMES
    await other.look(holder)
    assert await other.protocol.call_store(holder.peer_id, [KEY], [other.protocol.storage.get(KEY).value], NEVER)
    assert len(holder.held) == 3 + 2


@pytest.mark.parametrize("later_s", [float("nan"), float("inf"), 86_400.0])
async def test_an_entry_ends_within_a_day(swarm: Swarm, later_s: float) -> None:
    """Or one of a member that is long gone would be sent to everybody for good."""
    expires_at = NEVER + later_s
    holder, author = [await swarm.node(swarm.credentials(name)) for name in ("holder", "author")]
    assert not await author.report(holder, "here", expires_at)
    assert author.subkey not in holder.held


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x91"])
async def test_a_value_that_cannot_be_read_is_stored_nowhere(swarm: Swarm, value: bytes) -> None:
    """Every reader's whole look would fail with it."""
    holder, author = [await swarm.node(swarm.credentials(name)) for name in ("holder", "author")]
    assert not await author.store(holder, author.subkey, author.signed(value, NEVER), NEVER)


async def test_a_node_has_the_place_of_its_identity(swarm: Swarm) -> None:
    """A member that names others cannot become all the holders of a key, nor stop a search with a wrong one."""
    holder, mallory = [await swarm.node(swarm.credentials(name)) for name in ("holder", "mallory")]
    for named in (DHTID(int(KEY) + 1), DHTID(int(KEY) + 2)):
        mallory.protocol.node_info = dht_pb2.NodeInfo(node_id=named.to_bytes())
        assert await mallory.look(holder) is not None
        assert await holder.look(mallory) is not None
    mallory.protocol.node_info = dht_pb2.NodeInfo(node_id=b"\xff" * 21)
    assert await holder.look(mallory) is not None
    assert dict(holder.protocol.routing_table.peer_id_to_uid) == {mallory.peer_id: node_id_of(mallory.peer_id)}


async def test_an_old_entry_that_comes_again_takes_nothing_away(swarm: Swarm) -> None:
    """hivemind deletes the newer one when the older that was refused expires."""
    holder, author, mallory = [await swarm.node(swarm.credentials(name)) for name in ("holder", "author", "mallory")]
    old = author.signed(dumps("old"), NEVER)
    assert await author.report(holder, "new", NEVER + 1)
    assert not await mallory.store(holder, author.subkey, old, NEVER)
    entries = holder.protocol.storage.get(KEY).value
    assert entries.key_to_heap[author.subkey].expiration_time == NEVER + 1
    assert len(entries.expiration_heap) == len(entries.data)


async def test_a_new_node_is_given_all_entries(swarm: Swarm) -> None:
    """hivemind stops at the first one that is held already, here the token that is shown beside it."""
    names = ("holder", "author", "other", "newcomer")
    holder, author, other, newcomer = [await swarm.node(swarm.credentials(name)) for name in names]
    assert await author.report(holder, "here")
    assert await other.report(holder, "here, too")
    await holder.protocol.call_store(newcomer.peer_id, [KEY], [holder.protocol.storage.get(KEY).value], NEVER)
    assert set(holder.held) <= set(newcomer.held)


async def test_nobody_fills_a_node_or_asks_for_everything_at_once(swarm: Swarm) -> None:
    """Neither one entry after another, nor in one answer, nor by a search for many keys or with endless marks."""
    holder, mallory = [await swarm.node(swarm.credentials(name)) for name in ("holder", "mallory")]
    for number in range(MAX_ENTRIES):
        holder.protocol.storage.store_subkey(KEY, number.to_bytes(2, "big"), dumps(True), NEVER)
    assert not await mallory.report(holder, "here")
    for number in range(4):
        del holder.protocol.storage.get(KEY).value[number.to_bytes(2, "big")]
    assert await mallory.report(holder, "here")
    assert await mallory.report(holder, "here", NEVER + 1)
    for number in range(MAX_ENTRIES + 1):
        mallory.protocol.storage.store_subkey(KEY, number.to_bytes(2, "big"), dumps(True), NEVER)
    reader = await swarm.node(swarm.credentials("reader"))
    assert await reader.protocol.call_find(mallory.peer_id, [KEY]) is not None
    assert set(reader.held) == {token_subkey(each.credentials.device_key.peer_id) for each in (mallory, reader)}
    many = [bytes(KEY.to_bytes())] * (MAX_KEYS + 1)
    endless = [KEY.to_bytes() + bytes((MAX_ENTRIES + 1) * MARK_BYTES)]
    for keys in (many, endless):
        with pytest.raises(ValueError, match="too much at once"):
            await holder.protocol.rpc_find(
                dht_pb2.FindRequest(keys=keys), P2PContext("find", holder.peer_id, mallory.peer_id)
            )


HOME = b"\x04\xc0\xa8\x01\x07\x06\x0f\xa1"  # /ip4/192.168.1.7/tcp/4001


async def test_addresses_are_their_owners_and_travel_with_the_records(swarm: Swarm) -> None:
    """Nobody else can say where a member is, and what is no address is stored nowhere."""
    holder, author, mallory, reader = [await swarm.node(swarm.credentials(f"node-{number}")) for number in range(4)]
    subkey = addresses_subkey(author.credentials.device_key.peer_id)
    for forger, value in ((mallory, [HOME]), (author, ["/ip4/1.2.3.4"]), (author, [HOME] * 99), (author, HOME)):
        assert not await author.store(holder, subkey, forger.signed(dumps(value), NEVER, subkey), NEVER)
    assert await author.store(holder, subkey, author.signed(dumps([HOME]), NEVER, subkey), NEVER)
    await reader.look(holder)
    assert reader.protocol._addresses_of(author.peer_id) == [HOME]
    assert reader.protocol._addresses_of(mallory.peer_id) == []
    assert reader.protocol.told_addresses(KEY) == [author.peer_id]
    assert not await reader.protocol.reach(mallory.peer_id)


async def test_a_node_reads_the_members_entries_when_it_joins(swarm: Swarm) -> None:
    """From the node through which it joins, and once: it could reach no other without them."""
    holder, author, joiner = [await swarm.node(swarm.credentials(f"node-{number}")) for number in range(3)]
    subkey = addresses_subkey(author.credentials.device_key.peer_id)
    assert await author.store(holder, subkey, author.signed(dumps([HOME]), NEVER, subkey), NEVER)
    for joins in (True, False):
        assert await joiner.protocol.call_ping(holder.peer_id, validate=joins) is not None
    assert joiner.protocol._addresses_of(author.peer_id) == [HOME]
    assert [call for call, _, _ in swarm.lines.said].count("find") == 1
