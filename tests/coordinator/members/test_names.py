"""Under which name the public sees a member."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from auth.errors import ConfigError, NotInvitedError, RequestError, RevokedError
from auth.keys import AuthorityKey
from coordinator.members.erasure import erase
from coordinator.members.membership import Membership
from coordinator.members.names import ChosenName, choose_name, display_names, hide_name, set_display_name
from coordinator.store.engine import Database
from coordinator.store.models import Member, Naming
from tests.support.clocks import Clock
from tests.support.receipts import key_of

ADA, BOB = key_of("ada").public_key, key_of("bob").public_key
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def membership(database: Database) -> Membership:
    """Ada and Bob, each with a device."""
    membership = Membership(database, AuthorityKey.generate(), "demo", 3600, Clock())
    for name, key in (("Ada", ADA), ("Bob", BOB)):
        membership.join(key, membership.invite(name)[0])
    return membership


@pytest.mark.usefixtures("membership")
def test_a_member_chooses_by_the_key_of_any_device(database: Database) -> None:
    """Another name, none, or the own one again; whatever is in it, it is a text."""
    assert choose_name(database, ADA, " Night Owl ", anonymous=False) == ChosenName("Night Owl", hidden=False)
    assert display_names(database) == {"Ada": "Night Owl"}
    assert choose_name(database, ADA, "", anonymous=True).shown == "Anonymous 1"
    assert display_names(database) == {"Ada": "Anonymous 1"}
    assert choose_name(database, ADA, HOSTILE, anonymous=False).shown == HOSTILE
    assert choose_name(database, ADA, "", anonymous=False).shown == "Ada"
    assert display_names(database) == {}


@pytest.mark.usefixtures("membership")
@pytest.mark.parametrize(
    "name",
    [
        "bob",
        "ＢＯＢ",
        "Anonymous 7",
        "anonymous7",
        "keeper",
        "x" * 65,
        "two\nlines",
        "\u202e",
        "\u0412\u043e\u044c",
        "\u0430da",
    ],
)
def test_names_that_would_mislead_are_refused(database: Database, name: str) -> None:
    """Another's, in whatever spelling; a number; what cannot be read as one line. Nothing has changed then."""
    with pytest.raises(RequestError):
        choose_name(database, ADA, name, anonymous=True)
    assert display_names(database) == {}


def test_nobody_new_is_called_like_another(database: Database, membership: Membership) -> None:
    """Neither with a letter of another script, nor like a name that a member has chosen; who is there stays."""
    set_display_name(database, "Bob", "Night Owl")
    for name in ("\u0430da", "\u0410\u0501\u0430", "night owl"):
        with pytest.raises(ConfigError, match="The name"):
            membership.invite(name)
    with database.begin() as session:
        session.add(Member(name="\u0430da", created_at=0.0, revoked_reason=""))
    assert len(membership.invite("\u0430da")) == len(membership.invite("Ada")) == 1


@pytest.mark.usefixtures("membership")
def test_a_hidden_name_stays_hidden_whatever_the_member_chooses(database: Database) -> None:
    """Until the operator shows it again, and then it is what the member chose last."""
    assert hide_name(database, "Ada", hidden=True, now=1.0) == "Anonymous 1"
    assert choose_name(database, ADA, "Owl", anonymous=False) == ChosenName("Anonymous 1", hidden=True)
    assert display_names(database) == {"Ada": "Anonymous 1"}
    assert hide_name(database, "Ada", hidden=False, now=2.0) == "Owl"
    with pytest.raises(ConfigError, match="No member"):
        hide_name(database, "Nobody", hidden=True, now=3.0)


def test_a_number_is_nobodys_name(database: Database, membership: Membership) -> None:
    """Where somebody was invited under such a name, the one without a name is written in another way."""
    membership.invite("anonymous 1")
    choose_name(database, ADA, "", anonymous=True)
    assert display_names(database) == {"Ada": "Anonymous 1-"}


def test_only_members_devices_choose(database: Database, membership: Membership) -> None:
    """Not an unknown key, nor one whose member was removed."""
    with pytest.raises(NotInvitedError):
        choose_name(database, key_of("stranger").public_key, "Owl", anonymous=False)
    membership.revoke("Bob")
    with pytest.raises(RevokedError):
        choose_name(database, BOB, "Owl", anonymous=False)


def test_an_erased_member_is_seen_under_the_pseudonym(database: Database, membership: Membership) -> None:
    """What was chosen about the name goes with it."""
    choose_name(database, ADA, "Owl", anonymous=True)
    assert erase(database, membership, "Ada") == "erased-1"
    assert display_names(database) == {}
    with database() as session:
        assert session.scalars(select(Naming)).all() == []


def test_the_operators_choice_is_checked_alike(database: Database, membership: Membership) -> None:
    """A pseudonym is nobody else's name, and no number."""
    assert membership.known_name("Ada") == "Ada"
    for name in ("BOB", "Anonymous 2"):
        with pytest.raises(ConfigError, match="choose another"):
            set_display_name(database, "Ada", name)
