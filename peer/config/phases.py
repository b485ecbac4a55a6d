"""`phases:`: what changes for everybody at a given global step.

BERTIN (de la Rosa et al. 2022, arXiv 2207.06814) trained most of its steps on 128 tokens and the last on 512, with a
fresh optimizer and a short warm-up. `RunConfig.at_step` says what is in force when.
"""

from __future__ import annotations

from typing import Any, Literal

from peer.config.base import Positive, PositiveFloat, Section, WholeNumber


class Phase(Section):
    """What is different once `from_step` global steps are completed; what is left out goes on as it was."""

    from_step: Positive
    sequence_length: Positive | None = None
    microbatch_size: Positive | None = None
    target_batch_size: Positive | None = None
    optimizer: Literal["keep", "fresh"] = "keep"
    learning_rate: PositiveFloat | None = None  # at the end of the warm-up
    warmup_steps: WholeNumber | None = None  # counted from `from_step`
    total_steps: Positive | None = None  # the global step at which the learning rate reaches zero

    @property
    def begins_schedule(self) -> bool:
        """Whether the learning rate starts anew at `from_step`; else the schedule before goes on."""
        return self.warmup_steps is not None or self.total_steps is not None

    @property
    def changes(self) -> dict[str, dict[str, Any]]:
        """The keys of the run file that the phase sets, by section."""
        warmup_steps = (self.warmup_steps or 0) if self.begins_schedule else None
        settings: dict[str, dict[str, Any]] = {
            "data": {"sequence_length": self.sequence_length, "microbatch_size": self.microbatch_size},
            "averaging": {"target_batch_size": self.target_batch_size},
            "optimizer": {"learning_rate": self.learning_rate},
            "schedule": {"warmup_steps": warmup_steps, "total_steps": self.total_steps},
        }
        return {
            section: {key: value for key, value in keys.items() if value is not None}
            for section, keys in settings.items()
        }
