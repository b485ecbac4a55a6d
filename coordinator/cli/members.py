"""The operator's commands for members and devices: admission, names, quarantine, revocation."""

from __future__ import annotations

import io
import json
import time
from dataclasses import asdict
from enum import Enum
from pathlib import Path

import segno
import typer

from auth.errors import ConfigError, UnreachableError
from coordinator.cli.options import DIRECTORY, JSON, say_done
from coordinator.context.open_run import OpenRun, open_run
from coordinator.members.allowlist import AllowedRow, Entry
from coordinator.members.credits import unnamed_members
from coordinator.members.devices import DeviceRow, device_rows
from coordinator.members.invites import ROLE_RANKS
from coordinator.members.join_page import Invitation
from coordinator.members.membership import MemberRow
from coordinator.members.names import display_names
from coordinator.members.quarantine import QuarantineRow, quarantines
from coordinator.run.directory import RunDirectory
from coordinator.run.ports import WILDCARDS
from coordinator.run.software import Software, own_software
from peer.network.http import asking, beginning, reaching
from peer.runtime.console import format_age, say, say_json, say_table

app = typer.Typer()
MAX_ANSWER_BYTES = 256 * 1024
ASKING_S = 2.0


@app.command("allow", epilog="Example: manyhands coordinator allow my-run hf:alice")
def allow(
    directory: Path = DIRECTORY,
    entry: str = typer.Argument(
        "", help="Account: PROVIDER:USER, PROVIDER-sub:SUBJECT or PROVIDER-org:ORGANISATION; none: list."
    ),
    role: str = typer.Option(
        "trainer",
        help=f"Role: {', '.join(ROLE_RANKS)}; if several entries match, the most permissive applies.",
    ),
    name: str = typer.Option(
        "",
        help="Member, new or existing, to whom the account belongs; the "
        "accounts of a member count together; default: the entry.",
    ),
    remove: bool = typer.Option(
        False, "--remove", help="Remove the entry; devices already admitted keep their access until `revoke`."
    ),
    as_json: bool = JSON,
) -> None:
    """Allow an account or an organisation at an identity provider to log in; without an entry, show the list."""
    with open_run(directory) as run:
        if not entry:
            _say_allowlist(run.membership.allowlist(), as_json)
            return
        _check_provider(run, entry)
        if remove:
            run.administration.disallow(entry)
        else:
            run.administration.allow(entry, role, name)
        link = str(run.directory.join_link)
    if as_json:
        say_json({"entry": entry, "role": role, "allowed": not remove, "join_link": link})
    elif remove:
        say(f"{entry} is off the list. Who was admitted by it stays until revoked.")
    else:
        say(f"{entry} may log in: manyhands {'assist' if role == 'auxiliary' else 'join'} '{link}'")


def _check_provider(run: OpenRun, entry: str) -> None:
    """Raise `ConfigError` for an entry that no login can match."""
    parsed, providers = Entry.parse(entry), run.directory.settings.providers
    if parsed.provider not in providers:
        known = ", ".join(providers) or "none"
        raise ConfigError(f"`providers` in settings.yaml names no {parsed.provider!r}; it names: {known}.")
    if parsed.is_organisation and not providers[parsed.provider].organisation_claim:
        raise ConfigError(f"`providers.{parsed.provider}.organisation_claim` must say where organisations stand.")


def _say_allowlist(rows: list[AllowedRow], as_json: bool) -> None:
    if as_json:
        say_json([asdict(row) for row in rows])
        return
    say_table(
        ("entry", "role", "member", "logged in"),
        [(row.entry, row.role, row.member, "yes" if row.matched else None) for row in rows],
    )


class CreditAction(str, Enum):
    """The actions of `manyhands coordinator credits`."""

    LIST = "list"
    OMIT = "omit"
    NAME = "name"


@app.command("display-name", epilog='Example: manyhands coordinator display-name my-run alice "Night Owl"')
def display_name(
    directory: Path = DIRECTORY,
    name: str = typer.Argument(..., help="The member's name.", show_default=False),
    pseudonym: str = typer.Argument("", help="Name that the public sees instead; default: the member's name itself."),
    as_json: bool = JSON,
) -> None:
    """Set the name that the public sees for a member."""
    with open_run(directory) as run:
        _say_shown(name, run.administration.show_as(name, pseudonym), as_json)


