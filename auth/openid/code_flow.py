"""The authorization-code flow with PKCE (RFC 7636), for a page of the coordinator's own."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from dataclasses import dataclass, field

from auth.errors import IdTokenError, LoginDeniedError, ProviderError
from auth.openid.http import TIMEOUT_S, asking, printable
from auth.openid.identity import Identity
from auth.openid.relying_party import RelyingParty, new_nonce


@dataclass(frozen=True)
class CodeLogin:
    """One trip of a browser to the provider and back; good for one return."""

    redirect_uri: str
    state: str = field(repr=False)
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)
    since: float = field(repr=False)  # Unix seconds


@dataclass(frozen=True)
class Returned:
    """What the browser brought back in the redirect's query."""

    state: str
    code: str = field(default="", repr=False)
    error: str = ""
    issuer: str = ""  # RFC 9207


def new_code_login(party: RelyingParty, redirect_uri: str) -> CodeLogin:
    """A fresh state, nonce and PKCE verifier."""
    return CodeLogin(redirect_uri, secrets.token_urlsafe(32), new_nonce(), secrets.token_urlsafe(48), party.clock())


async def authorization_address(party: RelyingParty, login: CodeLogin) -> str:
    """Where to send the browser; raises `ProviderError`."""
    endpoints = await party.endpoints()
    if endpoints.authorization_endpoint is None:
        raise ProviderError(f"{party.title} has neither a device flow nor an authorization page.")
    async with party.client(endpoints, redirect_uri=login.redirect_uri, code_challenge_method="S256") as client:
        address, _ = client.create_authorization_url(
            endpoints.authorization_endpoint, state=login.state, code_verifier=login.verifier, nonce=login.nonce
        )
    return str(address)


async def finish_code_login(party: RelyingParty, login: CodeLogin, returned: Returned) -> Identity:
    """Redeem what the browser brought back.

    Raises `LoginDeniedError`, `ProviderError`, `IdTokenError`.
    """
    endpoints = await party.endpoints()
    _check_return(party, login, returned, endpoints.issuer, endpoints.authorization_response_iss_parameter_supported)
    async with party.client(endpoints, redirect_uri=login.redirect_uri) as client:
        with asking(party.title):
            asked = client.fetch_token(
                endpoints.token_endpoint,
                grant_type="authorization_code",
                code=returned.code,
                code_verifier=login.verifier,
            )
            answer = dict(await asyncio.wait_for(asked, TIMEOUT_S))
        return await party.identify(client, answer, login.nonce, nonce_required=True, since=login.since)


def _check_return(party: RelyingParty, login: CodeLogin, returned: Returned, issuer: str, tells_issuer: bool) -> None:
    if not hmac.compare_digest(returned.state.encode(), login.state.encode()):
        raise IdTokenError("The answer belongs to another login.")
    if (returned.issuer or tells_issuer) and returned.issuer != issuer:
        raise IdTokenError("The answer comes from another provider.")
    if returned.error == "access_denied":
        raise LoginDeniedError(f"The login was refused at {party.title}.")
    if returned.error or not returned.code:
        raise ProviderError(f"{party.title} did not log you in ({printable(returned.error) or 'no code'}).")
