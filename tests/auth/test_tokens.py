"""Access tokens and revocation lists: one test for each way in which a token can be wrong."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from auth.errors import ExpiredTokenError, TokenError
from auth.keys import AuthorityKey
from auth.tokens import (
    MAX_CLOCK_SKEW_S,
    MAX_HANDOVER_CHARS,
    MAX_REVOCATIONS_CHARS,
    MAX_TOKEN_CHARS,
    TOKEN_TYPE,
    AccessToken,
    Handover,
    RevocationList,
    issue_handover,
    issue_revocations,
    issue_token,
    read_token,
    require_usable,
    verify_handover,
    verify_revocations,
)
from tests.support.tokens import claims_of, token_of

AUTHORITY = AuthorityKey.generate()
NOW = 1_800_000_000.5
TOKEN = AccessToken(
    member="Ada",
    device_id="d1",
    peer_id="QmPeer",
    public_key="ssh-rsa AAAA",
    role="trainer",
    run="demo",
    issued_at=NOW - 10,
    expires_at=NOW + 10,
    receipt_key="ab" * 32,
)
REVOCATIONS = RevocationList("demo", 3, NOW, frozenset({"QmOne", "QmTwo"}))


def verify(text: str, now: float = NOW, run: str = "demo") -> AccessToken:
    token = read_token(text, AUTHORITY.public_bytes, run)
    require_usable(token, now)
    return token


def forged(change: Callable[[dict[str, Any]], object], headers: dict[str, Any] | None = None) -> str:
    """A token with changed claims that the right authority signed."""
    claims = claims_of(issue_token(AUTHORITY, TOKEN))
    change(claims)
    return token_of({"alg": "EdDSA", "typ": TOKEN_TYPE} | (headers or {}), claims, AUTHORITY)


def test_valid_token_says_what_was_issued() -> None:
    """Verification gives back exactly what the authority signed."""
    assert verify(issue_token(AUTHORITY, TOKEN)) == TOKEN


def test_what_is_issued_is_the_same_in_every_version() -> None:
    """To the byte, with names beyond ASCII and a handover in the header: old and new peers read each other's."""
    old, new = (AuthorityKey(Ed25519PrivateKey.from_private_bytes(letter * 32)) for letter in (b"a", b"b"))
    handover = issue_handover(old, Handover("demo", NOW, old.public_bytes, new.public_bytes, NOW + 60))
    new = replace(new, handover=handover)
    issued = [handover, issue_token(new, replace(TOKEN, member="বাংলা")), issue_revocations(new, REVOCATIONS)]
    assert [hashlib.sha256(text.encode()).hexdigest()[:16] for text in issued] == [
        "2015268a6f00d32f",
        "f6a271361a284f03",
        "dac06d637d3dfe7c",
    ]


def test_a_token_without_a_receipt_key_must_be_renewed() -> None:
    """One of an older version says whose it is, and admits nobody: receipts could not name its device."""
    older = forged(lambda claims: claims.pop("receipt_key"))
    token = read_token(older, AUTHORITY.public_bytes, "demo")
    assert (token.member, token.receipt_key) == ("Ada", "")
    with pytest.raises(ExpiredTokenError, match="older version"):
        require_usable(token, NOW)


def test_a_handover_says_what_was_issued() -> None:
    """For its run only, and only if the key that it names as the old one has signed it."""
    handover = Handover("demo", NOW, AUTHORITY.public_bytes, b"n" * 32, NOW + 60)
    assert verify_handover(issue_handover(AUTHORITY, handover), "demo") == handover
    with pytest.raises(TokenError, match="not for the run 'other'"):
        verify_handover(issue_handover(AUTHORITY, handover), "other")
    with pytest.raises(TokenError, match="not signed"):
        verify_handover(issue_handover(AuthorityKey.generate(), handover), "demo")


def test_tampered_token_is_refused() -> None:
    """A changed payload under the old signature is refused."""
    header, _, signature = issue_token(AUTHORITY, TOKEN).split(".")
    _, payload, _ = issue_token(AUTHORITY, replace(TOKEN, role="keeper")).split(".")
    with pytest.raises(TokenError, match="not signed by the authority"):
        verify(f"{header}.{payload}.{signature}")


