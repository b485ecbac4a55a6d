"""The operator's commands `backup` and `restore`."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from coordinator.backup.backup import Backup, back_up
from coordinator.backup.restore import restore as restore_run
from coordinator.cli.options import DIRECTORY, JSON
from coordinator.context.open_run import open_run
from peer.runtime.console import say, say_json


def backup(
    directory: Path = DIRECTORY,
    target: Path = typer.Argument(..., metavar="TARGET", help="The folder to make.", show_default=False),
    no_checkpoints: bool = typer.Option(False, "--no-checkpoints", help="Leave the checkpoints out."),
    as_json: bool = JSON,
) -> None:
    """Back the run up, while it is served or not: database, settings, keys, checkpoints, each verified."""
    with open_run(directory) as run, run.audit.act("backup", str(target)):
        made = back_up(run.directory, target, time.time(), checkpoints=not no_checkpoints)
    if as_json:
        say_json(_facts(made))
        return
    say(f"{made.path} holds the run `{made.manifest.run}`: {_summary(made)}.")
    say("It holds the run's keys, too: keep it where only you can read it.")


def restore(
    backup: Path = typer.Argument(..., metavar="BACKUP", help="The folder that `backup` made.", show_default=False),
    directory: Path = typer.Argument(..., metavar="DIR", help="The run's directory, to be made.", show_default=False),
    settings: Path | None = typer.Option(
        None, help="A settings.yaml to use in place of the backup's: for another host, or another database."
    ),
    as_json: bool = JSON,
) -> None:
    """Make a run anew from a backup; nothing that exists is ever overwritten."""
    made = restore_run(backup, directory, settings)
    with open_run(made.path) as run:
        run.audit.record("restore", str(backup))
    if as_json:
        say_json({"directory": str(made.path), "run": made.config.run.name, "join_link": str(made.join_link)})
        return
    say(f"The run `{made.config.run.name}` is in {made.path} again.")
    say("Before you serve it, make sure that it is served nowhere else.")


def add_to(app: typer.Typer) -> None:
    """Add both commands to the operator's."""
    app.command(epilog="Example: manyhands coordinator backup my-run /backups/my-run-monday")(backup)
    app.command(epilog="Example: manyhands coordinator restore /backups/my-run-monday my-run")(restore)


def _facts(made: Backup) -> dict[str, object]:
    return {
        "backup": str(made.path),
        "run": made.manifest.run,
        "created_at": made.manifest.created_at,
        "size_bytes": made.size_bytes,
        "files": len(made.manifest.files),
        "rows": sum(table.rows for table in made.manifest.tables.values()),
        "checkpoints": made.checkpoints,
    }


def _summary(made: Backup) -> str:
    rows, count = sum(table.rows for table in made.manifest.tables.values()), len(made.checkpoints)
    return f"{rows:,} rows, {count} checkpoint{'' if count == 1 else 's'}, {made.size_bytes / 1e6:,.1f} MB"
