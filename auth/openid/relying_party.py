"""The coordinator as an OpenID client, which converts token responses into identities or errors.

Endpoints follow OpenID Connect Discovery 1.0. Endpoints and keys are fetched on demand, at a
limited rate, and cached. An ID token is verified only with asymmetric keys of sufficient length
from the provider's key set (RFC 7517).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import secrets
import warnings
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import BadSignatureError, ClaimError, ExpiredTokenError, JoseError, SecurityWarning
from joserfc.jwk import JWKRegistry, Key, RSAKey
from joserfc.util import urlsafe_b64decode
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from auth.errors import IdTokenError, ProviderError
from auth.openid.http import TIMEOUT_S, asking, fetch_json, json_object, oauth_client
from auth.openid.provider import WELL_KNOWN, Identity, Provider, SafeUrl, identity_of, names_missing

MAX_SPENT = 4096
MAX_ID_TOKEN_CHARS = 32_768
MAX_SUBJECT_CHARS = 255
MAX_CLOCK_SKEW_S = 60
# Asymmetric algorithms only: an HS256 signature can be forged with the client's secret, or with a
# public key that is mistaken for the secret.
ALGORITHMS_OF: dict[str, tuple[str, ...]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA", "Ed25519"),
}
ALGORITHMS = tuple(algorithm for algorithms in ALGORITHMS_OF.values() for algorithm in algorithms)
MAX_KEYS = 64
LEAST_RSA_BITS = 2048
CACHED_S = 3600.0
KEYS_AT_MOST_EVERY_S = 60.0  # minimum interval between fetches of keys, even with many unknown key IDs


def new_nonce() -> str:
    """Return a random nonce, which binds an ID token to one login."""
    return secrets.token_urlsafe(32)


class SpentTokens:
    """A set of digests of accepted ID tokens, kept until the tokens expire."""

    def __init__(self) -> None:
        self._until: dict[bytes, float] = {}

    def spend(self, text: str, expires_at: float, now: float) -> None:
        """Record a token as used. Raises `IdTokenError` if the token was already used."""
        self._until = {digest: until for digest, until in self._until.items() if until > now}
        digest = hashlib.sha256(text.encode()).digest()
        if digest in self._until:
            raise IdTokenError("The ID token was used before.")
        if len(self._until) >= MAX_SPENT:
            del self._until[next(iter(self._until))]
        self._until[digest] = expires_at + MAX_CLOCK_SKEW_S


@dataclass(frozen=True)
class Expected:
    """The values required in the ID token of one login."""

    title: str  # provider's name for messages
    issuer: str
    audience: str  # client ID of the coordinator
    nonce: str
    nonce_required: bool  # if False, the nonce may be absent, but must match if present
    since: float  # Unix time of the login's start; older tokens belong to another login


@dataclass(frozen=True)
class Header:
    """The unverified header of an ID token."""

    algorithm: str
    key_id: str | None


def read_header(text: str) -> Header:
    """Read an ID token's header. Raises `IdTokenError` if malformed or not signed asymmetrically."""
    if len(text) > MAX_ID_TOKEN_CHARS or text.count(".") != 2:
        raise IdTokenError(f"The ID token is none: it has {len(text)} characters and {text.count('.')} dots.")
    try:
        header = json.loads(urlsafe_b64decode(text.partition(".")[0].encode("ascii")))
        algorithm, key_id = header["alg"], header.get("kid")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise IdTokenError("The ID token's header cannot be read.") from error
    if algorithm not in ALGORITHMS:
        raise IdTokenError(f"The ID token is signed by {algorithm!r:.20}, which proves nothing.")
    if key_id is not None and not isinstance(key_id, str):
        raise IdTokenError("The ID token's key id is no text.")
    return Header(algorithm, key_id)


def verify_id_token(
    text: str, keys: tuple[Key, ...], expected: Expected, now: float, access_token: str | None = None
) -> dict[str, Any]:
    """Verify an ID token and return its claims. Raises `IdTokenError` if any check fails.

    `access_token` is the access token of the same response. If the ID token contains a hash of an
    access token, the two must match.
    """
    header = read_header(text)
    token = _verify_signature(text, fitting_keys(keys, header.key_id, header.algorithm), header, expected.title)
    _check_claims(token, expected, now, access_token)
    return token.claims


