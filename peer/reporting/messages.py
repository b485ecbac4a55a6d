"""Messages between the worker and its agent over their pipe, and the causes for which samples are lost.

The pipe joins a process and its own child on one machine; nothing here crosses the network (that is `peer.protocol`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from peer.config.phases import PhaseFacts
from peer.network.placement import Placement
from peer.reporting.suspicions import Suspicion
from peer.runtime.devices import CompileMode, Wanted

MAX_REASON_CHARS = 40  # of a report's `lost_reason`


class LostCause(str, Enum):
    """A cause for which computed samples are in no global step, of a closed list, so that losses can be added up.

    Used where samples are lost (`peer.training.trainer`, `peer.swarm.swarm`, the agent) and by the coordinator, which
    adds two causes of its own. The values travel and are stored: they are never renamed.
    """

    NON_FINITE = "non-finite"  # the loss or a gradient of their microbatch was not a number
    LATE = "late"  # the others had filled and taken the step without them
    AVERAGING = "averaging failed"  # this peer's round failed, and the others took the step
    OUT_OF_SYNC = "out of sync"  # the peer's parameters were not the swarm's any more
    UNDONE = "undone"  # the run returned to a checkpoint while they waited
    LEFT = "left"  # the peer stopped or paused before their step was taken
    DIED = "died"  # the process that held them ended or hung
    REFUSED = "refused"  # the coordinator: their report could not be true
    QUARANTINE = "quarantine"  # the coordinator: the device was cut off, for a time or for good, while it held them
    OTHER = "other"  # what this version has no name for


_KNOWN = frozenset(cause.value for cause in LostCause)


@dataclass(frozen=True)
class Lost:
    """Samples that no step's report can tell of; kept by the agent until the coordinator has acknowledged it."""

    step: int  # towards which they were computed, from 1
    by_cause: Mapping[str, int]


def known_causes(lost: Mapping[str, int]) -> dict[str, int]:
    """Return lost samples under causes of the list only; a cause that is not on it becomes `other`."""
    found: dict[str, int] = {}
    for cause, samples in sorted(lost.items()):
        name = cause if cause in _KNOWN else LostCause.OTHER.value
        if samples:
            found[name] = found.get(name, 0) + samples
    return found


@dataclass(frozen=True)
class Ready:
    """The worker holds the run's state and begins to train, or to assist."""

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
    """The progress of this peer and, as it sees it, of the swarm; sent about once a second, never stored."""

    step: int  # global steps completed
    own_samples: int  # accumulated by this peer towards the next global step
    swarm_samples: int  # accumulated by everybody towards it
    target_batch_size: int
    peers: int
    samples_per_second: float  # this peer's, moving average
    loss: float | None  # mean over the microbatches since the last global step
    apart: bool = False  # no keeper has been seen in the swarm for as long as records hold


@dataclass(frozen=True)
class StepReport:
    """This peer's work for one global step; kept by the agent until the coordinator has acknowledged it."""

    step: int  # the number of the completed global step, from 1
    samples: int  # samples of this peer that the step really averaged in
    loss: float | None  # mean over those samples: objective's total; None if this peer had no samples
    mlm_loss: float | None
    sop_loss: float | None
    group_size: int  # peers that averaged together, keeper included
    group_samples: int | None  # total weight of the group, where this peer reduced a part and so saw it
    averaging_s: float
    samples_per_second: float
    lost_samples: int = 0  # accumulated since the last report but not averaged in
    lost_reason: str = ""  # the newest of the causes below
    data_wait_s: float = 0.0  # of `elapsed_s`: how long the trainer waited for microbatches
    elapsed_s: float = 0.0  # since the report before
    averaged_bytes: int = 0  # that others sent to this peer to be averaged
    receipt: str = ""  # what each sender brought to what this peer reduced, signed: see auth.receipts
    era: int = 0  # how often the run had returned to a checkpoint
    lost: Mapping[str, int] = field(default_factory=dict)  # `lost_samples` by cause: see `LostCause`


@dataclass(frozen=True)
class Notice:
    """One line for the person at the terminal."""

    level: str  # "info", "warning", "error"
    text: str


@dataclass(frozen=True)
class Stopped:
    """The worker has left the swarm in order."""

    reason: str


@dataclass(frozen=True)
class Failed:
    """The worker cannot go on; `code` is the `ManyhandsError.code`, `exit_code` its exit code."""

    code: str
    exit_code: int
    text: str
    short_of_memory: bool = False  # a smaller microbatch may help


@dataclass(frozen=True)
class Transferred:
    """This worker's traffic so far; sent every few seconds, never shown by itself."""

    sent_bytes: int
    received_bytes: int
    awaits_state: bool = False  # the training waits for a donor's state, as a part of what is received


@dataclass(frozen=True)
class CheckpointWanted:
    """The worker would start from the newest checkpoint, if that is the swarm's state of now."""

    most_bytes: int  # that its files can have


@dataclass(frozen=True)
class KeeperSought:
    """The worker has not found the keeper in the swarm: it would hear again where that is reached."""


@dataclass(frozen=True)
class CheckpointFetched:
    """Agent to worker: the state after `step` lies there; or there is none to start from."""

    step: int
    directory: str  # empty: none


@dataclass(frozen=True)
class LineInDoubt:
    """Rounds took so long, or the measurement is so old, that the line should be measured again."""


@dataclass(frozen=True)
class LineMeasured:
    """Agent to worker: the line's rate in bytes per second, of the slower direction, within the volunteer's limits."""

    rate: float


@dataclass(frozen=True)
class KeeperAt:
    """Agent to worker: the addresses at which the keeper is reached now."""

    addresses: tuple[str, ...]  # libp2p multiaddresses


@dataclass(frozen=True)
class Stop:
    """Agent to worker: finish the microbatch, leave the swarm in order."""

    reason: str


@dataclass(frozen=True)
class TrialPlan:
    """The plan for a trial of devices before the run is joined; passed as the argument of the spawned process."""

    device: str  # as `--device`
    log: str  # a file


@dataclass(frozen=True)
class DeviceTried:
    """The device that works, and what is wrong with better ones; or none, and why the chosen one cannot be used."""

    device: str
    fault: str


@dataclass(frozen=True)
class WorkerPlan:
    """Everything the worker needs to start; passed as the argument of the spawned process."""

    run_config_json: str
    credentials_dir: str  # device.key, authority.pub, token.jwt, revoked.jwt: see auth.credentials
    tokenizer_dir: str
    data_dir: str  # the device's own place for stream positions and caches
    initial_peers: tuple[str, ...]  # libp2p multiaddresses of the keeper
    relays: tuple[str, ...] = ()  # of volunteers, beside the keeper, for a peer that others cannot reach
    device_number: int = 0  # in the order of joining: where in the data this device begins
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
AgentMessage = Stop | LineMeasured | CheckpointFetched | KeeperAt
