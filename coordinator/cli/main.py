"""The operator's commands: `manyhands coordinator init | serve | invite | allow | members | revoke | erase | ...`.

Each opens the run's directory and its database, does one thing and ends; only `serve` stays.
"""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from enum import Enum
from pathlib import Path

import typer

from auth.errors import ConfigError
from auth.openid.provider import require_safe_url
from coordinator.backup.backup import Backup, back_up
from coordinator.backup.restore import restore as restore_run
from coordinator.checkpoints.validations import validations
from coordinator.cli.configure import configure
from coordinator.cli.evaluator import evaluator, evaluators
from coordinator.cli.members import (
    allow,
    credits_of,
    devices,
    display_name,
    erase,
    hide_name_of,
    invite,
    members,
    quarantine,
    revoke,
)
from coordinator.cli.options import DIRECTORY, JSON, LIMIT, say_done
from coordinator.cli.steer import announce, change, pause, resume, rewind, stop
from coordinator.context.open_run import OpenRun, create_run, make_settings, open_run
from coordinator.ledger.presence import checkpoints, online_sessions, read_swarm_status
from coordinator.ledger.speed import time_left_s
from coordinator.ledger.steering import read_helm
from coordinator.members.administrators import Administrators
from coordinator.members.audit import audit_log
from coordinator.members.devices import tokens_until
from coordinator.publishing.publications import newest_at
from coordinator.run.authority_key import rotate
from coordinator.run.database_owner import claim_database
from coordinator.run.directory import RunDirectory
from coordinator.run.logs import LogFormat
from coordinator.run.secrets import read_secret
from coordinator.service.doctor import examine
from coordinator.service.supervisor import serve_run
from coordinator.store.refusals import newest_refusals
from peer.config.phases import phase_at
from peer.config.run import BUILTIN_RUNS, RunConfig
from peer.doctor.display import open_display
from peer.runtime.console import format_age, say, say_facts, say_json, say_table

app = typer.Typer(name="coordinator", no_args_is_help=True, help="Start and steer a run.")
LOCAL_HOST = "127.0.0.1"
VALIDATION_FACTS = ("step", "loss", "perplexity", "accuracy", "sop_accuracy")


class AdminAction(str, Enum):
    """What can be done about administrators."""

    ADD = "add"
    REMOVE = "remove"
    LIST = "list"


@app.command(epilog="Example: manyhands coordinator init my-run --config run.yaml --host training.example.org")
def init(
    directory: Path = DIRECTORY,
    config: Path = typer.Option(BUILTIN_RUNS / "demo.yaml", help="The run file.", show_default="the demo's"),
    host: str = typer.Option(LOCAL_HOST, help="Name or address under which volunteers reach this machine."),
    announce: list[str] = typer.Option(
        [], help="Another name or address of this machine, such as its IPv6 address beside an IPv4 --host; repeatable."
    ),
    fallback: list[str] = typer.Option(
        [], help="HOST or HOST:PORT where the coordinator may answer some day; it goes into the join link; repeatable."
    ),
    bind: str = typer.Option("0.0.0.0", help="Address to listen on."),  # noqa: S104  # volunteers come from everywhere
    control_port: int = typer.Option(7443, help="Port of the control plane."),
    web_port: int = typer.Option(8080, help="Port of the dashboard."),
    swarm_port: int = typer.Option(31337, help="Port of the swarm."),
    database_url_file: Path | None = typer.Option(
        None, help="A file of mode 0600 with the URL of an empty PostgreSQL database; else SQLite in the directory."
    ),
    as_json: bool = JSON,
) -> None:
    """Make a new run: its keys, its settings, its database and its tokenizer."""
    run_config = RunConfig.from_yaml(config)
    settings = make_settings(
        public_host=host,
        announce_hosts=announce,
        fallback_addresses=fallback,
        bind_host=bind,
        control_port=control_port,
        web_port=web_port,
        swarm_port=swarm_port,
        database_url=None if database_url_file is None else read_secret(database_url_file, "--database-url-file"),
    )
    run = create_run(directory, run_config, settings)
    if as_json:
        say_json({"directory": str(run.path), "run": run_config.run.name, "join_link": str(run.join_link)})
        return
    say(f"The run `{run_config.run.name}` is ready in {run.path}.")
    say(f"Join link: {run.join_link}")
    if host == LOCAL_HOST:
        say("Only this machine can join: give --host with the address under which others reach it.")
    say(f"Next: {_command('serve', directory)}")
    say(f"and for each volunteer: {_command('invite', directory, 'NAME')}")


