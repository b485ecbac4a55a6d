"""Facts for the model card, from the run's database, or from a checkpoint alone where there is no database."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timezone
from itertools import groupby
from math import prod
from pathlib import Path

from safetensors import SafetensorError, safe_open
from sqlalchemy import select

from coordinator.checkpoints.manifest import StoredCheckpoint
from coordinator.checkpoints.validations import validations
from coordinator.evaluation.evaluations import evaluations
from coordinator.ledger.reading import LedgerReader, StepRow
from coordinator.members.credits import unnamed_members
from coordinator.members.names import display_names, publicly
from coordinator.publishing.model_card import CardFacts, write_card
from coordinator.run.publish_settings import HUB
from coordinator.run.settings import Settings
from coordinator.statistics.curve import draw_curve
from coordinator.store.engine import Database
from coordinator.store.models import KEEPER_ROLE, Device, DeviceSession
from peer.config.phases import all_phases
from peer.config.run import RunConfig

CARD, CURVE = "README.md", "loss.svg"


def card_of_run(
    database: Database,
    ledger: LedgerReader,
    config: RunConfig,
    checkpoint: StoredCheckpoint,
    model_license: str,
    choice: str = "",
    repository: str = "",
) -> Mapping[str, str]:
    """The card and its curve by file name, with all that the run's database knows up to the checkpoint's step.

    `choice`: why this checkpoint is released, if it was chosen. `repository`: the model's on the hub, if it has one.
    """
    facts = facts_of_run(database, ledger, config, checkpoint, model_license, choice, repository)
    points = [(float(row.step), row.loss) for row in _steps(ledger, checkpoint) if row.loss is not None]
    if not points:
        return {CARD: write_card(facts)}
    boundaries = {phase.from_step: f"phase {phase.number}" for phase in all_phases(config)[1:]}
    by_set = groupby(facts.validations, lambda row: row.set_sha256)  # losses on other samples join no line
    held_out = [[(float(row.step), row.loss) for row in group if row.loss is not None] for _, group in by_set]
    curve = draw_curve(points, f"Loss of {config.run.name} over {len(points)} global steps", boundaries, held_out)
    return {CARD: write_card(facts), CURVE: curve}


def facts_of_run(
    database: Database,
    ledger: LedgerReader,
    config: RunConfig,
    checkpoint: StoredCheckpoint,
    model_license: str,
    choice: str = "",
    repository: str = "",
) -> CardFacts:
    """Gather the facts that the run's database knows up to the checkpoint's step."""
    step = checkpoint.manifest.step
    steps = _steps(ledger, checkpoint)
    given = [row for row in ledger.contributions() if row.samples or row.averaged_bytes]
    hidden = unnamed_members(database)
    named = publicly([row for row in given if row.member not in hidden], display_names(database))
    return CardFacts(
        config=config,
        step=step,
        manifest_sha256=checkpoint.manifest_sha256,
        license=model_license,
        samples=sum(row.samples for row in steps),
        has_curve=any(row.loss is not None for row in steps),
        hardware=_hardware(database),
        validations=[row for row in validations(database) if row.step <= step],
        contributors=[(row.member, row.samples) for row in named],
        unnamed=len(given) - len(named),
        model_class=model_class(checkpoint),
        probe_loss=checkpoint.manifest.probe_loss,
        choice=choice,
        evaluations=[row for row in evaluations(database) if row.manifest_sha256 == checkpoint.manifest_sha256],
        device_hours=sum(row.elapsed_s for row in given) / 3600,
        year=_year(checkpoint),
        parameters=count_parameters(checkpoint.path),
        repository=repository,
    )


def _steps(ledger: LedgerReader, checkpoint: StoredCheckpoint) -> list[StepRow]:
    return [row for row in ledger.steps() if row.step <= checkpoint.manifest.step]


def facts_of_checkpoint(checkpoint: StoredCheckpoint) -> CardFacts:
    """Gather the facts that the checkpoint alone knows: no contributors, no curve, no licence."""
    return CardFacts(
        config=RunConfig.from_yaml(checkpoint.path / "run.yaml"),
        step=checkpoint.manifest.step,
        manifest_sha256=checkpoint.manifest_sha256,
        license="",
        samples=None,
        has_curve=False,
        hardware={},
        validations=(),
        contributors=(),
        unnamed=0,
        model_class=model_class(checkpoint),
        probe_loss=checkpoint.manifest.probe_loss,
        year=_year(checkpoint),
        parameters=count_parameters(checkpoint.path),
    )


def model_class(checkpoint: StoredCheckpoint) -> str:
    """transformers' name of the model, as its configuration says; "" if it does not."""
    try:
        content = json.loads((checkpoint.path / "config.json").read_text(encoding="utf-8"))
        name = str(content["architectures"][0])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return ""
    return name if name.isidentifier() else ""


def count_parameters(folder: Path) -> int | None:
    """Count the weights in the model's file, tied ones once; None if it cannot be read."""
    try:
        with safe_open(folder / "model.safetensors", framework="numpy") as weights:
            return sum(int(prod(weights.get_slice(name).get_shape())) for name in weights.keys())  # noqa: SIM118
    except (OSError, SafetensorError):
        return None


def hub_repository(settings: Settings) -> str:
    """The public repository on the hub that checkpoints are published to; "" if there is none."""
    for place in settings.publications:
        if place.is_hub and not place.private:
            return place.to.removeprefix(HUB)
    return ""


def _year(checkpoint: StoredCheckpoint) -> int | None:
    written = checkpoint.manifest.created_at
    return datetime.fromtimestamp(written, timezone.utc).year if written > 0 else None


def _hardware(database: Database) -> Mapping[str, int]:
    """Count the devices of each kind of hardware, as stated in their newest sessions."""
    query = (
        select(DeviceSession.device_id, DeviceSession.hardware)
        .join(Device, Device.id == DeviceSession.device_id)
        .where(Device.role != KEEPER_ROLE)
        .order_by(DeviceSession.started_at)
    )
    with database() as session:
        newest = {device: hardware.strip() for device, hardware in session.execute(query)}
    return Counter(hardware for hardware in newest.values() if hardware)
