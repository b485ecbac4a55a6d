"""Whom the swarm's DHT serves, and what it stores: calls of members only, and records that their owners have signed.

The transport proves which libp2p identity calls, or is called; a token says whose that is. So a node sends its token
only to those that do not know it yet, and no call is signed. A record passes through many nodes, and so carries its
owner's signature.

A run has two keys, and no node stores anything under another one. Under the peers' key each device has three entries,
named by its identity: its record, its token until that expires, and the network addresses where others reach it, if
they do (`auth.swarm.addresses`). Under the group's key it has one while it looks for a group: whether it still does.
Tokens are signed by the authority: any node may pass on those that it was shown, and of two the later one counts. The
others are signed by their devices. So each node holds at most four entries of a device, of bounded size.
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
Kind = Literal["record", "token", "addresses"]  # under the group's key an entry is named as a record is
TRAINING_ROLES = frozenset({"trainer", "auxiliary", "keeper"})
CONTRIBUTING_ROLES = frozenset({"trainer"})  # whose gradients have a weight
STATE_READERS = TRAINING_ROLES | {"observer"}
MAX_RECORD_BYTES = 2048  # with its signature; of addresses, too
MAX_BEACON_BYTES = 8192  # of the keeper's record
MOST_ENTRY_S = 86_400.0  # of an entry, from now: above any run's `statistics_expiration_s`; tokens have their own end
MOST_SEARCH_S = 300.0  # likewise, above any run's `matchmaking_time_s` by more than clocks differ
MAX_TOKENS = 4096  # that a node remembers, before it forgets those that are no longer valid
_TOKEN, _ADDRESSES = b"token ", b"at "
_KNOWN = b"+"
_dumps, _loads = DHTProtocol.serializer.dumps, DHTProtocol.serializer.loads


def peers_key(run: str) -> str:
    """The DHT key under which every peer of `run` has its token and its record."""
    return f"{run}_peers"


def gradients_prefix(run: str) -> str:
    """The name of `run`'s averager of gradients, by which hivemind makes the key of its groups."""
    return f"{run}_grad_averager"


def group_key(run: str) -> str:
    """The DHT key under which peers declare that they look for a group: hivemind's, with no bits of a smaller group."""
    return f"{gradients_prefix(run)}.0b"


def key_id(key: str) -> bytes:
    """Return the ID of a key, as requests and records carry it."""
    return bytes(DHTID.generate(source=key).to_bytes())


def record_subkey(peer_id: str) -> bytes:
    """The subkey of a device's record; only the device can write it."""
    return bytes(PeerID.from_base58(peer_id).to_bytes())


def token_subkey(peer_id: str) -> bytes:
    """The subkey of a device's token."""
    return _TOKEN + record_subkey(peer_id)


def addresses_subkey(peer_id: str) -> bytes:
    """The subkey of a device's addresses; only the device can write it."""
    return _ADDRESSES + record_subkey(peer_id)


def owner_of(subkey: object) -> tuple[str, Kind]:
    """Return whose subkey this is, and of what; raises `ValueError` if it is nobody's."""
    if not isinstance(subkey, bytes):
        raise ValueError("a peer's subkey must be bytes")
    kind: Kind = "record"
    if subkey.startswith(_TOKEN):
        kind, subkey = "token", subkey.removeprefix(_TOKEN)
    elif subkey.startswith(_ADDRESSES):
        kind, subkey = "addresses", subkey.removeprefix(_ADDRESSES)
    return PeerID(subkey).to_base58(), kind


def tokens_in(entries: object) -> Iterator[tuple[str, str]]:
    """The tokens among the entries under the peers key, as strings, with the libp2p identity that each is under."""
    return ((owner, value) for owner, value in read_entries(entries, "token") if isinstance(value, str))


def read_entries(entries: object, wanted: Kind) -> Iterator[tuple[str, Any]]:
    """The owner and the value of each entry of this kind under the peers key."""
    for subkey, entry in entries.items() if isinstance(entries, dict) else ():
        try:
            owner, kind = owner_of(subkey)
        except ValueError:
            continue
        if kind == wanted and isinstance(entry, ValueWithExpiration):
            yield owner, entry.value


class RecordKey(RSAPrivateKey):
    """The device's RSA key in the form that hivemind signs requests and records with."""

    def __init__(self, private_der: bytes) -> None:
        self._private_key = serialization.load_der_private_key(private_der, password=None)


