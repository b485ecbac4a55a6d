"""Access tokens, revocation lists and handovers, signed by a run's authority; its valid keys.

All three are JWTs signed with Ed25519. Their `typ` headers differ, so one kind cannot be used as
another (RFC 8725, section 3.11). A token is bound to a device's key and libp2p identity, so it can
be public: a token is useless without the key.

An authority key is replaced by a *handover*: the old key's signature over the new key. Each JWT
signed by the new key has the handover in its header, so a peer that knows only the old key can
verify it offline. The old key's signatures remain valid for a limited time. `Authorities` stores
both keys in one small file, so readers never see a partial change.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from joserfc import jws
from joserfc.errors import JoseError, UnsupportedAlgorithmError
from joserfc.jwk import OKPKey
from joserfc.registry import HeaderParameter
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from auth.errors import ExpiredTokenError, TokenError
from auth.keys import AuthorityKey

Role = Literal["trainer", "auxiliary", "observer", "keeper", "admin"]
TOKEN_TYPE = "manyhands-access+jwt"  # noqa: S105 # a media type, not a password
REVOCATIONS_TYPE = "manyhands-revocations+jwt"
HANDOVER_TYPE = "manyhands-handover-v1+jwt"
MAX_HANDOVER_CHARS = 1024
MAX_TOKEN_CHARS = 4096
MAX_REVOCATIONS_CHARS = 4_000_000
MAX_CLOCK_SKEW_S = 60.0  # tolerance for tokens that seem to be issued in the future
_ALGORITHM = "EdDSA"
_Text = Annotated[str, Field(min_length=1, max_length=1024)]
_Time = Annotated[float, Field(ge=0, lt=1e11, allow_inf_nan=False)]
_HexKey = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
CACHED_TOKENS = 4096
CACHED_KEYS = 16
KEY_BYTES = 32
_BOTH = struct.Struct(f">{KEY_BYTES}s{KEY_BYTES}sd")


@dataclass(frozen=True)
class AccessToken:
    """A permit for a member's device, identified by its key, to act in one role until expiration."""

    member: str
    device_id: str
    peer_id: str  # libp2p peer ID, base58
    public_key: str  # RSA key in OpenSSH format; signs DHT records
    role: Role
    run: str
    issued_at: float  # Unix time in seconds
    expires_at: float
    receipt_key: str  # Ed25519, 64 hex digits; the device's name in receipts; "" in tokens of old versions


@dataclass(frozen=True)
class RevocationList:
    """The revoked libp2p identities of a run, with a serial number that only increases."""

    run: str
    serial: int
    issued_at: float
    peer_ids: frozenset[str]


@dataclass(frozen=True)
class Handover:
    """A transfer of authority over a run to a new key. Keys are Ed25519, 32 raw bytes."""

    run: str
    issued_at: float  # Unix time in seconds
    old_key: bytes  # key that signs the handover
    new_key: bytes
    until: float  # time at which the old key's signatures become invalid


