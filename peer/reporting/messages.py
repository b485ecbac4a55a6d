"""Messages exchanged by an agent and its worker over a pipe, and the causes of lost samples.

The agent forwards reports, losses and suspicions to the coordinator. `StepReport` declares the
bounds of each claim for `peer.reporting.wire`, the ledger's checks and the ledger's table.
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

MAX_LONG = 2**62  # upper bound of integers in 64-bit database columns
MAX_REASON_CHARS = 40
MAX_SAMPLES_PER_SECOND = 1e7


class LostCause(str, Enum):
    """The reasons why computed samples count in no global step; the list is complete.

    Values must never be renamed, because they are sent over the network and stored.
    """

    NON_FINITE = "non-finite"  # the microbatch's loss or gradient was not finite
    LATE = "late"  # the other peers completed the step without these samples
    AVERAGING = "averaging failed"  # this peer's round failed; the others completed the step
    OUT_OF_SYNC = "out of sync"  # the peer's parameters differed from the swarm's
    SLOW_LINE = "slow line"  # the connection is too slow for a round's gradients
    UNDONE = "undone"  # the run was rewound before the step was completed
    LEFT = "left"  # the peer stopped or paused before the step was completed
    DIED = "died"  # the process that held the samples died or hung
    REFUSED = "refused"  # set by the coordinator: the report is implausible
    QUARANTINE = "quarantine"  # set by the coordinator: the device was quarantined
    OTHER = "other"  # a cause that this version does not know


@dataclass(frozen=True)
class Lost:
    """A report of lost samples that are in no step report; stored until it is acknowledged."""

    step: int  # step for which the samples were computed, at least 1
    by_cause: Mapping[str, int]


@dataclass(frozen=True)
class Ready:
    """The worker has the run's state and starts to train or assist."""

    peer_id: str
    step: int
    device: str  # such as "cpu" or "cuda:0 (Tesla T4)"; "" for an auxiliary peer
    microbatch_size: int | None = None  # number of samples; 0 for an auxiliary peer


@dataclass(frozen=True)
class PhaseEntered:
    """A phase of the run has begun."""

    phase: PhaseFacts


@dataclass(frozen=True)
class Progress:
    """This peer's progress, and the swarm's if known; sent every second, never stored."""

    step: int  # number of completed global steps
    own_samples: int  # samples accumulated by this peer for the next step
    swarm_samples: int  # samples accumulated by all peers for the next step
    target_batch_size: int
    peers: int
    samples_per_second: float  # moving average of this peer's speed
    loss: float | None  # mean loss of the microbatches since the last step
    apart: bool = False  # whether the keeper's DHT record is gone
    stands_by: bool = False  # whether this peer is on standby because its connection is too slow
    paused: bool = False  # whether the operator has paused the run


@dataclass(frozen=True)
class Bound:
    """The upper bound of a claimed number (whose lower bound is 0), or of a text's length."""

    most: float
    of_batch: bool = False  # whether `most` is a multiple of the target batch size

    def at(self, target_batch_size: int) -> float:
        """Return the largest plausible value for a step with this target batch size."""
        return self.most * target_batch_size if self.of_batch else self.most

    @property
    def storable(self) -> int:
        """The largest integer that fits in the claim's database column."""
        return MAX_COUNT if self.of_batch or self.most <= MAX_COUNT else MAX_LONG


_NUMBER, _LOSS, _DURATION = Bound(MAX_COUNT), Bound(100.0), Bound(30 * 86_400.0)


@dataclass(frozen=True)
class StepReport:
    """This peer's contribution to a global step; the agent stores it until it is acknowledged."""

    step: Annotated[int, _NUMBER]  # the completed global step, at least 1
    # Samples in the step's average; the peer may have computed more while waiting for others.
    samples: Annotated[int, Bound(10, of_batch=True)]
    loss: Annotated[float | None, _LOSS]  # mean total loss of these samples; None if there are none
    mlm_loss: Annotated[float | None, _LOSS]
    sop_loss: Annotated[float | None, _LOSS]
    group_size: Annotated[int, Bound(10_000)]  # peers that averaged together, including the keeper
    # Weight of the whole group; None if unknown, because this peer reduced no part.
    group_samples: Annotated[int | None, _NUMBER]
    averaging_s: Annotated[float, _DURATION]
    samples_per_second: Annotated[float, Bound(MAX_SAMPLES_PER_SECOND)]
    lost_samples: Annotated[int, Bound(100, of_batch=True)] = 0  # samples lost since the last report
    lost_reason: Annotated[str, Bound(MAX_REASON_CHARS)] = ""  # reason for the latest loss
    data_wait_s: Annotated[float, _DURATION] = 0.0  # part of `elapsed_s` spent waiting for data
    elapsed_s: Annotated[float, _DURATION] = 0.0  # time since the last report
    averaged_bytes: Annotated[int, Bound(2**45)] = 0  # bytes received from other peers for averaging
    # Signed list of the sample counts in parts received from other peers (`auth.receipts`).
    receipt: Annotated[str, Bound(MAX_RECEIPT_CHARS)] = ""
    era: Annotated[int, _NUMBER] = 0  # number of times the run has been rewound
    lost: Mapping[str, int] = field(default_factory=dict)  # lost samples by cause (`LostCause`)


