"""Answers of the doctor's helper, over a pipe on one machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Daemon:
    """The p2p daemon, started as a peer would and stopped again."""

    addresses: tuple[str, ...] = ()  # where it listened
    error: str = ""  # why it did not start; "" if it did
    log: tuple[str, ...] = ()  # its own last words


@dataclass(frozen=True)
class Dialled:
    """A try to connect to a peer at one address."""

    error: str = ""  # "" if it connected
    relays: bool = False  # whether that peer passes on connections for those who cannot be reached


@dataclass(frozen=True)
class DetectedDevice:
    """The device that was found, or its fault."""

    name: str = ""  # for people: "cpu (2 threads)"
    threads: int = 0
    torch: str = ""  # PyTorch's version
    fault: str = ""  # what is wrong with a better device that is there
    error: str = ""  # why that device cannot be used


@dataclass(frozen=True)
class Speed:
    """The speed of a run's training on random tokens."""

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
