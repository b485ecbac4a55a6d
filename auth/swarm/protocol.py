"""The swarm's DHT protocol: hivemind's, restricted to members, with only new entries in responses.

A hivemind node responds to a search with all entries of a key, and each search queries many nodes,
so a node that polls the peers' records receives each record dozens of times. In this protocol, a
search includes a hash (mark) of each entry that the node already has, and the response contains
only new entries. Nodes store the entries they have read and serve them to other nodes.

The entries include the addresses of other nodes, so a new node first reads the entries from one of
its initial peers.

`patch_hivemind()` installs this protocol in place of hivemind's.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from collections.abc import Awaitable, Callable, Collection, Hashable
from functools import lru_cache
from typing import Any

from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import P2P, P2PContext, P2PDaemonError, P2PHandlerError, PeerID
from hivemind.proto import dht_pb2
from hivemind.utils.timed_storage import ValueWithExpiration

from auth.swarm.addresses import connect
from auth.swarm.authorizer import SwarmAuthorizer, addresses_subkey, peers_key, read_entries, token_subkey
from auth.tokens import AccessToken

logger = logging.getLogger(__name__)
MARK_BYTES = 4
KEY_BYTES = DHTID.HASH_NBYTES
MAX_KEYS = 64  # maximum number of keys in a search
MAX_ENTRIES = 6144  # maximum number of entries under a key: three for each device of the largest run
Found = dict[DHTID, tuple["ValueWithExpiration[Any] | None", dict[DHTID, PeerID]]]
Call = Callable[..., Awaitable[Any]]


@lru_cache(maxsize=2 * MAX_ENTRIES, typed=True)
def mark_of(subkey: Hashable, expiration_time: float) -> bytes:
    """Return a short hash that identifies one version of an entry."""
    named = DHTProtocol.serializer.dumps(subkey) + struct.pack(">d", expiration_time)
    return hashlib.blake2b(named, digest_size=MARK_BYTES).digest()


def node_id_of(peer: PeerID) -> DHTID:
    """Return a peer's node ID, derived from the identity so that no peer has several IDs."""
    return DHTID.generate(source=peer.to_bytes())