CLAIM_BOUNDS: Mapping[str, Bound] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(StepReport, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}


@dataclass(frozen=True)
class Notice:
    """A line of text for the volunteer."""

    level: str  # "info", "warning", "error"
    text: str


@dataclass(frozen=True)
class Stopped:
    """The worker has left the swarm normally."""

    reason: str


@dataclass(frozen=True)
class Failed:
    """The worker has failed with a `ManyhandsError`, identified by its code and exit code."""

    code: str
    exit_code: int
    text: str
    short_of_memory: bool = False  # whether a smaller microbatch may help


@dataclass(frozen=True)
class Transferred:
    """The worker's total traffic so far; sent every few seconds."""

    sent_bytes: int
    received_bytes: int
    awaits_state: bool = False  # whether the worker is downloading another peer's state (included in the bytes)


@dataclass(frozen=True)
class CheckpointWanted:
    """A worker's request for the newest checkpoint, if recent enough for catching up with the swarm."""

    most_bytes: int  # maximum total size of the checkpoint's files
    most_steps: int  # most steps that the swarm may have taken since


@dataclass(frozen=True)
class KeeperSought:
    """A request for the keeper's current addresses, from a worker that cannot reach the keeper."""


@dataclass(frozen=True)
class CheckpointFetched:
    """The agent's answer to `CheckpointWanted`: the folder with the checkpoint of `step`, if any."""

    step: int
    directory: str  # "" if there is no checkpoint to start from


@dataclass(frozen=True)
class LineInDoubt:
    """A worker's request to remeasure the bandwidth, after slow rounds or when the value is old."""


@dataclass(frozen=True)
class LineMeasured:
    """The agent's answer to `LineInDoubt`: the measured bandwidth, capped at the volunteer's limits."""

    rate: float  # bytes per second in the slower direction


@dataclass(frozen=True)
class KeeperAt:
    """The keeper's current addresses, sent by the agent on a change or on request."""

    addresses: tuple[str, ...]  # libp2p multiaddresses


@dataclass(frozen=True)
class Stop:
    """The agent's request to finish the microbatch and leave the swarm normally."""

    reason: str


@dataclass(frozen=True)
class TrialPlan:
    """The options of the process that tests the training device before joining."""

    device: str  # value of `--device`
    log: str  # path of the log file


@dataclass(frozen=True)
class DeviceTried:
    """The result of the device test."""

    device: str  # device to train on; "" if the chosen device cannot be used
    fault: str  # reason why the chosen device, or a better one, is not used; "" if there is none


@dataclass(frozen=True)
class ClockRead:
    """An estimate of the coordinator's clock, from the messages that arrived fastest."""

    offset_s: float  # seconds to add to `auth.clock.steady_time()`


@dataclass(frozen=True)
class WorkerPlan:
    """The options of the worker process."""

    run_config_json: str
    credentials_dir: str  # folder of the device's credentials (`auth.credentials`)
    tokenizer_dir: str
    data_dir: str  # folder for the stream positions and caches
    initial_peers: tuple[str, ...]  # multiaddresses of the keeper
    relays: tuple[str, ...] = ()  # relays to use if not directly reachable
    clock_offset_s: float = math.nan  # offset of the coordinator's clock (`ClockRead`)
    device_number: int = 0  # position in the order of joining; determines the device's samples
    device: str = "auto"
    precision: Wanted = "auto"
    threads: int | None = None
    microbatch_size: int | None = None
    compile: CompileMode = "auto"
    max_hours: float | None = None
    max_memory_bytes: int | None = None  # the volunteer's limit on memory
    upload_rate: float | None = None  # the volunteer's limit on uploads, in bytes per second
    download_rate: float | None = None
    place: Placement = field(default=Placement())


WorkerEvent = Ready | PhaseEntered | Progress | StepReport | Notice | Stopped | Failed
WorkerMessage = WorkerEvent | Lost | Transferred | Suspicion | LineInDoubt | CheckpointWanted | KeeperSought
AgentMessage = Stop | LineMeasured | CheckpointFetched | KeeperAt | ClockRead
