"""Figures of a run's rehearsals, with their spread over the seeds, for `manyhands rehearse`.

Each seed draws different volunteers, connections and sessions. The spread of a figure over the
seeds shows the influence of chance.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import repeat
from statistics import median
from typing import Any

from peer.averaging.choice import AveragingChoice
from peer.config.run import RunConfig
from peer.network.traffic import ON_THE_LINE, passes_in_time
from peer.reduction.sizes import values_sent
from peer.rehearsal.forecast.automatic_way import with_chosen_way
from peer.rehearsal.population import HOUR_S, draw_scenario
from peer.rehearsal.scenario import KEEPER, Scenario
from peer.rehearsal.swarm import RehearsedRun, rehearse

LEVELS = (0.05, 0.5, 0.95)
MEGABYTE = 1e6
LONG_S = 20 * HOUR_S  # devices' seconds in a rehearsal from which on several run at once, each in its process
MANY_FAILURES = 0.2  # fraction of failed rounds above which the report explains them
CAUSES = {
    "late": "the step was taken before",
    "averaging failed": "their round failed",
    "left": "their peer left or died",
    "slow line": "their line was too slow",
    "undone": "the run went back",
}


@dataclass(frozen=True)
class SeedQuantiles:
    """A figure's 5, 50 and 95 % quantiles, usually over seeds; infinite for an event that never happens."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> SeedQuantiles:
        """Compute quantiles without interpolation; with few seeds, p5 and p95 are the extremes."""
        ordered = sorted(values)
        return cls(*(ordered[max(0, math.ceil(level * len(ordered)) - 1)] for level in LEVELS))

    def to_json(self) -> dict[str, float | None]:
        """Return the three values as JSON, with None for an infinite value."""
        ends = {"p5": self.low, "p50": self.middle, "p95": self.high}
        return {name: round(value, 6) if math.isfinite(value) else None for name, value in ends.items()}


@dataclass(frozen=True)
class SwarmMeasure:
    """A figure of one rehearsal."""

    key: str
    title: str
    unit: str  # "s", "h", "%", "MB", "peers", or "" for a plain number
    of: Callable[[RehearsedRun, RunConfig], float]


