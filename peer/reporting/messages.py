"""Messages between an agent and its worker over a pipe, and the causes for which samples are lost.

Reports, losses and suspicions go on to the coordinator. `StepReport` declares a report's claims with their bounds;
`peer.reporting.wire`, the ledger's judgement and the columns of its table follow that declaration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, get_type_hints

from auth.receipts import MAX_COUNT, MAX_RECEIPT_CHARS
from peer.config.phases import PhaseFacts
from peer.network.placement import Placement
from peer.reporting.suspicions import Suspicion
from peer.runtime.devices import CompileMode, Wanted

MAX_LONG = 2**62  # of whole numbers that need more than 32 bits
MAX_REASON_CHARS = 40
MAX_SAMPLES_PER_SECOND = 1e7


class LostCause(str, Enum):
    """The causes for which computed samples are in no global step; the list is closed, so that losses can be added up.

    Peers and the coordinator send and store the values: never rename one.
    """

    NON_FINITE = "non-finite"  # the loss or a gradient of their microbatch was not finite
    LATE = "late"  # the others took the step without them
    AVERAGING = "averaging failed"  # this peer's round failed, and the others took the step
    OUT_OF_SYNC = "out of sync"  # the peer's parameters differed from the swarm's
    SLOW_LINE = "slow line"  # the line cannot pass the gradients within a round of averaging
    UNDONE = "undone"  # the run returned to a checkpoint while they waited
    LEFT = "left"  # the peer stopped or paused before their step was taken
    DIED = "died"  # the process that held them ended or hung
    REFUSED = "refused"  # by the coordinator: their report cannot be true
    QUARANTINE = "quarantine"  # by the coordinator: the device was cut off while it held them
    OTHER = "other"  # what this version has no name for


@dataclass(frozen=True)
class Lost:
    """Losses beside the reports of steps; the agent keeps them until the coordinator has acknowledged them."""

    step: int  # for which they were computed, from 1
    by_cause: Mapping[str, int]


@dataclass(frozen=True)
class Ready:
    """The worker has the run's state and begins to train, or to assist."""

    peer_id: str
    step: int
    device: str  # "cpu", "cuda:0 (Tesla T4)", ...; empty for an auxiliary peer, which computes nothing
    microbatch_size: int | None = None  # samples at once; 0 for an auxiliary peer


@dataclass(frozen=True)
class PhaseEntered:
    """The phase in force from now on, in a run that has phases."""

    phase: PhaseFacts


@dataclass(frozen=True)
class Progress:
    """The progress of this peer and, as this peer sees it, of the swarm; sent about once a second, never stored."""

    step: int  # global steps completed
    own_samples: int  # accumulated by this peer towards the next global step
    swarm_samples: int  # accumulated by all peers towards it
    target_batch_size: int
    peers: int
    samples_per_second: float  # this peer's, moving average
    loss: float | None  # mean over the microbatches since the last global step
    apart: bool = False  # no keeper has been seen in the swarm for as long as records hold
    stands_by: bool = False  # its line is too slow for the rounds of averaging
    paused: bool = False  # the operator has paused the run


@dataclass(frozen=True)
class Bound:
    """The upper bound of a report's claim: a number's value (at least 0), or a text's length."""

    most: float
    of_batch: bool = False  # in target batches of the step

    def at(self, target_batch_size: int) -> float:
        """Return the highest number that can be true for a step of this batch size."""
        return self.most * target_batch_size if self.of_batch else self.most

    @property
    def storable(self) -> int:
        """The highest whole number that the claim's column holds."""
        return MAX_COUNT if self.of_batch or self.most <= MAX_COUNT else MAX_LONG


_NUMBER, _LOSS, _DURATION = Bound(MAX_COUNT), Bound(100.0), Bound(30 * 86_400.0)


@dataclass(frozen=True)
class StepReport:
    """This peer's work for one global step; kept by the agent until the coordinator has acknowledged it."""

    step: Annotated[int, _NUMBER]  # of the completed global step, from 1
    # Of this peer, in the step's average; it may have computed more while it waited for the others.
    samples: Annotated[int, Bound(10, of_batch=True)]
    loss: Annotated[float | None, _LOSS]  # mean over those samples, of the whole objective; None without samples
    mlm_loss: Annotated[float | None, _LOSS]
    sop_loss: Annotated[float | None, _LOSS]
    group_size: Annotated[int, Bound(10_000)]  # peers that averaged together, keeper included
    # Total weight of the group; only a peer that reduced a part knows it.
    group_samples: Annotated[int | None, _NUMBER]
    averaging_s: Annotated[float, _DURATION]
    samples_per_second: Annotated[float, Bound(MAX_SAMPLES_PER_SECOND)]
    lost_samples: Annotated[int, Bound(100, of_batch=True)] = 0  # since the last report
    lost_reason: Annotated[str, Bound(MAX_REASON_CHARS)] = ""  # the newest of the causes below
    data_wait_s: Annotated[float, _DURATION] = 0.0  # the part of `elapsed_s` spent waiting for microbatches
    elapsed_s: Annotated[float, _DURATION] = 0.0  # since the report before
    averaged_bytes: Annotated[int, Bound(2**45)] = 0  # that others sent to this peer to be averaged
    # Samples that each sender brought to what this peer reduced, signed: see auth.receipts.
    receipt: Annotated[str, Bound(MAX_RECEIPT_CHARS)] = ""
    era: Annotated[int, _NUMBER] = 0  # the number of the run's returns to a checkpoint
    lost: Mapping[str, int] = field(default_factory=dict)  # `lost_samples` by cause: see `LostCause`


