"""A real PostgreSQL server for tests, started at first use: one for each process of pytest, with databases of its own.

Where the tests run as root it runs as the user `postgres`, for it refuses to be root. Nothing is
flushed to the disk, so what is committed outlives the server's crash, and not the machine's.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from sqlalchemy import URL, Connection, create_engine, text

from coordinator.store.engine import migrate, open_engine
from tests.support.ports import free_ports
from tests.support.programs import POSTGRESQL, require
from tests.support.waiting import PATIENCE_S

HOST, USER, TEMPLATE = "127.0.0.1", "manyhands", "migrated"
PASSWORD = "a secret of this test"
_at_end = ExitStack()
SETTINGS = (
    "fsync=off",
    "full_page_writes=off",
    "max_connections=200",
    "deadlock_timeout=100ms",
)


def binary(name: str) -> str:
    """One of the newest installed server's programs."""
    require("postgresql")
    return str(max(POSTGRESQL.glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3])))


class PostgresServer:
    """A server on a free port of this machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.port = free_ports(HOST, 1)[0]

    def create(self) -> None:
        """Make its files."""
        initdb = binary("initdb")  # the system's user comes with it
        self._directory.mkdir(0o700)
        if _system_user() is not None:
            shutil.chown(self._directory, _system_user(), _system_user())
        password = self._directory.parent / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)  # for the server's user
        options = ("--username", USER, "--auth", "scram-sha-256", "--pwfile", str(password), "--encoding", "UTF8")
        _run(initdb, "--no-sync", "--locale", "C", *options, "--pgdata", str(self._directory))

    def start(self) -> None:
        """Serve, and return when it answers."""
        given = [f"-c {setting}" for setting in (*SETTINGS, "unix_socket_directories=", f"listen_addresses={HOST}")]
        options = " ".join([f"-p {self.port}", *given])
        log = str(self._directory / "server.log")
        self._control("start", "--options", options, "--log", log, "--timeout", str(int(PATIENCE_S)))

    def stop(self) -> None:
        """End it at once, whoever is connected, as a crash of its machine would."""
        self._control("stop", "--mode", "immediate", "--timeout", str(int(PATIENCE_S)))

    def url(self, database: str = "postgres") -> str:
        """As it stands in settings.yaml."""
        address = URL.create("postgresql+psycopg", USER, PASSWORD, HOST, self.port, database)
        return address.render_as_string(hide_password=False)

    @property
    def pid(self) -> int:
        """The process that started all its others."""
        return int((self._directory / "postmaster.pid").read_text().splitlines()[0])

    def _control(self, command: str, *options: str) -> None:
        _run(binary("pg_ctl"), command, "--wait", "--silent", *options, "--pgdata", str(self._directory))


@contextmanager
def new_server() -> Iterator[PostgresServer]:
    """A server of this block's own, which it may stop and start."""
    parent = Path(tempfile.mkdtemp(prefix="postgres-"))
    parent.chmod(0o755)  # the server's user must come to its files
    server = PostgresServer(parent / "data")
    try:
        server.create()
        server.start()
        try:
            yield server
        finally:
            if (parent / "data" / "postmaster.pid").exists():
                server.stop()
    finally:
        shutil.rmtree(parent)


def stop_shared_server() -> None:
    """At the end of pytest's process."""
    _at_end.close()


@cache
def shared_server() -> PostgresServer:
    """One for all tests of this process, with a template that has all tables."""
    server = _at_end.enter_context(new_server())
    _administer(server, f"CREATE DATABASE {TEMPLATE}")
    engine = open_engine(server.url(TEMPLATE))
    migrate(engine)
    engine.dispose()
    return server


@contextmanager
def new_database(template: str = TEMPLATE) -> Iterator[str]:
    """The address of a new database with all tables, or (`template1`) with none; dropped at the end of the block."""
    server, name = shared_server(), f"run_{secrets.token_hex(6)}"
    _administer(server, f"CREATE DATABASE {name} TEMPLATE {template}")
    try:
        yield server.url(name)
    finally:
        _administer(server, f"DROP DATABASE {name} WITH (FORCE)")


def _administer(server: PostgresServer, statement: str) -> None:
    _connection(server.url()).execute(text(statement))


@cache
def _connection(address: str) -> Connection:
    """One for all statements: to open it takes as long as they do."""
    engine = create_engine(address, isolation_level="AUTOCOMMIT")
    _at_end.callback(engine.dispose)
    return _at_end.enter_context(engine.connect())


def _system_user() -> str | None:
    return "postgres" if os.geteuid() == 0 else None


def _run(*command: str) -> None:
    """As the server's user, in a session of its own: Ctrl-C is for the tests, which stop it in order."""
    user = _system_user()
    home = pwd.getpwnam(user).pw_dir if user else None
    subprocess.run(command, check=True, user=user, cwd=home, stdout=subprocess.DEVNULL, start_new_session=True)
