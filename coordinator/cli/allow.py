"""The operator's command about who may log in with an identity provider."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from auth.errors import ConfigError
from coordinator.cli.options import DIRECTORY, JSON
from coordinator.context.open_run import OpenRun, open_run
from coordinator.members.allowlist import AllowedRow, Entry
from coordinator.members.invites import ROLE_RANKS
from peer.runtime.console import say, say_json, say_table


def allow(
    directory: Path = DIRECTORY,
    entry: str = typer.Argument(
        "", help="PROVIDER:USER, PROVIDER-sub:SUBJECT or PROVIDER-org:ORGANISATION; none: list."
    ),
    role: str = typer.Option("trainer", help=f"What they may do: {', '.join(ROLE_RANKS)}."),
    name: str = typer.Option("", help="The member that this account shall be, new or known; default: the entry."),
    remove: bool = typer.Option(False, "--remove", help="Take the entry off the list."),
    as_json: bool = JSON,
) -> None:
    """Let an account at an identity provider log in, or a whole organisation's; without an entry, show the list."""
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
    """Raise `ConfigError` for an entry that nobody could ever log in by."""
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
