"""Erasing a member: no table knows the name any more, the samples stay, and nobody comes back by an old key or code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auth.errors import ManyhandsError, RevokedError
from coordinator.backup.database import save_as_file
from coordinator.cli.main import app
from coordinator.control.relays import offer_relay
from coordinator.ledger.sessions import online_sessions
from coordinator.members.audit import AuditLog, audit_log
from coordinator.members.erasure import erase
from coordinator.members.names import set_display_name
from tests.support.receipts import key_of
from tests.support.served_page import FakeRun, fake_run
from tests.support.stores import Kind, database_address

NAME, SHOWN = "Ada L. (100%_'\\)", "Night Owl"
ADDRESS = "/ip4/198.51.100.7/tcp/4001"  # where the member's device relays for others


@pytest.fixture
def run(tmp_path: Path, store_kind: Kind) -> Iterator[FakeRun]:
    """A run with two members and a step."""
    with database_address(tmp_path, store_kind) as address:
        yield from filled_run(tmp_path, None if store_kind == "sqlite" else address)


def filled_run(directory: Path, database_url: str | None) -> Iterator[FakeRun]:
    with fake_run(directory, database_url=database_url) as made:
        for name in (NAME, "Ada"):
            made.add_member(name)
        made.add_step(1, 9.0)
        yield made


def test_the_name_is_nowhere_and_the_samples_stay(run: FakeRun) -> None:
    """Not a byte of it is in the database's files; contributions count as before, for the other member too."""
    services = run.services
    set_display_name(services.database, NAME, SHOWN)
    AuditLog(services.database, "os:me").record("invite", NAME, f"for {NAME!r}, shown as {SHOWN}")
    services.membership.record_refusal("join", ManyhandsError(f"{NAME} was removed by {NAME!r}."))
    [stay] = [row.session_id for row in online_sessions(services.database, services.clock()) if row.member == NAME]
    offer_relay(services.database, stay, ADDRESS)
    before = sorted(row.samples for row in services.ledger.contributions())
    pseudonym = erase(services.database, services.membership, NAME)
    (entry,) = audit_log(services.database, 10)
    assert (entry.subject, entry.detail) == (pseudonym, f'for "{pseudonym}", shown as {pseudonym}')
    assert sorted(row.samples for row in services.ledger.contributions()) == before
    assert {row.member for row in services.ledger.contributions()} == {pseudonym, "Ada"}
    stored = stored_bytes(run)
    assert NAME.encode() not in stored
    assert SHOWN.encode() not in stored
    assert ADDRESS.encode() not in stored
    assert pseudonym.encode() in stored


def stored_bytes(run: FakeRun) -> bytes:
    """All bytes of SQLite's files; of PostgreSQL, which overwrites what is erased in its own time, all rows."""
    database = run.services.database
    if database.engine.dialect.name == "postgresql":
        save_as_file(database.engine, run.directory.path / "manyhands.db")
    else:
        with database() as session:
            session.connection().exec_driver_sql("COMMIT")
            session.connection().exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            session.connection().exec_driver_sql("BEGIN")
    return b"".join(path.read_bytes() for path in run.directory.path.glob("manyhands.db*"))


def test_nobody_comes_back_as_the_erased_one(run: FakeRun) -> None:
    """The device's key and token are refused, an unused code is gone, and the name is free for somebody new."""
    membership = run.services.membership
    unused = membership.invite("grace")[0]
    key = key_of("of the erased one")
    grant = membership.join(key.public_key, membership.invite("grace")[0], receipt_key="ab" * 32)
    erase(run.services.database, membership, "grace")
    for attempt in (lambda: membership.renew(key.public_key), lambda: membership.check(grant.token_jwt)):
        with pytest.raises(RevokedError) as refused:
            attempt()
        assert "grace" not in str(refused.value)
    with pytest.raises(ManyhandsError):
        membership.join(key.public_key, unused)
    newcomer = key_of("newcomer")
    assert membership.join(newcomer.public_key, membership.invite("grace")[0]).member == "grace"


def test_the_command_asks_first_and_is_recorded(run: FakeRun) -> None:
    """Without a yes nothing happens; the record names the pseudonym only."""
    runner, path = CliRunner(), str(run.directory.path)
    assert runner.invoke(app, ["erase", path, "Ada"], input="n\n").exit_code != 0
    assert "Ada" in {row.name for row in run.services.membership.members()}
    answer = runner.invoke(app, ["erase", path, "Ada", "--yes", "--json"])
    (entry,) = audit_log(run.services.database, 10)
    assert (entry.act, entry.subject) == ("erase", json.loads(answer.stdout)["pseudonym"])
