"""Rewind of a run to an earlier checkpoint, which undoes all later steps and checkpoints.

`rewind` undoes the steps and begins a new era in the database, even while the run is stopped.
The keeper then restores the checkpoint and makes all peers load it (`peer.progress.view`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select

from auth.errors import ConfigError, StorageError
from coordinator.checkpoints.manifest import StoredCheckpoint, stored_steps, verify
from coordinator.ledger.ledger import Ledger
from coordinator.members.administration import Administration
from coordinator.run.checkpoint_names import checkpoint_name
from coordinator.store.engine import Database
from coordinator.store.models import Device, Member, Report, StoredSuspicion

UNDONE = "undone"  # folder that keeps the checkpoints undone by the last rewind, for inspection


@dataclass(frozen=True)
class Contributor:
    """A device that contributed to the steps to undo."""

    member: str
    device_id: str
    steps: int
    samples: int  # samples that the device claimed
    suspicions: int  # suspicions against the device in these steps


def checkpoint_to_return_to(directory: Path, step: int) -> StoredCheckpoint:
    """Verify and return the checkpoint of a step; raises `ConfigError` if it is missing or damaged."""
    steps = stored_steps(directory)
    if step not in steps:
        there = ", ".join(map(str, steps)) or "none"
        raise ConfigError(f"There is no checkpoint of step {step}; there are those of: {there}.")
    try:
        return verify(directory / checkpoint_name(step))
    except StorageError as error:
        raise ConfigError(f"The checkpoint of step {step} is damaged ({error}) Choose another one.") from error


def contributors_since(database: Database, step: int) -> list[Contributor]:
    """Return the devices that reported samples for valid steps after `step`, most suspicious first."""
    given = (
        select(Member.name, Device.id, func.count(Report.id), func.sum(Report.samples))
        .join(Device, Device.id == Report.device_id)
        .join(Member, Member.id == Device.member_id)
        .where(Report.step > step, Report.superseded.is_(False), Report.samples > 0)
        .group_by(Member.name, Device.id)
    )
    words = (
        select(StoredSuspicion.device_id, func.count().label("words"))
        .where(StoredSuspicion.step >= step)
        .group_by(StoredSuspicion.device_id)
    )
    with database() as session:
        said = {row.device_id: row.words for row in session.execute(words)}
        found = [
            Contributor(member, device_id, steps, int(samples), said.get(device_id, 0))
            for member, device_id, steps, samples in session.execute(given)
        ]
    return sorted(found, key=lambda row: (-row.suspicions, -row.samples, row.member))


def rewind(
    administration: Administration, directory: Path, ledger: Ledger, step: int, suspects: Collection[str]
) -> tuple[int, int]:
    """Undo all steps after `step`; return the number of undone steps and the number of the new era.

    Devices in `suspects` that contributed to the undone steps are quarantined. Raises `ConfigError`
    if there is no undamaged checkpoint of `step`.
    """
    checkpoint_to_return_to(directory, step)
    undone = ledger.last_step() - step
    if undone < 1:
        raise ConfigError(f"There is nothing to undo: step {ledger.last_step()} is the last.")
    for row in contributors_since(administration.database, step):
        if row.device_id in suspects:
            administration.quarantine(
                row.member, row.device_id, f"contributed to steps after {step}, which were undone"
            )
    with administration.audit.act("rewind", str(step), f"{undone} step(s)"):
        return undone, ledger.roll_back(step)


def set_aside_undone(directory: Path, last_counting_step: Callable[[int], int | None]) -> list[int]:
    """Move the checkpoints of undone steps to the folder `undone`; return these steps.

    `last_counting_step` returns the last valid step of an era, or None if all steps of the era are
    valid. Checkpoints from earlier rewinds are deleted from the folder.
    """
    undone = [step for step in stored_steps(directory) if _is_undone(directory, step, last_counting_step)]
    if undone:
        shutil.rmtree(directory / UNDONE, ignore_errors=True)
        (directory / UNDONE).mkdir()
    for step in undone:
        name = checkpoint_name(step)
        (directory / name).replace(directory / UNDONE / name)
    return undone


def _is_undone(directory: Path, step: int, last_counting_step: Callable[[int], int | None]) -> bool:
    try:
        manifest = verify(directory / checkpoint_name(step), files=()).manifest
    except StorageError:  # leave a damaged checkpoint, which a resuming keeper skips
        return False
    last = last_counting_step(manifest.era)
    return last is not None and manifest.step > last