class MemberTokens:
    """The tokens that a node has seen, of each device the one that expires last."""

    def __init__(self, credentials: Credentials, clock: Clock = swarm_time) -> None:
        self._credentials, self._clock = credentials, clock
        self._seen: dict[str, str] = {}  # libp2p identity -> JWT
        self._own = ""
        self.on_new: Callable[[AccessToken, str], object] = lambda _token, _jwt: None

    def now(self) -> float:
        """Return the time by which tokens are checked, in Unix seconds."""
        return self._clock()

    def own_jwt(self) -> str:
        """Return this device's own token, as it is now."""
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
        """Return the token if it is a valid, unexpired and not revoked one."""
        return checked_token(self._credentials, jwt, self._clock())

    def of(self, peer_id: str) -> AccessToken | None:
        """Return the valid token of this device that was seen last; None if there is none."""
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
    """Shows this node's token where it is not known, and refuses calls and answers of peers without a valid one."""

    def __init__(self, tokens: MemberTokens, run: str) -> None:
        self.tokens, self.run = tokens, run
        self._shown: dict[PeerID, str] = {}  # the token by which a node knows this one

    def sign_request(self, request: AuthorizedRequestBase, service: PeerID) -> bool:
        """Put into a request what the service has to know; return whether this node's token had to be."""
        if self.tokens.of(service.to_base58()) is not None:
            request.auth.service_public_key = _KNOWN
        if self._shown.get(service) == self.tokens.own_jwt():
            return False
        self.introduce(request)
        return True

    def introduce(self, request: AuthorizedRequestBase) -> None:
        """Put this node's token into a request."""
        request.auth.client_access_token.signature = self.tokens.own_jwt().encode()

    def validate_request(self, request: AuthorizedRequestBase, client: PeerID) -> bool:
        """Return whether to serve this peer's request."""
        return self._token_of(client, request.auth.client_access_token.signature) is not None

    def sign_response(self, response: AuthorizedResponseBase, request: AuthorizedRequestBase) -> None:
        """Put this node's token into an answer to a peer that does not know it."""
        if not request.auth.service_public_key:
            response.auth.service_access_token.signature = self.tokens.own_jwt().encode()

    def validate_response(
        self, response: AuthorizedResponseBase, request: AuthorizedRequestBase, service: PeerID
    ) -> bool:
        """Return whether to accept this peer's response, and remember that the peer has this node's token."""
        if request.auth.client_access_token.signature:
            self._shown[service] = request.auth.client_access_token.signature.decode()
        return self._token_of(service, response.auth.service_access_token.signature) is not None

    def _token_of(self, peer: PeerID, shown: bytes) -> AccessToken | None:
        """The token of a peer, which it shows or which is known."""
        peer_id = peer.to_base58()
        token = self.tokens.show(shown) if shown else self.tokens.of(peer_id)
        return token if token is not None and token.peer_id == peer_id else None


class PeerRecordValidator(RecordValidatorBase):
    """Signs this device's entries under the run's keys; refuses entries that are not valid, or under other keys."""

    def __init__(self, credentials: Credentials, tokens: MemberTokens, run: str) -> None:
        self._key = credentials.device_key
        self._own = {_dumps(subkey(self._key.peer_id)) for subkey in (record_subkey, addresses_subkey)}
        self._tokens = tokens
        self._peers_id, self._group_id = key_id(peers_key(run)), key_id(group_key(run))

    def validate(self, record: DHTRecord) -> bool:
        """Return whether an entry is a valid token, or signed by its device, whose valid token is known."""
        if record.key not in (self._peers_id, self._group_id) or len(record.value) > MAX_BEACON_BYTES:
            return False
        try:
            owner, kind = owner_of(_loads(record.subkey))
            if kind == "token" and record.key == self._peers_id:
                shown = self._tokens.show(_loads(record.value))
                return shown is not None and (shown.peer_id, shown.expires_at) == (owner, record.expiration_time)
            value, signature = _parts(record.value)
            said = _loads(value)  # what cannot be read would spoil every reader's whole look
        except Exception:  # noqa: BLE001 - a fault boundary: it may hold whatever its owner wrote
            return False
        token = self._tokens.of(owner)
        return (
            token is not None
            and self._may_say(record, kind, said, token.role)
            and verify_signature(token.public_key.encode(), _signed_bytes(record, value), signature)
        )

    def _may_say(self, record: DHTRecord, kind: Kind, said: object, role: str) -> bool:
        """Return whether a device of this role may have this entry; a time that is no number is refused."""
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
        self._tokens.own_jwt()  # without it the entry would be nobody's here
        return bytes(_dumps([record.value, self._key.sign(_signed_bytes(record, record.value))]))

    def strip_value(self, record: DHTRecord) -> bytes:
        """Return the value of a valid entry without its signature."""
        return record.value if owner_of(_loads(record.subkey))[1] == "token" else _parts(record.value)[0]


def _parts(signed: bytes) -> tuple[bytes, bytes]:
    """A signed value and its signature; raises `ValueError` or `TypeError`."""
    value, signature = _loads(signed)
    if not isinstance(value, bytes) or not isinstance(signature, bytes):
        raise TypeError("a signed value and its signature are bytes")
    return value, signature


def _signed_bytes(record: DHTRecord, value: bytes) -> bytes:
    return bytes(_dumps([record.key, record.subkey, value, record.expiration_time]))


def checked_token(credentials: Credentials, jwt: object, now: float) -> AccessToken | None:
    """The token if `jwt`, whatever the network made of it, is a valid, unexpired and not revoked one; else None."""
    try:
        text = jwt.decode("ascii") if isinstance(jwt, bytes) else jwt
        return credentials.check(text, now) if isinstance(text, str) else None
    except (ManyhandsError, UnicodeDecodeError):
        return None
