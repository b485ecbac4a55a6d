"""The step beacon: the keeper's signed word on where the run is, near which every peer stays.

It is the keeper's record in the DHT (signed with the keeper's key, whose role its token proves) with a `Course` in it.
A beacon that is older than one seen before, in era and step, is none; nor is one that the keeper has not renewed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from peer.sketch import Sketch
from peer.steering import Steering

MAX_STEP = 2**40
MAX_ERA = 2**31
MAX_CREDITS = 64  # devices whose share of a step is so large that it must be named
_Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
SketchValue = Annotated[float, Field(ge=-1e15, le=1e15, allow_inf_nan=False)]


class Course(BaseModel):
    """What only the keeper says in its record."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    age_s: _Seconds  # since the step was completed
    usual_s: _Seconds  # that a step takes; 0 before it is known
    credits: Annotated[
        dict[Annotated[str, Field(max_length=128)], Annotated[int, Field(ge=0, le=2**31)]],
        Field(max_length=MAX_CREDITS),
    ]  # peer ID -> samples that it has lately brought to a step, where they are many
    steering: Steering = Steering()


@dataclass(frozen=True)
class Beacon:
    """One beacon: the state after `step` has this sketch."""

    step: int
    sketch: Sketch
    time: float  # when it was published, by the keeper's clock
    course: Course
    era: int = 0  # how often the run has returned to a checkpoint


class BeaconWatch:
    """Takes each beacon that is seen, and says which one holds."""

    def __init__(self, silent_after_s: float) -> None:
        self._silent_after_s = silent_after_s
        self._renewed_at = float("-inf")
        self.newest: Beacon | None = None

    def look(self, beacon: Beacon | None, now: float) -> Beacon | None:
        """The beacon that holds at `now` (this peer's seconds), given the one that was just seen, if any."""
        newest = self.newest
        if beacon is not None and (newest is None or _order(beacon) >= _order(newest)):
            if newest is None or beacon.time != newest.time:
                self._renewed_at = now
            self.newest = newest = beacon
        return newest if now - self._renewed_at <= self._silent_after_s else None


def _order(beacon: Beacon) -> tuple[int, int, float]:
    return beacon.era, beacon.step, beacon.time


def nearest_step(agreed: int, seen: Beacon | None, held: Beacon | None) -> int:
    """The swarm's step: what most members have reached, not behind the beacon and one step at most beyond it.

    `seen` is what lies in the DHT now, perhaps since the keeper has gone; beyond `held` alone, which is renewed, nobody
    goes.
    """
    step = agreed if seen is None else max(agreed, seen.step)
    return step if held is None else min(max(step, held.step), held.step + 1)
