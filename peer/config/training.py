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
    """Optimizer; `adamw` and `sgd` are for local steps only."""
    learning_rate: PositiveFloat = 1.76e-3
    """Learning rate at the end of the warm-up."""
    betas: tuple[Fraction, Fraction] = Field((0.9, 0.999), strict=False)
    """Decay of the two moments."""
    epsilon: PositiveFloat = 1e-6
    """Term added to the root of the second moment."""
    weight_decay: float = Field(0.01, ge=0, allow_inf_nan=False)
    """Weight decay, except of biases and layer norms."""
    clamp_value: PositiveFloat = 10_000.0
    """Largest weight norm in the trust ratio."""
    max_grad_norm: PositiveFloat = 1.0
    """Norm to which the averaged gradient, or with local steps each local gradient, is clipped."""


class Schedule(Section):
    """Linear warm-up, then linear decay to zero; both in global steps."""

    warmup_steps: int = Field(5_000, ge=0)
    """Global steps of linear warm-up."""
    total_steps: Positive = 125_000
    """Global step at which the learning rate reaches zero."""

    @model_validator(mode="after")
    def _warmup_below_total(self) -> Schedule:
        if self.warmup_steps >= self.total_steps:
            raise ValueError(f"`warmup_steps` ({self.warmup_steps}) must be below `total_steps` ({self.total_steps})")
        return self


class Averaging(Section):
    """The global batch, and the averaging of gradients over peers; times in seconds."""

    target_batch_size: Positive = 4096
    """Samples in a global step."""
    matchmaking_time_s: PositiveFloat = 15.0
    """Longest wait, in seconds, for peers that do not come to a group. A group begins when all known peers have come;
    once some groups have formed, peers wait three times the median time of that, at least three seconds. 2 is enough
    in one machine room."""
    averaging_timeout_s: PositiveFloat = 60.0
    """Seconds after which a round of averaging has failed; once some rounds have succeeded, peers wait three times
    their median, or more where the times vary."""
    statistics_expiration_s: PositiveFloat = 120.0
    """Seconds after which a silent peer is no longer counted."""
    progress_refresh_s: PositiveFloat = 0.5
    """Shortest time, in seconds, between two looks at the swarm's progress."""
    compression: Compression = "float16"
    """Format of averaged values on the wire: `float16` (2 bytes a value), `8bit-blockwise` (1) or `none` (4)."""
    powersgd_rank: int = Field(0, ge=0)
    """Rank of the factors as which large matrices are averaged (PowerSGD); 0: they are averaged as they are."""
    local_steps: Positive = 1
    """Number of local steps into which the target batch is divided; 1: gradients are averaged, and no peer steps alone.
    """
    delay: bool = False
    """Let peers train on while gradients are averaged, with parameters that are one step old."""
    aggregation: Literal["mean", "centered_clipping"] = "mean"
    """Combination of all senders' gradients: their mean by samples, or centred clipping for runs among strangers."""
    clipping_radius: PositiveFloat = 2.0
    """Largest distance of a sender from the last average, for centred clipping: in usual norms of the average, divided
    by the root of the sender's share of the samples."""
    clipping_iterations: int = Field(3, ge=1, le=100)
    """Number of times that centred clipping moves the average."""
    outer_learning_rate: PositiveFloat = 0.7
    """Share of the peers' mean progress that a global step takes over, with local steps."""
    outer_momentum: float = Field(0.9, ge=0, lt=1)
    """Nesterov momentum of the global steps, with local steps."""

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
    """Global steps completed when the phase begins."""
    sequence_length: Positive | None = None
    """New `data.sequence_length`."""
    microbatch_size: Positive | None = None
    """New `data.microbatch_size`."""
    target_batch_size: Positive | None = None
    """New `averaging.target_batch_size`."""
    optimizer: Literal["keep", "fresh"] = "keep"
    """Keep the optimizer's moments in this phase, or begin with fresh ones: all zero, as at the run's first step.
    """
    learning_rate: PositiveFloat | None = None
    """New learning rate at the end of the warm-up."""
    warmup_steps: WholeNumber | None = None
    """Global steps of a new warm-up, counted from `from_step`; the decay follows it."""
    total_steps: Positive | None = None
    """Global step, counted from the run's beginning, at which the learning rate reaches zero."""

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