def _verify_signature(text: str, keys: list[Key], header: Header, title: str) -> jwt.Token:
    for key in keys:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SecurityWarning)  # joserfc warns that EdDSA was renamed
                return jwt.decode(text, key, algorithms=[header.algorithm])
        except BadSignatureError:
            continue
        except (JoseError, ValueError, TypeError, RecursionError) as error:
            raise IdTokenError(f"The ID token cannot be read ({error}).") from error
    raise IdTokenError(f"The ID token is not signed by a key of {title}.")


def _check_claims(token: jwt.Token, expected: Expected, now: float, access_token: str | None) -> None:
    options: dict[str, dict[str, Any]] = {
        "iss": {"essential": True, "value": expected.issuer},
        "aud": {"essential": True, "value": expected.audience},
        "sub": {"essential": True},
        "exp": {"essential": True},
        "iat": {"essential": True},
    }
    claims = token.claims
    parameters = {"client_id": expected.audience, "access_token": access_token}
    if expected.nonce_required or "nonce" in claims:
        parameters["nonce"] = expected.nonce
    try:
        CodeIDToken(claims, token.header, options, parameters).validate(now=math.floor(now), leeway=MAX_CLOCK_SKEW_S)
    except ExpiredTokenError as error:
        raise IdTokenError(f"The ID token of {expected.title} has expired: check this machine's clock.") from error
    except ClaimError as error:
        raise IdTokenError(
            f"The ID token of {expected.title} is not for this login: its claim {error.claim!r} is missing or another."
        ) from error
    except (JoseError, ValueError, TypeError, AttributeError) as error:
        raise IdTokenError(f"The ID token of {expected.title} cannot be read ({error}).") from error
    if claims["iat"] < expected.since - MAX_CLOCK_SKEW_S:
        raise IdTokenError(f"The ID token of {expected.title} was issued before this login began.")
    if not 1 <= len(claims["sub"]) <= MAX_SUBJECT_CHARS:
        raise IdTokenError(f"The ID token of {expected.title} names a subject of {len(claims['sub'])} characters.")


class Endpoints(BaseModel):
    """Provider metadata for logins (OpenID Connect Discovery 1.0, section 3; RFC 8628, 4)."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    issuer: SafeUrl
    token_endpoint: SafeUrl
    jwks_uri: SafeUrl
    authorization_endpoint: SafeUrl | None = None
    device_authorization_endpoint: SafeUrl | None = None
    userinfo_endpoint: SafeUrl | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = Field(("client_secret_basic",), strict=False)
    authorization_response_iss_parameter_supported: bool = False


@dataclass(frozen=True)
class _Fetched:
    endpoints: Endpoints
    at: float


class Discovery:
    """A cache of a provider's endpoints and keys, for one event loop; `clock` is monotonic."""

    def __init__(self, title: str, provider: Provider, clock: Callable[[], float]) -> None:
        self._title, self._provider, self._clock = title, provider, clock
        self._fetched: _Fetched | None = None
        self._keys: tuple[Key, ...] = ()
        self._keys_at = float("-inf")
        self._lock = asyncio.Lock()

    async def endpoints(self) -> Endpoints:
        """Return the provider's endpoints. Raises `ProviderError` if they cannot be fetched."""
        async with self._lock:
            if self._fetched is None or self._clock() >= self._fetched.at + CACHED_S:
                endpoints = self._check(await fetch_json(self._title, self._provider.discovery))
                self._fetched = _Fetched(endpoints, self._clock())
            return self._fetched.endpoints

    async def keys(self, key_id: str | None) -> tuple[Key, ...]:
        """Return the provider's keys; an unknown `key_id` triggers a fetch, at a limited rate."""
        endpoints = await self.endpoints()
        async with self._lock:
            age_s = self._clock() - self._keys_at
            known = key_id is None or any(key.kid == key_id for key in self._keys)
            if age_s >= CACHED_S or (not known and age_s >= KEYS_AT_MOST_EVERY_S):
                self._keys = parse_keys(self._title, await fetch_json(self._title, endpoints.jwks_uri))
                self._keys_at = self._clock()
            return self._keys

    def _check(self, content: dict[str, object]) -> Endpoints:
        try:
            endpoints = Endpoints.model_validate(content)
        except ValidationError as error:
            field = ".".join(map(str, error.errors()[0]["loc"]))
            raise ProviderError(
                f"{self._title} publishes an unusable `{field}` at {self._provider.discovery}."
            ) from error
        # Otherwise one issuer could sign for another (OpenID Connect Discovery 1.0, section 4.3).
        if endpoints.issuer.rstrip("/") + WELL_KNOWN != self._provider.discovery:
            raise ProviderError(f"{self._title} calls itself {endpoints.issuer:.200}, which `discovery` does not.")
        return endpoints


