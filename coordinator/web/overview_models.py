"""The shape of the overview: where the run stands, in names and numbers; times in Unix seconds, sizes in bytes."""

from __future__ import annotations

from pydantic import BaseModel

from coordinator.hardware_kinds import Kind


class RunFacts(BaseModel):
    """What is trained, and how to take part."""

    name: str
    description: str
    language: str
    target_batch_size: int  # samples a global step
    join_link: str


class Progress(BaseModel):
    """The global batch that fills up now, as the keeper sees it."""

    step: int  # global steps completed
    phase: int  # from 1
    samples_accumulated: int
    target_batch_size: int
    eta_s: float | None  # until it is full
    samples_per_second: float  # of the run: samples of counted steps over the time that passed
    time_left_s: float | None  # until the run's last step, at that speed
    peers: int
    updated_at: float | None


class Phase(BaseModel):
    """One phase of the run."""

    number: int
    count: int
    from_step: int
    sequence_length: int
    target_batch_size: int
    fresh_optimizer: bool
    text: str


class Online(BaseModel):
    """Who is connected now."""

    devices: int
    members: int


class Totals(BaseModel):
    """Since the run began."""

    steps: int
    samples: int
    members: int


class DataWait(BaseModel):
    """Of the time that all devices have trained, how much they waited for data."""

    seconds: float
    share: float | None


class LossFacts(BaseModel):
    """The first global step's loss and the newest's."""

    first: float | None
    last: float | None


class Rounds(BaseModel):
    """Rounds of averaging since the keeper started, as it has seen them end."""

    succeeded: int
    failed: int
    mean_s: float | None  # of those that succeeded, gathering included


class Averaging(BaseModel):
    """How well the newest settled steps went."""

    steps: int  # that this is about
    batch_share: float | None  # samples averaged in over the target batches
    averaging_s: float | None  # the mean over all reports
    lost_samples: dict[str, int]  # by the peers' own reason
    rounds: Rounds | None  # null before the keeper's first word


class Donation(BaseModel):
    """The time that machines of a kind have trained; that for steps which were undone is in it."""

    kind: Kind
    device_s: float
    accelerator_s: float  # a machine with two GPUs gives two seconds in one


class ContributionFacts(BaseModel):
    """What one member has given, under the name that the public may know."""

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


class CheckpointFacts(BaseModel):
    """What anybody may know of a checkpoint: not where on the operator's disk it lies."""

    step: int
    size_bytes: int
    manifest_sha256: str
    created_at: float
    withheld: str


class ValidationFacts(BaseModel):
    """What held-out text says of one checkpoint."""

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
    elapsed_s: float
    evaluated_at: float
    loss: float | None
    perplexity: float | None


class ValidationSummary(BaseModel):
    """How many checkpoints were evaluated, and the newest of them."""

    count: int
    newest: ValidationFacts | None


class RecentSteps(BaseModel):
    """The newest global steps as columns: with these a page's curve goes on without asking."""

    step: list[int]
    loss: list[float | None]
    samples: list[int]
    samples_total: list[int]
    completed_at: list[float]


class TaskSummary(BaseModel):
    """How many evaluations on the run's tasks there are, and when the newest was made (Unix seconds)."""

    count: int
    newest_at: float | None


class Overview(BaseModel):
    """Where the run stands."""

    run: RunFacts
    progress: Progress
    phases: list[Phase]
    online: Online
    totals: Totals
    data_wait: DataWait
    loss: LossFacts
    recent: RecentSteps
    averaging: Averaging
    donated: list[Donation]  # the most first
    contributions: list[ContributionFacts]
    checkpoint: CheckpointFacts | None
    validation: ValidationSummary
    tasks: TaskSummary
    era: int
    stale: bool
    taken_at: float
