"""`manyhands coordinator serve`: the process that starts a run's parts and watches over them; it stays."""

from __future__ import annotations

from pathlib import Path

import typer

from auth.errors import ConfigError, DatabaseError
from coordinator.cli.options import DIRECTORY
from coordinator.run.logs import LogFormat
from coordinator.service.supervisor import AUXILIARY_GRACE_S, STOP_GRACE_S, serve_run
from peer.runtime.console import say

app = typer.Typer()


@app.command(epilog="Example: manyhands coordinator serve my-run")
def serve(
    context: typer.Context,
    directory: Path = DIRECTORY,
    service_only: bool = typer.Option(False, "--service-only", help="Only the control plane and the dashboard."),
    keeper_only: bool = typer.Option(
        False,
        "--keeper-only",
        help="Only the swarm's first node, its checkpoints, and the processes beside it: validator, answerer, "
        "publisher, herald, sinks.",
    ),
    log_format: LogFormat = typer.Option(LogFormat.TEXT, help="How to log: lines for people, or a JSON object a line."),
    service: bool = typer.Option(
        False, "--service", help="Have systemd run this command, now and whenever the machine starts."
    ),
    remove_service: bool = typer.Option(False, "--remove-service", help="Stop and remove the service of this run."),
) -> None:
    """Serve a run until told to stop by Ctrl-C or SIGTERM; then the keeper writes a last checkpoint."""
    if service_only and keeper_only:
        raise ConfigError("--service-only and --keeper-only exclude each other: give one, or none to serve both.")
    if service or remove_service:
        _change_service(context, directory, remove_service)
        return
    serve_run(directory, service_only=service_only, keeper_only=keeper_only, log_format=log_format)


def _change_service(context: typer.Context, directory: Path, remove: bool) -> None:
    """Install or remove the run's service."""
    from coordinator.run.directory import RunDirectory  # what the process that serves does without
    from peer.runtime.user_service import UserService, kept_arguments

    run = RunDirectory.open(directory)
    name = run.config.run.name
    unit = UserService(
        name=f"manyhands-coordinator-{name}",
        description=f"manyhands: coordinator of the run {name}",
        directory=run.path,
        arguments=kept_arguments(context),
        stop_s=round(STOP_GRACE_S + AUXILIARY_GRACE_S) + 30,
        never_again=(ConfigError, DatabaseError),
    )
    for line in unit.remove() if remove else unit.install():
        say(line)