app.command(epilog="Example: manyhands coordinator configure my-run")(configure)


@app.command(epilog="Example: manyhands coordinator serve my-run")
def serve(
    directory: Path = DIRECTORY,
    service_only: bool = typer.Option(False, "--service-only", help="Only the control plane and the dashboard."),
    keeper_only: bool = typer.Option(False, "--keeper-only", help="Only the swarm's first node and its checkpoints."),
    log_format: LogFormat = typer.Option(LogFormat.TEXT, help="How to log: lines for people, or a JSON object a line."),
) -> None:
    """Serve a run until told to stop by Ctrl-C or SIGTERM; then the keeper writes a last checkpoint."""
    if service_only and keeper_only:
        raise ConfigError("--service-only and --keeper-only exclude each other: give one, or none to serve both.")
    serve_run(directory, service_only=service_only, keeper_only=keeper_only, log_format=log_format)


app.command(epilog="Example: manyhands coordinator invite my-run alice --days 3")(invite)
app.command("allow", epilog="Example: manyhands coordinator allow my-run hf:alice")(allow)
app.command(epilog="Example: manyhands coordinator members my-run --json")(members)
app.command(epilog="Example: manyhands coordinator devices my-run alice")(devices)
app.command(epilog="Example: manyhands coordinator evaluator my-run --once")(evaluator)
app.command(epilog="Example: manyhands coordinator evaluators my-run add gpu-box 0f1e2d...")(evaluators)
app.command(epilog="Example: manyhands coordinator quarantine my-run lift alice --device 1a2b3c4d")(quarantine)
app.command(epilog="Example: manyhands coordinator rewind my-run 1200 --quarantine mallory --yes")(rewind)
app.command(epilog="Example: manyhands coordinator pause my-run")(pause)
app.command(epilog="Example: manyhands coordinator resume my-run")(resume)
app.command(epilog="Example: manyhands coordinator stop my-run 125000")(stop)
app.command(epilog="Example: manyhands coordinator change my-run --learning-rate-scale 0.5 --from-step 1200")(change)
app.command(epilog='Example: manyhands coordinator announce my-run "The run moves on Sunday."')(announce)
app.command(epilog='Example: manyhands coordinator revoke my-run mallory --reason "sends garbage"')(revoke)
app.command(epilog="Example: manyhands coordinator erase my-run alice --yes")(erase)
app.command("display-name", epilog='Example: manyhands coordinator display-name my-run alice "Night Owl"')(display_name)
app.command("hide-name", epilog="Example: manyhands coordinator hide-name my-run alice")(hide_name_of)
app.command("credits", epilog="Example: manyhands coordinator credits my-run omit alice")(credits_of)


@app.command(epilog="Example: manyhands coordinator admin my-run add grace")
def admin(
    directory: Path = DIRECTORY,
    action: AdminAction = typer.Argument(..., help="What to do.", show_default=False),
    name: str = typer.Argument("", help="The administrator's name."),
    as_json: bool = JSON,
) -> None:
    """Say who may administer the run over the web; `add` asks for a password, also to change one."""
    with open_run(directory) as run:
        administrators = Administrators(run.database)
        if action is AdminAction.ADD:
            password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
            with run.audit.act("admin-add", name):
                administrators.set_password(name, password)
        elif action is AdminAction.REMOVE:
            with run.audit.act("admin-remove", name):
                administrators.remove(name)
        names = administrators.names()
    say_done(as_json, names, f"Administrators: {', '.join(names) or 'nobody'}.")


@app.command(epilog="Example: manyhands coordinator audit my-run --limit 20")
def audit(
    directory: Path = DIRECTORY,
    limit: int = LIMIT,
    as_json: bool = JSON,
) -> None:
    """Show who did what to the run: invitations, revocations, erasures, by command and over the web."""
    with open_run(directory) as run:
        rows = audit_log(run.database, limit)
    if as_json:
        say_json([asdict(row) for row in rows])
        return
    now = time.time()
    say_table(
        ("when", "who", "act", "whom", "detail"),
        [(format_age(row.at, now), row.actor, row.act, row.subject, row.detail) for row in rows],
    )


