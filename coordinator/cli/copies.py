"""The operator's commands that keep a run: backups, the authority's key, and an archive of its dashboard."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from pathlib import Path

import typer

from auth.errors import ConfigError
from auth.openid.provider import require_safe_url
from coordinator.backup.backup import Backup, back_up
from coordinator.backup.manifest import read_manifest
from coordinator.backup.rehearsal import Rehearsal, rehearse
from coordinator.backup.restore import restore as restore_run
from coordinator.cli.options import DIRECTORY, JSON
from coordinator.context.open_run import open_run
from coordinator.members.devices import tokens_until
from coordinator.run.authority_key import rotate
from coordinator.run.database_owner import claim_database
from peer.reporting.outbox import ACKNOWLEDGED_KEPT
from peer.runtime.console import say, say_json, say_table

app = typer.Typer()


@app.command(epilog="Example: manyhands coordinator backup my-run /backups/my-run-monday --verify")
def backup(
    directory: Path = typer.Argument(
        ...,
        metavar="DIR",
        help="The run's directory; with `--verify` alone, a backup that is there.",
        show_default=False,
    ),
    target: Path | None = typer.Argument(None, metavar="TARGET", help="The folder to make.", show_default=False),
    no_checkpoints: bool = typer.Option(False, "--no-checkpoints", help="Leave the checkpoints out."),
    rehearse_it: bool = typer.Option(
        False, "--verify", help="Restore it into a scratch folder, compare everything, and remove that."
    ),
    scratch: Path | None = typer.Option(
        None, help="Where the scratch folder is made; default: beside the backup.", show_default=False
    ),
    yes: bool = typer.Option(False, "--yes", help="Back up also a run that holds far less than its last backup."),
    as_json: bool = JSON,
) -> None:
    """Back the run up, while it is served or not: database, settings, keys, checkpoints, each verified."""
    if target is None and not rehearse_it:
        raise ConfigError("Name the folder to make, or give `--verify` to rehearse a backup that is there.")
    facts: dict[str, object] = {}
    if target is not None:
        with open_run(directory) as run, run.audit.act("backup", str(target)):
            made = back_up(run.directory, target, time.time(), checkpoints=not no_checkpoints, confirmed=yes)
        facts = _backup_facts(made)
        if not as_json:
            say(f"{made.path} holds the run `{made.manifest.run}`: {_backup_summary(made)}.")
            say("It holds the run's keys, too: keep it where only you can read it.")
    if rehearse_it:
        rehearsal = rehearse(target or directory, scratch)
        facts = _backup_facts(rehearsal.backup) | {"verified": _rehearsal_facts(rehearsal)}
        if not as_json:
            _say_rehearsal(rehearsal)
    if as_json:
        say_json(facts)


@app.command(epilog="Example: manyhands coordinator restore /backups/my-run-monday my-run")
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
    made_at = read_manifest(backup).created_at
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


def _backup_facts(made: Backup) -> dict[str, object]:
    return {
        "backup": str(made.path),
        "run": made.manifest.run,
        "created_at": made.manifest.created_at,
        "size_bytes": made.size_bytes,
        "files": len(made.manifest.files),
        "rows": sum(table.rows for table in made.manifest.tables.values()),
        "checkpoints": made.checkpoints,
    }


def _backup_summary(made: Backup) -> str:
    rows, count = sum(table.rows for table in made.manifest.tables.values()), len(made.checkpoints)
    return f"{rows:,} rows, {count} checkpoint{'' if count == 1 else 's'}, {made.size_bytes / 1e6:,.1f} MB"


def _rehearsal_facts(rehearsal: Rehearsal) -> dict[str, object]:
    return {
        "tables": {name: restored for name, (_, restored) in rehearsal.tables.items()},
        "rows_compared": rehearsal.same_version,
        "postgresql": rehearsal.on_server,
    }


def _say_rehearsal(rehearsal: Rehearsal) -> None:
    made = rehearsal.backup
    rows = [(name, *counts) for name, counts in sorted(rehearsal.tables.items()) if any(counts)]
    say_table(("table", "rows in the backup", "rows restored"), rows)
    empty = len(rehearsal.tables) - len(rows)
    contents = "all rows the same" if rehearsal.same_version else "rows brought to this version's tables"
    say(f"{len(rehearsal.tables)} tables ({empty} empty): as many rows in each as in the backup, {contents}.")
    say(f"{len(made.manifest.files)} files: the digest of each is the backup's.")
    if rehearsal.on_server:
        say("PostgreSQL took all rows and gave the same back, in a transaction that was undone.")
    say(
        f"{made.path} restores to the run `{made.manifest.run}`: {_backup_summary(made)}. Nothing of the trial is left."
    )


@app.command("rotate-key", epilog="Example: manyhands coordinator rotate-key my-run")
def rotate_key(directory: Path = DIRECTORY, as_json: bool = JSON) -> None:
    """Replace the authority's key; what the old one has signed counts until its last token expires."""
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
    out: Path = typer.Argument(..., metavar="OUT", help="The folder to make.", show_default=False),
    address: str = typer.Option("", help="Where it will be served, so that shared links have a picture."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace an earlier archive of this run."),
    as_json: bool = JSON,
) -> None:
    """Freeze the dashboard into plain files that any web host serves for ever."""
    from coordinator.web.archive import Wish, write_archive  # the web application, which other commands need not load

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
