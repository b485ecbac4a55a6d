"""The choice of the way to average, for `averaging.compression: auto`: by the lines, the model and the batch.

Ways are ordered by their measured cost in loss (docs/operators/network.md, "Many workers in one process"). The first
with which a round leaves nine tenths of the time to training is chosen. `relative_time` promises a round's duration,
as for the shares of the reduction. Pure decisions: the keeper asks in a live run (`coordinator.keeper.choosing`), the
rehearsal before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from peer.averaging.shares import GroupLines, relative_time
from peer.config.training import Averaging, Compression
from peer.network.traffic import BOTH_WAYS, ON_THE_LINE, passes_in_time
from peer.reduction.sizes import RoundBytes

SUFFICIENT = 0.9  # of the time is left to training: no way that costs more of the loss is looked at
TOO_LITTLE = 0.8  # a live run leaves its way below this
AMPLE = 0.95  # and returns to one that costs less of the loss from here on
LEAST_GAIN = 1.1  # a live run changes to a way that is better by less for no other reason
SLOWER = ON_THE_LINE * (1 + BOTH_WAYS)  # a round, than its declared lines promise


@dataclass(frozen=True)
class AveragingWay:
    """A format of the averaged values with PowerSGD's rank, and its measured cost."""

    compression: Compression
    powersgd_rank: int = 0  # 0: all tensors are averaged as they are
    loss: float = field(default=1.0, compare=False)  # times the held-out loss of exact averages

    @property
    def keys(self) -> dict[str, str | int]:
        """The keys of `averaging` in a run file."""
        return {"compression": self.compression, "powersgd_rank": self.powersgd_rank}

    def __str__(self) -> str:
        """Name the way as the guide's table does."""
        return f"powersgd_rank: {self.powersgd_rank}" if self.powersgd_rank else self.compression


DENSE = (AveragingWay("float16"), AveragingWay("8bit-blockwise"))
LOW_RANK = (AveragingWay("float16", 16), AveragingWay("float16", 8), AveragingWay("float16", 4, 1.001))
SPARSE = (AveragingWay("topk-2bit", loss=1.007),)


def ways_of(averaging: Averaging, *, before_run: bool = False) -> tuple[AveragingWay, ...]:
    """Return the ways that are open to a run, the least cost in loss first.

    PowerSGD was not measured with local steps, and `topk-2bit` only with local steps and plain outer ones. A run that
    goes on cannot change to the latter (`before_run`).
    """
    if averaging.aggregation == "centered_clipping":
        return DENSE
    if averaging.local_steps == 1:
        return DENSE + LOW_RANK
    has_plain_outer_steps = averaging.outer_learning_rate == 1 and averaging.outer_momentum == 0
    return DENSE + SPARSE if before_run and has_plain_outer_steps else DENSE


def way_of(averaging: Averaging) -> AveragingWay:
    """Return the way of a run's first steps, or of the steps for which these settings hold."""
    return AveragingWay(averaging.wire_format, averaging.powersgd_rank)


