"""The lock that allows a run only one keeper: a PostgreSQL advisory lock on its own connection.

The lock ends with the connection, and so with the keeper's process. A keeper that loses the
connection stops, because another may have replaced it. A keeper that finds the lock taken waits,
and takes over when it is free. SQLite needs no lock: all keepers are on one machine, where only one
can bind the swarm's port.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, Engine, bindparam, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import BigInteger

from auth.errors import ConfigError, WorkerError
from coordinator.ledger.keeper_status import read_swarm_status
from coordinator.ledger.recorded_checkpoints import checkpoints
from coordinator.run.checkpoint_names import checkpoint_name
from coordinator.store.engine import Database

logger = logging.getLogger(__name__)
KEY = 0x6D686B6565706572  # "mhkeeper"; a single-number key, so it cannot collide with the transactions' locks
POLL_S = 1.0
SAID_EVERY_POLLS = 60  # polls between log lines about a database that does not respond
# TCP keepalives, so that the server detects the loss of a keeper's machine within half a minute.
_NOTICE = ("SET tcp_keepalives_idle = 10", "SET tcp_keepalives_interval = 5", "SET tcp_keepalives_count = 3")


class KeeperLock:
    """The lock that the run's only keeper holds in this database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = None
        self._needed = engine.dialect.name == "postgresql"

    def try_take(self) -> bool:
        """Try to take the lock; return whether it was free. Raises `DBAPIError` on failure."""
        if not self._needed:
            return True
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            taken = connection.scalar(select(func.pg_try_advisory_lock(bindparam(None, KEY, BigInteger))))
            for statement in _NOTICE if taken else ():
                connection.exec_driver_sql(statement)
        except DBAPIError:
            connection.invalidate()
            connection.close()
            raise
        if taken:
            self._connection = connection
        else:
            connection.close()
        return bool(taken)

    def wait(self, should_stop: Callable[[], bool], sleep: Callable[[float], object]) -> bool:
        """Take the lock as soon as it is free. Return whether this keeper had to wait.

        Also wait while the database does not respond, and log this about once a minute.
        """
        said, unsaid = "", 0
        while not should_stop():
            try:
                if self.try_take():
                    if said:
                        logger.warning("this is the run's keeper now")
                    break
                why, unsaid = "another keeper serves this run; this one takes over when that ends", 0
            except DBAPIError as error:
                why = f"the database does not answer ({' '.join(str(error.orig).split())[:200]}); waiting for it"
                unsaid += 1
            if why != said or unsaid >= SAID_EVERY_POLLS:
                logger.warning("%s", why)
                unsaid = 0
            said = why
            sleep(POLL_S)
        return bool(said)

    def check(self) -> None:
        """Raise `WorkerError` if another keeper may hold the lock by now."""
        if self._connection is None:
            return
        try:
            self._connection.scalar(select(1))
        except DBAPIError as error:
            self.release()
            raise WorkerError("The connection that made this process the run's only keeper is lost.") from error

    def release(self) -> None:
        """Release the lock, so that another keeper can take it."""
        if self._connection is not None:
            self._connection.invalidate()  # closed, not returned to the pool: the lock lasts as long as the connection
            self._connection.close()
            self._connection = None


def require_its_identity(database: Database, peer_id: str) -> None:
    """Raise `ConfigError` if the previous keeper has another libp2p identity.

    Volunteers would look for that identity, and continue without this keeper.
    """
    status = read_swarm_status(database)
    addresses = () if status is None else status.addresses
    if addresses and not any(address.endswith(f"/p2p/{peer_id}") for address in addresses):
        raise ConfigError(
            "The run's keeper has another identity than this one, so volunteers would not find this one in its place: "
            "copy the folder `keeper` from where the run was served first, or serve here with --service-only."
        )


def require_its_checkpoints(database: Database, checkpoints_dir: Path) -> None:
    """Raise `ConfigError` if the previous keeper's checkpoints are not on this disk.

    Without them this keeper would start the run from the beginning and undo all later steps.
    """
    recorded = [checkpoint_name(row.step) for row in checkpoints(database)]
    if recorded and not any((checkpoints_dir / name).is_dir() for name in recorded):
        raise ConfigError(
            f"None of the run's checkpoints (the newest is {recorded[0]}) is in {checkpoints_dir}: a keeper can take "
            "over only where it sees the folder of the one before; mount it, or serve here with --service-only."
        )
