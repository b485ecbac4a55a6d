"""Changes that the operator makes to a live run, and that the keeper's beacon sends to all peers.

The beacon contains current and planned settings, which every peer applies at the same step. A peer
that misses a change is detected by its state sketch, and downloads the keeper's state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from peer.config.training import Averaging, Compression

MAX_CHANGES = 8  # maximum number of changes per beacon, including the change in force
MOST_SCALE = 1000.0
LiveRank = Literal[0, 4, 8, 16, 32]
RANKS: tuple[LiveRank, ...] = get_args(LiveRank)
_Step = Annotated[int, Field(ge=0, le=2**40)]


class Change(BaseModel):
    """The complete settings that apply from a step until the next change."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    from_step: _Step  # number of completed global steps at which the change takes effect
    learning_rate_scale: Annotated[float, Field(gt=0, le=MOST_SCALE, allow_inf_nan=False)] = 1.0  # multiplier
    target_batch_size: Annotated[int, Field(ge=1, le=2**31)] | None = None  # None: the run file's value
    compression: Compression | None = None  # None: the run file's value
    powersgd_rank: LiveRank | None = None  # None: the run file's value

    def averaging(self, usual: Averaging) -> Averaging:
        """Return the run file's averaging settings with the gradient encoding in force.

        Clipped gradients are always averaged at full rank.
        """
        compression = usual.wire_format if self.compression is None else self.compression
        keeps_rank = self.powersgd_rank is None or usual.aggregation == "centered_clipping"
        return usual.with_code((compression, usual.powersgd_rank if keeps_rank else self.powersgd_rank or 0))


NO_CHANGE = Change(from_step=0)


class Steering(BaseModel):
    """The operator's changes for current and future steps."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    changes: Annotated[tuple[Change, ...], Field(max_length=MAX_CHANGES, strict=False)] = ()  # sorted
    paused: bool = False
    last_step: _Step | None = None  # step after which the run ends; None: not set by the operator

    def at(self, step: int) -> Change:
        """Return the change in force after `step` steps."""
        past = (change for change in reversed(self.changes) if change.from_step <= step)
        return next(past, NO_CHANGE)

    def has_ended(self, step: int) -> bool:
        """Return whether the run ends with this step or ended before it."""
        return self.last_step is not None and step >= self.last_step


def in_force(changes: Sequence[Change], step: int) -> tuple[Change, ...]:
    """Return the changes in the beacon of `step`: the latest one in force, and all future ones."""
    past = [change for change in changes if change.from_step <= step]
    return (*past[-1:], *(change for change in changes if change.from_step > step))[:MAX_CHANGES]
