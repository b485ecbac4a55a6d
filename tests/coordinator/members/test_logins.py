"""Logging in over the real control plane: by the device flow, and by the coordinator's page with two real providers."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest

from auth.errors import (
    ConfigError,
    LoginDeniedError,
    LoginExpiredError,
    NotAllowedError,
    ProviderError,
    RequestError,
    TokenError,
)
from auth.files import write_private
from auth.keys import DeviceKey
from auth.openid.provider import Provider
from auth.openid.relying_party import RelyingParty
from auth.tokens import read_token
from coordinator.members import logins as limits
from coordinator.members.logins import Logins, open_providers
from coordinator.run.directory import RunDirectory
from coordinator.run.settings import Settings
from coordinator.web.app import create_app
from coordinator.web.state.web_state import WebState
from peer.config.run import RunConfig
from peer.control.client import ControlClient
from peer.control.login import LoginPrompt
from peer.protocol import control_pb2
from tests.support.control_plane import TestCoordinator, connected, serving
from tests.support.openid_provider import OpenIdProvider, running
from tests.support.ports import free_ports
from tests.support.stores import put_tables
from tests.support.waiting import PATIENCE_S, wait_until

WEB = "http://127.0.0.1:8080"  # the default of settings; the requests go to the application directly


class Terminal:
    """A volunteer's: shows the prompt, and what came of the login."""

    def __init__(self, client: ControlClient, key: DeviceKey, provider: str = "test") -> None:
        self._shown: asyncio.Future[LoginPrompt] = asyncio.get_running_loop().create_future()
        self.result = asyncio.create_task(client.login(key, provider, self._shown.set_result))

    async def prompt(self) -> LoginPrompt:
        await asyncio.wait({self._shown, self.result}, return_when=asyncio.FIRST_COMPLETED)
        if self.result.done():
            self.result.result()
        return self._shown.result()


@asynccontextmanager
async def served_with(provider: OpenIdProvider, path: Path) -> AsyncIterator[tuple[TestCoordinator, ControlClient]]:
    """A run in which people log in at this provider, and a volunteer's client."""
    async with (
        serving(path, providers={"test": provider.settings()}) as coordinator,
        connected(coordinator) as client,
    ):
        yield coordinator, client


@pytest.fixture
def page_provider() -> Iterator[OpenIdProvider]:
    """A provider that has no device flow, so that the coordinator's page is needed."""
    with running(OpenIdProvider(device_flow=False)) as served:
        yield served


@asynccontextmanager
async def browser_of(coordinator: TestCoordinator, **cookies: str) -> AsyncIterator[httpx2.AsyncClient]:
    """A browser that sees the coordinator's page at its address; `cookies` are for the provider."""
    app = create_app(WebState(coordinator.directory, coordinator.services))
    transports = {WEB: httpx2.ASGITransport(app)}
    async with httpx2.AsyncClient(mounts=transports, base_url=WEB, cookies=cookies) as browser:
        yield browser


async def follow_link(browser: httpx2.AsyncClient, prompt: LoginPrompt) -> str:
    """Open the page, and follow its link: the provider's address."""
    shown = await browser.get(prompt.complete_address)
    assert shown.status_code == 200
    assert prompt.user_code in shown.text
    assert "default-src 'none'" in shown.headers["content-security-policy"]
    (link,) = re.findall(r'href="(/login/[^"]+)"', shown.text)
    return (await browser.get(link)).headers["location"]


async def test_device_login_over_the_control_plane(provider: OpenIdProvider, tmp_path: Path, key: DeviceKey) -> None:
    """The volunteer sees a code and an address, agrees at the provider, and holds a token in the member's name."""
    async with served_with(provider, tmp_path) as (coordinator, client):
        coordinator.services.membership.allow("test:alice")
        assert [(each.name, each.title) for each in client.login_providers] == [("test", "Test Login")]
        terminal = Terminal(client, key)
        prompt = await terminal.prompt()
        assert prompt.address == f"{provider.url}/activate"
        provider.decide(prompt.user_code, "Alice")
        reply = await terminal.result
        token = read_token(reply.token, reply.authority_key, "test")
        assert (token.member, token.peer_id) == ("test:alice", key.peer_id)
        assert (await client.join(key)).member == "test:alice"


