"""`optimizer:`, `schedule:`, `averaging:` and `phases:` in a run file: the swarm's steps, and changes at some of them.

BERTIN (de la Rosa et al. 2022, arXiv 2207.06814) trained most of its steps on 128 tokens and the last on 512, with a
fresh optimizer and a short warm-up: two phases. `RunConfig.at_step` says what is in force when.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from peer.config.base import Fraction, Positive, PositiveFloat, Section, WholeNumber

Compression = Literal["float16", "8bit-blockwise", "none"]


class Optimizer(Section):
    """LAMB (You et al. 2020, arXiv 1904.00962) with the recipe's options; AdamW and SGD for local steps only."""

    name: Literal["lamb", "adamw", "sgd"] = "lamb"
    learning_rate: PositiveFloat = 1.76e-3
    betas: tuple[Fraction, Fraction] = Field((0.9, 0.999), strict=False)
    epsilon: PositiveFloat = 1e-6
    weight_decay: float = Field(0.01, ge=0, allow_inf_nan=False)
    clamp_value: PositiveFloat = 10_000.0
    max_grad_norm: PositiveFloat = 1.0


class Schedule(Section):
    """Linear warm-up, then linear decay to zero; both in global steps."""

    warmup_steps: int = Field(5_000, ge=0)
    total_steps: Positive = 125_000

    @model_validator(mode="after")
    def _warmup_below_total(self) -> Schedule:
        if self.warmup_steps >= self.total_steps:
            raise ValueError(f"`warmup_steps` ({self.warmup_steps}) must be below `total_steps` ({self.total_steps})")
        return self


class Averaging(Section):
    """The global batch, and the averaging of gradients over peers; times in seconds."""

    target_batch_size: Positive = 4096
    matchmaking_time_s: PositiveFloat = 15.0
    averaging_timeout_s: PositiveFloat = 60.0
    statistics_expiration_s: PositiveFloat = 120.0
    progress_refresh_s: PositiveFloat = 0.5
    compression: Compression = "float16"
    powersgd_rank: int = Field(0, ge=0)  # of the factors that large matrices are averaged as; 0: as they are
    local_steps: Positive = 1  # that the target batch is divided into; 1: gradients are averaged, nobody steps alone
    delay: bool = False  # train on while gradients are averaged, with parameters that are one step old
    aggregation: Literal["mean", "centered_clipping"] = "mean"  # how each part is made one of all senders'
    clipping_radius: PositiveFloat = 2.0  # of centred clipping: times the usual norm of the average
    clipping_iterations: int = Field(3, ge=1, le=100)
    outer_learning_rate: PositiveFloat = 0.7
    outer_momentum: float = Field(0.9, ge=0, lt=1)

    @property
    def local_batch_size(self) -> int:
        """Samples in one local step."""
        return max(1, self.target_batch_size // self.local_steps)

    @model_validator(mode="after")
    def _delays_gradients_only(self) -> Averaging:
        if self.delay and self.local_steps > 1:
            raise ValueError(
                f"`delay` (true) is for averaged gradients: leave it out, or `local_steps` ({self.local_steps})"
            )
        return self

    @model_validator(mode="after")
    def _clips_gradients_as_they_are(self) -> Averaging:
        if self.aggregation == "centered_clipping" and self.powersgd_rank:
            raise ValueError(
                "`aggregation` (centered_clipping) is for gradients that are averaged as they are: take `mean`, "
                f"or set `powersgd_rank` ({self.powersgd_rank}) to 0"
            )
        return self

    @model_validator(mode="after")
    def _timeout_exceeds_matchmaking(self) -> Averaging:
        if self.averaging_timeout_s <= self.matchmaking_time_s:
            raise ValueError(
                f"`averaging_timeout_s` ({self.averaging_timeout_s}) must be above "
                f"`matchmaking_time_s` ({self.matchmaking_time_s})"
            )
        return self


class Phase(Section):
    """The settings that change once `from_step` global steps are completed; settings left out stay as they were."""

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
