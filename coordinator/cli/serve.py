"""`manyhands coordinator serve`: start and supervise a run's parts."""

from __future__ import annotations

from pathlib import Path

import typer

from auth.errors import ConfigError
from coordinator.cli.options import DIRECTORY
from coordinator.run.logs import LogFormat
from coordinator.service.supervisor import serve_run

app = typer.Typer()


@app.command(epilog="Example: manyhands coordinator serve my-run")
def serve(
    directory: Path = DIRECTORY,
    service_only: bool = typer.Option(False, "--service-only", help="Serve only the control plane and the dashboard."),
    keeper_only: bool = typer.Option(
        False,
        "--keeper-only",
        help="Run only the keeper, which is the swarm's first node, and the processes "
        "beside it: validator, answerer, publisher, herald, sinks.",
    ),
    log_format: LogFormat = typer.Option(LogFormat.TEXT, help="Format: text for people, or one JSON object per line."),
) -> None:
    """Serve a run until Ctrl-C or SIGTERM; the keeper then writes a final checkpoint."""
    if service_only and keeper_only:
        raise ConfigError("--service-only and --keeper-only exclude each other: give one, or none to serve both.")
    serve_run(directory, service_only=service_only, keeper_only=keeper_only, log_format=log_format)