@app.command(epilog="Example: manyhands coordinator refusals my-run --limit 20")
def refusals(directory: Path = DIRECTORY, limit: int = LIMIT, as_json: bool = JSON) -> None:
    """Show what was refused to devices and visitors, and why."""
    with open_run(directory) as run:
        rows = newest_refusals(run.database, limit)
    if as_json:
        say_json([asdict(row) for row in rows])
        return
    now = time.time()
    say_table(
        ("when", "kind", "code", "reason"), [(format_age(row.at, now), row.kind, row.code, row.reason) for row in rows]
    )


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


@app.command(epilog="Example: manyhands coordinator backup my-run /backups/my-run-monday")
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
        say_json(_backup_facts(made))
        return
    say(f"{made.path} holds the run `{made.manifest.run}`: {_backup_summary(made)}.")
    say("It holds the run's keys, too: keep it where only you can read it.")


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
    with open_run(made.path) as run:
        run.audit.record("restore", str(backup))
    if as_json:
        say_json({"directory": str(made.path), "run": made.config.run.name, "join_link": str(made.join_link)})
        return
    say(f"The run `{made.config.run.name}` is in {made.path} again.")
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


@app.command(epilog="Example: manyhands coordinator doctor my-run")
def doctor(directory: Path = DIRECTORY, as_json: bool = JSON) -> None:
    """Examine the run's files and its machine: keys, permissions, ports, clock, disk, public address."""
    examine(RunDirectory.open(directory), open_display(as_json), time.time())


@app.command(epilog="Example: manyhands coordinator status my-run")
def status(directory: Path = DIRECTORY, as_json: bool = JSON) -> None:
    """Show where the run stands: progress, loss, who is here, the newest checkpoint."""
    now = time.time()
    with open_run(directory) as run:
        facts = _facts(run, now)
        online = online_sessions(run.database, now)
        places = newest_at(run.database, [place.to for place in run.directory.settings.publications])
    if as_json:
        online_facts = [asdict(session) for session in online]
        say_json({**facts, "publications": [asdict(row) for row in places], "online": online_facts})
        return
    say_facts({name.replace("_", " "): value for name, value in facts.items()})
    if places:
        say()
        rows = [(row.place, row.step, row.location or None, row.error or None) for row in places]
        say_table(("published to", "step", "where", "trouble"), rows)
    if online:
        say()
        say_table(
            ("online", "state", "step", "samples/s", "hardware"),
            [(row.member, row.state, row.step, row.samples_per_second, row.hardware) for row in online],
        )


def _facts(run: OpenRun, now: float) -> dict[str, object]:
    """What is known of a run, by name, in the order in which it is shown."""
    swarm = read_swarm_status(run.database)
    last_step = run.ledger.last_step()
    last = run.ledger.steps(after=last_step - 1)
    newest = checkpoints(run.database)[:1]
    validation = validations(run.database)[-1:]
    step = last_step if swarm is None else swarm.step
    phase = phase_at(run.directory.config, step)
    return {
        "run": run.directory.config.run.name,
        "step": step,
        "phase": phase.line,
        "loss": last[-1].loss if last else None,
        "samples_accumulated": None if swarm is None else swarm.samples_accumulated,
        "target_batch_size": phase.target_batch_size,
        "peers": None if swarm is None else swarm.peers,
        "samples_per_second": None if swarm is None else swarm.samples_per_second,
        "time_left_s": time_left_s(run.directory.config, read_helm(run.database), swarm),
        "keeper_silent_s": None if swarm is None else round(now - swarm.updated_at, 1),
        "checkpoint": str(run.directory.checkpoint_dir(newest[0].step)) if newest else None,
        **{f"validation_{name}": validation[0].facts[name] if validation else None for name in VALIDATION_FACTS},
        "join_link": str(run.directory.join_link),
    }


def _command(name: str, directory: Path, *arguments: str) -> str:
    """A command as the operator can paste it."""
    return shlex.join(["manyhands", "coordinator", name, str(directory), *arguments])
