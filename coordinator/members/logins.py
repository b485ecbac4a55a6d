"""Pending OpenID Connect logins, from the prompt in the terminal until identification or expiry.

The coordinator communicates with the provider; the volunteer's machine only displays a code and a
URL, so it never handles provider tokens. A login uses the provider's device flow (RFC 8628) or the
coordinator's own page. Pending logins are limited in number and kept in the memory of the process
that serves the volunteer. Providers come from the run's settings and secret files.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from auth.errors import LoginExpiredError, ManyhandsError, ProviderError, RequestError
from auth.openid.flows import (
    MAX_LOGIN_S,
    AuthorizationResponse,
    CodeLogin,
    DeviceAuthorization,
    authorization_address,
    begin_device_login,
    finish_code_login,
    finish_device_login,
    new_code_login,
)
from auth.openid.provider import Identity, Provider, require_safe_url
from auth.openid.relying_party import RelyingParty
from coordinator.run.directory import RunDirectory
from coordinator.run.secrets import read_secret
from coordinator.throttling.rate_limits import Address, CallerPace, CallerPlaces, network_of

LOGINS_PER_MINUTE = 10  # limit per address, which a household or a class may share
WAITING, WAITING_PER_CALLER = 256, 16
_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"  # letters for user codes, recommended by RFC 8628, section 6.1
CALLBACK = "/login/callback"


@dataclass(frozen=True)
class Prompt:
    """The code and URLs to show to the user."""

    title: str
    user_code: str
    address: str
    complete_address: str
    expires_in_s: float


class PendingLogin(Protocol):
    """A login in progress."""

    @property
    def prompt(self) -> Prompt:
        """The code and URLs to show to the user."""

    async def identity(self) -> Identity:
        """Wait for the identity. Raises `LoginDeniedError`, `LoginExpiredError` or `ProviderError`."""


@dataclass(frozen=True)
class AtProvider:
    """A login in which the user enters the code at the provider."""

    party: RelyingParty
    login: DeviceAuthorization

    @property
    def prompt(self) -> Prompt:
        """The user code, and the provider's URL at which to enter it."""
        left_s = self.login.expires_at - self.party.monotonic()
        login = self.login
        return Prompt(self.party.title, login.user_code, login.address, login.complete_address, left_s)

    async def identity(self) -> Identity:
        """Poll the provider until the user has approved or denied the login."""
        return await finish_device_login(self.party, self.login)


@dataclass
class AtPage:
    """A login on the coordinator's page, where the user checks the code before the redirect."""

    party: RelyingParty
    user_code: str
    address: str
    expires_at: float  # monotonic time in seconds
    trip: CodeLogin | None = None  # latest login at the provider; completed at most once
    browser: str = field(default="", repr=False)  # secret of the browser that was redirected
    outcome: asyncio.Future[Identity] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def prompt(self) -> Prompt:
        """The URL of the coordinator's page, which includes the code."""
        left_s = self.expires_at - self.party.monotonic()
        return Prompt(self.party.title, self.user_code, self.address, self.address, left_s)

    async def identity(self) -> Identity:
        """Wait until the login is completed on the page; return the identity."""
        try:
            return await asyncio.wait_for(self.outcome, max(0.0, self.expires_at - self.party.monotonic()))
        except asyncio.TimeoutError as error:
            raise LoginExpiredError(
                f"Nobody completed the login at {self.party.title} in time: start again."
            ) from error


