"""Descriptions of a run's phases for the volunteer's panel, `coordinator status` and the dashboard."""

from __future__ import annotations

from dataclasses import dataclass

from peer.config.run import RunConfig


@dataclass(frozen=True)
class PhaseFacts:
    """A phase of a run; a run without `phases:` has exactly one."""

    number: int  # number of the phase, starting at 1
    count: int  # number of phases in the run
    from_step: int  # number of completed global steps at which the phase begins
    sequence_length: int  # tokens per sample
    target_batch_size: int  # samples per step
    fresh_optimizer: bool  # whether the optimizer's moments start at zero
    final_batch_size: int | None = None  # samples per step after the batch has grown; None: constant

    def __str__(self) -> str:
        """Describe the phase's sequence length, batch size and fresh optimizer, if any."""
        fresh = ", fresh optimizer" if self.fresh_optimizer else ""
        grows = f", growing to {self.final_batch_size}" if self.final_batch_size else ""
        return f"{self.sequence_length} tokens, {self.target_batch_size} samples a step{grows}{fresh}"

    @property
    def line(self) -> str:
        """The phase's number in the run, and its description."""
        return f"{self.number} of {self.count}, from step {self.from_step} on: {self}"


def phase_at(config: RunConfig, step: int) -> PhaseFacts:
    """Return the phase in force after `step` completed global steps."""
    now = config.at_step(step)
    newest = now.phases[-1] if now.phases else None
    target, full = now.averaging.target_batch_size, config.in_phase(step).averaging.target_batch_size
    return PhaseFacts(
        number=len(now.phases) + 1,
        count=len(config.phases) + 1,
        from_step=0 if newest is None else newest.from_step,
        sequence_length=now.data.sequence_length,
        target_batch_size=target,
        fresh_optimizer=newest is not None and newest.optimizer == "fresh",
        final_batch_size=None if full == target else full,
    )


def all_phases(config: RunConfig) -> tuple[PhaseFacts, ...]:
    """Return all phases of the run, in order; the first begins at step 0."""
    return tuple(phase_at(config, step) for step in (0, *(phase.from_step for phase in config.phases)))
