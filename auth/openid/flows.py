"""Login by the device flow (RFC 8628) or the authorization-code flow with PKCE (RFC 7636).

In the device flow, the user enters a short code on the provider's site in any browser. In the code
flow, the provider redirects the browser to a coordinator page. Both flows return an `Identity`.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from dataclasses import dataclass, field
from typing import Any

from authlib.integrations.base_client import OAuthError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from auth.errors import IdTokenError, LoginDeniedError, LoginExpiredError, ProviderError
from auth.openid.http import TIMEOUT_S, asking, json_object, printable
from auth.openid.provider import Identity, SafeUrl
from auth.openid.relying_party import RelyingParty, new_nonce

GRANT = "urn:ietf:params:oauth:grant-type:device_code"
MAX_LOGIN_S = 900.0
LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.1, 60.0
SLOWER_BY_S = 5.0
FAILURES_IN_A_ROW = 5


@dataclass(frozen=True)
class CodeLogin:
    """A pending login by the authorization-code flow, valid for one redirect from the provider."""

    redirect_uri: str
    state: str = field(repr=False)
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)
    since: float = field(repr=False)  # Unix time in seconds


@dataclass(frozen=True)
class AuthorizationResponse:
    """The query parameters of the provider's redirect."""

    state: str
    code: str = field(default="", repr=False)
    error: str = ""
    issuer: str = ""  # `iss` parameter (RFC 9207)


def new_code_login(party: RelyingParty, redirect_uri: str) -> CodeLogin:
    """Begin a code-flow login with a fresh state, nonce and PKCE verifier."""
    return CodeLogin(redirect_uri, secrets.token_urlsafe(32), new_nonce(), secrets.token_urlsafe(48), party.clock())


async def authorization_address(party: RelyingParty, login: CodeLogin) -> str:
    """Return the URL of the provider's login page. Raises `ProviderError` if there is none."""
    endpoints = await party.endpoints()
    if endpoints.authorization_endpoint is None:
        raise ProviderError(f"{party.title} has neither a device flow nor an authorization page.")
    async with party.client(endpoints, redirect_uri=login.redirect_uri, code_challenge_method="S256") as client:
        address, _ = client.create_authorization_url(
            endpoints.authorization_endpoint, state=login.state, code_verifier=login.verifier, nonce=login.nonce
        )
    return str(address)


async def finish_code_login(party: RelyingParty, login: CodeLogin, returned: AuthorizationResponse) -> Identity:
    """Exchange the returned code for tokens, and return the identity in the tokens.

    Raises `LoginDeniedError`, `ProviderError` or `IdTokenError` if the login fails.
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


def _check_return(
    party: RelyingParty, login: CodeLogin, returned: AuthorizationResponse, issuer: str, tells_issuer: bool
) -> None:
    if not hmac.compare_digest(returned.state.encode(), login.state.encode()):
        raise IdTokenError("The answer belongs to another login.")
    if (returned.issuer or tells_issuer) and returned.issuer != issuer:
        raise IdTokenError("The answer comes from another provider.")
    if returned.error == "access_denied":
        raise LoginDeniedError(f"The login was refused at {party.title}.")
    if returned.error or not returned.code:
        raise ProviderError(f"{party.title} did not log you in ({printable(returned.error) or 'no code'}).")


class _DeviceAnswer(BaseModel):
    """The device authorization response (RFC 8628, section 3.2)."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    device_code: str = Field(min_length=1, max_length=4096)
    user_code: str = Field(pattern=r"^[ -~]{1,40}$")
    verification_uri: SafeUrl
    verification_uri_complete: SafeUrl | None = None
    expires_in: float = Field(gt=0, allow_inf_nan=False)
    interval: float = Field(5.0, ge=0, allow_inf_nan=False)


@dataclass(frozen=True)
class DeviceAuthorization:
    """A pending login by the device flow."""

    user_code: str
    address: str
    complete_address: str  # URL that includes the user code; `address` if the provider offers no such URL
    interval_s: float
    expires_at: float  # monotonic time in seconds
    device_code: str = field(repr=False)
    nonce: str = field(repr=False)
    since: float = field(repr=False)  # Unix time in seconds


async def begin_device_login(party: RelyingParty, endpoint: str) -> DeviceAuthorization:
    """Request a device code from the provider. Raises `ProviderError` on failure."""
    nonce, since = new_nonce(), party.clock()
    data = {"client_id": party.provider.client_id, "scope": " ".join(party.provider.scopes), "nonce": nonce}
    with asking(party.title):
        async with party.client(await party.endpoints()) as client:
            auth = client.client_auth(client.token_endpoint_auth_method)
            answered = await asyncio.wait_for(client.post(endpoint, data=data, auth=auth), TIMEOUT_S)
        try:
            answer = _DeviceAnswer.model_validate(json_object(answered))
        except ValidationError as error:
            raise ValueError(f"its {error.errors()[0]['loc'][0]} is missing or unusable") from error
    return DeviceAuthorization(
        user_code=answer.user_code,
        address=answer.verification_uri,
        complete_address=answer.verification_uri_complete or answer.verification_uri,
        interval_s=min(max(answer.interval, LEAST_INTERVAL_S), MOST_INTERVAL_S),
        expires_at=party.monotonic() + min(answer.expires_in, MAX_LOGIN_S),
        device_code=answer.device_code,
        nonce=nonce,
        since=since,
    )


async def finish_device_login(party: RelyingParty, login: DeviceAuthorization) -> Identity:
    """Poll the provider until the user approves or denies the login, and return the identity.

    Raises `LoginDeniedError`, `LoginExpiredError`, `ProviderError` or `IdTokenError` on failure.
    """
    interval_s, failures = login.interval_s, 0
    endpoints = await party.endpoints()
    async with party.client(endpoints) as client:
        while party.monotonic() + interval_s < login.expires_at:
            await asyncio.sleep(interval_s)
            try:
                answer = await _ask(party, client, endpoints.token_endpoint, login)
            except ProviderError as error:
                failures += 1
                if failures == FAILURES_IN_A_ROW or isinstance(error.__cause__, OAuthError):
                    raise
                interval_s = min(2 * interval_s, MOST_INTERVAL_S)
                continue
            if isinstance(answer, dict):
                # Providers may omit the nonce in this flow; the secret device code also binds the
                # token to this login.
                return await party.identify(client, answer, login.nonce, nonce_required=False, since=login.since)
            failures, interval_s = 0, interval_s + answer
    raise LoginExpiredError(f"Nobody completed the login at {party.title} in time: start again.")


async def _ask(party: RelyingParty, client: Any, endpoint: str, login: DeviceAuthorization) -> dict[str, Any] | float:
    """Poll once. Return the token response, or the seconds to add to the polling interval."""
    with asking(party.title):
        try:
            asked = client.fetch_token(endpoint, grant_type=GRANT, device_code=login.device_code)
            return dict(await asyncio.wait_for(asked, TIMEOUT_S))
        except OAuthError as error:
            if error.error in ("authorization_pending", "slow_down"):
                return SLOWER_BY_S if error.error == "slow_down" else 0.0
            if error.error == "access_denied":
                raise LoginDeniedError(f"The login was refused at {party.title}.") from error
            if error.error == "expired_token":
                raise LoginExpiredError(f"Nobody completed the login at {party.title} in time: start again.") from error
            raise
