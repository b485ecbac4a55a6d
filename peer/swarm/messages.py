"""The messages between the trainer's process and its node's: orders one way, words the other, each sent whole."""

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
class RecordsWanted:
    """The trainer wants the peers' entries in the DHT."""


@dataclass(frozen=True)
class RecordPut:
    """The trainer's record is to be stored in the DHT."""

    record: Any  # packed
    expiration_time: float


@dataclass(frozen=True)
class Greeting:
    """Peers are to be pinged, because this peer does not see them."""

    addresses: tuple[str, ...]
    peer_ids: tuple[str, ...]


@dataclass(frozen=True)
class Ordered:
    """An order with an outcome."""

    number: int
    order: BoardOrder | StateOrder


@dataclass(frozen=True)
class StateCopied:
    """The trainer has copied its state; None if that failed."""

    copy: StateCopy | None


@dataclass(frozen=True)
class Joined:
    """The node serves other peers, or it has failed for the reason in `fault`."""

    is_client: bool = False  # other peers cannot connect to this peer
    addresses: tuple[str, ...] = ()  # this peer's libp2p multiaddresses
    process_id: int = 0
    daemon_id: int = 0  # process ID of the p2p daemon
    fault: str = ""


@dataclass(frozen=True)
class DaemonHeard:
    """The p2p daemon lives, and other peers see this one at these addresses."""

    addresses: tuple[str, ...]


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
    """The outcome of an order: what it has found for the trainer, if anything, or the reason of its failure."""

    number: int
    found: Any = None
    fault: str = ""


@dataclass(frozen=True)
class CopyWanted:
    """Another peer waits for a copy of the trainer's state."""


@dataclass(frozen=True)
class TransferUpdate:
    """The numbers of this process's transfers."""

    moves: int  # grows while a download progresses
    turned_away: int  # requests for the state that were rejected as busy


BoardOrder = RecordsWanted | RecordPut | Greeting
Order = Requirements | WeightCaps | Sought | Loaded | GivenUp | Ordered | StateCopied | None  # None: it leaves
Word = Joined | DaemonHeard | SearchUpdate | OrderDone | CopyWanted | TransferUpdate | Heard | Finding
