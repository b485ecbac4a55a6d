"""Administrators: argon2id passwords, logins that end when they should, and a limit on tries at all replicas."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from sqlalchemy import func, select
from typer.testing import CliRunner

from auth.errors import ConfigError
from coordinator.cli.main import app
from coordinator.context.open_run import OpenRun, open_run
from coordinator.members.administrators import IDLE_S, LIFETIME_S, SESSIONS_KEPT, Administrators, LoginTries
from coordinator.store.engine import Database
from coordinator.store.models import Administrator, AdminSession
from coordinator.store.service_models import LoginTry
from tests.support.clocks import Clock
from tests.support.small_run import make_small_run
from tests.support.stores import Kind, database_address, let_others_wait


def test_replicas_count_together(database: Database) -> None:
    """What one has taken the other no longer gives; another account has its own; after a minute all is as before."""
    clock = Clock()
    first, second = (LoginTries(database, 2, clock) for _ in range(2))
    assert first.allows("grace")
    assert second.allows("grace")
    assert not first.allows("grace")
    assert not second.allows("grace")
    assert first.allows("ada")
    clock.now += 60.0
    assert first.allows("grace")
    with database() as session:
        assert session.scalar(select(func.count(LoginTry.id))) == 1


PASSWORD = "correct horse battery"

QUICK = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


@pytest.fixture
def run(tmp_path: Path, store_kind: Kind) -> Iterator[OpenRun]:
    with (
        database_address(tmp_path, store_kind) as address,
        open_run(make_small_run(tmp_path, database_url=address).path) as opened,
    ):
        yield opened


@pytest.fixture
def administrators(run: OpenRun, clock: Clock) -> Administrators:
    made = Administrators(run.database, clock, QUICK)
    made.set_password("grace", PASSWORD)
    return made


def log_in(administrators: Administrators) -> str:
    token = administrators.log_in("grace", PASSWORD)
    assert token is not None
    return token


def test_only_the_right_password_logs_in(administrators: Administrators) -> None:
    """Wrong names and passwords give nothing, endless ones and empty ones too."""
    login = administrators.login_of(log_in(administrators))
    assert login is not None
    assert login.name == "grace"
    for name in ("nobody", "gr\0ace", "grace\0", ""):
        assert administrators.log_in(name, PASSWORD) is None
    for password in ("wrong", "", PASSWORD + "x" * 10**6):
        assert administrators.log_in("grace", password) is None
    assert administrators.login_of("") is administrators.login_of("made-up") is None


def test_nobody_costs_as_much_as_somebody(run: OpenRun, clock: Clock) -> None:
    """For an unknown name a password is compared, too: the time does not tell who is an administrator."""
    verified: list[str] = []

    class Noting(PasswordHasher):
        def verify(self, hash: str | bytes, password: str | bytes) -> bool:  # noqa: A002  # the library's name
            verified.append(str(hash))
            return super().verify(hash, password)

    administrators = Administrators(run.database, clock, Noting(time_cost=1, memory_cost=8, parallelism=1))
    assert administrators.log_in("nobody", PASSWORD) is None
    assert verified[0].startswith("$argon2id$")


def test_the_database_has_neither_password_nor_token(run: OpenRun, administrators: Administrators) -> None:
    """A copy of it logs in nobody."""
    token = log_in(administrators)
    with run.database() as session:
        stored_hash = session.scalar(select(Administrator.password_hash))
        stored = session.scalar(select(AdminSession))
    assert stored_hash is not None
    assert stored is not None
    assert stored_hash.startswith("$argon2id$")
    assert token.encode() not in stored.token_sha256 + stored.csrf_token.encode()


def test_a_login_ends_by_age_and_by_idleness(administrators: Administrators, clock: Clock) -> None:
    """In use it lasts its lifetime; unused, much less."""
    token = log_in(administrators)
    began = clock.now
    while clock.now + IDLE_S / 2 < began + LIFETIME_S:
        clock.now += IDLE_S / 2
        assert administrators.login_of(token) is not None
    clock.now += IDLE_S / 2
    assert administrators.login_of(token) is None
    idle = log_in(administrators)
    clock.now += IDLE_S
    assert administrators.login_of(idle) is None


def test_logins_end_with_the_password_the_right_and_the_logout(administrators: Administrators) -> None:
    """Changed, removed or logged out, the old token is nobody's at once."""
    token = log_in(administrators)
    administrators.set_password("grace", PASSWORD)
    assert administrators.login_of(token) is None
    token = log_in(administrators)
    administrators.log_out(token)
    assert administrators.login_of(token) is None
    token = log_in(administrators)
    administrators.remove("grace")
    assert administrators.login_of(token) is None
    assert administrators.names() == []
    with pytest.raises(ConfigError, match="No administrator"):
        administrators.remove("grace")


def test_logins_of_one_administrator_are_bounded(administrators: Administrators) -> None:
    """The oldest ends when there are too many."""
    tokens = [log_in(administrators) for _ in range(SESSIONS_KEPT + 1)]
    assert [administrators.login_of(token) is None for token in tokens] == [True] + [False] * SESSIONS_KEPT


@pytest.mark.parametrize("password", ["short", "", "x" * 300])
def test_a_poor_password_is_refused(administrators: Administrators, password: str) -> None:
    """Too short, or too long to be compared in reasonable time."""
    with pytest.raises(ConfigError, match="12 to 256"):
        administrators.set_password("grace", password)


def test_the_command_asks_for_the_password(run: OpenRun) -> None:
    """Typed twice at the prompt, it is printed nowhere; adding and removing are on record."""
    runner, path = CliRunner(), str(run.directory.path)
    added = runner.invoke(app, ["admin", path, "add", "grace"], input=f"{PASSWORD}\n{PASSWORD}\n")
    assert added.exit_code == 0
    assert PASSWORD not in added.output
    assert runner.invoke(app, ["admin", path, "list", "--json"]).stdout == '["grace"]\n'
    assert runner.invoke(app, ["admin", path, "remove", "grace"]).stdout == "Administrators: nobody.\n"
    assert "admin-remove" in runner.invoke(app, ["audit", path]).stdout


def test_no_login_slips_in_beside_a_new_password(run: OpenRun, administrators: Administrators) -> None:
    """Whoever logs in by the old one while it is changed is refused, and not left with a login that nobody ends."""
    with ThreadPoolExecutor(1) as pool:
        with run.database.begin() as session:
            session.scalars(select(Administrator)).one().password_hash = QUICK.hash("another " + PASSWORD)
            session.flush()
            logging_in = pool.submit(administrators.log_in, "grace", PASSWORD)
            let_others_wait(session)
        with suppress(ConfigError):  # or None, if it only looks afterwards
            assert logging_in.result() is None
    with run.database() as session:
        assert session.scalar(select(AdminSession)) is None


def test_no_administrator_is_called_like_another(database: Database) -> None:
    """A new account whose name looks like one that is there is refused; a new password is not."""
    administrators = Administrators(database, Clock(), QUICK)
    administrators.set_password("ada", PASSWORD)
    for name in ("\u0430da", "ADA"):
        with pytest.raises(ConfigError, match="The name"):
            administrators.set_password(name, PASSWORD)
    administrators.set_password("ada", PASSWORD * 2)
