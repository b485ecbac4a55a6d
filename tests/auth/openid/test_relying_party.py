"""What a provider publishes of itself is asked for over safe addresses, within bounds, and rarely."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from pydantic import ValidationError
from werkzeug import Response
from werkzeug.serving import make_server

from auth.errors import ProviderError
from auth.openid.http import MAX_ANSWER_BYTES, fetch_json
from auth.openid.provider import Provider, identity_of, normalise, require_safe_url, with_known
from auth.openid.relying_party import CACHED_S, KEYS_AT_MOST_EVERY_S, Discovery, parse_keys
from tests.support.clocks import Clock
from tests.support.openid_provider import OpenIdProvider, rsa_key


def discovery_of(provider: OpenIdProvider, clock: Clock | None = None) -> Discovery:
    return Discovery("Test Login", Provider.model_validate(provider.settings()), clock or Clock(0.0))


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/x",
        "ftp://example.org/x",
        "https://user:pass@example.org/",
        "https://exa mple.org/",
        "https://example.org/\n",
        "https:///nowhere",
        "javascript:alert(1)",
        "http://127.0.0.1.example.org/",
        "https://example.org/" + "x" * 2000,
    ],
)
def test_unsafe_addresses_are_refused(url: str) -> None:
    """Only HTTPS, or HTTP on this machine, without names and passwords in it."""
    with pytest.raises(ValueError, match="address"):
        require_safe_url(url)


@pytest.mark.parametrize(
    "url", ["https://example.org/x", "http://127.0.0.1:9000/x", "http://[::1]/", "http://localhost/"]
)
def test_safe_addresses_are_taken(url: str) -> None:
    """HTTPS anywhere, HTTP at home."""
    assert require_safe_url(url) == url


def test_hugging_face_needs_a_client_id_only() -> None:
    """Its address, its name and where its organisations stand are known; what the operator says wins."""
    provider = Provider.model_validate(with_known({"hf": {"client_id": "abc", "title": "HF"}})["hf"])
    assert provider.discovery == "https://huggingface.co/.well-known/openid-configuration"
    assert (provider.title, provider.organisation_claim) == ("HF", "orgs[].preferred_username")


@pytest.mark.parametrize(
    "change", [{"scopes": ["profile"]}, {"discovery": "https://example.org"}, {"client_id": ""}, {"client_secret": "x"}]
)
def test_unusable_settings_are_refused(change: dict[str, Any]) -> None:
    """No login without an ID token; no secret in the settings."""
    with pytest.raises(ValidationError):
        Provider.model_validate(
            {"discovery": "https://a.b/.well-known/openid-configuration", "client_id": "a"} | change
        )


async def test_facts_are_cached_and_fetched_again_when_old(provider: OpenIdProvider) -> None:
    """One request serves an hour of logins."""
    clock = Clock(0.0)
    discovery = discovery_of(provider, clock)
    for _ in range(3):
        await discovery.endpoints()
        await discovery.keys(None)
    assert len(provider.asked) == 2
    clock.now += CACHED_S
    await discovery.keys(None)
    assert len(provider.asked) == 4


async def test_unknown_keys_are_looked_for_once_a_minute(provider: OpenIdProvider) -> None:
    """A changed key is found at once, and endless tokens with made-up keys cause no endless requests."""
    clock = Clock(0.0)
    discovery = discovery_of(provider, clock)
    for name in ("made up", "another", rsa_key().kid):
        await discovery.keys(name)
    assert provider.asked.count("/jwks") == 1
    clock.now += KEYS_AT_MOST_EVERY_S
    for name in ("made up", "another"):
        await discovery.keys(name)
    assert provider.asked.count("/jwks") == 2


async def test_provider_in_anothers_name_is_refused(provider: OpenIdProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    """The issuer must be the one whose address was configured; and what is no address is no endpoint."""
    published = provider.published()
    for change in ({"issuer": "https://huggingface.co"}, {"token_endpoint": "http://example.org/"}, {"jwks_uri": None}):
        monkeypatch.setattr(provider, "published", lambda change=change: published | change)
        with pytest.raises(ProviderError, match="Test Login"):
            await discovery_of(provider).endpoints()


async def test_unreachable_provider_is_named(provider: OpenIdProvider) -> None:
    """An answer with an error status, and no answer at all, are the provider's failure."""
    provider.down = True
    with pytest.raises(ProviderError, match="Test Login cannot be reached"):
        await discovery_of(provider).endpoints()
    with pytest.raises(ProviderError, match="Test Login cannot be reached"):
        await fetch_json("Test Login", "http://127.0.0.1:1/")


