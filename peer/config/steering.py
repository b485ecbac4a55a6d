"""Steering of a live run by its operator: changes in the keeper's beacon, which every peer makes at the same step.

The beacon carries what is in force and what is to come. A peer that missed a change takes one step unlike the others,
is told apart by the sketch of its state, and takes the keeper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from peer.config.training import Averaging

MAX_CHANGES = 8  # in one beacon: the one in force and those to come
MOST_SCALE = 1000.0
LiveCompression = Literal["none", "float16", "8bit-blockwise"]  # which a live run may change to
LiveRank = Literal[0, 4, 8, 16, 32]
COMPRESSIONS: tuple[LiveCompression, ...] = get_args(LiveCompression)
RANKS: tuple[LiveRank, ...] = get_args(LiveRank)
_Step = Annotated[int, Field(ge=0, le=2**40)]


class Change(BaseModel):
    """The settings from a step on, until the next change; complete, so that nobody needs to know earlier changes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    from_step: _Step  # global steps completed
    learning_rate_scale: Annotated[float, Field(gt=0, le=MOST_SCALE, allow_inf_nan=False)] = 1.0  # of the run file's
    target_batch_size: Annotated[int, Field(ge=1, le=2**31)] | None = None  # None: the run file's
    compression: LiveCompression | None = None  # likewise
    powersgd_rank: LiveRank | None = None  # likewise

    def averaging(self, usual: Averaging) -> Averaging:
        """Return the run file's settings of averaging with the code of gradients in force.

        A run whose gradients are sparse keeps its code, and one that clips them keeps them whole, whatever is said.
        """
        if usual.sends_sparse:
            return usual
        compression = usual.wire_format if self.compression is None else self.compression
        keeps_rank = self.powersgd_rank is None or usual.aggregation == "centered_clipping"
        return usual.with_code((compression, usual.powersgd_rank if keeps_rank else self.powersgd_rank or 0))


class Steering(BaseModel):
    """Everything that the operator has said of steps to come."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    changes: Annotated[tuple[Change, ...], Field(max_length=MAX_CHANGES, strict=False)] = ()  # by `from_step`
    paused: bool = False
    last_step: _Step | None = None  # the run ends with it

    def at(self, step: int) -> Change:
        """Return the change in force after `step` steps."""
        past = [change for change in self.changes if change.from_step <= step]
        return past[-1] if past else Change(from_step=0)

    def has_ended(self, step: int) -> bool:
        """Return whether the run ends with this step or ended before it."""
        return self.last_step is not None and step >= self.last_step


def in_force(changes: Sequence[Change], step: int) -> tuple[Change, ...]:
    """Return the changes, by `from_step`, that the beacon of `step` needs: the newest past one, and the next."""
    past = [change for change in changes if change.from_step <= step]
    return (*past[-1:], *(change for change in changes if change.from_step > step))[:MAX_CHANGES]
