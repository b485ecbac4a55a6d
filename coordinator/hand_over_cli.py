"""The operator's commands `hand-over` and `take-over`."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from coordinator.device_cli import DIRECTORY, JSON
from coordinator.hand_over import hand_over as hand_run_over
from coordinator.hand_over import take_over as take_run_over
from coordinator.runs import open_run
from coordinator.secret_text import read_secret
from peer.tables import say, say_json

ARCHIVE = typer.Argument(..., metavar="ARCHIVE", help="The encrypted file.", show_default=False)
PASSPHRASE = typer.Option(None, help="A file of mode 0600 with the passphrase; without one it is asked for.")


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


def _passphrase(path: Path | None, *, confirm: bool) -> str:
    """Neither an argument nor the environment, which others can see."""
    if path is not None:
        return read_secret(path, "--passphrase-file")
    asked: str = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True)
    return asked


def add_to(app: typer.Typer) -> None:
    """Mount both."""
    app.command(epilog="Example: manyhands coordinator hand-over my-run my-run.archive")(hand_over)
    app.command(epilog="Example: manyhands coordinator take-over my-run.archive my-run --host run.example.org")(
        take_over
    )
