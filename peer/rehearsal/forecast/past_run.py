"""Conversion of a run's public history into a scenario: devices with sessions, speeds and connections.

The history consists of the Parquet tables in every dashboard and archive. They contain sessions and
speeds, but no bandwidths. A device's share of the reduction, and thus its traffic, follows from the
bytes it averaged for others. The group's shortest wait gives a lower bound on the bandwidth.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from statistics import median
from typing import Annotated, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from auth.errors import ConfigError
from peer.config.base import first_mistake
from peer.config.run import RunConfig
from peer.network.http import fetch
from peer.network.traffic import BOTH_WAYS, BYTES_PER_S_OF_MBIT, ON_THE_LINE
from peer.reduction.sizes import VALUE_BYTES
from peer.rehearsal.forecast.report import ModelValues, SeedQuantiles
from peer.rehearsal.population import HOUR_S
from peer.rehearsal.scenario import MOST_PEERS, HomeLine, MeasuredRun, Rehearsed, Scenario, Visit
from peer.rehearsal.states import STATE_BYTES

MOST_ROWS = 5_000_000  # maximum number of rows per table
MOST_BYTES = 2**30
LEAST_STEPS = 4  # fewest steps of a scenario: enough for three intervals
UNKNOWN_MBIT = 100.0  # assumed bandwidth of a connection without data, such as an auxiliary peer's
LINE_LEVEL = 0.9  # quantile of a connection's lower bounds, to ignore outliers
TAKEN_S = 1.0  # assumed time between a step of the first peer and the same step of the last
_Row = TypeVar("_Row", bound=BaseModel)
_Count = Annotated[int, Field(ge=0, le=2**53)]
_Seconds = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]


class _PastRow(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class PastStep(_PastRow):
    """A row of the table `steps`."""

    step: _Count
    era: _Count
    target_batch_size: _Count
    completed_at: _Seconds


class PastSession(_PastRow):
    """A row of the table `sessions`; `member` only groups the devices of one owner."""

    member: str
    device: _Count
    started_at: _Seconds
    last_seen_at: _Seconds
    ended_at: _Seconds | None


class PastReport(_PastRow):
    """A row of the table `contributions`."""

    step: _Count
    era: _Count
    device: _Count
    samples: _Count
    counted: _Count | None
    group_size: _Count
    averaging_s: _Seconds
    lost_samples: _Count
    elapsed_s: _Seconds
    averaged_bytes: _Count
    completed_at: _Seconds
    undone: bool

    @property
    def began_at(self) -> float:
        """The time of the device's previous report, or the time at which it started training."""
        return self.completed_at - self.elapsed_s

    def samples_per_second(self, *, delay: bool) -> float | None:
        """Return the speed while computing (and averaging, with `delay`); None if unknown."""
        busy_s = self.elapsed_s - (0.0 if delay else self.averaging_s)
        samples = self.samples + self.lost_samples
        return samples / busy_s if samples and busy_s > 0 else None


@dataclass(frozen=True)
class RunHistory:
    """The complete tables of a run's steps, sessions and contributions."""

    steps: Sequence[PastStep]
    sessions: Sequence[PastSession]
    reports: Sequence[PastReport]


@dataclass(frozen=True)
class PastStretch:
    """Successive steps of one era with one batch size, and their time span (Unix seconds)."""

    steps: Sequence[PastStep]
    begin_at: float
    end_at: float
    is_beginning: bool  # whether the stretch starts with the run's first session


@dataclass(frozen=True)
class PastScenario:
    """A scenario of part of a run, with remarks on missing data."""

    scenario: Scenario
    remarks: tuple[str, ...]

    def to_yaml(self) -> str:
        """Return the scenario file's text, with the remarks as comments at the top."""
        assert self.scenario.measured is not None
        content = self.scenario.model_dump(mode="json", exclude_defaults=True)
        content["measured"] = self.scenario.measured.model_dump(mode="json")  # in full, because defaults may change
        head = [line for remark in self.remarks for line in textwrap.wrap(remark, 100, subsequent_indent="  ")]
        return "".join(f"# {line}\n" for line in head) + yaml.safe_dump(content, sort_keys=False)


