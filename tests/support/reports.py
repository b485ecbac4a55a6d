"""Reports of steps."""

from __future__ import annotations

from typing import Any

from peer.reporting.messages import StepReport


def report(step: int, samples: int = 10, loss: float | None = 2.0, **claims: Any) -> StepReport:
    """A plausible report of a step; `claims` are its other fields."""
    values: dict[str, Any] = {
        "mlm_loss": None,
        "sop_loss": None,
        "group_size": 2,
        "group_samples": None,
        "averaging_s": 0.5,
        "samples_per_second": 5.0,
    }
    return StepReport(step=step, samples=samples, loss=loss, **(values | claims))
