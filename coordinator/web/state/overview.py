"""The overview of a run for the API and the pages: Pydantic models, filled from a snapshot.

Times are Unix times in seconds, sizes are in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import accumulate
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

from coordinator.ledger.keeper_status import KeeperView
from coordinator.ledger.reading import Contribution, Kind, data_wait_share
from coordinator.ledger.recorded_checkpoints import CheckpointRow
from coordinator.ledger.speed import total_steps
from coordinator.statistics.alarms import AlarmRow
from coordinator.statistics.return_point import ReturnPoint
from coordinator.statistics.verdict import RunSituation, RunVerdict, verdict_of
from coordinator.web.http.answers import columns
from coordinator.web.state.snapshot import Snapshot
from peer.config.phases import PhaseFacts, all_phases, phase_at
from peer.config.run import RunConfig

MOST_CONTRIBUTIONS = 100  # maximum number of contributions; `/api/v1/participants` lists all
RECENT_STEPS = 20  # number of newest steps to include; late reports may still change them
NO_KEEPER: Mapping[str, Any] = MappingProxyType(
    {"step": 0, "samples_accumulated": 0, "eta_s": None, "samples_per_second": 0.0, "peers": 0, "updated_at": None}
)


class RunFacts(BaseModel):
    """The run's name, language and batch size, and the link for joining."""

    name: str
    description: str
    language: str
    target_batch_size: int  # samples per global step
    join_link: str


class BatchProgress(BaseModel):
    """The global batch being accumulated, as seen by the keeper."""

    step: int  # number of completed global steps
    phase: int  # number of the current phase, starting at 1
    samples_accumulated: int
    target_batch_size: int
    eta_s: float | None  # seconds until the batch is full
    samples_per_second: float  # speed of the run: counted samples over elapsed time
    time_left_s: float | None  # seconds until the run's last step, at that speed
    peers: int
    updated_at: float | None  # time of the keeper's last report; null before the first


class RunProgress(BaseModel):
    """The progress of the run in global steps, with the run's start and expected end."""

    step: int
    total_steps: int
    began_at: float | None  # time at which the first step was completed
    ends_at: float | None  # expected end at the current speed; null if unknown


class PhaseSummary(BaseModel):
    """One phase of the run."""

    number: int
    count: int
    from_step: int
    sequence_length: int
    target_batch_size: int
    fresh_optimizer: bool
    final_batch_size: int | None  # final target batch size; null if the batch does not grow
    text: str


class Online(BaseModel):
    """The numbers of devices and members currently connected."""

    devices: int
    members: int


class Totals(BaseModel):
    """Totals since the start of the run."""

    steps: int
    samples: int
    members: int


class DataWait(BaseModel):
    """The time that devices waited for data, in seconds and as a fraction of training time."""

    seconds: float
    share: float | None


class LossRange(BaseModel):
    """The losses of the first and the newest global step."""

    first: float | None
    last: float | None


class Rounds(BaseModel):
    """Averaging rounds since the keeper's start, as counted by the keeper."""

    succeeded: int
    failed: int
    mean_s: float | None  # mean duration of successful rounds, including the wait for the group


class AveragingHealth(BaseModel):
    """Averaging statistics for the newest steps with complete reports."""

    steps: int  # number of steps in the statistics
    batch_share: float | None  # averaged samples divided by the sum of the target batch sizes
    averaging_s: float | None  # mean duration of averaging over all reports
    lost_samples: dict[str, int]  # number of lost samples by reported reason
    rounds: Rounds | None  # averaging rounds; null before the keeper's first report
    missing_auxiliaries: int | None  # number of further auxiliary peers that would shorten rounds; null before round 1


class DonatedTime(BaseModel):
    """The training time on one kind of hardware, including the time for undone steps."""

    kind: Kind
    device_s: float
    accelerator_s: float  # sum over devices of training time * number of accelerators


class ContributionFacts(BaseModel):
    """The contribution of one member, with the member's public name."""

    member: str
    samples: int
    pending_samples: int
    averaged_bytes: int
    share: float
    devices: int
    online: int
    samples_per_second: float
    last_seen_at: float | None
    data_wait_share: float | None


class ValidationFacts(BaseModel):
    """The results of one checkpoint on held-out text."""

    step: int
    era: int
    manifest_sha256: str
    set_sha256: str
    sequence_length: int
    samples: int
    predicted_tokens: int
    mlm_loss: float | None
    sop_loss: float | None
    accuracy: float
    sop_accuracy: float | None
    detection_loss: float | None
    detection_accuracy: float | None
    detection_f1: float | None
    elapsed_s: float
    evaluated_at: float
    loss: float | None
    perplexity: float | None


class ValidationSummary(BaseModel):
    """The number of evaluated checkpoints, and the results of the newest one."""

    count: int
    newest: ValidationFacts | None


class RecentSteps(BaseModel):
    """The newest global steps as columns, from which pages extend their curve without a request."""

    step: list[int]
    loss: list[float | None]
    samples: list[int]
    samples_total: list[int]
    completed_at: list[float]


class TaskSummary(BaseModel):
    """The number of evaluations on the run's tasks, and the time of the newest one."""

    count: int
    newest_at: float | None


class AlarmFacts(BaseModel):
    """An active alarm, without its detail text, which may name members."""

    kind: str
    step: int  # step at which the problem began
    raised_at: float
    return_to: ReturnPoint | None  # checkpoint to return to; null if the alarm is not about the model


