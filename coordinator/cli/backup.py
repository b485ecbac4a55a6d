"""The operator's commands `backup`, `restore`, `hand-over` and `take-over`."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from coordinator.backup.backup import Backup, back_up
from coordinator.backup.hand_over import hand_over as hand_run_over, take_over as take_run_over
from coordinator.backup.restore import restore as restore_run
from coordinator.cli.options import DIRECTORY, JSON
from coordinator.context.open_run import open_run
from coordinator.run.secrets import read_secret
from peer.runtime.console import say, say_json

ARCHIVE = typer.Argument(..., metavar="ARCHIVE", help="The encrypted file.", show_default=False)
PASSPHRASE = typer.Option(None, help="A file of mode 0600 with the passphrase; without one it is asked for.")


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


def hand_over(
    directory: Path = DIRECTORY,
    archive: Path = ARCHIVE,
    passphrase_file: Path | None = PASSPHRASE,
    as_json: bool = JSON,
) -> None:
    """Write a run that is no longer served to one encrypted file, for another operator or host."""
    passphrase = _passphrase(passphrase_file, confirm=True)
    with open_run(directory) as run, run.audit.act("hand-over", str(archive)):
        made = hand_run_over(run.directory, run.sessions, archive, passphrase, time.time())
    size_bytes = archive.stat().st_size
    if as_json:
        say_json({"archive": str(archive), "run": made.manifest.run, "size_bytes": size_bytes})
        return
    say(f"{archive} holds the run `{made.manifest.run}` with its keys ({size_bytes / 1e6:,.1f} MB, encrypted).")
    say("Send the passphrase another way than the file. This run is not served here any more.")


def take_over(
    archive: Path = ARCHIVE,
    directory: Path = typer.Argument(..., metavar="DIR", help="The run's directory, to be made.", show_default=False),
    passphrase_file: Path | None = PASSPHRASE,
    host: str | None = typer.Option(None, help="The name or address by which peers reach this host from now on."),
    settings: Path | None = typer.Option(None, help="A settings.yaml to use in place of the run's own."),
    as_json: bool = JSON,
) -> None:
    """Make the run of an encrypted file here, to be served from now on."""
    made = take_run_over(archive, directory, _passphrase(passphrase_file, confirm=False), settings, host)
    with open_run(made.path) as run:
        run.audit.record("take-over", str(archive))
    link = made.join_link
    if as_json:
        say_json({"directory": str(made.path), "run": made.config.run.name, "join_link": str(link)})
        return
    say(f"The run `{made.config.run.name}` is in {made.path}.")
    say(f"Join link: {link}")
    say("Links with another host stay good if one of their addresses leads here, with its port.")


def add_to(app: typer.Typer) -> None:
    """Add the four commands to the operator's."""
    app.command(epilog="Example: manyhands coordinator backup my-run /backups/my-run-monday")(backup)
    app.command(epilog="Example: manyhands coordinator restore /backups/my-run-monday my-run")(restore)
    app.command(epilog="Example: manyhands coordinator hand-over my-run my-run.archive")(hand_over)
    app.command(epilog="Example: manyhands coordinator take-over my-run.archive my-run --host run.example.org")(
        take_over
    )


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


def _passphrase(path: Path | None, *, confirm: bool) -> str:
    """Neither an argument nor the environment, which others can see."""
    if path is not None:
        return read_secret(path, "--passphrase-file")
    asked: str = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True)
    return asked
