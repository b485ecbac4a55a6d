"""Access control for the swarm's DHT: requests from members only, records signed by their owners.

The transport authenticates the remote peer's libp2p identity, and a token maps that identity to a
member. Requests are therefore not signed, and a node sends its token only to nodes that do not have
the token yet. Records pass through many nodes, so each has its owner's signature.

A run uses one DHT key, the peers' key; nodes store nothing under other keys. Each device has up to
three entries: its record, its token (until the token expires), and its network addresses if it is
reachable (`auth.swarm.addresses`). Tokens are signed by the authority, so any node may forward
them; of two tokens, nodes keep the one that expires later. Devices sign the other entries with
their receipt key, whose public key is in the token: its signatures have a quarter of the size of
the RSA key's. A node thus stores at most three entries of bounded size per device.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from functools import lru_cache
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
from auth.statements import is_signed_by
from auth.swarm.addresses import are_addresses
from auth.tokens import AccessToken

Clock = Callable[[], float]
Kind = Literal["record", "token", "addresses"]
TRAINING_ROLES = frozenset({"trainer", "auxiliary", "keeper"})
CONTRIBUTING_ROLES = frozenset({"trainer"})  # roles whose gradients have a weight in the average
STATE_READERS = TRAINING_ROLES | {"observer"}
MAX_RECORD_BYTES = 2048  # size limit for a record or a list of addresses, including the signature
MAX_BEACON_BYTES = 8192  # size limit for the keeper's record
MOST_ENTRY_S = 86_400.0  # maximum lifetime of records and addresses; above any `statistics_expiration_s`
MAX_PEER_ID_BYTES = 64
MOST_CACHED = 4096  # maximum number of peer IDs whose base58 form is cached
MAX_TOKENS = 4096  # number of stored tokens above which a node drops invalid tokens
_TOKEN, _ADDRESSES = b"token ", b"at "
_KNOWN = b"+"
_dumps, _loads = DHTProtocol.serializer.dumps, DHTProtocol.serializer.loads


def peers_key(run: str) -> str:
    """Return the DHT key of the tokens, records and addresses of all peers of `run`."""
    return f"{run}_peers"


def key_id(key: str) -> bytes:
    """Return the ID of a DHT key, which requests and records contain."""
    return bytes(DHTID.generate(source=key).to_bytes())


def record_subkey(peer_id: str) -> bytes:
    """Return the subkey of a device's record, which only the device can write."""
    return bytes(PeerID.from_base58(peer_id).to_bytes())


def token_subkey(peer_id: str) -> bytes:
    """Return the subkey of a device's token."""
    return _TOKEN + record_subkey(peer_id)


def addresses_subkey(peer_id: str) -> bytes:
    """Return the subkey of a device's addresses, which only the device can write."""
    return _ADDRESSES + record_subkey(peer_id)


def owner_of(subkey: object) -> tuple[str, Kind]:
    """Decode a subkey into peer ID and kind of entry. Raises `ValueError` if it is not bytes, or too long."""
    if not isinstance(subkey, bytes):
        raise ValueError("a peer's subkey must be bytes")
    kind: Kind = "record"
    if subkey.startswith(_TOKEN):
        kind, subkey = "token", subkey.removeprefix(_TOKEN)
    elif subkey.startswith(_ADDRESSES):
        kind, subkey = "addresses", subkey.removeprefix(_ADDRESSES)
    if len(subkey) > MAX_PEER_ID_BYTES:
        raise ValueError("a peer's subkey is too long")
    return _base58(subkey), kind


@lru_cache(maxsize=MOST_CACHED)
def _base58(peer_id: bytes) -> str:
    return str(PeerID(peer_id).to_base58())


def tokens_in(entries: object) -> Iterator[tuple[str, str]]:
    """Yield the owner (libp2p peer ID) and the JWT of each token under the peers' key."""
    return ((owner, value) for owner, value in read_entries(entries, "token") if isinstance(value, str))


def read_entries(entries: object, wanted: Kind) -> Iterator[tuple[str, Any]]:
    """Yield the owner and the value of each entry of the given kind under the peers' key."""
    for subkey, entry in entries.items() if isinstance(entries, dict) else ():
        try:
            owner, kind = owner_of(subkey)
        except ValueError:
            continue
        if kind == wanted and isinstance(entry, ValueWithExpiration):
            yield owner, entry.value


class RecordKey(RSAPrivateKey):
    """The device's RSA key in the form that hivemind uses to sign requests and records."""

    def __init__(self, private_der: bytes) -> None:
        self._private_key = serialization.load_der_private_key(private_der, password=None)


