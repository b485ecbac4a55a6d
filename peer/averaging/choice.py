"""Selection of the averaging mode for `averaging.compression: auto`, from connections, model and batch.

Only modes that admit as many volunteers as the most productive mode are considered. The first of
them (in the order of `peer.averaging.ways`) that leaves 90% of the time for training is selected.
The keeper of a live run (`coordinator.keeper.way_chooser`) and the rehearsal use these decisions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from peer.averaging.shares import GroupLines, relative_time
from peer.averaging.ways import AveragingWay, way_of
from peer.config.training import Averaging
from peer.network.traffic import BOTH_WAYS, ON_THE_LINE, passes_in_time
from peer.reduction.sizes import VALUE_BYTES

SUFFICIENT = 0.9  # sufficient fraction of time for training
TOO_LITTLE = 0.8  # fraction of time for training below which a live run changes its mode
AMPLE = 0.95  # fraction of time for training above which a live run returns to a mode with a lower loss
WORTH_SHUTTING_OUT = 1.5  # factor by which training must speed up to justify the exclusion of slow connections
LEAST_GAIN = 1.1  # factor of improvement that alone justifies a change of mode in a live run
SLOWER = ON_THE_LINE * (1 + BOTH_WAYS)  # real duration of a round relative to the estimate


@dataclass(frozen=True)
class RoundPace:
    """The durations of batches and rounds, which determine the time available for training."""

    averaging: Averaging  # averaging settings in force
    values: Callable[[int], int]  # PowerSGD rank -> number of values that one peer sends
    lines: GroupLines  # connections of the present group and of peers on standby
    speeds: tuple[float, ...]  # relative training speeds of these peers; 0 for peers that do not train
    batch_s: float  # time in which the present group computes a batch; infinite without trainers
    present_speed: float  # training speed of the present group

    def __post_init__(self) -> None:
        """Raise `ValueError` for an invalid time or rate."""
        rates = [rate for rate in self.lines.rates if rate is not None]
        if not (self.batch_s > 0 and all(0 <= rate < math.inf for rate in rates)):
            raise ValueError(f"no pace has batches of {self.batch_s} s and lines of {rates[:3]} bytes per second")

    def round_s(self, way: AveragingWay) -> float:
        """Return the duration of a round without the wait for its group; 0.0 if no rate is known."""
        own_bytes = VALUE_BYTES[way.compression] * self.values(way.powersgd_rank)
        lines, passing = self.lines, self._passes(way)
        taking_part = GroupLines(
            rates=tuple(itertools.compress(lines.rates, passing)),
            reduces=tuple(itertools.compress(lines.reduces, passing)),
            trusted=tuple(itertools.compress(lines.trusted, passing)),
            second_reducers=(),
        )
        return SLOWER * own_bytes * relative_time(taking_part) if any(taking_part.reduces) else 0.0

    def round_and_batch_s(self, way: AveragingWay) -> tuple[float, float]:
        """Return (seconds of a round, seconds of a batch) with the peers that a mode admits."""
        speed = self.speed(way)
        is_known = speed > 0 and math.isfinite(self.batch_s)
        return self.round_s(way), self.batch_s * self.present_speed / speed if is_known else self.batch_s

    def utilisation(self, way: AveragingWay) -> float:
        """Return the fraction of time spent training in a mode, with the peers that it admits."""
        round_s, batch_s = self.round_and_batch_s(way)
        if self.averaging.delay:
            return min(1.0, batch_s / round_s) if round_s else 1.0
        return batch_s / (batch_s + round_s) if math.isfinite(batch_s) else 1.0

    def contribution(self, way: AveragingWay) -> float:
        """Return the total training speed in a mode, net of the time for rounds."""
        return self.speed(way) * self.utilisation(way)

    def speed(self, way: AveragingWay) -> float:
        """Return the total speed, while training, of all peers that a mode admits."""
        return math.fsum(itertools.compress(self.speeds, self._passes(way)))

    def volunteers(self, way: AveragingWay) -> int:
        """Return the number of volunteers that a mode admits."""
        passing = itertools.compress(self.lines.trusted, self._passes(way))
        return sum(not is_trusted for is_trusted in passing)

    def shuts_out(self, way: AveragingWay) -> bool:
        """Return whether a mode excludes a peer of the present group."""
        before = self._passes(way_of(self.averaging))
        return any(passes and not then for passes, then in zip(before, self._passes(way), strict=True))

    def _passes(self, way: AveragingWay) -> list[bool]:
        """Return whether each peer's connection is fast enough for a mode."""
        longest_s = self.averaging.averaging_timeout_s
        return [
            is_trusted or rate is None or passes(way, self.values, rate, longest_s)
            for rate, is_trusted in zip(self.lines.rates, self.lines.trusted, strict=True)
        ]


def passes(way: AveragingWay, values: Callable[[int], int], rate: float, longest_s: float) -> bool:
    """Return whether a connection of `rate` bytes/s can send a mode's values within `longest_s`."""
    own_bytes = round(VALUE_BYTES[way.compression] * values(way.powersgd_rank))
    return rate > 0 and passes_in_time(own_bytes, rate, longest_s)


