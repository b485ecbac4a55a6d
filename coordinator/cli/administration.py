"""The operator's commands for administrators, the audit log and refused requests."""

from __future__ import annotations

import time
from dataclasses import asdict
from enum import Enum
from pathlib import Path

import typer

from coordinator.cli.options import DIRECTORY, JSON, LIMIT, say_done
from coordinator.context.open_run import open_run
from coordinator.members.administrators import Administrators
from coordinator.members.audit import audit_log
from coordinator.store.refusals import newest_refusals
from peer.runtime.console import format_age, say_json, say_table

app = typer.Typer()


class AdminAction(str, Enum):
    """The actions of `manyhands coordinator admin`."""

    ADD = "add"
    REMOVE = "remove"
    LIST = "list"


@app.command(epilog="Example: manyhands coordinator admin my-run add grace")
def admin(
    directory: Path = DIRECTORY,
    action: AdminAction = typer.Argument(..., help="Action to perform.", show_default=False),
    name: str = typer.Argument("", help="The administrator's name."),
    as_json: bool = JSON,
) -> None:
    """Add, remove or list web administrators; `add` prompts for a password, and also changes an existing one."""
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
def audit(directory: Path = DIRECTORY, limit: int = LIMIT, as_json: bool = JSON) -> None:
    """Show the audit log: invitations, revocations, erasures and other actions, by command or web page."""
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
    """Show the refused requests of devices and visitors, with the reasons."""
    with open_run(directory) as run:
        rows = newest_refusals(run.database, limit)
    if as_json:
        say_json([asdict(row) for row in rows])
        return
    now = time.time()
    say_table(
        ("when", "who", "kind", "code", "reason"),
        [(format_age(row.at, now), row.member, row.kind, row.code, row.reason) for row in rows],
    )
