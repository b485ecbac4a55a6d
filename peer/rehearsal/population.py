"""Random populations of volunteers, with connections, devices, sessions and reachability.

The published figures are in `tables`, each with its source or the reason for an assumption.
`manyhands rehearse --volunteers` draws one population per seed, reproducible on any machine.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from random import Random
from statistics import NormalDist
from typing import Annotated, Literal

import yaml
from pydantic import Field, model_validator

from auth.errors import ConfigError
from peer.config.base import Fraction, PositiveFloat, Section
from peer.config.run import RunConfig
from peer.rehearsal.scenario import HomeLine, Rehearsed, Scenario, Visit

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
PASSES = 3  # the forward pass, and twice its operations in the backward pass
_Levels = Annotated[tuple[PositiveFloat, ...], Field(min_length=2, strict=False)]


class Sourced(Section):
    """A figure or a table with its source."""

    kind: Literal["published", "assumption"]
    """Whether `source` is a publication or the reason for an assumption."""
    source: Annotated[str, Field(min_length=20)]
    """Publication with its year and address, or the reason."""


class SourcedFigure(Sourced):
    """A single number."""

    value: PositiveFloat
    """The number, in the unit of its key."""


class LineQuantiles(Section):
    """Quantiles of a region's bandwidths and round-trip times, at the levels of `LineTable`."""

    down_mbit_per_second: _Levels
    """Downlink."""
    up_mbit_per_second: _Levels
    """Uplink."""
    round_trip_ms: _Levels
    """Round-trip time to a nearby server."""


class LineTable(Sourced):
    """Connections by region, from the file `lines.yaml`."""

    levels: Annotated[tuple[Fraction, ...], Field(strict=False)]
    """Levels of the quantiles; draws beyond the outer levels are clamped to them."""
    regions: dict[str, LineQuantiles]
    """Quantiles by region."""
    correlation: SourcedFigure
    """Correlation between a connection's three figures, as normal scores."""

    @model_validator(mode="after")
    def _quantiles_rise(self) -> LineTable:
        for region, lines in self.regions.items():
            for name, row in lines:
                if len(row) != len(self.levels) or list(row) != sorted(row):
                    raise ValueError(f"`regions.{region}.{name}` must rise, with a value for each of `levels`")
        return self


class DeviceClass(Section):
    """Devices with similar training speeds."""

    share: SourcedFigure
    """Weight of the class relative to the others."""
    peak_tflops: SourcedFigure
    """Peak speed of a typical device in its training precision."""
    utilisation: SourcedFigure
    """Fraction of the peak that training reaches."""
    hosted_mbit_per_second: SourcedFigure | None = None
    """Bandwidth of a hosted device in both directions; other peers cannot connect to it."""


class DeviceTable(Section):
    """Training speeds by class of devices, from the file `devices.yaml`."""

    spread: SourcedFigure
    """Standard deviation of the logarithm of speeds in a class."""
    classes: dict[str, DeviceClass]
    """Classes by name."""


class SessionTable(Section):
    """Lengths and times of sessions, from the file `sessions.yaml`."""

    mean_hours: SourcedFigure
    """Mean length of a session."""
    longest_hours: SourcedFigure
    """Length of the longest session."""
    per_day: SourcedFigure
    """Number of sessions per volunteer and day."""
    daily_swing: SourcedFigure
    """Relative excess of the busiest hour's rate of new sessions over the mean rate."""
    first_arrivals: SourcedFigure
    """Fraction of the run, or of its first day, in which the first sessions begin."""
    dying_share: SourcedFigure
    """Share of the sessions that end without notice to other peers."""


class ReachabilityTable(Section):
    """Reachability of home connections, from the file `reachability.yaml`."""

    behind_nat: SourcedFigure
    """Share of the homes behind network address translation."""
    hole_punching: SourcedFigure
    """Share of these homes that are reachable by hole punching."""
    hole_punching_spread: SourcedFigure
    """Standard deviation of that share."""


class PopulationTables(Section):
    """All tables of the package."""

    lines: LineTable
    devices: DeviceTable
    sessions: SessionTable
    reachability: ReachabilityTable


@dataclass(frozen=True)
class Provenance:
    """A source with its entries in the tables."""

    entries: tuple[str, ...]  # names such as `devices.classes.rtx-3060.share`
    kind: str
    source: str


@cache
def population_tables() -> PopulationTables:
    """Load the tables from the package."""
    folder = files("peer.rehearsal") / "tables"
    texts = {name: (folder / f"{name}.yaml").read_text(encoding="utf-8") for name in PopulationTables.model_fields}
    return PopulationTables.model_validate({name: yaml.safe_load(text) for name, text in texts.items()})


def provenance() -> tuple[Provenance, ...]:
    """Return the sources of all figures, in the order of the tables."""
    entries: dict[tuple[str, str], list[str]] = {}
    for name, sourced in _sourced("", population_tables()):
        entries.setdefault((sourced.kind, sourced.source), []).append(name)
    return tuple(Provenance(tuple(names), kind, source) for (kind, source), names in entries.items())


def _sourced(name: str, part: object) -> Iterator[tuple[str, Sourced]]:
    if isinstance(part, Sourced):
        yield name, part
    if isinstance(part, dict | Section):
        for key, value in part.items() if isinstance(part, dict) else part:
            yield from _sourced(f"{name}.{key}".lstrip("."), value)


