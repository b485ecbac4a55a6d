"""The operator's commands for backups, rotation of the authority's key, and dashboard archives."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from pathlib import Path

import typer

from auth.errors import ConfigError
from auth.openid.provider import require_safe_url
from coordinator.backup.backup import back_up
from coordinator.backup.manifest import Backup, read_backup
from coordinator.backup.restore import check as check_backup, restore as restore_run
from coordinator.cli.options import DIRECTORY, JSON
from coordinator.context.open_run import open_run
from coordinator.members.devices import tokens_until
from coordinator.run.authority_key import rotate
from coordinator.run.database_owner import claim_database
from peer.reporting.outbox import ACKNOWLEDGED_KEPT
from peer.runtime.console import say, say_json
from peer.runtime.processes import exit_at_sigterm

app = typer.Typer()


_SCRATCH = typer.Option(
    None,
    help="Folder in which a check creates its temporary folder; default: beside the backup.",
    show_default=False,
)


@app.command(epilog="Example: manyhands coordinator backup my-run /backups/my-run-monday --verify")
def backup(
    directory: Path = DIRECTORY,
    target: Path = typer.Argument(..., metavar="TARGET", help="The folder to create.", show_default=False),
    no_checkpoints: bool = typer.Option(False, "--no-checkpoints", help="Leave out the checkpoints."),
    verify: bool = typer.Option(False, "--verify", help="Afterwards check the backup, as `restore --check` does."),
    scratch: Path | None = _SCRATCH,
    yes: bool = typer.Option(False, "--yes", help="Back up the run even if it holds far less than its last backup."),
    as_json: bool = JSON,
) -> None:
    """Back up a run, whether it is served or not: database, settings, keys and checkpoints, each verified."""
    if scratch is not None and not verify:
        raise ConfigError("`--scratch` belongs to `--verify`: give both, or neither.")
    with open_run(directory) as run, run.audit.act("backup", str(target)):
        made = back_up(run.directory, target, time.time(), checkpoints=not no_checkpoints, confirmed=yes)
    if not as_json:
        say(f"{made.path} holds the run `{made.manifest.run}`: {_summary(made)}.")
        say("It holds the run's keys, too: keep it where only you can read it.")
    if verify:
        _check(target, scratch, as_json)
    elif as_json:
        say_json(_facts(made))


@app.command(epilog="Example: manyhands coordinator restore /backups/my-run-monday my-run")
def restore(
    backup: Path = typer.Argument(..., metavar="BACKUP", help="A folder that `backup` created.", show_default=False),
    directory: Path | None = typer.Argument(
        None, metavar="DIR", help="The run's directory, which is created; omit it with `--check`.", show_default=False
    ),
    settings: Path | None = typer.Option(
        None, help="A settings.yaml to use instead of the backup's, for another host or database."
    ),
    check: bool = typer.Option(
        False, "--check", help="Restore into a temporary folder, compare everything, and delete that folder."
    ),
    scratch: Path | None = _SCRATCH,
    as_json: bool = JSON,
) -> None:
    """Restore a run from a backup; existing files are never overwritten."""
    if check == (directory is not None) or (check and settings is not None):
        raise ConfigError("Name the directory to make; or give `--check`, and neither directory nor `--settings`.")
    if scratch is not None and not check:
        raise ConfigError("`--scratch` belongs to `--check`: give both, or neither.")
    if directory is None:
        _check(backup, scratch, as_json)
        return
    made = restore_run(backup, directory, settings)
    made_at = read_backup(backup).manifest.created_at
    stands_at = f"{datetime.fromtimestamp(made_at, timezone.utc):%Y-%m-%d %H:%M} UTC"
    with open_run(made.path) as run:
        run.audit.record("restore", f"{backup}, of {stands_at}")
    if as_json:
        facts = {"directory": str(made.path), "run": made.config.run.name, "join_link": str(made.join_link)}
        say_json({**facts, "backup_created_at": made_at})
        return
    say(f"The run `{made.config.run.name}` is in {made.path} again.")
    say(
        f"Reports that came after the backup, made at {stands_at}, are missing from the ledger: each device sends its "
        f"newest {ACKNOWLEDGED_KEPT:,} of them again when it connects, and the others stay missing."
    )
    say("Before you serve it, make sure that it is served nowhere else.")


def _check(path: Path, scratch: Path | None, as_json: bool) -> None:
    exit_at_sigterm()  # SIGTERM must not leave a copy of the run's keys behind
    checked = check_backup(path, scratch)
    if as_json:
        say_json({**_facts(checked), "verified": True})
        return
    say(
        f"{checked.path} restores to the run `{checked.manifest.run}`: {_summary(checked)}. All "
        f"{len(checked.manifest.files)} files and {len(checked.manifest.tables)} tables came back as they are in the "
        "backup. Nothing of the check is left."
    )


def _facts(made: Backup) -> dict[str, object]:
    return {
        "backup": str(made.path),
        "run": made.manifest.run,
        "created_at": made.manifest.created_at,
        "size_bytes": made.size_bytes,
        "files": len(made.manifest.files),
        "rows": made.rows,
        "tables": made.manifest.tables,
        "checkpoints": made.checkpoints,
    }


def _summary(made: Backup) -> str:
    count = len(made.checkpoints)
    return f"{made.rows:,} rows, {count} checkpoint{'' if count == 1 else 's'}, {made.size_bytes / 1e6:,.1f} MB"


@app.command("rotate-key", epilog="Example: manyhands coordinator rotate-key my-run")
def rotate_key(directory: Path = DIRECTORY, as_json: bool = JSON) -> None:
    """Replace the authority's key; the old key's signatures stay valid until its last token expires."""
    with open_run(directory) as run, run.audit.act("rotate-key"):
        now, keys_dir, config = time.time(), run.directory.keys_dir, run.directory.config
        last = max(tokens_until(run.database), now + config.membership.token_lifetime_s)
        handover = rotate(keys_dir, config.run.name, last, now)
        claim_database(run.database, run.directory)
    if as_json:
        say_json({"new_key": handover.new_key.hex(), "old_key_counts_until": handover.until})
        return
    say("A new key signs from now on. Join links stay as they are; nobody has to do anything.")
    say(f"What the old key has signed counts for {(handover.until - now) / 3600:.1f} hours more.")
    say(f"Back up {keys_dir} now: the old backup no longer serves.")


@app.command(epilog="Example: manyhands coordinator archive my-run /srv/www/my-run")
def archive(
    directory: Path = DIRECTORY,
    out: Path = typer.Argument(..., metavar="OUT", help="The folder to create.", show_default=False),
    address: str = typer.Option("", help="Address at which it will be served; shared links need it to show a picture."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace an earlier archive of this run."),
    as_json: bool = JSON,
) -> None:
    """Archive the dashboard as static files that any web host can serve permanently."""
    from coordinator.web.archive import Wish, write_archive  # only this command needs the web application

    if address:
        _require_address(address)
    with open_run(directory) as run, run.audit.act("archive", str(out)):
        made = write_archive(run.directory, Wish(out, address, overwrite), time.time())
    if as_json:
        facts = made.model_dump(exclude={"files", "format_version"})
        say_json({"archive": str(out), **facts, "files": len(made.files), "size_bytes": made.size_bytes})
        return
    size = f"{len(made.files) + 1:,} files, {made.size_bytes / 1e6:,.1f} MB"
    say(f"{out} holds the page of `{made.run}` as of step {made.step:,}: {size}.")
    say(f"To look at it: python -m http.server --directory {out}")


def _require_address(address: str) -> None:
    try:
        require_safe_url(address)
    except ValueError as error:
        raise ConfigError(f"`--address`: {error}.") from error