def read_history(source: str) -> RunHistory:
    """Load the tables from a dashboard's address, or from a folder of downloaded tables.

    Raises `ConfigError` for an invalid table, `UnreachableError` if a dashboard does not answer.
    """
    return RunHistory(
        _read(source, "steps", PastStep),
        _read(source, "sessions", PastSession),
        _read(source, "contributions", PastReport),
    )


def _read(source: str, table: str, row: type[_Row]) -> list[_Row]:
    import pyarrow  # a large import that only this command needs
    from pyarrow import parquet

    name = f"{table}.parquet"
    try:
        if source.startswith(("https://", "http://")):
            content = fetch(f"{source.rstrip('/')}/api/v1/history/{name}", MOST_BYTES)
        else:
            content = (Path(source) / name).read_bytes()
        file = parquet.ParquetFile(io.BytesIO(content))
        if file.metadata.num_rows > MOST_ROWS:
            raise ConfigError(f"{name} of {source} has more than {MOST_ROWS:,} rows: give the history of one run.")
        return [row.model_validate(each) for each in file.read(columns=list(row.model_fields)).to_pylist()]
    except OSError as error:  # includes pyarrow's own errors
        reason = error.strerror or "it is no table in Parquet"
        raise ConfigError(f"{name} of {source} cannot be read: {reason}.") from error
    except pyarrow.ArrowException as error:
        raise ConfigError(f"{name} of {source} cannot be read: it is no table in Parquet.") from error
    except ValidationError as error:
        raise ConfigError(f"{name} of {source} is not that of a run's history: {first_mistake(error)}.") from error


def stretch_of(history: RunHistory, hours: float, until: int | None = None) -> PastStretch:
    """Return the steps of the last `hours` up to step `until` with the newest era and batch size.

    If all steps of the run are included, the stretch begins with the first session. Raises
    `ConfigError` if there are too few steps.
    """
    steps = sorted((each for each in history.steps if until is None or each.step <= until), key=lambda each: -each.step)
    kind = [(each.era, each.target_batch_size) for each in steps]
    alike = [step for step, _ in takewhile(lambda pair: pair[1] == kind[0], zip(steps, kind, strict=True))][::-1]
    end_at = max((each.completed_at for each in alike), default=0.0)
    first_at = min((each.started_at for each in history.sessions), default=end_at)
    begin_at = max(first_at if len(alike) == len(steps) else alike[0].completed_at, end_at - hours * HOUR_S)
    within = [each for each in alike if each.completed_at > begin_at]
    if len(within) < LEAST_STEPS:
        raise ConfigError(
            f"The history's last {hours:g} hours have {len(within)} steps since the batch changed or the run returned "
            f"to a checkpoint: a scenario needs {LEAST_STEPS}."
        )
    return PastStretch(within, begin_at, end_at, is_beginning=begin_at == first_at)


