"""Access control of the swarm's DHT: it serves members and stores records signed by their owners.

The transport proves the libp2p identity at the other end of a call, and a token names its member.
So a node sends its token only to nodes that do not know it yet, and calls need no signature. A
record passes through many nodes, so it carries its owner's signature.

A run has two keys, and no node stores anything under any other key. Under the peers' key each
device has up to three entries, named by its identity: its record, its token until it expires, and
its network addresses if it can be reached (`auth.swarm.addresses`). Under the group's key it has
one entry while it looks for a group, which says whether it still does. The authority signs tokens,
so any node may pass them on; the later of two counts. Devices sign the other entries. So each node
holds at most four entries of a device, of bounded size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

from cryptography.hazmat.primitives import serialization
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p import PeerID
from hivemind.utils.auth import AuthorizedRequestBase, AuthorizedResponseBase
from hivemind.utils.crypto import RSAPrivateKey
from hivemind.utils.timed_storage import ValueWithExpiration

from auth.clock import swarm_time
from auth.credentials import Credentials
from auth.errors import ManyhandsError
from auth.keys import verify_signature
from auth.swarm.addresses import are_addresses
from auth.tokens import AccessToken

Clock = Callable[[], float]
Kind = Literal["record", "token", "addresses"]  # entries under the group's key are named like records
TRAINING_ROLES = frozenset({"trainer", "auxiliary", "keeper"})
CONTRIBUTING_ROLES = frozenset({"trainer"})  # their gradients have a weight
STATE_READERS = TRAINING_ROLES | {"observer"}
MAX_RECORD_BYTES = 2048  # with its signature; also for addresses
MAX_BEACON_BYTES = 8192  # of the keeper's record
MOST_ENTRY_S = 86_400.0  # to an entry's expiration: above any run's `statistics_expiration_s`; tokens have their own
MOST_SEARCH_S = 300.0  # likewise for a search; exceeds any run's `matchmaking_time_s` by more than clocks differ
MAX_TOKENS = 4096  # that a node remembers before it drops the invalid ones
_TOKEN, _ADDRESSES = b"token ", b"at "
_KNOWN = b"+"
_dumps, _loads = DHTProtocol.serializer.dumps, DHTProtocol.serializer.loads


def peers_key(run: str) -> str:
    """Return the DHT key under which every peer of `run` has its token, record and addresses."""
    return f"{run}_peers"


def gradients_prefix(run: str) -> str:
    """Return the name of `run`'s gradient averager; hivemind's key of its groups contains it."""
    return f"{run}_grad_averager"


def group_key(run: str) -> str:
    """Return hivemind's DHT key under which peers look for a group. It has no bits of a smaller group."""
    return f"{gradients_prefix(run)}.0b"


def key_id(key: str) -> bytes:
    """Return a key's ID in the form that requests and records carry."""
    return bytes(DHTID.generate(source=key).to_bytes())


def record_subkey(peer_id: str) -> bytes:
    """Return the subkey of a device's record; only the device can write it."""
    return bytes(PeerID.from_base58(peer_id).to_bytes())


def token_subkey(peer_id: str) -> bytes:
    """Return the subkey of a device's token."""
    return _TOKEN + record_subkey(peer_id)


def addresses_subkey(peer_id: str) -> bytes:
    """Return the subkey of a device's addresses; only the device can write it."""
    return _ADDRESSES + record_subkey(peer_id)


def owner_of(subkey: object) -> tuple[str, Kind]:
    """Return the owner and the kind of a subkey. Raises `ValueError` if it belongs to no peer."""
    if not isinstance(subkey, bytes):
        raise ValueError("a peer's subkey must be bytes")
    kind: Kind = "record"
    if subkey.startswith(_TOKEN):
        kind, subkey = "token", subkey.removeprefix(_TOKEN)
    elif subkey.startswith(_ADDRESSES):
        kind, subkey = "addresses", subkey.removeprefix(_ADDRESSES)
    return PeerID(subkey).to_base58(), kind


def tokens_in(entries: object) -> Iterator[tuple[str, str]]:
    """Yield the owner (libp2p identity) and the JWT of each token entry under the peers' key."""
    return ((owner, value) for owner, value in read_entries(entries, "token") if isinstance(value, str))


