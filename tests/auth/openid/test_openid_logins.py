"""The two login flows against a real provider on this machine, and every token that must not be believed."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from joserfc.jwk import RSAKey

from auth.errors import IdTokenError, LoginDeniedError, LoginExpiredError, ProviderError
from auth.openid.flows import (
    AuthorizationResponse,
    CodeLogin,
    authorization_address,
    begin_device_login,
    finish_code_login,
    finish_device_login,
    new_code_login,
)
from auth.openid.provider import Identity, Provider
from auth.openid.relying_party import RelyingParty
from tests.support.openid_provider import SECRET, OpenIdProvider, edwards_key, elliptic_key, running

CALLBACK = "https://run.example.org/login/callback"


class Clocks:
    """The real ones, plus what a test adds."""

    ahead_s = 0.0

    def now(self) -> float:
        return time.time() + self.ahead_s


def party_of(provider: OpenIdProvider, clocks: Clocks | None = None, **settings: Any) -> RelyingParty:
    """The coordinator's end."""
    configured = Provider.model_validate(provider.settings(**settings))
    return RelyingParty("test", configured, provider.secret, (clocks or Clocks()).now, time.monotonic)


async def log_in(provider: OpenIdProvider, party: RelyingParty, username: str = "Alice") -> Identity:
    """A device login, whose person decides at once."""
    endpoint = (await party.endpoints()).device_authorization_endpoint
    assert endpoint is not None
    login = await begin_device_login(party, endpoint)
    provider.decide(login.user_code, username)
    return await finish_device_login(party, login)


async def browse(address: str, account: str | None = "Alice") -> AuthorizationResponse:
    """As a browser in which `account` is logged in: what it brings back to the callback."""
    async with httpx2.AsyncClient(verify=False, cookies={"account": account} if account else {}) as browser:
        response = await browser.get(address)
    back = httpx2.URL(response.headers["location"])
    assert str(back).startswith(CALLBACK)
    query = dict(back.params)
    return AuthorizationResponse(query["state"], query.get("code", ""), query.get("error", ""), query.get("iss", ""))


async def log_in_by_page(party: RelyingParty, account: str | None = "Alice") -> Identity:
    login = new_code_login(party, CALLBACK)
    return await finish_code_login(party, login, await browse(await authorization_address(party, login), account))


async def test_device_login_tells_who_it_was(provider: OpenIdProvider) -> None:
    """The person sees a code and an address; of the claims, subject, user name and organisations come through."""
    party = party_of(provider)
    endpoint = (await party.endpoints()).device_authorization_endpoint
    assert endpoint is not None
    login = await begin_device_login(party, endpoint)
    assert login.address == f"{provider.url}/activate"
    assert login.user_code in login.complete_address
    assert login.device_code not in repr(login)
    provider.decide(login.user_code, "carol")
    identity = await finish_device_login(party, login)
    assert identity == Identity("test", provider.url, "sub-3", "carol", frozenset({"neuropark", "others"}))
    assert identity.label == "test:carol"


async def test_page_login_tells_who_it_was(provider: OpenIdProvider) -> None:
    """The code flow, with PKCE, state and nonce, ends in the same identity."""
    assert await log_in_by_page(party_of(provider)) == Identity("test", provider.url, "sub-1", "Alice", frozenset())


@pytest.mark.parametrize(("key", "algorithm"), [(elliptic_key, "ES256"), (edwards_key, "EdDSA")])
async def test_elliptic_signatures_are_believed(key: Callable[[], Any], algorithm: str) -> None:
    """A provider may sign with an elliptic curve."""
    with running(OpenIdProvider(key=key(), algorithm=algorithm)) as provider:
        assert (await log_in(provider, party_of(provider))).subject == "sub-1"


async def test_confidential_client_authenticates_with_its_secret() -> None:
    """A provider that demands a client secret gets it in both flows, and refuses without."""
    with running(OpenIdProvider(secret=SECRET)) as provider:
        assert (await log_in(provider, party_of(provider))).subject == "sub-1"
        assert (await log_in_by_page(party_of(provider))).subject == "sub-1"
        provider.secret = "wrong"
        with pytest.raises(ProviderError, match="Test Login"):
            await log_in(provider, party_of(provider))