class _Claims(BaseModel):
    """The claims common to all tokens: the run as audience, and the time of issue."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)
    aud: _Text
    iat: _Time


class _TokenClaims(_Claims):
    sub: _Text  # device ID
    exp: _Time
    member: _Text
    peer_id: _Text
    public_key: _Text
    role: Role
    receipt_key: _HexKey | Literal[""] = ""


class _RevocationClaims(_Claims):
    serial: int = Field(ge=0)
    peer_ids: list[_Text]


class _HandoverClaims(_Claims):
    old_key: _HexKey
    new_key: _HexKey
    until: _Time


_AnyClaims = TypeVar("_AnyClaims", bound=_Claims)


def issue_token(authority: AuthorityKey, token: AccessToken) -> str:
    """Return a token as a JWT signed by the authority."""
    claims = asdict(token)
    claims["sub"], claims["aud"] = claims.pop("device_id"), claims.pop("run")
    claims["iat"], claims["exp"] = claims.pop("issued_at"), claims.pop("expires_at")
    return _sign(authority, claims, TOKEN_TYPE)


def read_token(text: str, authority_public: bytes, run: str) -> AccessToken:
    """Return a token after verifying its signature and contents, but not its validity period."""
    signed = _read(text, MAX_TOKEN_CHARS)
    claims = _verify(signed, _signer(text, authority_public, run), run, TOKEN_TYPE, _TokenClaims)
    return AccessToken(
        member=claims.member,
        device_id=claims.sub,
        peer_id=claims.peer_id,
        public_key=claims.public_key,
        role=claims.role,
        run=claims.aud,
        issued_at=claims.iat,
        expires_at=claims.exp,
        receipt_key=claims.receipt_key,
    )


def require_usable(token: AccessToken, now: float) -> None:
    """Raise `ExpiredTokenError` for an expired token, `TokenError` for one issued in the future.

    `now` is in Unix seconds. A token without a receipt key is treated as expired, because no
    receipt could confirm the device's samples.
    """
    if not token.receipt_key:
        raise ExpiredTokenError(f"{token.member}'s access token is of an older version, and names no receipt key.")
    if now >= token.expires_at:
        raise ExpiredTokenError(f"{token.member}'s access token expired at {_utc(token.expires_at)}.")
    if token.issued_at > now + MAX_CLOCK_SKEW_S:
        raise TokenError(
            f"{token.member}'s access token is not valid before {_utc(token.issued_at)}: check this machine's clock."
        )


def issue_revocations(authority: AuthorityKey, revocations: RevocationList) -> str:
    """Return a revocation list as a JWT signed by the authority."""
    claims = {
        "aud": revocations.run,
        "iat": revocations.issued_at,
        "serial": revocations.serial,
        "peer_ids": sorted(revocations.peer_ids),
    }
    return _sign(authority, claims, REVOCATIONS_TYPE)


def verify_revocations(text: str, authority_public: bytes, run: str) -> RevocationList:
    """Verify and return a revocation list; lists never expire. Raises `TokenError`."""
    signed = _read(text, MAX_REVOCATIONS_CHARS)
    claims = _verify(signed, _signer(text, authority_public, run), run, REVOCATIONS_TYPE, _RevocationClaims)
    return RevocationList(claims.aud, claims.serial, claims.iat, frozenset(claims.peer_ids))


def issue_handover(authority: AuthorityKey, handover: Handover) -> str:
    """Return a handover as a JWT signed by the old key."""
    claims = {
        "aud": handover.run,
        "iat": handover.issued_at,
        "old_key": handover.old_key.hex(),
        "new_key": handover.new_key.hex(),
        "until": handover.until,
    }
    return _sign(authority, claims, HANDOVER_TYPE)


def verify_handover(text: str, run: str) -> Handover:
    """Verify a handover with its own `old_key`, which callers must check. Raises `TokenError`."""
    signed = _read(text, MAX_HANDOVER_CHARS)
    try:
        old_key = bytes.fromhex(_HandoverClaims.model_validate_json(signed.payload).old_key)
    except ValidationError as error:
        raise TokenError("The handover of the authority's key cannot be read.") from error
    claims = _verify(signed, old_key, run, HANDOVER_TYPE, _HandoverClaims)
    return Handover(claims.aud, claims.iat, old_key, bytes.fromhex(claims.new_key), claims.until)


def handover_in(text: str, run: str) -> Handover | None:
    """Return the handover in a token's or list's header, or None if it is missing or invalid."""
    try:
        handover = _read(text, MAX_REVOCATIONS_CHARS).headers().get("handover")
        return verify_handover(handover, run) if isinstance(handover, str) else None
    except TokenError:
        return None


class _EdDSA(jws.JWSRegistry):
    """A JWS registry that accepts only `EdDSA` (RFC 8037). Callers must limit message sizes."""

    max_header_length = max_payload_length = MAX_REVOCATIONS_CHARS

    def get_alg(self, name: str) -> Any:
        """Return the algorithm without joserfc's warning about its newer name, Ed25519 (RFC 9864)."""
        if name != _ALGORITHM:
            raise UnsupportedAlgorithmError(f"{name!r:.20} is not {_ALGORITHM}")
        return self.algorithms[name]


# Later versions may add header fields, but no critical ones.
_REGISTRY = _EdDSA({"crit": HeaderParameter("Critical", "none")}, strict_check_header=False)


def _sign(authority: AuthorityKey, claims: dict[str, Any], kind: str) -> str:
    carried = {"handover": authority.handover} if authority.handover else {}
    header = {"alg": _ALGORITHM, **carried, "typ": kind}
    content = json.dumps(claims, separators=(",", ":"))
    return jws.serialize_compact(header, content, OKPKey.import_key(authority.private_key), registry=_REGISTRY)


