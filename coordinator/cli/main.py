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
from coordinator.checkpoints.validations import validations
from coordinator.cli import backup
from coordinator.cli.allow import allow
from coordinator.cli.archive import archive
from coordinator.cli.configure import configure
from coordinator.cli.devices import devices, quarantine
from coordinator.cli.evaluator import evaluator, evaluators
from coordinator.cli.names import credits_of, display_name, hide_name_of
from coordinator.cli.options import DIRECTORY, JSON, LIMIT, say_done
from coordinator.cli.steer import announce, change, pause, resume, rewind, stop
from coordinator.context.open_run import OpenRun, create_run, make_settings, open_run
from coordinator.ledger.presence import checkpoints, online_sessions, read_swarm_status
from coordinator.ledger.speed import time_left_s
from coordinator.ledger.steering import read_helm
from coordinator.members.administrators import Administrators
from coordinator.members.audit import audit_log
from coordinator.members.devices import tokens_until
from coordinator.members.invites import ROLE_RANKS
from coordinator.members.join_page import Invitation
from coordinator.members.membership import MemberRow
from coordinator.members.names import display_names
from coordinator.publishing.publications import newest_at
from coordinator.run.authority_key import rotate
from coordinator.run.database_owner import claim_database
from coordinator.run.directory import RunDirectory
from coordinator.run.logs import LogFormat
from coordinator.run.secrets import read_secret
from coordinator.run.software import own_software
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


@app.command(epilog="Example: manyhands coordinator invite my-run alice --days 3")
def invite(
    directory: Path = DIRECTORY,
    name: str = typer.Argument(..., help="The volunteer's name, as the dashboard shows it.", show_default=False),
    role: str = typer.Option("trainer", help=f"What the volunteer may do: {', '.join(ROLE_RANKS)}."),
    days: float = typer.Option(7.0, help="Days until the code expires."),
    devices: int = typer.Option(1, help="Machines the volunteer brings: one code for each."),
    as_json: bool = JSON,
) -> None:
    """Invite a volunteer: prints one-use codes, which are stored nowhere, and how to use them."""
    packed = own_software()  # before there is a code, which is shown only now
    with open_run(directory) as run:
        codes = run.administration.invite(name, role, days, devices)
        link = str(run.directory.join_link)
        address = run.directory.settings.web_address
    software = packed.address(address)
    invitations = [Invitation.of(code, role, link, address, software) for code in codes]
    if as_json:
        invites = [asdict(invitation) for invitation in invitations]
        known = {"member": name, "role": role, "days": days, "join_link": link, "software": software}
        say_json({**known, "invites": invites})
        return
    say(f"The run's software, which a notebook asks for: {software}")
    for invitation in invitations:
        say(f"Invite code: {invitation.code}")
        say(f"For the person to open: {invitation.page}")
        say("Or, to install the software and join, in one line:")
        say(invitation.one_line)
        say("Where it is installed:")
        say(invitation.command)


app.command("allow", epilog="Example: manyhands coordinator allow my-run hf:alice")(allow)


@app.command(epilog="Example: manyhands coordinator members my-run --json")
def members(directory: Path = DIRECTORY, as_json: bool = JSON) -> None:
    """List the members, their devices and what they contributed."""
    with open_run(directory) as run:
        given = {row.member: (row.samples, row.averaged_bytes) for row in run.ledger.contributions()}
        rows, shown = run.membership.members(), display_names(run.database)
    if as_json:
        say_json([_member_facts(row, shown.get(row.name, row.name), *given.get(row.name, (0, 0))) for row in rows])
        return
    now = time.time()
    with_accounts = any(row.accounts for row in rows)  # a column more only where people log in
    say_table(
        ("member", *(["accounts"] * with_accounts), "devices", "open invites", "contributed", "last seen", "revoked"),
        [
            (
                row.name,
                *([", ".join(row.accounts) or None] * with_accounts),
                row.devices,
                row.open_invites,
                _gift(*given.get(row.name, (0, 0))),
                format_age(row.last_seen_at, now),
                None if row.revoked_at is None else f"{format_age(row.revoked_at, now)} {row.revoked_reason}".strip(),
            )
            for row in rows
        ],
    )


def _member_facts(row: MemberRow, shown: str, samples: int, averaged_bytes: int) -> dict[str, object]:
    return {**asdict(row), "display_name": shown, "samples": samples, "averaged_bytes": averaged_bytes}


def _gift(samples: int, averaged_bytes: int) -> str:
    only_averages = samples == 0 and averaged_bytes > 0
    return f"{averaged_bytes / 1e6:,.1f} MB averaged" if only_averages else f"{samples} samples"


app.command(epilog="Example: manyhands coordinator devices my-run alice")(devices)
app.command(epilog="Example: manyhands coordinator archive my-run /srv/www/my-run")(archive)
app.command(epilog="Example: manyhands coordinator evaluator my-run --once")(evaluator)
app.command(epilog="Example: manyhands coordinator evaluators my-run add gpu-box 0f1e2d...")(evaluators)
backup.add_to(app)
app.command(epilog="Example: manyhands coordinator quarantine my-run lift alice --device 1a2b3c4d")(quarantine)
app.command(epilog="Example: manyhands coordinator rewind my-run 1200 --quarantine mallory --yes")(rewind)
app.command(epilog="Example: manyhands coordinator pause my-run")(pause)
app.command(epilog="Example: manyhands coordinator resume my-run")(resume)
app.command(epilog="Example: manyhands coordinator stop my-run 125000")(stop)
app.command(epilog="Example: manyhands coordinator change my-run --learning-rate-scale 0.5 --from-step 1200")(change)
app.command(epilog='Example: manyhands coordinator announce my-run "The run moves on Sunday."')(announce)


@app.command(epilog='Example: manyhands coordinator revoke my-run mallory --reason "sends garbage"')
def revoke(
    directory: Path = DIRECTORY,
    name: str = typer.Argument(..., help="The member's name.", show_default=False),
    device: str | None = typer.Option(
        None, help="Only this device: its id, or enough of the beginning (see `devices`)."
    ),
    reason: str = typer.Option("", help="Why; the member sees it."),
    as_json: bool = JSON,
) -> None:
    """Shut a member out, with all devices or one only; it reaches the swarm within seconds while the run is served."""
    with open_run(directory) as run:
        if device is None:
            count = run.administration.revoke(name, reason)
            done = f"{name} is revoked, with {count} device{'' if count == 1 else 's'}."
            say_done(as_json, {"member": name, "devices_revoked": count}, done)
        else:
            device_id = run.administration.revoke_device(name, device, reason)
            done = f"{name}'s device {device_id} is revoked; {name} may bring another."
            say_done(as_json, {"member": name, "device_revoked": device_id}, done)


@app.command(epilog="Example: manyhands coordinator erase my-run alice --yes")
def erase(
    directory: Path = DIRECTORY,
    name: str = typer.Argument(..., help="The member's name.", show_default=False),
    yes: bool = typer.Option(False, "--yes", help="Do not ask whether you are sure."),
    as_json: bool = JSON,
) -> None:
    """Forget a member's name for good: the samples stay under a pseudonym, the devices are shut out."""
    if not yes:
        typer.confirm(f"Shut {name!r} out and forget the name? This cannot be undone", abort=True, err=True)
    with open_run(directory) as run:
        pseudonym = run.administration.erase(name)
    say_done(as_json, {"pseudonym": pseudonym}, f"The member is called {pseudonym} from now on.")


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
