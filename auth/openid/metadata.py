"""A provider's published metadata: its endpoints and its keys, fetched when needed, cached, and never too often.

The endpoints follow OpenID Connect Discovery 1.0. Of the key set (RFC 7517) only asymmetric keys that are long enough
may verify an ID token.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import JWKRegistry, Key, RSAKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from auth.errors import ProviderError
from auth.openid.http import fetch_json
from auth.openid.provider import WELL_KNOWN, Provider, SafeUrl

# Asymmetric ones only: with HS256 anybody who knows the client's secret, or takes a public key for one, could sign.
ALGORITHMS_OF: dict[str, tuple[str, ...]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA", "Ed25519"),
}
ALGORITHMS = tuple(algorithm for algorithms in ALGORITHMS_OF.values() for algorithm in algorithms)
MAX_KEYS = 64
LEAST_RSA_BITS = 2048
CACHED_S = 3600.0
KEYS_AT_MOST_EVERY_S = 60.0  # however many tokens name keys that nobody knows


class Endpoints(BaseModel):
    """The part of OpenID Connect Discovery 1.0 (section 3) and RFC 8628 (section 4) that a login needs."""

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
    """One provider's published facts; used from one event loop. `clock` in seconds, never set back."""

    def __init__(self, title: str, provider: Provider, clock: Callable[[], float]) -> None:
        self._title, self._provider, self._clock = title, provider, clock
        self._fetched: _Fetched | None = None
        self._keys: tuple[Key, ...] = ()
        self._keys_at = float("-inf")
        self._lock = asyncio.Lock()

    async def endpoints(self) -> Endpoints:
        """Return the provider's endpoints. Raises `ProviderError` if they cannot be had."""
        async with self._lock:
            if self._fetched is None or self._clock() >= self._fetched.at + CACHED_S:
                endpoints = self._check(await fetch_json(self._title, self._provider.discovery))
                self._fetched = _Fetched(endpoints, self._clock())
            return self._fetched.endpoints

    async def keys(self, key_id: str | None) -> tuple[Key, ...]:
        """The provider's keys, fetched again where none is called `key_id`, but not at every such token."""
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
        # who answers for another issuer could sign in its name (OpenID Connect Discovery 1.0, section 4.3)
        if endpoints.issuer.rstrip("/") + WELL_KNOWN != self._provider.discovery:
            raise ProviderError(f"{self._title} calls itself {endpoints.issuer:.200}, which `discovery` does not.")
        return endpoints


def parse_keys(title: str, key_set: dict[str, Any]) -> tuple[Key, ...]:
    """The usable keys of a JSON Web Key Set; those that are not understood are passed over (RFC 7517, section 5)."""
    entries = key_set.get("keys")
    if not isinstance(entries, list) or len(entries) > MAX_KEYS:
        raise ProviderError(f"{title} publishes no list of up to {MAX_KEYS} keys.")
    return tuple(key for entry in entries if (key := _parse_key(entry)) is not None)


def _parse_key(entry: Any) -> Key | None:
    if not isinstance(entry, dict) or entry.get("kty") not in ALGORITHMS_OF or entry.get("use", "sig") != "sig":
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecurityWarning)  # of short keys: the next lines drop them
            key = JWKRegistry.import_key(entry)
            short = isinstance(key, RSAKey) and key.public_key.key_size < LEAST_RSA_BITS
    except (JoseError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return None if short else key


def fitting_keys(keys: tuple[Key, ...], key_id: str | None, algorithm: str) -> list[Key]:
    """The keys that may have made a signature by `algorithm`; without a key id, each of the right kind."""
    return [
        key
        for key in keys
        if algorithm in ALGORITHMS_OF[key.key_type]
        and (key_id is None or key.kid == key_id)
        and key.get("alg") in (None, algorithm)
    ]
