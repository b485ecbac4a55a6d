"""A member's devices: listed, revoked one by one, and so many at once."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from auth.errors import ConfigError, DeviceLimitError, RevokedError
from auth.keys import AuthorityKey, peer_id_of
from auth.openid.provider import Identity
from auth.tokens import RevocationList, verify_revocations
from coordinator.ledger.sessions import open_session
from coordinator.members.devices import device_rows
from coordinator.members.membership import Membership, device_id_of
from coordinator.store.engine import Database
from tests.support.clocks import Clock

AUTHORITY = AuthorityKey.generate()
LIFETIME_S = 3600
MOST = 2
ADA = Identity("hf", "https://hf.example", "1", "ada", frozenset())


@pytest.fixture
def membership(database: Database, clock: Clock) -> Membership:
    """A run that allows two devices a member at once."""
    return Membership(database, AUTHORITY, "demo", LIFETIME_S, clock, max_devices=MOST)


def bring(membership: Membership, key: bytes, name: str = "Ada") -> str:
    """Join by an invite of its own; returns the device's id."""
    pseudonym = hashlib.sha256(key).hexdigest()
    return membership.join(key, membership.invite(name)[0], receipt_key=pseudonym).device_id


def revocations(membership: Membership) -> RevocationList:
    return verify_revocations(membership.revocations_jwt(), AUTHORITY.public_bytes, "demo")


def test_a_revoked_device_goes_alone(membership: Membership, keys: list[bytes]) -> None:
    """Only it is on the signed list and refused, with the reason; the member's others stay, and another may come."""
    lost, [code] = bring(membership, keys[0]), membership.invite("Ada")
    kept = membership.join(keys[1], code, receipt_key="ab" * 32)
    token = membership.renew(keys[0]).token_jwt
    assert membership.revoke_device("Ada", lost[:8], "stolen") == lost
    assert revocations(membership).peer_ids == {peer_id_of(keys[0])}
    assert membership.check(kept.token_jwt).member == "Ada"
    assert bring(membership, keys[2]) == device_id_of(keys[2])
    [unused] = membership.invite("Ada")
    for attempt in (
        lambda: membership.join(keys[0]),
        lambda: membership.join(keys[0], unused),
        lambda: membership.renew(keys[0]),
        lambda: membership.check(token),
    ):
        with pytest.raises(RevokedError, match=r"This device of Ada was removed .*\(stolen\).*Another device may join"):
            attempt()
    assert str(membership.revocation_of(lost)).startswith("This device of Ada was removed")
    assert membership.revocation_of(kept.device_id) is None


def test_a_revoked_device_stays_out_with_its_member(membership: Membership, keys: list[bytes]) -> None:
    """The member's own revocation afterwards concerns the rest, and is what all are told."""
    first, _ = bring(membership, keys[0]), bring(membership, keys[1])
    membership.revoke_device("Ada", first)
    assert membership.revoke("Ada", "sells access") == 1
    assert revocations(membership).serial == 2
    with pytest.raises(RevokedError, match=r"^Ada was removed .*sells access"):
        membership.renew(keys[0])


def test_a_device_revoked_again_changes_nothing(membership: Membership, keys: list[bytes], database: Database) -> None:
    """The list does not grow, and the first reason stays."""
    device = bring(membership, keys[0])
    for reason in ("first", "second"):
        membership.revoke_device("Ada", device, reason)
    assert revocations(membership).serial == 1
    assert [row.revoked_reason for row in device_rows(database)] == ["first"]


def test_devices_revoked_at_once_are_numbered_without_a_gap(membership: Membership, keys: list[bytes]) -> None:
    """Who knows the list of some number knows all that came before it."""
    devices = [(name, bring(membership, key, name)) for name, key in zip("ABCDEF", keys, strict=True)]
    with ThreadPoolExecutor(len(devices)) as pool:
        list(pool.map(lambda pair: membership.revoke_device(*pair), devices))
    assert revocations(membership).serial == len(devices)
    assert revocations(membership).peer_ids == set(map(peer_id_of, keys))


def test_only_one_device_of_that_member_is_meant(membership: Membership, keys: list[bytes]) -> None:
    """An unknown, another's, too short or empty beginning of an id revokes nothing."""
    bring(membership, keys[0])
    bobs = bring(membership, keys[1], "Bob")
    for name, beginning, words in (
        ("Ada", bobs[:8], "no device"),
        ("Ada", "", "too short"),
        ("Ada", device_id_of(keys[0])[:3], "too short"),
        ("Eve", bobs, "No member is called"),
        ("keeper", bobs, "keeper"),
    ):
        with pytest.raises(ConfigError, match=words):
            membership.revoke_device(name, beginning)
    assert revocations(membership).serial == 0