def past_scenario(config: RunConfig, history: RunHistory, stretch: PastStretch, values: ModelValues) -> PastScenario:
    """Build a scenario, and remarks on it, from part of a run's history; devices are named by number.

    Raises `ConfigError` if nobody trained.
    """
    numbers, era = {each.step for each in stretch.steps}, stretch.steps[0].era
    reports = [each for each in history.reports if each.step in numbers and each.era == era and not each.undone]
    by_device: dict[int, list[PastReport]] = {}
    for report in sorted(reports, key=lambda each: each.completed_at):
        by_device.setdefault(report.device, []).append(report)
    rounds = _whole_rounds(reports)
    averaged = values.averaged(config.averaging.powersgd_rank)
    bounds = _line_bounds(rounds, VALUE_BYTES[config.averaging.wire_format] * averaged)
    keeper = _line(bounds[None])
    devices, ready_s, absent = [], [], 0
    members: dict[str, str] = {}
    for number, sessions in _by_device(history.sessions).items():
        own = by_device.get(number, [])
        stays = _stays(sessions, own)
        visits = _visits(stays, stretch)
        if not own or not visits:
            absent += bool(visits)
            continue
        speeds = [speed for each in own if (speed := each.samples_per_second(delay=config.averaging.delay))]
        line = _line(bounds[number])
        devices.append(
            Rehearsed(
                name=f"device-{number}",
                member=members.setdefault(sessions[0].member, f"member-{len(members) + 1}"),
                line=line,
                is_reachable=any(each.averaged_bytes for each in own),
                samples_per_second=_rounded(median(speeds)) if speeds else None,
                visits=visits,
            )
        )
        download_s = ON_THE_LINE * STATE_BYTES * values.parameters / min(keeper.slower_rate, line.slower_rate)
        ready_s += [seconds - download_s for seconds in _ready_s(stays, own, stretch)]
    if not any(each.samples_per_second for each in devices):
        raise ConfigError("Nobody trained in these steps of the history: there is no swarm to rehearse.")
    if len(devices) > MOST_PEERS:
        raise ConfigError(f"The history has {len(devices):,} devices: a rehearsal has {MOST_PEERS:,} at most.")
    batch = stretch.steps[0].target_batch_size
    scenario = Scenario(
        duration_s=round(stretch.end_at - stretch.begin_at + TAKEN_S, 1),
        parameters=values.parameters,
        averaged=averaged,
        start_s=round(max(0.0, median(ready_s)), 1) if ready_s else Scenario.model_fields["start_s"].default,
        keeper=keeper,
        devices=tuple(devices),
        measured=MeasuredRun(
            averaging=config.averaging.model_copy(update={"target_batch_size": batch}),
            steps=len(stretch.steps),
            step_s=astuple(SeedQuantiles.of(_times(stretch.steps))),
            counted_share=round(_counted_share(reports), 4),
        ),
    )
    return PastScenario(scenario, tuple(_remarks(config, stretch, len(rounds), absent)))


def _remarks(config: RunConfig, stretch: PastStretch, rounds: int, absent: int) -> Iterator[str]:
    steps = stretch.steps
    yield f"Steps {steps[0].step} to {steps[-1].step} of the run `{config.run.name}`, from its public history."
    yield (
        f"Lines are estimates from below, by {rounds} rounds of which all devices have reported: the slowest on which "
        "rehearsed rounds are as quick as the quickest measured ones. Beside a slow line a fast one looks slow. Where "
        f"no round tells, a line has {UNKNOWN_MBIT:g} Mbit/s. Latencies are assumptions."
    )
    yield ("Devices that averaged nothing for others count as unreachable. Every departure counts as orderly.")
    if config.averaging.compression == "auto":
        yield (
            "The run chose its compression as it went on, which the history does not tell: lines are estimated as if "
            f"it had averaged in {config.averaging.wire_format}."
        )
    if not stretch.is_beginning:
        yield "These are not the run's first steps: devices that had joined before join anew in a rehearsal."
    if absent:
        yield f"Left out: {absent} of the devices that were connected, because they took no step with the others."
    if steps[0].target_batch_size != config.averaging.target_batch_size:
        yield (
            f"These steps had a batch of {steps[0].target_batch_size}, and the run file's first is "
            f"{config.averaging.target_batch_size}: to rehearse them as they were, set `averaging.target_batch_size`."
        )


def _times(steps: Iterable[PastStep]) -> list[float]:
    moments = sorted(each.completed_at for each in steps)
    return [round(later - sooner, 2) for sooner, later in pairwise(moments)]


def _counted_share(reports: Iterable[PastReport]) -> float:
    """Return the fraction of reported samples that count; those without a receipt count in full."""
    counted = judged = 0
    for each in reports:
        counted += each.samples if each.counted is None else min(each.counted, each.samples)
        judged += each.samples + each.lost_samples
    return counted / judged if judged else 0.0


def _by_device(sessions: Iterable[PastSession]) -> dict[int, list[PastSession]]:
    """Return the sessions of each device by the device's number, in order of their start."""
    found: dict[int, list[PastSession]] = {}
    for session in sorted(sessions, key=lambda each: (each.device, each.started_at)):
        found.setdefault(session.device, []).append(session)
    return found


