"""Signed requests and records of the swarm: each carries an access token and a signature by its device's key."""

from __future__ import annotations

import time
from collections.abc import Callable

from cryptography.hazmat.primitives import serialization
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.proto import dht_pb2
from hivemind.proto.auth_pb2 import AccessToken as WireToken
from hivemind.utils.auth import AuthorizedRequestBase, TokenAuthorizerBase
from hivemind.utils.crypto import RSAPrivateKey

from auth.credentials import Credentials
from auth.errors import ManyhandsError
from auth.tokens import AccessToken

Clock = Callable[[], float]
TRAINING_ROLES = frozenset({"trainer", "auxiliary", "keeper"})
CONTRIBUTING_ROLES = frozenset({"trainer"})  # whose gradients have a weight
STATE_READERS = TRAINING_ROLES | {"observer"}
MAX_RECORD_BYTES = 16_384


def peers_key(run: str) -> str:
    """The DHT key under which every peer of `run` keeps its record."""
    return f"{run}_peers"


def peers_key_id(run: str) -> bytes:
    """Return the ID of the peers' key, as requests and records carry it."""
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
        """A peer that only reads may store its own record, by which others know it, and nothing else."""
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