@app.command("hide-name", epilog="Example: manyhands coordinator hide-name my-run alice")
def hide_name_of(
    directory: Path = DIRECTORY,
    name: str = typer.Argument(..., help="The member's name.", show_default=False),
    show: bool = typer.Option(False, "--show", help="Show the name again."),
    as_json: bool = JSON,
) -> None:
    """Hide a member's name: the public sees a number instead, regardless of the member's choice."""
    with open_run(directory) as run:
        _say_shown(name, run.administration.hide_name(name, not show), as_json)


def _say_shown(name: str, shown: str, as_json: bool) -> None:
    say_done(as_json, {"member": name, "display_name": shown}, f"The public sees {name} as {shown}.")


@app.command("credits", epilog="Example: manyhands coordinator credits my-run omit alice")
def credits_of(
    directory: Path = DIRECTORY,
    action: CreditAction = typer.Argument(CreditAction.LIST, help="Action to perform."),
    name: str = typer.Argument("", help="The member's name."),
    as_json: bool = JSON,
) -> None:
    """Show or change the names in the model card: all contributors, except members who opted out (`omit`)."""
    with open_run(directory) as run:
        if action is not CreditAction.LIST:
            run.administration.credit(name, action is CreditAction.NAME)
        hidden, shown = unnamed_members(run.database), display_names(run.database)
        given = [row.member for row in run.ledger.contributions()]
    rows = [{"member": name, "card": None if name in hidden else shown.get(name, name)} for name in given]
    if as_json:
        say_json(rows)
        return
    say_table(("member", "in the model card"), [(row["member"], row["card"]) for row in rows])


class QuarantineAction(str, Enum):
    """The actions of `manyhands coordinator quarantine`."""

    LIST = "list"
    IMPOSE = "impose"
    LIFT = "lift"


@app.command(epilog="Example: manyhands coordinator devices my-run alice")
def devices(
    directory: Path = DIRECTORY,
    name: str = typer.Argument("", help="The member's name; default: the devices of all members."),
    as_json: bool = JSON,
) -> None:
    """List devices with the time of the first join, the hardware, and any revocation or quarantine."""
    with open_run(directory) as run:
        rows = device_rows(run.database, name and run.membership.known_name(name))
    if as_json:
        say_json([asdict(row) for row in rows])
        return
    now = time.time()
    say_table(
        ("device", "member", "role", "first seen", "last seen", "hardware", "revoked"),
        [
            (
                row.short_id,
                row.member,
                row.role,
                format_age(row.created_at, now),
                format_age(row.last_seen_at, now),
                row.hardware,
                _shut_out(row, now),
            )
            for row in rows
        ],
    )


def _shut_out(row: DeviceRow, now: float) -> str | None:
    if row.revoked_at is not None:
        return f"{format_age(row.revoked_at, now)} {row.revoked_reason}".strip()
    if row.quarantined_at is not None:
        return f"in quarantine, {format_age(row.quarantined_at, now)} {row.quarantined_reason}".strip()
    return None


@app.command(epilog="Example: manyhands coordinator quarantine my-run lift alice --device 1a2b3c4d")
def quarantine(
    directory: Path = DIRECTORY,
    action: QuarantineAction = typer.Argument(QuarantineAction.LIST, help="Action to perform."),
    name: str = typer.Argument("", help="The member's name."),
    device: str = typer.Option("", help="The device's id, or enough of its beginning; `lift` without it: all devices."),
    reason: str = typer.Option("", help="The reason, which the member sees."),
    as_json: bool = JSON,
) -> None:
    """Quarantine a device, or lift a quarantine; `list` shows quarantined devices and the reports about them."""
    if action is not QuarantineAction.LIST and not name:
        raise ConfigError(f"`{action.value}` needs the member's name.")
    with open_run(directory) as run:
        if action is QuarantineAction.LIST:
            _say_quarantines(quarantines(run.database), as_json)
        elif action is QuarantineAction.IMPOSE:
            device_id = run.administration.quarantine(name, device, reason)
            say_done(as_json, {"device_quarantined": device_id}, f"{name}'s device {device_id} is in quarantine.")
        else:
            released = run.administration.lift(name, device)
            done = f"Lifted for {name}'s {', '.join(released)}: the same command joins again."
            say_done(as_json, {"devices_released": released}, done)


def _say_quarantines(rows: list[QuarantineRow], as_json: bool) -> None:
    if as_json:
        say_json([asdict(row) for row in rows])
        return
    now = time.time()
    say_table(
        ("device", "member", "since", "by", "reason"),
        [(row.short_id, row.member, format_age(row.since, now), row.actor, row.reason) for row in rows],
    )
    if any(row.words for row in rows):
        say()
        say_table(
            ("device", "when", "who says so", "kind", "step", "detail"),
            [
                (row.short_id, format_age(word.at, now), word.witness, word.kind, word.step, word.detail)
                for row in rows
                for word in row.words
            ],
        )


