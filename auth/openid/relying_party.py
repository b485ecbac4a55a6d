"""The coordinator as a provider's client: what the token endpoint answers becomes an identity, or an error."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from auth.errors import IdTokenError, ProviderError
from auth.openid.http import TIMEOUT_S, asking, json_object, oauth_client
from auth.openid.id_token import MAX_CLOCK_SKEW_S, Expected, read_header, verify_id_token
from auth.openid.metadata import Discovery, Endpoints
from auth.openid.provider import Identity, Provider, identity_of, names_missing

MAX_SPENT = 4096


def new_nonce() -> str:
    """Draw a nonce, which binds an ID token to one login."""
    return secrets.token_urlsafe(32)


class SpentTokens:
    """A memory of accepted ID tokens, as digests, until they would be refused as expired anyway."""

    def __init__(self) -> None:
        self._until: dict[bytes, float] = {}

    def spend(self, text: str, expires_at: float, now: float) -> None:
        """Accept a token once; raises `IdTokenError` the second time."""
        self._until = {digest: until for digest, until in self._until.items() if until > now}
        digest = hashlib.sha256(text.encode()).digest()
        if digest in self._until:
            raise IdTokenError("The ID token was used before.")
        if len(self._until) >= MAX_SPENT:
            del self._until[next(iter(self._until))]
        self._until[digest] = expires_at + MAX_CLOCK_SKEW_S


class RelyingParty:
    """This coordinator's dealings with one provider; used from one event loop."""

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
        """Return the provider's endpoints. Raises `ProviderError` if they cannot be had."""
        return await self._discovery.endpoints()

    def client(self, endpoints: Endpoints, **options: Any) -> AbstractAsyncContextManager[Any]:
        """Authlib's client in this coordinator's name, for the time of a block."""
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
        """Return the identity in the token endpoint's answer; the tokens in it are used here and kept nowhere.

        Raises `IdTokenError` if the ID token is wrong, and `ProviderError` if the provider's answer is.
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
        """The claims with what the userinfo endpoint adds, if it speaks of the same subject (Core 1.0, 5.3.2)."""
        with asking(self.title):
            more = json_object(await asyncio.wait_for(client.get(url), TIMEOUT_S))
        if more.get("sub") != claims["sub"]:
            raise IdTokenError(f"{self.title} tells of another account than the one that logged in.")
        return more | claims
