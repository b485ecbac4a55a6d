"""The keeper's own token and its list of the revoked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from auth.errors import StorageError
from coordinator.keeper.credentials import renew
from tests.support.receipts import key_of, pseudonym_of


@pytest.mark.parametrize(("now", "renewed"), [(3000.0, []), (3001.0, ["a new token"])])
def test_its_token_is_renewed_when_two_thirds_of_its_time_are_over(now: float, renewed: list[str]) -> None:
    """Who was revoked it hears each time."""
    stored: list[str] = []
    key, token = key_of("keeper-1"), SimpleNamespace(run="demo", issued_at=1000.0, expires_at=4000.0)
    credentials: Any = SimpleNamespace(
        device_key=key, access_token=lambda _now: token, store_token=stored.append, store_revocations=stored.append
    )
    grants = {(key.public_key, pseudonym_of("keeper-1", "demo")): SimpleNamespace(token_jwt="a new token")}
    membership: Any = SimpleNamespace(
        grant_keeper=lambda *identity: grants[identity], revocations_jwt=lambda: "the revoked"
    )
    renew(membership, credentials, lambda: now)
    assert stored == [*renewed, "the revoked"]


def test_a_full_disk_of_its_files_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    """It goes on with the list that it has, and says why."""

    def full(_jwt: str) -> None:
        raise StorageError("Cannot write revoked.jwt.")

    credentials: Any = SimpleNamespace(
        access_token=lambda _now: SimpleNamespace(issued_at=0.0, expires_at=99.0), store_revocations=full
    )
    membership: Any = SimpleNamespace(revocations_jwt=lambda: "the revoked")
    renew(membership, credentials, lambda: 1.0)
    assert "token and revocations are not renewed: Cannot write revoked.jwt." in caplog.text