@dataclass(frozen=True)
class RehearsalReport:
    """The rehearsals of one run for all seeds."""

    config: RunConfig  # the run as rehearsed
    scenarios: tuple[Scenario, ...]
    runs: tuple[RehearsedRun, ...]
    choice: AveragingChoice | None = None  # mode chosen for a run with `averaging.compression: auto`

    @property
    def measures(self) -> tuple[SwarmMeasure, ...]:
        """The figures to report; causes of loss that never occurred are left out."""
        causes = {cause for run in self.runs for each in run.devices for cause in each.work.lost}
        losses = (
            SwarmMeasure(f"lost_{cause.replace(' ', '_')}", f"... lost: {CAUSES.get(cause, cause)}", "%", _lost(cause))
            for cause in sorted(causes)
        )
        return (*STEPS, *SAMPLES, *losses, *TRAFFIC)

    def quantiles(self, measure: SwarmMeasure) -> SeedQuantiles:
        """Return a figure's spread over the seeds."""
        return SeedQuantiles.of(measure.of(run, self.config) for run in self.runs)

    def figures(self) -> dict[str, SeedQuantiles]:
        """Return all figures by key."""
        return {measure.key: self.quantiles(measure) for measure in self.measures}

    def to_json(self) -> dict[str, Any]:
        """Return the figures and remarks as JSON, with the number of seeds, hours and devices."""
        return {
            "seeds": len(self.runs),
            "hours": self.runs[0].duration_s / HOUR_S,
            "devices": len(self.scenarios[0].devices),
            "figures": {key: figure.to_json() for key, figure in self.figures().items()},
            "remarks": list(self.remarks()),
        }

    def remarks(self) -> tuple[str, ...]:
        """Return remarks for the operator as sentences."""
        found = []
        if self.choice is not None:
            found.append(f"`averaging.compression` (auto) was rehearsed as {self.choice.why}")
        stalled = sum(_stalls(run) for run in self.runs)
        if stalled:
            found.append(
                f"In {stalled} of {len(self.runs)} rehearsals the swarm took no step in the second half of the time."
            )
        devices = [each for each in self.scenarios[0].devices if each.samples_per_second]
        slow = [each.line.slower_rate for each in devices if not self._passes_in_time(each.line.slower_rate)]
        if slow:
            own_s = gradient_seconds(self.config, self.scenarios[0], min(slow))
            found.append(
                f"{len(slow)} of {len(devices)} volunteers stand by: their lines need up to {own_s:.0f} s for their "
                "gradients, too long for rounds of at most `averaging.averaging_timeout_s` "
                f"({self.config.averaging.averaging_timeout_s:g} s). Raise it, or {self._help_for_slow_lines()}."
            )
        if self.quantiles(FAILED_ROUNDS).middle > MANY_FAILURES:
            found.append(f"Many rounds of averaging fail. {self._why_rounds_fail()}")
        missing = self.quantiles(MISSING_AUXILIARIES).middle
        if 0 < missing < math.inf:
            found.append(
                f"{missing:.0f} auxiliary peer{'' if missing == 1 else 's'} with 100 Mbit/s would shorten the rounds: "
                "`manyhands assist`."
            )
        return tuple(found)

    def _help_for_slow_lines(self) -> str:
        if self.choice is None:
            return "send fewer bytes (`averaging.compression: auto`)"
        return "`averaging.target_batch_size`: of a longer step a slow line costs the others less"

    def _why_rounds_fail(self) -> str:
        devices = self.scenarios[0].devices
        reachable = sum(each.is_reachable for each in devices)
        return (
            f"Each line is fast enough for its own gradients, but those of {len(devices)} devices are reduced by "
            f"{reachable} that others can connect to, and the keeper: add auxiliary peers (`manyhands assist`), or "
            f"raise `averaging.averaging_timeout_s` ({self.config.averaging.averaging_timeout_s:g} s)."
        )

    def _passes_in_time(self, rate: float) -> bool:
        averaging = self.config.averaging
        return passes_in_time(self.scenarios[0].gradient_bytes(averaging), rate, averaging.averaging_timeout_s)


def gradient_seconds(config: RunConfig, scenario: Scenario, rate: float) -> float:
    """Return the seconds that a connection of this rate needs for one peer's gradients."""
    return ON_THE_LINE * scenario.gradient_bytes(config.averaging) / rate


@dataclass(frozen=True)
class ModelValues:
    """The sizes of a run's model: its parameters, and the shapes of the averaged tensors."""

    parameters: int
    shapes: tuple[tuple[int, ...], ...]

    def averaged(self, powersgd_rank: int) -> int:
        """Return the number of values that a round averages."""
        return values_sent(self.shapes, powersgd_rank)

    @classmethod
    def of(cls, config: RunConfig) -> ModelValues:
        """Build the model without weights and return its sizes. Raises `ConfigError` for invalid sizes."""
        import torch  # a large import, unnecessary for a scenario file with sizes

        from peer.data.tokenization.special_tokens import SpecialIds
        from peer.models.build import build_model

        with torch.device("meta"):
            model = build_model(config, config.tokenizer.vocab_size, SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4))
        shapes = tuple(tuple(parameter.shape) for parameter in model.parameters() if parameter.requires_grad)
        return cls(sum(parameter.numel() for parameter in model.parameters()), shapes)


@dataclass(frozen=True)
class DrawnVolunteers:
    """Volunteers drawn from published figures, different for each seed."""

    values: ModelValues
    volunteers: int
    hours: float
    region: str

    def scenario(self, config: RunConfig, seed: int) -> Scenario:
        """Draw the swarm of one seed. Raises `ConfigError` for an unknown region."""
        drawn = draw_scenario(
            config,
            parameters=self.values.parameters,
            volunteers=self.volunteers,
            hours=self.hours,
            seed=seed,
            region=self.region,
        )
        return drawn.model_copy(update={"averaged": self.values.averaged(config.averaging.powersgd_rank)})


