"""The trainer's side of transfers: it wants states and averages, and gives its own to others.

This peer's node exchanges them with other peers (`peer.node.states`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch
from hivemind.compression import CompressionBase, CompressionInfo, NoCompression
from hivemind.proto import runtime_pb2

from auth.errors import SwarmError
from peer.config.training import Compression
from peer.gradients.gradient_codes import Factors
from peer.gradients.power_sgd import as_matrix, product
from peer.node.average_history import Average, Lack
from peer.node.states import AverageKept, AverageWanted, DonatedState, HistoryBegun, StateOrder, StateWanted
from peer.reduction.compression import compression_of, decode, is_finite
from peer.reduction.sizes import shrinks
from peer.reporting.event_log import TAKEN, Downloaded, EventLog
from peer.runtime.waits import Waits
from peer.swarm.node_process import NodeProcess

logger = logging.getLogger(__name__)
LOOK_S = 0.5  # interval between checks of a download's progress
HUNG_S = 600.0  # time without progress after which the node is considered hung


@dataclass(frozen=True)
class MissedAverage:
    """The average of a step that other peers have taken."""

    tensors: Sequence[torch.Tensor]  # of the parameters' shapes
    voters: tuple[str, ...]  # IDs of the peers that averaged


class Transfers:
    """One peer's downloads of states and missed averages, and what it keeps for others."""

    def __init__(self, node: NodeProcess, waits: Waits, events: EventLog) -> None:
        self._node, self._waits, self._events = node, waits, events
        self.is_downloading = False  # whether a download is in progress, which may take hours

    async def state(self, shapes: Sequence[torch.Size], refused: Sequence[str]) -> DonatedState | None:
        """Download a state of these shapes from a donor that is not in `refused`; None if there is none.

        A download continues while its donor sends at the minimum rate. Returns None when
        interrupted. Raises `SwarmError` if the node hangs.
        """
        found: DonatedState | None = await self._ask(StateWanted(shapes, tuple(refused)))
        if found is None:
            self._tell("state", "", 0, "no donor gave one")
        return found

    def state_judged(self, donated: DonatedState, fault: str | None) -> None:
        """Note whether this peer takes a donor's state, or what is wrong with it."""
        self._tell("state", donated.donor, donated.step, fault)
        if fault is None:
            self._node.order(HistoryBegun(donated.era, donated.step))
        else:
            logger.warning("the state of %s (step %d) %s: not taken", donated.donor, donated.step, fault)

    async def average(self, era: int, step: int, shapes: Sequence[torch.Size]) -> MissedAverage | Lack:
        """Download the average that leads from `step` to the next one, or return the reason why there is none.

        Returns at once when interrupted. Raises `SwarmError` if the node hangs.
        """
        found = await self._ask(AverageWanted(era, step, shapes))
        if found is None:
            return Lack.SILENT
        if isinstance(found, Lack):
            self._tell("average", "", step + 1, f"not to be had: {found.value}")
            return found
        tensors, voters = found
        average = whole_average(tensors.separate(), shapes)
        if average is None:
            logger.warning("the average of a missed step does not fit this peer's model: not taken")
            return Lack.GONE
        self._tell("average", "", step + 1, None)
        return MissedAverage(average, voters)

    def keep(
        self,
        era: int,
        step: int,
        averages: Iterable[torch.Tensor],
        factors: Mapping[int, Factors],
        compression: Compression,
        voters: Collection[str],
    ) -> None:
        """Store the average that led to `step`, for peers that have not taken it yet; see `encode_average`."""
        self._node.order(AverageKept(era, step, encode_average(averages, factors, compression, voters)))

    def _tell(self, what: Literal["state", "average"], donor: str, step: int, fault: str | None) -> None:
        self._events.add(Downloaded(what=what, donor=donor, step=step, outcome=fault or TAKEN))

    async def _ask(self, order: StateOrder) -> Any:
        """Wait for the outcome of a download; return None when interrupted.

        Raises `SwarmError` if the node hangs. After an interrupt, it ends soon.
        """
        future, moves, moved_at = self._node.order(order), -1, self._waits.now()
        self.is_downloading = True
        try:
            while not self._waits.is_interrupted:
                await self._waits.news(LOOK_S, future)
                if future.done():
                    with suppress(SwarmError):  # the node has logged it; this peer tries again
                        return future.result()
                    return None
                if self._node.moves != moves:
                    moves, moved_at = self._node.moves, self._waits.now()
                elif self._waits.now() - moved_at > HUNG_S:
                    raise SwarmError("The process that downloads the run's state hangs.")
            return None
        finally:
            self.is_downloading = False


def encode_average(
    tensors: Iterable[torch.Tensor],
    factors: Mapping[int, Factors],
    compression: Compression,
    voters: Collection[str] = (),
) -> Average:
    """Encode losslessly a step's average gradient, which `voters` have averaged.

    `factors` maps a tensor's index to its PowerSGD factors, which replace the tensor if their
    product equals it. `compression`: the round's setting, which determines the encoding.
    """
    code = compression_of(compression)
    parts: list[torch.Tensor] = []
    for index, tensor in enumerate(tensors):
        made_of = factors.get(index)
        if made_of is None or not torch.equal(product(*made_of), as_matrix(tensor)):
            parts.append(tensor)
        else:
            parts += made_of
    serialized = [_exact(part, key, code).SerializeToString() for key, part in enumerate(parts)]
    encoded = torch.frombuffer(bytearray(b"".join(serialized)), dtype=torch.uint8)
    encoded.share_memory_()  # type: ignore[no-untyped-call]
    return Average(encoded, [len(each) for each in serialized], tuple(voters))


def whole_average(parts: Iterable[torch.Tensor], shapes: Iterable[torch.Size]) -> list[torch.Tensor] | None:
    """Rebuild tensors of these shapes from received, finite parts; return None on a mismatch."""
    found, rest = list[torch.Tensor](), iter(parts)
    for shape in shapes:
        part = next(rest, None)
        if part is not None and part.shape != shape:
            right = next(rest, None)
            part = None if right is None else _matrix_of(part, right, shape)
        if part is None:
            return None
        found.append(part)
    return found if next(rest, None) is None else None


def _matrix_of(left: torch.Tensor, right: torch.Tensor, shape: torch.Size) -> torch.Tensor | None:
    """Multiply two factors into a tensor of this shape; return None on a mismatch or overflow."""
    rank = len(left) if left.dim() else 0
    sides = torch.Size((rank, shape[0])), torch.Size((rank, math.prod(shape[1:])))
    if (left.shape, right.shape) != sides or not shrinks(shape, rank):
        return None
    made = product(left, right).view(shape)
    return made if is_finite(made) else None


def _exact(tensor: torch.Tensor, key: int, code: CompressionBase) -> runtime_pb2.Tensor:
    """Encode float32 values with `code` if that is lossless (as for averages), else in 32 bits."""
    info = CompressionInfo.from_tensor(tensor, key=key)
    encoded = code.compress(tensor, info)
    return encoded if torch.equal(decode(encoded, code), tensor) else NoCompression().compress(tensor, info)