class MemberTokens:
    """The tokens that a node has received: for each device, the token that expires last."""

    def __init__(self, credentials: Credentials, clock: Clock = swarm_time) -> None:
        self._credentials, self._clock = credentials, clock
        self._seen: dict[str, str] = {}  # libp2p peer ID -> JWT
        self._own = ""
        self.on_new: Callable[[AccessToken, str], object] = lambda _token, _jwt: None

    def now(self) -> float:
        """Return the current Unix time for checking tokens."""
        return self._clock()

    def own_jwt(self) -> str:
        """Return this device's current token, and store it."""
        jwt = self._credentials.token_jwt
        if jwt != self._own and self.show(jwt) is not None:
            self._own = jwt
        return jwt

    def show(self, jwt: object) -> AccessToken | None:
        """Verify a token, store it and return it; return None if the token is invalid."""
        token = self.read(jwt)
        if token is not None:
            self._keep(token, jwt.decode() if isinstance(jwt, bytes) else str(jwt))
        return token

    def read(self, jwt: object) -> AccessToken | None:
        """Check a JWT and return its token, or None if it is invalid, expired or revoked."""
        return checked_token(self._credentials, jwt, self._clock())

    def of(self, peer_id: str) -> AccessToken | None:
        """Return a device's stored token, or None if there is no valid token."""
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
    """An authorizer that shows this node's token to peers and rejects peers without a valid token."""

    def __init__(self, tokens: MemberTokens, run: str) -> None:
        self.tokens, self.run = tokens, run
        self._shown: dict[PeerID, str] = {}  # this node's token, as last sent to each peer

    def sign_request(self, request: AuthorizedRequestBase, service: PeerID) -> bool:
        """Add this node's token to a request unless the peer already has it. Return True if added."""
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
        """Return whether to serve a request by this peer."""
        return self._token_of(client, request.auth.client_access_token.signature) is not None

    def sign_response(self, response: AuthorizedResponseBase, request: AuthorizedRequestBase) -> None:
        """Add this node's token to the response if the client does not have the token yet."""
        if not request.auth.service_public_key:
            response.auth.service_access_token.signature = self.tokens.own_jwt().encode()

    def validate_response(
        self, response: AuthorizedResponseBase, request: AuthorizedRequestBase, service: PeerID
    ) -> bool:
        """Return whether to accept a response; record that the peer now has this node's token."""
        if request.auth.client_access_token.signature:
            self._shown[service] = request.auth.client_access_token.signature.decode()
        return self._token_of(service, response.auth.service_access_token.signature) is not None

    def _token_of(self, peer: PeerID, shown: bytes) -> AccessToken | None:
        """Return a peer's valid token: the attached token, else the stored token, else None."""
        peer_id = peer.to_base58()
        token = self.tokens.show(shown) if shown else self.tokens.of(peer_id)
        return token if token is not None and token.peer_id == peer_id else None


class PeerRecordValidator(RecordValidatorBase):
    """A validator that signs this device's entries, and rejects invalid entries and foreign keys."""

    def __init__(self, credentials: Credentials, tokens: MemberTokens, run: str) -> None:
        peer_id = credentials.device_key.peer_id
        self._key = credentials.device_key.receipt_key(run).private_key
        self._own = {_dumps(subkey(peer_id)) for subkey in (record_subkey, addresses_subkey)}
        self._tokens = tokens
        self._peers_id = key_id(peers_key(run))

    def validate(self, record: DHTRecord) -> bool:
        """Return whether an entry is a valid token or is signed by a device with a valid token."""
        if record.key != self._peers_id or len(record.value) > MAX_BEACON_BYTES:
            return False
        try:
            owner, kind = owner_of(_loads(record.subkey))
            if kind == "token":
                shown = self._tokens.show(_loads(record.value))
                return shown is not None and (shown.peer_id, shown.expires_at) == (owner, record.expiration_time)
            value, signature = _parts(record.value)
            said = _loads(value)  # a single unreadable value would make every reader's search fail
        except Exception:  # noqa: BLE001 - fault boundary: the owner may have written anything
            return False
        token = self._tokens.of(owner)
        return (
            token is not None
            and self._may_say(record, kind, said, token.role)
            and is_signed_by(token.receipt_key, base64.b64encode(signature).decode())(_signed_bytes(record, value))
        )

    def _may_say(self, record: DHTRecord, kind: Kind, said: object, role: str) -> bool:
        """Return whether a device in this role may store the entry; reject an expiration time of NaN."""
        left_s = record.expiration_time - self._tokens.now()
        most_bytes = MAX_BEACON_BYTES if kind == "record" and role == "keeper" else MAX_RECORD_BYTES
        is_sound = kind == "record" or are_addresses(said)
        return is_sound and len(record.value) <= most_bytes and left_s <= MOST_ENTRY_S

    def sign_value(self, record: DHTRecord) -> bytes:
        """Return the value, signed with this device's key if the device owns the entry."""
        if record.key != self._peers_id or record.subkey not in self._own:
            return record.value
        self._tokens.own_jwt()  # stored, because this node also validates its own entry
        return bytes(_dumps([record.value, self._key.sign(_signed_bytes(record, record.value))]))

    def strip_value(self, record: DHTRecord) -> bytes:
        """Return the value of a valid entry without its signature."""
        return record.value if owner_of(_loads(record.subkey))[1] == "token" else _parts(record.value)[0]


def _parts(signed: bytes) -> tuple[bytes, bytes]:
    """Split a signed value into value and signature. Raises `ValueError` or `TypeError`."""
    value, signature = _loads(signed)
    if not isinstance(value, bytes) or not isinstance(signature, bytes):
        raise TypeError("a signed value and its signature are bytes")
    return value, signature


def _signed_bytes(record: DHTRecord, value: bytes) -> bytes:
    return bytes(_dumps([record.key, record.subkey, value, record.expiration_time]))


def checked_token(credentials: Credentials, jwt: object, now: float) -> AccessToken | None:
    """Return the token in an untrusted JWT, or None if it is invalid, expired or revoked."""
    try:
        text = jwt.decode("ascii") if isinstance(jwt, bytes) else jwt
        return credentials.check(text, now) if isinstance(text, str) else None
    except (ManyhandsError, UnicodeDecodeError):
        return None
