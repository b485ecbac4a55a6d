"""Answers from the doctor's helper process, received through a local pipe."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Daemon:
    """The result of a trial start of the p2p daemon."""

    addresses: tuple[str, ...] = ()  # listening addresses
    error: str = ""  # reason why the daemon failed to start; "" on success
    log: tuple[str, ...] = ()  # last lines of the daemon's log


@dataclass(frozen=True)
class Dialled:
    """The result of connecting to a peer at one address."""

    error: str = ""  # reason for the failure; "" on success
    relays: bool = False  # whether the peer is a relay


@dataclass(frozen=True)
class DetectedDevice:
    """The training device, or the reason why it cannot be used."""

    name: str = ""  # name shown to the user, such as "cpu (2 threads)"
    threads: int = 0
    torch: str = ""  # version of PyTorch
    fault: str = ""  # reason for not using a better device; "" if there is none
    error: str = ""  # reason why the device cannot be used; "" if it can


@dataclass(frozen=True)
class Speed:
    """The measured training speed of a run's model on random tokens."""

    samples_per_second: float = 0.0
    microbatch_size: int = 0
    microbatches: int = 0
    parameters: int = 0
    moments: int = 0  # number of values in the shared optimizer state
    state_bytes: int = 0  # size of the state that a joining peer downloads
    gradient_bytes: int = 0  # size of the gradients in the run's smallest encoding
    peak_bytes: int = 0  # peak memory of the helper process
    error: str = ""  # reason for the failure; "" on success
    out_of_memory: bool = False
