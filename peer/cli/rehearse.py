"""`manyhands rehearse` and `manyhands plan`: simulate a training event before it takes place."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from auth.errors import ConfigError
from peer.cli.run_file import Exact, Out, refuse_existing, write_run_file
from peer.config.run import RunConfig
from peer.rehearsal.forecast.advice import RehearsalAdvice, advise
from peer.rehearsal.forecast.comparison import PastComparison
from peer.rehearsal.forecast.picture import draw, require_matplotlib
from peer.rehearsal.forecast.planning import plan_run
from peer.rehearsal.forecast.report import DrawnVolunteers, ModelValues, RehearsalReport, rehearse_seeds, rows, shown
from peer.rehearsal.scenario import MOST_PEERS, Scenario, load_scenario
from peer.runtime.console import say, say_json, say_table

VOLUNTEERS, HOURS, SEEDS = 40, 2.0, 3  # defaults; a rehearsal with these takes less than half a minute
MOST_SEEDS, MOST_HOURS = 1000, 31 * 24
ScenarioOf = Callable[[RunConfig, int], Scenario]  # (config, seed) -> the swarm and its events
app = typer.Typer(pretty_exceptions_enable=False)


class PlannedModel(str, Enum):
    """The model sizes that `manyhands plan` supports."""

    SMALL = "small"
    BASE = "base"


@app.command("rehearse", epilog="Example: manyhands rehearse run.yaml --volunteers 40 --hours 2 --picture event.png")
def rehearse_run(
    run_file: Annotated[Path, typer.Argument(metavar="RUN.yaml", help="The run file.")],
    volunteers: Annotated[
        int | None, typer.Option(help=f"Number of volunteers, drawn from published figures; default: {VOLUNTEERS}.")
    ] = None,
    scenario: Annotated[
        Path | None, typer.Option(help="Scenario file to use instead of drawn volunteers: who takes part, and when.")
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(help=f"Length in virtual hours; default: {HOURS:g}. A scenario has a length of its own."),
    ] = None,
    region: Annotated[
        str | None, typer.Option(help="Region of the volunteers' connections, such as south-asia; default: world.")
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="Number of swarms, each with other volunteers or, for a scenario, other random events.")
    ] = SEEDS,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    picture: Annotated[Path | None, typer.Option(help="PNG file for a picture of the event.")] = None,
    with_advice: Annotated[
        bool, typer.Option("--advise", help="Also try other settings, and recommend the best; takes some minutes.")
    ] = False,
) -> None:
    """Rehearse a run in virtual time, before anybody has joined: steps, samples and traffic."""
    _check("--seeds", seeds, MOST_SEEDS)
    if picture is not None:
        require_matplotlib()
    config = RunConfig.from_yaml(run_file)
    scenario_of, who = _chosen_swarm(config, volunteers, scenario, hours, region)
    with Console(stderr=True).status("Rehearsing") as status:
        report = rehearse_seeds(config, scenario_of, seeds, lambda text: status.update(f"Rehearsing {text}"))
        advice = None
        if with_advice:
            advice = advise(config, scenario_of, seeds, lambda text: status.update(f"Trying {text}"))
        if picture is not None:
            status.update("Drawing")
            draw(report, picture, f"{config.run.name}: {who}, rehearsed")
    measured = report.scenarios[0].measured
    comparison = None if measured is None else PastComparison(measured, report)
    if as_json:
        past = {"comparison": comparison.to_json()} if comparison else {}
        say_json(report.to_json() | past | ({"advice": _advice_content(advice)} if advice else {}))
        return
    _say_report(config, report, who)
    if comparison is not None:
        _say_comparison(comparison)
    if advice is not None:
        _say_advice(advice)
    if picture is not None:
        say(f"Picture: {picture}")


@app.command("plan", epilog="Example: manyhands plan --language bn --volunteers 40 --hours 4 --model small -o run.yaml")
def plan_event(
    language: Annotated[str, typer.Option(help="Language of the text, such as bn or zh-Hant.")],
    volunteers: Annotated[int, typer.Option(help="Expected number of volunteers.")] = VOLUNTEERS,
    hours: Annotated[float, typer.Option(help="Length of the event, in hours.")] = 4.0,
    model: Annotated[PlannedModel, typer.Option(help="Size of the ALBERT model.")] = PlannedModel.SMALL,
    region: Annotated[str, typer.Option(help="Region of the volunteers' connections, such as south-asia.")] = "world",
    seeds: Annotated[int, typer.Option(help="Number of swarms to rehearse for the promised figures.")] = SEEDS,
    exact: Exact = False,
    out: Out = None,
) -> None:
    """Write a run file for an event: rehearsals choose batch, averaging and schedule, each with its reason."""
    _check("--seeds", seeds, MOST_SEEDS)
    _check("--volunteers", volunteers, MOST_PEERS)
    _check("--hours", hours, MOST_HOURS)
    refuse_existing(out)
    with Console(stderr=True).status("Planning") as status:
        text = plan_run(
            language,
            volunteers,
            hours,
            model.value,
            region,
            seeds,
            lambda said: status.update(f"Rehearsing {said}"),
            is_exact=exact,
        )
    write_run_file(text, out)


def _chosen_swarm(
    config: RunConfig, volunteers: int | None, scenario: Path | None, hours: float | None, region: str | None
) -> tuple[ScenarioOf, str]:
    """Return (function that makes the swarm, description of the swarm). Raises `ConfigError`."""
    if scenario is None:
        people, length = VOLUNTEERS if volunteers is None else volunteers, HOURS if hours is None else hours
        drawn = _volunteers(config, people, length, region or "world")
        return drawn.scenario, f"{people} volunteers ({region or 'world'}) for {_in_hours(length)}"
    given = {"--volunteers": volunteers, "--hours": hours, "--region": region}
    if extra := [option for option, value in given.items() if value is not None]:
        raise ConfigError(f"`{extra[0]}` is for drawn volunteers: leave it out, or `--scenario`.")
    loaded = _with_trainers(load_scenario(scenario), scenario)
    who = f"{len(loaded.devices)} devices of {scenario.name} for {_in_hours(loaded.duration_s / 3600)}"
    return _swarms_of_file(config, loaded), who


def _swarms_of_file(config: RunConfig, loaded: Scenario) -> ScenarioOf:
    """Return a function that adapts the scenario to a config's PowerSGD rank; seeds are ignored."""
    own = config.averaging.powersgd_rank

    @cache
    def averaged(rank: int) -> int:
        values = ModelValues.of(config)
        return max(1, round((loaded.averaged or loaded.parameters) * values.averaged(rank) / values.averaged(own)))

    def scenario_of(changed: RunConfig, _: int) -> Scenario:
        rank = changed.averaging.powersgd_rank
        return loaded if rank == own else loaded.model_copy(update={"averaged": averaged(rank)})

    return scenario_of


