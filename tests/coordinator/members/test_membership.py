"""Who may take part: invites, devices, revocation."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, insert, select

from auth.errors import (
    ConfigError,
    ExpiredInviteError,
    ExpiredTokenError,
    NotInvitedError,
    RequestError,
    RevokedError,
    UnknownInviteError,
    UsedInviteError,
)
from auth.keys import AuthorityKey, peer_id_of
from auth.tokens import read_token
from coordinator.ledger.sessions import open_session
from coordinator.members.membership import Membership, device_id_of
from coordinator.store.engine import Database
from coordinator.store.models import Device, Invite, Refusal
from coordinator.store.refusals import KEPT_REFUSALS, add_refusal, newest_refusals
from tests.support.clocks import Clock

AUTHORITY = AuthorityKey.generate()
LIFETIME_S = 3600
PSEUDONYM = "ab" * 32
DAY_S = 86_400


@pytest.fixture
def membership(database: Database, clock: Clock) -> Membership:
    return Membership(database, AUTHORITY, "demo", LIFETIME_S, clock=clock)


def test_invited_device_receives_a_token_of_its_own(membership: Membership, keys: list[bytes], clock: Clock) -> None:
    """The token names member, device, keys, role, run and times, signed by the authority."""
    [code] = membership.invite(" Ada Lovelace ")
    grant = membership.join(keys[0], code, receipt_key=PSEUDONYM)
    token = read_token(grant.token_jwt, AUTHORITY.public_bytes, "demo")
    assert (token.member, token.role, token.device_id) == ("Ada Lovelace", "trainer", grant.device_id)
    assert (token.peer_id, token.public_key.encode()) == (peer_id_of(keys[0]), keys[0])
    assert token.receipt_key == PSEUDONYM
    assert (token.issued_at, token.expires_at) == (clock.now, clock.now + LIFETIME_S)
    assert membership.check(grant.token_jwt) == token


def test_a_receipt_key_is_one_devices_for_good(membership: Membership, keys: list[bytes]) -> None:
    """Each token names it from the join that told it; neither another device nor another key takes its place."""
    membership.join(keys[0], membership.invite("Ada")[0])
    assert read_token(membership.renew(keys[0]).token_jwt, AUTHORITY.public_bytes, "demo").receipt_key == ""
    membership.join(keys[0], receipt_key=PSEUDONYM)
    assert read_token(membership.renew(keys[0]).token_jwt, AUTHORITY.public_bytes, "demo").receipt_key == PSEUDONYM
    [code] = membership.invite("Eve")
    with pytest.raises(RequestError, match="another device's"):
        membership.join(keys[1], code, receipt_key=PSEUDONYM)
    with pytest.raises(RequestError, match="with another key"):
        membership.join(keys[0], receipt_key="cd" * 32)
    assert membership.join(keys[1], code, receipt_key="cd" * 32).member == "Eve"  # the code was not used up


def test_a_token_without_a_receipt_key_is_refused(membership: Membership, keys: list[bytes]) -> None:
    """A program of an older version is sent to renew it, and there learns which version to install."""
    older = membership.join(keys[0], membership.invite("Ada")[0]).token_jwt
    with pytest.raises(ExpiredTokenError, match="older version"):
        membership.check(older)


def test_devices_are_numbered_in_the_order_of_joining(membership: Membership, keys: list[bytes]) -> None:
    """A number is nobody else's, whoever joins between, and a device that comes back keeps its own."""
    first, second, third = (membership.join(key, membership.invite("Ada")[0]).device_number for key in keys[:3])
    assert [first, second, third] == [0, 1, 2]
    assert membership.join(keys[1]).device_number == 1


def test_devices_that_join_at_once_get_different_numbers(membership: Membership, keys: list[bytes]) -> None:
    """Two transactions that read the same highest number do not both give the next one."""
    codes = membership.invite("Ada", devices=len(keys))
    with ThreadPoolExecutor(len(keys)) as pool:
        numbers = list(pool.map(lambda pair: membership.join(*pair).device_number, zip(keys, codes, strict=True)))
    assert sorted(numbers) == list(range(len(keys)))


def test_codes_are_stored_hashed(membership: Membership, database: Database) -> None:
    """Whoever reads the database cannot join with what stands there."""
    [code] = membership.invite("Ada")
    with database() as session:
        stored = session.scalar(select(Invite.code_sha256))
    assert len(stored) == 32
    assert code.encode() not in stored


def test_used_code_is_refused_to_another_device(membership: Membership, keys: list[bytes]) -> None:
    """A code admits one device."""
    [code] = membership.invite("Ada")
    membership.join(keys[0], code)
    with pytest.raises(UsedInviteError):
        membership.join(keys[1], code)
    assert [member.devices for member in membership.members()] == [1]


def test_used_code_may_be_repeated_by_its_device(membership: Membership, keys: list[bytes], clock: Clock) -> None:
    """A device whose reply was lost sends the code again, even after the code's time."""
    [code] = membership.invite("Ada")
    first = membership.join(keys[0], code)
    clock.now += 8 * DAY_S
    assert membership.join(keys[0], code).device_id == first.device_id


