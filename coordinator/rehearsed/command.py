"""The command `manyhands coordinator rehearse`: the dashboard of a rehearsed event, before it takes place."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from auth.errors import ConfigError
from auth.files import require_free
from coordinator.rehearsed.event import RehearsedEvent, rehearsed_event, serve_event
from coordinator.service.demo import choose_settings
from coordinator.service.preparation import dashboard_url
from coordinator.web.archive import Wish, write_archive
from peer.cli.rehearse import Hours, Region, RunFile, ScenarioFile, Volunteers, chosen_swarm
from peer.config.run import RunConfig
from peer.rehearsal.forecast.choosing import with_chosen_way
from peer.runtime.console import say

MOST_DEVICES = 1000  # whose reports a replay writes within minutes
app = typer.Typer(pretty_exceptions_enable=False)


@app.command("rehearse", epilog="Example: manyhands coordinator rehearse run.yaml --volunteers 40 --hours 2")
def rehearse_page(
    run_file: RunFile,
    volunteers: Volunteers = None,
    scenario: ScenarioFile = None,
    hours: Hours = None,
    region: Region = None,
    seed: Annotated[int, typer.Option(min=1, help="Which of the swarms that `manyhands rehearse` rehearses.")] = 1,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The dashboard's port; else 8080, or any if taken.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="A folder to write the pages into, as plain files; nothing is served then.")
    ] = None,
) -> None:
    """Show a rehearsed event in the dashboard, before anybody has joined.

    It looks as operators and volunteers will see it. No training takes place.
    """
    if output is not None:
        _require_writable(output, port)
    config = RunConfig.from_yaml(run_file)
    settings = choose_settings(port)
    scenario_of, who = chosen_swarm(config, volunteers, scenario, hours, region)
    config, choice = with_chosen_way(config, scenario_of)
    swarm = scenario_of(config, seed)
    if len(swarm.devices) > MOST_DEVICES:
        raise ConfigError(
            f"The dashboard shows rehearsals of at most {MOST_DEVICES} devices, not {len(swarm.devices)}."
        )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the temporary run goes with this process
    with Console(stderr=True).status("Rehearsing") as status:
        opened = rehearsed_event(
            config, swarm, seed, settings, time.time(), are_drawn=scenario is None, progress=status.update
        )
        with opened as event:
            status.stop()
            say(f"Rehearsed: the run `{config.run.name}` with {who}, {_came_to(event)}. No training took place.")
            if choice is not None:
                say(f"`averaging.compression` (auto) was rehearsed as {choice.why}")
            if output is None:
                address = dashboard_url(settings)
                serve_event(event, lambda: say(f"The dashboard: {address} (Ctrl-C ends it; nothing of it is kept)"))
                return
            made = write_archive(event.directory, Wish(output, is_rehearsed=True), event.ended_at)
    say(f"{output} holds its pages: {len(made.files) + 1:,} files, {made.size_bytes / 1e6:,.1f} MB.")
    say(f"To look at them: python -m http.server --directory {output}")


def _require_writable(output: Path, port: int | None) -> None:
    """Raise `ConfigError` at once for a folder that could not be written after the rehearsal."""
    if port is not None:
        raise ConfigError("`--port` is for a served page: leave it out, or `--output`.")
    require_free(output)


def _came_to(event: RehearsedEvent) -> str:
    steps, samples = len(event.run.steps), sum(each.work.counted for each in event.run.devices)
    return f"seed {event.seed}: {steps:,} step{'' if steps == 1 else 's'}, {samples:,} samples in them"