@app.command(epilog="Example: manyhands coordinator invite my-run alice --days 3")
def invite(
    directory: Path = DIRECTORY,
    name: str = typer.Argument(..., help="The volunteer's name, shown on the dashboard.", show_default=False),
    role: str = typer.Option(
        "trainer",
        help=f"Role of the volunteer: {', '.join(ROLE_RANKS)}. An auxiliary averages "
        "without training; an observer only reads the state.",
    ),
    days: float = typer.Option(7.0, help="Number of days until the code expires."),
    devices: int = typer.Option(1, help="Number of devices that the volunteer brings; each gets a code of its own."),
    qr: bool = typer.Option(False, "--qr", help="Also print the join page's address, with the code, as a QR code."),
    as_json: bool = JSON,
) -> None:
    """Invite a volunteer: print one-time codes, which are not stored, and instructions for joining."""
    packed = own_software()  # built first, because it may fail, and codes are shown only once
    with open_run(directory) as run:
        codes = run.administration.invite(name, role, days, devices)
        link = str(run.directory.join_link)
        address = run.directory.settings.web_address
        warn_of_other_software(run.directory, packed)
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
        if qr:
            _draw_qr(invitation.page)
        say("Or, to install the software and join, in one line:")
        say(invitation.one_line)
        say("Where it is installed:")
        say(invitation.command)


def warn_of_other_software(directory: RunDirectory, ours: Software) -> None:
    """Warn on stderr if the running service was started before an update and serves older software."""
    settings = directory.settings
    host = "127.0.0.1" if settings.bind_host in WILDCARDS else settings.bind_host
    url = f"http://{f'[{host}]' if ':' in host else host}:{settings.web_port}/api/v1/joining"
    try:
        with reaching(url), asking("GET", url, timeout_s=ASKING_S) as answer:
            told = json.loads(beginning(answer, MAX_ANSWER_BYTES))
        is_other = told["join_link"] == str(directory.join_link) and not told["software"]["wheel"].endswith(ours.sha256)
    except (UnreachableError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return  # the run is not served here, or an older version serves it
    if is_other:
        typer.echo(
            "The coordinator that runs was started with other software than is installed now. Restart it before you "
            "send this invitation: the software that it hands out has another SHA-256.",
            err=True,
        )


def _draw_qr(text: str) -> None:
    """Print a QR code that encodes the text, light on dark in any terminal."""
    drawn = io.StringIO()
    segno.make(text, micro=False).terminal(drawn, compact=True)
    for line in drawn.getvalue().splitlines():
        typer.secho(line, fg="bright_white", bg="black")


@app.command(epilog="Example: manyhands coordinator members my-run --json")
def members(directory: Path = DIRECTORY, as_json: bool = JSON) -> None:
    """List the members, their devices and their contributions."""
    with open_run(directory) as run:
        given = {row.member: (row.samples, row.averaged_bytes) for row in run.ledger.contributions()}
        rows, shown = run.membership.members(), display_names(run.database)
    if as_json:
        say_json([_member_facts(row, shown.get(row.name, row.name), *given.get(row.name, (0, 0))) for row in rows])
        return
    now = time.time()
    with_accounts = any(row.accounts for row in rows)  # show the column only if members log in
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


@app.command(epilog='Example: manyhands coordinator revoke my-run mallory --reason "sends garbage"')
def revoke(
    directory: Path = DIRECTORY,
    name: str = typer.Argument(..., help="The member's name.", show_default=False),
    device: str | None = typer.Option(
        None, help="Revoke only this device: its id, or enough of its beginning (see `devices`)."
    ),
    reason: str = typer.Option("", help="The reason, which the member sees."),
    as_json: bool = JSON,
) -> None:
    """Revoke a member's access, or only one device's. A running coordinator enforces this within seconds."""
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
    yes: bool = typer.Option(False, "--yes", help="Do not ask for confirmation."),
    as_json: bool = JSON,
) -> None:
    """Erase a member's name permanently: samples remain under a pseudonym, and all devices are revoked."""
    if not yes:
        typer.confirm(f"Shut {name!r} out and forget the name? This cannot be undone", abort=True, err=True)
    with open_run(directory) as run:
        pseudonym = run.administration.erase(name)
    say_done(as_json, {"pseudonym": pseudonym}, f"The member is called {pseudonym} from now on.")
