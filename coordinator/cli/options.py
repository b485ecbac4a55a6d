"""Options that several commands share."""

from __future__ import annotations

import typer

DIRECTORY = typer.Argument(..., metavar="DIR", help="The run's directory.", show_default=False)
JSON = typer.Option(False, "--json", help="Print the result as JSON.")
