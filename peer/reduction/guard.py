"""Checks of what others send: of the senders' parts before this peer averages them, and of reducers' averages.

For parts there are caps on weights, limits on norms, and bans.

An averager has one guard, in its own process, that remembers what earlier rounds were like; each round (each half of
one, with factors) has a `RoundGuard`. The decisions are those of `peer.reduction.screening`.

A reducer could return numbers so large that nothing else of the step counts. All peers that have taken the last rounds
have taken the same averages, so all compute the same limits (`AverageScreen`). The limits are wide, because gradients
do jump. And they give way: a round fails for a reducer's large averages once; then the reducer is accused
(`peer.reduction.findings`) and most leave it out. Where others return the same in its place, or it still reduces, the
gradients have become that large.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from hivemind.compression import CompressionInfo

from peer.config.training import Averaging
from peer.reduction.combine import WeightedPart, centered_clipping, weighted_mean
from peer.reduction.findings import Finding, Findings
from peer.reduction.screening import (
    GROSS,
    LEAST_ROUNDS,
    REMEMBERED_ROUNDS,
    NormHistory,
    PartPlace,
    Yardsticks,
    scale_to,
)
from peer.reduction.weight_caps import CapsOfRound, WeightCaps

logger = logging.getLogger(__name__)
JUMP = 1000.0  # times the largest norm of the last rounds' averages


@dataclass(frozen=True)
class Past:
    """The memory of earlier rounds: the norms of the averages, and the last averages."""

    history: NormHistory = field(default_factory=NormHistory)
    averages: list[torch.Tensor] = field(default_factory=list)  # the last ones, where they are needed


class ReductionGuard:
    """An averager's guard; made before its process is forked."""

    def __init__(
        self,
        caps: WeightCaps | None = None,
        findings: Findings | None = None,
        averaging: Averaging | None = None,
    ) -> None:
        self.caps, self.findings = caps or WeightCaps(), findings or Findings()
        self._averaging = averaging or Averaging()
        self._past: dict[bytes, Past] = {}
        self._group, self._refused = b"", set[str]()

    @property
    def makes_means(self) -> bool:
        """Whether averages are means of the senders' parts, so that a peer that knows the parts can compute them."""
        return self._averaging.aggregation == "mean"

    def begin(self, group_id: bytes, half: bytes) -> RoundGuard:
        """Return the guard for a round, or a half of one, of this group."""
        if group_id != self._group:
            self._group, self._refused = group_id, set()
        past = self._past.setdefault(half, Past())
        return RoundGuard(self.caps.read(), self.findings, self._averaging, past, self._refused)

    def accepted(self, half: bytes, averages: Sequence[torch.Tensor]) -> None:
        """Remember the averages of a round."""
        past = self._past.setdefault(half, Past())
        past.history.add([norm_of(average) for average in averages])
        if self._averaging.aggregation == "centered_clipping":
            past.averages[:] = [average.clone() for average in averages]


