"""The reference of all commands, with help, arguments and options, from typer's command tree."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from functools import cache
from itertools import groupby
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import typer
from annotated_types import Ge, Le
from markdown.extensions.toc import slugify

from docs.reference.keys import alternatives, as_default, definition, words
from manyhands import build_app

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@cache
def every_command() -> dict[str, Any]:
    """Return commands without subcommands by full name, such as `manyhands coordinator init`."""
    return {path: command for _, path, command in _below("manyhands", typer.main.get_command(build_app()))}


def commands_by_panel() -> str:
    """Return a Markdown section for each command, grouped by help panel."""
    found = list(_below("manyhands", typer.main.get_command(build_app())))
    order = list(dict.fromkeys(panel for panel, _, _ in found))
    parts = []
    for panel, entries in groupby(sorted(found, key=lambda entry: order.index(entry[0])), key=lambda entry: entry[0]):
        parts += [f"## {panel}", *(_section(path, command) for _, path, command in entries)]
    return "\n\n".join(parts)


def _below(path: str, command: Any, panel: str = "Commands") -> Iterator[tuple[str, str, Any]]:
    """Yield (panel, full name, command) for this command or, if any, for its subcommands."""
    names = list(getattr(command, "commands", ()))
    for name in names:
        own = command.commands[name].rich_help_panel
        own_panel = f"{path.removeprefix('manyhands ').capitalize()}: {own}" if own and " " in path else own or panel
        below = command.resolve_command(typer.Context(command), [name])[1]
        yield from _below(f"{path} {name}", below, own_panel)
    if not names:
        yield panel, path, command


def _section(path: str, command: Any) -> str:
    arguments = [_name(parameter) for parameter in command.params if not _is_option(parameter)]
    options = ["[OPTIONS]"] if any(map(_is_option, command.params)) else []
    hints = get_type_hints(inspect.unwrap(command.callback))
    parameters = [
        _parameter(parameter, hints[parameter.name]) for parameter in command.params if parameter.name in hints
    ]
    return "\n\n".join(
        [
            f"### `{path}`",
            " ".join([*command.help.split("\n\n"), *_guides(path)]),
            f"```text\n{' '.join([path, *arguments, *options])}\n```",
            f"Example:\n\n```sh\n{command.epilog.removeprefix('Example: ')}\n```",
            *parameters,
        ]
    )


def _parameter(parameter: Any, hint: Any) -> str:
    names = parameter.opts + parameter.secondary_opts if _is_option(parameter) else [_name(parameter)]
    meaning = parameter.help + (f" Environment variable: `{parameter.envvar}`." if parameter.envvar else "")
    return definition(names, _values(parameter, hint), _default(parameter), meaning)


def _is_option(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "option")


def _name(argument: Any) -> str:
    """Return an argument's name for a usage line, in brackets unless it is required."""
    name = argument.metavar or argument.name.upper()
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _values(parameter: Any, hint: Any) -> str:
    kinds = [kind for kind in get_args(hint) if kind is not NoneType] if get_origin(hint) is UnionType else [hint]
    (kind,) = [get_args(kind)[0] if get_origin(kind) is list else kind for kind in kinds]
    if kind is bool:
        return ""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return alternatives(member.value for member in kind)
    least, most = getattr(parameter, "min", None), getattr(parameter, "max", None)
    bounds = [*([] if least is None else [Ge(least)]), *([] if most is None else [Le(most)])]
    return f"`{parameter.metavar}`" if _is_option(parameter) and parameter.metavar else words(kind, bounds)


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if isinstance(parameter.show_default, str):
        return str(parameter.show_default)
    value = parameter.default.value if isinstance(parameter.default, Enum) else parameter.default
    if isinstance(value, Path):
        value = str(value.relative_to(ROOT) if value.is_relative_to(ROOT) else value)
    return "" if value is None or value is False or value in ("", []) else as_default(value)


def _guides(path: str) -> Iterator[str]:
    """Yield a sentence with a link to each heading in the guides that contains the command."""
    for guide, text in _guide_texts().items():
        for heading in re.findall(rf"^#+ ([^\n]*`{path}`.*)$", text, re.MULTILINE):
            title = text.partition("\n")[0].removeprefix("# ")
            yield f"More: [{title}](../{guide}#{slugify(heading.replace('`', ''), '-')})."


@cache
def _guide_texts() -> dict[str, str]:
    guides = (page for page in sorted(DOCS.rglob("*.md")) if page.parent != DOCS / "reference")
    return {page.relative_to(DOCS).as_posix(): page.read_text(encoding="utf-8") for page in guides}