def test_a_beginning_that_two_devices_share_is_not_enough(
    membership: Membership, keys: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator is asked for more of the id."""
    monkeypatch.setattr("coordinator.members.membership.device_id_of", lambda key: f"abcd{keys.index(key)}")
    bring(membership, keys[0])
    bring(membership, keys[1])
    with pytest.raises(ConfigError, match="2 devices of Ada begin with 'abcd': give more"):
        membership.revoke_device("Ada", "ABCD")
    assert membership.revoke_device("Ada", "abcd1") == "abcd1"


def test_devices_are_listed_with_what_is_known_of_them(
    membership: Membership, keys: list[bytes], database: Database, clock: Clock
) -> None:
    """Role, times, the newest session's hardware and the revocation; not the keeper."""
    membership.grant_keeper(keys[4])
    joined_at, device = clock.now, bring(membership, keys[0])
    bring(membership, keys[1], "Bob")
    open_session(database, device, "old laptop", "0.1.0", joined_at + 1)
    open_session(database, device, "GPU", "0.1.0", joined_at + 5)
    membership.revoke_device("Bob", device_id_of(keys[1]), "lost")
    bob, ada = device_rows(database)
    assert (ada.device_id, ada.short_id, ada.member, ada.role) == (device, device[:8], "Ada", "trainer")
    assert (ada.created_at, ada.last_seen_at, ada.hardware) == (joined_at, joined_at + 5, "GPU")
    assert (ada.revoked_at, bob.last_seen_at, bob.hardware) == (None, None, "")
    assert (bob.revoked_at, bob.revoked_reason) == (clock.now, "lost")
    assert device_rows(database, "Bob") == [bob]
    assert device_rows(database, limit=1) == [bob]
    assert device_rows(database, limit=1, offset=1) == [ada]
    for search in ("gpu", "ADA", device[:8]):
        assert device_rows(database, search=search) == [ada]
    assert device_rows(database, search="%") == device_rows(database, "Bob", search="Ada") == []


def test_a_member_has_so_many_devices_at_once(membership: Membership, keys: list[bytes]) -> None:
    """One more is refused with a remedy, its code stays unused, and a revoked device makes room for it."""
    first, _ = bring(membership, keys[0]), bring(membership, keys[1])
    [code] = membership.invite("Ada")
    with pytest.raises(DeviceLimitError, match=r"2 devices in this run already, and 2 are allowed.*ask the operator"):
        membership.join(keys[2], code)
    assert membership.join(keys[0]).device_id == first  # who is in may come again
    assert bring(membership, keys[3], "Bob")  # the cap is each member's own
    membership.revoke_device("Ada", first)
    assert membership.join(keys[2], code).device_id == device_id_of(keys[2])


def test_a_device_counts_as_long_as_its_token_is_valid(membership: Membership, keys: list[bytes], clock: Clock) -> None:
    """Machines that are gone for good make room by themselves; one that comes back needs room again."""
    bring(membership, keys[0])
    bring(membership, keys[1])
    clock.now += LIFETIME_S - 1
    membership.renew(keys[1])
    clock.now += 1
    bring(membership, keys[2])
    for attempt in (lambda: membership.renew(keys[0]), lambda: membership.join(keys[0])):
        with pytest.raises(DeviceLimitError):
            attempt()
    clock.now += LIFETIME_S
    assert membership.renew(keys[0]).member == "Ada"


def test_one_account_has_so_many_devices_at_once(membership: Membership, keys: list[bytes]) -> None:
    """Logins and invites of one member count together."""
    membership.allow("hf:ada", name="Ada")
    bring(membership, keys[0])
    membership.join_by_login(keys[1], ADA)
    with pytest.raises(DeviceLimitError):
        membership.join_by_login(keys[2], ADA)
    assert [row.devices for row in membership.members()] == [2]


def test_of_many_devices_at_once_no_more_than_allowed_come_in(membership: Membership, keys: list[bytes]) -> None:
    """Transactions that count at the same moment do not both take the last place."""
    codes = membership.invite("Ada", devices=len(keys))

    def attempt(key: bytes, code: str) -> bool:
        try:
            return bool(membership.join(key, code))
        except DeviceLimitError:
            return False

    with ThreadPoolExecutor(len(keys)) as pool:
        admitted = list(pool.map(attempt, keys, codes))
    assert sum(admitted) == MOST


def test_the_keeper_is_no_members_device(database: Database, keys: list[bytes]) -> None:
    """No number of devices keeps the run's own keeper out."""
    narrow = Membership(database, AUTHORITY, "demo", LIFETIME_S, max_devices=1)
    assert all(narrow.grant_keeper(key).role == "keeper" for key in keys[:2])
