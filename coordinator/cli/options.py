"""Options shared by several commands, and a function that prints a command's result."""

from __future__ import annotations

import typer

from peer.runtime.console import say, say_json

DIRECTORY = typer.Argument(..., metavar="DIR", help="The run's directory.", show_default=False)
JSON = typer.Option(False, "--json", help="Print the result as JSON.")
LIMIT = typer.Option(100, min=1, max=100_000, help="Number of newest entries to show.")


def say_done(as_json: bool, facts: object, text: str) -> None:
    """Print the result of a command as JSON or text."""
    if as_json:
        say_json(facts)
    else:
        say(text)