def test_expired_code_is_refused(membership: Membership, keys: list[bytes], clock: Clock) -> None:
    """At the end of its days a code admits nobody."""
    [early, late] = membership.invite("Ada", days=1, devices=2)
    clock.now += DAY_S - 1
    membership.join(keys[0], early)
    clock.now += 1
    with pytest.raises(ExpiredInviteError):
        membership.join(keys[1], late)


def test_one_code_admits_one_of_many_at_once(membership: Membership, keys: list[bytes], database: Database) -> None:
    """Devices that use one code at the same instant: one is admitted, the others leave no trace."""
    [code] = membership.invite("Ada")

    def attempt(key: bytes) -> str:
        try:
            return membership.join(key, code).device_id
        except UsedInviteError:
            return "used"

    with ThreadPoolExecutor(len(keys)) as pool:
        outcomes = list(pool.map(attempt, keys))
    assert outcomes.count("used") == len(keys) - 1
    with database() as session:
        assert session.scalars(select(Device.id)).all() == [outcome for outcome in outcomes if outcome != "used"]


def test_known_device_does_not_waste_a_second_code(membership: Membership, keys: list[bytes]) -> None:
    """A member's second code, used on the first machine by mistake, still works on the second."""
    [first, second] = membership.invite("Ada", devices=2)
    membership.join(keys[0], first)
    membership.join(keys[0], second)
    assert membership.join(keys[1], second).member == "Ada"


def test_known_device_cannot_change_its_owner(membership: Membership, keys: list[bytes]) -> None:
    """Somebody else's code on a known device is refused, and stays usable."""
    [adas] = membership.invite("Ada")
    [bobs] = membership.invite("Bob")
    membership.join(keys[0], adas)
    with pytest.raises(RequestError, match="belongs to Ada"):
        membership.join(keys[0], bobs)
    assert membership.join(keys[1], bobs).member == "Bob"


def test_device_may_do_less_than_it_was_invited_for(membership: Membership, keys: list[bytes]) -> None:
    """A trainer may come as auxiliary peer, keeps that role, and may train again later."""
    [code] = membership.invite("Ada", role="trainer")
    assert membership.join(keys[0], code, "auxiliary").role == "auxiliary"
    assert membership.renew(keys[0]).role == "auxiliary"
    assert membership.join(keys[0], role="trainer").role == "trainer"


def test_device_may_not_do_more_than_it_was_invited_for(membership: Membership, keys: list[bytes]) -> None:
    """An observer cannot train, until a further invite allows it."""
    [code] = membership.invite("Ada", role="observer")
    with pytest.raises(RequestError, match="invited as observer"):
        membership.join(keys[0], code, "trainer")
    membership.join(keys[0], code)
    [better] = membership.invite("Ada", role="trainer")
    assert membership.join(keys[0], better).role == "trainer"


@pytest.mark.parametrize("role", ["keeper", "admin", "king"])
def test_privileged_roles_cannot_be_asked_for(membership: Membership, keys: list[bytes], role: str) -> None:
    """Neither a device nor an invite makes a keeper or an admin."""
    with pytest.raises(ConfigError, match=role):
        membership.invite("Ada", role=role)
    [code] = membership.invite("Ada")
    with pytest.raises(RequestError, match=role):
        membership.join(keys[0], code, role)


@pytest.mark.parametrize("name", ["", "   ", "x" * 65, "two\nlines", "bell\a", "keeper", " keeper "])
def test_unusable_names_are_refused(membership: Membership, name: str) -> None:
    """A name has 1 to 64 printable characters and is not the keeper's."""
    with pytest.raises(ConfigError, match="name"):
        membership.invite(name)


def test_one_name_is_one_member_however_it_is_written(membership: Membership) -> None:
    """Two Unicode spellings of a name, and blanks around it, lead to one member."""
    membership.invite("Zoé")
    membership.invite(" Zoe\u0301 ")
    assert [(member.name, member.open_invites) for member in membership.members()] == [("Zoé", 2)]


@pytest.mark.parametrize(("days", "devices"), [(0, 1), (-1, 1), (366, 1), (float("nan"), 1), (7, 0), (7, 1001)])
def test_impossible_invitations_are_refused(membership: Membership, days: float, devices: int) -> None:
    """Days and number of devices have limits, and the error names them."""
    with pytest.raises(ConfigError, match="not"):
        membership.invite("Ada", days=days, devices=devices)


def test_revoked_member_is_shut_out(membership: Membership, keys: list[bytes]) -> None:
    """Join, renewal, a shown token and unused codes all end with the revocation, and the reason is told."""
    [code, unused] = membership.invite("Ada", devices=2)
    jwt = membership.join(keys[0], code, receipt_key=PSEUDONYM).token_jwt
    assert membership.revoke("Ada", "sent rubbish") == 1
    for attempt in (
        lambda: membership.join(keys[0]),
        lambda: membership.join(keys[0], code),
        lambda: membership.join(keys[1], unused),
        lambda: membership.renew(keys[0]),
        lambda: membership.check(jwt),
        lambda: membership.invite("Ada"),
    ):
        with pytest.raises(RevokedError, match="sent rubbish"):
            attempt()