def _check(option: str, value: float, most: float) -> None:
    """Raise `ConfigError` unless `value` is above 0 and at most `most`."""
    if not (math.isfinite(value) and 0 < value <= most):
        raise ConfigError(f"`{option}` ({value:g}) must be above 0, and at most {most:g}.")


def _in_hours(hours: float) -> str:
    return "one hour" if hours == 1 else f"{hours:.3g} hours"


def _volunteers(config: RunConfig, people: int, hours: float, region: str) -> DrawnVolunteers:
    _check("--volunteers", people, MOST_PEERS)
    _check("--hours", hours, MOST_HOURS)
    return DrawnVolunteers(ModelValues.of(config), people, hours, region)


def _with_trainers(scenario: Scenario, path: Path) -> Scenario:
    if not any(device.samples_per_second for device in scenario.devices):
        raise ConfigError(f"Nobody trains in the scenario {path}: give a device its `samples_per_second`.")
    return scenario


def _say_report(config: RunConfig, report: RehearsalReport, who: str) -> None:
    seeds = len(report.runs)
    swarms = "one swarm" if seeds == 1 else f"{seeds} swarms"
    say(f"Rehearsed: the run `{config.run.name}` with {who}, {swarms}.")
    say()
    say_table(("", "5 %", "median", "95 %"), rows(report))
    say()
    say("Of few swarms, the outer columns are the worst and the best; --seeds rehearses more.")
    say(f"The schedule ends at step {config.schedule.total_steps:,} (`schedule.total_steps`).")
    for remark in report.remarks():
        say(remark)


def _say_comparison(comparison: PastComparison) -> None:
    say()
    say_table(("", "measured", "rehearsed"), comparison.rows())
    say()
    for sentence in comparison.verdict():
        say(sentence)


def _say_advice(advice: RehearsalAdvice) -> None:
    before = advice.before.figures()
    hours = advice.before.runs[0].duration_s / 3600
    say()
    say(f"Other settings, with the same volunteers for {_in_hours(hours)}:")
    say()
    as_it_is = ("as it is", shown(before["samples_per_hour"].middle, ""), shown(before["step_s"].middle, "s"), "")
    table = [as_it_is, *(outcome.row() for outcome in advice.tried)]
    say_table(("averaging", "samples/hour", "step", "gain"), table)
    say()
    best = advice.recommended
    if best is None:
        say("Recommended: change nothing. No change brought 5 % more samples into steps, and more in each swarm.")
        return
    after = best.after.figures()
    say(f"Recommended in `averaging`: {best.change.written()}")
    say(f"Reason: {best.change.reason}.")
    say(
        f"Samples in steps, an hour: {shown(before['samples_per_hour'].middle, '')} before, "
        f"{shown(after['samples_per_hour'].middle, '')} after."
    )
    if best.change.training:
        say(f"This changes the training itself: {best.change.training}.")


def _advice_content(advice: RehearsalAdvice) -> dict[str, object]:
    best = advice.recommended
    return {"tried": [each.facts() for each in advice.tried], "recommended": None if best is None else best.facts()}