class MemberProtocol(DHTProtocol):  # type: ignore[misc]
    """hivemind's protocol with an authorizer and with searches that return only new entries."""

    _rpc_handlers = _stub_type = None  # prevents reuse of the handlers and stub of hivemind's class
    authorizer: SwarmAuthorizer | None

    @classmethod
    def _get_handle_name(cls, namespace: str | None, method_name: str) -> str:
        return str(DHTProtocol._get_handle_name(namespace, method_name))

    @classmethod
    async def create(cls, *arguments: Any, **options: Any) -> MemberProtocol:
        """Create the protocol; callers' valid tokens are added to this node's storage."""
        protocol: MemberProtocol = await super().create(*arguments, **options)
        protocol._hold_tokens()
        if protocol.authorizer is not None:
            protocol.p2p.reach = protocol.reach
        return protocol

    def _hold_tokens(self) -> None:
        if self.authorizer is not None:
            self.authorizer.tokens.on_new = self._hold_token

    def _hold_token(self, token: AccessToken, jwt: str) -> None:
        key, subkey = DHTID.generate(source=peers_key(token.run)), token_subkey(token.peer_id)
        self.storage.store_subkey(key, subkey, self.serializer.dumps(jwt), token.expires_at)

    async def add_p2p_handlers(self, p2p: P2P, _wrapper: Any = None, **options: Any) -> None:
        """Register the handlers; with an authorizer, they serve members only."""
        self._hold_tokens()  # must precede the first request from a peer
        guarded = None if self.authorizer is None else _Service(self, self.authorizer)
        await super().add_p2p_handlers(p2p, guarded, **options)

    def get_stub(self, peer: PeerID) -> Any:
        """Return a stub that adds this node's token to calls if the peer does not have the token."""
        stub = super(DHTProtocol, self).get_stub(self.p2p, peer)
        return stub if self.authorizer is None else _Client(stub, peer, self.authorizer)

    async def call_ping(self, peer: PeerID, validate: bool = False, strict: bool = True) -> DHTID | None:
        """Ping a node; with `validate` (on joining the DHT), also read its entries about peers."""
        node_id: DHTID | None = await super().call_ping(peer, validate, strict)
        if validate and node_id is not None and self.authorizer is not None:
            await self.call_find(peer, [DHTID.generate(source=peers_key(self.authorizer.run))])
        return node_id

    async def reach(self, peer: PeerID) -> bool:
        """Connect the p2p daemon to a member at its addresses in the DHT. Return False on failure."""
        addresses = self._addresses_of(peer)
        try:
            if addresses:
                await connect(self.p2p, peer, addresses)
        except (P2PDaemonError, OSError, EOFError) as error:
            logger.debug("%s is not reached where it says: %r", peer, error)
            return False
        return bool(addresses)

    def told_addresses(self, key: DHTID) -> list[PeerID]:
        """Return the members whose addresses this node stores under the key."""
        entries = self.storage.get(key)
        if entries is None or not isinstance(entries.value, DictionaryDHTValue):
            return []
        return [PeerID.from_base58(owner) for owner, _ in read_entries(dict(entries.value.items()), "addresses")]

    def _addresses_of(self, peer: PeerID) -> list[bytes]:
        assert self.authorizer is not None  # `reach` is set only with an authorizer
        key, subkey = DHTID.generate(source=peers_key(self.authorizer.run)), addresses_subkey(peer.to_base58())
        entries = self.storage.get(key)
        entry = entries.value.get(subkey) if entries is not None else None
        if entry is None:
            return []
        signed = DHTRecord(key.to_bytes(), self.serializer.dumps(subkey), entry.value, entry.expiration_time)
        addresses: list[bytes] = self.serializer.loads(self.record_validator.strip_value(signed))
        return addresses

    async def call_find(self, peer: PeerID, keys: Collection[DHTID]) -> Found | None:
        """Search on one node, store new entries, and return each key's entries, or None on failure."""
        request = dht_pb2.FindRequest(keys=[key.to_bytes() + self._marks(key) for key in keys], peer=self.node_info)
        try:
            async with self.rpc_semaphore:
                response = await self.get_stub(peer).rpc_find(request, timeout=self.wait_timeout)
            if len(response.results) != len(request.keys):
                raise ValueError("not one result for each key")
            found = {key: self._take(key, result) for key, result in zip(keys, response.results, strict=True)}
            if response.peer.node_id:
                await self.update_routing_table(node_id_of(peer), peer, responded=True)
        except Exception:  # all errors, as in hivemind: a remote peer may send arbitrary data
            logger.debug("the search at %s failed", peer, exc_info=True)
            await self.update_routing_table(self.routing_table.get(peer_id=peer), peer, responded=False)
            return None
        return found

    async def update_routing_table(self, node_id: DHTID | None, peer_id: PeerID, responded: bool = True) -> None:
        """Update the routing table; the node ID is always derived from the peer's identity."""
        known = node_id is not None or self.routing_table.get(peer_id=peer_id) is not None
        await super().update_routing_table(node_id_of(peer_id) if known else None, peer_id, responded)

    async def rpc_find(self, request: dht_pb2.FindRequest, context: P2PContext) -> dht_pb2.FindResponse:
        """Return the entries that the caller lacks, based on the marks after each requested key."""
        if len(request.keys) > MAX_KEYS or any(len(key) > KEY_BYTES + MAX_ENTRIES * MARK_BYTES for key in request.keys):
            raise ValueError("a search for too much at once")
        asked = dht_pb2.FindRequest(keys=[key[:KEY_BYTES] for key in request.keys], peer=request.peer)
        response = await super().rpc_find(asked, context)
        for key, result in zip(request.keys, response.results, strict=True):
            if result.type == dht_pb2.FOUND_DICTIONARY:
                held = {key[at : at + MARK_BYTES] for at in range(KEY_BYTES, len(key), MARK_BYTES)}
                self._leave_out(result, held)
        return response

    def _leave_out(self, result: dht_pb2.FindResult, held: set[bytes]) -> None:
        news = self.serializer.loads(result.value)
        for subkey, item in list(news.items()):
            if mark_of(subkey, item.expiration_time) in held:
                del news[subkey]
        if news:
            result.value = self.serializer.dumps(news)
        else:
            result.type = dht_pb2.NOT_FOUND
            result.ClearField("value")

    def _marks(self, key: DHTID) -> bytes:
        held = self.storage.get(key)
        if held is None or not isinstance(held.value, DictionaryDHTValue):
            return b""
        marks = [mark_of(subkey, item.expiration_time) for subkey, item in held.value.items()]
        return b"".join(marks[:MAX_ENTRIES])

    def _take(
        self, key: DHTID, result: dht_pb2.FindResult
    ) -> tuple[ValueWithExpiration[Any] | None, dict[DHTID, PeerID]]:
        """Store a result's valid entries; return (all stored entries of the key, closest nodes)."""
        nearest = {node_id_of(peer): peer for peer in map(PeerID, result.nearest_peer_ids)}
        if result.type == dht_pb2.FOUND_DICTIONARY:
            news = self.serializer.loads(result.value)
            if self._validate_dictionary(key.to_bytes(), news):
                self._keep(key, news)
        return self.storage.get(key), nearest

    async def rpc_store(self, request: dht_pb2.StoreRequest, context: P2PContext) -> dht_pb2.StoreResponse:
        """Store valid entries, never in the cache: cached entries would hide stored entries.

        A dictionary's entries are first stored one by one, because hivemind stops storing a
        dictionary at the first known entry.
        """
        request.in_cache[:] = [False] * len(request.in_cache)
        for at, tag in enumerate(request.subkeys):
            if tag == self.IS_DICTIONARY:
                news = self.serializer.loads(request.values[at])
                if isinstance(news, DictionaryDHTValue) and self._validate_dictionary(request.keys[at], news):
                    self._keep(DHTID.from_bytes(request.keys[at]), news)
        return await super().rpc_store(request, context)

    def _keep(self, key: DHTID, news: DictionaryDHTValue) -> None:
        for subkey, item in list(news.items()):
            self.storage.store_subkey(key, subkey, item.value, item.expiration_time)

    def _validate_record(self, key_bytes: bytes, subkey_bytes: bytes, value: bytes, expiration_time: float) -> bool:
        """Return whether an entry is valid and its key has fewer than `MAX_ENTRIES` other entries."""
        held = self.storage.get(DHTID.from_bytes(key_bytes))
        has_room = held is None or not isinstance(held.value, DictionaryDHTValue) or len(held.value) < MAX_ENTRIES
        if not has_room and subkey_bytes not in (self.IS_REGULAR_VALUE, self.IS_DICTIONARY):
            has_room = self.serializer.loads(subkey_bytes) in held.value
        return has_room and bool(super()._validate_record(key_bytes, subkey_bytes, value, expiration_time))

    def _validate_dictionary(self, key_bytes: bytes, dictionary: DictionaryDHTValue) -> bool:
        """Remove invalid entries without affecting the others. Return whether any entry remains."""
        if len(dictionary.data) > MAX_ENTRIES:
            return False
        with dictionary.freeze():
            refused = self._refused(key_bytes, dictionary, list(dictionary.data))
            for subkey in self._refused(key_bytes, dictionary, refused):  # a token may come after its record
                del dictionary[subkey]
        return bool(dictionary)

    def _refused(self, key_bytes: bytes, dictionary: DictionaryDHTValue, subkeys: list[Any]) -> list[Any]:
        dumps, items = self.serializer.dumps, dictionary.data
        return [
            subkey
            for subkey in subkeys
            if not self._validate_record(key_bytes, dumps(subkey), items[subkey].value, items[subkey].expiration_time)
        ]


