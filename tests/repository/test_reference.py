"""The generated reference has every command and every key, with its default and its meaning, at the page's markers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from pydantic import BaseModel, Field

from coordinator.cli.main import COMMANDS
from coordinator.run.settings import Settings
from docs.reference.commands import every_command
from docs.reference.generated import fill, parts
from docs.reference.keys import words
from peer.config.base import Positive, PositiveFloat, ShortName
from peer.config.run import RunConfig

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {"run-file": RunConfig, "settings": Settings}
BUILTIN = [{"kind": "builtin"}]  # the other keys of the source are at their own defaults


@cache
def page(name: str) -> str:
    """A page of the reference."""
    return (DOCS / "reference" / f"{name}.md").read_text(encoding="utf-8")


@cache
def keys(name: str) -> list[tuple[str, str, str]]:
    """Each key of a page with its default and its meaning."""
    return re.findall(r"^\*\*`([\w.]+)`\*\*(?: \(.*?(?:default: (.+))?\))?\n:   (.+)$", page(name), re.MULTILINE)


def defaults(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each key below which no keys are, with its value."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from defaults(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def section(command: str) -> str:
    """The part of the commands' page under the command's heading."""
    found = re.search(rf"^### `{command}`\n(.*?)(?=^##|\Z)", page("commands"), re.MULTILINE | re.DOTALL)
    assert found, command
    return found.group(1)


@pytest.mark.parametrize("name", PAGES)
def test_every_default_stands_beside_its_key(name: str) -> None:
    """A file without a key means the value that the reference says."""
    told = {key: (default, meaning) for key, default, meaning in keys(name)}
    for key, value in defaults(PAGES[name]().model_dump(mode="json")):
        expected = BUILTIN if key == "data.sources" else value
        default, meaning = told[key]
        if default in ("none", "empty"):
            assert expected in (None, "", [], {}) or f"by default {expected}." in meaning, key  # of the default family
        else:
            assert yaml.safe_load(default.strip("`")) == expected, key


@pytest.mark.parametrize("name", PAGES)
def test_every_key_of_every_section_has_a_meaning(name: str) -> None:
    """The pages leave out no key that pydantic knows, however deep, and say of each what it means."""
    schema = PAGES[name].model_json_schema()
    known = {key for part in (schema, *schema["$defs"].values()) for key in part["properties"]}
    told = {part for key, _, _ in keys(name) for part in key.split(".")}
    sections = set(RunConfig.model_fields) if name == "run-file" else set()
    assert known - told - sections == set()
    assert [key for key, _, meaning in keys(name) if not meaning.endswith(".")] == []


@pytest.mark.parametrize("command", sorted(every_command()))
def test_every_argument_and_option_of_a_command_is_explained(command: str) -> None:
    """A command's section has its arguments, its options, their defaults and variables, and its example."""
    text = section(command)
    for parameter in every_command()[command].params:
        names = [name for name in parameter.opts if name.startswith("--")]
        name = re.escape(names[0] if names else (parameter.metavar or parameter.name.upper()).strip("[]"))
        found = re.search(rf"^\*\*`\[?{name}\]?`.*\n:   .*$", text, re.MULTILINE)
        assert found, name
        assert parameter.help in found.group()
        assert parameter.envvar is None or f"`{parameter.envvar}`" in found.group()
        if type(parameter.default) in (int, float):
            assert f"default: `{parameter.default}`)" in found.group()
    assert every_command()[command].epilog.removeprefix("Example: ") in text


def test_commands_stand_under_the_headings_of_their_panels() -> None:
    """Who looks for a command of the coordinator finds it under the heading that `--help` has."""
    grouped = {
        heading: re.findall(r"^### `(.+)`$", text, re.MULTILINE)
        for heading, text in re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", page("commands"), re.MULTILINE | re.DOTALL)
    }
    assert sorted(chain(*grouped.values())) == sorted(every_command())
    for name, command in COMMANDS.items():
        assert f"manyhands coordinator {name}" in grouped[f"Coordinator: {command.panel}"]
    assert "manyhands join" in grouped["Take part in a run"]


def test_everything_that_is_generated_has_its_place() -> None:
    """Each part has one marker in the documents, and a marker that names nothing is an error."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md"))
    assert sorted(re.findall(r"<!-- generated: (.+?) -->", text)) == sorted(parts())
    with pytest.raises(KeyError, match="nothing"):
        fill("<!-- generated: nothing -->\n<!-- end -->")


def test_what_is_generated_is_as_it_would_be_generated_now() -> None:
    """`make reference` writes it anew."""
    for path in DOCS.rglob("*.md"):
        text = path.read_text(encoding="utf-8")
        assert fill(text) == text, f"{path.name} is not as the program is: run `make reference`"


class Part(BaseModel):
    """A section of a file."""


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (Positive | None, "whole number, at least 1"),
        (PositiveFloat, "number, above 0"),
        (Annotated[float, Field(le=10, gt=0)], "number, above 0, at most 10"),
        (Annotated[int, Field(ge=0, lt=2**32)], "whole number, 0 to 4294967295"),
        (Annotated[str, Field(max_length=1)], "text of at most 1 character"),
        (ShortName, "at most 40 lower-case letters, digits and hyphens, the first a letter or a digit"),
        (Literal["a", "b", "c"], "`a`, `b` or `c`"),
        (bool, "`true` or `false`"),
        (tuple[float, float], "list of 2 items, each: number"),
        (Annotated[tuple[Part, ...], Field(max_length=8)], "list of at most 8 items, each a section"),
        (dict[str, int | None], "mapping, each: whole number"),
        (bool | int | float | str | None, "value"),
    ],
)
def test_bounds_and_types_are_told_in_words(annotation: Any, said: str) -> None:
    """No reader has to know Python's types or pydantic's constraints."""
    assert words(annotation) == said
