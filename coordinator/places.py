"""Opens the places that settings name: a hub's repository or a folder of a file system, which publish alike."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from coordinator.folder_place import FolderPlace
from coordinator.hub_place import HubPlace
from coordinator.manifests import StoredCheckpoint
from coordinator.place_settings import PlaceSettings, read_secret


class Place(Protocol):
    """Where checkpoints are published."""

    def publish(self, folder: Path, checkpoint: StoredCheckpoint) -> str:
        """Bring this checkpoint's exported folder there, whole or not at all, and return where it can be fetched.

        Again after whatever happened in between, it goes on. Raises `PublicationError`.
        """


def open_place(base: Path, settings: PlaceSettings) -> Place:
    """The place with its secret, whose file is relative to `base`; raises `ConfigError`."""
    secret = read_secret(base, settings)
    return HubPlace(settings, secret) if settings.is_hub else FolderPlace(settings, secret)
