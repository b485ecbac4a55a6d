"""Advice on a run file: other settings, rehearsed for an hour with the same volunteers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from pydantic import ValidationError

from peer.averaging.ways import AveragingWay, way_of, ways_of
from peer.config.run import RunConfig
from peer.config.training import Averaging
from peer.rehearsal.forecast.report import RehearsalReport, rehearse_seeds, samples_per_hour, shown
from peer.rehearsal.population import HOUR_S
from peer.rehearsal.scenario import Scenario

LEAST_GAIN = 1.05  # minimum gain, as a factor, to recommend a change
LOCAL = "local steps"
MUCH_BETTER = 1.1  # gain over the best so far that is required of a change that alters more
LARGER_BATCHES = (2, 4)
LOCAL_STEPS = 8
LONGER_TIMEOUT = 3
SHORTENED_S = HOUR_S


@dataclass(frozen=True)
class TriedChange:
    """A change of some keys of the run file."""

    dial: str
    keys: Mapping[str, Any]  # changed keys of the section `averaging`
    reason: str  # reason why the change may help
    training: str = ""  # effect of the change on the training itself; empty: none
    title: str = ""  # short title for a table

    def applied(self, config: RunConfig) -> RunConfig | None:
        """Return the run with these values; None if the run file's rules forbid them."""
        content = config.model_dump()
        content["averaging"] |= self.keys
        try:
            return RunConfig.model_validate(content)
        except ValidationError:
            return None

    def written(self) -> str:
        """Return the keys in the syntax of a run file's section `averaging`."""
        values = {key: str(value).lower() if isinstance(value, bool) else value for key, value in self.keys.items()}
        return ", ".join(f"{key}: {value}" for key, value in values.items())


@dataclass(frozen=True)
class TriedOutcome:
    """A tried change, with the figures before and after the change."""

    change: TriedChange
    before: RehearsalReport
    after: RehearsalReport

    @property
    def gains(self) -> tuple[float, ...]:
        """For each seed, the ratio of samples in steps with the change to samples without it."""
        pairs = zip(self.before.runs, self.after.runs, strict=True)
        return tuple(samples_per_hour(after) / max(1.0, samples_per_hour(before)) for before, after in pairs)

    @property
    def gain(self) -> float:
        """The median gain over the seeds."""
        return median(self.gains)

    @property
    def is_better(self) -> bool:
        """Whether all seeds gain, and the median gain reaches `LEAST_GAIN`, to rule out chance."""
        return min(self.gains) > 1 and self.gain >= LEAST_GAIN

    def facts(self) -> dict[str, Any]:
        """Return the figures as JSON."""
        return {
            "change": self.change.written(),
            "samples_per_hour": {name: part.figures()["samples_per_hour"].to_json() for name, part in self._parts()},
            "step_s": {name: part.figures()["step_s"].to_json() for name, part in self._parts()},
            "gain": round(self.gain, 3),
            "is_better": self.is_better,
            "reason": self.change.reason,
            "training": self.change.training,
        }

    def _parts(self) -> tuple[tuple[str, RehearsalReport], ...]:
        return ("before", self.before), ("after", self.after)

    def row(self) -> tuple[str, str, str, str]:
        """Return a table row: change, samples, step time, verdict."""
        figures = self.after.figures()
        gained = f"x {self.gain:.2f}" if self.gain < 100 else "x 100 or more"
        verdict = gained if self.is_better else f"{gained}, no clear gain"
        samples, step = figures["samples_per_hour"].middle, figures["step_s"].middle
        return self.change.title or self.change.written(), shown(samples, ""), shown(step, "s"), verdict


@dataclass(frozen=True)
class RehearsalAdvice:
    """All tried changes, and the recommended one."""

    before: RehearsalReport
    tried: tuple[TriedOutcome, ...]
    recommended: TriedOutcome | None