def read_entries(entries: object, wanted: Kind) -> Iterator[tuple[str, Any]]:
    """Yield the owner and the value of each entry of this kind under the peers' key."""
    for subkey, entry in entries.items() if isinstance(entries, dict) else ():
        try:
            owner, kind = owner_of(subkey)
        except ValueError:
            continue
        if kind == wanted and isinstance(entry, ValueWithExpiration):
            yield owner, entry.value


class RecordKey(RSAPrivateKey):
    """The device's RSA key in the form in which hivemind signs requests and records."""

    def __init__(self, private_der: bytes) -> None:
        self._private_key = serialization.load_der_private_key(private_der, password=None)


class MemberTokens:
    """The tokens that a node has seen: for each device the one that expires last."""

    def __init__(self, credentials: Credentials, clock: Clock = swarm_time) -> None:
        self._credentials, self._clock = credentials, clock
        self._seen: dict[str, str] = {}  # libp2p identity -> JWT
        self._own = ""
        self.on_new: Callable[[AccessToken, str], object] = lambda _token, _jwt: None

    def now(self) -> float:
        """Return the time for checks of tokens, in Unix seconds."""
        return self._clock()

    def own_jwt(self) -> str:
        """Return this device's current token, and remember it."""
        jwt = self._credentials.token_jwt
        if jwt != self._own and self.show(jwt) is not None:
            self._own = jwt
        return jwt

    def show(self, jwt: object) -> AccessToken | None:
        """Return the token if it is valid, and remember it."""
        token = self.read(jwt)
        if token is not None:
            self._keep(token, jwt.decode() if isinstance(jwt, bytes) else str(jwt))
        return token

    def read(self, jwt: object) -> AccessToken | None:
        """Return the token if it is valid, unexpired and not revoked, else None."""
        return checked_token(self._credentials, jwt, self._clock())

    def of(self, peer_id: str) -> AccessToken | None:
        """Return the valid token of a device, or None if none is known."""
        return self.read(self._seen.get(peer_id))

    def _keep(self, token: AccessToken, jwt: str) -> None:
        known = self.of(token.peer_id)
        if known is not None and known.expires_at >= token.expires_at:
            return
        self._seen[token.peer_id] = jwt
        self.on_new(token, jwt)
        if len(self._seen) > MAX_TOKENS:
            self._seen = {peer_id: kept for peer_id, kept in self._seen.items() if self.read(kept) is not None}


class SwarmAuthorizer:
    """Sends this node's token to peers that lack it, and refuses peers without a valid one."""

    def __init__(self, tokens: MemberTokens, run: str) -> None:
        self.tokens, self.run = tokens, run
        self._shown: dict[PeerID, str] = {}  # the token of this node that each peer knows

    def sign_request(self, request: AuthorizedRequestBase, service: PeerID) -> bool:
        """Add to a request what its receiver lacks. Return whether that includes this node's token."""
        if self.tokens.of(service.to_base58()) is not None:
            request.auth.service_public_key = _KNOWN
        if self._shown.get(service) == self.tokens.own_jwt():
            return False
        self.introduce(request)
        return True

    def introduce(self, request: AuthorizedRequestBase) -> None:
        """Add this node's token to a request."""
        request.auth.client_access_token.signature = self.tokens.own_jwt().encode()

    def validate_request(self, request: AuthorizedRequestBase, client: PeerID) -> bool:
        """Return whether to serve this peer's request."""
        return self._token_of(client, request.auth.client_access_token.signature) is not None

    def sign_response(self, response: AuthorizedResponseBase, request: AuthorizedRequestBase) -> None:
        """Add this node's token to a response to a peer that does not know it."""
        if not request.auth.service_public_key:
            response.auth.service_access_token.signature = self.tokens.own_jwt().encode()

    def validate_response(
        self, response: AuthorizedResponseBase, request: AuthorizedRequestBase, service: PeerID
    ) -> bool:
        """Return whether to accept a peer's response. Records that the peer now knows this node's token."""
        if request.auth.client_access_token.signature:
            self._shown[service] = request.auth.client_access_token.signature.decode()
        return self._token_of(service, response.auth.service_access_token.signature) is not None

    def _token_of(self, peer: PeerID, shown: bytes) -> AccessToken | None:
        """Return a peer's valid token, either attached or already known."""
        peer_id = peer.to_base58()
        token = self.tokens.show(shown) if shown else self.tokens.of(peer_id)
        return token if token is not None and token.peer_id == peer_id else None


