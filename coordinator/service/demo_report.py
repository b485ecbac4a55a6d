"""The demo's output: a line per global step, and a summary at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator.checkpoints.validations import ValidationRow
from coordinator.ledger.reading import Contribution, StepRow, data_wait_share

SETTLE_S = 3.0  # seconds after which a step is printed even if reports are missing


@dataclass
class StepFollower:
    """A formatter that emits each new step, in order, when its reports are complete or overdue."""

    last: StepRow | None = None  # last printed step
    told: list[StepRow] = field(default_factory=list)
    _seen_at: dict[int, float] = field(default_factory=dict)

    def take(self, rows: Sequence[StepRow], peers: int, now: float) -> list[str]:
        """Format `rows` (steps after `last`) up to the first step that still awaits reports."""
        lines = []
        for row in rows:
            seen_at = self._seen_at.setdefault(row.step, now)
            if row.devices < peers and now - seen_at < SETTLE_S:
                break
            lines.append(step_line(row, self.last))
            self.told.append(row)
            self.last = row
        return lines


def step_line(row: StepRow, previous: StepRow | None) -> str:
    """Format a global step as a line of text."""
    parts = [f"step {row.step:4d}", f"loss {row.loss:.4f}" if row.loss is not None else "loss unknown"]
    parts.append(f"{row.samples:,} samples")
    if previous is not None and row.completed_at > previous.completed_at:
        parts.append(f"{row.samples / (row.completed_at - previous.completed_at):.1f} samples/s")
    parts.append(f"{row.devices} peer{'' if row.devices == 1 else 's'}")
    return "  ".join(parts)


def summarize(
    steps: Sequence[StepRow],
    contributions: Sequence[Contribution],
    validations: Sequence[ValidationRow],
    target_batch_size: int,
    wall_seconds: float,
    checkpoint: Path | None,
) -> dict[str, Any]:
    """Return the results of a demo as a dictionary; scripts rely on the keys."""
    losses = [row.loss for row in steps if row.loss is not None]
    return {
        "steps": len(steps),
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        "target_batch_size": target_batch_size,
        "samples_by_step": {str(row.step): row.samples for row in steps},
        "samples_by_member": {row.member: row.samples for row in contributions},
        "data_wait_share": data_wait_share(contributions),
        "validation": {"first": validations[0].facts, "last": validations[-1].facts} if validations else None,
        "wall_seconds": round(wall_seconds, 2),
        "checkpoint": None if checkpoint is None else str(checkpoint),
    }


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """Format the results of the demo as lines of text."""
    if not summary["steps"]:
        return ["No global step was completed."]
    lines = [f"{summary['steps']} global steps in {summary['wall_seconds']:.0f} s."]
    if summary["first_loss"]:
        change = summary["last_loss"] / summary["first_loss"] - 1
        lines.append(f"Loss: {summary['first_loss']:.4f} -> {summary['last_loss']:.4f} ({change:+.1%}).")
    if summary["validation"]:
        lines.append(validation_line(summary["validation"]["first"], summary["validation"]["last"]))
    members = ", ".join(f"{name} {samples:,}" for name, samples in summary["samples_by_member"].items())
    lines.append(f"Samples: {members}.")
    if summary["data_wait_share"] is not None:
        lines.append(f"Waited for data: {summary['data_wait_share']:.2%} of the time.")
    if summary["checkpoint"]:
        lines.append(f"Checkpoint: {summary['checkpoint']}")
    return lines


def validation_line(first: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    """Compare the first and last checkpoints on held-out text; a non-finite loss is shown as `?`."""

    def loss(facts: Mapping[str, Any]) -> str:
        return "?" if facts["loss"] is None else f"{facts['loss']:.4f}"

    change = f"{loss(first)} (step {first['step']}) -> {loss(last)} (step {last['step']})"
    order = "" if last["sop_accuracy"] is None else f", sentence order {last['sop_accuracy']:.1%}"
    found = "" if last["detection_f1"] is None else f", F1 of replaced tokens {last['detection_f1']:.3f}"
    return f"Loss on held-out text: {change}; accuracy {last['accuracy']:.1%}{order}{found}."
