"""Command groups that import a command's module only when the command is called."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperGroup


@dataclass(frozen=True)
class LazyCommand:
    """A command or command group, whose module is imported only when the command is used."""

    module: str  # module with a typer `app` that is the command, or contains it
    summary: str
    panel: str | None = None  # help panel; None for the "Commands" panel


def lazy_app(entries: Mapping[str, LazyCommand], **options: Any) -> typer.Typer:
    """Return a typer app with these commands; pass `options` to typer."""

    class LazyGroup(TyperGroup):
        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            if args[0] in entries:
                self.commands[args[0]] = _loaded(entries[args[0]].module, args[0])
            return super().resolve_command(ctx, args)

    app = typer.Typer(cls=LazyGroup, no_args_is_help=True, pretty_exceptions_enable=False, **options)
    for name, entry in entries.items():
        app.command(name, help=entry.summary, rich_help_panel=entry.panel)(_not_loaded)
    return app


def _loaded(module: str, name: str) -> Any:
    group = typer.main.get_group(importlib.import_module(module).app)
    return group if group.name == name else group.commands[name]


def _not_loaded() -> None:
    raise AssertionError("a command is loaded before it is called")