def rehearse_seeds(
    config: RunConfig,
    scenario_of: Callable[[RunConfig, int], Scenario],
    seeds: int,
    progress: Callable[[str], None] = lambda _: None,
) -> RehearsalReport:
    """Rehearse a run once per seed, starting at 1; `progress` is told the number of the next result.

    Long rehearsals run beside each other, in spawned processes that import the caller's main module.
    A run with `averaging.compression: auto` is rehearsed in the mode chosen for the first swarm.
    """
    config, choice = with_chosen_way(config, scenario_of)
    numbers = range(1, seeds + 1)
    scenarios, runs = [scenario_of(config, seed) for seed in numbers], list[RehearsedRun]()
    is_long = len(scenarios[0].devices) * scenarios[0].duration_s >= LONG_S
    progress(f"swarm 1 of {seeds}")
    with _processes(seeds) if is_long and seeds > 1 else nullcontext(map) as each:
        for run in each(rehearse, repeat(config), scenarios, numbers):
            runs.append(run)
            progress(f"swarm {min(len(runs) + 1, seeds)} of {seeds}")
    return RehearsalReport(config, tuple(scenarios), tuple(runs), choice)


@contextmanager
def _processes(seeds: int) -> Iterator[Callable[..., Iterable[RehearsedRun]]]:
    """Yield a `map` in spawned processes, which end with the context."""
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(min(seeds, os.cpu_count() or 1), multiprocessing.get_context("spawn"), _begin_process)
    try:
        yield pool.map
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
            process.join()


def _begin_process() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first ends the others
    if "fork" in multiprocessing.get_all_start_methods():  # whose locks leave nothing behind when a process is ended
        multiprocessing.set_start_method("fork", force=True)


def _hours(run: RehearsedRun) -> float:
    return run.duration_s / HOUR_S


def samples_per_hour(run: RehearsedRun) -> float:
    """Return the samples per hour that ended in steps."""
    return sum(each.work.counted for each in run.devices) / _hours(run)


def _present_hours(run: RehearsedRun) -> float:
    return sum(each.work.present_s for each in run.devices) / HOUR_S


def _middle_step(of: Callable[[Any], float]) -> Callable[[RehearsedRun, RunConfig], float]:
    """Return a function that computes the median of `of` over a rehearsal's steps (0 if none)."""
    return lambda run, _: median(map(of, run.steps)) if run.steps else 0.0


def _step_s(run: RehearsedRun, _: RunConfig) -> float:
    return math.inf if run.step_s is None else run.step_s


def _missing_auxiliaries(run: RehearsedRun, _: RunConfig) -> float:
    """Return the median number of missing auxiliary peers over the steps; infinite if it is unknown."""
    known = [step.missing_auxiliaries for step in run.steps if step.missing_auxiliaries is not None]
    return median(known) if known else math.inf


def _failed_rounds(run: RehearsedRun, _: RunConfig) -> float:
    """Return the fraction of the keeper's rounds that failed."""
    failed = sum((each.who, each.what) == (KEEPER, "round failed") for each in run.trace)
    return failed / (failed + len(run.steps)) if failed else 0.0


def _lost(cause: str) -> Callable[[RehearsedRun, RunConfig], float]:
    def share(run: RehearsedRun, _: RunConfig) -> float:
        lost = sum(each.work.lost[cause] for each in run.devices)
        judged = sum(each.work.counted + each.work.lost.total() for each in run.devices)
        return lost / judged if judged else 0.0

    return share


def _each_present_hour(of: Callable[[Any], float]) -> Callable[[RehearsedRun, RunConfig], float]:
    return lambda run, _: sum(map(of, run.devices)) / MEGABYTE / _present_hours(run) if _present_hours(run) else 0.0


def _contributing_nothing(run: RehearsedRun, _: RunConfig) -> float:
    return float(sum(each.work.counted == 0 for each in run.devices if each.device.samples_per_second))


def _stalls(run: RehearsedRun) -> bool:
    return not any(step.at_s > run.duration_s / 2 for step in run.steps)