@pytest.mark.parametrize("claim", ["aud", "iat", "exp", "sub", "member", "peer_id", "public_key", "role"])
def test_missing_claim_is_refused(claim: str) -> None:
    """No claim may be left out."""
    with pytest.raises(TokenError):
        verify(forged(lambda claims: claims.pop(claim)))


@pytest.mark.parametrize(
    ("claim", "value"),
    [("exp", "never"), ("exp", True), ("exp", 1e300), ("iat", -1), ("role", "king"), ("sub", ""), ("member", ["Ada"])],
)
def test_malformed_claim_is_refused(claim: str, value: object) -> None:
    """A claim of the wrong type or out of range is refused, even if the authority signed it."""
    with pytest.raises(TokenError, match=claim):
        verify(forged(lambda claims: claims.update({claim: value})))


@pytest.mark.parametrize("text", ["", "a.b.c", "..", "ü.ü.ü", "{}", "x" * (MAX_TOKEN_CHARS + 1)])
def test_malformed_token_is_refused(text: str) -> None:
    """What is no JWT, or too long for one, is refused."""
    with pytest.raises(TokenError):
        verify(text)


def test_signed_text_is_bounded() -> None:
    """Nothing longer is decoded, whoever signed it: neither a token nor a revocation list nor a handover."""
    with pytest.raises(TokenError, match=f"{MAX_TOKEN_CHARS} are allowed"):
        verify(forged(lambda claims: claims.update(padding="x" * MAX_TOKEN_CHARS)))
    many = frozenset(f"{number:01000}" for number in range(MAX_REVOCATIONS_CHARS // 1000))
    listed = issue_revocations(AUTHORITY, replace(REVOCATIONS, peer_ids=many))
    with pytest.raises(TokenError, match=f"{MAX_REVOCATIONS_CHARS} are allowed"):
        verify_revocations(listed, AUTHORITY.public_bytes, "demo")
    run = "d" * MAX_HANDOVER_CHARS
    with pytest.raises(TokenError, match=f"{MAX_HANDOVER_CHARS} are allowed"):
        verify_handover(issue_handover(AUTHORITY, Handover(run, NOW, AUTHORITY.public_bytes, b"n" * 32, NOW)), run)


def test_deeply_nested_token_is_refused() -> None:
    """A header nested deeper than Python's stack is refused, not a crash."""
    header = base64.urlsafe_b64encode(b"[" * 2900).decode().rstrip("=")
    with pytest.raises(TokenError):
        verify(f"{header}.e30.c2ln")


@pytest.mark.parametrize(
    "header", ["alg", ["alg"], "alg typ", {}, {"alg": None}, {"alg": ["EdDSA"]}, {"alg": "Ed25519"}]
)
def test_a_header_without_the_algorithm_is_refused(header: object) -> None:
    """Also one that only looks as if it named EdDSA."""
    with pytest.raises(TokenError, match="cannot be read"):
        verify(token_of(header, claims_of(issue_token(AUTHORITY, TOKEN)), AUTHORITY))


@pytest.mark.parametrize(
    "header",
    [
        {"crit": ["b64"], "b64": False},
        {"crit": ["exp"], "exp": 1},
        {"crit": ["new"], "new": 1},
        {"crit": ["new"]},
        {"crit": []},
        {"crit": None},
        {"crit": "typ"},
        {"b64": False},
    ],
)
def test_what_must_be_understood_is_refused(header: dict[str, object]) -> None:
    """An extension that a later version calls critical is no matter for a version that does not know it."""
    with pytest.raises(TokenError, match="cannot be read"):
        verify(forged(lambda claims: None, headers=header))


def test_what_need_not_be_understood_is_ignored() -> None:
    """Later versions may write more."""
    assert verify(forged(lambda claims: claims.update(more=[1]), headers={"more": {"a": 1}})) == TOKEN


@pytest.mark.parametrize("change", [lambda text: text + "=", lambda text: text + "!", lambda text: text[:-1] + "-"])
def test_a_token_has_one_spelling(change: Callable[[str], str]) -> None:
    """Base64 that means the same bytes does not pass for the token."""
    with pytest.raises(TokenError):
        verify(change(issue_token(AUTHORITY, TOKEN)))


def test_token_is_not_valid_long_before_its_issue() -> None:
    """A token from the future is refused, but for the clock skew that is allowed."""
    text = issue_token(AUTHORITY, TOKEN)
    assert verify(text, now=TOKEN.issued_at - MAX_CLOCK_SKEW_S) == TOKEN
    with pytest.raises(TokenError, match="clock") as raised:
        verify(text, now=TOKEN.issued_at - MAX_CLOCK_SKEW_S - 1)
    assert not isinstance(raised.value, ExpiredTokenError)


def test_expired_token_is_told_apart() -> None:
    """At its expiry time a token ends, with an error of its own that says when."""
    text = issue_token(AUTHORITY, TOKEN)
    assert verify(text, now=TOKEN.expires_at - 0.1) == TOKEN
    with pytest.raises(ExpiredTokenError, match="2027-01-15"):
        verify(text, now=TOKEN.expires_at)


def test_token_of_another_run_is_refused() -> None:
    """A token holds for its run only."""
    with pytest.raises(TokenError, match="not for the run 'other'"):
        verify(issue_token(AUTHORITY, TOKEN), run="other")


def test_token_for_several_runs_is_refused() -> None:
    """An audience must be one run, not a list that contains it."""
    with pytest.raises(TokenError):
        verify(forged(lambda claims: claims.update(aud=["demo", "other"])))


def test_token_of_another_authority_is_refused() -> None:
    """Only the run's own authority counts."""
    with pytest.raises(TokenError, match="not signed by the authority"):
        verify(issue_token(AuthorityKey.generate(), TOKEN))


def unsigned(algorithm: str) -> str:
    def sign(content: bytes) -> bytes:
        return hmac.digest(AUTHORITY.public_bytes, content, "sha256") if algorithm == "HS256" else b""

    return token_of({"alg": algorithm, "typ": TOKEN_TYPE}, claims_of(issue_token(AUTHORITY, TOKEN)), sign)


@pytest.mark.parametrize("algorithm", ["none", "HS256"])
def test_other_algorithms_are_refused(algorithm: str) -> None:
    """Neither an unsigned token nor one "signed" with the public key as a shared secret passes."""
    with pytest.raises(TokenError):
        verify(unsigned(algorithm))


@pytest.mark.parametrize("kind", [None, "JWT", "manyhands-revocations+jwt"])
def test_token_of_another_kind_is_refused(kind: str | None) -> None:
    """Something else that the authority signed is no access token."""
    header = {"alg": "EdDSA"} | ({"typ": kind} if kind else {})
    with pytest.raises(TokenError, match="kind"):
        verify(token_of(header, claims_of(issue_token(AUTHORITY, TOKEN)), AUTHORITY))


def test_revocation_list_says_what_was_issued() -> None:
    """Verification gives back exactly what the authority signed; a list has no end of validity."""
    assert verify_revocations(issue_revocations(AUTHORITY, REVOCATIONS), AUTHORITY.public_bytes, "demo") == REVOCATIONS


@pytest.mark.parametrize(
    "text", [issue_token(AUTHORITY, TOKEN), issue_revocations(AuthorityKey.generate(), REVOCATIONS)]
)
def test_forged_revocation_list_is_refused(text: str) -> None:
    """Neither a token nor another authority's list passes for the run's list."""
    with pytest.raises(TokenError):
        verify_revocations(text, AUTHORITY.public_bytes, "demo")


def test_revocation_list_of_another_run_is_refused() -> None:
    """A list holds for its run only."""
    with pytest.raises(TokenError, match="not for the run"):
        verify_revocations(issue_revocations(AUTHORITY, REVOCATIONS), AUTHORITY.public_bytes, "other")
