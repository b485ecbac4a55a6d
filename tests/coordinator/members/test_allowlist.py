"""Who may log in, as whom and in which role: names, subjects, organisations, and what stays when names change."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import select

from auth.errors import ConfigError, NotAllowedError, RequestError, RevokedError
from auth.keys import AuthorityKey
from auth.openid.provider import Identity
from coordinator.members.allowlist import Entry
from coordinator.members.erasure import erase
from coordinator.members.membership import Membership
from coordinator.store.engine import Database
from coordinator.store.models import Account

ALICE = Identity("hf", "https://hf.test", "sub-1", "Alice", frozenset())
BOB = Identity("hf", "https://hf.test", "sub-2", "bob", frozenset({"neuropark"}))


@pytest.fixture
def membership(database: Database) -> Membership:
    return Membership(database, AuthorityKey.generate(), "demo", 3600)


def test_allowed_account_becomes_its_member(membership: Membership, keys: list[bytes]) -> None:
    """The entry's case does not matter; the member is there from the entry on, and the device is the member's."""
    membership.allow("hf:ALICE")
    assert [(row.name, row.devices, row.accounts) for row in membership.members()] == [
        ("hf:alice", 0, ("hf:alice (not yet)",))
    ]
    grant = membership.join_by_login(keys[0], ALICE)
    assert (grant.member, grant.role) == ("hf:alice", "trainer")
    assert [(row.name, row.devices, row.accounts) for row in membership.members()] == [("hf:alice", 1, ("hf:Alice",))]
    assert membership.join(keys[0]).member == "hf:alice"
    assert membership.renew(keys[0]).device_id == grant.device_id


def test_account_that_is_not_listed_is_named(membership: Membership, keys: list[bytes]) -> None:
    """The error says who logged in; another provider's name, and a subject that is spelled as a name, do not match."""
    membership.allow("gitlab:alice")
    membership.allow("hf:sub-1")
    with pytest.raises(NotAllowedError, match="hf:Alice"):
        membership.join_by_login(keys[0], ALICE)
    with pytest.raises(NotAllowedError, match="hf-sub:sub-1"):
        membership.join_by_login(keys[0], replace(ALICE, username=""))
    assert [row.devices for row in membership.members()] == [0, 0]


def test_renamed_account_stays_and_its_old_name_admits_nobody_else(membership: Membership, keys: list[bytes]) -> None:
    """Once matched, the subject counts: Alice under a new name is Alice, and the next `alice` is a stranger."""
    membership.allow("hf:alice")
    membership.join_by_login(keys[0], ALICE)
    assert membership.join_by_login(keys[1], replace(ALICE, username="wonder")).member == "hf:alice"
    with pytest.raises(NotAllowedError, match="belongs to another account"):
        membership.join_by_login(keys[2], replace(ALICE, subject="sub-9"))


def test_name_put_back_on_the_list_means_whom_it_meant(membership: Membership, keys: list[bytes]) -> None:
    """Taking an entry off and back on does not give the member to who bears the name by now."""
    membership.allow("hf:alice")
    membership.join_by_login(keys[0], ALICE)
    membership.disallow("hf:alice")
    membership.allow("hf:alice")
    with pytest.raises(NotAllowedError, match="belongs to another account"):
        membership.join_by_login(keys[1], replace(ALICE, subject="sub-9"))
    assert membership.join_by_login(keys[1], ALICE).member == "hf:alice"


def test_same_subject_of_another_issuer_is_somebody_else(membership: Membership, keys: list[bytes]) -> None:
    """Subjects are unique within an issuer only, also if a provider's name comes to mean another."""
    membership.allow("hf-sub:sub-1")
    membership.join_by_login(keys[0], ALICE)
    with pytest.raises(NotAllowedError):
        membership.join_by_login(keys[1], replace(ALICE, issuer="https://elsewhere.test"))