@dataclass(frozen=True)
class RoundPace:
    """The pace of batches and rounds, which decides how much of the time is left to training."""

    averaging: Averaging  # as they are in force
    values: Callable[[int], int]  # by PowerSGD's rank: the number of values that one peer sends
    lines: GroupLines
    batch_s: float  # in which the present peers compute a batch

    def __post_init__(self) -> None:
        """Raise `ValueError` for a time or a rate that is none."""
        rates = [rate for rate in self.lines.rates if rate is not None]
        if not (math.isfinite(self.batch_s) and self.batch_s > 0 and all(0 <= rate < math.inf for rate in rates)):
            raise ValueError(f"no pace has batches of {self.batch_s} s and lines of {rates[:3]} bytes per second")

    def round_s(self, way: AveragingWay) -> float:
        """Return the seconds of a round, without the wait for its group; 0.0 where no line's rate is known."""
        size = RoundBytes.of(way.compression, self.values(way.powersgd_rank))
        lines = replace(self._lines_in_time, averages_of_own=size.averages_of_own)
        return SLOWER * size.own * relative_time(lines) if any(lines.reduces) else 0.0

    def utilisation(self, way: AveragingWay) -> float:
        """Return the part of the time that is left to training: none where one of the lines is too slow for the way."""
        stand_by = self._stand_by(way_of(self.averaging))
        if any(too_slow and not before for too_slow, before in zip(self._stand_by(way), stand_by, strict=True)):
            return 0.0
        round_s = self.round_s(way)
        if self.averaging.delay:
            return min(1.0, self.batch_s / round_s) if round_s else 1.0
        return self.batch_s / (self.batch_s + round_s)

    @property
    def counts_somebody(self) -> bool:
        """True if the line of at least one volunteer counts."""
        return not all(self._lines_in_time.trusted)

    def _stand_by(self, way: AveragingWay) -> list[bool]:
        """Return for each line whether it is a volunteer's that is too slow for a way, so that its peer stands by."""
        own = round(RoundBytes.of(way.compression, self.values(way.powersgd_rank)).own)
        longest_s = self.averaging.averaging_timeout_s
        return [
            not (is_trusted or rate is None or (rate > 0 and passes_in_time(own, rate, longest_s)))
            for rate, is_trusted in zip(self.lines.rates, self.lines.trusted, strict=True)
        ]

    @cached_property
    def _lines_in_time(self) -> GroupLines:
        """The lines without those whose peers stand by, so that a claim of almost no line decides nothing."""
        lines = self.lines
        taken = [number for number, stands_by in enumerate(self._stand_by(way_of(self.averaging))) if not stands_by]
        return replace(
            lines,
            rates=tuple(lines.rates[number] for number in taken),
            reduces=tuple(lines.reduces[number] for number in taken),
            trusted=tuple(lines.trusted[number] for number in taken),
        )


@dataclass(frozen=True)
class AveragingChoice:
    """A chosen way, with the reason in one sentence."""

    way: AveragingWay
    why: str


def choose(pace: RoundPace, ways: Sequence[AveragingWay]) -> AveragingChoice:
    """Return the first of `ways` that leaves enough of the time to training, or the one that leaves most.

    Where no way leaves any, because each is too slow for a line, it is the one with the fewest bytes.
    """
    found = {way: pace.utilisation(way) for way in ways}
    best = max(found, key=lambda way: found[way])  # of several that are alike, the first
    if not found[best]:
        best = min(ways, key=lambda way: RoundBytes.of(way.compression, pace.values(way.powersgd_rank)).own)
    return _explained(pace, next((way for way in ways if found[way] >= SUFFICIENT), best), ways)


def reconsider(
    paces: Sequence[RoundPace], ways: Sequence[AveragingWay], now: AveragingWay, *, may_return: bool = True
) -> AveragingChoice | None:
    """Return the way to which a live run changes; None while it keeps the present one.

    `paces`: of the newest groups, the last one last, which decides what is too little. A run that trains enough returns
    only to a way with a lower cost in loss, and only if that leaves ample time in each of these groups: a run on the
    edge between two ways does not change with every peer that comes, nor a group without its slow peers for all.
    `may_return`: such a return may be made now.
    """
    pace = paces[-1]
    if not pace.counts_somebody:
        return None
    if now not in ways:
        return choose(pace, ways)
    present = pace.utilisation(now)
    if present < TOO_LITTLE:
        chosen = choose(pace, ways)
        return chosen if pace.utilisation(chosen.way) >= LEAST_GAIN * present else None
    finer = (way for way in ways[: ways.index(now)] if all(each.utilisation(way) >= AMPLE for each in paces))
    found = next(finer, None) if may_return else None
    return None if found is None else _explained(pace, found, ways)


def _explained(pace: RoundPace, way: AveragingWay, ways: Sequence[AveragingWay]) -> AveragingChoice:
    round_s, first = pace.round_s(way), ways[0]
    if not round_s:
        return AveragingChoice(way, f"`{way}`: no known line limits the rounds.")
    beside = "beside" if pace.averaging.delay else "after"
    why = (
        f"`{way}`: a round takes {round_s:,.1f} s {beside} {pace.batch_s:,.1f} s of training, which leaves "
        f"{math.floor(100 * pace.utilisation(way))} % of that time to training"
    )
    if way != first:
        why += f"; `{first}` would leave {math.floor(100 * pace.utilisation(first))} %"
    if pace.utilisation(way) < SUFFICIENT:
        why += f", and no way leaves {100 * SUFFICIENT:.0f} %"
    return AveragingChoice(way, f"{why}.")
