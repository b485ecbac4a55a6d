"""A device's credentials: what several processes see in one directory."""

from __future__ import annotations

import pickle
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from auth.credentials import Credentials
from auth.errors import ExpiredTokenError, RevokedError, TokenError
from auth.keys import AuthorityKey
from auth.tokens import AccessToken, RevocationList, issue_revocations, issue_token

AUTHORITY = AuthorityKey.generate()
NOW = 1_800_000_000.0


def token_for(credentials: Credentials, expires_at: float = NOW + 100) -> AccessToken:
    key = credentials.device_key
    return AccessToken(
        "Ada", "d1", key.peer_id, key.public_key.decode(), "trainer", "demo", NOW - 1, expires_at, "a" * 64
    )


def revocations(serial: int, *peer_ids: str, authority: AuthorityKey = AUTHORITY, run: str = "demo") -> str:
    return issue_revocations(authority, RevocationList(run, serial, NOW, frozenset(peer_ids)))


def grant(
    credentials: Credentials, token: AccessToken | None = None, authority: AuthorityKey = AUTHORITY
) -> AccessToken:
    token = token or token_for(credentials)
    credentials.store_grant(
        token.run,
        authority.public_bytes,
        issue_token(authority, token),
        revocations(0, authority=authority, run=token.run),
    )
    return token


@pytest.fixture
def credentials(tmp_path: Path) -> Credentials:
    return Credentials(tmp_path / "device")


def stranger(credentials: Credentials, peer_id: str = "QmOther") -> str:
    """Another device's valid token."""
    return issue_token(AUTHORITY, replace(token_for(credentials), peer_id=peer_id, member="Bob"))


def test_whose_device_it_is_stays_known(credentials: Credentials) -> None:
    """Long after its token has expired; in no other run, and not before the first join."""
    assert credentials.member_of("demo") is None
    grant(credentials, token_for(credentials, expires_at=NOW - 10**9))
    assert credentials.member_of("demo") == "Ada"
    assert credentials.member_of("another") is None


def test_grant_is_kept_in_private_files(credentials: Credentials) -> None:
    """After a join the directory holds key, authority, run, token and list, for its owner only."""
    token = grant(credentials)
    assert (credentials.run, credentials.access_token(NOW)) == ("demo", token)
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in credentials.directory.iterdir()}
    assert files == dict.fromkeys(["device.key", "authority.pub", "run", "token.jwt", "revoked.jwt"], 0o600)
    assert stat.S_IMODE(credentials.directory.stat().st_mode) == 0o700


def test_nothing_is_known_before_the_join(credentials: Credentials) -> None:
    """A device that has not joined has a key but no run and no token."""
    assert credentials.device_key.peer_id
    assert not credentials.is_revoked("QmAnybody")
    for read in (lambda: credentials.run, lambda: credentials.token_jwt, lambda: credentials.check("", NOW)):
        with pytest.raises(TokenError, match="join"):
            read()


def test_a_strangers_grant_is_refused(credentials: Credentials) -> None:
    """A token for another device is not kept, neither at join nor at renewal."""
    with pytest.raises(TokenError, match="not for this device"):
        grant(credentials, replace(token_for(credentials), peer_id="QmOther"))
    with pytest.raises(TokenError, match="belongs to no run"):
        credentials.run  # noqa: B018
    grant(credentials)
    with pytest.raises(TokenError, match="not for this device"):
        credentials.store_token(stranger(credentials))


def test_renewed_token_reaches_another_process(credentials: Credentials) -> None:
    """What one holder of the directory stores, another sees at its next look."""
    grant(credentials)
    other = Credentials(credentials.directory)
    assert other.access_token(NOW).expires_at == NOW + 100
    credentials.store_token(issue_token(AUTHORITY, token_for(credentials, expires_at=NOW + 200)))
    assert other.access_token(NOW).expires_at == NOW + 200


def test_check_follows_time_and_revocation(credentials: Credentials) -> None:
    """A token that passed once is refused after its time, and as soon as its device is revoked."""
    grant(credentials)
    jwt = stranger(credentials)
    assert credentials.check(jwt, NOW).member == "Bob"
    with pytest.raises(ExpiredTokenError):
        credentials.check(jwt, NOW + 100)
    Credentials(credentials.directory).store_revocations(revocations(1, "QmOther"))
    assert credentials.is_revoked("QmOther")
    with pytest.raises(RevokedError, match="Bob"):
        credentials.check(jwt, NOW)


def test_revocation_list_never_goes_back(credentials: Credentials) -> None:
    """An older list, replayed, does not bring a revoked device back."""
    grant(credentials)
    credentials.store_revocations(revocations(2, "QmOther"))
    credentials.store_revocations(revocations(1))
    assert credentials.is_revoked("QmOther")
    credentials.store_revocations(revocations(3, "QmOther", "QmMore"))
    assert credentials.is_revoked("QmMore")


def test_forged_revocation_list_is_refused(credentials: Credentials) -> None:
    """A list that another authority signed changes nothing."""
    grant(credentials)
    with pytest.raises(TokenError):
        credentials.store_revocations(revocations(9, "QmOther", authority=AuthorityKey.generate()))
    assert not credentials.is_revoked("QmOther")


def test_another_run_starts_afresh(credentials: Credentials) -> None:
    """A grant of another run replaces the old run's list, whatever its serial number."""
    grant(credentials)
    credentials.store_revocations(revocations(5, "QmOther"))
    other_authority = AuthorityKey.generate()
    grant(credentials, replace(token_for(credentials), run="second"), other_authority)
    assert credentials.run == "second"
    assert not credentials.is_revoked("QmOther")
    with pytest.raises(TokenError):
        credentials.check(stranger(credentials), NOW)


def test_copy_for_another_process_reads_the_same_directory(credentials: Credentials) -> None:
    """Credentials can be handed to a spawned process; the key itself does not travel."""
    grant(credentials)
    packed = pickle.dumps(credentials)
    assert credentials.device_key.private_der not in packed
    assert pickle.loads(packed).access_token(NOW) == credentials.access_token(NOW)  # noqa: S301  # our own bytes