def test_organisation_admits_its_people(membership: Membership, keys: list[bytes]) -> None:
    """Each is a member of their own; who has left the organisation brings no further device."""
    membership.allow("hf-org:NeuroPark", role="auxiliary")
    assert membership.join_by_login(keys[0], BOB).role == "auxiliary"
    with pytest.raises(NotAllowedError, match="hf:Alice"):
        membership.join_by_login(keys[1], ALICE)
    with pytest.raises(NotAllowedError, match="hf:bob"):
        membership.join_by_login(keys[1], replace(BOB, organisations=frozenset()))
    assert [(row.entry, row.role, row.matched) for row in membership.allowlist()] == [
        ("hf-org:neuropark", "auxiliary", False)
    ]


def test_best_entry_decides_the_role(membership: Membership, keys: list[bytes]) -> None:
    """Of a person's and an organisation's entry the one that allows more; no login allows more than that."""
    membership.allow("hf-org:neuropark", role="observer")
    membership.allow("hf:bob", role="auxiliary")
    assert membership.join_by_login(keys[0], BOB).role == "auxiliary"
    with pytest.raises(RequestError, match="not as trainer"):
        membership.join_by_login(keys[1], BOB, "trainer")
    with pytest.raises(RequestError, match="not as trainer"):
        membership.join(keys[0], role="trainer")


def test_account_may_be_a_member_who_is_known(membership: Membership, keys: list[bytes]) -> None:
    """With a name given, several accounts and invites are one person's."""
    membership.join(keys[0], membership.invite("Alice L.")[0])
    membership.allow("hf:alice", name="Alice L.")
    assert membership.join_by_login(keys[1], ALICE).member == "Alice L."


def test_login_never_takes_over_anothers_membership(membership: Membership, keys: list[bytes]) -> None:
    """An account of an organisation that is called as a member becomes another member."""
    membership.join(keys[0], membership.invite("hf:bob")[0])
    membership.allow("hf-org:neuropark")
    member = membership.join_by_login(keys[1], BOB).member
    assert member.startswith("hf:bob#")
    with pytest.raises(RequestError, match="belongs to hf:bob"):
        membership.join_by_login(keys[0], BOB)


def test_revoked_member_cannot_log_in(membership: Membership, keys: list[bytes]) -> None:
    """Neither with the device, nor with a new one, nor after being allowed again."""
    membership.allow("hf:alice")
    membership.join_by_login(keys[0], ALICE)
    membership.revoke("hf:alice", "sent rubbish")
    for key in keys[:2]:
        with pytest.raises(RevokedError, match="sent rubbish"):
            membership.join_by_login(key, ALICE)
    with pytest.raises(RevokedError):
        membership.allow("hf:alice")


def test_removed_entry_admits_nobody_new(membership: Membership, keys: list[bytes]) -> None:
    """Devices that are in stay in; the account brings no others."""
    membership.allow("hf:alice")
    membership.join_by_login(keys[0], ALICE)
    membership.disallow("hf:alice")
    assert membership.join(keys[0]).member == "hf:alice"
    with pytest.raises(NotAllowedError):
        membership.join_by_login(keys[1], ALICE)
    with pytest.raises(ConfigError, match="hf:alice"):
        membership.disallow("hf:alice")


@pytest.mark.parametrize("text", ["alice", "hf:", ":alice", "HF:alice", "hf-team:x", "hf:a\nb", "hf:" + "x" * 256])
def test_senseless_entries_are_refused(text: str) -> None:
    """An entry names a provider, and an account or an organisation."""
    with pytest.raises(ConfigError, match="entry"):
        Entry.parse(text)


def test_impossible_allowances_are_refused(membership: Membership) -> None:
    """Privileged roles cannot be allowed, and an organisation is nobody's name."""
    with pytest.raises(ConfigError, match="admin"):
        membership.allow("hf:alice", role="admin")
    with pytest.raises(ConfigError, match="many people"):
        membership.allow("hf-org:neuropark", name="Alice")


def test_erased_member_leaves_no_account_behind(membership: Membership, database: Database, keys: list[bytes]) -> None:
    """Neither subject nor user name stays, in the accounts or on the allowlist."""
    membership.allow("hf:alice")
    membership.join_by_login(keys[0], ALICE)
    erase(database, membership, "hf:alice")
    assert membership.allowlist() == []
    with database() as session:
        assert session.scalars(select(Account.subject)).all() == []
    with pytest.raises(NotAllowedError):
        membership.join_by_login(keys[1], ALICE)
