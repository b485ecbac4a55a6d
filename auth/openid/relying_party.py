"""The coordinator as a provider's client: what the token endpoint answers becomes an identity, or an error."""

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
from joserfc.jwk import Key
from joserfc.util import urlsafe_b64decode

from auth.errors import IdTokenError, ProviderError
from auth.openid.http import TIMEOUT_S, asking, json_object, oauth_client
from auth.openid.metadata import ALGORITHMS, Discovery, Endpoints, fitting_keys
from auth.openid.provider import Identity, Provider, identity_of, names_missing

MAX_SPENT = 4096
MAX_ID_TOKEN_CHARS = 32_768
MAX_SUBJECT_CHARS = 255
MAX_CLOCK_SKEW_S = 60


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


@dataclass(frozen=True)
class Expected:
    """The expected contents of one login's ID token."""

    title: str  # the provider's, for messages
    issuer: str
    audience: str  # the coordinator's client id
    nonce: str
    nonce_required: bool  # False: may be missing, but never another
    since: float  # Unix seconds: when the login began; what was issued before belongs to another


@dataclass(frozen=True)
class Header:
    """The header of an ID token on its own signature, before anything is checked."""

    algorithm: str
    key_id: str | None


def read_header(text: str) -> Header:
    """Read an ID token's header. Raises `IdTokenError` if it is no token, or not signed by an asymmetric key."""
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
    """Check an ID token, and return its claims. Raises `IdTokenError` if anything in it is wrong.

    `access_token` came with the ID token: where the ID token names a hash, it must be this one's.
    """
    header = read_header(text)
    token = _verify_signature(text, fitting_keys(keys, header.key_id, header.algorithm), header, expected.title)
    _check_claims(token, expected, now, access_token)
    return token.claims


def _verify_signature(text: str, keys: list[Key], header: Header, title: str) -> jwt.Token:
    for key in keys:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SecurityWarning)  # that EdDSA has a newer name
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
