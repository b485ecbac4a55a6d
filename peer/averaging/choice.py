"""The choice of the way to average, for `averaging.compression: auto`: by the lines, the model and the batch.

The first way in the order of `peer.averaging.ways` with which a round leaves nine tenths of the time to training is
chosen, of those that let as many volunteers take part as bring most together. `relative_time` promises a round's
duration, as for the shares of the reduction. Pure decisions: the keeper asks in a live run
(`coordinator.keeper.way_chooser`), the rehearsal before it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from peer.averaging.shares import GroupLines, relative_time
from peer.averaging.ways import AveragingWay, way_of
from peer.config.training import Averaging
from peer.network.traffic import BOTH_WAYS, ON_THE_LINE, passes_in_time
from peer.reduction.sizes import RoundBytes

SUFFICIENT = 0.9  # of the time is left to training: no way that costs more of the loss is looked at
TOO_LITTLE = 0.8  # a live run leaves its way below this
AMPLE = 0.95  # and returns to one that costs less of the loss from here on
WORTH_SHUTTING_OUT = 1.5  # times the training, without the slow lines
LEAST_GAIN = 1.1  # a live run changes to a way that is better by less for no other reason
SLOWER = ON_THE_LINE * (1 + BOTH_WAYS)  # a round, than its declared lines promise


@dataclass(frozen=True)
class RoundPace:
    """The pace of batches and rounds, which decides how much of the volunteers' time is left to training."""

    averaging: Averaging  # as they are in force
    values: Callable[[int], int]  # by PowerSGD's rank: the number of values that one peer sends
    lines: GroupLines  # of the present group, and of those who stand by because theirs is too slow for it
    speeds: tuple[float, ...]  # of these peers beside each other; 0 of those who compute nothing
    batch_s: float  # in which the present group computes a batch; infinite while nobody trains
    present_speed: float  # of that group

    def __post_init__(self) -> None:
        """Raise `ValueError` for a time or a rate that is none."""
        rates = [rate for rate in self.lines.rates if rate is not None]
        if not (self.batch_s > 0 and all(0 <= rate < math.inf for rate in rates)):
            raise ValueError(f"no pace has batches of {self.batch_s} s and lines of {rates[:3]} bytes per second")

    def round_s(self, way: AveragingWay) -> float:
        """Return the seconds of a round, without the wait for its group; 0.0 where no line's rate is known."""
        size = RoundBytes.of(way.compression, self.values(way.powersgd_rank))
        lines, passing = self.lines, self._passes(way)
        taking_part = GroupLines(
            rates=tuple(itertools.compress(lines.rates, passing)),
            reduces=tuple(itertools.compress(lines.reduces, passing)),
            trusted=tuple(itertools.compress(lines.trusted, passing)),
            second_reducers=(),
            averages_of_own=size.averages_of_own,
        )
        return SLOWER * size.own * relative_time(taking_part) if any(taking_part.reduces) else 0.0

    def round_and_batch_s(self, way: AveragingWay) -> tuple[float, float]:
        """Return the seconds of a round and of a batch, with those whose lines pass the way."""
        speed = self.speed(way)
        is_known = speed > 0 and math.isfinite(self.batch_s)
        return self.round_s(way), self.batch_s * self.present_speed / speed if is_known else self.batch_s

    def utilisation(self, way: AveragingWay) -> float:
        """Return the part of the time that is left to training, for those whose lines pass the way."""
        round_s, batch_s = self.round_and_batch_s(way)
        if self.averaging.delay:
            return min(1.0, batch_s / round_s) if round_s else 1.0
        return batch_s / (batch_s + round_s) if math.isfinite(batch_s) else 1.0

    def contribution(self, way: AveragingWay) -> float:
        """Return the speed at which all train together; who stands by contributes nothing."""
        return self.speed(way) * self.utilisation(way)

    def speed(self, way: AveragingWay) -> float:
        """Return the speed of all whose lines pass the way, while they train."""
        return math.fsum(itertools.compress(self.speeds, self._passes(way)))

    def volunteers(self, way: AveragingWay) -> int:
        """Return the number of volunteers whose lines pass a way's values in time."""
        passing = itertools.compress(self.lines.trusted, self._passes(way))
        return sum(not is_trusted for is_trusted in passing)

    def shuts_out(self, way: AveragingWay) -> bool:
        """Return whether the line of somebody in the present group is too slow for the way."""
        return any(before and not now for before, now in zip(self._passes_now, self._passes(way), strict=True))

    @cached_property
    def _passes_now(self) -> list[bool]:
        return self._passes(way_of(self.averaging))

    def _passes(self, way: AveragingWay) -> list[bool]:
        """Return for each line whether it passes a way's values in time; who has another one stands by."""
        longest_s = self.averaging.averaging_timeout_s
        return [
            is_trusted or rate is None or passes(way, self.values, rate, longest_s)
            for rate, is_trusted in zip(self.lines.rates, self.lines.trusted, strict=True)
        ]


def passes(way: AveragingWay, values: Callable[[int], int], rate: float, longest_s: float) -> bool:
    """Return whether a line of `rate` bytes per second passes a way's values within a round of `longest_s`."""
    own_bytes = round(RoundBytes.of(way.compression, values(way.powersgd_rank)).own)
    return rate > 0 and passes_in_time(own_bytes, rate, longest_s)


@dataclass(frozen=True)
class AveragingChoice:
    """A chosen way, with the reason in one sentence."""

    way: AveragingWay
    why: str


def choose(pace: RoundPace, ways: Sequence[AveragingWay], *, may_shut_out: bool = True) -> AveragingChoice:
    """Return the first of `ways` that leaves enough of the time to training, or the one with the largest contribution.

    It lets as many volunteers take part as the latter. Nobody in the present group is shut out, unless the others train
    much faster alone and `may_shut_out`. Where no line passes any way, it is the one with the fewest bytes.
    """
    now = way_of(pace.averaging)
    best = max([way for way in ways if not pace.shuts_out(way)] or ways, key=pace.contribution)  # the first of equals
    others = max(ways, key=pace.contribution)
    if may_shut_out and pace.contribution(others) >= WORTH_SHUTTING_OUT * pace.contribution(best):
        best = others
    if not any(map(pace.volunteers, ways)) and not all(pace.lines.trusted):
        best = min(ways, key=lambda way: RoundBytes.of(way.compression, pace.values(way.powersgd_rank)).own)
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
    """Return the way to which a live run changes; None while it keeps the present one.

    `paces`: of the newest groups, the last one last, which decides what is too little. A run changes for volunteers who
    stand by, where they bring more than their slow lines cost the others, and for a way that leaves clearly more of too
    little time. Else it returns only to a way with a lower cost in loss, and only if that leaves ample time in each of
    these groups: a run on the edge between two ways does not change with every peer that comes, nor a group without its
    slow peers for all. A slow line is shut out only if the others train much faster without it in each of these groups.
    `may_return`: a finer way may be chosen now.
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
