"""A whole run that publishes what it learns, and whose disk is full for a while.

It starts a coordinator with keeper and publisher, and a volunteer, and trains some eight steps of a second or two.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.checkpoints.manifest import newest_verified, verify
from coordinator.checkpoints.writing import RESERVE_BYTES
from tests.support.commands import Site
from tests.support.small_disks import fill, make_room, small_disk
from tests.support.sound_checkpoints import publish_to


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A run whose checkpoints lie on a small disk of their own, and are published to a folder."""
    made = Site(tmp_path)
    publish_to(made.run.path, {"to": f"file://{tmp_path}/place"})
    with small_disk(made.run.checkpoints_dir, 2 * RESERVE_BYTES):
        yield made
        made.close()


def test_the_run_goes_on_while_its_disk_is_full_and_publishes_what_follows(site: Site) -> None:
    """The log says so, the old checkpoint stays and is published, and so is a later one when there is space again."""
    checkpoints, log = site.run.checkpoints_dir, site.base / "serve.log"
    site.serve()
    site.join("ada", first=True)
    site.wait_until("a checkpoint is stored", lambda: newest_verified(checkpoints) is not None)
    fill(checkpoints, RESERVE_BYTES // 2)
    site.wait_until("the log says what could not be written", lambda: "could not be written" in log.read_text())
    kept = newest_verified(checkpoints)
    assert kept is not None
    reached = site.ledger.last_step()
    site.wait_until("two more steps are reported", lambda: site.ledger.last_step() >= reached + 2)
    site.wait_until("the old checkpoint is published", lambda: published_step(site) == kept.manifest.step)
    assert newest_verified(checkpoints) == kept
    make_room(checkpoints)
    site.wait_until("a later checkpoint is published", lambda: published_step(site) > reached)
    assert "the publisher has died" not in log.read_text()
    assert "the keeper has died" not in log.read_text()


def published_step(site: Site) -> int:
    """Of the whole checkpoint that the place names; 0 while there is none."""
    latest = site.base / "place" / "latest.json"
    if not latest.is_file():
        return 0
    return verify(latest.parent / json.loads(latest.read_text())["folder"]).manifest.step