async def test_each_refused_login_raises_its_own_error(
    provider: OpenIdProvider, tmp_path: Path, key: DeviceKey
) -> None:
    """Refused there, not on the list, a token for another, an unknown provider, one that is down."""
    async with served_with(provider, tmp_path) as (coordinator, client):
        terminal = Terminal(client, key)
        provider.decide((await terminal.prompt()).user_code, "bob", approved=False)
        with pytest.raises(LoginDeniedError, match="Test Login"):
            await terminal.result
        terminal = Terminal(client, key)
        provider.decide((await terminal.prompt()).user_code, "bob")
        with pytest.raises(NotAllowedError, match="test:bob"):
            await terminal.result
        provider.change_claims = lambda claims: claims | {"aud": "another"}
        terminal = Terminal(client, key)
        provider.decide((await terminal.prompt()).user_code, "bob")
        with pytest.raises(ProviderError, match="aud"):
            await terminal.result
        with pytest.raises(RequestError, match="'other'"):
            await Terminal(client, key, "other").result
        provider.down = True
        with pytest.raises(ProviderError, match="Test Login cannot be reached"):
            await Terminal(client, key).result
        codes = ["login-denied", "not-allowed", "bad-id-token", "bad-request", "provider"]
        assert coordinator.refusals() == [("login", code) for code in codes]


async def test_login_needs_the_devices_signature(provider: OpenIdProvider, tmp_path: Path, key: DeviceKey) -> None:
    """A signature made for joining does not begin a login: nothing is asked of the provider."""
    async with served_with(provider, tmp_path) as (coordinator, client):
        nonce = (await client.greet()).nonce
        request = control_pb2.LoginRequest(
            nonce=nonce,
            public_key=key.public_key,
            signature=key.sign(b"something"),
            provider="test",
            receipt_key=key.receipt_key("test").public_bytes,
        )
        with pytest.raises(grpc.aio.AioRpcError, match="signature"):
            await client._stub.Login(request).read()
        assert provider.asked == []
        assert coordinator.refusals() == [("login", TokenError.code)]


