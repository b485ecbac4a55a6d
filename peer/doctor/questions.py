"""Questions of the doctor to its helpers, and their answers, over pipes on one machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StartDaemon:
    """The request to start the p2p daemon as a peer would, listening there, and to stop it again."""

    listen: tuple[str, ...]  # libp2p multiaddresses
    timeout_s: float


@dataclass(frozen=True)
class Daemon:
    """The answer to `StartDaemon`."""

    addresses: tuple[str, ...] = ()  # where it listened
    error: str = ""  # why it did not start; "" if it did
    log: tuple[str, ...] = ()  # its own last words


@dataclass(frozen=True)
class Dial:
    """The request to connect to a peer at one address, from a daemon that knows no other."""

    address: str  # with /p2p/ID at its end
    timeout_s: float


@dataclass(frozen=True)
class Dialled:
    """The answer to `Dial`."""

    error: str = ""  # "" if it connected
    relays: bool = False  # whether that peer passes on connections for those who cannot be reached


@dataclass(frozen=True)
class Look:
    """The request to look at the device to train on."""

    device: str  # as `--device`
    threads: int | None


@dataclass(frozen=True)
class DetectedDevice:
    """The device that was found, or its fault."""

    name: str = ""  # for people: "cpu (2 threads)"
    threads: int = 0
    torch: str = ""  # PyTorch's version
    fault: str = ""  # what is wrong with a better device that is there
    error: str = ""  # why that device cannot be used


@dataclass(frozen=True)
class Compute:
    """The request to train a run's model on random tokens for some seconds."""

    config_json: str
    microbatch_size: int | None  # None: as a worker finds it
    device: str
    threads: int | None
    seconds: float


@dataclass(frozen=True)
class Speed:
    """The answer to `Compute`, with the speed."""

    samples_per_second: float = 0.0
    microbatch_size: int = 0
    microbatches: int = 0
    parameters: int = 0
    moments: int = 0  # values of the optimizer's statistics that all peers share
    state_bytes: int = 0  # of parameters and statistics, as a joiner gets them
    gradient_bytes: int = 0  # of the model, in the way with the fewest in which a peer may send it to be averaged
    peak_bytes: int = 0  # main memory of the whole helper
    error: str = ""  # why it did not go
    out_of_memory: bool = False


Question = StartDaemon | Dial | Look | Compute
Answer = Daemon | Dialled | DetectedDevice | Speed
