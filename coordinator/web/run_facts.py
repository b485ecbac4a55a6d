"""Filling the overview from a snapshot; what it consists of is in `coordinator.web.overview_models`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from coordinator.hardware_kinds import Kind
from coordinator.ledger import Contribution, data_wait_share
from coordinator.presence import CheckpointRow, SwarmView
from coordinator.web.overview_models import (
    Averaging,
    CheckpointFacts,
    ContributionFacts,
    DataWait,
    Donation,
    LossFacts,
    Online,
    Overview,
    Phase,
    Progress,
    RecentSteps,
    Rounds,
    RunFacts,
    TaskSummary,
    Totals,
    ValidationFacts,
    ValidationSummary,
)
from coordinator.web.snapshot import Snapshot
from peer.phases import PhaseFacts, all_phases, phase_at
from peer.run_config import RunConfig

MOST_CONTRIBUTIONS = 100  # the largest; the participants' own list has all
RECENT_STEPS = 20  # late reports still change these


def overview_of(
    snapshot: Snapshot, config: RunConfig, join_link: str, contributions: int = MOST_CONTRIBUTIONS
) -> Overview:
    """Everything but the curve, and of the contributions the largest."""
    step = snapshot.swarm.step if snapshot.swarm else 0
    phase = phase_at(config, step)
    losses = snapshot.losses
    return Overview(
        run=RunFacts(
            name=config.run.name,
            description=config.run.description,
            language=config.run.language,
            target_batch_size=phase.target_batch_size,
            join_link=join_link,
        ),
        progress=_progress(snapshot.swarm, phase, snapshot.time_left_s),
        phases=[Phase(**asdict(each), text=str(each)) for each in all_phases(config)],
        online=Online(devices=len(snapshot.online), members=len({session.member for session in snapshot.online})),
        totals=Totals(
            steps=snapshot.steps[-1].step if snapshot.steps else 0,
            samples=snapshot.samples,
            members=len(snapshot.contributions),
        ),
        data_wait=DataWait(seconds=snapshot.data_wait_s, share=data_wait_share(snapshot.contributions)),
        loss=LossFacts(first=losses[0], last=losses[1]),
        recent=_recent(snapshot),
        averaging=_averaging(snapshot),
        donated=_donated(snapshot),
        contributions=[_contribution(row, snapshot.samples) for row in snapshot.contributions[:contributions]],
        checkpoint=None if snapshot.checkpoint is None else checkpoint_facts(snapshot.checkpoint),
        validation=ValidationSummary(
            count=len(snapshot.validations),
            newest=ValidationFacts(**snapshot.validations[-1].facts) if snapshot.validations else None,
        ),
        tasks=TaskSummary(
            count=len(snapshot.evaluations),
            newest_at=max((row.evaluated_at for row in snapshot.evaluations), default=None),
        ),
        era=snapshot.era,
        stale=snapshot.stale,
        taken_at=snapshot.taken_at,
    )


def _progress(swarm: SwarmView | None, phase: PhaseFacts, time_left_s: float | None) -> Progress:
    now: dict[str, Any] = {
        "step": 0,
        "samples_accumulated": 0,
        "eta_s": None,
        "samples_per_second": 0.0,
        "peers": 0,
        "updated_at": None,
    }
    if swarm is not None:
        now = {name: getattr(swarm, name) for name in now}
    target = phase.target_batch_size
    return Progress(phase=phase.number, target_batch_size=target, time_left_s=time_left_s, **now)


def _recent(snapshot: Snapshot) -> RecentSteps:
    rows, total = snapshot.steps[-RECENT_STEPS:], snapshot.samples
    totals: list[int] = []
    for row in reversed(rows):
        totals.append(total)
        total -= row.samples
    return RecentSteps(
        step=[row.step for row in rows],
        loss=[row.loss for row in rows],
        samples=[row.samples for row in rows],
        samples_total=totals[::-1],
        completed_at=[row.completed_at for row in rows],
    )


def _averaging(snapshot: Snapshot) -> Averaging:
    health, tally = snapshot.health, snapshot.figures.rounds
    rounds = None
    if tally is not None:
        mean_s = tally.seconds / tally.succeeded if tally.succeeded else None
        rounds = Rounds(succeeded=tally.succeeded, failed=tally.failed, mean_s=mean_s)
    return Averaging(
        steps=health.steps,
        batch_share=health.batch_share,
        averaging_s=health.averaging_s,
        lost_samples=dict(health.lost_samples),
        rounds=rounds,
    )


def _donated(snapshot: Snapshot) -> list[Donation]:
    seconds: dict[Kind, tuple[float, float]] = {}
    for hardware, gift in snapshot.giving.by_hardware().items():
        device_s, accelerator_s = seconds.get(hardware.kind, (0.0, 0.0))
        given_s = gift.elapsed_s + gift.undone_s
        seconds[hardware.kind] = (device_s + given_s, accelerator_s + given_s * hardware.accelerators)
    found = [Donation(kind=kind, device_s=both[0], accelerator_s=both[1]) for kind, both in seconds.items() if both[0]]
    return sorted(found, key=lambda donation: -donation.device_s)


def _contribution(row: Contribution, total: int) -> ContributionFacts:
    return ContributionFacts(
        member=row.member,
        samples=row.samples,
        pending_samples=row.pending_samples,
        averaged_bytes=row.averaged_bytes,
        share=row.samples / total if total else 0.0,
        devices=row.devices,
        online=row.online,
        samples_per_second=row.samples_per_second,
        last_seen_at=row.last_seen_at,
        data_wait_share=data_wait_share([row]),
    )


def checkpoint_facts(row: CheckpointRow) -> CheckpointFacts:
    """A recorded checkpoint, without its place."""
    return CheckpointFacts(
        step=row.step,
        size_bytes=row.size_bytes,
        manifest_sha256=row.manifest_sha256,
        created_at=row.created_at,
        withheld=row.withheld,
    )