def training_flops(config: RunConfig) -> float:
    """Return the floating-point operations per training sample, computed from the layer sizes.

    ALBERT's layers share weights, not operations. Attention is always counted in full.
    """
    model, length = config.model, config.data.sequence_length
    layer = 4 * model.hidden_size**2 + 2 * model.hidden_size * model.intermediate_size + 2 * length * model.hidden_size
    width = model.embedding_size or model.hidden_size
    head = width * (model.hidden_size + config.tokenizer.vocab_size)
    predicted = 1.0 if config.objective.name == "clm" else config.objective.mask_probability
    products = model.num_hidden_layers * layer + predicted * head  # multiplications per token
    return PASSES * 2.0 * products * length


def draw_scenario(
    config: RunConfig, *, parameters: int, volunteers: int, hours: float, seed: int, region: str = "world"
) -> Scenario:
    """Draw a swarm of `volunteers`, each with one device, for a rehearsal of `hours`.

    `parameters`: number of averaged values. Raises `ConfigError` for an unknown region.
    """
    tables, rng = population_tables(), Random(seed)
    if region not in tables.lines.regions:
        known = ", ".join(tables.lines.regions)
        raise ConfigError(f"The region ({region}) has no table of lines: choose one of {known}.")
    draw = _Draw(tables, rng, region, hours * HOUR_S)
    punching = tables.reachability.hole_punching.value + rng.gauss(0, tables.reachability.hole_punching_spread.value)
    flops = training_flops(config.at_step(0))
    devices = tuple(draw.device(number, flops, punching) for number in range(1, volunteers + 1))
    return Scenario(duration_s=hours * HOUR_S, parameters=parameters, devices=devices)


@dataclass(frozen=True)
class _Draw:
    """The random draws of one population."""

    tables: PopulationTables
    rng: Random
    region: str
    duration_s: float

    def device(self, number: int, flops: float, punching: float) -> Rehearsed:
        """Draw one volunteer's device; `punching` is the success rate of hole punching."""
        devices, reachability = self.tables.devices, self.tables.reachability
        weights = [each.share.value for each in devices.classes.values()]
        name, its = self.rng.choices(list(devices.classes.items()), weights)[0]
        speed = its.peak_tflops.value * 1e12 * its.utilisation.value / flops
        is_reachable = self.rng.random() >= reachability.behind_nat.value or self.rng.random() < punching
        line, hosted = self.line(), its.hosted_mbit_per_second
        if hosted is not None:
            up_and_down = {"up_mbit_per_second": hosted.value, "down_mbit_per_second": hosted.value}
            line, is_reachable = line.model_copy(update=up_and_down), False
        return Rehearsed(
            name=f"{name}-{number}",
            line=line,
            is_reachable=is_reachable,
            samples_per_second=speed * self.rng.lognormvariate(0, devices.spread.value),
            visits=self.visits(),
        )

    def line(self) -> HomeLine:
        """Draw a connection with bandwidths and latency of correlated quality.

        Each end of a packet's path contributes half of its drawn round-trip time.
        """
        quantiles, home = self.tables.lines.regions[self.region], self.rng.gauss(0, 1)
        return HomeLine(
            down_mbit_per_second=self._quantile(quantiles.down_mbit_per_second, home),
            up_mbit_per_second=self._quantile(quantiles.up_mbit_per_second, home),
            latency_s=self._quantile(quantiles.round_trip_ms, -home) / 1000,
        )

    def _quantile(self, row: tuple[float, ...], score: float) -> float:
        """Draw a value, log-interpolated between quantiles and correlated with a normal `score`."""
        levels, correlation = self.tables.lines.levels, self.tables.lines.correlation.value
        own = correlation * score + math.sqrt(1 - correlation**2) * self.rng.gauss(0, 1)
        level = min(max(NormalDist().cdf(own), levels[0]), levels[-1])
        left = min(bisect_right(levels, level), len(levels) - 1) - 1
        part = (level - levels[left]) / (levels[left + 1] - levels[left])
        return row[left] * math.pow(row[left + 1] / row[left], part)

    def visits(self) -> tuple[Visit, ...]:
        """Draw the sessions of one volunteer; the first begins soon after the start of the run."""
        visits: list[Visit] = []
        begin_s = self.rng.uniform(0, self.tables.sessions.first_arrivals.value * min(self.duration_s, DAY_S))
        while begin_s < self.duration_s:
            visits.append(self._visit(begin_s))
            begin_s = self._next_begin(visits[-1].end_s or self.duration_s)
        return tuple(visits)

    def _visit(self, begin_s: float) -> Visit:
        sessions = self.tables.sessions
        length_s = math.inf
        while length_s > sessions.longest_hours.value * HOUR_S:
            length_s = self.rng.expovariate(1 / (sessions.mean_hours.value * HOUR_S))
        ends: Literal["leaves", "dies"] = "dies" if self.rng.random() < sessions.dying_share.value else "leaves"
        end_s = begin_s + length_s
        return Visit(begin_s=begin_s, end_s=end_s, ends=ends) if end_s < self.duration_s else Visit(begin_s=begin_s)

    def _next_begin(self, after_s: float) -> float:
        """Draw the start of the next session, with a rate that depends on the time of day."""
        sessions = self.tables.sessions
        swing, pause_s = sessions.daily_swing.value, DAY_S / sessions.per_day.value - sessions.mean_hours.value * HOUR_S
        begin_s = after_s
        while True:  # thinning: draw candidates at the highest rate, keep each with its hour's relative rate
            begin_s += self.rng.expovariate((1 + swing) / pause_s)
            if self.rng.random() * (1 + swing) < 1 + swing * math.cos(2 * math.pi * begin_s / DAY_S):
                return begin_s