def test_revoking_again_concerns_no_further_device(membership: Membership, keys: list[bytes]) -> None:
    """A second revocation is harmless and keeps the first reason."""
    membership.join(keys[0], membership.invite("Ada")[0])
    assert (membership.revoke("Ada", "first"), membership.revoke("Ada", "second")) == (1, 0)
    assert [member.revoked_reason for member in membership.members()] == ["first"]


def test_revoking_nobody_is_an_error(membership: Membership) -> None:
    """A mistyped name is not taken for success, and the keeper cannot be revoked."""
    for name in ("Nobody", "keeper"):
        with pytest.raises(ConfigError, match=name):
            membership.revoke(name, "")


def test_keeper_joins_by_itself_and_stays_hidden(membership: Membership, keys: list[bytes]) -> None:
    """The keeper receives its role whenever it asks, and is nobody's contribution."""
    first, again = (membership.grant_keeper(keys[0], PSEUDONYM) for _ in range(2))
    assert (first.role, first.device_id) == ("keeper", again.device_id)
    assert membership.check(first.token_jwt).role == "keeper"
    assert membership.members() == []


def test_token_of_a_forgotten_device_is_refused(membership: Membership, keys: list[bytes], database: Database) -> None:
    """A valid signature does not help a device that the database has lost."""
    jwt = membership.grant_keeper(keys[0], PSEUDONYM).token_jwt
    with database.begin() as session:
        session.delete(session.get_one(Device, device_id_of(keys[0])))
    with pytest.raises(NotInvitedError):
        membership.check(jwt)


def test_members_are_listed_with_what_the_operator_wants_to_know(
    membership: Membership, keys: list[bytes], database: Database, clock: Clock
) -> None:
    """The list shows devices, open invites, when a member was last seen, and who was revoked."""
    grant = membership.join(keys[0], membership.invite("Ada", devices=3)[0])
    open_session(database, grant.device_id, "cpu", "0.1", now=clock.now + 5)
    membership.invite("Bob", days=1)
    membership.invite("Eve")
    membership.revoke("Eve", "why not")
    clock.now += 2 * DAY_S
    rows = {row.name: row for row in membership.members()}
    assert list(rows) == ["Ada", "Bob", "Eve"]
    assert (rows["Ada"].devices, rows["Ada"].open_invites) == (1, 2)
    assert rows["Ada"].last_seen_at == clock.now - 2 * DAY_S + 5
    assert (rows["Bob"].devices, rows["Bob"].open_invites, rows["Bob"].last_seen_at) == (0, 0, None)
    assert (rows["Eve"].open_invites, rows["Eve"].revoked_reason) == (0, "why not")


def test_refusals_are_kept_for_the_operator(membership: Membership, database: Database, clock: Clock) -> None:
    """A refusal is stored with its kind, code and sentence."""
    membership.record_refusal("join", UnknownInviteError("No such\0code."))  # PostgreSQL stores no NUL
    with database() as session:
        refusal = session.scalars(select(Refusal)).one()
    assert (refusal.kind, refusal.code, refusal.reason) == ("join", "unknown-invite", "No such?code.")
    assert refusal.at == clock.now


def test_refusals_are_found_by_who_and_why(membership: Membership, database: Database, keys: list[bytes]) -> None:
    """By the member of the device, its id, the request or the reason, whatever the case; a stranger has no name."""
    device = membership.join(keys[0], membership.invite("Ada")[0]).device_id
    membership.record_refusal("report", UnknownInviteError("Too early"), device)
    membership.record_refusal("join", UnknownInviteError("100 % wrong"))
    assert [(row.member, row.device_id) for row in newest_refusals(database, 9)] == [("", ""), ("Ada", device)]
    for search, reason in (
        ("ada", "Too early"),
        (device[:8], "Too early"),
        ("JOIN", "100 % wrong"),
        ("%", "100 % wrong"),
    ):
        assert [row.reason for row in newest_refusals(database, 9, search=search)] == [reason]
    assert [row.kind for row in newest_refusals(database, 1, offset=1)] == ["report"]


def test_flood_of_refusals_keeps_the_newest(database: Database) -> None:
    """The table does not grow without end."""
    with database.begin() as session:
        session.execute(insert(Refusal), [{"at": 0.0, "kind": "join", "code": "x", "reason": "old"}] * KEPT_REFUSALS)
        add_refusal(session, "join", "x", "new " * 1000, None, now=1.0)
    with database() as session:
        assert session.scalar(select(func.count()).select_from(Refusal)) == KEPT_REFUSALS
        newest = session.scalars(select(Refusal).order_by(Refusal.id.desc())).first()
    assert newest.reason.startswith("new")
    assert len(newest.reason) == 500
