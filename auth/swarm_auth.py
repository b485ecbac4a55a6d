"""The swarm's side of membership: who may use the DHT, join averaging groups and download state.

hivemind authorizes DHT requests only. Here every peer publishes one signed record in the DHT, which carries its
access token; records without a valid token are refused by every node, and the averaging RPCs are accepted from, and
tensors sent to, those libp2p identities only that a valid, non-revoked token names. (The transport proves a remote's
identity.)

Only the worker and the keeper import this module: hivemind pulls in torch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Collection
from dataclasses import dataclass
from typing import (  # noqa: UP035 - hivemind reads the annotations of rpc_ methods and knows only typing's
    Any,
    AsyncIterator,
    TypeVar,
)

from cryptography.hazmat.primitives import serialization
from hivemind.averaging.allreduce import AllreduceException
from hivemind.averaging.group_info import GroupInfo
from hivemind.dht import DHT
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2, dht_pb2
from hivemind.proto.auth_pb2 import AccessToken as WireToken
from hivemind.utils.auth import AuthorizedRequestBase, TokenAuthorizerBase
from hivemind.utils.crypto import RSAPrivateKey
from hivemind.utils.timed_storage import ValueWithExpiration

from auth.credentials import Credentials
from auth.errors import ManyhandsError
from auth.tokens import AccessToken

Clock = Callable[[], float]
Message = TypeVar("Message")
logger = logging.getLogger(__name__)
TRAINING_ROLES = frozenset({"trainer", "auxiliary", "keeper"})
CONTRIBUTING_ROLES = frozenset({"trainer"})  # whose gradients have a weight
STATE_READERS = TRAINING_ROLES | {"observer"}
MAX_RECORD_BYTES = 16_384


def peers_key(run: str) -> str:
    """The DHT key under which every peer of `run` keeps its record."""
    return f"{run}_peers"


def peers_key_id(run: str) -> bytes:
    """The same key as requests and records carry it."""
    return bytes(DHTID.generate(source=peers_key(run)).to_bytes())


class RecordKey(RSAPrivateKey):
    """The device's RSA key in the form that hivemind signs requests and records with."""

    def __init__(self, private_der: bytes) -> None:
        self._private_key = serialization.load_der_private_key(private_der, password=None)


class SwarmAuthorizer(TokenAuthorizerBase):
    """Signs this node's DHT requests with its token and key; refuses requests and answers without a valid token."""

    def __init__(self, credentials: Credentials, key: RecordKey, clock: Clock = time.time) -> None:
        super().__init__(key)
        self._credentials = credentials
        self._clock = clock

    async def get_token(self) -> WireToken:
        jwt = self._credentials.token_jwt
        return WireToken(public_key=self.local_public_key.to_bytes(), signature=jwt.encode())

    def is_token_valid(self, access_token: WireToken) -> bool:
        token = checked_token(self._credentials, access_token.signature, self._clock())
        return token is not None and token.public_key.encode() == access_token.public_key

    async def validate_request(self, request: AuthorizedRequestBase) -> bool:
        """Who only reads may store its own record, by which others know it, and nothing else (see the validator)."""
        if isinstance(request, dht_pb2.StoreRequest):
            token = checked_token(self._credentials, request.auth.client_access_token.signature, self._clock())
            own = peers_key_id(self._credentials.run)
            if token is not None and token.role not in TRAINING_ROLES and any(key != own for key in request.keys):
                return False
        return bool(await super().validate_request(request))

    def does_token_need_refreshing(self, access_token: WireToken) -> bool:
        return access_token.signature != self._credentials.token_jwt.encode()