class RoundGuard:
    """The checks of one reducer in one round."""

    def __init__(
        self, caps: CapsOfRound, findings: Findings, averaging: Averaging, past: Past, refused: set[str]
    ) -> None:
        self._caps, self._findings, self._averaging, self._past = caps, findings, averaging, past
        self.refused = refused  # peer IDs: banned from the group's rounds for what they sent
        self._smaller: Counter[int] = Counter()  # sender -> parts that were made smaller
        self._gross: Counter[int] = Counter()  # sender -> values that counted as zeros

    def set_up(
        self,
        senders: Sequence[str],
        tensors: Sequence[torch.Tensor],
        parts: Sequence[tuple[torch.Tensor, CompressionInfo]],
        weight: float,
    ) -> None:
        """Set senders, this peer's own numbers and weight, and its parts to reduce; call before the first part."""
        self._senders, self._parts = senders, parts
        self._places = [PartPlace(info.key, len(part) / max(1, tensors[info.key].numel())) for part, info in parts]
        limits = self._past.history.limits()
        own = [norm_of(tensor) if weight > 0 and parts else 0.0 for tensor in tensors]
        self._yardsticks = Yardsticks([tensor.numel() for tensor in tensors], own, limits)

    def counted(self, sender: int, weight: float) -> float:
        """Return the weight with which a sender's parts count, if it names this one."""
        return min(weight, self._caps.of(self._senders[sender]))

    def refuse(self, sender: int, reason: str) -> None:
        """Record that a sender is banned for what it has sent, and tell the trainer's process."""
        self.refused.add(self._senders[sender])
        self._findings.tell(Finding(self._senders[sender], "parts", reason))

    def combine(self, part_index: int, contributions: Sequence[WeightedPart]) -> torch.Tensor:
        """Average one part, after scaling down contributions that are too large."""
        weighing = [given for given in contributions if given.weight > 0]
        if not weighing:
            return weighted_mean(part_index, contributions)
        total, place = sum(given.weight for given in weighing), self._places[part_index]
        norms = [norm_of(given.part) for given in weighing]
        limit = self._yardsticks.limit(place, norms)
        gross = self._yardsticks.gross(place, limit)
        bounded = [
            self._bounded(given, given.weight / total * norm, limit, gross)
            for given, norm in zip(weighing, norms, strict=True)
        ]
        return self._aggregated(part_index, place, bounded)

    def _bounded(self, given: WeightedPart, contribution: float, limit: float, gross: float) -> WeightedPart:
        scale = scale_to(limit, gross, contribution)
        if scale == 1.0:
            return given
        self._smaller[given.sender] += 1
        if scale == 0.0:
            self._count_gross(given, GROSS * contribution / gross if gross > 0 else math.inf)
        return replace(given, part=given.part * scale if scale > 0 else torch.zeros_like(given.part))

    def _count_gross(self, given: WeightedPart, times: float) -> None:
        """Name a sender once most of its values here are gross.

        Single tensors of an honest gradient may be: where most samples are learnt, one mistake makes the gradient of
        the pooler and the sentence-order head a hundred times that of the rounds before.
        """
        before, most = self._gross[given.sender], sum(len(part) for part, _ in self._parts) / 2
        self._gross[given.sender] += given.part.numel()
        if before <= most < self._gross[given.sender]:
            detail = f"sent a gradient {times:.3g} times the largest that could be an honest one"
            self._findings.tell(Finding(self._senders[given.sender], "gradient", detail))

    def _aggregated(self, part_index: int, place: PartPlace, bounded: Sequence[WeightedPart]) -> torch.Tensor:
        if self._averaging.aggregation == "mean":
            return weighted_mean(part_index, bounded)
        medians = self._past.history.medians()
        usual = medians[place.tensor] * place.share**0.5 if medians is not None else 0.0
        return centered_clipping(
            bounded,
            self._last_average(part_index),
            usual,
            self._averaging.clipping_radius,
            self._averaging.clipping_iterations,
        )

    def _last_average(self, part_index: int) -> torch.Tensor | None:
        if not self._past.averages:
            return None
        part, info = self._parts[part_index]
        begin: int = info.part_index * (info.part_size or 0)
        last: torch.Tensor = self._past.averages[info.key]
        return last.view(-1)[begin : begin + len(part)]

    def ended(self) -> None:
        """Log whose parts were scaled down."""
        for sender, count in self._smaller.items():
            logger.info("%d parts of %s were larger than could be, and made smaller", count, self._senders[sender])


def norm_of(tensor: torch.Tensor) -> float:
    """Compute the L2 norm in float64: squares of float32 may be infinite."""
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))


class AverageScreen:
    """A memory of the L2 norms of each tensor's averages in the last rounds, each half of a round by itself."""

    def __init__(self) -> None:
        self._norms: dict[bytes, deque[tuple[float, ...]]] = {}

    def accepted(self, half: bytes, averages: Sequence[torch.Tensor]) -> None:
        """Remember the norms of a round's averages."""
        norms = self._norms.setdefault(half, deque(maxlen=REMEMBERED_ROUNDS))
        norms.append(tuple(norm_of(average) for average in averages))

    def limits(self, half: bytes, tensors: int) -> list[float]:
        """Return the largest norm that any part of each tensor's average may have."""
        rounds = self._norms.get(half, ())
        if len(rounds) < LEAST_ROUNDS:
            return [math.inf] * tensors
        return [JUMP * max(norms) or math.inf for norms in zip(*rounds, strict=True)]