BAD_ANSWERS = {
    "endless": Response(b" " * (MAX_ANSWER_BYTES + 1)),
    "compressed": Response(gzip.compress(b"{}"), headers={"content-encoding": "gzip"}),
    "elsewhere": Response(status=302, headers={"location": "https://example.org/"}),
    "no JSON": Response(b"<html>"),
    "no object": Response(b"[]"),
    "too deep": Response(b'{"a":' * 50_000),
}


@pytest.mark.parametrize("answer", BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
async def test_answers_are_bounded(answer: Response) -> None:
    """Too long, compressed, redirecting or senseless answers are refused."""
    from threading import Thread

    server = make_server("127.0.0.1", 0, answer)
    thread = Thread(target=server.handle_request)
    thread.start()
    try:
        with pytest.raises(ProviderError, match="Test Login"):
            await fetch_json("Test Login", f"http://127.0.0.1:{server.server_port}/")
    finally:
        thread.join()
        server.server_close()


def test_only_strong_public_signing_keys_are_used() -> None:
    """Symmetric, short, encrypting and unknown keys are passed over, and the rest is used."""
    good = rsa_key().as_dict(private=False)
    bad = [
        {"kty": "oct", "k": "c2VjcmV0"},
        {"kty": "new"},
        good | {"use": "enc"},
        {"kty": "RSA", "n": "AQAB", "e": "AQAB"},
    ]
    assert [key.kid for key in parse_keys("Test Login", {"keys": [*bad, {"kty": "EC"}, "x", None, good]})] == [
        good["kid"]
    ]
    for keys in (None, {}, [good] * 65):
        with pytest.raises(ProviderError):
            parse_keys("Test Login", {"keys": keys})


def test_names_are_compared_without_case_but_letter_by_letter() -> None:
    """Nobody gets another's name by registering one that only looks or sorts alike."""
    assert normalise(" Alice ") == normalise("ALICE") == "alice"
    assert len({normalise(name) for name in ("alice", "ａlice", "аlice", "alıce", "alice​")}) == 5
    assert normalise("K") != normalise("\u212a")  # the Kelvin sign
    assert normalise("straße") != normalise("strasse")


def test_unverified_addresses_are_no_names() -> None:
    """An e-mail address counts as a name only if the provider has verified it."""
    settings = {
        "discovery": "https://a.b/.well-known/openid-configuration",
        "client_id": "a",
        "username_claim": "email",
    }
    provider = Provider.model_validate(settings)
    claims = {"sub": "1", "email": "a@b.org"}
    assert identity_of("a", provider, "https://a.b", claims).username == ""
    assert identity_of("a", provider, "https://a.b", claims | {"email_verified": True}).username == "a@b.org"


@pytest.mark.parametrize("claim", ["a" * 200, "é" * 200, "orgs[].name"])
def test_the_name_of_a_claim_has_200_characters_at_most(claim: str) -> None:
    """Letters of any script; one more character is refused, and so is a space."""
    settings = {"discovery": "https://a.b/.well-known/openid-configuration", "client_id": "a"}
    assert Provider.model_validate(settings | {"username_claim": claim}).username_claim == claim
    for refused in (claim.ljust(201, "a"), f"{claim[:9]} a", ""):
        with pytest.raises(ValidationError):
            Provider.model_validate(settings | {"username_claim": refused})


@pytest.mark.parametrize(
    ("path", "claims"),
    [
        ("groups", {"groups": ["Neuro"]}),
        ("groups[]", {"groups": ["Neuro", 7, None, {}, "x" * 65, "bell\a"]}),
        ("orgs[].name", {"orgs": [{"name": "Neuro"}, {"name": 3}, "text", None]}),
        ("realm.roles[]", {"realm": {"roles": ["Neuro"]}}),
        ("https://example.org/groups", {"https://example.org/groups": ["Neuro"]}),
    ],
)
def test_organisations_are_found_by_path(path: str, claims: dict[str, Any]) -> None:
    """Lists, objects in lists, objects, and claims named by an address; whatever is no name is left out."""
    settings = {"discovery": "https://a.b/.well-known/openid-configuration", "client_id": "a"}
    provider = Provider.model_validate(settings | {"organisation_claim": path})
    assert identity_of("a", provider, "https://a.b", {"sub": "1"} | claims).organisations == {"neuro"}
