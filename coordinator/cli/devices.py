"""The operator's commands about single devices: list them, cut one off until that is lifted."""

from __future__ import annotations

import time
from dataclasses import asdict
from enum import Enum
from pathlib import Path

import typer

from auth.errors import ConfigError
from coordinator.cli.options import DIRECTORY, JSON, say_done
from coordinator.context.open_run import open_run
from coordinator.members.devices import DeviceRow, device_rows
from coordinator.members.quarantine import QuarantineRow, quarantines
from peer.runtime.console import format_age, say, say_json, say_table


class QuarantineAction(str, Enum):
    """What can be done about quarantine."""

    LIST = "list"
    IMPOSE = "impose"
    LIFT = "lift"


def devices(
    directory: Path = DIRECTORY,
    name: str = typer.Argument("", help="The member's name; nothing: everybody's devices."),
    as_json: bool = JSON,
) -> None:
    """List the members' devices: since when, on what hardware, and which are revoked or in quarantine."""
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


def quarantine(
    directory: Path = DIRECTORY,
    action: QuarantineAction = typer.Argument(QuarantineAction.LIST, help="What to do."),
    name: str = typer.Argument("", help="The member's name."),
    device: str = typer.Option("", help="The device: its id, or enough of the beginning; for `lift`, none: all."),
    reason: str = typer.Option("", help="Why; the member sees it."),
    as_json: bool = JSON,
) -> None:
    """Cut a device off until that is lifted; `list` shows who is cut off, and who said what of it."""
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