class PeerRecordValidator(RecordValidatorBase):
    """Signs this device's entries under the run's keys; refuses invalid entries and other keys."""

    def __init__(self, credentials: Credentials, tokens: MemberTokens, run: str) -> None:
        self._key = credentials.device_key
        self._own = {_dumps(subkey(self._key.peer_id)) for subkey in (record_subkey, addresses_subkey)}
        self._tokens = tokens
        self._peers_id, self._group_id = key_id(peers_key(run)), key_id(group_key(run))

    def validate(self, record: DHTRecord) -> bool:
        """Return whether an entry is a valid token, or is signed by a device with a valid token."""
        if record.key not in (self._peers_id, self._group_id) or len(record.value) > MAX_BEACON_BYTES:
            return False
        try:
            owner, kind = owner_of(_loads(record.subkey))
            if kind == "token" and record.key == self._peers_id:
                shown = self._tokens.show(_loads(record.value))
                return shown is not None and (shown.peer_id, shown.expires_at) == (owner, record.expiration_time)
            value, signature = _parts(record.value)
            said = _loads(value)  # an unreadable value would spoil each reader's whole search
        except Exception:  # noqa: BLE001 - a fault boundary: the owner may have written anything
            return False
        token = self._tokens.of(owner)
        return (
            token is not None
            and self._may_say(record, kind, said, token.role)
            and verify_signature(token.public_key.encode(), _signed_bytes(record, value), signature)
        )

    def _may_say(self, record: DHTRecord, kind: Kind, said: object, role: str) -> bool:
        """Return whether this role may have such an entry. An expiration time of NaN is refused."""
        left_s = record.expiration_time - self._tokens.now()
        if record.key == self._group_id:
            looks_or_not = kind == "record" and isinstance(said, bool)
            return looks_or_not and role in TRAINING_ROLES and left_s <= MOST_SEARCH_S
        most_bytes = MAX_BEACON_BYTES if kind == "record" and role == "keeper" else MAX_RECORD_BYTES
        is_sound = kind == "record" or are_addresses(said)
        return is_sound and len(record.value) <= most_bytes and left_s <= MOST_ENTRY_S

    def sign_value(self, record: DHTRecord) -> bytes:
        """Return the value with this device's signature, if the entry is its own."""
        if record.key not in (self._peers_id, self._group_id) or record.subkey not in self._own:
            return record.value
        self._tokens.own_jwt()  # remembered, so that this node can validate its own entry
        return bytes(_dumps([record.value, self._key.sign(_signed_bytes(record, record.value))]))

    def strip_value(self, record: DHTRecord) -> bytes:
        """Return the value of a valid entry without its signature."""
        return record.value if owner_of(_loads(record.subkey))[1] == "token" else _parts(record.value)[0]


def _parts(signed: bytes) -> tuple[bytes, bytes]:
    """Split a signed value from its signature; raises `ValueError` or `TypeError`."""
    value, signature = _loads(signed)
    if not isinstance(value, bytes) or not isinstance(signature, bytes):
        raise TypeError("a signed value and its signature are bytes")
    return value, signature


def _signed_bytes(record: DHTRecord, value: bytes) -> bytes:
    return bytes(_dumps([record.key, record.subkey, value, record.expiration_time]))


def checked_token(credentials: Credentials, jwt: object, now: float) -> AccessToken | None:
    """Verify an untrusted JWT. Return its token, or None if it is invalid, expired or revoked."""
    try:
        text = jwt.decode("ascii") if isinstance(jwt, bytes) else jwt
        return credentials.check(text, now) if isinstance(text, str) else None
    except (ManyhandsError, UnicodeDecodeError):
        return None
