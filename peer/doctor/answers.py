"""Answers of the doctor's helper process, which arrive over a local pipe."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Daemon:
    """The result of starting and stopping the p2p daemon as a peer would."""

    addresses: tuple[str, ...] = ()  # on which it listened
    error: str = ""  # why it did not start; "" if it did
    log: tuple[str, ...] = ()  # the last lines of its log


@dataclass(frozen=True)
class Dialled:
    """The result of connecting to a peer at one address."""

    error: str = ""  # "" if it connected
    relays: bool = False  # whether that peer is a relay for peers that are not reachable


@dataclass(frozen=True)
class DetectedDevice:
    """The device to train on, or the reason why it cannot be used."""

    name: str = ""  # for people: "cpu (2 threads)"
    threads: int = 0
    torch: str = ""  # PyTorch's version
    fault: str = ""  # the fault of a better device that is present
    error: str = ""  # why that device cannot be used


@dataclass(frozen=True)
class Speed:
    """The speed of a run's training on random tokens."""

    samples_per_second: float = 0.0
    microbatch_size: int = 0
    microbatches: int = 0
    parameters: int = 0
    moments: int = 0  # values of the optimizer's statistics, which all peers share
    state_bytes: int = 0  # parameters and statistics, as a joining peer downloads them
    gradient_bytes: int = 0  # the model's gradients, in the smallest encoding that the run allows
    peak_bytes: int = 0  # peak main memory of the helper process
    error: str = ""  # why the measurement failed
    out_of_memory: bool = False