class _Service:
    """A wrapper around the protocol's handlers that rejects peers without valid tokens."""

    def __init__(self, protocol: MemberProtocol, authorizer: SwarmAuthorizer) -> None:
        self._protocol, self._authorizer = protocol, authorizer

    def __getattr__(self, name: str) -> Call:
        serve: Call = getattr(self._protocol, name)

        async def served(request: Any, context: P2PContext) -> Any:
            if not self._authorizer.validate_request(request, context.remote_id):
                raise PermissionError("no valid token for this call")
            response = await serve(request, context)
            self._authorizer.sign_response(response, request)
            return response

        return served


class _Client:
    """A wrapper around a stub that adds this node's token to calls if the peer lacks the token."""

    def __init__(self, stub: Any, peer: PeerID, authorizer: SwarmAuthorizer) -> None:
        self._stub, self._peer, self._authorizer = stub, peer, authorizer

    def __getattr__(self, name: str) -> Call:
        call: Call = getattr(self._stub, name)

        async def called(request: Any, timeout: float | None = None) -> Any:
            has_shown = self._authorizer.sign_request(request, self._peer)
            try:
                response = await call(request, timeout=timeout)
            except P2PHandlerError:
                if has_shown:
                    raise
                self._authorizer.introduce(request)  # the peer may have restarted or dropped the token
                response = await call(request, timeout=timeout)
            if not self._authorizer.validate_response(response, request, self._peer):
                raise PermissionError(f"{self._peer} has shown no valid token")
            return response

        return called