class Logins:
    """The pending logins of one process and event loop; browsers reach them at `web_address`."""

    def __init__(self, parties: Mapping[str, RelyingParty], web_address: str, monotonic: Callable[[], float]) -> None:
        self._parties, self._web_address, self._monotonic = parties, web_address, monotonic
        self._pace = CallerPace(LOGINS_PER_MINUTE, monotonic)
        self._places = CallerPlaces(WAITING, WAITING_PER_CALLER)
        self._pages: dict[str, AtPage] = {}  # user code -> pending login

    @property
    def titles(self) -> dict[str, str]:
        """The providers' display titles by name."""
        return {name: party.title for name, party in self._parties.items()}

    @asynccontextmanager
    async def begun(self, caller: Address, provider: str) -> AsyncIterator[PendingLogin]:
        """Open a login for the duration of the block. Raises `ProviderError` or `RequestError`."""
        party = self._parties.get(provider)
        if party is None:
            known = ", ".join(self._parties) or "none"
            raise RequestError(f"There is no login with {provider!r:.40} here; there is: {known}.")
        self._pace.admit(caller)
        if not self._places.enter(network_of(caller)):
            raise RequestError("Too many logins are waiting: complete one, or try again in a few minutes.")
        try:
            device_endpoint = (await party.endpoints()).device_authorization_endpoint
            if device_endpoint is not None and party.provider.flow != "page":
                yield AtProvider(party, await begin_device_login(party, device_endpoint))
            else:
                with_page = self._open_page(party)
                try:
                    yield with_page
                finally:
                    del self._pages[with_page.user_code]
        finally:
            self._places.leave(network_of(caller))

    def _open_page(self, party: RelyingParty) -> AtPage:
        if party.provider.flow == "device":
            raise ProviderError(f"{party.title} has no device flow: the operator may set its `flow` to auto.")
        try:
            require_safe_url(self._web_address)
        except ValueError as error:
            raise ProviderError(
                f"{party.title} needs this coordinator's page over HTTPS: the operator has to set `public_url`."
            ) from error
        code = "-".join("".join(secrets.choice(_LETTERS) for _ in range(4)) for _ in range(2))
        page = AtPage(party, code, f"{self._web_address}/login/{code}", self._monotonic() + MAX_LOGIN_S)
        self._pages[code] = page
        return page

    def page(self, user_code: str) -> AtPage:
        """Return the pending login with this user code. Raises `LoginExpiredError` if unknown."""
        found = self._pages.get(user_code.upper())
        if found is None or found.outcome.done() or found.expires_at <= self._monotonic():
            raise LoginExpiredError("No login waits under this address: start again in your terminal.")
        return found

    async def send_off(self, page: AtPage, browser: str) -> str:
        """Start a login at the provider; return the URL for the browser. Raises `ProviderError`."""
        trip = new_code_login(page.party, self._web_address + CALLBACK)
        address = await authorization_address(page.party, trip)
        page.trip, page.browser = trip, browser
        return address

    async def take_back(self, returned: AuthorizationResponse, browser: str) -> AtPage:
        """Complete a returning browser's login, at most once; report errors to the terminal too."""
        page = next((page for page in self._pages.values() if _is_from(page, returned, browser)), None)
        if page is None or page.trip is None or page.outcome.done():
            raise LoginExpiredError("This answer belongs to no login of this browser: start again in your terminal.")
        trip, page.trip = page.trip, None
        try:
            identity = await finish_code_login(page.party, trip, returned)
        except ManyhandsError as error:
            if not page.outcome.done():
                page.outcome.set_exception(error)
            raise
        if not page.outcome.done():
            page.outcome.set_result(identity)
        return page


def _is_from(page: AtPage, returned: AuthorizationResponse, browser: str) -> bool:
    """Return whether this browser was redirected to the provider with this state."""
    return (
        page.trip is not None
        and secrets.compare_digest(page.trip.state.encode(), returned.state.encode())
        and secrets.compare_digest(page.browser.encode(), browser.encode())
    )


def open_providers(
    directory: RunDirectory, clock: Callable[[], float], monotonic: Callable[[], float]
) -> dict[str, RelyingParty]:
    """Create a client for each provider. Raises `ConfigError` for a missing or unprotected secret."""
    return {
        name: RelyingParty(name, provider, _read_secret(directory.path, name, provider), clock, monotonic)
        for name, provider in directory.settings.providers.items()
    }


def _read_secret(base: Path, name: str, provider: Provider) -> str | None:
    if provider.client_secret_file is None:
        return None
    return read_secret(base / provider.client_secret_file, f"providers.{name}.client_secret_file")
