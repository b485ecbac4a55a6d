"""A new key of the authority: who knows only the old one believes it by the handover, and the old one for a time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from auth.credentials import Credentials
from auth.errors import ExpiredTokenError, TokenError
from auth.keys import AuthorityKey
from auth.tokens import (
    AccessToken,
    Authorities,
    Handover,
    RevocationList,
    handover_in,
    issue_handover,
    issue_revocations,
    issue_token,
    verify_handover,
)
from tests.support.tokens import token_of

NOW = 1_800_000_000.0
UNTIL = NOW + 100
OLD = AuthorityKey.generate()


def successor(old: AuthorityKey = OLD, until: float = UNTIL, run: str = "demo") -> AuthorityKey:
    """A new key to which `old` has handed over."""
    new = AuthorityKey.generate()
    handover = Handover(run, NOW, old.public_bytes, new.public_bytes, until)
    return replace(new, handover=issue_handover(replace(old, handover=""), handover))


NEW = successor()


def token_for(credentials: Credentials, authority: AuthorityKey) -> str:
    key = credentials.device_key
    token = AccessToken("Ada", "d1", key.peer_id, key.public_key.decode(), "trainer", "demo", NOW, NOW + 1000, "a" * 64)
    return issue_token(authority, token)


def listed(authority: AuthorityKey, serial: int = 0, *peer_ids: str) -> str:
    return issue_revocations(authority, RevocationList("demo", serial, NOW, frozenset(peer_ids)))


def joined(directory: Path, authority: AuthorityKey) -> Credentials:
    credentials = Credentials(directory)
    jwt = token_for(credentials, authority)
    credentials.store_grant("demo", authority.public_bytes, jwt, listed(authority))
    return credentials


@pytest.fixture
def old(tmp_path: Path) -> Credentials:
    """A device that knows the old key only."""
    return joined(tmp_path / "old", OLD)


@pytest.fixture
def new(tmp_path: Path) -> Credentials:
    """A device that joined with the new key."""
    return joined(tmp_path / "new", NEW)


def test_old_and_new_believe_each_other_until_the_overlap_ends(old: Credentials, new: Credentials) -> None:
    """Each takes the other's token; afterwards the old key's are refused by who knows the new one."""
    assert old.check(new.token_jwt, NOW).peer_id == new.device_key.peer_id
    assert new.check(old.token_jwt, UNTIL - 1).peer_id == old.device_key.peer_id
    with pytest.raises(ExpiredTokenError, match="signed by a key that was replaced"):
        new.check(old.token_jwt, UNTIL)
    assert new.check(new.token_jwt, UNTIL).member == "Ada"


@pytest.mark.parametrize("sent", ["token", "list"])
def test_a_member_follows_by_whatever_the_coordinator_sends(old: Credentials, sent: str) -> None:
    """A renewed token or a list signed by the new key makes it the known one, for other processes, too."""
    if sent == "token":
        old.store_token(token_for(old, NEW))
    else:
        old.store_revocations(listed(NEW, 1, "QmMallory"))
        assert old.is_revoked("QmMallory")
    authorities = Authorities.from_bytes((old.directory / "authority.pub").read_bytes())
    assert authorities == Authorities(NEW.public_bytes, OLD.public_bytes, UNTIL)
    other = Credentials(old.directory)
    assert other.check(token_for(old, OLD), NOW).member == "Ada"
    with pytest.raises(ExpiredTokenError):
        other.check(token_for(old, OLD), UNTIL)
    assert not other.is_revoked("QmAda")  # the list that the old key has signed is still read


def test_the_same_list_signed_anew_replaces_the_old_ones(old: Credentials) -> None:
    """So that a second change of keys finds no list of a key that nobody remembers; an older list never does."""
    old.store_revocations(listed(OLD, 2, "QmMallory"))
    again = issue_revocations(NEW, RevocationList("demo", 2, NOW + 1, frozenset({"QmMallory"})))
    old.store_revocations(again)
    assert (old.directory / "revoked.jwt").read_text() == again
    old.store_revocations(listed(NEW, 1))
    assert old.is_revoked("QmMallory")


def test_who_missed_a_whole_change_joins_again(old: Credentials) -> None:
    """The third key is not vouched for by the first; a join, whose reply the certificate vouches for, sets it right."""
    third = successor(NEW)
    with pytest.raises(TokenError):
        old.store_token(token_for(old, third))
    old.store_grant("demo", third.public_bytes, token_for(old, third), listed(third, 5, "QmMallory"))
    assert old.access_token(NOW).member == "Ada"
    assert old.is_revoked("QmMallory")


def test_a_strangers_handover_is_worth_nothing(old: Credentials, new: Credentials) -> None:
    """Nobody but the known key can hand over, in a token's header no more than anywhere else."""
    stranger = AuthorityKey.generate()
    forged = Handover("demo", NOW, OLD.public_bytes, stranger.public_bytes, UNTIL)
    for handover in (
        issue_handover(stranger, forged),  # in the old key's name, signed by another
        successor(stranger).handover,  # of keys that nobody knows
        successor(OLD, run="another").handover,
        NEW.handover,  # a true one, to another key than the one that signs
        "nonsense",
    ):
        attacker = replace(stranger, handover=handover)
        for credentials in (old, new):
            before, token = (credentials.directory / "authority.pub").read_bytes(), token_for(credentials, attacker)
            for attempt in (
                partial(credentials.check, token, NOW),
                partial(credentials.store_token, token),
                partial(credentials.store_revocations, listed(attacker, 9)),
            ):
                with pytest.raises(TokenError):
                    attempt()
            assert (credentials.directory / "authority.pub").read_bytes() == before


def test_a_handover_to_the_known_key_by_a_stranger_is_not_believed(new: Credentials, tmp_path: Path) -> None:
    """A stranger may sign over to the authority's key; only what that key signs itself says who was before it."""
    stranger = AuthorityKey.generate()
    to_new = issue_handover(stranger, Handover("demo", NOW, stranger.public_bytes, NEW.public_bytes, UNTIL + 9e6))
    with pytest.raises(TokenError):
        new.store_token(token_for(new, replace(stranger, handover=to_new)))
    with pytest.raises(TokenError):
        new.check(token_for(new, stranger), NOW)


@pytest.mark.parametrize(
    "text", ["", "a.b.c", "x" * 2000, NEW.handover[:-4], token_of({"alg": "EdDSA"}, {"old_key": 5}, OLD)]
)
def test_a_malformed_handover_is_none(text: str) -> None:
    """Whatever the network made of it: one error, or none found in a header."""
    with pytest.raises(TokenError):
        verify_handover(text, "demo")
    assert handover_in(text, "demo") is None


def test_a_damaged_file_says_so(old: Credentials) -> None:
    """One sentence with the remedy."""
    (old.directory / "authority.pub").write_bytes(b"x" * 40)
    with pytest.raises(TokenError, match="damaged: join again"):
        old.check(old.token_jwt, NOW)