async def test_userinfo_is_not_asked_where_the_token_says_all() -> None:
    """With the organisations in the ID token, the access token is never used."""
    with running(OpenIdProvider(organisations_in_token=True)) as provider:
        assert (await log_in(provider, party_of(provider), "carol")).organisations == {"neuropark", "others"}
        assert "/userinfo" not in provider.asked


async def test_userinfo_of_another_account_is_refused(
    provider: OpenIdProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the userinfo endpoint says counts for the ID token's subject only."""
    monkeypatch.setattr(provider, "user_info", lambda account: {"sub": "sub-2", "orgs": []})
    with pytest.raises(IdTokenError, match="another account"):
        await log_in(provider, party_of(provider))


def wrong(**claims: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Claims with some replaced, or left out where the value is None."""
    return lambda right: {name: value for name, value in (right | claims).items() if value is not None}


FORGERIES: dict[str, dict[str, Any]] = {
    "the audience is another client": {"aud": "another-client"},
    "the audience is missing": {"aud": None},
    "one of several audiences, for another party": {"aud": ["manyhands-test", "b"], "azp": "b"},
    "one of several audiences, for nobody in particular": {"aud": ["manyhands-test", "b"]},
    "the issuer is another": {"iss": "https://huggingface.co"},
    "the issuer is missing": {"iss": None},
    "expired": {"exp": int(time.time()) - 120},
    "never expires": {"exp": None},
    "expires at no number": {"exp": "tomorrow"},
    "expires at no finite number": {"exp": float("nan")},
    "issued in the future": {"iat": int(time.time()) + 7200},
    "issued before the login": {"iat": int(time.time()) - 7200},
    "not valid yet": {"nbf": int(time.time()) + 7200},
    "of another login": {"nonce": "another"},
    "the nonce is no text": {"nonce": ["another"]},
    "without a subject": {"sub": None},
    "the subject is empty": {"sub": ""},
    "the subject is no text": {"sub": 1},
    "the subject is endless": {"sub": "x" * 256},
    "beside another access token": {"at_hash": "AAAAAAAAAAAAAAAAAAAAAA"},
}


@pytest.mark.parametrize("claims", FORGERIES.values(), ids=FORGERIES.keys())
async def test_token_with_a_wrong_claim_is_refused(provider: OpenIdProvider, claims: dict[str, Any]) -> None:
    """Properly signed by the provider, but not for this coordinator, this login and this moment: in both flows."""
    provider.change_claims = wrong(**claims)
    party = party_of(provider)
    with pytest.raises(IdTokenError):
        await log_in_by_page(party)
    with pytest.raises(IdTokenError):
        await log_in(provider, party)


async def test_nonce_may_be_missing_in_the_device_flow_only(provider: OpenIdProvider) -> None:
    """RFC 8628 knows no nonce, so there the device code binds; the page flow insists."""
    provider.repeats_nonce = False
    assert (await log_in(provider, party_of(provider))).subject == "sub-1"
    provider.change_claims = wrong(nonce=None)
    with pytest.raises(IdTokenError, match="nonce"):
        await log_in_by_page(party_of(provider))


async def test_wrong_key_is_refused(provider: OpenIdProvider) -> None:
    """A token under the right key's name, signed by another key, is nobody's word."""
    provider.signing_key = RSAKey.generate_key(2048)
    with pytest.raises(IdTokenError, match="not signed by a key of Test Login"):
        await log_in(provider, party_of(provider))


def _part(content: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


def other_subject(token: str) -> str:
    """The payload changed under the old signature."""
    header, payload, signature = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(payload + "=="))
    return f"{header}.{_part(claims | {'sub': 'sub-2'})}.{signature}"


def unsigned(token: str) -> str:
    """Algorithm `none`."""
    return f"{_part({'alg': 'none'})}.{token.split('.')[1]}."


def half(token: str) -> str:
    return token[: len(token) // 2]


@pytest.mark.parametrize("change", [other_subject, unsigned, half, lambda token: "", lambda token: "a.b.c"])
async def test_tampered_token_is_refused(provider: OpenIdProvider, change: Callable[[str], str]) -> None:
    """Changed, unsigned, truncated or senseless tokens are refused."""
    provider.change_token = change
    with pytest.raises(IdTokenError):
        await log_in(provider, party_of(provider))


async def test_replayed_token_is_refused(provider: OpenIdProvider) -> None:
    """A token that admitted once admits nobody again: by its nonce, and without one because it was used."""
    party = party_of(provider)
    for repeats_nonce, word in ((True, "nonce"), (False, "used before")):
        provider.repeats_nonce, provider.change_token = repeats_nonce, str
        provider.change_claims = wrong(at_hash=None)
        await log_in(provider, party)
        used = provider.issued[-1]
        provider.change_token = lambda _, used=used: used
        with pytest.raises(IdTokenError, match=word):
            await log_in(provider, party, "bob")


async def test_refused_login(provider: OpenIdProvider) -> None:
    """Who says no at the provider is told that the login was refused, in both flows."""
    party = party_of(provider)
    login = await begin_device_login(party, f"{provider.url}/device")
    provider.decide(login.user_code, "Alice", approved=False)
    with pytest.raises(LoginDeniedError, match="Test Login"):
        await finish_device_login(party, login)
    with pytest.raises(LoginDeniedError, match="Test Login"):
        await log_in_by_page(party, account=None)


async def test_login_that_nobody_completes_expires() -> None:
    """Neither the provider's answer nor the code's time is waited for beyond it."""
    with running(OpenIdProvider(expires_in=0.5, interval=0.1)) as provider:
        party = party_of(provider)
        with pytest.raises(LoginExpiredError, match="in time"):
            await finish_device_login(party, await begin_device_login(party, f"{provider.url}/device"))


async def test_waiting_outlasts_a_provider_that_fails_now_and_then(provider: OpenIdProvider) -> None:
    """A failing answer while waiting is asked for again."""
    party = party_of(provider)
    login = await begin_device_login(party, f"{provider.url}/device")
    provider.decide(login.user_code, "Alice")
    provider.asked = _Downing(provider, iter([True]))
    assert (await finish_device_login(party, login)).subject == "sub-1"


class _Downing(list[str]):
    """Notes the paths asked for, and puts the provider out of order for its first token request."""

    def __init__(self, provider: OpenIdProvider, answers: Iterator[bool]) -> None:
        super().__init__()
        self._provider, self._answers = provider, answers

    def append(self, path: str) -> None:
        """Called at each request."""
        super().append(path)
        self._provider.down = path == "/token" and next(self._answers, False)


async def test_state_of_another_login_is_refused(provider: OpenIdProvider) -> None:
    """What a browser brings back counts for the login it was sent with."""
    party = party_of(provider)
    first, second = (new_code_login(party, CALLBACK) for _ in range(2))
    returned = await browse(await authorization_address(party, first))
    with pytest.raises(IdTokenError, match="another login"):
        await finish_code_login(party, second, returned)


async def test_code_is_of_no_use_without_its_verifier(provider: OpenIdProvider) -> None:
    """A stolen authorization code fails at the provider: its PKCE verifier never left the coordinator."""
    party = party_of(provider)
    login = new_code_login(party, CALLBACK)
    returned = await browse(await authorization_address(party, login))
    thief = CodeLogin(CALLBACK, login.state, login.nonce, new_code_login(party, CALLBACK).verifier, login.since)
    with pytest.raises(ProviderError, match="invalid_grant"):
        await finish_code_login(party, thief, returned)


async def test_answer_of_another_issuer_is_refused(provider: OpenIdProvider) -> None:
    """RFC 9207: an answer that names another provider is mixed up."""
    party = party_of(provider)
    login = new_code_login(party, CALLBACK)
    with pytest.raises(IdTokenError, match="another provider"):
        await finish_code_login(party, login, AuthorizationResponse(login.state, "code", "", "https://evil.example"))
