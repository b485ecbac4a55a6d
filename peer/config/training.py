"""`optimizer:`, `schedule:`, `averaging:` and `phases:` in a run file: training steps and phases.

BERTIN (de la Rosa et al. 2022, arXiv 2207.06814) was trained in two phases: most steps on 128
tokens, the last on 512 with a fresh optimizer and a short warm-up. See `RunConfig.at_step`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from peer.config.base import Fraction, Positive, PositiveFloat, Section, WholeNumber
from peer.config.data import Source

Compression = Literal["float16", "8bit-blockwise", "none"]
CODE_BEFORE_CHOICE: Compression = "8bit-blockwise"  # for `auto`, until the keeper has measured bandwidths
Shape = Literal["linear", "cosine", "warmup_stable_decay"]


class Optimizer(Section):
    """The optimizer of the global steps or, if peers take local steps, of the local steps."""

    name: Literal["lamb", "adamw", "stable_adamw", "muon", "sgd"] = "lamb"
    """Optimizer; `muon` applies to the matrices of hidden layers, and AdamW to all other parameters; `sgd` is for
    local steps only."""
    learning_rate: PositiveFloat = 1.76e-3
    """Learning rate at the end of the warm-up."""
    betas: tuple[Fraction, Fraction] = Field((0.9, 0.999), strict=False)
    """Decay rates of the first and second moments."""
    momentum: float = Field(0.95, ge=0, lt=1)
    """Decay rate of Muon's momentum; for `muon`."""
    epsilon: PositiveFloat = 1e-6
    """Term added to the square root of the second moment."""
    weight_decay: float = Field(0.01, ge=0, allow_inf_nan=False)
    """Weight decay; it does not apply to biases and layer norms."""
    clamp_value: PositiveFloat = 10_000.0
    """Maximum weight norm in the trust ratio; for `lamb`."""
    max_grad_norm: PositiveFloat = 1.0
    """Maximum norm of the averaged gradient or, with local steps, of each local gradient; both are clipped to it."""


class Schedule(Section):
    """Linear warm-up, then decay to zero; both are counted in global steps."""

    shape: Shape = "linear"
    """Decay after the warm-up: linear, half a cosine, or only in the last `decay_steps` (`warmup_stable_decay`)."""
    warmup_steps: int = Field(5_000, ge=0)
    """Number of global steps of linear warm-up."""
    total_steps: Positive = 125_000
    """Global step at which the learning rate reaches zero."""
    decay_steps: Positive | None = None
    """Global steps of the decay of `warmup_stable_decay`, up to `total_steps`: 1 minus the root of their share."""

    @model_validator(mode="after")
    def _warmup_below_total(self) -> Schedule:
        if self.warmup_steps >= self.total_steps:
            raise ValueError(f"`warmup_steps` ({self.warmup_steps}) must be below `total_steps` ({self.total_steps})")
        return self

    @model_validator(mode="after")
    def _decay_fits(self) -> Schedule:
        if (self.decay_steps is not None) != (self.shape == "warmup_stable_decay"):
            verb = "needs" if self.decay_steps is None else "takes no"
            raise ValueError(f"a schedule of the shape `{self.shape}` {verb} `decay_steps`")
        if self.decay_steps is not None and self.warmup_steps + self.decay_steps > self.total_steps:
            raise ValueError(
                f"`warmup_steps` ({self.warmup_steps}) and `decay_steps` ({self.decay_steps}) must not exceed "
                f"`total_steps` ({self.total_steps}) together"
            )
        return self