def _stays(sessions: Iterable[PastSession], reports: Sequence[PastReport]) -> list[tuple[float, float]]:
    """Return a device's sessions, extended to their last step, with overlapping sessions merged."""
    stays: list[tuple[float, float]] = []
    for session in sessions:
        end_at = session.last_seen_at if session.ended_at is None else session.ended_at
        for report in reports:
            if session.started_at <= report.began_at <= end_at:
                end_at = max(end_at, report.completed_at)
        if stays and session.started_at <= stays[-1][1]:
            stays[-1] = stays[-1][0], max(stays[-1][1], end_at)
        else:
            stays.append((session.started_at, end_at))
    return stays


def _visits(stays: Iterable[tuple[float, float]], stretch: PastStretch) -> tuple[Visit, ...]:
    """Return the sessions within the stretch; a session that outlasts the stretch has no end."""
    visits = []
    for begin_at, end_at in stays:
        begin_s = round(max(0.0, begin_at - stretch.begin_at), 1)
        end_s = None if end_at >= stretch.end_at else round(end_at - stretch.begin_at, 1)
        if begin_at < stretch.end_at and (end_s is None or end_s > begin_s):
            visits.append(Visit(begin_s=begin_s, end_s=end_s))
    return tuple(visits)


def _ready_s(
    stays: Iterable[tuple[float, float]], reports: Sequence[PastReport], stretch: PastStretch
) -> Iterator[float]:
    """Yield the seconds from the start of each session in the stretch until training began."""
    for begin_at, end_at in stays:
        began = [each.began_at for each in reports if begin_at <= each.began_at <= end_at]
        if began and begin_at >= stretch.begin_at:
            yield min(began) - begin_at


def _whole_rounds(reports: Iterable[PastReport]) -> list[list[PastReport]]:
    """Return the reports of each step whose group had only the keeper and the reporting devices."""
    groups: dict[int, list[PastReport]] = {}
    for report in reports:
        groups.setdefault(report.step, []).append(report)
    return [
        group
        for group in groups.values()
        if all(each.group_size == len(group) + 1 and each.averaging_s > 0 for each in group)
    ]


def _line_bounds(rounds: Iterable[Sequence[PastReport]], own_bytes: float) -> defaultdict[int | None, list[float]]:
    """Return lower bounds on devices' bandwidth in bytes/s, one per round; key None: the keeper.

    Rehearsed rounds begin when all peers are present, so the group's shortest wait is taken as a
    round's duration. Only peers with samples send values. Each bound is for the busier direction.
    """
    bounds: defaultdict[int | None, list[float]] = defaultdict(list)
    for group in rounds:
        others = len(group)  # number of other peers, for each device and for the keeper
        senders = sum(each.samples > 0 for each in group)
        times = ON_THE_LINE * (1 + BOTH_WAYS) / min(each.averaging_s for each in group)
        left = 1.0  # remaining fraction of the values, finally the keeper's share
        for each in group:
            sends = each.samples > 0
            share = min(left, each.averaged_bytes / (own_bytes * max(1, senders - sends)))
            left -= share
            bounds[each.device].append(_busier_bytes(own_bytes, share, sends, senders - sends, others) * times)
        bounds[None].append(_busier_bytes(own_bytes, left, False, senders, others) * times)
    return bounds


def _busier_bytes(own_bytes: float, share: float, sends: bool, senders: int, others: int) -> float:
    """Return a round's bytes in a peer's busier direction; `senders`: other peers with samples."""
    up = (1 - share) * sends + others * share
    down = 1 - share + senders * share
    return own_bytes * max(up, down)


def _line(bounds: Sequence[float]) -> HomeLine:
    """Return a symmetric connection that satisfies nearly all lower bounds."""
    ordered = sorted(bounds)
    if not ordered:
        return HomeLine(up_mbit_per_second=UNKNOWN_MBIT, down_mbit_per_second=UNKNOWN_MBIT)
    rate = _rounded(ordered[math.ceil(LINE_LEVEL * len(ordered)) - 1] / BYTES_PER_S_OF_MBIT)
    return HomeLine(up_mbit_per_second=rate, down_mbit_per_second=rate)


def _rounded(value: float) -> float:
    """Round to three significant digits, but not to zero."""
    return max(1e-3, float(f"{value:.3g}"))
