"""A peer's running totals since the last global step: training losses, lost samples and time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from peer.backends import MicrobatchResult
from peer.reporting.messages import CLAIM_BOUNDS, LostCause, Progress, StepReport

if TYPE_CHECKING:
    from peer.swarm.moves import StepOutcome
    from peer.swarm.swarm import SwarmProgress


@dataclass
class Tally:
    """A peer's training losses (weighted by samples), lost samples and elapsed time since `began_at`."""

    began_at: float  # time on the loop's clock
    data_wait_s: float  # total wait for data until `began_at`
    lost: Counter[str] = field(default_factory=Counter)  # cause (a `peer.reporting.messages.LostCause`) -> samples
    lost_reason: str = ""
    _waiting_samples: int = 0  # accumulated samples that are neither averaged nor lost yet
    _results: list[MicrobatchResult] = field(default_factory=list)

    def add(self, result: MicrobatchResult) -> None:
        """Add a microbatch; count its samples as lost if its loss is not finite."""
        if not result.finite:
            self.lose(result.samples, LostCause.NON_FINITE.value)
            return
        self._results.append(result)
        self._waiting_samples += result.samples

    def settle(self, outcome: StepOutcome, now: float, data_wait_s: float) -> StepReport | None:
        """Add the outcome of an attempted step; if it completed, return its report and reset."""
        self._waiting_samples -= outcome.samples + outcome.lost_samples
        if not outcome.averaged:  # the peer was behind and has caught up
            self.lose(outcome.lost_samples, outcome.lost_reason)
            if outcome.lost_samples:
                self._results.clear()  # training losses of discarded microbatches
            return None
        report = self.report(outcome, now, data_wait_s)
        self.began_at, self.data_wait_s = now, data_wait_s
        self.lost, self.lost_reason = Counter(), ""
        self._results.clear()
        return report

    def lose(self, samples: int, reason: str) -> None:
        """Count samples that will not be averaged; users see only the last reason."""
        if samples:
            self.lost[reason] += samples
        self.lost_reason = reason or self.lost_reason

    def leave(self) -> dict[str, int]:
        """Return the unreported lost samples by cause, including samples not yet averaged."""
        self.lose(max(0, self._waiting_samples), LostCause.LEFT.value)
        return dict(self.lost)

    def report(self, outcome: StepOutcome, now: float, data_wait_s: float) -> StepReport:
        """Build a completed step's report; `data_wait_s` is the total wait for data."""
        results = self._results if outcome.samples > 0 else []
        elapsed_s = now - self.began_at
        self.lose(outcome.lost_samples, outcome.lost_reason)
        return StepReport(
            step=outcome.step,
            samples=outcome.samples,
            loss=claimable(weighted_mean([(result.loss, result.samples) for result in results])),
            mlm_loss=weighted_mean([(result.mlm_loss, result.samples) for result in results]),
            sop_loss=weighted_mean([(r.sop_loss, r.samples) for r in results if r.sop_loss is not None]),
            group_size=outcome.group_size,
            group_samples=outcome.group_samples,
            averaging_s=outcome.averaging_s,
            samples_per_second=outcome.samples / elapsed_s if elapsed_s > 0 else 0.0,
            lost_samples=self.lost.total(),
            lost_reason=self.lost_reason,
            lost=dict(self.lost),
            data_wait_s=data_wait_s - self.data_wait_s,
            elapsed_s=elapsed_s,
            averaged_bytes=outcome.averaged_bytes,
            receipt=outcome.receipt,
            era=outcome.era,
        )

    def progress(self, swarm: SwarmProgress) -> Progress:
        """Return the progress of this peer and the swarm within a global step."""
        return Progress(
            step=swarm.step,
            own_samples=swarm.own_samples,
            swarm_samples=swarm.swarm_samples,
            target_batch_size=swarm.target_batch_size,
            peers=swarm.peers,
            samples_per_second=swarm.samples_per_second,
            loss=weighted_mean([(result.loss, result.samples) for result in self._results]),
            apart=swarm.apart,
            stands_by=swarm.stands_by,
            paused=swarm.paused,
        )


def claimable(loss: float | None) -> float | None:
    """Limit a training loss to the highest value accepted in reports."""
    return None if loss is None else min(loss, CLAIM_BOUNDS["loss"].most)


def weighted_mean(values: list[tuple[float, int]]) -> float | None:
    """Return the mean of values weighted by samples, or None if there are no samples."""
    samples = sum(weight for _, weight in values)
    return sum(value * weight for value, weight in values) / samples if samples else None
