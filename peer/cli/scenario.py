"""`manyhands scenario`: write the scenario of a past run from its public history."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from auth.errors import ConfigError, StorageError
from peer.config.run import RunConfig
from peer.rehearsal.forecast.past_run import past_scenario, read_history, stretch_of
from peer.rehearsal.forecast.report import ModelValues
from peer.runtime.console import say

HOURS = 4.0
app = typer.Typer(pretty_exceptions_enable=False)


@app.command("scenario", epilog="Example: manyhands scenario https://run.example.org run.yaml -o past.yaml")
def write_scenario(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Address of the dashboard, or a folder with steps.parquet, sessions.parquet, contributions.parquet.",
        ),
    ],
    run_file: Annotated[Path, typer.Argument(metavar="RUN.yaml", help="The run file.")],
    hours: Annotated[float, typer.Option(min=0.01, max=744, help="Use only this many of the last hours.")] = HOURS,
    until: Annotated[int | None, typer.Option(min=1, help="The last step; default: the last in the history.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write; default: stdout.")] = None,
) -> None:
    """Write the scenario of a past run from its public history, with the figures measured in the run."""
    if out is not None and out.exists():
        raise ConfigError(f"`--out` ({out}) exists already: remove it, or give another name.")
    config = RunConfig.from_yaml(run_file)
    history = read_history(source)
    past = past_scenario(config, history, stretch_of(history, hours, until), ModelValues.of(config))
    if out is None:
        say(past.to_yaml().rstrip())
        return
    try:
        out.write_text(past.to_yaml(), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"`--out` ({out}) cannot be written: {error.strerror}.") from error
    for remark in past.remarks:
        say(remark)
    say(f"Written to {out}. Rehearse it: manyhands rehearse {run_file} --scenario {out}")
