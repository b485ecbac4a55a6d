"""The operator's commands about names: the names that the public sees, and those in the model card."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import typer

from coordinator.cli.options import DIRECTORY, JSON, say_done
from coordinator.context.open_run import open_run
from coordinator.members.credits import unnamed_members
from coordinator.members.names import display_names
from peer.runtime.console import say_json, say_table


class CreditAction(str, Enum):
    """What can be done about a member's name in the model card."""

    LIST = "list"
    OMIT = "omit"
    NAME = "name"


def display_name(
    directory: Path = DIRECTORY,
    name: str = typer.Argument(..., help="The member's name.", show_default=False),
    pseudonym: str = typer.Argument("", help="What the public sees instead; nothing: the name itself."),
    as_json: bool = JSON,
) -> None:
    """Choose the name under which the public sees a member."""
    with open_run(directory) as run:
        _say_shown(name, run.administration.show_as(name, pseudonym), as_json)


def hide_name_of(
    directory: Path = DIRECTORY,
    name: str = typer.Argument(..., help="The member's name.", show_default=False),
    show: bool = typer.Option(False, "--show", help="Show it again."),
    as_json: bool = JSON,
) -> None:
    """Let the public see a number instead of a member's name, whatever the member has chosen."""
    with open_run(directory) as run:
        _say_shown(name, run.administration.hide_name(name, not show), as_json)


def _say_shown(name: str, shown: str, as_json: bool) -> None:
    say_done(as_json, {"member": name, "display_name": shown}, f"The public sees {name} as {shown}.")


def credits_of(
    directory: Path = DIRECTORY,
    action: CreditAction = typer.Argument(CreditAction.LIST, help="What to do."),
    name: str = typer.Argument("", help="The member's name."),
    as_json: bool = JSON,
) -> None:
    """Say whom the model card names: everybody who contributed, unless they asked not to be (`omit`)."""
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
