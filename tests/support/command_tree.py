"""Every command that the program has."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import typer

from manyhands import build_app


@cache
def every_command() -> dict[str, Any]:
    """`manyhands coordinator init` -> its click command, for every command that does something."""
    return dict(_below("manyhands", typer.main.get_command(build_app())))


def _below(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    names = list(getattr(command, "commands", ()))
    for name in names:
        yield from _below(f"{path} {name}", command.resolve_command(typer.Context(command), [name])[1])
    if not names:
        yield path, command
