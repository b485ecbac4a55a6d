"""Answers from the doctor's helper process, received through a local pipe."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Daemon:
    """The result of starting the p2p daemon as a peer does, and stopping it again."""

    addresses: tuple[str, ...] = ()  # addresses on which it listened
    error: str = ""  # why it did not start; "" if it started
    log: tuple[str, ...] = ()  # last lines of its log


@dataclass(frozen=True)
class Dialled:
    """The result of connecting to a peer at one address."""

    error: str = ""  # why the connection failed; "" if it succeeded
    relays: bool = False  # whether the peer relays for unreachable peers


@dataclass(frozen=True)
class DetectedDevice:
    """The training device, or why it cannot be used."""

    name: str = ""  # name shown to the user, such as "cpu (2 threads)"
    threads: int = 0
    torch: str = ""  # version of PyTorch
    fault: str = ""  # why a better device is not used; "" if there is none
    error: str = ""  # why the device cannot be used; "" if it can


@dataclass(frozen=True)
class Speed:
    """The measured training speed of a run's model on random tokens."""

    samples_per_second: float = 0.0
    microbatch_size: int = 0
    microbatches: int = 0
    parameters: int = 0
    moments: int = 0  # number of values in the optimizer state, which all peers share
    state_bytes: int = 0  # parameters and optimizer state that a joining peer downloads
    gradient_bytes: int = 0  # gradients of the model in the smallest encoding that the run allows
    peak_bytes: int = 0  # peak memory of the helper process
    error: str = ""  # why the measurement failed; "" if it succeeded
    out_of_memory: bool = False