class PeerRecordValidator(RecordValidatorBase):
    """Refuses records under the run's peers key that are not signed by the key of the token they carry.

    The signature itself is hivemind's `RSASignatureValidator`'s work; this one ties the signing key to a token.
    """

    def __init__(self, credentials: Credentials, run: str, clock: Clock = time.time) -> None:
        self._credentials = credentials
        self._key_id = peers_key_id(run)
        self._clock = clock

    def validate(self, record: DHTRecord) -> bool:
        if record.key != self._key_id:
            return True
        if len(record.value) > MAX_RECORD_BYTES:
            return False
        try:
            owner = DHTProtocol.serializer.loads(record.subkey)
            value = DHTProtocol.serializer.loads(record.value)
            token = checked_token(self._credentials, value["token"], self._clock())
        except (ValueError, TypeError, KeyError, AssertionError):  # the last: hivemind's, of values with odd times
            return False
        return token is not None and owner == owner_subkey(token.public_key.encode())


def owner_subkey(public_key: bytes) -> bytes:
    """The DHT subkey that only the holder of `public_key` (OpenSSH format) can write."""
    return RSASignatureValidator.PUBLIC_KEY_FORMAT.replace(b"_key_", public_key)


def checked_token(credentials: Credentials, jwt: object, now: float) -> AccessToken | None:
    """The token if `jwt`, whatever the network made of it, is a valid, unexpired and not revoked one; else None."""
    try:
        text = jwt.decode("ascii") if isinstance(jwt, bytes) else jwt
        return credentials.check(text, now) if isinstance(text, str) else None
    except (ManyhandsError, UnicodeDecodeError):
        return None