class Averaging(Section):
    """The global batch, and the averaging of gradients across peers; times are in seconds."""

    removed_keys = frozenset({"matchmaking_time_s"})

    target_batch_size: Positive = 4096
    """Number of samples in a global step."""
    initial_batch_size: Positive | None = None
    """Number of samples in the first global step, from which the batch grows linearly; by default it does not grow."""
    batch_warmup_steps: WholeNumber = 0
    """Number of global steps until the batch reaches its target size."""
    averaging_timeout_s: PositiveFloat = 60.0
    """Seconds after which an averaging round has failed. After some rounds have succeeded, peers wait three times
    their median duration, or more if durations vary."""
    statistics_expiration_s: PositiveFloat = 120.0
    """Seconds after which a peer that reports nothing is no longer counted."""
    progress_refresh_s: PositiveFloat = 0.5
    """Minimum time, in seconds, between two checks of the swarm's progress."""
    compression: Literal[Compression, "auto"] = "float16"
    """Wire format of averaged values: `float16` (2 bytes per value), `8bit-blockwise` (1) or `none` (4). With `auto`
    the run begins with `8bit-blockwise`, and the keeper chooses the format and `powersgd_rank` according to the peers'
    bandwidth."""
    powersgd_rank: int = Field(0, ge=0)
    """Rank of the PowerSGD factors that are averaged instead of large matrices; 0: whole matrices are averaged, or
    `compression: auto` chooses the rank."""
    local_steps: Positive = 1
    """Number of local steps that the target batch is divided into; 1: gradients are averaged, without local steps."""
    delay: bool = False
    """Let peers train while a step is averaged: with parameters that are one step old or, with local steps, with
    their own estimate of the next parameters."""
    aggregation: Literal["mean", "centered_clipping"] = "mean"
    """Combination of the senders' gradients: mean weighted by samples, or centred clipping for runs among strangers."""
    clipping_radius: PositiveFloat = 2.0
    """For centred clipping: maximum distance of a sender's gradient from the last average, in units of the average's
    usual norm divided by the square root of the sender's share of the samples."""
    clipping_iterations: int = Field(3, ge=1, le=100)
    """For centred clipping: number of iterations."""
    outer_learning_rate: PositiveFloat = 0.7
    """With local steps: share of the peers' mean progress that a global step applies."""
    outer_momentum: float = Field(0.9, ge=0, lt=1)
    """With local steps: Nesterov momentum of the global steps."""

    @property
    def wire_format(self) -> Compression:
        """The format of averaged values; with `auto`, the one used until the keeper chooses."""
        return CODE_BEFORE_CHOICE if self.compression == "auto" else self.compression

    @property
    def code(self) -> tuple[Compression, int]:
        """The compression and the PowerSGD rank; only peers that agree on both average together."""
        return self.wire_format, self.powersgd_rank

    def with_code(self, code: tuple[Compression, int]) -> Averaging:
        """Return these settings with a compression and rank."""
        if code == (self.compression, self.powersgd_rank):
            return self
        return self.model_copy(update=dict(zip(("compression", "powersgd_rank"), code, strict=True)))

    @property
    def local_batch_size(self) -> int:
        """The number of samples in one local step."""
        return max(1, self.target_batch_size // self.local_steps)

    def at_step(self, step: int) -> Averaging:
        """Return these settings with the batch size of the step after `step` completed ones."""
        initial, steps = self.initial_batch_size, self.batch_warmup_steps
        if initial is None:
            return self
        size = self.target_batch_size
        if step < steps:
            size = initial + (size - initial) * step // steps
        return self.model_copy(update={"target_batch_size": size, "initial_batch_size": None, "batch_warmup_steps": 0})

    @model_validator(mode="after")
    def _batch_grows(self) -> Averaging:
        if (self.initial_batch_size is None) != (self.batch_warmup_steps == 0):
            raise ValueError("`initial_batch_size` and `batch_warmup_steps` go together: set both or none")
        if self.initial_batch_size is not None and self.initial_batch_size > self.target_batch_size:
            raise ValueError(
                f"`initial_batch_size` ({self.initial_batch_size}) must not exceed `target_batch_size` "
                f"({self.target_batch_size})"
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
    def _rank_is_not_chosen_twice(self) -> Averaging:
        if self.compression == "auto" and self.powersgd_rank:
            raise ValueError(
                f"`compression` (auto) chooses the rank, too: set `powersgd_rank` ({self.powersgd_rank}) to 0, or name "
                "a compression"
            )
        return self


class Phase(Section):
    """Settings that change after `from_step` completed global steps; others stay the same."""

    from_step: Positive
    """Number of completed global steps at which the phase begins."""
    sequence_length: Positive | None = None
    """New `data.sequence_length`."""
    microbatch_size: Positive | None = None
    """New `data.microbatch_size`."""
    target_batch_size: Positive | None = None
    """New `averaging.target_batch_size`."""
    mask_probability: float | None = Field(None, gt=0, lt=1)
    """New `objective.mask_probability`; evaluation on held-out text keeps the run's."""
    sources: tuple[Source, ...] | None = Field(None, min_length=1, strict=False)
    """New `data.sources`; a device continues at its position in sources that remain. Held-out text keeps the run's."""
    optimizer: Literal["keep", "fresh"] = "keep"
    """Keep the optimizer's moments in this phase, or reset them to zero as at the run's first step (`fresh`)."""
    learning_rate: PositiveFloat | None = None
    """New learning rate at the end of the warm-up."""
    warmup_steps: WholeNumber | None = None
    """Number of global steps of a new warm-up, counted from `from_step`; the decay follows it."""
    total_steps: Positive | None = None
    """Global step, counted from the beginning of the run, at which the learning rate reaches zero."""
    schedule: Shape | None = None
    """New `schedule.shape`."""
    decay_steps: Positive | None = None
    """New `schedule.decay_steps`."""

    @property
    def begins_schedule(self) -> bool:
        """Return whether the learning rate restarts at `from_step`, rather than continuing."""
        return any(key is not None for key in (self.warmup_steps, self.total_steps, self.schedule, self.decay_steps))

    @property
    def changes(self) -> dict[str, dict[str, Any]]:
        """The run file keys that the phase sets, by section."""
        warmup_steps = (self.warmup_steps or 0) if self.begins_schedule else None
        settings: dict[str, dict[str, Any]] = {
            "objective": {"mask_probability": self.mask_probability},
            "data": {
                "sources": self.sources,
                "sequence_length": self.sequence_length,
                "microbatch_size": self.microbatch_size,
            },
            "averaging": {"target_batch_size": self.target_batch_size},
            "optimizer": {"learning_rate": self.learning_rate},
            "schedule": {
                "shape": self.schedule,
                "warmup_steps": warmup_steps,
                "total_steps": self.total_steps,
                "decay_steps": self.decay_steps,
            },
        }
        changes = {
            section: {key: value for key, value in keys.items() if value is not None}
            for section, keys in settings.items()
        }
        if self.schedule is not None:
            changes["schedule"]["decay_steps"] = self.decay_steps  # a new schedule does not inherit `decay_steps`
        return changes