class Overview(BaseModel):
    """The current state of the run."""

    run: RunFacts
    verdict: RunVerdict
    alarms: list[AlarmFacts]  # active alarms, oldest first
    whole: RunProgress
    progress: BatchProgress
    phases: list[PhaseSummary]
    online: Online
    totals: Totals
    data_wait: DataWait
    loss: LossRange
    recent: RecentSteps
    averaging: AveragingHealth
    donated: list[DonatedTime]  # kinds of hardware, longest time first
    contributions: list[ContributionFacts]
    checkpoint: CheckpointRow | None
    validation: ValidationSummary
    tasks: TaskSummary
    era: int
    stale: bool
    taken_at: float


def overview_of(
    snapshot: Snapshot, config: RunConfig, join_link: str, contributions: int = MOST_CONTRIBUTIONS
) -> Overview:
    """Return the overview, without the curve and with only the largest contributions."""
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
        verdict=_verdict(snapshot, config, phase),
        alarms=[_alarm(snapshot, row) for row in snapshot.alarms],
        whole=_whole(snapshot, config, step),
        progress=_progress(snapshot.swarm, phase, snapshot.time_left_s),
        phases=[PhaseSummary(**asdict(each), text=str(each)) for each in all_phases(config)],
        online=Online(devices=len(snapshot.online), members=len({session.member for session in snapshot.online})),
        totals=Totals(steps=snapshot.last_step, samples=snapshot.samples, members=len(snapshot.contributions)),
        data_wait=DataWait(seconds=snapshot.data_wait_s, share=data_wait_share(snapshot.contributions)),
        loss=LossRange(first=losses[0], last=losses[1]),
        recent=_recent(snapshot),
        averaging=_averaging(snapshot),
        donated=_donated(snapshot),
        contributions=[_contribution(row, snapshot.samples) for row in snapshot.contributions[:contributions]],
        checkpoint=snapshot.checkpoint,
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


def _verdict(snapshot: Snapshot, config: RunConfig, phase: PhaseFacts) -> RunVerdict:
    situation = RunSituation(
        now=snapshot.taken_at,
        keeper=snapshot.swarm,
        steps=snapshot.steps,
        phase_from_step=phase.from_step,
        total_steps=total_steps(config, snapshot.helm),
        recent_devices=snapshot.recent_devices,
        online_devices=len(snapshot.online),
        alarms=snapshot.alarms,
        paused=snapshot.helm.paused,
        store_answers=not snapshot.refresh_failed,
    )
    return verdict_of(situation)


def _alarm(snapshot: Snapshot, row: AlarmRow) -> AlarmFacts:
    return AlarmFacts(kind=row.kind, step=row.step, raised_at=row.raised_at, return_to=snapshot.return_point(row))


def _whole(snapshot: Snapshot, config: RunConfig, step: int) -> RunProgress:
    left_s = None if snapshot.stale else snapshot.time_left_s
    return RunProgress(
        step=step,
        total_steps=total_steps(config, snapshot.helm),
        began_at=snapshot.steps[0].completed_at if snapshot.steps else None,
        ends_at=None if left_s is None else snapshot.taken_at + left_s,
    )


def _progress(swarm: KeeperView | None, phase: PhaseFacts, time_left_s: float | None) -> BatchProgress:
    known = NO_KEEPER if swarm is None else vars(swarm)
    ours: dict[str, Any] = {
        "phase": phase.number,
        "target_batch_size": phase.target_batch_size,
        "time_left_s": time_left_s,
    }
    return BatchProgress(**{**known, **ours})


def _recent(snapshot: Snapshot) -> RecentSteps:
    rows = snapshot.steps[-RECENT_STEPS:]
    before = snapshot.samples - sum(row.samples for row in rows)
    totals = list(accumulate((row.samples for row in rows), initial=before))[1:]
    return RecentSteps(**columns(rows, "step", "loss", "samples", "completed_at"), samples_total=totals)


def _averaging(snapshot: Snapshot) -> AveragingHealth:
    rounds, tally = None, snapshot.figures.rounds
    if tally is not None:
        mean_s = tally.seconds / tally.succeeded if tally.succeeded else None
        rounds = Rounds(succeeded=tally.succeeded, failed=tally.failed, mean_s=mean_s)
    missing = snapshot.figures.missing_auxiliaries
    return AveragingHealth(**vars(snapshot.health), rounds=rounds, missing_auxiliaries=missing)


def _donated(snapshot: Snapshot) -> list[DonatedTime]:
    seconds: dict[Kind, tuple[float, float]] = {}
    for hardware, gift in snapshot.giving.by_hardware().items():
        device_s, accelerator_s = seconds.get(hardware.kind, (0.0, 0.0))
        given_s = gift.elapsed_s + gift.undone_s
        seconds[hardware.kind] = (device_s + given_s, accelerator_s + given_s * hardware.accelerators)
    found = [
        DonatedTime(kind=kind, device_s=both[0], accelerator_s=both[1]) for kind, both in seconds.items() if both[0]
    ]
    return sorted(found, key=lambda donation: -donation.device_s)


def _contribution(row: Contribution, total: int) -> ContributionFacts:
    share = row.samples / total if total else 0.0
    return ContributionFacts(**vars(row), share=share, data_wait_share=data_wait_share([row]))