CLAIM_BOUNDS: Mapping[str, Bound] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(StepReport, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}


@dataclass(frozen=True)
class Notice:
    """One line for the person at the terminal."""

    level: str  # "info", "warning", "error"
    text: str


@dataclass(frozen=True)
class Stopped:
    """The worker has left the swarm in an orderly way."""

    reason: str


@dataclass(frozen=True)
class Failed:
    """The worker cannot go on, by a `ManyhandsError` with this code and exit code."""

    code: str
    exit_code: int
    text: str
    short_of_memory: bool = False  # a smaller microbatch may help


@dataclass(frozen=True)
class Transferred:
    """The worker's traffic so far; sent every few seconds."""

    sent_bytes: int
    received_bytes: int
    awaits_state: bool = False  # the training waits for a donor's state, which counts as received


@dataclass(frozen=True)
class CheckpointWanted:
    """Request for the newest checkpoint, if that is the swarm's present state."""

    most_bytes: int  # of its files


@dataclass(frozen=True)
class KeeperSought:
    """Request for the keeper's present addresses: the worker has not found it in the swarm."""


@dataclass(frozen=True)
class CheckpointFetched:
    """Agent to worker: the folder with the state after `step`, if there is one to start from."""

    step: int
    directory: str  # empty: none


@dataclass(frozen=True)
class LineInDoubt:
    """Request to measure the line again, because rounds took too long or the measurement is old."""


@dataclass(frozen=True)
class LineMeasured:
    """Agent to worker: the line's rate in bytes per second, of the slower direction, within the volunteer's limits."""

    rate: float


@dataclass(frozen=True)
class KeeperAt:
    """Agent to worker: the keeper's present addresses."""

    addresses: tuple[str, ...]  # libp2p multiaddresses


@dataclass(frozen=True)
class Stop:
    """Agent to worker: finish the microbatch, leave the swarm in order."""

    reason: str


@dataclass(frozen=True)
class TrialPlan:
    """The argument of the process that tries devices before the run is joined."""

    device: str  # the value of `--device`
    log: str  # a file


@dataclass(frozen=True)
class DeviceTried:
    """The working device and the faults of better ones; or none, and why the chosen one cannot be used."""

    device: str
    fault: str


@dataclass(frozen=True)
class ClockRead:
    """The coordinator's clock, as estimated from the fastest messages."""

    offset_s: float  # to be added to `auth.clock.steady_time()`


@dataclass(frozen=True)
class WorkerPlan:
    """The argument of the worker's process: all that it needs to start."""

    run_config_json: str
    credentials_dir: str  # device.key, authority.pub, token.jwt, revoked.jwt: see auth.credentials
    tokenizer_dir: str
    data_dir: str  # the device's folder for stream positions and caches
    initial_peers: tuple[str, ...]  # libp2p multiaddresses of the keeper
    relays: tuple[str, ...] = ()  # of volunteers, for a peer that others cannot reach
    clock_offset_s: float = math.nan  # of the coordinator's clock: see `ClockRead`
    device_number: int = 0  # in the order of joining; decides where in the data this device begins
    device: str = "auto"
    precision: Wanted = "auto"
    threads: int | None = None
    microbatch_size: int | None = None
    compile: CompileMode = "auto"
    max_hours: float | None = None
    max_memory_bytes: int | None = None  # that the volunteer allows
    upload_rate: float | None = None  # bytes a second
    download_rate: float | None = None
    place: Placement = field(default=Placement())


WorkerEvent = Ready | PhaseEntered | Progress | StepReport | Notice | Stopped | Failed
WorkerMessage = WorkerEvent | Lost | Transferred | Suspicion | LineInDoubt | CheckpointWanted | KeeperSought
AgentMessage = Stop | LineMeasured | CheckpointFetched | KeeperAt | ClockRead