def _read(text: str, max_chars: int) -> jws.CompactSignature:
    """Parse a token without verifying it. Raises `TokenError` if it is malformed."""
    if len(text) > max_chars:
        raise TokenError(f"The token has {len(text)} characters; {max_chars} are allowed.")
    try:
        signed = jws.extract_compact(text.encode(), registry=_REGISTRY)
    except (JoseError, ValueError, TypeError, RecursionError) as error:  # deeply nested JSON raises RecursionError
        raise TokenError(f"The token cannot be read: {error}.") from error
    if not isinstance(signed.headers(), dict):
        raise TokenError("The token cannot be read: its header is no object.")
    return signed


def _signer(text: str, authority_public: bytes, run: str) -> bytes:
    """Return the verification key: the authority's key, or its successor if the header has a handover."""
    handover = handover_in(text, run)
    return authority_public if handover is None or handover.old_key != authority_public else handover.new_key


@lru_cache(maxsize=CACHED_KEYS)
def _public_key(raw: bytes) -> OKPKey:
    key: OKPKey = OKPKey.import_key(Ed25519PublicKey.from_public_bytes(raw))
    return key


def _verify(
    signed: jws.CompactSignature, public_key: bytes, run: str, kind: str, schema: type[_AnyClaims]
) -> _AnyClaims:
    """Return the claims after verifying signature, kind, run and schema; callers check the times."""
    try:
        if not jws.validate_compact(signed, _public_key(public_key), registry=_REGISTRY):
            raise TokenError(f"The token is not signed by the authority of the run {run!r}.")
        claims = schema.model_validate_json(signed.payload)
    except ValidationError as error:
        field = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise TokenError(f"The token's claim {field!r} is missing or malformed.") from error
    except (JoseError, ValueError, TypeError) as error:
        raise TokenError(f"The token cannot be read: {error}.") from error
    if claims.aud != run:
        raise TokenError(f"The token is not for the run {run!r}.")
    if signed.headers().get("typ") != kind:
        raise TokenError(f"The token is of the kind {signed.headers().get('typ')!r:.60}, not {kind!r}.")
    return claims


def _utc(time: float) -> str:
    return datetime.fromtimestamp(time, tz=timezone.utc).isoformat(sep=" ", timespec="seconds")


# Signatures are verified only once per process; validity periods and revocations are not cached.
_read_token = lru_cache(maxsize=CACHED_TOKENS)(read_token)


@dataclass(frozen=True)
class Authorities:
    """The authority keys accepted for a run (Ed25519, 32 raw bytes each)."""

    current: bytes
    previous: bytes | None = None
    until: float = 0.0  # Unix time at which the previous key's signatures become invalid

    @classmethod
    def from_bytes(cls, content: bytes) -> Authorities:
        """Parse the output of `to_bytes`. Raises `TokenError` if the content is malformed."""
        if len(content) == KEY_BYTES:
            return cls(content)
        if len(content) != _BOTH.size:
            raise TokenError("The file of the authority's key is damaged: join again.")
        return cls(*_BOTH.unpack(content))

    def to_bytes(self) -> bytes:
        """Return the file content: the current key and, if any, the previous key with its expiration."""
        return self.current if self.previous is None else _BOTH.pack(self.current, self.previous, self.until)

    @classmethod
    def of(cls, current: bytes, handover: Handover | None) -> Authorities:
        """Return the accepted keys: `current`, and the old key if the handover is to `current`."""
        if handover is None or handover.new_key != current:
            return cls(current)
        return cls(current, handover.old_key, handover.until)

    def after(self, signed: str, run: str) -> Authorities:
        """Apply the handover in a token or list; without a handover, return the same authorities.

        The token or list must have been verified with the current key.
        """
        handover = handover_in(signed, run)
        if handover is None or self.current not in (handover.old_key, handover.new_key):
            return self
        return self.of(handover.new_key, handover)

    def read_token(self, jwt: str, run: str, now: float) -> AccessToken:
        """Verify a token with the accepted keys and return it; do not check its validity period."""
        try:
            return _read_token(jwt, self.current, run)
        except TokenError:
            if self.previous is None:
                raise
        token = _read_token(jwt, self.previous, run)
        if now >= self.until:
            raise ExpiredTokenError(f"{token.member}'s access token is signed by a key that was replaced.")
        return token

    def read_revocations(self, jwt: str, run: str) -> RevocationList:
        """Verify a revocation list with the current or previous key. Raises `TokenError`."""
        try:
            return verify_revocations(jwt, self.current, run)
        except TokenError:
            if self.previous is None:
                raise
        return verify_revocations(jwt, self.previous, run)