async def test_waiting_logins_are_bounded_and_end_with_the_connection(
    provider: OpenIdProvider, tmp_path: Path, key: DeviceKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One caller holds only so many; a terminal that is closed gives its place back."""
    monkeypatch.setattr(limits, "WAITING_PER_CALLER", 1)
    async with served_with(provider, tmp_path) as (_, client):
        first = Terminal(client, key)
        await first.prompt()
        with pytest.raises(RequestError, match="waiting"):
            await Terminal(client, key).result
        first.result.cancel()
        for _ in range(limits.LOGINS_PER_MINUTE - 3):
            third = Terminal(client, key)
            await asyncio.sleep(0.2)
            if not third.result.done():
                break
            assert third.result.exception() is not None
        await third.prompt()
        third.result.cancel()


@pytest.mark.usefixtures("no_patience")
async def test_caller_may_begin_only_so_many_logins_a_minute(
    provider: OpenIdProvider, tmp_path: Path, key: DeviceKey
) -> None:
    """Beyond the pace the provider is not asked."""
    provider.down = True
    async with served_with(provider, tmp_path) as (_, client):
        for _ in range(limits.LOGINS_PER_MINUTE):
            with pytest.raises(ProviderError):
                await Terminal(client, key).result
        asked = len(provider.asked)
        with pytest.raises(RequestError, match="a minute"):
            await Terminal(client, key).result
        assert len(provider.asked) == asked


async def test_page_login_where_there_is_no_device_flow(
    page_provider: OpenIdProvider, tmp_path: Path, key: DeviceKey
) -> None:
    """The page shows the terminal's code; its link leads to the provider and back, and the terminal goes on."""
    async with (
        served_with(page_provider, tmp_path) as (coordinator, client),
        browser_of(coordinator, account="carol") as browser,
    ):
        coordinator.services.membership.allow("test-org:neuropark")
        terminal = Terminal(client, key)
        prompt = await terminal.prompt()
        assert prompt.complete_address == f"{WEB}/login/{prompt.user_code}"
        back = (await browser.get(await follow_link(browser, prompt))).headers["location"]
        done = await browser.get(back)
        assert (done.status_code, "Logged in" in done.text) == (200, True)
        assert (await terminal.result).member == "test:carol"
        assert (await browser.get(back)).status_code == 404
        assert (await browser.get(prompt.complete_address)).status_code == 404


async def test_page_protects_from_others_links(page_provider: OpenIdProvider, tmp_path: Path, key: DeviceKey) -> None:
    """The way to the provider and the way back each work only in the browser that was shown the code."""
    async with (
        served_with(page_provider, tmp_path) as (coordinator, client),
        browser_of(coordinator, account="carol") as victim,
        browser_of(coordinator, account="mallory") as attacker,
    ):
        terminal = Terminal(client, key)
        prompt = await terminal.prompt()
        assert (await victim.get(f"{prompt.complete_address}/go")).status_code == 404
        shown = await attacker.get(prompt.complete_address)
        (link,) = re.findall(r'href="(/login/[^"]+)"', shown.text)
        assert (await victim.get(link)).status_code == 404
        back = (await attacker.get((await attacker.get(link)).headers["location"])).headers["location"]
        assert (await victim.get(back)).status_code == 404
        assert not terminal.result.done()
        terminal.result.cancel()


async def test_refusal_at_the_provider_reaches_page_and_terminal(
    page_provider: OpenIdProvider, tmp_path: Path, key: DeviceKey
) -> None:
    """Nobody waits for a login that was refused."""
    async with served_with(page_provider, tmp_path) as (coordinator, client), browser_of(coordinator) as browser:
        terminal = Terminal(client, key)
        back = (await browser.get(await follow_link(browser, await terminal.prompt()))).headers["location"]
        assert (await browser.get(back)).status_code == 403
        with pytest.raises(LoginDeniedError):
            await terminal.result


@contextmanager
def provider_mock() -> Iterator[str]:
    """`oidc-provider-mock` in a process of its own; a provider that has only the code flow."""
    (port,) = free_ports("127.0.0.1", 1)
    user = '{"sub": "dora-1", "preferred_username": "Dora", "groups": ["neuropark"]}'
    command = [sys.executable, "-m", "oidc_provider_mock", "--port", str(port), "--require-nonce", "true"]
    process = subprocess.Popen(
        [*command, "--user-claims", user],
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"

    def is_up() -> bool:
        with suppress(httpx2.HTTPError):
            return httpx2.get(f"{url}/.well-known/openid-configuration").is_success
        return False

    try:
        wait_until("the provider answers", is_up, poll_s=0.1)
        yield url
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


async def test_page_login_with_an_independent_provider(tmp_path: Path, key: DeviceKey) -> None:
    """A provider that nobody here wrote: discovery, code flow, signature and claims are as the standard has them."""
    with provider_mock() as url:
        secret = tmp_path / "mock.secret"
        write_private(secret, b"any")
        settings = {
            "client_secret_file": str(secret),
            "discovery": f"{url}/.well-known/openid-configuration",
            "client_id": "any",
            "organisation_claim": "groups",
        }
        async with serving(tmp_path, providers={"mock": settings}) as coordinator:
            coordinator.services.membership.allow("mock-org:neuropark")
            async with connected(coordinator) as client, browser_of(coordinator) as browser:
                terminal = Terminal(client, key, "mock")
                address = await follow_link(browser, await terminal.prompt())
                agreed = await browser.post(address, data={"sub": "dora-1"})
                assert (await browser.get(agreed.headers["location"])).status_code == 200
                assert (await terminal.result).member == "mock:Dora"


def page_logins(settings: dict[str, Any], web: str, now: list[float]) -> Logins:
    party = RelyingParty("test", Provider.model_validate(settings), None, time.time, lambda: now[0])
    return Logins({"test": party}, web, lambda: now[0])


async def test_page_that_nobody_opens_expires(provider: OpenIdProvider) -> None:
    """After its time the page is gone, and the terminal is told."""
    now = [0.0]
    logins = page_logins(provider.settings(flow="page"), WEB, now)
    async with logins.begun(ipaddress.ip_address("192.0.2.1"), "test") as waiting:
        code = waiting.prompt.user_code
        assert logins.page(code.lower()).user_code == code
        now[0] += 901
        with pytest.raises(LoginExpiredError):
            logins.page(code)
        with pytest.raises(LoginExpiredError, match="in time"):
            await waiting.identity()
    with pytest.raises(LoginExpiredError):
        logins.page(code)


async def test_page_needs_https_beyond_this_machine(provider: OpenIdProvider) -> None:
    """The operator is told what to set, and a provider without the flow that was demanded is named."""
    caller = ipaddress.ip_address("192.0.2.1")
    with pytest.raises(ProviderError, match="public_url"):
        async with page_logins(provider.settings(flow="page"), "http://example.org:8080", [0.0]).begun(caller, "test"):
            pass
    provider.device_flow = False
    with pytest.raises(ProviderError, match="no device flow"):
        async with page_logins(provider.settings(flow="device"), WEB, [0.0]).begun(caller, "test"):
            pass


def test_secret_must_be_private(tmp_path: Path, provider: OpenIdProvider) -> None:
    """A client secret that others can read, that is missing or empty stops the service with one sentence."""
    settings = Settings(providers={"test": provider.settings(client_secret_file="keys/test.secret")})
    directory = RunDirectory.create(tmp_path / "run", RunConfig.from_mapping({}), settings, prepare=put_tables)
    secret = directory.keys_dir / "test.secret"
    for content, mode, word in ((None, 0, "cannot be read"), ("", 0o600, "empty"), ("x", 0o640, "chmod 600")):
        if content is not None:
            secret.write_text(content)
            secret.chmod(mode)
        with pytest.raises(ConfigError, match=word):
            open_providers(directory, time.time, time.monotonic)
    secret.chmod(0o600)
    assert list(open_providers(directory, time.time, time.monotonic)) == ["test"]
