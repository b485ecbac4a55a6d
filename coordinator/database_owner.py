"""A database belongs to one run: two that shared one would mix up their members, reports and checkpoints.

A run is known by its name and its two keys. Each key may be replaced, one after the other: the run that has one of them
is the same one, and is known by both from then on.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from sqlalchemy.orm import Session

from auth.errors import ConfigError
from coordinator.authority_key import KEY_FILE
from coordinator.directory import RunDirectory
from coordinator.store.engine import Sessions
from coordinator.store.owner_model import DatabaseOwner

_ROW = 1


class Keys(NamedTuple):
    """By what a run is known."""

    run: str
    certificate_sha256: str
    authority_key: str


def claim_database(sessions: Sessions, directory: RunDirectory) -> None:
    """Have the database be this run's from now on; raises `ConfigError` where it is another's.

    A copy of a run without its keys, which can admit nobody, is let alone.
    """
    if not all(path.exists() for path in (directory.tls_cert_path, directory.keys_dir / KEY_FILE)):
        return
    link = directory.join_link
    keys = Keys(link.run, link.fingerprint, directory.authority.public_bytes.hex())
    with sessions() as session:
        if _owner(session) == keys:
            return
    sessions.transact(lambda session: _claim(session, keys, directory.path))


def _owner(session: Session) -> Keys | None:
    row = session.get(DatabaseOwner, _ROW)
    return None if row is None else Keys(row.run, row.certificate_sha256, row.authority_key)


def _claim(session: Session, keys: Keys, path: Path) -> None:
    owner = _owner(session)
    if owner is not None and not _is_same_run(owner, keys):
        raise ConfigError(
            f"The database of the run in {path} belongs to another run, `{owner.run}`: give each a database of its own "
            "(`database_url` in settings.yaml). If it is the same run with new keys, replace them one after the other."
        )
    session.merge(DatabaseOwner(id=_ROW, **keys._asdict()))


def _is_same_run(owner: Keys, keys: Keys) -> bool:
    one_key_stayed = owner.certificate_sha256 == keys.certificate_sha256 or owner.authority_key == keys.authority_key
    return owner.run == keys.run and one_key_stayed