@dataclass(frozen=True)
class AveragingChoice:
    """A selected mode, with the reason in one sentence."""

    way: AveragingWay
    why: str


def choose(pace: RoundPace, ways: Sequence[AveragingWay], *, may_shut_out: bool = True) -> AveragingChoice:
    """Return the first of `ways` that leaves enough time for training, or the most productive one.

    The mode must admit as many volunteers as the most productive one. A mode may exclude
    present peers only with `may_shut_out`, and only if the others train much faster without them.
    If no mode admits any volunteer, return the mode with the fewest bytes.
    """
    now = way_of(pace.averaging)
    best = max([way for way in ways if not pace.shuts_out(way)] or ways, key=pace.contribution)  # the first on a tie
    others = max(ways, key=pace.contribution)
    if may_shut_out and pace.contribution(others) >= WORTH_SHUTTING_OUT * pace.contribution(best):
        best = others
    if not any(map(pace.volunteers, ways)) and not all(pace.lines.trusted):
        best = min(ways, key=lambda way: VALUE_BYTES[way.compression] * pace.values(way.powersgd_rank))
    served = pace.volunteers(best)
    least = pace.contribution(now) if served > pace.volunteers(now) else 0.0
    enough = (
        way
        for way in ways
        if pace.volunteers(way) >= max(1, served)
        and pace.utilisation(way) >= SUFFICIENT
        and pace.contribution(way) >= least
    )
    return _explained(pace, next(enough, best), ways)


def reconsider(
    paces: Sequence[RoundPace], ways: Sequence[AveragingWay], now: AveragingWay, *, may_return: bool = True
) -> AveragingChoice | None:
    """Return the mode to which a live run should change, or None to keep the present one.

    `paces`: the paces of the newest groups, in order. A run changes its mode to admit volunteers
    whose contribution exceeds the cost of their slow connections, or if training time is too short
    and another mode clearly increases it. It returns to a mode with a lower loss only if that mode
    leaves ample time in all these groups, which avoids a change with every peer that joins or
    leaves. A slow peer is excluded only if the others train much faster without it in each of these
    groups. `may_return`: whether a change to a lower loss is permitted now.
    """
    pace = paces[-1]
    if not any(map(pace.volunteers, ways)):
        return None
    chosen = choose(pace, ways)
    if now not in ways:
        return chosen
    if pace.shuts_out(chosen.way):
        least = [WORTH_SHUTTING_OUT * each.contribution(now) for each in paces]
        if may_return and all(each.contribution(chosen.way) >= of for each, of in zip(paces, least, strict=True)):
            return chosen
        chosen = choose(pace, ways, may_shut_out=False)
    if pace.volunteers(chosen.way) > pace.volunteers(now):
        return chosen if pace.contribution(chosen.way) > pace.contribution(now) else None
    left = pace.utilisation(now)
    if left < TOO_LITTLE:
        return chosen if pace.utilisation(chosen.way) >= LEAST_GAIN * left else None
    finer = (
        way
        for way in ways[: ways.index(now)]
        if all(each.utilisation(way) >= AMPLE and not each.shuts_out(way) for each in paces)
    )
    found = next(finer, None) if may_return else None
    return None if found is None else _explained(pace, found, ways)


def _explained(pace: RoundPace, way: AveragingWay, ways: Sequence[AveragingWay]) -> AveragingChoice:
    now, first = way_of(pace.averaging), ways[0]
    admitted = pace.volunteers(way) - pace.volunteers(now)
    reasons = []
    if admitted > 0:
        who = "1 volunteer whose line is" if admitted == 1 else f"{admitted:,} volunteers whose lines are"
        reasons.append(f"{who} too slow for `{now}` can take part")
    if admitted < 0:
        who = (
            "1 volunteer stands by, whose line is"
            if admitted == -1
            else f"{-admitted:,} volunteers stand by, whose lines are"
        )
        reasons.append(f"{who} too slow for it: the others train much more without")
    round_s, batch_s = pace.round_and_batch_s(way)
    if not round_s:
        reasons.append("no known line limits the rounds")
    elif math.isinf(batch_s):
        reasons.append(f"a round takes {round_s:,.1f} s")
    else:
        beside = "beside" if pace.averaging.delay else "after"
        why = (
            f"a round takes {round_s:,.1f} s {beside} {batch_s:,.1f} s of training, which leaves "
            f"{math.floor(100 * pace.utilisation(way))} % of that time to training"
        )
        if way != first and pace.shuts_out(first):
            why += f"; a present line is too slow for `{first}`"
        elif way != first and admitted <= 0:
            why += f"; `{first}` would leave {math.floor(100 * pace.utilisation(first))} %"
        if pace.utilisation(way) < SUFFICIENT:
            why += f", and no way leaves {100 * SUFFICIENT:.0f} %"
        reasons.append(why)
    return AveragingChoice(way, f"`{way}`: {'; '.join(reasons)}.")