class PeerDirectory:
    """Which libp2p identities hold valid tokens, as the DHT's peer records say; read again when a stranger knocks."""

    def __init__(
        self, dht: DHT, credentials: Credentials, run: str, clock: Clock = time.time, timer: Clock = time.monotonic
    ) -> None:
        """`clock` tells whether a token has expired, `timer` how long ago the last look-up began."""
        self._dht = dht
        self._credentials = credentials
        self._key = peers_key(run)
        self._clock, self._timer = clock, timer
        self._tokens: dict[str, str] = {}  # libp2p peer ID -> JWT
        self._began_at = float("-inf")
        self._newest: asyncio.Task[None] | None = None  # the look-up that began last
        self._next: asyncio.Task[None] | None = None  # the one that waits for the period's end

    REFRESH_PERIOD_S = 0.5  # a flood of strangers costs at most this many look-ups

    def token_of(self, peer_id: PeerID) -> AccessToken | None:
        """The peer's valid token as far as known now."""
        jwt = self._tokens.get(peer_id.to_base58())
        return None if jwt is None else checked_token(self._credentials, jwt, self._clock())

    async def admits(self, peer_id: PeerID, roles: Collection[str]) -> bool:
        """Whether the peer holds a valid token with one of these roles; asks the DHT for one that is not known yet."""
        return bool(await self.admitted([peer_id], roles))

    async def admitted(self, peers: Collection[PeerID], roles: Collection[str]) -> set[PeerID]:
        """Which of these peers hold a valid token with one of these roles; one look-up for all who are not known."""
        found = self._known(peers, roles)
        if len(found) < len(set(peers)):  # of those who are known, some may have come back in another role
            await self.refresh()
            found = self._known(peers, roles)
        return found

    def _known(self, peers: Collection[PeerID], roles: Collection[str]) -> set[PeerID]:
        return {peer for peer in peers if (token := self.token_of(peer)) is not None and token.role in roles}

    async def with_role(self, roles: Collection[str]) -> list[PeerID]:
        """Every peer known to hold a valid token with one of these roles."""
        await self.refresh()
        return list(self._known([PeerID.from_base58(peer_id) for peer_id in self._tokens], roles))

    async def refresh(self) -> None:
        """Read the peers' records again; all who ask before a look-up begins share it, and raise what it raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._look_up(self._newest))
        await asyncio.shield(self._next)  # a caller that is cancelled leaves it to the others

    async def _look_up(self, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            await asyncio.wait({previous})
            previous = None  # else a look-up that fails keeps the one before, and that all those before it
        await asyncio.sleep(max(0.0, self._began_at + self.REFRESH_PERIOD_S - self._timer()))
        self._newest, self._next = self._next, None
        self._began_at = self._timer()
        await self._read_records()

    async def _read_records(self) -> None:
        found = await self._dht.get(self._key, latest=True, return_future=True)
        records = found.value if found is not None and isinstance(found.value, dict) else {}
        now = self._clock()
        for record in records.values():
            if isinstance(record, ValueWithExpiration) and isinstance(record.value, dict):
                jwt = record.value.get("token")
                token = checked_token(self._credentials, jwt, now)
                if token is not None and isinstance(jwt, str):
                    self._tokens[token.peer_id] = jwt
        self._tokens = {peer: jwt for peer, jwt in self._tokens.items() if checked_token(self._credentials, jwt, now)}


async def while_admitted(
    directory: PeerDirectory, peer_id: PeerID, roles: Collection[str], messages: AsyncIterator[Message]
) -> AsyncIterator[Message]:
    """The messages as long as the peer is admitted: a call that began before a revocation ends with it."""
    try:
        async for message in messages:
            if not await directory.admits(peer_id, roles):
                return
            yield message
    finally:
        if isinstance(messages, AsyncGenerator):
            await messages.aclose()


@dataclass(frozen=True)
class SwarmAccess:
    """What an averager needs to check others; goes along into its forked process."""

    credentials: Credentials
    run: str
    donor_roles: frozenset[str]  # whose state this peer downloads
    clock: Clock = time.time


class AuthorizedAverager:
    """Mixin before a hivemind averager: its RPCs serve, and its groups contain, token-holding peers only."""

    access: SwarmAccess
    _directory: PeerDirectory | None = None

    @property
    def directory(self: Any) -> PeerDirectory:
        """The directory, made at first use, which is in the averager's own process."""
        if self._directory is None:
            self._directory = PeerDirectory(self.dht, self.access.credentials, self.access.run, self.access.clock)
        return self._directory

    async def rpc_join_group(
        self, request: averaging_pb2.JoinRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.MessageFromLeader]:
        """Let only members ask to join a group."""
        if not await self.directory.admits(context.remote_id, TRAINING_ROLES):
            yield averaging_pb2.MessageFromLeader(code=averaging_pb2.PROTOCOL_VIOLATION)
            return
        answers = super().rpc_join_group(request, context)  # type: ignore[misc]
        async for message in while_admitted(self.directory, context.remote_id, TRAINING_ROLES, answers):
            yield message

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """Reduce parts of members only."""
        if not await self.directory.admits(context.remote_id, TRAINING_ROLES):
            yield averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
            return
        parts = while_admitted(self.directory, context.remote_id, TRAINING_ROLES, stream)
        async for message in super().rpc_aggregate_part(parts, context):  # type: ignore[misc]
            yield message

    async def rpc_download_state(
        self, request: averaging_pb2.DownloadRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.DownloadData]:
        """Give state to members only (an observer may read)."""
        if not await self.directory.admits(context.remote_id, STATE_READERS):  # before the state is copied for anybody
            return
        state = super().rpc_download_state(request, context)  # type: ignore[misc]
        async for message in while_admitted(self.directory, context.remote_id, STATE_READERS, state):
            yield message

    async def may_contribute(self, peer: PeerID) -> bool:
        """Whether a peer's gradients may have a weight; who has none and claims one is named in the log."""
        if await self.directory.admits(peer, CONTRIBUTING_ROLES):
            return True
        token = self.directory.token_of(peer)
        who = "no member" if token is None else f"{token.member} (device {token.device_id}, {token.role})"
        logger.warning("suspicious: %s, peer %s, sent gradients with a weight: banned from the round", who, peer)
        return False

    async def _aggregate_with_group(self, group_info: GroupInfo, *args: Any, **kwargs: Any) -> Any:
        """Send tensors to members only: a group with a stranger in it is given up."""
        strangers = set(group_info.peer_ids) - await self.directory.admitted(group_info.peer_ids, TRAINING_ROLES)
        if strangers:
            size = len(group_info.peer_ids)
            raise AllreduceException(f"{len(strangers)} of the group's {size} peers hold no valid token")
        return await super()._aggregate_with_group(group_info, *args, **kwargs)  # type: ignore[misc]
