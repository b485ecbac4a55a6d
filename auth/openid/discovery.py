"""What a provider publishes of itself: its endpoints and its keys; fetched when needed, cached, never too often."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from joserfc.jwk import Key
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from auth.errors import ProviderError
from auth.openid.http import fetch_json
from auth.openid.keys import parse_keys
from auth.openid.provider import WELL_KNOWN, Provider, SafeUrl

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
        """Where the provider is asked for what; raises `ProviderError`."""
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