def parse_keys(title: str, key_set: dict[str, Any]) -> tuple[Key, ...]:
    """Return the usable keys of a JSON Web Key Set, skipping unknown types (RFC 7517, section 5)."""
    entries = key_set.get("keys")
    if not isinstance(entries, list) or len(entries) > MAX_KEYS:
        raise ProviderError(f"{title} publishes no list of up to {MAX_KEYS} keys.")
    return tuple(key for entry in entries if (key := _parse_key(entry)) is not None)


def _parse_key(entry: Any) -> Key | None:
    if not isinstance(entry, dict) or entry.get("kty") not in ALGORITHMS_OF or entry.get("use", "sig") != "sig":
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecurityWarning)  # joserfc warns about short keys
            key = JWKRegistry.import_key(entry)
            short = isinstance(key, RSAKey) and key.public_key.key_size < LEAST_RSA_BITS
    except (JoseError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return None if short else key


def fitting_keys(keys: tuple[Key, ...], key_id: str | None, algorithm: str) -> list[Key]:
    """Return the keys for `algorithm` with the ID `key_id`, or with any ID if `key_id` is None."""
    return [
        key
        for key in keys
        if algorithm in ALGORITHMS_OF[key.key_type]
        and (key_id is None or key.kid == key_id)
        and key.get("alg") in (None, algorithm)
    ]


class RelyingParty:
    """A client of one provider, with the coordinator's credentials, for one event loop."""

    def __init__(
        self,
        name: str,
        provider: Provider,
        secret: str | None,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self.name, self.provider = name, provider
        self.title = provider.title or name
        self.clock = clock
        self.monotonic = monotonic
        self._secret = secret
        self._discovery = Discovery(self.title, provider, monotonic)
        self._spent = SpentTokens()

    async def endpoints(self) -> Endpoints:
        """Return the provider's endpoints. Raises `ProviderError` if they cannot be fetched."""
        return await self._discovery.endpoints()

    def client(self, endpoints: Endpoints, **options: Any) -> AbstractAsyncContextManager[Any]:
        """Open an Authlib client with the coordinator's credentials."""
        methods = endpoints.token_endpoint_auth_methods_supported
        by_secret = "client_secret_basic" if "client_secret_basic" in methods else "client_secret_post"
        return oauth_client(
            client_id=self.provider.client_id,
            client_secret=self._secret,
            token_endpoint_auth_method="none" if self._secret is None else by_secret,
            scope=" ".join(self.provider.scopes),
            **options,
        )

    async def identify(
        self, client: Any, answer: dict[str, Any], nonce: str, nonce_required: bool, since: float
    ) -> Identity:
        """Return the identity in a token response; the tokens are not stored.

        Raises `IdTokenError` if the ID token is invalid, `ProviderError` if the response is malformed.
        """
        endpoints = await self.endpoints()
        text, access_token = answer.get("id_token"), answer.get("access_token")
        if not isinstance(text, str):
            raise ProviderError(f"{self.title} gives no ID token: is `openid` among the client's scopes there?")
        expected = Expected(self.title, endpoints.issuer, self.provider.client_id, nonce, nonce_required, since)
        keys = await self._discovery.keys(read_header(text).key_id)
        now = self.clock()
        claims = verify_id_token(text, keys, expected, now, access_token if isinstance(access_token, str) else None)
        self._spent.spend(text, claims["exp"], now)
        if endpoints.userinfo_endpoint is not None and names_missing(self.provider, claims):
            claims = await self._with_userinfo(client, endpoints.userinfo_endpoint, claims)
        return identity_of(self.name, self.provider, endpoints.issuer, claims)

    async def _with_userinfo(self, client: Any, url: str, claims: dict[str, Any]) -> dict[str, Any]:
        """Add userinfo claims. Raises `IdTokenError` if subjects differ (OIDC Core 1.0, 5.3.2)."""
        with asking(self.title):
            more = json_object(await asyncio.wait_for(client.get(url), TIMEOUT_S))
        if more.get("sub") != claims["sub"]:
            raise IdTokenError(f"{self.title} tells of another account than the one that logged in.")
        return more | claims
