"""The messages between the trainer's process and the averager's: orders one way, words the other, each sent whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from peer.averaging.requirements import Heard, Requirements
from peer.averaging.rounds import AveragedGroup, SearchStage
from peer.node.states import StateCopy, StateOrder
from peer.reduction.findings import Finding
from peer.reduction.guard import WeightCaps


@dataclass(frozen=True)
class Sought:
    """The trainer wants a group; `rate`: this peer's bytes per second, if known."""

    number: int
    rate: float | None


@dataclass(frozen=True)
class Loaded:
    """The trainer has loaded its gradients for a search, which are of `weight` samples."""

    number: int
    weight: float


@dataclass(frozen=True)
class GivenUp:
    """The trainer waits no longer for a search, or its round."""

    number: int


@dataclass(frozen=True)
class StateOrdered:
    """The trainer orders something on states or averages."""

    number: int
    order: StateOrder


@dataclass(frozen=True)
class StateCopied:
    """The trainer has copied its state; None if that failed."""

    copy: StateCopy | None


@dataclass(frozen=True)
class Served:
    """The start of the averager: it runs, or it has failed for the reason in `fault`."""

    fault: str = ""


@dataclass(frozen=True)
class SearchUpdate:
    """A search has reached a stage; if it has ended, with a group, or for a reason."""

    number: int
    stage: SearchStage
    failed_rounds: int  # of all searches
    group: AveragedGroup | None = None
    fault: str = ""


@dataclass(frozen=True)
class OrderDone:
    """The outcome of an order on states; `found` is the state or average for the trainer, if there is one."""

    number: int
    found: Any = None


@dataclass(frozen=True)
class CopyWanted:
    """Another peer waits for a copy of the trainer's state."""


@dataclass(frozen=True)
class TransferUpdate:
    """The numbers of this process's transfers."""

    moves: int  # grows while a download progresses
    turned_away: int  # requests for the state that were rejected as busy


Order = Requirements | WeightCaps | Sought | Loaded | GivenUp | StateOrdered | StateCopied | None  # None: it leaves
Word = Served | SearchUpdate | OrderDone | CopyWanted | TransferUpdate | Heard | Finding