FAILED_ROUNDS = SwarmMeasure("failed_rounds", "Rounds of averaging that fail", "%", _failed_rounds)
MISSING_AUXILIARIES = SwarmMeasure("missing_auxiliaries", "Auxiliary peers missing", "peers", _missing_auxiliaries)
STEPS = (
    SwarmMeasure("step_s", "Time from one step to the next", "s", _step_s),
    SwarmMeasure(
        "averaging_s", "... of which averaging takes", "s", _middle_step(lambda step: step.waited_s + step.round_s)
    ),
    SwarmMeasure("steps", "Steps in this time", "", lambda run, _: float(len(run.steps))),
    SwarmMeasure("steps_per_hour", "Steps in an hour", "", lambda run, _: len(run.steps) / _hours(run)),
    SwarmMeasure(
        "end_hours",
        "Time to the schedule's end, at this pace",
        "h",
        lambda run, config: config.schedule.total_steps / len(run.steps) * _hours(run) if run.steps else math.inf,
    ),
    SwarmMeasure("peers_in_step", "Peers in a step, the keeper included", "", _middle_step(lambda step: step.peers)),
    SwarmMeasure(
        "batch_averaged",
        "Samples in a step, of the target batch",
        "%",
        lambda run, config: _middle_step(lambda step: step.samples)(run, config) / config.averaging.target_batch_size,
    ),
    FAILED_ROUNDS,
)
SAMPLES = (
    SwarmMeasure("samples_per_hour", "Samples that end in steps, in an hour", "", lambda run, _: samples_per_hour(run)),
    SwarmMeasure("utilisation", "Volunteers' time that ends in steps", "%", lambda run, _: run.utilisation),
    SwarmMeasure("contributing_nothing", "Volunteers who contribute nothing", "", _contributing_nothing),
    SwarmMeasure("counted_share", "Computed samples that end in steps", "%", lambda run, _: run.counted_share),
)
TRAFFIC = (
    SwarmMeasure("sent_mb_per_hour", "A volunteer sends in an hour", "MB", _each_present_hour(lambda d: d.sent_bytes)),
    SwarmMeasure(
        "received_mb_per_hour",
        "A volunteer receives in an hour",
        "MB",
        _each_present_hour(lambda each: each.received_bytes),
    ),
    SwarmMeasure(
        "keeper_mb_per_hour",
        "The coordinator's machine sends in an hour",
        "MB",
        lambda run, _: run.keeper.sent_bytes / MEGABYTE / _hours(run),
    ),
    MISSING_AUXILIARIES,
)


def shown(value: float, unit: str) -> str:
    """Format a figure for display."""
    if math.isinf(value):
        return "unknown" if unit == "peers" else "never"
    match unit:
        case "%":
            return f"{100 * value:.1f} %" if value < 0.1 else f"{100 * value:.0f} %"
        case "s":
            return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
        case "h":
            return f"{value:.1f} hours" if value < 48 else f"{value / 24:,.0f} days"
        case "MB":
            return f"{value:,.0f} MB" if value < 10_000 else f"{value / 1000:,.0f} GB"
        case _:
            return f"{value:,.0f}" if value == round(value) or value >= 100 else f"{value:,.1f}"


def rows(report: RehearsalReport) -> list[Sequence[str]]:
    """Return a table row per figure: title, and values at 5, 50 and 95 % of the seeds."""
    made: list[Sequence[str]] = []
    for measure in report.measures:
        spread = report.quantiles(measure)
        made.append(
            (measure.title, *(shown(value, measure.unit) for value in (spread.low, spread.middle, spread.high)))
        )
    return made


def classes(report: RehearsalReport) -> Mapping[str, tuple[int, int]]:
    """Return each class's (devices, samples in steps); a class is a name without its number."""
    found: dict[str, tuple[int, int]] = {}
    for run in report.runs:
        for each in run.devices:
            name = each.device.name.rpartition("-")[0] or each.device.name
            devices, samples = found.get(name, (0, 0))
            found[name] = devices + 1, samples + each.work.counted
    return found
