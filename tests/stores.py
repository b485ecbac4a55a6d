"""An empty database, and the keys of devices that join it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from auth.identity import DeviceKey
from coordinator.store.engine import Sessions, migrate, open_engine


@contextmanager
def empty_store(directory: Path) -> Iterator[Sessions]:
    """A new database in `directory` with all tables, closed at the end of the block."""
    engine = open_engine(f"sqlite:///{directory}/manyhands.db")
    try:
        migrate(engine)
        yield Sessions(engine)
    finally:
        engine.dispose()


def device_keys(directory: Path, count: int) -> list[bytes]:
    """Public keys of so many devices."""
    return [DeviceKey.load_or_create(directory / f"{number}.key").public_key for number in range(count)]
