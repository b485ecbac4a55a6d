"""The publisher, which uploads checkpoints to the destinations in settings.yaml.

It is a separate, low-priority process, so that neither the swarm nor the service waits for uploads.
It imports neither torch nor hivemind: exported folders are tested in a fresh process.
`run_publisher` is the entry point.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from auth.errors import ManyhandsError, StorageError
from auth.files import make_private_directory
from coordinator.checkpoints.export import exporting
from coordinator.checkpoints.manifest import StoredCheckpoint, verify
from coordinator.ledger.recorded_checkpoints import CheckpointRow
from coordinator.publishing.card_facts import facts_of_run, hub_repository
from coordinator.publishing.cards import card_files
from coordinator.publishing.places import open_place, published_name
from coordinator.publishing.publications import is_due, pause_s, pending_publication, record_failure, record_published
from coordinator.publishing.soundness import check_loads
from coordinator.run.directory import RunDirectory
from coordinator.run.publish_settings import PlaceSettings
from coordinator.store.engine import Database, open_engine
from peer.runtime.processes import stop_at_sigterm

logger = logging.getLogger(__name__)
POLL_S = 1.0


@dataclass
class Publisher:
    """A loop that publishes each new checkpoint to all destinations."""

    directory: RunDirectory
    database: Database
    clock: Callable[[], float] = time.time
    sound: set[str] = field(default_factory=set)  # manifest digests of checkpoints that passed the loading check

    def run(self, stop: threading.Event) -> None:
        """Publish checkpoints until `stop` is set, then once more for the keeper's last checkpoint."""
        while not stop.is_set():
            if not self.publish_pending():
                stop.wait(POLL_S)
        self.publish_pending()

    def publish_pending(self) -> bool:
        """Publish the newest checkpoint to each due destination; return whether any succeeded."""
        done = [self._publish_to(place) for place in self.directory.settings.publications]
        self._tidy()
        return any(done)

    def _publish_to(self, place: PlaceSettings) -> bool:
        """Publish the newest checkpoint to one destination if due; return whether it succeeded."""
        pending = pending_publication(self.database, place.to)
        if pending is None or not is_due(pending[1], self.clock()):
            return False
        checkpoint = pending[0]
        try:
            stored, folder = self._stage(checkpoint)
            location = open_place(self.directory.path, place).publish(folder, stored)
        except (ManyhandsError, OSError) as error:
            attempts = record_failure(self.database, place.to, checkpoint, str(error), self.clock())
            wait_s = pause_s(attempts)
            logger.error("step %d is not published, again in %g s: %s", checkpoint.step, wait_s, error)
            return False
        record_published(self.database, place.to, checkpoint, location, self.clock())
        logger.info("step %d is published: %s", checkpoint.step, location)
        return True

    def _stage(self, checkpoint: CheckpointRow) -> tuple[StoredCheckpoint, Path]:
        """Return the checkpoint and its exported folder, which has passed the loading check.

        The folder is kept, even across restarts, until all destinations have received it. A changed
        model card causes a new export, for example after a member asked not to be named.
        """
        stored = verify(self.directory.checkpoint_dir(checkpoint.step), files=())
        if stored.manifest_sha256 != checkpoint.manifest_sha256:
            raise StorageError(f"{stored.path.name}: another checkpoint of that step has taken its place.")
        folder, card = self.directory.publishing_dir / published_name(stored), self._card(stored)
        if not _holds(folder, card):
            shutil.rmtree(folder, ignore_errors=True)
            make_private_directory(folder.parent)
            with exporting(stored, folder, card, link=True) as aside:
                if stored.manifest_sha256 not in self.sound:
                    check_loads(aside)
                    self.sound.add(stored.manifest_sha256)
        return stored, folder

    def _card(self, stored: StoredCheckpoint) -> Mapping[str, str]:
        repository = hub_repository(self.directory.settings)
        return card_files(facts_of_run(self.directory, self.database, stored, repository=repository))

    def _tidy(self) -> None:
        """Remove exported folders that no destination needs, and leftovers of killed exports."""
        wanted = set()
        for place in self.directory.settings.publications:
            pending = pending_publication(self.database, place.to)
            if pending is not None:
                wanted.add(pending[0].manifest_sha256[:12])
        if self.directory.publishing_dir.is_dir():
            for path in self.directory.publishing_dir.iterdir():
                if path.name.rpartition("-")[2] not in wanted:
                    shutil.rmtree(path, ignore_errors=True)


def _holds(folder: Path, card: Mapping[str, str]) -> bool:
    """Return whether the folder is a complete export with this card."""
    try:
        verify(folder)
        return all((folder / name).read_text(encoding="utf-8") == text for name, text in card.items())
    except (StorageError, OSError):
        return False


def open_publisher(run_dir: Path, clock: Callable[[], float] = time.time) -> Publisher:
    """Open a run's publisher; raises `ConfigError` if a secret is missing or its file is not private."""
    directory = RunDirectory.open(run_dir)
    for place in directory.settings.publications:
        open_place(directory.path, place)
    return Publisher(directory, Database(open_engine(directory.database_url)), clock)


def run_publisher(run_dir: Path) -> None:
    """Run the publisher until SIGTERM; an upload in progress is not interrupted."""
    open_publisher(run_dir).run(stop_at_sigterm())
