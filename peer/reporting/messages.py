"""Messages between an agent and its worker over a pipe, and the causes of lost samples.

Reports, losses and suspicions go on to the coordinator. `StepReport` declares a report's claims and
bounds; `peer.reporting.wire`, the ledger's plausibility checks and its table's columns follow it.
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
    """The causes for which computed samples are in no global step, as a closed list.

    Peers and the coordinator send and store the values: never rename one.
    """

    NON_FINITE = "non-finite"  # the loss or a gradient of their microbatch was not finite
    LATE = "late"  # the others took the step without these samples
    AVERAGING = "averaging failed"  # this peer's round failed, and the others took the step
    OUT_OF_SYNC = "out of sync"  # the peer's parameters differed from the swarm's
    SLOW_LINE = "slow line"  # the line cannot transfer the gradients within a round of averaging
    UNDONE = "undone"  # the run returned to a checkpoint before their step was taken
    LEFT = "left"  # the peer stopped or paused before their step was taken
    DIED = "died"  # the process that held them ended or hung
    REFUSED = "refused"  # set by the coordinator: their report cannot be true
    QUARANTINE = "quarantine"  # set by the coordinator: the device was cut off while it held them
    OTHER = "other"  # a cause unknown to this version


@dataclass(frozen=True)
class Lost:
    """Lost samples outside of step reports; the agent keeps them until they are acknowledged."""

    step: int  # the step for which the samples were computed, from 1
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
    """The phase that begins now, in a run with phases."""

    phase: PhaseFacts


@dataclass(frozen=True)
class Progress:
    """The progress of this peer, and of the swarm in its view; sent once a second, never stored."""

    step: int  # global steps completed
    own_samples: int  # accumulated by this peer towards the next global step
    swarm_samples: int  # accumulated by all peers towards it
    target_batch_size: int
    peers: int
    samples_per_second: float  # this peer's, moving average
    loss: float | None  # mean over the microbatches since the last global step
    apart: bool = False  # no keeper was seen in the swarm within the lifetime of DHT records
    stands_by: bool = False  # this peer's line is too slow for the rounds of averaging
    paused: bool = False  # the operator has paused the run


@dataclass(frozen=True)
class Bound:
    """The upper bound of a report's claim: a number's value (at least 0), or a text's length."""

    most: float
    of_batch: bool = False  # `most` is a multiple of the step's target batch size

    def at(self, target_batch_size: int) -> float:
        """Return the highest plausible value for a step of this batch size."""
        return self.most * target_batch_size if self.of_batch else self.most

    @property
    def storable(self) -> int:
        """The highest whole number that the claim's column holds."""
        return MAX_COUNT if self.of_batch or self.most <= MAX_COUNT else MAX_LONG


_NUMBER, _LOSS, _DURATION = Bound(MAX_COUNT), Bound(100.0), Bound(30 * 86_400.0)


@dataclass(frozen=True)
class StepReport:
    """This peer's work for one global step; the agent keeps it until it is acknowledged."""

    step: Annotated[int, _NUMBER]  # the completed global step, from 1
    # This peer's samples in the step's average; it may have computed more while waiting for others.
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
    elapsed_s: Annotated[float, _DURATION] = 0.0  # since the previous report
    averaged_bytes: Annotated[int, Bound(2**45)] = 0  # sent to this peer by others for averaging
    # Signed list of the samples that senders contributed to this peer's parts: see auth.receipts.
    receipt: Annotated[str, Bound(MAX_RECEIPT_CHARS)] = ""
    era: Annotated[int, _NUMBER] = 0  # how often the run has returned to a checkpoint
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
    """The worker has failed with a `ManyhandsError` of this code and exit code."""

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
    """Request for the newest checkpoint, if it is recent enough to catch up with the swarm."""

    most_bytes: int  # the most bytes that its files may have


@dataclass(frozen=True)
class KeeperSought:
    """Request for the keeper's current addresses: the worker has not found it in the swarm."""


@dataclass(frozen=True)
class CheckpointFetched:
    """Agent to worker: the folder with the state after `step`, if a checkpoint was downloaded."""

    step: int
    directory: str  # empty: none


@dataclass(frozen=True)
class LineInDoubt:
    """Request to measure the line again, because rounds took too long or the measurement is old."""


@dataclass(frozen=True)
class LineMeasured:
    """Agent to worker: the line's measured rate, within the volunteer's limits."""

    rate: float  # bytes per second of the slower direction


@dataclass(frozen=True)
class KeeperAt:
    """Agent to worker: the keeper's current addresses."""

    addresses: tuple[str, ...]  # libp2p multiaddresses


@dataclass(frozen=True)
class Stop:
    """Agent to worker: finish the microbatch and leave the swarm in order."""

    reason: str


@dataclass(frozen=True)
class TrialPlan:
    """The argument of the process that tries devices before the run is joined."""

    device: str  # the value of `--device`
    log: str  # a file


@dataclass(frozen=True)
class DeviceTried:
    """The working device and the faults of better ones, or the fault of the chosen device."""

    device: str
    fault: str


@dataclass(frozen=True)
class ClockRead:
    """The coordinator's clock, as estimated from the fastest messages."""

    offset_s: float  # seconds to add to `auth.clock.steady_time()`


@dataclass(frozen=True)
class WorkerPlan:
    """The argument of the worker's process: everything that it needs to start."""

    run_config_json: str
    credentials_dir: str  # device.key, authority.pub, token.jwt, revoked.jwt: see auth.credentials
    tokenizer_dir: str
    data_dir: str  # the device's folder for stream positions and caches
    initial_peers: tuple[str, ...]  # libp2p multiaddresses of the keeper
    relays: tuple[str, ...] = ()  # relays of volunteers, for a peer that is not reachable
    clock_offset_s: float = math.nan  # of the coordinator's clock: see `ClockRead`
    device_number: int = 0  # in the order of joining; decides where in the data this device starts
    device: str = "auto"
    precision: Wanted = "auto"
    threads: int | None = None
    microbatch_size: int | None = None
    compile: CompileMode = "auto"
    max_hours: float | None = None
    max_memory_bytes: int | None = None  # the volunteer's limit
    upload_rate: float | None = None  # bytes a second
    download_rate: float | None = None
    place: Placement = field(default=Placement())


WorkerEvent = Ready | PhaseEntered | Progress | StepReport | Notice | Stopped | Failed
WorkerMessage = WorkerEvent | Lost | Transferred | Suspicion | LineInDoubt | CheckpointWanted | KeeperSought
AgentMessage = Stop | LineMeasured | CheckpointFetched | KeeperAt | ClockRead