def changes_to_try(config: RunConfig) -> list[TriedChange]:
    """Return the changes that the run file's rules allow."""
    averaging = config.averaging
    batch, larger = averaging.target_batch_size, "a step averages more samples: adapt the learning rate"
    late = (
        "gradients are one step old: a large learning rate may have to be reduced"
        if averaging.local_steps == 1
        else "averages come one round late, and each peer goes on from its own guess of them"
    )
    fewer_rounds = "fewer rounds for the same samples, so lines are busy for less of the time"
    changes = [
        TriedChange(
            "timeout",
            {"averaging_timeout_s": LONGER_TIMEOUT * averaging.averaging_timeout_s},
            "slow lines need longer than a round may take",
        ),
        *(
            TriedChange(
                "compression",
                {key: value for key, value in way.keys.items() if value},  # a rank of 0 would change nothing
                "a round sends fewer bytes",
            )
            for way in _smaller_ways(averaging)
        ),
        TriedChange(
            "delay",
            {"delay": True},
            "peers train on while gradients are averaged",
            late,
        ),
        *(
            TriedChange("batch", {"target_batch_size": factor * batch}, fewer_rounds, larger)
            for factor in LARGER_BATCHES
        ),
        TriedChange(
            LOCAL,
            {"target_batch_size": LOCAL_STEPS * batch, "local_steps": LOCAL_STEPS * averaging.local_steps},
            fewer_rounds,
            "peers train alone between averagings, and the loss falls less for each sample",
        ),
    ]
    current = averaging.model_dump()
    return [
        change
        for change in changes
        if any(current[key] != value for key, value in change.keys.items()) and change.applied(config) is not None
    ]


def _smaller_ways(averaging: Averaging) -> tuple[AveragingWay, ...]:
    """Return the measured modes with fewer bytes than the run's mode; none for `auto`."""
    ways, own = ways_of(averaging), way_of(averaging)
    if averaging.compression == "none" and not averaging.powersgd_rank:
        return ways
    return ways[ways.index(own) + 1 :] if own in ways and averaging.compression != "auto" else ()


def advise(
    config: RunConfig,
    scenario_of: Callable[[RunConfig, int], Scenario],
    seeds: int,
    progress: Callable[[str], None] = lambda _: None,
) -> RehearsalAdvice:
    """Try single changes, then combinations of the best changes, with the same volunteers.

    Changes without effect on the training are tried first. Changes that alter the training are
    then added to the best of the former, and must gain much more.
    """

    def shortened(config: RunConfig, seed: int) -> Scenario:
        scenario = scenario_of(config, seed)
        return scenario.model_copy(update={"duration_s": min(scenario.duration_s, SHORTENED_S)})

    def tried(change: TriedChange) -> TriedOutcome:
        changed = change.applied(config)
        assert changed is not None
        report = rehearse_seeds(changed, shortened, seeds, lambda text: progress(f"{change.written()}, {text}"))
        return TriedOutcome(change, before, report)

    def together(changes: list[TriedChange], title: str = "") -> TriedOutcome:
        return tried(_together(changes, title))

    before = rehearse_seeds(config, shortened, seeds, lambda text: progress(f"as it is, {text}"))
    changes = changes_to_try(config)
    outcomes = [tried(change) for change in changes if not change.training]
    best = [outcome.change for outcome in _best_of_each_dial(outcomes, 1.0)]
    if len(best) > 1:
        outcomes.append(together(best, "these together"))
    base = max((each for each in outcomes if each.is_better), key=lambda each: each.gain, default=None)
    kept = [] if base is None else [base.change]
    altering = [
        together([*kept, change], f"... and {change.written()}" if kept else "")
        for change in changes
        if change.training
    ]
    recommended = base
    least_gain = base.gain if base else 1.0
    common = [outcome for outcome in altering if outcome.change.dial != LOCAL]
    best = [outcome.change for outcome in _best_of_each_dial(common, least_gain)]
    if len(best) > 1:
        altering.append(together(best, "... and these together" if kept else "these together"))
    common = [outcome for outcome in altering if outcome.change.dial != LOCAL]
    for some in common, [outcome for outcome in altering if outcome.change.dial == LOCAL]:
        found = max((each for each in some if each.is_better), key=lambda each: each.gain, default=None)
        if found is not None and (recommended is None or found.gain > MUCH_BETTER * recommended.gain):
            recommended = found
    return RehearsalAdvice(before, (*outcomes, *altering), recommended)


def _best_of_each_dial(outcomes: list[TriedOutcome], least_gain: float) -> list[TriedOutcome]:
    """Return the best change of each setting; a later, larger change must gain much more."""
    best: dict[str, TriedOutcome] = {}
    for outcome in outcomes:
        dial = outcome.change.dial
        floor = MUCH_BETTER * best[dial].gain if dial in best else least_gain
        if outcome.is_better and outcome.gain > floor:
            best[dial] = outcome
    return [*best.values()]


def _together(changes: list[TriedChange], title: str) -> TriedChange:
    """Combine changes into one change, with the `dial` of the last change."""
    keys = {key: value for change in changes for key, value in change.keys.items()}
    reasons, training = (
        "; ".join(dict.fromkeys(part for text in texts for part in text.split("; ") if part))
        for texts in ([change.reason for change in changes], [change.training for change in changes])
    )
    return TriedChange(changes[-1].dial, keys, reasons, training, title)
