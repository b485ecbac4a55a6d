"""Counts of the samples averaged, lost and confirmed between joining a run and leaving it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from peer.control.events import Standing
from peer.limits.events import GuestEvent
from peer.reporting.messages import Lost, StepReport


@dataclass(frozen=True)
class StayWork(GuestEvent):
    """The samples that this machine has computed since joining, by outcome."""

    averaged: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)  # lost samples by cause (`LostCause`)
    confirmed_before: int | None = None  # the member's confirmed samples at the start; None if unknown
    confirmed_now: int = 0
    at_end: bool = False

    def after(self, event: StepReport | Lost | Standing) -> StayWork:
        """Return the counts after an event."""
        match event:
            case StepReport():
                lost = dict(Counter(self.lost) + Counter(event.lost))
                return replace(self, averaged=self.averaged + event.samples, lost=lost)
            case Lost():
                return replace(self, lost=dict(Counter(self.lost) + Counter(event.by_cause)))
            case Standing():
                before = event.own_samples if self.confirmed_before is None else self.confirmed_before
                return replace(self, confirmed_before=before, confirmed_now=event.own_samples)

    @property
    def line(self) -> str | None:
        """A summary to show at the end; None before the end or if no samples were computed."""
        lost = sum(self.lost.values())
        if not self.at_end or not self.averaged + lost:
            return None
        causes = ", ".join(f"{cause} {samples:,}" for cause, samples in sorted(self.lost.items()))
        confirmed = ""
        if self.confirmed_before is not None:
            more = max(0, self.confirmed_now - self.confirmed_before)
            confirmed = f"; the coordinator has confirmed {more:,} samples of your devices meanwhile"
        return (
            f"Of the {self.averaged + lost:,} samples computed in this stay, {self.averaged:,} were averaged into "
            f"steps and {lost:,} were lost{f' ({causes})' if causes else ''}{confirmed}."
        )

    def on_panel(self) -> dict[str, Any]:
        """Return the panel's field "lost" with the number of lost samples."""
        return {"lost": sum(self.lost.values())}
