"""`manyhands demo`: a complete run on this machine, in one command."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

import typer
from platformdirs import user_data_path

from coordinator.context.open_run import open_run
from coordinator.service.demo import Demo, DemoPlan, StoppedEarlyError, prepare_run
from coordinator.service.demo_report import summary_lines
from coordinator.service.supervisor import StopSignal
from peer.config.run import BUILTIN_RUNS, RunConfig
from peer.runtime.console import say, say_json
from peer.runtime.processes import name_process

app = typer.Typer()
MAX_PEERS = 16


@app.command(epilog="Example: manyhands demo --steps 12 --json")
def demo(
    peers: int = typer.Option(2, min=1, max=MAX_PEERS, help="Number of volunteers to start."),
    steps: int | None = typer.Option(None, min=1, help="Stop after this many global steps; default: at Ctrl-C."),
    port: int | None = typer.Option(
        None, min=1, max=65535, help="Port of the dashboard; default: 8080, else any free one."
    ),
    directory: Path | None = typer.Option(None, "--dir", help="The run's directory; a run in it is continued."),
    config: Path = typer.Option(BUILTIN_RUNS / "demo.yaml", help="The run file.", show_default="a small ModernBERT"),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON; progress goes to stderr."),
) -> None:
    """Start a whole run on this machine: coordinator, dashboard and volunteers, each in its own process."""
    name_process("demo")
    tell = _tell_stderr if as_json else say
    plan = DemoPlan(directory or default_directory(datetime.now().astimezone()), RunConfig.from_yaml(config), port)
    tell(f"Run directory: {plan.directory}")
    tell("Making the run with its keys and its tokenizer, and starting the coordinator.")
    with StopSignal() as stop:  # the summary must not be interrupted
        try:
            directory_made = prepare_run(plan, stop)
        except StoppedEarlyError:
            tell("Stopped before the run was made; nothing of it is left.")
            return
        with open_run(directory_made.path) as run:
            running = Demo(run, tell, stop)
            try:
                running.start(peers)
                running.follow(steps)
                running.stop()
            finally:
                running.kill()
            summary = running.summary()
        if as_json:
            say_json(summary)
        else:
            for line in summary_lines(summary):
                say(line)


def default_directory(now: datetime) -> Path:
    """Return the directory of a new demo, named after the current time."""
    return user_data_path("manyhands") / f"demo-{now:%Y%m%d-%H%M%S}"


def _tell_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
