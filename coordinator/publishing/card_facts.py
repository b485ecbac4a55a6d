"""The facts for a model card, gathered from the run's database or from a checkpoint alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from math import prod
from pathlib import Path

from safetensors import SafetensorError, safe_open
from sqlalchemy import select

from coordinator.checkpoints.manifest import StoredCheckpoint
from coordinator.checkpoints.validations import ValidationRow, validations
from coordinator.evaluation.evaluations import EvaluationRow, evaluations
from coordinator.ledger.reading import LedgerReader
from coordinator.members.credits import unnamed_members
from coordinator.members.names import display_names, publicly
from coordinator.run.directory import RunDirectory
from coordinator.run.publish_settings import HUB
from coordinator.run.settings import Settings
from coordinator.statistics.curve import Point
from coordinator.store.engine import Database
from coordinator.store.models import KEEPER_ROLE, Device, DeviceSession
from peer.config.run import RunConfig


@dataclass(frozen=True)
class CardFacts:
    """The facts from which a model card is rendered."""

    config: RunConfig
    step: int
    manifest_sha256: str  # manifest digest of the checkpoint
    license: str = ""  # licence in the Hub's spelling; "" if unknown
    samples: int | None = None  # total up to this step; None if unknown
    losses: Sequence[Point] = ()  # (step, loss) for each step that has a training loss
    hardware: Mapping[str, int] = field(default_factory=dict)  # hardware reported by devices -> number of devices
    validations: Sequence[ValidationRow] = ()  # evaluations on held-out text up to this step
    contributors: Sequence[tuple[str, int]] = ()  # (public name, samples) of each contributor who may be named
    unnamed: int = 0  # number of members who asked not to be named
    model_class: str = ""  # class name in transformers; "" if unknown
    probe_loss: float | None = None  # loss on the probe batch; None if unknown
    choice: str = ""  # sentence that states why this checkpoint was released
    evaluations: Sequence[EvaluationRow] = ()  # results of tasks on this checkpoint
    device_hours: float | None = None  # training time in hours, summed over all devices
    year: int | None = None  # year in which the checkpoint was written
    parameters: int | None = None  # number of weights
    repository: str = ""  # repository on the Hub; "" for a local folder


def facts_of_run(
    directory: RunDirectory, database: Database, checkpoint: StoredCheckpoint, *, choice: str = "", repository: str = ""
) -> CardFacts:
    """Gather the facts of a run up to the checkpoint's step.

    `choice` states why this checkpoint is released; `repository` is the model's Hub repository.
    """
    step = checkpoint.manifest.step
    ledger = LedgerReader(database)
    steps = [row for row in ledger.steps() if row.step <= step]
    given = [row for row in ledger.contributions() if row.samples or row.averaged_bytes]
    hidden = unnamed_members(database)
    named = publicly([row for row in given if row.member not in hidden], display_names(database))
    return replace(
        _facts(directory.config, checkpoint),
        license=directory.settings.model_license or "",
        samples=sum(row.samples for row in steps),
        losses=[(float(row.step), row.loss) for row in steps if row.loss is not None],
        hardware=_hardware(database),
        validations=[row for row in validations(database) if row.step <= step],
        contributors=[(row.member, row.samples) for row in named],
        unnamed=len(given) - len(named),
        choice=choice,
        evaluations=[row for row in evaluations(database) if row.manifest_sha256 == checkpoint.manifest_sha256],
        device_hours=sum(row.elapsed_s for row in given) / 3600,
        repository=repository,
    )


def facts_of_checkpoint(checkpoint: StoredCheckpoint) -> CardFacts:
    """Gather the facts that a checkpoint contains; omit contributors, loss curve and licence."""
    return _facts(RunConfig.from_yaml(checkpoint.path / "run.yaml"), checkpoint)


def _facts(config: RunConfig, checkpoint: StoredCheckpoint) -> CardFacts:
    manifest = checkpoint.manifest
    return CardFacts(
        config=config,
        step=manifest.step,
        manifest_sha256=checkpoint.manifest_sha256,
        model_class=model_class(checkpoint),
        probe_loss=manifest.probe_loss,
        year=datetime.fromtimestamp(manifest.created_at, timezone.utc).year if manifest.created_at > 0 else None,
        parameters=count_parameters(checkpoint.path),
    )


def model_class(checkpoint: StoredCheckpoint) -> str:
    """Return the name of the model's transformers class in config.json, or "" if unknown."""
    try:
        content = json.loads((checkpoint.path / "config.json").read_text(encoding="utf-8"))
        name = str(content["architectures"][0])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return ""
    return name if name.isidentifier() else ""


def count_parameters(folder: Path) -> int | None:
    """Return the number of weights, or None if the file is unreadable; count tied weights once."""
    try:
        with safe_open(folder / "model.safetensors", framework="numpy") as weights:
            return sum(int(prod(weights.get_slice(name).get_shape())) for name in weights.keys())  # noqa: SIM118
    except (OSError, SafetensorError):
        return None


def hub_repository(settings: Settings) -> str:
    """Return the public Hub repository for this run's checkpoints, or "" if there is none."""
    for place in settings.publications:
        if place.is_hub and not place.private:
            return place.to.removeprefix(HUB)
    return ""


def _hardware(database: Database) -> Mapping[str, int]:
    """Count the devices by hardware, as reported in each device's newest session."""
    query = (
        select(DeviceSession.device_id, DeviceSession.hardware)
        .join(Device, Device.id == DeviceSession.device_id)
        .where(Device.role != KEEPER_ROLE)
        .order_by(DeviceSession.started_at)
    )
    with database() as session:
        newest = {device: hardware.strip() for device, hardware in session.execute(query)}
    return Counter(hardware for hardware in newest.values() if hardware)
